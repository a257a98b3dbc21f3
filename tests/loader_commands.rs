//! `vramlab tune-loader` and `vramlab compare loader` as their user sees them.
#![cfg(feature = "torch")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use vramlab::data::Textured;

fn vramlab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
    command.args(arguments);
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn few_images(parent: &Path) -> String {
    Textured { images: 40, classes: 2, sides: (96, 72) }.folder(parent).unwrap().display().to_string()
}

#[test]
fn tuning_tries_settings_and_gives_a_reason() {
    let scratch = tempfile::tempdir().unwrap();
    let images = few_images(scratch.path());
    let common = ["tune-loader", "--data", &images, "--device", "cpu", "--batch", "16", "--budget", "4"];
    let output = vramlab(&[&common[..], &["--step-time", "100", "--json"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["reason"].as_str().unwrap().starts_with("not loader-bound: no workers give"), "{found}");
    assert_eq!((&found["workers"], &found["pinning"]), (&0.into(), &false.into()), "the cheapest that feeds a slow step");
    let tried = found["tried"].as_array().unwrap();
    assert!(tried.len() >= 3 && tried.iter().all(|t| t["images_per_second"].as_f64().unwrap() > 0.0), "{found}");
    let output = vramlab(&[&common[..], &["--step-time", "0.000001"]].concat()).output().unwrap();
    let text = said(&output);
    assert!(text.contains("because: loader-bound:") && text.contains("advice: ") && text.contains("workers  prefetch"), "{text}");
}

#[test]
fn tuning_names_what_it_leaves_out() {
    let scratch = tempfile::tempdir().unwrap();
    let few = Textured { images: 6, classes: 2, sides: (96, 72) };
    let images = few.folder(scratch.path()).unwrap().display().to_string();
    let class = Path::new(&images).join("class-00");
    std::fs::write(class.join("drawing.png"), b"not for this loader").unwrap();
    let broken = class.join("00000.jpg");
    let bytes = std::fs::read(&broken).unwrap();
    std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let output = vramlab(&["tune-loader", "--data", &images, "--device", "cpu", "--batch", "6", "--budget", "2"]).output().unwrap();
    let text = said(&output);
    assert!(output.status.success() && text.contains("1 file is left out: its name does not end in .jpg"), "{text}");
    let named = format!("{}, at byte {}: a JPEG image that was cut short", broken.display(), bytes.len() / 2);
    assert!(text.contains("1 image cannot be loaded") && text.contains(&named), "{text}");
}

#[test]
fn tuning_says_what_is_wrong_with_the_data() {
    let scratch = tempfile::tempdir().unwrap();
    let empty = scratch.path().display().to_string();
    let output = vramlab(&["tune-loader", "--data", &empty, "--device", "cpu", "--budget", "1"]).output().unwrap();
    assert!(!output.status.success() && said(&output).contains("has no subfolder"), "{}", said(&output));
    let class = scratch.path().join("class");
    std::fs::create_dir(&class).unwrap();
    std::fs::write(class.join("0.jpg"), b"no image").unwrap();
    let output = vramlab(&["tune-loader", "--data", &empty, "--device", "cpu", "--budget", "1"]).output().unwrap();
    assert!(!output.status.success() && said(&output).contains("no image can be loaded"), "{}", said(&output));
    let output = vramlab(&["tune-loader", "--step-time", "0"]).output().unwrap();
    assert!(said(&output).contains("is no number of seconds"), "{}", said(&output));
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
