//! The lab's own hot paths: recording, reading and judging samples, and the meter's cost for a tensor.

use criterion::{Criterion, criterion_group, criterion_main};
use record::judge::{RunContext, judge};
use record::protocol::*;
use record::results::{Command, Identity, Journal, Manifest, PassRecord, Run, SCHEMA, Sample, Samples, Status};
use record::rounds::Rounds;
use record::rules::{Bound, RatioRule};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use tch::{Device, Kind, Tensor};

fn protocol() -> PlainProtocol {
    PlainProtocol {
        name: "bench".into(),
        grids: vec![PlainGrid {
            name: "all".into(),
            profiles: vec![Profile::Full],
            studied: "k".into(),
            axes: vec![axis("a", &["1", "2", "3", "4", "5"]), axis("b", &["1", "2", "3", "4"]), axis("k", &["1", "2", "4", "8"])],
            passes: vec![Pass::Time],
            only_on: vec![],
        }],
        metrics: vec![TIME],
        claims: vec![Claim {
            id: "faster".into(),
            from: "".into(),
            text: "".into(),
            judged_on: vec![Platform::Cpu],
            rule: RatioRule {
                metric: TIME.name.into(),
                of: "".into(),
                confirm: Bound::AtMost(0.9),
                refute: Bound::AtLeast(0.9),
                scope: None,
            }
            .into(),
            about_the_lab: false,
        }],
        ..PlainProtocol::default()
    }
}

fn manifest() -> Manifest {
    Manifest {
        schema: SCHEMA,
        method: protocol().method(),
        profile: Profile::Full,
        identity: Identity {
            machine: "bench".into(),
            platform: Platform::Cpu,
            hardware: BTreeMap::new(),
            libtorch: "2.11.0".into(),
            flags: BTreeMap::new(),
            memory_limit: None,
            seed: 1,
        },
        planned: Vec::new(),
        rounds: Rounds::fixed(25),
        commands: vec![Command::default()],
        protocol: protocol(),
    }
}

/// 80 cells, 25 rounds, 10 samples: 20 000 samples.
fn records() -> Vec<PassRecord> {
    let cells = protocol().grids[0].cells();
    let pass = |round: u32, cell: &PlainCell| {
        let sample = |n: u32| Sample {
            metric: TIME.name.into(),
            unit: "s".into(),
            value: 0.01 + f64::from(n * 7 % 5 + round * 3 % 7) * 1e-4,
            sample: n,
            reason: String::new(),
        };
        let samples = (0..10).map(sample).collect();
        PassRecord {
            cell: cell.clone(),
            pass: Pass::Time,
            round,
            status: Status::Ok,
            reason: String::new(),
            seconds: Some(0.1),
            samples,
        }
    };
    (1..=25).flat_map(|round| cells.iter().map(move |cell| (round, cell))).map(|(round, cell)| pass(round, cell)).collect()
}

fn write(dir: &Path, records: &[PassRecord]) -> Journal {
    let (mut journal, _) = Journal::open(dir, &mut manifest(), true).expect("a folder to write to");
    for record in records {
        journal.append(std::slice::from_ref(record)).expect("room to write");
    }
    journal
}

fn lab(c: &mut Criterion) {
    let records = records();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut journal = write(dir.path(), &records);
    c.bench_function("append and sync a pass of 10 samples", |b| b.iter(|| journal.append(&records[..1])));
    drop(journal);
    drop(write(dir.path(), &records));
    c.bench_function("read 20 000 samples", |b| b.iter(|| Run::read(black_box(dir.path()))));
    let (protocol, rounds) = (protocol(), Rounds::fixed(25));
    let taken = RunContext { profile: Profile::Full, device: Platform::Cpu, rounds: &rounds, machine: "" };
    c.bench_function("judge 60 comparisons of 25 rounds", |b| {
        b.iter(|| judge(&protocol, taken, &Samples::new(black_box(&records))))
    });
    for (name, metered) in [("libtorch's own allocator", false), ("the counting allocator", true)] {
        torch::use_cpu_meter(metered);
        c.bench_function(&format!("a tensor of 1 KiB, {name}"), |b| b.iter(|| Tensor::empty([256], (Kind::Float, Device::Cpu))));
    }
}

criterion_group!(benches, lab);
criterion_main!(benches);
