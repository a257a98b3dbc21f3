//! The simulated GPU against PyTorch's own tracker: training steps of torchvision's ResNets, whose bytes stand in
//! `tests/reference/memory.json`, written by `tests/reference/make/memory.py`. Each difference has a name and a formula here; there is
//! no tolerance. (No harness: a dry process is a process of its own, so this program starts itself again, with a role.)

mod roles;

use anyhow::{Context, Result, bail};
use models::{Attention, Model, Settings};
use serde::{Deserialize, Serialize};
use sim::trace::Kind;
use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use tch::Reduction;
use torch::dry::{self, Dry};
use torch::optimizers::{Algorithm, Implementation, Optimizer, ZeroGrad};
use torch::{self, Backend, Categories, CudaMemory, Mark, Marked, Phase, Recorder, Stage, Timeline};

fn main() -> ExitCode {
    let tests: &[(&str, fn())] = &[
        ("layers_are_torchvisions", layers_are_torchvisions),
        ("bytes_are_those_of_pytorchs_tracker", bytes_are_those_of_pytorchs_tracker),
        ("so_are_those_of_models_drawn_at_random", so_are_those_of_models_drawn_at_random),
        ("what_the_allocator_adds_is_named", what_the_allocator_adds_is_named),
        ("a_gpu_takes_what_the_dry_device_takes", a_gpu_takes_what_the_dry_device_takes),
        ("the_tables_figures_are_the_references", the_tables_figures_are_the_references),
        ("references_are_counted_right", references_are_counted_right),
    ];
    roles::main(play, tests)
}

/// What PyTorch's tracker rounds each tensor up to, as its allocator does before it looks for a block.
const BLOCK: i64 = 512;

fn rounded(bytes: i64) -> i64 {
    (bytes + BLOCK - 1) / BLOCK * BLOCK
}

// ---- the reference -------------------------------------------------------------------------------------------------------------------------

#[derive(Deserialize)]
struct Reference {
    torch: String,
    /// Names and shapes of parameters and buffers by model, in torchvision's order.
    models: BTreeMap<String, Vec<(String, Vec<i64>)>>,
    cases: Vec<Case<Tracked>>,
    drawn: Vec<Drawn>,
}

/// Steps of a small model that was drawn at random, with bytes at each phase's end and peak.
#[derive(Deserialize)]
struct Drawn {
    #[serde(flatten)]
    steps: Steps,
    live: Vec<i64>,
    peak_in_place: Vec<i64>,
}

#[derive(Deserialize)]
struct Case<P> {
    #[serde(flatten)]
    steps: Steps,
    phases: Vec<P>,
}

/// Two training steps of a model.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Steps {
    model: String,
    batch: i64,
    /// Side of an image, or a text's tokens.
    length: i64,
    optimizer: String,
    implementation: String,
}

/// What PyTorch's tracker says of a phase.
#[derive(Deserialize)]
struct Tracked {
    iteration: u32,
    phase: Phase,
    live: TrackedCategories,
    peak: i64,
    /// The peak as it is where two gradients are added in place, as they are in every real run and not under the tracker.
    peak_in_place: TrackedCategories,
    rounded: Rounded,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct TrackedCategories {
    parameters: i64,
    buffers: i64,
    gradients: i64,
    optimizer_state: i64,
    activations: i64,
    data: i64,
    temporaries: i64,
}

impl TrackedCategories {
    fn total(self) -> i64 {
        let TrackedCategories { parameters, buffers, gradients, optimizer_state, activations, data, temporaries } = self;
        parameters + buffers + gradients + optimizer_state + activations + data + temporaries
    }
}

/// Each tensor rounded up to blocks, in all.
#[derive(Deserialize)]
struct Rounded {
    live: i64,
    peak: i64,
    peak_in_place: i64,
}

fn reference() -> Reference {
    let reference: Reference = serde_json::from_str(include_str!("../reference/memory.json")).unwrap();
    assert_eq!(reference.torch, "2.11.0");
    assert!(reference.cases.len() >= 12 && reference.models.len() == 2);
    reference
}

// ---- the same steps on the simulated GPU --------------------------------------------------------------------------------------------------

/// What a dry process answers.
#[derive(Serialize, Deserialize)]
struct Answer {
    /// Names and shapes of parameters and buffers.
    variables: BTreeMap<String, Vec<i64>>,
    trainable: usize,
    phases: Vec<Stage>,
    /// For each phase.
    blocks: Vec<Blocks>,
    /// For each phase what of its peak is the product of [`products`].
    products: Vec<i64>,
}

/// Bytes of a phase as the allocator rounds them.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Blocks {
    /// At the end: tensors rounded up to blocks, what the allocator says, and what it left at the end of blocks that it did not split.
    live: i64,
    allocated: i64,
    unsplit: i64,
    /// Most at once, of tensors rounded up, and as the allocator says, in blocks and in segments.
    peak: i64,
    allocated_peak: i64,
    reserved_peak: i64,
}

fn play(role: &str, argument: &str) -> Result<String> {
    tch::set_num_threads(1);
    match role {
        "steps" => Ok(serde_json::to_string(&follow(&serde_json::from_str(argument)?)?)?),
        _ => bail!("no role '{role}'"),
    }
}

fn follow(steps: &Steps) -> Result<Answer> {
    let dry = Dry::open()?;
    let algorithm = match steps.optimizer.as_str() {
        "momentum" => Algorithm::Momentum,
        "adam" => Algorithm::Adam,
        other => bail!("no optimizer '{other}'"),
    };
    let implementation = Implementation::ALL.into_iter().find(|i| i.to_string() == steps.implementation);
    let implementation = implementation.with_context(|| format!("no implementation '{}'", steps.implementation))?;
    let settings = match steps.model.starts_with("gpt") {
        true => Settings { sequence: Some(steps.length), attention: Attention::Explicit, ..Settings::default() },
        false => Settings { image: Some(steps.length), ..Settings::default() },
    };
    let mut blocks = Vec::new();
    let mut recorder = Recorder::begin(&dry)?;
    multiply(dry.device())?;
    let model = Model::with(&steps.model, &settings, dry.device())?;
    let mut optimizer = Optimizer::new(&model.store, algorithm, 1e-3, implementation)?;
    let batch = model.batch(steps.batch);
    let mut ended = |mark: Mark| -> Result<()> {
        recorder.ended(mark, &model.store, &[&batch.inputs, &batch.targets])?;
        let held = dry::held_blocks()?;
        let unsplit = held.iter().filter(|b| b.requested > 0).map(|b| b.bytes - rounded(b.requested)).sum();
        let CudaMemory { allocated, allocated_peak, reserved_peak, .. } = torch::cuda_memory(0)?;
        blocks.push(Blocks { allocated, allocated_peak, reserved_peak, unsplit, ..Blocks::default() });
        dry.reset_peaks()
    };
    ended(Mark::LOADED)?;
    for iteration in 1..=2 {
        let mark = |phase| Mark { iteration, phase, micro_batch: 0 };
        optimizer.zero_grad(ZeroGrad::ToNone)?;
        let loss = model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean);
        ended(mark(Phase::Forward))?;
        loss.f_backward()?;
        drop(loss);
        ended(mark(Phase::Backward))?;
        optimizer.step()?;
        ended(mark(Phase::Optimizer))?;
    }
    let timeline = recorder.end();
    let variables = model.store.variables().into_iter().map(|(name, tensor)| (name, tensor.size())).collect();
    let trainable = model.parameter_count();
    round(&timeline, &mut blocks);
    let products = products(&timeline, if steps.model.starts_with("gpt") { scores(steps) } else { 0 });
    let mut phases = timeline.stages();
    for (stage, blocks) in phases.iter_mut().zip(&mut blocks) {
        for categories in [&mut stage.at_end, &mut stage.at_peak] {
            categories.workspaces -= WORKSPACES;
        }
        for bytes in [&mut stage.live, &mut stage.peak, &mut blocks.live, &mut blocks.peak, &mut blocks.allocated] {
            *bytes -= WORKSPACES;
        }
    }
    Ok(Answer { variables, trainable, phases, blocks, products })
}

/// What of each phase's peak is the product of gradient and result that CUDA's softmax backward makes beside its own result, and frees before
/// anything else is allocated; the CPU's makes none. Both are as large as the scores.
fn products(timeline: &Timeline, scores: i64) -> Vec<i64> {
    let mut of_product = vec![false; timeline.events.len()];
    for (at, three) in timeline.events.windows(3).enumerate() {
        let [result, product, gone] = three else { continue };
        let order = [result, product, gone].map(|event| event.kind) == [Kind::Alloc, Kind::Alloc, Kind::FreeCompleted];
        let is_product = product.phase == Phase::Backward && product.address == gone.address;
        if order && is_product && [result, product].map(|event| event.bytes) == [scores; 2] {
            of_product[at + 1..at + 3].fill(true);
        }
    }
    let (mut live, mut from) = (0, 0);
    let of_phase = |mark: &Marked| {
        let (mut with, mut most, mut most_without) = (live, live, live);
        for (event, of_product) in timeline.events[from..mark.events].iter().zip(&of_product[from..]) {
            let bytes = event.change();
            with += bytes;
            live += if *of_product { 0 } else { bytes };
            (most, most_without) = (most.max(with), most_without.max(live));
        }
        from = mark.events;
        most - most_without
    };
    timeline.marks.iter().map(of_phase).collect()
}

/// What cuBLAS keeps on compute capability 9.0, and the tracker does not know of: 32 MiB for each thread that multiplies, the caller and
/// autograd's, and 1 MiB for cuBLASLt, which the caller's products with a bias use.
const WORKSPACES: i64 = 65 << 20;

/// Multiplies in both threads, so that the workspaces are there before anything is counted.
fn multiply(device: tch::Device) -> Result<()> {
    let x = tch::Tensor::ones([32, 32], (tch::Kind::Float, device)).set_requires_grad(true);
    Ok(x.linear(&x, Some(&x.get(0))).sum(tch::Kind::Float).f_backward()?)
}

/// Bytes of the timeline's tensors, each rounded up to blocks.
fn round(timeline: &Timeline, phases: &mut [Blocks]) {
    let (mut live, mut from) = (0, 0);
    for (mark, phase) in timeline.marks.iter().zip(phases) {
        phase.peak = live;
        for event in &timeline.events[from..mark.events] {
            live += event.change().signum() * rounded(event.bytes);
            phase.peak = phase.peak.max(live);
        }
        (phase.live, from) = (live, mark.events);
    }
}

/// The same steps are run once, for all tests.
fn answer(steps: &Steps) -> Arc<Answer> {
    static KNOWN: Mutex<BTreeMap<String, Arc<Answer>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(format!("{steps:?}")).or_insert_with(|| Arc::new(asked(steps))).clone()
}

fn asked(steps: &Steps) -> Answer {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--role", "steps", &serde_json::to_string(steps).unwrap()]);
    command.env_remove("PYTORCH_ALLOC_CONF").env_remove("PYTORCH_CUDA_ALLOC_CONF");
    // The tracker knows no workspaces of cuDNN.
    command.env("VRAMLAB_DRY_CUDNN", "0");
    dry::prepare(&mut command, 24 << 30).unwrap();
    let output = command.output().unwrap();
    assert!(output.status.success(), "{steps:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

// ---- the differences, by name --------------------------------------------------------------------------------------------------------------

/// What torchvision's model and PyTorch's optimizer have and ours do not have on the device. Bytes, or where they are `rounded`, blocks.
struct Terms {
    /// Torchvision's batch norms count their batches, 8 bytes each.
    counters: i64,
    /// Adam's loop and foreach count steps in tensors of 4 bytes on the CPU, which under the tracker is the device of all. Ours count them in
    /// a number (loop) or on the CPU (foreach). From the first step on.
    steps: i64,
    /// Adam's loop is Python's there and libtorch's here. Python's makes the state of all parameters before it begins with the first, and
    /// keeps a parameter's last temporary until it has that of the next. At the peak of the first step, and of later ones.
    python_loop: [i64; 2],
}

impl Terms {
    fn of(steps: &Steps, reference: &Reference, bytes: fn(i64) -> i64) -> Terms {
        let names = &reference.models[&steps.model];
        let norms = names.iter().filter(|(name, _)| name.ends_with("num_batches_tracked")).count() as i64;
        let trained = names.iter().filter(|(name, _)| name.ends_with("weight") || name.ends_with("bias"));
        let sizes: Vec<i64> = trained.map(|(_, shape)| bytes(4 * shape.iter().product::<i64>())).collect();
        let (is_adam, is_loop) = (steps.optimizer == "adam", steps.implementation == "loop");
        let counted = is_adam && steps.implementation != "fused";
        Terms {
            counters: norms * bytes(8),
            steps: if counted { sizes.len() as i64 * bytes(4) } else { 0 },
            python_loop: if is_adam && is_loop { python_over_libtorch(&sizes) } else { [0, 0] },
        }
    }

    fn of_state(&self, iteration: u32, phase: Phase) -> i64 {
        if iteration > 1 || phase == Phase::Optimizer { self.steps } else { 0 }
    }

    fn of_peak(&self, iteration: u32, phase: Phase) -> i64 {
        if phase == Phase::Optimizer { self.python_loop[iteration as usize - 1] } else { 0 }
    }
}

/// By how much the peak of Adam's step in Python's loop is above that of libtorch's, in the first step and in later ones. Both keep two
/// moments and need two temporaries for each parameter, all as large as it is.
fn python_over_libtorch(parameters: &[i64]) -> [i64; 2] {
    let state: i64 = parameters.iter().map(|bytes| 2 * bytes).sum();
    let before = [0].into_iter().chain(parameters.iter().copied());
    let python = state + before.zip(parameters).map(|(before, own)| before + 2 * own).max().unwrap();
    let mut state_so_far = 0;
    let first = parameters.iter().map(|own| {
        state_so_far += 2 * own;
        state_so_far + 2 * own
    });
    let first = first.max().unwrap();
    let later = state + parameters.iter().map(|own| 2 * own).max().unwrap();
    [python - first, python - later]
}

/// Torchvision's name of one of our variables.
fn torchvisions_name(ours: &str, stages: &[usize]) -> String {
    let parts: Vec<&str> = ours.split('.').collect();
    let (place, rest) = match parts[..] {
        ["stem", ref rest @ ..] => (("conv1".to_string(), "bn1".to_string()), rest),
        ["head", ref rest @ ..] => (("fc".to_string(), String::new()), rest),
        ["block", block, convolution, ref rest @ ..] => {
            let (mut inside, mut stage) = (block.parse::<usize>().unwrap(), 0);
            while inside >= stages[stage] {
                inside -= stages[stage];
                stage += 1;
            }
            let block = format!("layer{}.{inside}", stage + 1);
            let own = match convolution {
                "first" => ("conv1", "bn1"),
                "second" => ("conv2", "bn2"),
                "third" => ("conv3", "bn3"),
                "downsample" => ("downsample.0", "downsample.1"),
                other => panic!("{other} in {ours}"),
            };
            ((format!("{block}.{}", own.0), format!("{block}.{}", own.1)), rest)
        }
        _ => panic!("{ours}"),
    };
    match rest {
        ["norm", name] => format!("{}.{name}", place.1),
        [name] => format!("{}.{name}", place.0),
        _ => panic!("{ours}"),
    }
}

fn layers_are_torchvisions() {
    let reference = reference();
    for (model, trainable, stages) in [("resnet18", 11_689_512, [2, 2, 2, 2]), ("resnet50", 25_557_032, [3, 4, 6, 3])] {
        let case = reference.cases.iter().find(|case| case.steps.model == model).unwrap();
        let ours = answer(&case.steps);
        assert_eq!(ours.trainable, trainable, "{model}");
        let named = ours.variables.iter().map(|(name, shape)| (torchvisions_name(name, &stages), shape.clone()));
        let theirs = reference.models[model].iter().filter(|(name, _)| !name.ends_with("num_batches_tracked")).cloned();
        assert_eq!(named.collect::<BTreeMap<_, _>>(), theirs.collect::<BTreeMap<_, _>>(), "{model}");
    }
}

fn bytes_are_those_of_pytorchs_tracker() {
    let reference = reference();
    for Case { steps, phases } in &reference.cases {
        let ours = answer(steps);
        let (exact, in_blocks) = (Terms::of(steps, &reference, |bytes| bytes), Terms::of(steps, &reference, rounded));
        assert_eq!(ours.phases.len(), phases.len());
        for ((ours, blocks), theirs) in ours.phases.iter().zip(&ours.blocks).zip(phases) {
            let place = format!("{steps:?}: {} of iteration {}", ours.phase, ours.iteration);
            assert_eq!((ours.iteration, ours.phase), (theirs.iteration, theirs.phase), "{place}");
            let state = exact.of_state(ours.iteration, ours.phase);
            same_categories(&ours.at_end, theirs.live, ours.phase, exact.counters, state, &place);
            let state_in_blocks = in_blocks.of_state(ours.iteration, ours.phase);
            assert_eq!(blocks.live + in_blocks.counters + state_in_blocks, theirs.rounded.live, "{place}: in blocks");
            if ours.phase == Phase::Load {
                // Each starts its parameters in its own way.
                continue;
            }
            let place = format!("{place}, at the peak");
            let mut at_peak = theirs.peak_in_place;
            if ours.phase == Phase::Backward {
                // The gradient of the loss, one float, is made before the tracker's first hook tells it that a backward pass is on.
                at_peak.activations -= 4;
                at_peak.temporaries += 4;
            }
            let in_step = state + exact.of_peak(ours.iteration, ours.phase);
            same_categories(&ours.at_peak, at_peak, ours.phase, exact.counters, in_step, &place);
            let in_step = state_in_blocks + in_blocks.of_peak(ours.iteration, ours.phase);
            let peak = blocks.peak + in_blocks.counters + in_step;
            assert_eq!(peak, theirs.rounded.peak_in_place, "{place}: in blocks");
            // The tracker's own peak is higher by what it holds while two gradients are added, in backward passes only.
            let sums = [theirs.peak - theirs.peak_in_place.total(), theirs.rounded.peak - theirs.rounded.peak_in_place];
            assert_eq!(sums.map(|sum| sum > 0), [ours.phase == Phase::Backward; 2], "{place}: {sums:?}");
        }
    }
}

fn so_are_those_of_models_drawn_at_random() {
    let reference = reference();
    assert!(reference.drawn.len() >= 40);
    let mut with_product = 0;
    for Drawn { steps, live, peak_in_place } in &reference.drawn {
        let ours = answer(steps);
        let norms = ours.variables.keys().filter(|name| name.ends_with("running_mean")).count() as i64;
        let parameters = ours.variables.keys().filter(|name| name.ends_with("weight") || name.ends_with("bias")).count() as i64;
        let counted = steps.optimizer == "adam" && steps.implementation == "foreach";
        for (at, (ours, product)) in ours.phases.iter().zip(&ours.products).enumerate() {
            let place = format!("{steps:?}: {} of iteration {}", ours.phase, ours.iteration);
            let has_state = ours.iteration > 1 || ours.phase == Phase::Optimizer;
            let terms = 8 * norms + if counted && has_state { 4 * parameters } else { 0 };
            assert_eq!(ours.live + terms, live[at], "{place}");
            if ours.phase != Phase::Load {
                assert_eq!(ours.peak - product + terms, peak_in_place[at], "{place}, at the peak");
                with_product += usize::from(*product > 0);
            }
        }
    }
    assert!(with_product > 0, "no peak held a softmax's product, so nothing of it was tested");
}

/// Bytes of attention's scores in one layer of a model `gpt-LAYERSxWIDTH`.
fn scores(steps: &Steps) -> i64 {
    let width: i64 = steps.model.rsplit('x').next().and_then(|width| width.parse().ok()).unwrap();
    4 * steps.batch * (width / 32) * steps.length * steps.length
}

/// The categories that both know. Within a phase the tracker calls a tensor by the phase that made it, and a gradient is one when its
/// parameter has it; what is only known when the phase has ended is compared as one.
fn same_categories(ours: &Categories, theirs: TrackedCategories, phase: Phase, counters: i64, steps: i64, place: &str) {
    assert_eq!(ours.parameters + counters, theirs.parameters + theirs.buffers, "{place}: parameters and buffers");
    assert_eq!(ours.data, theirs.data, "{place}: data");
    let other = |a, g, o, t| match phase {
        Phase::Forward => [a + t, g, o, 0],
        Phase::Optimizer => [a, g, o + t, 0],
        _ => [a, g + t, o, 0],
    };
    assert_eq!(
        other(ours.activations, ours.gradients, ours.optimizer_state + steps, ours.temporaries),
        other(theirs.activations, theirs.gradients, theirs.optimizer_state, theirs.temporaries),
        "{place}: activations, gradients, optimizer state"
    );
    assert_eq!(ours.total() + counters + steps, theirs.total(), "{place}");
}

/// The tracker rounds tensors up to blocks of 512 bytes; the allocator also gives a tensor a larger block where the rest is not worth
/// splitting off. No other byte is between the two.
fn what_the_allocator_adds_is_named() {
    for Case { steps, .. } in &reference().cases {
        let ours = answer(steps);
        assert!(ours.blocks.iter().any(|blocks| blocks.unsplit > 0), "{steps:?}: nothing was left unsplit, so nothing was tested");
        for (blocks, stage) in ours.blocks.iter().zip(&ours.phases) {
            assert_eq!(blocks.allocated, blocks.live + blocks.unsplit, "{steps:?}: {} of {}", stage.phase, stage.iteration);
            assert!(blocks.allocated_peak >= blocks.peak && blocks.reserved_peak >= blocks.allocated_peak);
        }
    }
}

// ---- a real GPU ----------------------------------------------------------------------------------------------------------------------------

/// `torch.cuda.memory_stats` of the same steps, where somebody has written them on a GPU.
#[derive(Deserialize)]
struct OnGpu {
    gpu: String,
    cases: Vec<Case<Counted>>,
}

#[derive(Deserialize)]
struct Counted {
    phase: Phase,
    requested: CurrentAndPeak,
    allocated: CurrentAndPeak,
    reserved: CurrentAndPeak,
}

#[derive(Deserialize)]
struct CurrentAndPeak {
    current: i64,
    peak: i64,
}

/// What lives at the end of each phase is the same to the byte. A peak is at least the simulated GPU's: cuDNN's and cuBLAS's workspaces,
/// which no dry run sees, are the rest, and are printed.
fn a_gpu_takes_what_the_dry_device_takes() {
    let file = common::root().join("tests/reference/memory_cuda.json");
    let Ok(text) = std::fs::read_to_string(&file) else {
        common::needs_gpu(&format!("tracker: there is no {}, which reference_memory.py writes", file.display()));
        return;
    };
    let (reference, found) = (reference(), serde_json::from_str::<OnGpu>(&text).unwrap());
    assert!(!found.cases.is_empty());
    for Case { steps, phases } in &found.cases {
        let ours = answer(steps);
        let terms = Terms::of(steps, &reference, |bytes| bytes);
        for ((ours, blocks), theirs) in ours.phases.iter().zip(&ours.blocks).zip(phases) {
            let place = format!("{}: {steps:?}: {} of iteration {}", found.gpu, ours.phase, ours.iteration);
            assert_eq!(ours.phase, theirs.phase, "{place}");
            // On a GPU steps that the loop and foreach count stay on the CPU.
            assert_eq!(ours.live + terms.counters, theirs.requested.current, "{place}");
            if ours.phase == Phase::Load {
                continue;
            }
            let workspaces = theirs.requested.peak - ours.peak - terms.counters - terms.of_peak(ours.iteration, ours.phase);
            assert!(workspaces >= 0, "{place}: the peak was predicted {} bytes too high", -workspaces);
            println!(
                "{place}: workspaces of {workspaces} bytes at the peak; allocated {} (dry {}), reserved {} (dry {})",
                theirs.allocated.peak, blocks.allocated_peak, theirs.reserved.peak, blocks.reserved_peak
            );
        }
    }
}

// ---- METHODOLOGY.md ------------------------------------------------------------------------------------------------------------------------

fn grouped(bytes: i64) -> String {
    let digits = bytes.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

/// The table of METHODOLOGY.md: the peak of the second iteration's backward pass, where images have the usual size and the optimizer is one
/// that people take on a GPU.
fn table(reference: &Reference) -> String {
    let mut table = String::from(
        "| model, batch, optimizer | PyTorch's tracker | sums of gradients | counters of batches | counters of steps | simulated GPU |\n\
         |---|---|---|---|---|---|\n",
    );
    for Case { steps, phases } in &reference.cases {
        if steps.length != 224
            || steps.implementation == "loop"
            || (&*steps.optimizer, &*steps.implementation) == ("momentum", "fused")
        {
            continue;
        }
        let peak = phases.iter().find(|p| (p.iteration, p.phase) == (2, Phase::Backward)).unwrap();
        let terms = Terms::of(steps, reference, |bytes| bytes);
        let sums = peak.peak - peak.peak_in_place.total();
        let dry = peak.peak_in_place.total() - terms.counters - terms.steps;
        let figures = [peak.peak, -sums, -terms.counters, -terms.steps, dry].map(|bytes| match bytes {
            0 => "–".to_string(),
            negative if negative < 0 => format!("–{}", grouped(-negative)),
            positive => grouped(positive),
        });
        let Steps { model, batch, optimizer, implementation, .. } = steps;
        table += &format!("| {model}, {batch}, {optimizer} ({implementation}) | {} |\n", figures.join(" | "));
    }
    table
}

fn the_tables_figures_are_the_references() {
    let text = std::fs::read_to_string(common::root().join("METHODOLOGY.md")).unwrap();
    let table = table(&reference());
    assert!(text.contains(&table), "METHODOLOGY.md, 'Against PyTorch's own tracker', should have this table:\n{table}");
}

/// What METHODOLOGY.md says of the size of each reference.
fn references_are_counted_right() {
    let text = std::fs::read_to_string(common::root().join("METHODOLOGY.md")).unwrap();
    for (file, list, unit) in [
        (include_str!("../reference/meter.json"), "operations", "operations"),
        (include_str!("../reference/checkpoint.json"), "scenes", "scenes"),
        (include_str!("../reference/grad_scaler.json"), "scenarios", "scenarios"),
        (include_str!("../reference/grad_scaler.json"), "misuses", "misuses"),
        (include_str!("../reference/optimizers.json"), "cases", "cases"),
        (include_str!("../reference/loader.json"), "orders", "combinations"),
        (include_str!("../reference/memory.json"), "drawn", "small models"),
    ] {
        let reference: serde_json::Value = serde_json::from_str(file).unwrap();
        let said = format!(" {} {unit}", reference[list].as_array().unwrap().len());
        assert!(text.contains(&said), "METHODOLOGY.md should say '{said}'");
    }
}
