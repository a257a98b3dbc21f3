//! What `vramlab show` gives of rehearsals that were recorded once: nothing runs.

use std::fs;
use std::process::Command;

#[test]
fn a_recorded_rehearsal_gives_the_answer_that_is_written_beside_it() {
    let folder = common::root().join("tests/rehearse/captures");
    for entry in fs::read_dir(&folder).unwrap() {
        let capture = entry.unwrap().path();
        if capture.extension().is_some_and(|extension| extension == "cap") {
            let output = Command::new(env!("CARGO_BIN_EXE_vramlab")).arg("show").arg(&capture).output().unwrap();
            let (said, written) = (String::from_utf8_lossy(&output.stderr), capture.with_extension("txt"));
            let known = fs::read_to_string(&written).unwrap_or_default();
            // The whole text, so that a change of any part of an answer is seen where it is made.
            assert_eq!(said, known, "if that is right now: vramlab show {} 2> {}", capture.display(), written.display());
        }
    }
}

#[test]
fn captures_and_answers_are_compared_with_one_another() {
    let (folder, vramlab) = (tempfile::tempdir().unwrap(), || Command::new(env!("CARGO_BIN_EXE_vramlab")));
    let capture = common::root().join("tests/rehearse/captures/training.cap");
    let (answer, other) = (folder.path().join("answer.json"), folder.path().join("other.json"));
    assert!(vramlab().arg("show").arg(&capture).arg("--quiet").arg("--json").arg(&answer).status().unwrap().success());
    let same = vramlab().arg("diff").arg(&capture).arg(&answer).output().unwrap();
    assert!(String::from_utf8_lossy(&same.stdout).contains("Both peaks hold the same"), "{same:?}");
    // One group of blocks less.
    let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&answer).unwrap()).unwrap();
    let gone = text["processes"][0]["peak"]["contents"].as_array_mut().unwrap().remove(0);
    fs::write(&other, text.to_string()).unwrap();
    let grown = vramlab().arg("diff").args([&other, &capture]).args(["--json", "-"]).output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&grown.stdout).unwrap();
    let rows = found["rows"].as_array().unwrap();
    let sum: i64 = rows.iter().map(|row| row["bytes"].as_i64().unwrap()).sum();
    assert_eq!(Some(sum), gone["allocated"].as_i64(), "{found}");
    let refused = vramlab().arg("diff").arg(&capture).arg(common::root().join("README.md")).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("neither an answer of vramlab rehearse --json nor a capture"), "{said}");
}
