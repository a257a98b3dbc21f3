//! What a cell can come to, on the real runner: this file is a small experiment whose cells fail in every way that there is, and the
//! test that runs it. (No harness: the runner starts this program again for each cell.)

use harness::lab::*;
use libtest_mimic::{Arguments, Trial};
use record::protocol::Pass;
use record::results::{Run, Status};
use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

levels! {
    Fate "what happens":
    Fine "", Wrong "", Error "", Panic "", Abort "", Hang "", Uneven "", Impossible "", Setup "", Big "", Shared "", Other "", Denormal ""
}

cell! { Fated { fate: Fate } }
cell! { Limited { limit: DeviceMemory, fate: Fate } }
cell! { Reference { by: By, fate: Fate } }
cell! { Both { fate: Fate, by: By } }

/// How many steps a process of PyTorch's ran.
const STEPS: Metric = Metric::timed("steps", "steps", "1");

fn protocol() -> Protocol {
    use Fate::*;
    let fates = Grid::new("fates", |cell: Fated, _| step(cell.fate))
        .compare::<Fate>()
        .always(Fated::cross([Fine, Wrong, Error, Panic, Abort, Hang, Uneven, Impossible, Setup]))
        .check(|_| equal(0.0));
    let limits = Grid::new("limits", |cell: Limited, _| step(cell.fate))
        .compare::<Fate>()
        .always(Limited::cross("1MiB", [Fine, Big]))
        .passes(COUNT);
    let references = Grid::new("references", |cell: Reference, _| step(cell.fate))
        .compare::<Fate>()
        .always(Reference::cross(By::Pytorch, [Fine, Wrong, Error, Big, Abort]))
        .passes(CHECK | ROUNDS)
        .metrics(&[STEPS])
        .check(|_| equal(0.0));
    let both = Grid::new("both sides do the same", |cell: Both, _| step(cell.fate))
        .compare::<By>()
        .always(Both::cross([Shared, Other, Denormal], [By::Pytorch, By::Vramlab]))
        .passes(CHECK | COUNT)
        .check(|_| equal(0.0));
    // Results belong to an experiment that exists; this one stands in for it.
    Protocol::new("empty_cache", "Every outcome")
        .question("What becomes of a cell?")
        .hypothesis("A row, whatever happens.")
        .grid(fates.no_plots())
        .grid(limits.no_plots())
        .grid(references.no_plots())
        .grid(both.no_plots())
}

fn step(fate: Fate) -> Result<Step> {
    ensure!(fate != Fate::Setup, "nothing to set up");
    let float = (Kind::Float, Device::Cpu);
    // Of no round number, and another one in each process: only what is handed over can be the same.
    let value = Tensor::from_slice(&[f64::from(std::process::id()) + 0.1]);
    let step = Step::new(move |probe| {
        probe.at_rest();
        let ones = Tensor::ones([16], float);
        let result = match fate {
            Fate::Fine | Fate::Impossible | Fate::Setup | Fate::Denormal => ones,
            Fate::Wrong => ones * 2.0,
            Fate::Shared | Fate::Other => ones * 3.0,
            Fate::Error => bail!("a step that fails"),
            Fate::Panic => panic!("a step that panics"),
            Fate::Abort => std::process::abort(),
            Fate::Hang => {
                std::thread::sleep(Duration::from_secs(3600));
                ones
            }
            Fate::Big => {
                drop(Tensor::ones([1 << 20], float));
                ones
            }
            Fate::Uneven => {
                // Each process has another number, so two passes count different bytes.
                drop(Tensor::ones([1000 + i64::from(std::process::id() % 1000)], float));
                ones
            }
        };
        probe.compare(RESULT_ERROR, || Ok(vec![result]))
    });
    let least = if fate == Fate::Impossible { 1e18 } else { 0.0 };
    Ok(step.start(vec![("value".to_string(), value)]).least_flops(least))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    // The flags of the experiment: started by the test below, or by the runner for one cell.
    if arguments.iter().any(|a| ["--child", "--template", "--profile"].contains(&a.as_str())) {
        return harness::run(protocol());
    }
    let tests: [(&str, fn()); 2] = [
        ("every_outcome_is_a_row", every_outcome_is_a_row),
        ("references_in_python_are_cells_like_ours", references_in_python_are_cells_like_ours),
    ];
    let trial = |(name, test): (&str, fn())| Trial::test(name, move || (test(), Ok(())).1);
    libtest_mimic::run(&Arguments::from_args(), tests.map(trial).into()).exit_code()
}

fn every_outcome_is_a_row() {
    let out = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--profile", "smoke", "--device", "cpu", "--timeout", "4", "--out"])
        .arg(out.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stderr, output.stdout].concat()).into_owned();
    assert_eq!(output.status.code(), Some(1), "cells failed, so the run did: {said}");
    assert!(start.elapsed() < Duration::from_secs(120), "a hanging cell is ended");
    let mut machines = std::fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().path());
    let machine = machines.find(|path| !path.ends_with("protocols")).unwrap();
    let run = Run::read(&machine.join("empty_cache")).unwrap();
    let mut rows: BTreeMap<String, Vec<(Pass, u32, Status, String)>> = BTreeMap::new();
    for pass in &run.passes {
        rows.entry(pass.cell.to_string()).or_default().push((pass.pass, pass.round, pass.status, pass.reason.clone()));
    }
    for cell in &run.manifest.planned {
        assert!(rows.contains_key(cell), "{cell} left no row");
    }
    let only = |cell: &str, pass: Pass, status: Status, part: &str| {
        let found = &rows[cell];
        let (p, _, s, reason) = found.last().unwrap();
        assert_eq!((*p, *s), (pass, status), "{cell}: {found:?}");
        assert!(reason.contains(part), "{cell}: {reason}");
        assert!(
            found[..found.len() - 1].iter().all(|(_, _, s, _)| *s == Status::Ok),
            "{cell}: nothing follows a failure: {found:?}"
        );
    };
    only("fate=wrong", Pass::Check, Status::Invalid, "expected equal");
    only("fate=error", Pass::Check, Status::Error, "a step that fails");
    only("fate=panic", Pass::Check, Status::Error, "a step that panics");
    only("fate=abort", Pass::Check, Status::Crashed, "signal 6");
    only("fate=hang", Pass::Check, Status::Timeout, "--timeout");
    only("fate=setup", Pass::Check, Status::Error, "setting up fate=setup: nothing to set up");
    only("fate=uneven", Pass::Memory, Status::Invalid, "two memory passes differ");
    only("fate=impossible", Pass::Time, Status::Invalid, "specified for");
    only("device-memory=1MiB fate=big", Pass::Memory, Status::Oom, "out of memory");
    only("device-memory=1MiB fate=fine", Pass::Memory, Status::Ok, "");
    only("fate=fine", Pass::Time, Status::Ok, "");
    let missing = |(_, _, status, reason): &(Pass, u32, Status, String)| {
        *status == Status::Skipped && reason.contains("experiments/empty_cache/step.py is missing")
    };
    assert!(rows["by=pytorch fate=fine"].iter().all(missing), "this stand-in has no reference");
    let passes: Vec<(Pass, u32)> = rows["fate=fine"].iter().map(|(pass, round, _, _)| (*pass, *round)).collect();
    assert_eq!(passes, [(Pass::Check, 1), (Pass::Memory, 1), (Pass::Memory, 2), (Pass::Time, 1), (Pass::Time, 2)]);
}

/// What the reference of this experiment is: the same fates in Python.
const REFERENCE: &str = r#"
import os
import torch
import lab

class Fated:
    def __init__(self, fate, start):
        self.fate, self.steps, self.result, self.start = fate, 0, None, start
        if fate == "denormal":
            torch.set_flush_denormal(True)

    def run(self, probe):
        self.steps += 1
        self.result = torch.ones(16) * (2.0 if self.fate == "wrong" else 1.0)
        probe.sample("steps", "1", self.steps)
        if self.fate in ("shared", "other"):
            # A number that only the lab's own process can have given; the other fate computes something else.
            assert abs(float(self.start["value"]) % 1 - 0.1) < 1e-6
            self.result = torch.ones(16) * (3.0 if self.fate == "shared" else 4.0)
        print("libraries print what they like")
        if self.fate == "error":
            raise ValueError("a step that fails")
        if self.fate == "big":
            raise lab.OutOfMemory("no room")
        if self.fate == "abort":
            os.abort()

    def outcome(self):
        return {"result": [self.result]}

    timing = lab.ONCE

lab.main(lambda cell, bench: Fated(cell["fate"], bench.start))
"#;

fn references_in_python_are_cells_like_ours() {
    let project = tempfile::tempdir().unwrap();
    let [own, shared] = ["empty_cache", "python"].map(|name| project.path().join("experiments").join(name));
    [&own, &shared].into_iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
    std::fs::write(own.join("step.py"), REFERENCE).unwrap();
    for name in ["lab.py", "meter.py", "exchange.py", "conditions.py"] {
        std::fs::copy(common::root().join("experiments/python").join(name), shared.join(name)).unwrap();
    }
    let program = project.path().join("experiment");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let run = |python: Option<&str>| {
        let out = tempfile::tempdir().unwrap();
        let mut command = Command::new(&program);
        command.args(["--profile", "smoke", "--device", "cpu", "--filter", "by=", "--out"]).arg(out.path());
        python.map(|python| command.env("VRAMLAB_PYTHON", python));
        command.output().unwrap();
        let mut machines = std::fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().path());
        let machine = machines.find(|path| !path.ends_with("protocols")).unwrap();
        Run::read(&machine.join("empty_cache")).unwrap()
    };
    let without = run(Some("/nowhere/python"));
    for pass in &without.passes {
        assert_eq!(pass.status, Status::Skipped);
        assert!(pass.reason.contains("/nowhere/python cannot be started") && pass.reason.contains("set VRAMLAB_PYTHON"));
    }
    assert_eq!(without.manifest.identity.flags["python"], "none");
    let with = run(None);
    if with.manifest.identity.flags["python"] == "none" {
        common::skipped(&format!("outcomes: no Python has this libtorch: {}", with.passes[0].reason));
        return;
    }
    let last = |fate: &str| {
        let cell = format!("by=pytorch fate={fate}");
        let pass = with.passes.iter().rev().find(|pass| pass.cell.to_string() == cell).unwrap();
        (pass.pass, pass.status, pass.reason.clone())
    };
    both_sides_are_compared(&with);
    assert_eq!(last("fine"), (Pass::Time, Status::Ok, String::new()));
    let expected = "result: expected equal ({'tolerance': 0.0}), found a relative error of 1.000e+00";
    assert_eq!(last("wrong"), (Pass::Check, Status::Invalid, expected.to_string()));
    assert_eq!(last("error"), (Pass::Check, Status::Error, "ValueError: a step that fails".to_string()));
    assert_eq!(last("big"), (Pass::Check, Status::Oom, "OutOfMemory: no room".to_string()));
    assert_eq!((last("abort").0, last("abort").1), (Pass::Check, Status::Crashed));
    let timed = with.passes.iter().find(|pass| pass.pass == Pass::Time).unwrap();
    let figures: Vec<(&str, f64)> = timed.samples.iter().map(|s| (s.metric.as_str(), s.value)).collect();
    assert!(matches!(figures[..], [("time", seconds), ("steps", 1.0)] if seconds > 0.0), "one sample, no warm-up: {figures:?}");
}

/// A reference begins with what ours hands over, its outcome is compared with ours, its bytes are counted by our allocator, and other
/// settings are refused.
fn both_sides_are_compared(run: &Run) {
    let of = |cell: &str| run.passes.iter().filter(|pass| pass.cell.to_string() == cell).collect::<Vec<_>>();
    let outcomes = |cell: &str| of(cell).iter().map(|pass| (pass.pass, pass.status, pass.reason.as_str())).collect::<Vec<_>>();
    let whole = [Pass::Check, Pass::Memory, Pass::Memory].map(|pass| (pass, Status::Ok, ""));
    assert_eq!(outcomes("fate=shared by=pytorch"), whole);
    assert_eq!(outcomes("fate=shared by=vramlab"), whole);
    let peak = |cell: &str| {
        let pass = of(cell)[2];
        pass.samples.iter().find(|s| s.metric == "requested_peak").map(|s| s.value).unwrap()
    };
    // Two vectors of 64 bytes and a last result, and what each side keeps besides.
    for cell in ["fate=shared by=pytorch", "fate=shared by=vramlab"] {
        assert!((128.0..512.0).contains(&peak(cell)), "{cell}: {}", peak(cell));
    }
    let other = of("fate=other by=vramlab")[0];
    assert_eq!(other.status, Status::Invalid);
    assert!(other.reason.contains("result: expected equal within 0e0, found a relative error of 2.500e-1"), "{}", other.reason);
    let refused = of("fate=denormal by=pytorch")[0];
    assert_eq!(refused.status, Status::Error);
    let why = "the two sides cannot be compared: denormals to zero is true here and false in the lab's program";
    assert!(refused.reason.contains(why), "{}", refused.reason);
    let ours = of("fate=denormal by=vramlab")[0];
    assert!(ours.status == Status::Error && ours.reason.contains(why), "{}", ours.reason);
}
