//! Compiles the shim and what the lab's programs carry, and tells the linker where libtorch is.

use native_build::{Library, Libtorch, SIMULATED_GPU, TORCH_VERSION};
use std::path::{Path, PathBuf};
use std::{env, fs};

const NATIVE: &str = "src/torch/src/native";

fn main() {
    native_build::enter_project();
    native_build::depends_on(&[NATIVE, SIMULATED_GPU]);
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let lib = PathBuf::from(env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where libtorch is"));
    let folder = lib.parent().expect("libtorch's lib directory has a parent");
    let torch = Libtorch::find(folder).unwrap_or_else(|found| {
        panic!(
            "vramlab needs libtorch {TORCH_VERSION}, and {} holds {found}. Unset LIBTORCH and run scripts/setup to install the right one.",
            folder.display()
        )
    });
    let native = |name: &str| Path::new(NATIVE).join(name);
    let own = [
        Library {
            name: "dry_backend",
            from: vec![native("dry/host.cpp"), Path::new(SIMULATED_GPU).join("kernels")],
            exports: "vramlab_*",
            link: Vec::new(),
            needs_cuda: true,
        },
        // By it Python's CPU tensors are counted and recorded as ours are, and its settings read. Its own functions come before those of
        // a program that has them, too.
        Library {
            name: "meter",
            from: ["meter.cpp", "allocations.cpp", "witness.cpp", "settings.cpp"].map(native).to_vec(),
            exports: "vl_*",
            link: ["-Wl,-Bsymbolic", "-ltorch_cpu", "-lc10"].map(str::to_string).to_vec(),
            needs_cuda: false,
        },
    ];
    let libraries: Vec<Library> = native_build::simulated().chain(own).collect();
    native_build::compile(&torch, &libraries, Some(NATIVE));
    println!("cargo:rustc-link-lib=stdc++");
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
    let lib = fs::canonicalize(&lib).expect("libtorch's lib directory exists");
    // For the build scripts of those who link programs.
    println!("cargo:lib={}", lib.display());
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{}", lib.display());
}
