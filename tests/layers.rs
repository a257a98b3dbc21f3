//! Layers point one way, and each experiment has its line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn sources(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.path() {
            path if path.is_dir() => found.extend(sources(&path)),
            path if path.extension().is_some_and(|e| e == "rs") => {
                let text = fs::read_to_string(&path).unwrap();
                // Tests inside modules may use more.
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap().to_string();
                found.push((path, code));
            }
            _ => {}
        }
    }
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `src/report/plots.rs` and `src/report.rs` belong to the module `report`.
fn module(path: &Path) -> String {
    let inside = path.strip_prefix(root().join("src")).unwrap();
    inside.components().next().unwrap().as_os_str().to_string_lossy().trim_end_matches(".rs").to_string()
}

#[test]
fn layers_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("console", &[][..]),
        ("stats", &[]),
        ("units", &[]),
        ("inline", &[]),
        ("snapshot", &[]),
        ("protocol", &[]),
        ("results", &["protocol", "rounds", "stats"]),
        ("judge", &["protocol", "results", "rounds", "stats"]),
        ("rounds", &["protocol"]),
        ("pairs", &["protocol", "results", "stats", "units"]),
        ("chart", &["units"]),
        ("report", &["chart", "inline", "judge", "pairs", "protocol", "results", "rounds", "stats", "units"]),
        // Its wrappers of C++ name what they are for.
        ("native", &["torch"]),
        ("torch", &[]),
        ("machine", &["cards", "protocol", "torch", "units"]),
        ("cards", &["units"]),
        ("rehearse", &["cards", "chart", "inline", "snapshot", "units"]),
        ("process", &[]),
        ("dry", &["cards", "torch"]),
        ("data", &["torch"]),
        ("models", &["torch"]),
        ("training", &["models", "torch"]),
        ("measure", &["machine", "protocol", "results", "torch"]),
        // Its macros are exported at the crate's root, without a module's name.
        ("lab", &["", "dry", "measure", "protocol", "results", "torch", "training"]),
        ("runner", &["dry", "judge", "lab", "machine", "measure", "protocol", "results", "rounds", "stats", "torch", "units"]),
        (
            "commands",
            &[
                "cards", "data", "dry", "machine", "measure", "models", "pairs", "protocol", "results", "runner", "stats", "torch",
                "training", "units",
            ],
        ),
        ("doctor", &["machine", "measure", "models", "protocol", "stats", "torch", "units"]),
    ]);
    for (path, code) in sources(&root().join("src")) {
        let name = module(&path);
        if name == "lib" || name == "bin" {
            continue;
        }
        let may = allowed.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no place in the layers yet"));
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for used in line.replace("$crate::", "").split("crate::").skip(1) {
                let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                assert!(used == name || may.contains(&used.as_str()), "{}: uses {used}: {line}", path.display());
            }
            if name == "report" || ["stats", "units", "protocol", "results", "judge", "pairs"].contains(&name.as_str()) {
                let names_tch = line.match_indices("tch::").any(|(at, _)| !line[..at].ends_with(char::is_alphanumeric));
                assert!(!names_tch, "{}: names tch: {line}", path.display());
            }
        }
    }
}

#[test]
fn every_experiment_has_its_line_and_its_name() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for entry in fs::read_dir(root().join("experiments")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().to_string();
        // One that asks several questions is a folder.
        let main = if path.is_dir() { format!("experiments/{name}/main.rs") } else { format!("experiments/{name}.rs") };
        let code = fs::read_to_string(root().join(&main)).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\", path = \"{main}\"")), "{name} has no [[bin]] line");
        assert!(code.contains(&format!("Protocol::new(\"{name}\",")), "{name}: the protocol has another name");
    }
}
