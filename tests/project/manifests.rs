//! Each experiment has its line, and no crate below the measuring ones sees libtorch.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
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
    let overview = fs::read_to_string(common::root().join("experiments/README.md")).unwrap();
    for entry in fs::read_dir(common::root().join("experiments")).unwrap() {
        let path = entry.unwrap().path();
        // And what steps in Python share.
        if ["Cargo.toml", "README.md", "python"].iter().any(|other| path.ends_with(other)) {
            continue;
        }
        let name = path.file_stem().unwrap().to_string_lossy().to_string();
        // One that asks several questions is a folder.
        let main = if path.is_dir() { format!("{name}/main.rs") } else { format!("{name}.rs") };
        let code = fs::read_to_string(common::root().join("experiments").join(&main)).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\", path = \"{main}\"")), "{name} has no [[bin]] line");
        assert!(overview.contains(&format!("`{name}`")), "experiments/README.md does not name {name}");
        assert!(code.contains(&format!("Protocol::new(\"{name}\",")), "{name}: the protocol has another name");
    }
}

/// A type's name, where a line defines one for a whole module.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub").map_or(line, |rest| rest.trim_start_matches(|c| c != ' ').trim_start());
    let name = ["struct ", "enum ", "trait ", "union "].iter().find_map(|keyword| line.strip_prefix(keyword))?;
    // A macro's `$name` is none.
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

#[test]
fn a_type_name_is_unique() {
    // In its crate: which one is meant elsewhere its path says.
    let mut places: BTreeMap<(PathBuf, String), Vec<PathBuf>> = BTreeMap::new();
    let root = common::root();
    let mut folders = ["src", "experiments"].map(|folder| root.join(folder)).to_vec();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                let of_crate: PathBuf = path.strip_prefix(root).unwrap().components().take(2).collect();
                for name in code.lines().filter_map(defined) {
                    places.entry((of_crate.clone(), name.to_string())).or_default().push(path.clone());
                }
            }
        }
    }
    assert!(places.len() > 300, "{}", places.len());
    let twice: Vec<_> = places.iter().filter(|(_, places)| places.len() > 1).collect();
    assert!(twice.is_empty(), "each says what it holds, so no two have one name: {twice:?}");
}

/// `torch.backends.cudnn.flags()` turns off what it is not told, cuDNN itself, too: a step would compute with PyTorch's own kernels, unseen.
#[test]
fn no_step_in_python_turns_cudnn_off_without_saying_so() {
    let folders = ["experiments", "records", "src/rehearse/python"].map(|folder| common::root().join(folder));
    let mut waiting = folders.to_vec();
    let mut files = 0;
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|ending| ending == "py") {
                files += 1;
                let text = fs::read_to_string(&path).unwrap();
                let mut calls = text.lines().filter(|line| line.contains("cudnn.flags("));
                assert!(calls.all(|line| line.contains("enabled=")), "{}: cudnn.flags() without enabled=", path.display());
            }
        }
    }
    assert!(files > 50, "{files} files in Python");
}
