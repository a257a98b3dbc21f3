//! Results, and the ladder of techniques, that a disk or a stranger has damaged: `check` and `report` say so.

use common::damage::{damaged, how_many};
use std::panic::catch_unwind;
use std::path::Path;

/// An experiment of few rows on a machine, beside the files that stand for themselves.
const MACHINE: &str = "intel-xeon-2c";
const EXPERIMENT: &str = "no_grad";

#[test]
fn damaged_results_are_refused_and_nothing_panics() {
    let root = tempfile::tempdir().unwrap();
    let committed = super::project::committed().join("records");
    let files = [
        format!("measured/{MACHINE}/{EXPERIMENT}/samples.csv"),
        format!("measured/{MACHINE}/{EXPERIMENT}/run.json"),
        "predicted/ladder.json".to_string(),
        format!("protocols/{EXPERIMENT}-1.json"),
    ];
    let whole: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(committed.join(file)).unwrap()).collect();
    let results = root.path().join("records");
    let write = |file: &str, bytes: &[u8]| {
        let path = results.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    files.iter().zip(&whole).for_each(|(file, bytes)| write(file, bytes));
    let (mut refused, count) = (0, how_many(24));
    for seed in 1..=count {
        let which = (seed % 4) as usize;
        write(&files[which], &damaged(&whole[which], seed));
        let read = |results: &Path| {
            let checked = report::check(&results.join("measured").join(MACHINE)).map(|problems| !problems.is_empty());
            (checked.unwrap_or(true), report::write(&results.with_file_name("results"), &root.path().join("report")).is_err())
        };
        let found = catch_unwind(|| read(&results)).unwrap_or_else(|_| panic!("seed {seed} of {}", files[which]));
        refused += u64::from(found.0 || found.1);
        write(&files[which], &whole[which]);
    }
    println!("{refused} of {count} damaged results were refused");
    assert!(refused > count / 4, "{refused} of {count}");
}

#[test]
fn a_pipe_is_no_ladder() {
    let root = tempfile::tempdir().unwrap();
    let (from, records) = (super::project::committed().join("records"), root.path().join("records"));
    let experiment = format!("measured/{MACHINE}/{EXPERIMENT}");
    super::project::copy_tree(&from.join(&experiment), &records.join(&experiment), |_| false);
    super::project::copy_tree(&from.join("protocols"), &records.join("protocols"), |_| false);
    std::fs::create_dir(records.join("predicted")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(records.join("predicted/ladder.json")).status().unwrap().success());
    let said = format!("{:#}", report::write(&root.path().join("results"), &root.path().join("report")).unwrap_err());
    assert!(said.contains("ladder.json is no file"), "{said}");
}
