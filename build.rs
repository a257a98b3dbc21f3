//! Compiles the native shim and the dry device, tells the linker where libtorch is, and hashes the sources that take figures.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The only version that the shim and tch are written for.
const TORCH_VERSION: &str = "2.11.0";

fn main() {
    println!("cargo:rerun-if-changed=experiments");
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=peers");
    write_experiments();
    record_revision();
    if env::var_os("CARGO_FEATURE_TORCH").is_some() {
        compile_native();
    }
}

fn compile_native() {
    let lib = PathBuf::from(env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where libtorch is"));
    let torch = lib.parent().expect("libtorch's lib directory has a parent").to_path_buf();
    let found = torch_version(&torch);
    assert!(
        found.split('+').next() == Some(TORCH_VERSION),
        "vramlab needs libtorch {TORCH_VERSION}, and {} holds {found}. Unset LIBTORCH and run scripts/setup to install the right one.",
        torch.display()
    );
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    for source in native_sources() {
        build_shim(&source, &torch, &out);
    }
    println!("cargo:rustc-link-lib=stdc++");
    build_dry(&torch, &out);
    build_nccl(&torch, &out);
    build_meter(&torch, &out);
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
    // As DT_RUNPATH, so that LD_LIBRARY_PATH can name another machine's libtorch.
    let lib = fs::canonicalize(&lib).expect("libtorch's lib directory exists");
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{}", lib.display());
}

/// What something compiled was compiled from. This script runs at every change of a source and C++ takes its time, so it is compiled only
/// when it changed.
fn stamp(sources: &[&Path], torch: &Path) -> String {
    format!("{:016x} {}", sources.iter().fold(FNV_OFFSET, |hash, path| fnv(hash, path)), torch.display())
}

fn is_current(out: &Path, name: &str, sources: &[&Path], torch: &Path) -> bool {
    fs::read_to_string(out.join(format!("{name}.stamp"))).is_ok_and(|old| old == stamp(sources, torch))
}

fn mark_current(out: &Path, name: &str, sources: &[&Path], torch: &Path) {
    fs::write(out.join(format!("{name}.stamp")), stamp(sources, torch)).expect("OUT_DIR can be written");
}

fn compiler(torch: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .flag("-Wall")
        // libtorch's headers are not ours to mend.
        .flag(format!("-isystem{}", torch.join("include").display()))
        .flag(format!("-isystem{}", torch.join("include/torch/csrc/api/include").display()));
    build
}

/// The C++ halves of `src/native/`, each of which becomes a library of its own: one that changes leaves the others.
fn native_sources() -> Vec<PathBuf> {
    native_files("cpp")
}

fn native_files(extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir("src/native").expect("src/native is there").flatten();
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    files.sort();
    files
}

fn build_shim(source: &Path, torch: &Path, out: &Path) {
    let name = source.file_stem().expect("a source has a name").to_string_lossy().into_owned();
    let library = format!("vramlab_{name}");
    let headers = native_files("h");
    let sources: Vec<&Path> = std::iter::once(source).chain(headers.iter().map(PathBuf::as_path)).collect();
    if is_current(out, &name, &sources, torch) && out.join(format!("lib{library}.a")).exists() {
        println!("cargo:rustc-link-search=native={}", out.display());
        println!("cargo:rustc-link-lib=static={library}");
    } else {
        // Headers that libtorch's own want and that need not be there: declarations of CUDA's runtime, and of Gloo.
        let mut build = compiler(torch);
        build.include("src/native/dry/include").include("src/native/distributed/include");
        build.file(source).compile(&library);
        mark_current(out, &name, &sources, torch);
    }
}

/// Compiles the dry device's two libraries, which the programs carry inside and open in dry processes only.
fn build_dry(torch: &Path, out: &Path) {
    let folder = Path::new("src/native/dry");
    let headers = ["../guarded.h", "host_memory.h", "include/cuda.h", "include/cuda_runtime.h", "include/cuda_runtime_api.h"]
        .map(|name| folder.join(name));
    let with_cuda = torch.join("include/c10/cuda/impl/cuda_cmake_macros.h").exists();
    // c10 opens NVML by this name.
    for (name, link) in [("runtime", Some("-Wl,-soname,libnvidia-ml.so.1")), ("backend", None)] {
        let source = folder.join(format!("{name}.cpp"));
        let library = out.join(format!("dry_{name}.so"));
        let sources: Vec<&Path> = headers.iter().chain([&source]).map(PathBuf::as_path).collect();
        let stamp = format!("dry_{name}");
        if is_current(out, &stamp, &sources, torch) && library.exists() {
            continue;
        }
        if with_cuda {
            let mut command = compiler(torch).include(folder.join("include")).get_compiler().to_command();
            command.args(["-shared", "-fPIC", "-g0", "-s"]).args((name == "backend").then_some("-fvisibility=hidden"));
            let status = command.args(link).arg(&source).arg("-o").arg(&library).status().expect("the C++ compiler starts");
            assert!(status.success(), "{} does not compile", source.display());
        } else {
            // A libtorch without CUDA has no caching allocator to run; the programs say so.
            fs::write(&library, []).expect("OUT_DIR can be written");
        }
        mark_current(out, &stamp, &sources, torch);
    }
}

/// Compiles the library by which Python's CPU tensors are counted and recorded as ours are, and its settings read; the programs carry it
/// inside and name it to their twins in Python.
fn build_meter(torch: &Path, out: &Path) {
    let folder = Path::new("src/native");
    let files = ["meter.cpp", "allocations.cpp", "settings.cpp", "allocations.h", "guarded.h"].map(|name| folder.join(name));
    let sources: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let library = out.join("meter.so");
    if is_current(out, "meter.so", &sources, torch) && library.exists() {
        return;
    }
    let mut command = compiler(torch).include(folder.join("dry/include")).get_compiler().to_command();
    // Its own functions before those of a program that has them, too.
    command.args(["-shared", "-fPIC", "-g0", "-s", "-Wl,-Bsymbolic"]).args(&sources[..3]);
    command.arg(format!("-L{}", torch.join("lib").display())).args(["-ltorch_cpu", "-lc10", "-o"]).arg(&library);
    let status = command.status().expect("the C++ compiler starts");
    assert!(status.success(), "the library that counts for Python does not compile");
    mark_current(out, "meter.so", &sources, torch);
}

/// Compiles the library that makes NCCL process groups, which the programs carry inside and open where they use NCCL. Where libtorch has no
/// CUDA, or the headers of CUDA's runtime and of NCCL are not beside it as in PyTorch's wheel, it is empty and the programs say so.
fn build_nccl(torch: &Path, out: &Path) {
    let source = Path::new("src/native/distributed/nccl.cpp");
    // libtorch may be named by a link.
    let wheel = fs::canonicalize(torch).unwrap_or_else(|_| torch.to_path_buf());
    let nvidia = wheel.parent().map(|packages| packages.join("nvidia")).unwrap_or_default();
    let toolkit = env::var_os("CUDA_HOME").map_or_else(|| PathBuf::from("/usr/local/cuda"), PathBuf::from).join("include");
    let runtime = [nvidia.join("cu13/include"), toolkit.clone()].into_iter().find(|dir| dir.join("cuda_runtime_api.h").exists());
    let nccl = [nvidia.join("nccl/include"), toolkit].into_iter().find(|dir| dir.join("nccl.h").exists());
    let with_cuda = torch.join("include/c10/cuda/impl/cuda_cmake_macros.h").exists();
    let library = out.join("nccl.so");
    let sources = [source, Path::new("src/native/guarded.h")];
    // An empty one is tried again: headers may have come.
    if is_current(out, "nccl", &sources, torch) && fs::metadata(&library).is_ok_and(|library| library.len() > 0) {
        return;
    }
    if let (true, Some(runtime), Some(nccl)) = (with_cuda, runtime, nccl) {
        let mut command = compiler(torch).get_compiler().to_command();
        for dir in [&runtime, &nccl] {
            command.arg(format!("-isystem{}", dir.display()));
        }
        // The compiler's part of a toolkit, where there is none.
        command.args(["-idirafter", "src/native/distributed/include"]);
        command.args(["-shared", "-fPIC", "-g0", "-s", "-fvisibility=hidden"]).arg(source).arg("-o").arg(&library);
        if !command.status().expect("the C++ compiler starts").success() {
            println!("cargo:warning={} does not compile with the headers here, so the programs have no NCCL", source.display());
            fs::write(&library, []).expect("OUT_DIR can be written");
        }
    } else {
        fs::write(&library, []).expect("OUT_DIR can be written");
    }
    mark_current(out, "nccl", &sources, torch);
}

/// Version of a libtorch directory: `version.py` in a wheel, `build-version` in an archive.
fn torch_version(torch: &Path) -> String {
    let python = fs::read_to_string(torch.join("version.py")).unwrap_or_default();
    let quoted =
        python.lines().find_map(|line| line.strip_prefix("__version__ = ")).map(|v| v.trim_matches(['\'', '"']).to_string());
    let plain = || fs::read_to_string(torch.join("build-version")).ok().map(|v| v.trim().to_string());
    quoted.or_else(plain).unwrap_or_else(|| "no version that can be told".to_string())
}

/// Writes the list of experiments, with the hash of what takes each one's figures, for `runner` to include.
fn write_experiments() {
    let mut common: Vec<PathBuf> = Vec::new();
    collect(Path::new("src"), &mut common);
    // What only reads figures may change without making them old.
    common.retain(|path| {
        let reads_only = [
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
    let mut experiments: Vec<PathBuf> = Vec::new();
    collect(Path::new("experiments"), &mut experiments);
    experiments.sort();
    let shared = common.iter().fold(FNV_OFFSET, |hash, path| fnv(hash, path));
    let lines: String = experiments
        .iter()
        .filter_map(|path| {
            let name = path.file_stem()?.to_str()?;
            let twin = |name: &str| PathBuf::from(format!("peers/pytorch/{name}.py"));
            let own = [path.clone(), twin(name), twin("lab"), twin("meter"), twin("exchange"), twin("models")];
            // Without a twin in Python what twins share takes no figure.
            let own = if own[1].exists() { &own[..] } else { &own[..1] };
            let hash = own.iter().fold(shared, |hash, path| fnv(hash, path));
            Some(format!("    (\"{name}\", \"{hash:016x}\"),\n"))
        })
        .collect();
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("experiments.rs");
    fs::write(out, format!("&[\n{lines}]")).expect("OUT_DIR can be written");
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
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
    let contents = contents.as_bytes();
    let name = path.to_string_lossy().into_owned().into_bytes();
    name.iter().chain(contents).fold(hash, |h, byte| (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Git revision and whether the tree was dirty, as far as git can tell; recorded with results, never compared.
fn record_revision() {
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let revision = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_string());
    let dirty = git(&["status", "--porcelain", "--", "src", "experiments", "Cargo.toml", "Cargo.lock", "build.rs"])
        .is_some_and(|s| !s.is_empty());
    println!("cargo:rustc-env=VRAMLAB_REVISION={revision}");
    println!("cargo:rustc-env=VRAMLAB_DIRTY={dirty}");
    // Each commit appends to this file. Naming one that is not there would run this script at every build.
    if Path::new(".git/logs/HEAD").exists() {
        println!("cargo:rerun-if-changed=.git/logs/HEAD");
    }
}
