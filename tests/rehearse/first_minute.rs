//! What somebody meets who has nothing but README: names of cards, and what is told where a command cannot be rehearsed.

use serde_json::Value;
use std::process::{Command, Output};

fn vramlab(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vramlab")).args(words).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_program_alone_says_what_to_type() {
    let alone = said(&vramlab(&[]));
    for part in ["vramlab rehearse --gpu rtx-4090 -- python train.py", "--what-if", "vramlab gpus"] {
        assert!(alone.contains(part), "{part}: {alone}");
    }
    // No line of a terminal's help is wider than that.
    let help = said(&vramlab(&["rehearse", "--help"]));
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    // Where the lab is not built, as after pip, the way to it is one that there is.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("vramlab");
    std::fs::copy(env!("CARGO_BIN_EXE_vramlab"), &copy).unwrap();
    let lab = said(&Command::new(copy).arg("doctor").output().unwrap());
    assert!(lab.contains("just doctor") && !lab.contains("just setup"), "{lab}");
}

#[test]
fn cards_are_listed_with_their_sources() {
    let listed = said(&vramlab(&["gpus"]));
    assert!(listed.lines().filter(|line| line.contains("GiB") && line.contains('.')).count() >= 45, "{listed}");
    let one = said(&vramlab(&["gpus", "NVIDIA GeForce RTX 5070 Ti"]));
    assert!(one.starts_with("rtx-5070-ti ") && one.contains("Blackwell whitepaper") && one.contains("15833 MiB"), "{one}");
    let cards: Value = serde_json::from_slice(&vramlab(&["gpus", "--json", "-"]).stdout).unwrap();
    let cards = cards.as_array().unwrap();
    let a100 = cards.iter().find(|card| card["name"] == "a100-40g").unwrap();
    assert_eq!((&a100["bandwidth"], &a100["compute_capability"]), (&Value::from(1555e9), &"8.0".into()));
    let whole = |card: &Value| ["memory", "usable", "l2", "multiprocessors"].iter().all(|field| card[field].as_u64() > Some(0));
    assert!(cards.len() >= 45 && cards.iter().all(whole));
    let unknown = vramlab(&["gpus", "rx-7900"]);
    assert!(!unknown.status.success() && said(&unknown).contains("`vramlab gpus` lists"), "{}", said(&unknown));
}
