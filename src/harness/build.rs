//! Says what this was compiled with, and tells the linker where libtorch is.

use std::env;

fn main() {
    native_build::enter_project();
    native_build::link_libtorch();
    let version = |program: &str| {
        let output = std::process::Command::new(program).arg("--version").output().ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_string())
    };
    let compilers = [("RUSTC", "rustc"), ("CXX", "c++")].map(|(name, usual)| env::var(name).unwrap_or_else(|_| usual.to_string()));
    let compilers: Vec<String> = compilers.iter().filter_map(|program| version(program)).collect();
    println!("cargo:rustc-env=VRAMLAB_COMPILERS={}", compilers.join("; "));
}
