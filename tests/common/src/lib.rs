//! What the tests of all crates share: where the project and its programs lie, and how a test says that it leaves something out.

pub mod damage;
pub mod memory_viz;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The project's folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this crate lies in tests/common")
}

/// The folder in which cargo puts programs; a test's own program lies below it, in `deps`.
fn programs() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its program");
    own.ancestors().nth(2).expect("a test's program lies in deps").to_path_buf()
}

/// A program of another crate than the test's, as cargo built it.
///
/// # Panics
/// It is not built: cargo builds the programs of the crates that it tests.
pub fn program(name: &str) -> String {
    let program = programs().join(name);
    assert!(program.exists(), "{} is not built: `cargo build`, or test the whole workspace", program.display());
    program.to_str().expect("cargo's folder has a name of letters").to_string()
}

/// The Python whose PyTorch scripts/setup found, in the virtual environment that it made or that `LIBTORCH` names, or another.
pub fn python() -> PathBuf {
    let torch = root().join(".libtorch").canonicalize().unwrap_or_default();
    let beside = torch.ancestors().nth(4).map(|environment| environment.join("bin/python"));
    beside.filter(|python| python.exists()).unwrap_or_else(|| PathBuf::from("python3"))
}

/// Where tests may leave files, as `CARGO_TARGET_TMPDIR` of integration tests.
pub fn scratch() -> PathBuf {
    programs().with_file_name("tmp")
}

/// Says that a test leaves something out which every machine that has set the project up can try.
///
/// # Panics
/// In CI.
pub fn skipped(why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "left out, and CI has to try everything: {why}");
    left_out(why);
}

/// Says that a test leaves something out which takes a GPU.
pub fn needs_gpu(why: &str) {
    left_out(&format!("{why} (needs a GPU)"));
}

/// Said, and counted for the end of `just test`: a test that passes without its subject says nothing.
fn left_out(why: &str) {
    println!("left out: {why}");
    let mut list =
        OpenOptions::new().create(true).append(true).open(scratch().join("left-out.txt")).expect("tests may leave files");
    list.write_all(format!("{why}\n").as_bytes()).expect("tests may leave files");
}
