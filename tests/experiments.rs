//! The experiments' protocols are sound, and each check sees its technique broken on purpose.
#![cfg(feature = "torch")]

#[allow(dead_code)]
#[path = "../experiments/agreement.rs"]
mod agreement;
#[allow(dead_code)]
#[path = "../experiments/ddp_buckets.rs"]
mod ddp_buckets;
#[allow(dead_code)]
#[path = "../experiments/empty_cache.rs"]
mod empty_cache;
#[allow(dead_code)]
#[path = "../experiments/free_tensors.rs"]
mod free_tensors;
#[allow(dead_code)]
#[path = "../experiments/optimizer_state.rs"]
mod optimizer_state;
#[allow(dead_code)]
#[path = "../experiments/profiling.rs"]
mod profiling;
#[allow(dead_code)]
#[path = "../experiments/published.rs"]
mod published;

use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::Device;
use vramlab::measure::{Bench, Found, Prepare, Probe, Quantity, Step, check, check_against, memory, memory_keeping};
use vramlab::protocol::{Cell, Platform, Profile, Protocol};
use vramlab::results::Status;
use vramlab::torch::{Backend, Cpu};

const ALL: [&Protocol; 7] = [
    &agreement::PROTOCOL,
    &ddp_buckets::PROTOCOL,
    &empty_cache::PROTOCOL,
    &free_tensors::PROTOCOL,
    &optimizer_state::PROTOCOL,
    &profiling::PROTOCOL,
    &published::PROTOCOL,
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
            let timed = protocol.grids(profile).filter(|g| g.passes.contains(&vramlab::protocol::Pass::Time));
            // A twin's cells stand beside ours and repeat them.
            timed.flat_map(|g| g.cells()).filter(|cell| !cell.is_twin()).count()
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
    let grid =
        [Profile::Quick, Profile::Smoke, Profile::Full].iter().find_map(|p| protocol.grid_of(*p, &cell)).expect("a planned cell");
    check(protocol.check_of(&cell).unwrap(), prepare, &cell, &grid.baseline_of(&cell), &BENCH).unwrap_or_else(|e| Found::failed(&e))
}

#[test]
fn optimizer_check_sees_another_algorithm_and_a_copy_that_updates() {
    let _turn = alone();
    let protocol = &optimizer_state::PROTOCOL;
    for cell in [
        "model=gpt-4x256 optimizer=sgd implementation=fused",
        "model=gpt-4x256 optimizer=momentum implementation=foreach",
        "model=gpt-4x256 optimizer=rmsprop implementation=foreach",
        "model=gpt-4x256 optimizer=adam implementation=fused",
        "parameters=65536 tensors=16 optimizer=adamw implementation=copy",
    ] {
        let found = checked(protocol, optimizer_state::prepare, cell);
        assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""), "{cell}");
    }
    let forgets_weight_decay: Prepare = |cell, bench| {
        let fused = cell.get("implementation") == Some("fused");
        optimizer_state::prepare(&if fused { cell.with("optimizer", "adam") } else { cell.clone() }, bench)
    };
    let found = checked(protocol, forgets_weight_decay, "model=gpt-4x256 optimizer=adamw implementation=fused");
    assert!(found.status == Status::Invalid && found.reason.contains("update: expected equal"), "{found:?}");
    let updates: Prepare = |cell, bench| {
        let copies = cell.get("implementation") == Some("copy");
        optimizer_state::prepare(&if copies { cell.with("implementation", "fused") } else { cell.clone() }, bench)
    };
    let found = checked(protocol, updates, "parameters=65536 tensors=16 optimizer=adamw implementation=copy");
    assert!(found.status == Status::Invalid && found.reason.contains("expected apart"), "{found:?}");
}

const DROPPED: &str = "watched=tensors dropped=tensor size=1MiB";

#[test]
fn free_tensors_check_sees_a_drop_that_takes_the_survivor_with_it() {
    let _turn = alone();
    let model = "watched=tensors dropped=model size=mlp-8x256";
    let tensor = "watched=tensors dropped=tensor size=16MiB";
    let planned = ["clone", "view", "graph", "gradient"].map(|reference| (tensor, reference));
    let planned = planned.into_iter().chain(["none", "optimizer", "loss", "gradients", "row"].map(|reference| (model, reference)));
    for (what, reference) in planned {
        let cell = format!("{what} reference={reference} moment=dropped");
        let found = checked(&free_tensors::PROTOCOL, free_tensors::prepare, &cell);
        assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""), "{cell}");
    }
    /// Frees memory as `resize_(0)` on a storage does: whoever still refers to it has nothing.
    struct Forced(Box<dyn Step>, bool);
    impl Step for Forced {
        fn run(&mut self, probe: &mut Probe) -> Result<()> {
            self.0.run(probe)
        }
        fn outcome(&self) -> Result<Vec<Quantity>> {
            let mut outcome = self.0.outcome()?;
            if self.1 {
                outcome[0].tensors.iter_mut().for_each(|tensor| drop(tensor.zero_()));
            }
            Ok(outcome)
        }
    }
    let forced: Prepare = |cell, bench| {
        let overwrites = cell.get("moment") == Some("dropped");
        Ok(Box::new(Forced(free_tensors::prepare(cell, bench)?, overwrites)))
    };
    let found = checked(&free_tensors::PROTOCOL, forced, &format!("{DROPPED} reference=clone moment=dropped"));
    assert!(found.status == Status::Invalid && found.reason.contains("survivor: expected equal"), "{found:?}");
}

/// What a drop gives back, worked out by hand.
#[test]
fn what_survives_keeps_what_it_refers_to() {
    let _turn = alone();
    let freed = |what: &str, reference: &str| {
        counted(free_tensors::prepare, &format!("{what} reference={reference} moment=dropped"), "freed")
    };
    for (reference, share) in [("none", 1.0), ("clone", 0.0), ("view", 0.0), ("graph", 0.0), ("gradient", 1.0)] {
        assert_eq!(freed(DROPPED, reference), share, "{reference}");
    }
    let small = "watched=tensors dropped=small-tensors size=4MiB";
    assert_eq!((freed(small, "none"), freed(small, "few")), (1.0, 31.0 / 32.0));
    let model = "watched=tensors dropped=model size=mlp-2x64";
    let [none, optimizer, gradients] = ["none", "optimizer", "gradients"].map(|reference| freed(model, reference));
    assert_eq!((none, optimizer), (1.0, 0.0));
    // Of parameters, gradients and Adam's two moments.
    assert!((gradients - 0.75).abs() < 0.01, "{gradients}");
}

/// The bytes of a load on the counted CPU, in models.
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
    let step = |zero_grad: &str, ddp: &str, metric: &str| {
        counted(ddp_buckets::prepare, &format!("model=mlp-4x64 batch=8 cap=25 zero-grad={zero_grad} ddp={ddp}"), metric)
    };
    for zero_grad in ["none", "zeros"] {
        let saved = step(zero_grad, "views", "saved");
        assert!((0.95..=1.0).contains(&saved), "gradients are there at the peak of so small a batch: {saved}");
        let peak = |ddp: &str| step(zero_grad, ddp, "requested_peak");
        let apart = peak("copies") - peak("views");
        assert!((apart - saved * parameters).abs() < 0.5, "the reference that is run first counts in no peak: {apart}");
    }
}

/// A step that does its work twice where it should once, or gives half of what it computed.
struct Wrong {
    step: Box<dyn Step>,
    runs: usize,
    scale: f64,
}

impl Step for Wrong {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        (0..self.runs).try_for_each(|_| self.step.run(probe))
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let scaled = |q: Quantity| Quantity { name: q.name, tensors: q.tensors.iter().map(|t| t * self.scale).collect() };
        Ok(self.step.outcome()?.into_iter().map(scaled).collect())
    }
}

#[test]
fn published_check_sees_a_lost_layer_a_lost_micro_batch_and_a_step_too_many() {
    let _turn = alone();
    let is = |prepare: Prepare, cell: &str| checked(&published::PROTOCOL, prepare, cell);
    for cell in [
        "model=gpt-2x64 batch=2 sequence=32 attention=fused",
        "model=mlp-2x32 batch=1 adam=foreach",
        "model=mlp-2x32 batch=1 adam=fused",
        "model=gpt-2x64 batch=4 setup=accumulate",
        "model=gpt-2x64 batch=4 setup=all",
    ] {
        let found = is(published::prepare, cell);
        assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""), "{cell}");
    }
    let loses_a_layer: Prepare = |cell, bench| {
        let fewer = if cell.get("attention") == Some("fused") { cell.with("model", "gpt-1x64") } else { cell.clone() };
        published::prepare(&fewer, bench)
    };
    assert_eq!(is(loses_a_layer, "model=gpt-2x64 batch=2 sequence=32 attention=fused").status, Status::Invalid);
    let loses_a_micro_batch: Prepare = |cell, bench| {
        let fewer = if cell.get("setup") == Some("plain") { cell.clone() } else { cell.with("batch", "3") };
        published::prepare(&fewer, bench)
    };
    assert_eq!(is(loses_a_micro_batch, "model=gpt-2x64 batch=4 setup=accumulate").status, Status::Invalid);
    let steps_twice: Prepare = |cell, bench| {
        let runs = if cell.get("adam") == Some("foreach") { 2 } else { 1 };
        Ok(Box::new(Wrong { step: published::prepare(cell, bench)?, runs, scale: 1.0 }))
    };
    assert_eq!(is(steps_twice, "model=mlp-2x32 batch=1 adam=foreach").status, Status::Invalid);
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
    let parameters = ((2 * 32 * 32 + 2 * 32) + (32 * 10 + 10)) as f64;
    let part = |metric: &str| counted(published::prepare, "model=mlp-2x32 batch=1 adam=loop", metric);
    assert_eq!((part("parameters"), part("gradients")), (4.0 * parameters, 4.0 * parameters));
    assert_eq!(part("optimizer_state"), 2.0 * 4.0 * parameters, "two numbers for each parameter");
    let formula = counted(published::prepare, "model=gpt-2x64 batch=2 sequence=32 attention=explicit", "formula");
    assert_eq!(formula, 2.0 * (32 * 2 * 64) as f64 * (34.0 + 5.0 * 32.0 / 64.0), "two layers of one head of 64");
}

const LOOKED: &str = "bound=launch model=mlp-8x64 batch=32 by=vramlab tool";

#[test]
fn profiling_check_sees_a_tool_that_changes_the_step() {
    let _turn = alone();
    for tool in ["none", "profiler-002", "profiler-memory", "profiler-full", "timeline", "statistics"] {
        let found = checked(&profiling::PROTOCOL, profiling::prepare, &format!("{LOOKED}={tool}"));
        assert_eq!((found.status, found.reason.as_str()), (Status::Ok, ""), "{tool}");
    }
    // As a tool that runs the step a second time, to see its memory and then its time.
    struct Twice(Box<dyn Step>);
    impl Step for Twice {
        fn run(&mut self, probe: &mut Probe) -> Result<()> {
            self.0.run(probe)?;
            self.0.run(probe)
        }
        fn outcome(&self) -> Result<Vec<Quantity>> {
            self.0.outcome()
        }
    }
    let disturbing: Prepare = |cell, bench| {
        let step = profiling::prepare(cell, bench)?;
        Ok(if cell.get("tool") == Some("profiler-memory") { Box::new(Twice(step)) } else { step })
    };
    let found = checked(&profiling::PROTOCOL, disturbing, &format!("{LOOKED}=profiler-memory"));
    assert_eq!(found.status, Status::Invalid, "{}", found.reason);
}

#[test]
fn profiling_tells_the_bytes_that_were_allocated_and_keeps_a_trace() {
    let _turn = alone();
    let files = tempfile::tempdir().unwrap();
    let told = |tool: &str| {
        let cell = Cell::parse(&format!("{LOOKED}={tool}")).unwrap();
        let mut step = BENCH.set_up(profiling::prepare, &cell).unwrap();
        let samples = memory_keeping(&mut *step, &Cpu::new(None), Some(files.path())).unwrap();
        samples.iter().find(|sample| sample.metric == "memory_told").map(|sample| sample.value)
    };
    assert_eq!(["none", "statistics", "profiler-002"].map(told), [None, None, Some(0.0)]);
    assert_eq!(std::fs::read_dir(files.path()).unwrap().count(), 0, "only a trace with memory in it is kept");
    assert_eq!(["profiler-memory", "profiler-full", "timeline"].map(told), [Some(1.0); 3]);
    let kept: Vec<_> = std::fs::read_dir(files.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(kept, ["trace-mlp-8x64-profiler-memory.json.gz"]);
    let mut text = String::new();
    let compressed = std::fs::File::open(files.path().join(&kept[0])).unwrap();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(compressed), &mut text).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert_eq!(["forward", "backward", "step"].map(named), [1, 1, 1], "one step, in its phases");
    assert!(named("aten::addmm") == 9 && named("[memory]") > 0);
    assert!(!text.contains("traceName") && !text.contains("/tmp"), "it tells no path of the machine");
}

/// What PyTorch's side gives is stood in for by ours: both sides compute the same, or the check says so.
#[test]
fn agreement_check_sees_another_optimizer_and_another_technique() {
    let _turn = alone();
    let against = |cell: &str, theirs: fn(Cell) -> Cell| {
        let cell = Cell::parse(cell).unwrap();
        let mut other = BENCH.set_up(agreement::prepare, &theirs(cell.clone())).unwrap();
        assert!(other.start().iter().any(|(name, _)| name == "inputs"), "both sides need one start");
        other.run(&mut Probe::idle()).unwrap();
        let expected = agreement::PROTOCOL.check_of(&cell).unwrap();
        check_against(expected, agreement::prepare, &cell, &other.outcome().unwrap(), &BENCH).unwrap()
    };
    let cell = "model=mlp-8x64 batch=32 optimizer=sgd technique=none threads=1 by=vramlab";
    assert_eq!(against(cell, |cell| cell).status, Status::Ok);
    let other = against(cell, |cell| cell.with("batch", "31"));
    assert!(other.status == Status::Invalid && other.reason.contains("gradient: expected equal"), "{other:?}");
    let cell = "model=mlp-8x512 batch=32 optimizer=fused technique=optimizer-step threads=1 by=vramlab";
    let other = against(cell, |cell| cell.with("optimizer", "sgd"));
    assert!(other.status == Status::Invalid && other.reason.contains("parameter: expected equal"), "{other:?}");
    let cell = "model=mlp-9x128 batch=256 optimizer=fused technique=autocast threads=1 by=vramlab";
    let other = against(cell, |cell| cell.with("technique", "none"));
    assert!(other.status == Status::Invalid, "bf16 is not fp32: {other:?}");
}

/// Bytes that PyTorch in Python counted (peers/pytorch/reference_agreement.py): ours are the same to the byte once the stated differences
/// are taken out, and without them they are not.
#[test]
fn agreement_in_bytes_is_that_of_the_committed_reference() {
    let _turn = alone();
    let reference: BTreeMap<String, BTreeMap<String, f64>> =
        serde_json::from_str(include_str!("reference/agreement.json")).unwrap();
    let threads = tch::get_num_threads();
    tch::set_num_threads(1);
    let mut stated = 0;
    for (text, theirs) in &reference {
        let cell = Cell::parse(text).unwrap();
        assert!(agreement::PROTOCOL.grid_of(Profile::Quick, &cell).is_some(), "{text} is not planned");
        let cpu = Cpu::new(None);
        let before = cpu.memory().unwrap().requested as f64;
        let mut step = BENCH.set_up(agreement::prepare, &cell.with("by", "vramlab")).unwrap();
        let samples = memory(&mut *step, &cpu).unwrap();
        let ours = |metric: &str| samples.iter().find(|s| s.metric == metric).map(|s| s.value - before);
        for (metric, bytes) in theirs {
            assert_eq!(ours(&format!("matched.{metric}")), Some(*bytes), "{text}: {metric}");
            let difference = samples.iter().filter(|s| s.metric.starts_with("stated.") && s.metric.ends_with(metric));
            let difference: f64 = difference.map(|s| s.value).sum();
            stated += usize::from(difference != 0.0);
            assert_eq!(ours(metric).map(|ours| ours + difference), Some(*bytes), "{text}: {metric}");
        }
    }
    tch::set_num_threads(threads);
    assert!(reference.len() >= 10 && stated >= 5, "{} cells, {stated} stated differences", reference.len());
}
