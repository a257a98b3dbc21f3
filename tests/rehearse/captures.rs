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
