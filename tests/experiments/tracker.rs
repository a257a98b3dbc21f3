//! The simulated GPU against PyTorch's own tracker: training steps of torchvision's layers, whose bytes stand in `tests/reference/memory.json`,
//! written by `tests/reference/make/memory.py`. The same steps run on the simulated GPU (`tracker.py`). Each difference has a name and a formula
//! here; there is no tolerance.

use harness::runner::{Python, for_reference};
use serde::{Deserialize, Serialize};
use sim::trace::Phase;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use torch::dry;

#[derive(Deserialize)]
struct Reference {
    torch: String,
    /// Names and shapes of parameters and buffers by model, in torchvision's order.
    models: BTreeMap<String, Vec<(String, Vec<i64>)>>,
    cases: Vec<Case>,
    drawn: Vec<Drawn>,
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

#[derive(Deserialize)]
struct Case {
    #[serde(flatten)]
    steps: Steps,
    phases: Vec<Tracked>,
}

/// What PyTorch's tracker says of a phase: by category, and in all.
#[derive(Deserialize)]
struct Tracked {
    live: BTreeMap<String, i64>,
    peak: i64,
    /// The peak as it is where two gradients are added in place, as they are in every real run and not under the tracker.
    peak_in_place: BTreeMap<String, i64>,
    /// Each tensor rounded up to blocks, in all.
    rounded: Rounded,
}

#[derive(Deserialize)]
struct Rounded {
    live: i64,
    peak: i64,
    peak_in_place: i64,
}

/// Steps of a small model that was drawn at random, with bytes at each phase's end and peak.
#[derive(Deserialize)]
struct Drawn {
    #[serde(flatten)]
    steps: Steps,
    live: Vec<i64>,
    peak_in_place: Vec<i64>,
    /// How many tensors are trained.
    trained: i64,
}

/// What the simulated GPU holds of a phase; see `tracker.py`.
#[derive(Deserialize)]
struct Followed {
    iteration: u32,
    phase: Phase,
    live: i64,
    peak: i64,
    product: i64,
    blocks: i64,
    blocks_peak: i64,
    allocated: i64,
    unsplit: i64,
}

/// What PyTorch's tracker rounds each tensor up to, as its allocator does before it looks for a block.
const BLOCK: i64 = 512;

fn reference() -> Reference {
    let reference: Reference = serde_json::from_str(include_str!("../reference/memory.json")).unwrap();
    assert_eq!(reference.torch, "2.11.0");
    assert!(reference.cases.len() >= 6 && reference.drawn.len() >= 40);
    reference
}

/// All steps, once, for all tests: of the cases, then of what was drawn.
static FOLLOWED: LazyLock<Vec<Vec<Followed>>> = LazyLock::new(|| {
    let Reference { cases, drawn, .. } = reference();
    let steps: Vec<Steps> = cases.into_iter().map(|case| case.steps).chain(drawn.into_iter().map(|drawn| drawn.steps)).collect();
    let mut command = Command::new(Python::program());
    command.arg("-B").arg(common::root().join("tests/experiments/tracker.py")).arg(for_reference(1).unwrap().meter);
    command.env_remove("PYTORCH_ALLOC_CONF").env_remove("PYTORCH_CUDA_ALLOC_CONF");
    // The tracker knows no workspaces of cuDNN.
    command.env("VRAMLAB_DRY_CUDNN", "0").stdin(Stdio::piped()).stdout(Stdio::piped());
    dry::prepare_python(&mut command, 24 << 30).unwrap();
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&serde_json::to_vec(&steps).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
});

/// Adam's loop and foreach count steps in tensors of 4 bytes on the CPU, which under the tracker is the device of all. From the first step on.
fn steps_on_the_cpu(steps: &Steps, trained: i64, followed: &Followed) -> i64 {
    let counts = steps.optimizer == "adam" && steps.implementation != "fused";
    let begun = followed.iteration > 1 || followed.phase == Phase::Optimizer;
    if counts && begun { trained } else { 0 }
}

fn trained(reference: &Reference, model: &str) -> i64 {
    let is_trained = |name: &str| name.ends_with("weight") || name.ends_with("bias");
    reference.models[model].iter().filter(|(name, _)| is_trained(name)).count() as i64
}

fn total(categories: &BTreeMap<String, i64>) -> i64 {
    categories.values().sum()
}

#[test]
fn bytes_are_those_of_pytorchs_tracker() {
    let reference = reference();
    for (Case { steps, phases }, followed) in reference.cases.iter().zip(&*FOLLOWED) {
        assert_eq!(followed.len(), phases.len());
        for (ours, theirs) in followed.iter().zip(phases) {
            let place = format!("{steps:?}: {} of iteration {}", ours.phase, ours.iteration);
            let counters = steps_on_the_cpu(steps, trained(&reference, &steps.model), ours);
            assert_eq!(ours.live + 4 * counters, total(&theirs.live), "{place}");
            assert_eq!(ours.blocks + BLOCK * counters, theirs.rounded.live, "{place}: in blocks");
            // The allocator also gives a tensor a larger block where the rest is not worth splitting off. No other byte is between the two.
            assert_eq!(ours.allocated, ours.blocks + ours.unsplit, "{place}: as the allocator says");
            if ours.phase == Phase::Load {
                // Each starts its parameters in its own way.
                continue;
            }
            assert_eq!(ours.peak + 4 * counters, total(&theirs.peak_in_place), "{place}, at the peak");
            assert_eq!(ours.blocks_peak + BLOCK * counters, theirs.rounded.peak_in_place, "{place}, at the peak: in blocks");
            // The tracker's own peak is higher by what it holds while two gradients are added, in backward passes only.
            let sums = [theirs.peak - total(&theirs.peak_in_place), theirs.rounded.peak - theirs.rounded.peak_in_place];
            assert_eq!(sums.map(|sum| sum > 0), [ours.phase == Phase::Backward; 2], "{place}: {sums:?}");
        }
        assert!(followed.iter().any(|phase| phase.unsplit > 0), "{steps:?}: nothing was left unsplit, so nothing was tested");
    }
}

#[test]
fn so_are_those_of_models_drawn_at_random() {
    let reference = reference();
    let mut with_product = 0;
    for (drawn, followed) in reference.drawn.iter().zip(&FOLLOWED[reference.cases.len()..]) {
        for (at, ours) in followed.iter().enumerate() {
            let place = format!("{:?}: {} of iteration {}", drawn.steps, ours.phase, ours.iteration);
            let counters = steps_on_the_cpu(&drawn.steps, drawn.trained, ours);
            assert_eq!(ours.live + 4 * counters, drawn.live[at], "{place}");
            if ours.phase != Phase::Load {
                assert_eq!(ours.peak + 4 * counters, drawn.peak_in_place[at], "{place}, at the peak");
                with_product += usize::from(ours.product > 0);
            }
        }
    }
    assert!(with_product > 0, "no peak held a softmax's product, so nothing of it was tested");
}

fn grouped(bytes: i64) -> String {
    let digits = bytes.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

/// The table of METHODOLOGY.md: the peak of the second iteration's backward pass.
#[test]
fn the_tables_figures_are_the_references() {
    let reference = reference();
    let mut table = String::from(
        "| model, batch, optimizer | PyTorch's tracker | sums of gradients | counters of steps | simulated GPU |\n|---|---|---|---|---|\n",
    );
    for (Case { steps, phases }, followed) in reference.cases.iter().zip(&*FOLLOWED) {
        let at = followed.iter().position(|phase| (phase.iteration, phase.phase) == (2, Phase::Backward)).unwrap();
        let counters = 4 * steps_on_the_cpu(steps, trained(&reference, &steps.model), &followed[at]);
        let sums = phases[at].peak - total(&phases[at].peak_in_place);
        let figures = [phases[at].peak, -sums, -counters, followed[at].peak].map(|bytes| match bytes {
            0 => "–".to_string(),
            negative if negative < 0 => format!("–{}", grouped(-negative)),
            positive => grouped(positive),
        });
        let Steps { model, batch, optimizer, implementation, .. } = steps;
        table += &format!("| {model}, {batch}, {optimizer} ({implementation}) | {} |\n", figures.join(" | "));
    }
    let text = std::fs::read_to_string(common::root().join("METHODOLOGY.md")).unwrap();
    assert!(text.contains(&table), "METHODOLOGY.md, 'Against PyTorch's own tracker', should have this table:\n{table}");
}

/// What METHODOLOGY.md says of the size of each reference.
#[test]
fn references_are_counted_right() {
    let text = std::fs::read_to_string(common::root().join("METHODOLOGY.md")).unwrap();
    for (file, list, unit) in [
        (include_str!("../reference/meter.json"), "operations", "operations"),
        (include_str!("../reference/memory.json"), "drawn", "small models"),
    ] {
        let reference: serde_json::Value = serde_json::from_str(file).unwrap();
        let said = format!(" {} {unit}", reference[list].as_array().unwrap().len());
        assert!(text.contains(&said), "METHODOLOGY.md should say '{said}'");
    }
}
