//! Each experiment has its line, and no crate below the measuring ones sees libtorch.

use std::fs;
use std::process::Command;

/// Crates without libtorch, of which `vramlab rehearse` is built.
const WITHOUT_LIBTORCH: [&str; 7] = ["base", "chart", "record", "rehearse", "report", "sim", "vramlab"];

#[test]
fn rehearsing_and_reporting_need_no_libtorch() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version=1"];
    let output = Command::new(cargo).args(arguments).current_dir(common::root()).output().unwrap();
    let described: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in WITHOUT_LIBTORCH {
        let packages = described["packages"].as_array().unwrap();
        let package = packages.iter().find(|package| package["name"] == name).unwrap_or_else(|| panic!("there is no crate {name}"));
        for dependency in package["dependencies"].as_array().unwrap().iter().filter(|one| one["kind"] != "dev") {
            let used = dependency["name"].as_str().unwrap();
            let is_allowed = dependency["path"].is_null() || WITHOUT_LIBTORCH.contains(&used) || used == "native-build";
            assert!(is_allowed && !["tch", "torch-sys"].contains(&used), "{name} uses {used}");
        }
    }
}

#[test]
fn every_experiment_has_its_line_and_its_name() {
    let manifest = fs::read_to_string(common::root().join("experiments/Cargo.toml")).unwrap();
    for entry in fs::read_dir(common::root().join("experiments")).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("Cargo.toml") {
            continue;
        }
        let name = path.file_stem().unwrap().to_string_lossy().to_string();
        // One that asks several questions is a folder.
        let main = if path.is_dir() { format!("{name}/main.rs") } else { format!("{name}.rs") };
        let code = fs::read_to_string(common::root().join("experiments").join(&main)).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\", path = \"{main}\"")), "{name} has no [[bin]] line");
        assert!(code.contains(&format!("Protocol::new(\"{name}\",")), "{name}: the protocol has another name");
    }
}
