//! However a script is started and comes to PyTorch, `vramlab rehearse` follows it, and nothing that it starts reaches a real GPU.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The Python of the virtual environment that scripts/setup made, or another that has PyTorch.
fn python() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python");
    if own.exists() { own } else { PathBuf::from("python3") }
}

fn own(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rehearse").join(script)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A rehearsal in an empty folder, with its cache beside it.
fn rehearse(folder: &Path, change: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
    command.current_dir(folder).env("VRAMLAB_CACHE", folder.join("cache")).args(["rehearse", "--gpu", "24GiB"]);
    change(&mut command);
    command.output().unwrap()
}

#[test]
fn every_way_to_pytorch_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let output = rehearse(folder.path(), |command| {
        command.args(["--json", "answer.json", "--timeout", "240", "--"]).args([python(), own("ways_in.py")]);
    });
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{error}");
    let answer: Value = serde_json::from_slice(&std::fs::read(folder.path().join("answer.json")).unwrap()).unwrap();
    let steps: BTreeMap<u64, u64> = answer["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| (process["process"].as_u64().unwrap(), process["steps"].as_u64().unwrap()))
        .collect();
    let trained: Vec<(u64, &str)> = said
        .lines()
        .filter_map(|line| line.strip_prefix("trains: ")?.split_once(' '))
        .map(|(process, way)| (process.parse().unwrap(), way))
        .collect();
    let lost: Vec<&str> = trained.iter().filter(|(process, _)| steps.get(process) != Some(&3)).map(|(_, way)| *way).collect();
    assert!(lost.is_empty(), "not followed for three steps: {lost:?}\n{said}{error}");
    assert_eq!(trained.len(), 4, "{said}{error}");
}
