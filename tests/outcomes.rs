//! What a cell can come to, on the real runner: this file is a small experiment whose cells fail in every way that there is, and the
//! test that runs it. (No harness: the runner starts this program again for each cell.)

use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::protocol::*;
use vramlab::record::{Run, Status};

const PROTOCOL: Protocol = Protocol {
    // Results belong to an experiment that exists; this one stands in for it.
    name: "inplace",
    title: "Every outcome",
    question: "What becomes of a cell?",
    hypothesis: "A row, whatever happens.",
    factors: &[
        Factor { name: "fate", meaning: "what happens", levels: &[] },
        Factor { name: DEVICE_MEMORY, meaning: "limit", levels: &[] },
    ],
    grids: &[
        Grid {
            name: "fates",
            profiles: &[Profile::Smoke],
            studied: "fate",
            axes: &[axis("fate", &["fine", "wrong", "error", "panic", "abort", "hang", "uneven", "impossible", "setup"])],
            passes: &[Pass::Check, Pass::Memory, Pass::Time],
            only_on: &[],
        },
        Grid {
            name: "limits",
            profiles: &[Profile::Smoke],
            studied: "fate",
            axes: &[axis(DEVICE_MEMORY, &["1MiB"]), axis("fate", &["fine", "big"])],
            passes: &[Pass::Memory],
            only_on: &[],
        },
    ],
    metrics: &[PEAK, TIME],
    checks: &[Check { when: "", expect: Relation::Equal { tolerance: 0.0 } }],
    claims: &[],
    plots: &[],
    threats: &[],
};

struct Fated {
    fate: String,
    result: Tensor,
    runs: usize,
}

fn prepare(cell: &Cell, _: &Bench) -> Result<Box<dyn Step>> {
    let fate = cell.level("fate")?.to_string();
    if fate == "setup" {
        bail!("nothing to set up");
    }
    Ok(Box::new(Fated { fate, result: Tensor::zeros([1], (Kind::Float, Device::Cpu)), runs: 0 }))
}

impl Step for Fated {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        probe.at_rest();
        self.runs += 1;
        let float = (Kind::Float, Device::Cpu);
        self.result = Tensor::ones([16], float);
        match self.fate.as_str() {
            "wrong" => self.result = Tensor::ones([16], float) * 2.0,
            "error" => bail!("a step that fails"),
            "panic" => panic!("a step that panics"),
            "abort" => std::process::abort(),
            "hang" => std::thread::sleep(Duration::from_secs(3600)),
            "big" => drop(Tensor::ones([1 << 20], float)),
            // Each process has another number, so two passes count different bytes.
            "uneven" => drop(Tensor::ones([1 + i64::from(std::process::id() % 1000)], float)),
            _ => {}
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "result", tensors: vec![self.result.shallow_clone()] }])
    }

    fn least_flops(&self) -> f64 {
        if self.fate == "impossible" { 1e18 } else { 0.0 }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    // The flags of the experiment: started by the test below, or by the runner for one cell.
    if arguments.iter().any(|a| a == "--child" || a == "--profile") {
        return vramlab::run(&PROTOCOL, prepare);
    }
    every_outcome_is_a_row();
    println!("test every_outcome_is_a_row ... ok");
    println!("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished");
    ExitCode::SUCCESS
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
    let machine = std::fs::read_dir(out.path()).unwrap().next().unwrap().unwrap().path();
    let run = Run::read(&machine.join("inplace")).unwrap();
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
    let passes: Vec<(Pass, u32)> = rows["fate=fine"].iter().map(|(pass, round, _, _)| (*pass, *round)).collect();
    assert_eq!(passes, [(Pass::Check, 1), (Pass::Memory, 1), (Pass::Memory, 2), (Pass::Time, 1), (Pass::Time, 2)]);
}
