//! Compiles the native shim and the simulated GPU, tells the linker where libtorch is, and hashes the sources that take figures.

#[path = "build/native.rs"]
mod native;

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The only version that the shim and tch are written for.
const TORCH_VERSION: &str = "2.11.0";

fn main() {
    println!("cargo:rerun-if-changed=experiments");
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed=peers");
    write_experiments();
    record_revision();
    let carries_libraries = env::var_os("CARGO_FEATURE_LIBRARIES").is_some();
    if carries_libraries {
        compile_native(env::var_os("CARGO_FEATURE_TORCH").is_some());
    }
    write_rehearsal(carries_libraries);
}

/// Without the feature `torch` only the libraries that a program carries, which is linked to none of libtorch's itself.
fn compile_native(with_torch: bool) {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let lib = match with_torch {
        true => PathBuf::from(env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where libtorch is")),
        false => PathBuf::from(env::var("LIBTORCH").expect(".cargo/config.toml says where libtorch is")).join("lib"),
    };
    let torch = lib.parent().expect("libtorch's lib directory has a parent").to_path_buf();
    let found = torch_version(&torch);
    assert!(
        found.split('+').next() == Some(TORCH_VERSION),
        "vramlab needs libtorch {TORCH_VERSION}, and {} holds {found}. Unset LIBTORCH and run scripts/setup to install the right one.",
        torch.display()
    );
    native::compile(&torch, &found, with_torch);
    if !with_torch {
        return;
    }
    println!("cargo:rustc-link-lib=stdc++");
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
    // As DT_RUNPATH, so that LD_LIBRARY_PATH can name another machine's libtorch.
    let lib = fs::canonicalize(&lib).expect("libtorch's lib directory exists");
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{}", lib.display());
}

/// Version of a libtorch directory: `version.py` in a wheel, `build-version` in an archive.
fn torch_version(torch: &Path) -> String {
    let python = fs::read_to_string(torch.join("version.py")).unwrap_or_default();
    let quoted =
        python.lines().find_map(|line| line.strip_prefix("__version__ = ")).map(|v| v.trim_matches(['\'', '"']).to_string());
    let plain = || fs::read_to_string(torch.join("build-version")).ok().map(|v| v.trim().to_string());
    quoted.or_else(plain).unwrap_or_else(|| "no version that can be told".to_string())
}

/// Writes what `rehearse` puts into a script's process, for it to include: its Python files, the sources for other versions of PyTorch, and
/// what is compiled already.
fn write_rehearsal(carries_libraries: bool) {
    let files = |folder: &str, root: &str, extensions: &[&str]| -> String {
        let mut found = Vec::new();
        collect(Path::new(folder), &mut found);
        found.retain(|path| path.extension().is_some_and(|e| extensions.iter().any(|wanted| e == *wanted)));
        found.sort();
        let line = |path: &PathBuf| {
            let full = fs::canonicalize(path).expect("a file that was found is there");
            let name = path.strip_prefix(root).expect("it is below its root");
            format!("    (\"{}\", include_str!(\"{}\")),\n", name.display(), full.display())
        };
        found.iter().map(line).collect()
    };
    let guarded = fs::canonicalize("src/native/guarded.h").expect("it is there");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let compiled = |name: &str| match carries_libraries {
        true => format!("include_bytes!(\"{}\")", out.join(format!("dry_{name}.so")).display()),
        false => "&[]".to_string(),
    };
    let small: String = native::SIMULATED
        .iter()
        .map(|(name, soname, files)| format!("    (\"{soname}\", &{files:?}, {}),\n", compiled(name)))
        .collect();
    let text = format!(
        "/// Sources of the libraries, by their paths below `src/native`.\nconst SOURCES: &[(&str, &str)] = &[\n{}    (\"guarded.h\", \
         include_str!(\"{}\")),\n];\n/// Python's half.\nconst PYTHON: &[(&str, &str)] = &[\n{}];\nconst SMALL: [(&str, \
         &[&str], &[u8]); {}] = [\n{}];\n/// For the version below.\nconst LIBRARY: &[u8] = {};\nconst TORCH_VERSION: &str = \
         \"{TORCH_VERSION}\";\n",
        files("src/native/dry", "src/native", &["cpp", "h"]),
        guarded.display(),
        files("src/rehearse/python", "src/rehearse/python", &["py"]),
        native::SIMULATED.len(),
        small,
        compiled("python"),
    );
    fs::write(out.join("rehearsal.rs"), text).expect("OUT_DIR can be written");
}

/// Writes the list of experiments, with the hash of what takes each one's figures, for `runner` to include.
fn write_experiments() {
    let mut common: Vec<PathBuf> = Vec::new();
    collect(Path::new("src"), &mut common);
    // What only reads figures may change without making them old.
    common.retain(|path| {
        let reads_only = [
            "src/rehearse",
            "src/report",
            "src/bin",
            "src/chart",
            "src/judge",
            "src/pairs.rs",
            "src/results/samples.rs",
            "src/units.rs",
            "src/stats.rs",
        ];
        !reads_only.iter().any(|prefix| path.starts_with(prefix))
    });
    common.push(PathBuf::from("Cargo.lock"));
    common.sort();
    // An experiment is a file or, where it asks several questions, a folder.
    let entries = fs::read_dir("experiments").expect("experiments is there").flatten();
    let mut experiments: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    experiments.sort();
    let shared = common.iter().fold(FNV_OFFSET, |hash, path| fnv(hash, path));
    let lines: String = experiments
        .iter()
        .filter_map(|path| {
            let name = path.file_stem()?.to_str()?;
            let reference = |name: &str| PathBuf::from(format!("peers/pytorch/{name}.py"));
            let mut own = Vec::new();
            collect(path, &mut own);
            // Without a PyTorch reference what references share takes no figure.
            if reference(name).exists() {
                own.extend([name, "lab", "meter", "exchange", "models"].map(reference));
                collect(&PathBuf::from(format!("peers/{name}")), &mut own);
            }
            own.sort();
            let hash = own.iter().fold(shared, |hash, path| fnv(hash, path));
            Some(format!("    (\"{name}\", \"{hash:016x}\"),\n"))
        })
        .collect();
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("experiments.rs");
    fs::write(out, format!("&[\n{lines}]")).expect("OUT_DIR can be written");
}

/// The files in a folder, or a file by itself.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    if dir.is_file() {
        files.push(dir.to_path_buf());
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => collect(&path, files),
            path => files.push(path),
        }
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a over a file's name and contents: stable across compilers, and no attacker is about.
fn fnv(hash: u64, path: &Path) -> u64 {
    let contents = fs::read(path).unwrap_or_default();
    let contents = String::from_utf8_lossy(&contents);
    // What tests an experiment takes no figure.
    let contents =
        if path.starts_with("experiments") { contents.split("\n#[cfg(test)]").next().unwrap_or_default() } else { &contents };
    fnv_bytes(fnv_bytes(hash, path.to_string_lossy().as_bytes()), contents.as_bytes())
}

fn fnv_bytes(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |h, byte| (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Git revision and whether the tree was dirty, as far as git can tell; recorded with results, never compared.
fn record_revision() {
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let revision = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_string());
    let sources = ["src", "experiments", "peers", "build", "build.rs", "Cargo.toml", "Cargo.lock"];
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
    // Each commit appends to this file. Naming one that is not there would run this script at every build.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
}
