//! Carries the Python files that a rehearsal puts into a script's process.

use std::path::PathBuf;
use std::{env, fs};

const PYTHON: &str = "src/rehearse/python";

fn main() {
    native_build::enter_project();
    native_build::depends_on(&[PYTHON]);
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let text = format!(
        "/// Python's half.\npub const PYTHON: &[(&str, &str)] = &[\n{}];\n",
        native_build::included(PYTHON, PYTHON, &["py"])
    );
    fs::write(out.join("python.rs"), text).expect("OUT_DIR can be written");
}
