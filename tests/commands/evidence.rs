//! `vramlab evidence`: the steps of measured cells still ask for what they asked for, and one that does not is named.

use std::path::Path;
use std::process::{Command, Output};

fn evidence(folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vramlab-lab")).args(["evidence", "--only", "inplace"]).current_dir(folder).output().unwrap()
}

#[test]
fn a_step_that_asks_for_something_else_is_named_with_its_first_operator() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    std::fs::create_dir(&path).unwrap();
    for part in ["measured", "protocols", "witnesses"] {
        let copied = Command::new("cp").arg("-r").arg(common::root().join("records").join(part)).arg(&path).status().unwrap();
        assert!(copied.success());
    }
    let output = evidence(folder.path());
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("measured cells ask for what is written down"), "{said}");
    assert!(!said.contains("evidence: 0 of"), "{said}");

    // As if `exp` through `data` had been measured with what `exp` without writing asks for.
    let file = path.join("witnesses/inplace-1.csv");
    let known = std::fs::read_to_string(&file).unwrap();
    let row = |cell: &str| known.lines().find(|line| line.starts_with(&format!("{cell},"))).unwrap().to_string();
    let (of, other) = ("op=exp write=through-data", "op=exp write=none");
    let changed = row(other).replacen(other, of, 1);
    std::fs::write(&file, known.replace(&row(of), &changed)).unwrap();
    let output = evidence(folder.path());
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(&format!("inplace-1, {of}: aten::")), "{said}");
}
