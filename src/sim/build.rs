//! Carries the simulated GPU: its sources and, where there is a libtorch, its libraries.

use native_build::{Library, Libtorch, SIMULATED, SIMULATED_GPU, TORCH_VERSION};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// What is compiled for a version of PyTorch, as in src/rehearse/python/vramlab_rehearsal/building.py: name, sources, what it needs.
const IN_PYTHON: [(&str, &[&str], &[&str]); 2] = [
    ("python", &["kernels", "python"], &["-ltorch_cpu", "-lc10", "-lc10_cuda"]),
    ("replay", &["replay"], &["-lc10", "-lc10_cuda"]),
];

fn main() {
    native_build::enter_project();
    native_build::depends_on(&[SIMULATED_GPU]);
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    // Where there is none, or another version, `rehearse` compiles them on first use.
    let torch = env::var_os("LIBTORCH").and_then(|folder| Libtorch::find(Path::new(&folder)).ok());
    if let Some(torch) = &torch {
        let in_python = IN_PYTHON.map(|(name, folders, needed)| Library {
            name,
            from: folders.iter().map(|folder| Path::new(SIMULATED_GPU).join(folder)).collect(),
            exports: "vl_*",
            link: ["-Wl,-Bsymbolic"].iter().chain(needed).map(ToString::to_string).collect(),
            needs_cuda: true,
        });
        let libraries: Vec<Library> = native_build::simulated().chain(in_python).collect();
        native_build::compile(torch, &libraries, None);
    }
    let carried = |name: &str| match &torch {
        Some(_) => format!("include_bytes!(\"{}\")", out.join(format!("{name}.so")).display()),
        None => "&[]".to_string(),
    };
    let simulated: String =
        SIMULATED.iter().map(|(name, soname, files)| format!("    (\"{soname}\", &{files:?}, {}),\n", carried(name))).collect();
    let in_python: String = IN_PYTHON.iter().map(|(name, ..)| format!("(\"{name}\", {}), ", carried(name))).collect();
    let text = format!(
        "/// The C++, by its paths below `native/`.\npub const SOURCES: &[(&str, &str)] = &[\n{}];\n/// The libraries that need nothing of \
         PyTorch: the names that it opens them by, their sources, and what they are compiled to; empty without a libtorch.\npub const \
         LIBRARIES: [(&str, &[&str], &[u8]); {}] = [\n{simulated}];\n/// What is loaded into Python beside them, for the PyTorch of \
         [`TORCH_VERSION`]; empty without a libtorch.\npub const IN_PYTHON: [(&str, &[u8]); {}] = [{in_python}];\n/// The PyTorch that this program was built \
         with.\npub const TORCH_VERSION: &str = \"{TORCH_VERSION}\";\n",
        native_build::included(SIMULATED_GPU, SIMULATED_GPU, &["cpp", "h"]),
        SIMULATED.len(),
        IN_PYTHON.len(),
    );
    fs::write(out.join("libraries.rs"), text).expect("OUT_DIR can be written");
}
