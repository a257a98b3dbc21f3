//! The build script of experiments: where libtorch is, and the programs of `Cargo.toml` as modules of `units.rs`.

use std::{env, fs};

fn main() {
    native_build::link_libtorch();
    println!("cargo:rerun-if-changed=Cargo.toml");
    let [folder, out] = ["CARGO_MANIFEST_DIR", "OUT_DIR"].map(|name| env::var(name).expect("cargo sets it"));
    let manifest = fs::read_to_string("Cargo.toml").expect("the package has it");
    let programs = manifest.lines().filter(|line| line.contains("test = false"));
    let module = |line: &str| match line.split('"').collect::<Vec<_>>()[..] {
        [_, name, _, path, _] => format!("#[path = \"{folder}/{path}\"]\nmod {name};\n"),
        // A comment.
        _ => String::new(),
    };
    fs::write(format!("{out}/units.rs"), programs.map(module).collect::<String>()).expect("OUT_DIR can be written");
}
