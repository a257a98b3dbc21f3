//! `vramlab compare loader` as its user sees it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn vramlab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab-lab"));
    command.args(arguments);
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_comparison_without_its_peer_says_how_to_get_it() {
    let scratch = tempfile::tempdir().unwrap();
    let compare = |python: &Path| {
        let mut command = vramlab(&["compare", "loader", "--out"]);
        command.arg(scratch.path()).env("VRAMLAB_PYTHON", python);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        said(&output)
    };
    let none = compare(Path::new("/nowhere/python"));
    assert!(none.contains("/nowhere/python cannot be started") && none.contains("VRAMLAB_PYTHON"), "{none}");
    // A Python that has torch and nothing else.
    let python = scratch.path().join("python");
    let script = "#!/bin/sh\ncase \"$2\" in *platform*) echo 3.11.2 2.11.0+cu130;; *) echo \"No module named 'torchvision'\" >&2; exit 1;; esac\n";
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let lacking = compare(&python);
    assert!(lacking.contains("lacks torchvision (No module named 'torchvision')") && lacking.contains("`just peers`"), "{lacking}");
}
