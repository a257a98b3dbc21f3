//! `vramlab evidence`: the steps of measured cells still ask for what they asked for, and one that does not is named.

use std::path::Path;
use std::process::{Command, Output};

fn evidence(folder: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vramlab-lab")).arg("evidence").args(flags).current_dir(folder).output().unwrap()
}

/// All that GPUs measured, and some of what CPUs did.
#[test]
#[ignore = "long"]
fn measured_cells_ask_for_what_they_asked_for_when_they_were_measured() {
    let output = evidence(common::root(), &["--cells", "20"]);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let compared =
        said.split("evidence: ").nth(1).and_then(|rest| rest.split(' ').next()).and_then(|count| count.parse::<u32>().ok());
    assert!(output.status.success() && compared.is_some_and(|compared| compared > 100), "{said}");
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
    let output = evidence(folder.path(), &["--only", "inplace"]);
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
    let output = evidence(folder.path(), &["--only", "inplace"]);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(&format!("inplace-1, {of}: aten::")), "{said}");
}
