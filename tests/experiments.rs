//! The experiments' protocols are sound, and each check sees its technique broken on purpose.
#![cfg(feature = "torch")]

#[allow(dead_code)]
#[path = "../experiments/accumulation.rs"]
mod accumulation;
#[allow(dead_code)]
#[path = "../experiments/checkpointing.rs"]
mod checkpointing;
#[allow(dead_code)]
#[path = "../experiments/ddp_buckets.rs"]
mod ddp_buckets;
#[allow(dead_code)]
#[path = "../experiments/empty_cache.rs"]
mod empty_cache;
#[allow(dead_code)]
#[path = "../experiments/inplace.rs"]
mod inplace;
#[allow(dead_code)]
#[path = "../experiments/loader.rs"]
mod loader;
#[allow(dead_code)]
#[path = "../experiments/memory_model.rs"]
mod memory_model;
#[allow(dead_code)]
#[path = "../experiments/no_grad.rs"]
mod no_grad;
#[allow(dead_code)]
#[path = "../experiments/pin_memory.rs"]
mod pin_memory;

use anyhow::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::{Device, Kind, Reduction, Tensor};
use vramlab::measure::{Bench, Found, Prepare, Probe, Quantity, Step, check, memory};
use vramlab::models::{Batch, Block, Model};
use vramlab::protocol::{Cell, Platform, Profile, Protocol};
use vramlab::record::Status;
use vramlab::torch::{Autocast, Checkpoint, Cpu, autocast, checkpoint};

const ALL: [&Protocol; 9] = [
    &accumulation::PROTOCOL,
    &checkpointing::PROTOCOL,
    &ddp_buckets::PROTOCOL,
    &empty_cache::PROTOCOL,
    &inplace::PROTOCOL,
    &loader::PROTOCOL,
    &memory_model::PROTOCOL,
    &no_grad::PROTOCOL,
    &pin_memory::PROTOCOL,
];
const BENCH: Bench = Bench { device: Device::Cpu, platform: Platform::Cpu, seed: 1 };

/// The random state and the meter are the process's, so the tests of this file take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn protocols_are_sound() {
    for protocol in ALL {
        assert_eq!(protocol.mistakes(), Vec::<String>::new(), "{}", protocol.name);
        let timed = |profile| {
            protocol.grids(profile).filter(|g| g.passes.contains(&vramlab::protocol::Pass::Time)).flat_map(|g| g.cells()).count()
        };
        assert!(timed(Profile::Quick) <= 10, "{}: quick times {} cells", protocol.name, timed(Profile::Quick));
        let text = serde_json::to_string(protocol).unwrap();
        let read: Protocol = serde_json::from_str(&text).unwrap();
        assert_eq!(read, *protocol, "a run.json gives the protocol back");
        for claim in protocol.claims {
            let meaning = &claim.meaning;
            for text in [meaning.confirmed, meaning.refuted, meaning.depends, meaning.inconclusive] {
                assert!(!text.is_empty(), "{}: a verdict without a meaning", claim.id);
            }
        }
    }
}

/// Checks a cell of the experiment, or of a broken stand-in for it, against the experiment's own relation and baseline.
fn checked(protocol: &'static Protocol, prepare: Prepare, cell: &str) -> Found {
    let cell = Cell::parse(cell).unwrap();
    let grid = [Profile::Quick, Profile::Smoke].iter().find_map(|p| protocol.grid_of(*p, &cell)).expect("a planned cell");
    check(protocol.check_of(&cell).unwrap(), prepare, &cell, &grid.baseline_of(&cell), &BENCH).unwrap_or_else(|e| Found::failed(&e))
}

const DIVIDE: &str = "model=mlp-4x32 optimizer=sgd reduction=mean tail=even targets=all k=4 recipe=divide";

#[test]
fn accumulation_check_sees_a_wrong_recipe_and_a_lost_micro_batch() {
    let _turn = alone();
    let good = |cell: &str| checked(&accumulation::PROTOCOL, accumulation::prepare, cell);
    for recipe in ["full", "divide", "add", "weight"] {
        for rest in [
            "reduction=mean tail=even targets=all",
            "reduction=mean tail=ragged targets=ignored",
            "reduction=sum tail=ragged targets=all",
        ] {
            let cell = format!("model=mlp-4x32 optimizer=sgd {rest} k=4 recipe={recipe}");
            let found = good(&cell);
            assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""), "{cell}");
        }
    }
    let not_divided: Prepare = |cell, bench| {
        let swapped = if cell.get("recipe") == Some("divide") { cell.with("recipe", "add") } else { cell.clone() };
        accumulation::prepare(&swapped, bench)
    };
    let found = checked(&accumulation::PROTOCOL, not_divided, DIVIDE);
    assert_eq!(found.status, Status::Invalid);
    assert!(found.reason.contains("gradient: expected equal"), "{}", found.reason);
    let loses_a_micro_batch: Prepare = |cell, bench| {
        let fewer = if cell.get("k") == Some("4") { cell.with("batch", "192") } else { cell.clone() };
        accumulation::prepare(&fewer, bench)
    };
    let found = checked(&accumulation::PROTOCOL, loses_a_micro_batch, "model=mlp-2x32 batch=256 hold=effective-batch k=4");
    assert_eq!(found.status, Status::Invalid);
}

/// A step whose blocks are run by `run_block`, in place of the experiment's.
struct Stand {
    model: Model,
    batch: Batch,
    kind: Kind,
    run_block: fn(&dyn Block, &Tensor) -> Result<Tensor>,
}

impl Step for Stand {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        let loss = autocast(Device::Cpu, self.kind, || {
            let mut x = self.model.stem.forward(&self.batch.inputs, true);
            for block in &self.model.blocks {
                x = (self.run_block)(&**block, &x)?;
            }
            anyhow::Ok(self.model.loss(&self.model.head.forward(&x, true), &self.batch.targets, Reduction::Mean))
        })??;
        Ok(loss.f_backward()?)
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.model.gradients() }])
    }
}

fn stand(cell: &Cell, run_block: fn(&dyn Block, &Tensor) -> Result<Tensor>) -> Result<Box<dyn Step>> {
    let dropout = cell.get("case") == Some("dropout");
    let model = if dropout { Model::with_dropout("gpt-2x64", Device::Cpu, 0.1)? } else { Model::named("mlp-3x64", Device::Cpu)? };
    let batch = model.batch(8);
    let kind = if cell.get("case") == Some("autocast") { Kind::BFloat16 } else { Kind::Float };
    let plain = cell.get("policy") == Some("none");
    let run_block = if plain { |block: &dyn Block, x: &Tensor| Ok(block.forward(x, true)) } else { run_block };
    Ok(Box::new(Stand { model, batch, kind, run_block }))
}

fn own(block: &dyn Block) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + use<> {
    let block = block.share();
    move |x: &[Tensor]| Ok(vec![block.forward(&x[0], true)])
}

#[test]
fn checkpointing_check_sees_lost_randomness_lost_autocast_and_lost_gradients() {
    let _turn = alone();
    for case in ["dropout", "autocast", "inputs-outputs", "no-gradient-input", "nested"] {
        for policy in ["every-block", "sqrt"] {
            let found = checked(&checkpointing::PROTOCOL, checkpointing::prepare, &format!("case={case} policy={policy}"));
            assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""), "{case} {policy}");
        }
    }
    let right: Prepare = |cell, _| stand(cell, |block, x| Ok(checkpoint(&[x], own(block))?.remove(0)));
    let forgets_random_state: Prepare =
        |cell, _| stand(cell, |block, x| Ok(Checkpoint { preserve_random: false }.run(&[x], own(block))?.remove(0)));
    let forgets_autocast: Prepare = |cell, _| {
        stand(cell, |block, x| {
            let segment = own(block);
            let runs = std::sync::atomic::AtomicUsize::new(0);
            let body = move |x: &[Tensor]| {
                let again = runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0;
                let _off = if again { Some(Autocast::off(Device::Cpu)?) } else { None };
                segment(x)
            };
            Ok(checkpoint(&[x], body)?.remove(0))
        })
    };
    // As the first attempt at checkpointing did: a segment whose input needs no gradient ends the graph.
    let drops_gradients: Prepare = |cell, _| {
        stand(
            cell,
            |block, x| if x.requires_grad() { Ok(block.forward(x, true)) } else { Ok(tch::no_grad(|| block.forward(x, true))) },
        )
    };
    for (case, broken) in
        [("dropout", forgets_random_state), ("autocast", forgets_autocast), ("no-gradient-input", drops_gradients)]
    {
        let cell = format!("case={case} policy=every-block");
        let found = checked(&checkpointing::PROTOCOL, right, &cell);
        assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""), "the stand-in itself is right: {case}");
        let found = checked(&checkpointing::PROTOCOL, broken, &cell);
        assert!(found.status.is_failure(), "{case}: a broken technique passed: {found:?}");
    }
}

#[test]
fn inplace_check_sees_a_missing_error_and_a_missing_difference() {
    let _turn = alone();
    for op in ["exp", "sin"] {
        for write in ["none", "inplace", "through-data"] {
            let found = checked(&inplace::PROTOCOL, inplace::prepare, &format!("op={op} write={write}"));
            assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""), "{op} {write}");
        }
    }
    for form in ["plain", "clone", "inplace"] {
        let found =
            checked(&inplace::PROTOCOL, inplace::prepare, &format!("workload=network elements=1048576 mode=training form={form}"));
        assert_eq!(found.status, Status::Ok, "{form}");
    }
    let other_op: Prepare = |cell, bench| {
        let op = if cell.get("op") == Some("exp") { "sin" } else { "exp" };
        inplace::prepare(&if cell.get("write") == Some("none") { cell.clone() } else { cell.with("op", op) }, bench)
    };
    let found = checked(&inplace::PROTOCOL, other_op, "op=exp write=inplace");
    assert!(found.status == Status::Invalid && found.reason.contains("none was raised"), "{found:?}");
    assert_eq!(checked(&inplace::PROTOCOL, other_op, "op=sin write=inplace").status, Status::Error, "an error nobody expected");
    let not_through_data: Prepare = |cell, bench| inplace::prepare(&cell.with("write", "none"), bench);
    let found = checked(&inplace::PROTOCOL, not_through_data, "op=exp write=through-data");
    assert!(found.status == Status::Invalid && found.reason.contains("expected apart"), "{found:?}");
    let scaled: Prepare = |cell, bench| {
        let wrong = cell.get("form") == Some("inplace");
        inplace::prepare(&if wrong { cell.with("workload", "chain") } else { cell.clone() }, bench)
    };
    let cell = "workload=single elements=8388608 mode=inference form=inplace";
    assert!(checked(&inplace::PROTOCOL, scaled, cell).status.is_failure(), "another computation is not the same result");
}

#[test]
fn no_grad_check_sees_another_output() {
    let _turn = alone();
    for mode in ["grad", "no-grad", "inference"] {
        for model in ["model=gpt width=128 batch=16 depth=2", "model=resnet width=16 batch=32 depth=2"] {
            let found = checked(&no_grad::PROTOCOL, no_grad::prepare, &format!("{model} mode={mode}"));
            assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""), "{model} {mode}");
        }
    }
    // One who leaves layers out saves memory, too.
    let skips_layers: Prepare = |cell, bench| {
        let shallow = if cell.get("mode") == Some("no-grad") { cell.with("depth", "2") } else { cell.clone() };
        no_grad::prepare(&shallow, bench)
    };
    let found = checked(&no_grad::PROTOCOL, skips_layers, "model=mlp width=32 batch=256 depth=4 mode=no-grad");
    assert!(found.status == Status::Invalid && found.reason.contains("output: expected equal"), "{found:?}");
    let kept = |mode: &str| counted(no_grad::prepare, &format!("model=mlp width=32 batch=256 depth=4 mode={mode}"), "kept");
    assert_eq!((kept("no-grad"), kept("inference")), (1.0, 1.0), "input and output and nothing else");
    // By hand: an input of 32 features, for each of 4 blocks what linear gives and what relu gives, and 10 logits.
    assert!(kept("grad") > 3.0, "{}", kept("grad"));
}

#[test]
fn ddp_check_sees_gradients_that_are_shared_out_to_nobody() {
    let _turn = alone();
    for rest in ["cap=1 ddp=copies", "cap=1 ddp=views", "cap=100 ddp=views"] {
        let found = checked(&ddp_buckets::PROTOCOL, ddp_buckets::prepare, &format!("model=mlp-8x512 batch=4 {rest}"));
        assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""), "{rest}");
    }
    // Another rank is divided for, and sends nothing.
    let halved: Prepare = |cell, bench| ddp_buckets::prepare_among(cell, bench, 2);
    let found = checked(&ddp_buckets::PROTOCOL, halved, "model=mlp-8x512 batch=4 cap=1 ddp=views");
    assert!(found.status == Status::Invalid && found.reason.contains("relative error of 5.000e-1"), "{found:?}");
}

#[test]
fn ddp_buckets_are_counted_as_can_be_worked_out_by_hand() {
    let _turn = alone();
    let at = |moment: &str, ddp: &str, metric: &str| {
        counted(ddp_buckets::prepare, &format!("model=mlp-4x64 batch=8 cap=25 moment={moment} ddp={ddp}"), metric)
    };
    let parameters = 4.0 * (4 * (64 * 64 + 64) + 64 * 10 + 10) as f64;
    let batch = (8 * 64 * 4 + 8 * 8) as f64;
    assert_eq!(at("load", "none", "live"), parameters + batch);
    assert_eq!(at("load", "copies", "live"), 2.0 * parameters + batch, "a bucket for each gradient");
    assert_eq!(at("1-backward", "none", "live"), 2.0 * parameters + batch, "parameters and gradients");
    for (moment, copies, views) in [
        ("load", 1.0, 1.0),
        ("1-forward", 1.0, 1.0),
        ("1-backward", 1.0, 0.0),
        ("2-rebuilt", 1.0, 1.0),
        ("3-forward", 1.0, 1.0),
        ("3-backward", 1.0, 0.0),
    ] {
        assert_eq!((at(moment, "copies", "extra"), at(moment, "views", "extra")), (copies, views), "{moment}");
    }
    let saved = |zero_grad: &str| {
        counted(ddp_buckets::prepare, &format!("model=mlp-4x64 batch=8 cap=25 zero-grad={zero_grad} ddp=views"), "saved")
    };
    // The optimizer's step is the peak of so small a batch, and there the gradients are.
    assert_eq!((saved("none"), saved("zeros")), (1.0, 1.0));
}

fn counted(prepare: Prepare, cell: &str, metric: &str) -> f64 {
    let backend = Cpu::new(None);
    let mut step = BENCH.set_up(prepare, &Cell::parse(cell).unwrap()).unwrap();
    let samples = memory(&mut *step, &backend).unwrap();
    samples.iter().find(|s| s.metric == metric).unwrap_or_else(|| panic!("no {metric} in {samples:?}")).value
}

/// What the counted bytes must be by hand, so that the meter and the steps are tested and not only compared.
#[test]
fn counted_bytes_are_what_can_be_worked_out_by_hand() {
    let _turn = alone();
    let n = 32768.0 * 4.0;
    let single = |form: &str, metric: &str| {
        counted(inplace::prepare, &format!("workload=single elements=32768 mode=inference form={form}"), metric)
    };
    assert_eq!(single("plain", "requested_peak"), 3.0 * n, "the input, the intermediate and the result");
    assert_eq!(single("plain", "step_peak"), 2.0 * n, "the intermediate and the result");
    assert_eq!(single("clone", "step_peak"), 3.0 * n, "and its clone");
    // The peak is while x * 1.5 is computed: libtorch makes the factor a tensor of 8 bytes and casts it to one of 4.
    assert_eq!(single("inplace", "step_peak"), n + 12.0, "the intermediate becomes the result");
    let network = |form: &str| {
        counted(inplace::prepare, &format!("workload=network elements=32768 mode=training form={form}"), "activations")
    };
    assert_eq!(network("plain"), 8.0 * n, "each layer's output is kept once");
    assert_eq!(network("inplace"), 8.0 * n);
    assert_eq!(network("clone"), 16.0 * n, "by relu and, cloned, by the next layer");
    let parameters = ((2 * 32 * 32 + 2 * 32) + (32 * 10 + 10)) as f64;
    let accumulated =
        |k: u32| counted(accumulation::prepare, &format!("model=mlp-2x32 batch=256 hold=effective-batch k={k}"), "gradients");
    assert_eq!(accumulated(1), 4.0 * parameters);
    assert_eq!(accumulated(4), 4.0 * parameters, "gradients do not shrink");
}

#[test]
fn pinning_check_sees_memory_that_is_granted_without_a_gpu() {
    let _turn = alone();
    for pinning in ["off", "on"] {
        let found = checked(&pin_memory::PROTOCOL, pin_memory::prepare, &format!("by=vramlab pinning={pinning}"));
        assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""), "{pinning}");
    }
    let grants: Prepare = |cell, bench| pin_memory::prepare(&cell.with("pinning", "off"), bench);
    let found = checked(&pin_memory::PROTOCOL, grants, "by=vramlab pinning=on");
    assert!(found.status == Status::Invalid && found.reason.contains("none was raised"), "{found:?}");
    let pinned =
        checked(&pin_memory::PROTOCOL, pin_memory::prepare, "direction=to-device call=blocking bytes=1048576 memory=pinned");
    assert!(pinned.status.is_failure(), "its copies need a GPU: {pinned:?}");
}

#[test]
fn loader_check_sees_batches_that_depend_on_the_workers() {
    static FOLDER: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    let _turn = alone();
    let images = tempfile::tempdir().unwrap();
    let few = vramlab::data::Textured { images: 70, classes: 2, sides: (64, 48) };
    let folder = FOLDER.get_or_init(|| few.folder(images.path()).unwrap());
    assert!(folder.is_dir());
    let right: Prepare = |cell, bench| loader::loading(FOLDER.get().unwrap(), cell, bench);
    let found = checked(&loader::PROTOCOL, right, "images=96 workers=2");
    assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""));
    let other_order: Prepare = |cell, bench| {
        let seed = bench.seed + cell.number("workers")?;
        loader::loading(FOLDER.get().unwrap(), cell, &Bench { seed, ..*bench })
    };
    assert_eq!(checked(&loader::PROTOCOL, other_order, "images=96 workers=2").status, Status::Invalid);
}
