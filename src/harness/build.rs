//! Hashes the sources that take figures, says of which revision they are, and tells the linker where libtorch is.

use native_build::{FNV_OFFSET, collect, fnv_code};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// What takes figures; what only reads them may change without making them old. Prose, comments and the versions of crates take none: libtorch's
/// is in each run's identity.
const TAKE_FIGURES: [&str; 8] = [
    "experiments",
    "src/harness",
    "src/models",
    "src/record/src/protocol",
    "src/record/src/results",
    "src/record/src/rounds.rs",
    "src/sim",
    "src/torch",
];

fn main() {
    native_build::enter_project();
    native_build::depends_on(&TAKE_FIGURES);
    native_build::link_libtorch();
    write_experiments();
    record_revision();
}

/// Writes the list of experiments, with the hash of what takes each one's figures, for `runner` to include.
fn write_experiments() {
    let mut common: Vec<PathBuf> = Vec::new();
    let shared = TAKE_FIGURES.iter().filter(|path| **path != "experiments");
    shared.for_each(|path| collect(Path::new(path), &mut common));
    common.sort();
    // An experiment is a file or, where it asks several questions, a folder. Its page stands beside it.
    let entries = fs::read_dir("experiments").expect("experiments is there").flatten();
    let is_program = |path: &PathBuf| path.join("main.rs").exists() || path.extension().is_some_and(|extension| extension == "rs");
    let mut experiments: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_program).collect();
    experiments.sort();
    let shared = common.iter().fold(FNV_OFFSET, |hash, path| fnv_code(hash, path));
    let lines: String = experiments
        .iter()
        .filter_map(|path| {
            let name = path.file_stem()?.to_str()?;
            let mut own = Vec::new();
            collect(path, &mut own);
            // Without a step in Python what such steps share takes no figure, and what was recorded on GPUs is read by one alone.
            if path.join("step.py").exists() {
                collect(Path::new("experiments/python"), &mut own);
                collect(&Path::new("records").join(name), &mut own);
            }
            own.sort();
            let hash = own.iter().fold(shared, |hash, path| fnv_code(hash, path));
            Some(format!("    (\"{name}\", \"{hash:016x}\"),\n"))
        })
        .collect();
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("experiments.rs");
    fs::write(out, format!("&[\n{lines}]")).expect("OUT_DIR can be written");
}

/// Git revision and whether the tree was dirty, as far as git can tell; recorded with results, never compared.
fn record_revision() {
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let revision = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_string());
    let sources = ["src", "experiments", "records/real_gpus", "Cargo.toml", "Cargo.lock"];
    let dirty = git(&[&["status", "--porcelain", "--"][..], &sources[..]].concat()).is_some_and(|s| !s.is_empty());
    println!("cargo:rustc-env=VRAMLAB_REVISION={revision}");
    println!("cargo:rustc-env=VRAMLAB_DIRTY={dirty}");
    let version = |program: &str| {
        let output = std::process::Command::new(program).arg("--version").output().ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_string())
    };
    let compilers = [("RUSTC", "rustc"), ("CXX", "c++")].map(|(name, usual)| env::var(name).unwrap_or_else(|_| usual.to_string()));
    let compilers: Vec<String> = compilers.iter().filter_map(|program| version(program)).collect();
    println!("cargo:rustc-env=VRAMLAB_COMPILERS={}", compilers.join("; "));
    // Each commit appends to this file; without git it is not there.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists()) {
        native_build::depends_on(&[&log]);
    }
}
