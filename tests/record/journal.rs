//! A results folder is written, gone on with and read, whatever ended the run before.

use proptest::prelude::*;
use record::protocol::{Pass, PlainCell, PlainProtocol, Platform, Profile};
use record::results::{Command, Identity, Journal, Manifest, PassRecord, Run, SCHEMA, Sample, Status, holds_results};
use record::rounds::Rounds;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::slice;

const SAMPLES: &str = "samples.csv";
const MANIFEST: &str = "run.json";

fn pass(cell: &str, pass: Pass, round: u32, values: &[f64]) -> PassRecord {
    let sample = |(value, sample): (&f64, u32)| Sample {
        metric: "time".into(),
        unit: "s".into(),
        value: *value,
        sample,
        ..Sample::default()
    };
    let not_run = PassRecord::not_run(&PlainCell::parse(cell).unwrap(), pass, round, Status::Ok, "");
    PassRecord { seconds: Some(0.5), samples: values.iter().zip(0..).map(sample).collect(), ..not_run }
}

fn manifest() -> Manifest {
    let protocol = PlainProtocol {
        name: "x".into(),
        revision: 1,
        title: "x \"quoted\"".into(),
        threats: vec!["one\nline".into()],
        ..PlainProtocol::default()
    };
    Manifest {
        schema: SCHEMA,
        method: protocol.method(),
        profile: Profile::Quick,
        identity: Identity {
            machine: "somewhere".into(),
            platform: Platform::Cpu,
            hardware: BTreeMap::from([("cpu".into(), "a".into())]),
            libtorch: "2.11.0".into(),
            flags: BTreeMap::from([("threads".into(), "2".into())]),
            memory_limit: None,
            seed: 1,
        },
        planned: vec!["k=1".into()],
        rounds: Rounds::fixed(5),
        commands: vec![Command { argv: vec!["x".into()], ..Command::default() }],
        protocol,
    }
}

/// Folder of an experiment's results, as it lies in that of all results.
struct Folder {
    _root: tempfile::TempDir,
    folder: PathBuf,
}

impl Folder {
    fn new() -> Folder {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("somewhere/x");
        Folder { _root: root, folder }
    }

    fn path(&self) -> &Path {
        &self.folder
    }
}

#[test]
fn what_was_written_is_read_back_and_resumed() {
    let dir = Folder::new();
    let (mut journal, kept) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
    assert!(kept.is_empty());
    let good = pass("k=1", Pass::Time, 1, &[0.1, 1e-9, 123456789.125]);
    let mut crashed = pass("k=2", Pass::Memory, 1, &[]);
    crashed.status = Status::Crashed;
    crashed.reason = "signal 9,\n\"killed\"".into();
    let mut oom = pass("k=4", Pass::Memory, 1, &[]);
    oom.status = Status::Oom;
    journal.append(&[good.clone(), crashed, oom.clone()]).unwrap();
    drop(journal);
    let run = Run::read(dir.path()).unwrap();
    assert_eq!(run.manifest, manifest());
    assert_eq!(run.passes[0], good);
    assert_eq!(run.passes[1].reason, "signal 9, \"killed\"");
    let (_, kept) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
    assert_eq!(kept, [good, oom], "what failed is measured again, an outcome is not");
    assert_eq!(Run::read(dir.path()).unwrap().passes.len(), 2);
}

#[test]
fn going_on_adds_its_command_to_those_before() {
    let dir = Folder::new();
    drop(Journal::open(dir.path(), &mut manifest(), false).unwrap());
    let mut later = manifest();
    later.commands[0] = Command { argv: vec!["x".into(), "again".into()], git_dirty: true, ..Command::default() };
    drop(Journal::open(dir.path(), &mut later, false).unwrap());
    let found = Run::read(dir.path()).unwrap().manifest;
    assert_eq!(found.commands.iter().map(|c| c.argv.len()).collect::<Vec<_>>(), [1, 2]);
    assert!(found.is_dirty() && !manifest().is_dirty());
}

#[test]
fn parts_of_a_sweep_are_joined_if_they_were_taken_alike() {
    let dir = Folder::new();
    let write = |part: &str, cell: &str, manifest: &mut Manifest| {
        manifest.planned = vec![cell.to_string()];
        let (mut journal, _) = Journal::open(&dir.path().join(part), manifest, true).unwrap();
        journal.append(&[pass(cell, Pass::Memory, 1, &[1.0])]).unwrap();
    };
    write("shard-1-of-2", "k=1", &mut manifest());
    write("shard-2-of-2", "k=2", &mut manifest());
    let run = Run::read(dir.path()).unwrap();
    assert_eq!(run.manifest.planned, ["k=1", "k=2"]);
    assert_eq!(run.passes.len(), 2);
    let mut other = manifest();
    other.identity.libtorch = "2.12.0".into();
    write("shard-2-of-2", "k=2", &mut other);
    let error = Run::read(dir.path()).unwrap_err().to_string();
    assert!(error.contains("cannot be joined") && error.contains("libtorch: there \"2.11.0\", now \"2.12.0\""), "{error}");
}

#[test]
fn a_second_writer_is_refused() {
    let dir = Folder::new();
    let first = Journal::open(dir.path(), &mut manifest(), false).unwrap();
    let error = Journal::open(dir.path(), &mut manifest(), true).unwrap_err().to_string();
    assert!(error.contains("another run is writing to"), "{error}");
    drop(first);
    Journal::open(dir.path(), &mut manifest(), false).unwrap();
}

#[test]
fn every_difference_is_named() {
    let dir = Folder::new();
    drop(Journal::open(dir.path(), &mut manifest(), false).unwrap());
    let mut other = manifest();
    other.profile = Profile::Full;
    other.identity.flags.insert("threads".into(), "4".into());
    other.protocol.revision = 2;
    other.method = other.protocol.method();
    other.identity.hardware.insert("gpu".into(), "H200".into());
    other.rounds = Rounds::fixed(25);
    other.commands[0].git_revision = "recorded only".into();
    let error = Journal::open(dir.path(), &mut other, false).unwrap_err().to_string();
    for part in [
        "profile: there quick, now full",
        "threads: there \"2\", now \"4\"",
        "method: there x-1, now x-2",
        "gpu: there null",
        "timed rounds: there 5, now 25",
        "--fresh",
    ] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
    assert!(!error.contains("seed") && !error.contains("revision"), "{error}");
    drop(Journal::open(dir.path(), &mut other, true).unwrap());
    assert_eq!(Run::read(dir.path()).unwrap().manifest, other);
}

#[test]
fn another_size_of_container_and_another_patch_of_the_driver_go_on() {
    let dir = Folder::new();
    let with = |memory: &str, driver: &str| {
        let mut manifest = manifest();
        manifest.identity.hardware.extend([("memory".into(), memory.into()), ("driver".into(), driver.into())]);
        manifest
    };
    drop(Journal::open(dir.path(), &mut with("128 GiB", "580.82.07"), false).unwrap());
    drop(Journal::open(dir.path(), &mut with("127 GiB", "580.95.05"), false).unwrap());
    let error = Journal::open(dir.path(), &mut with("128 GiB", "590.10"), false).unwrap_err().to_string();
    assert!(error.contains("driver: there \"580\", now \"590\""), "{error}");
}

#[test]
fn a_run_that_ended_between_its_two_first_files_left_results_that_can_be_read() {
    let dir = Folder::new();
    let (samples, json) = (dir.path().join(SAMPLES), dir.path().join(MANIFEST));
    let (mut journal, _) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
    journal.append(&[pass("k=1", Pass::Time, 1, &[0.25])]).unwrap();
    drop(journal);
    let whole = std::fs::read(&samples).unwrap();
    // The manifest alone, whether new or of a run that started over; and the header alone, as older versions left it.
    std::fs::remove_file(&samples).unwrap();
    assert!(Run::read(dir.path()).unwrap().passes.is_empty() && holds_results(dir.path()));
    drop(Journal::open(dir.path(), &mut manifest(), false).unwrap());
    let header = std::fs::read(&samples).unwrap();
    std::fs::remove_file(&json).unwrap();
    assert!(!holds_results(dir.path()));
    drop(Journal::open(dir.path(), &mut manifest(), false).unwrap());
    assert!(std::fs::read(&samples).unwrap() == header && json.exists());
    // Samples that nobody knows are still refused.
    std::fs::write(&samples, whole).unwrap();
    std::fs::remove_file(&json).unwrap();
    assert!(holds_results(dir.path()) && Journal::open(dir.path(), &mut manifest(), false).is_err());
}

#[test]
fn results_whose_protocol_could_not_be_written_are_not_begun() {
    let all = Folder::new();
    std::fs::create_dir_all(all.path()).unwrap();
    std::fs::write(all.path().join("protocols"), "a file where a folder belongs").unwrap();
    let dir = all.path().join("a-machine/an-experiment");
    assert!(Journal::open(&dir, &mut manifest(), false).is_err());
    assert!(!dir.join(MANIFEST).exists(), "without its protocol nobody can read it");
}

#[test]
fn other_schemas_and_damaged_rows_are_refused_by_name() {
    let dir = Folder::new();
    let (mut journal, _) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
    journal.append(&[pass("k=1", Pass::Time, 1, &[0.25, 0.5])]).unwrap();
    drop(journal);
    let file = dir.path().join(SAMPLES);
    let text = std::fs::read_to_string(&file).unwrap();
    for (from, to) in [
        ("0.5,ok", "half,ok"),
        (",ok,", ",fine,"),
        ("k=1,1,1,", "k=1,1,"),
        ("0.25", "inf"),
        ("k=1,1,1", "k,1,1"),
        ("k=1,1,1", "k=2,1,1"),
    ] {
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let error = format!("{:#}", Run::read(dir.path()).unwrap_err());
        assert!(error.contains("samples.csv, line ") && error.contains("damaged"), "{from} -> {to}: {error}");
    }
    std::fs::write(&file, text.replacen("cell", "zelle", 1)).unwrap();
    assert!(format!("{:#}", Run::read(dir.path()).unwrap_err()).contains("line 1: expected the header"));
    let json = dir.path().join(MANIFEST);
    let good = std::fs::read_to_string(&json).unwrap();
    std::fs::write(&json, good.replace("\"schema\": 2", "\"schema\": 7")).unwrap();
    assert!(format!("{:#}", Run::read(dir.path()).unwrap_err()).contains("schema 7"));
    std::fs::write(&json, "{").unwrap();
    assert!(format!("{:#}", Run::read(dir.path()).unwrap_err()).contains("run.json is not valid JSON"));
}

proptest! {
    // Each case waits for the disk a dozen times.
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Cut anywhere, the file yields exactly the passes that were complete, and going on from there works.
    #[test]
    fn cut_anywhere_no_complete_pass_is_lost(cut in 0.0..1.0f64, values in proptest::collection::vec(any::<u32>(), 1..4)) {
        let dir = Folder::new();
        let passes: Vec<PassRecord> = (1..6)
            .map(|round| pass("k=1", Pass::Time, round, &values.iter().map(|v| f64::from(*v) / 7.0).collect::<Vec<_>>()))
            .collect();
        let (mut journal, _) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
        let mut ends = Vec::new();
        for p in &passes {
            journal.append(slice::from_ref(p)).unwrap();
            ends.push(std::fs::metadata(dir.path().join(SAMPLES)).unwrap().len());
        }
        drop(journal);
        let file = dir.path().join(SAMPLES);
        let length = (cut * ends[4] as f64) as u64;
        OpenOptions::new().write(true).open(&file).unwrap().set_len(length).unwrap();
        let complete = ends.iter().filter(|end| **end <= length).count();
        let (mut journal, kept) = Journal::open(dir.path(), &mut manifest(), false).unwrap();
        prop_assert_eq!(&kept, &passes[..complete]);
        journal.append(&passes[complete..]).unwrap();
        prop_assert_eq!(Run::read(dir.path()).unwrap().passes, passes);
    }
}
