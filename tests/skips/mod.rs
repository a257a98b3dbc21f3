//! What a test cannot try where it runs. It is said, counted for the end of `just test`, and in CI an error: a test that passes without its
//! subject says nothing.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Says that a test leaves something out which every machine that has set the project up can try.
///
/// # Panics
/// In CI.
#[allow(dead_code)]
pub fn skipped(why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "left out, and CI has to try everything: {why}");
    left_out(why);
}

/// Says that a test leaves something out which takes a GPU.
#[allow(dead_code)]
pub fn needs_gpu(why: &str) {
    left_out(&format!("{why} (needs a GPU)"));
}

fn left_out(why: &str) {
    println!("left out: {why}");
    let list = Path::new(env!("CARGO_TARGET_TMPDIR")).join("left-out.txt");
    let mut list = OpenOptions::new().create(true).append(true).open(list).unwrap();
    list.write_all(format!("{why}\n").as_bytes()).unwrap();
}
