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
    let committed = super::project::committed().join("results");
    let files =
        [format!("{MACHINE}/{EXPERIMENT}/samples.csv"), format!("{MACHINE}/{EXPERIMENT}/run.json"), "ladder.json".to_string()];
    let whole: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(committed.join(file)).unwrap()).collect();
    let results = root.path().join("results");
    let write = |file: &str, bytes: &[u8]| {
        let path = results.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    files.iter().zip(&whole).for_each(|(file, bytes)| write(file, bytes));
    let (mut refused, count) = (0, how_many(24));
    for seed in 1..=count {
        let which = (seed % 3) as usize;
        write(&files[which], &damaged(&whole[which], seed));
        let read = |results: &Path| {
            let checked = report::check(&results.join(MACHINE)).map(|problems| !problems.is_empty());
            (checked.unwrap_or(true), report::write(results, &root.path().join("report")).is_err())
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
    let (from, results) = (super::project::committed().join("results"), root.path().join("results"));
    let folder = results.join(MACHINE).join(EXPERIMENT);
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["samples.csv", "run.json"] {
        std::fs::copy(from.join(MACHINE).join(EXPERIMENT).join(file), folder.join(file)).unwrap();
    }
    assert!(std::process::Command::new("mkfifo").arg(results.join("ladder.json")).status().unwrap().success());
    let said = format!("{:#}", report::write(&results, &root.path().join("report")).unwrap_err());
    assert!(said.contains("ladder.json is no file"), "{said}");
}
