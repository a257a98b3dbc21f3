//! Compiles the C++ of `src/native/`: every file once for all profiles and targets, on all cores, and again only when it, a header of ours,
//! the compiler or libtorch changed. Objects lie in `native/` of the target folder under a hash of what they were made from.
//!
//! Nearly all of the time goes into libtorch's headers, so those that most files include are precompiled, and nothing is optimised beyond
//! -O1: what these files do is to call libtorch.

use super::{FNV_OFFSET, collect, fnv, fnv_bytes};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::{env, fs};

/// What is linked into the programs: the C++ that lies directly in this folder.
const SHIM: &str = "src/native";

/// A library that the programs carry inside and open at run time. It is `NAME.so` in `OUT_DIR`, and empty where libtorch has no CUDA and
/// the library needs it: the programs say so.
struct Library {
    name: &'static str,
    /// Files, and folders of which each C++ file belongs to it, below `src/native/`. Libraries may share them.
    from: &'static [&'static str],
    /// What it exports, as the linker's pattern; everything else stays its own.
    exports: &'static str,
    link: &'static [&'static str],
    needs_cuda: bool,
}

/// Of those, the ones that stand for a GPU's and need nothing of libtorch, for `rehearse` to compile where there is none: name, soname,
/// sources below `src/native/dry/`.
pub const SIMULATED: [(&str, &str, &[&str]); 5] = [
    (
        "runtime",
        "libnvidia-ml.so.1",
        &["runtime.cpp", "nvml.cpp", "cublas.cpp", "cudnn.cpp", "cufft.cpp", "cusparse.cpp", "rnn.cpp"],
    ),
    ("driver", "libcuda.so.1", &["driver.cpp"]),
    ("nvrtc12", "libnvrtc.so.12", &["nvrtc.cpp"]),
    ("nvrtc13", "libnvrtc.so.13", &["nvrtc.cpp"]),
    ("start", "libvramlab_start.so", &["start.cpp"]),
];

const LIBRARIES: &[Library] = &[
    // c10 opens NVML by this name.
    Library {
        name: "dry_runtime",
        from: &[
            "dry/runtime.cpp",
            "dry/nvml.cpp",
            "dry/cublas.cpp",
            "dry/cudnn.cpp",
            "dry/cufft.cpp",
            "dry/cusparse.cpp",
            "dry/rnn.cpp",
        ],
        exports: "*",
        link: &["-Wl,-soname,libnvidia-ml.so.1"],
        needs_cuda: true,
    },
    // libtorch_cuda opens the driver by this name.
    Library { name: "dry_driver", from: &["dry/driver.cpp"], exports: "*", link: &["-Wl,-soname,libcuda.so.1"], needs_cuda: true },
    // PyTorch opens the compiler for kernels by the name of its CUDA's version.
    Library {
        name: "dry_nvrtc12",
        from: &["dry/nvrtc.cpp"],
        exports: "*",
        link: &["-Wl,-soname,libnvrtc.so.12"],
        needs_cuda: true,
    },
    Library {
        name: "dry_nvrtc13",
        from: &["dry/nvrtc.cpp"],
        exports: "*",
        link: &["-Wl,-soname,libnvrtc.so.13"],
        needs_cuda: true,
    },
    // Preloaded into programs of all kinds, so it needs the C library alone.
    Library {
        name: "dry_start",
        from: &["dry/start.cpp"],
        exports: "*",
        link: &["-Wl,-soname,libvramlab_start.so", "-Wl,--as-needed"],
        needs_cuda: true,
    },
    Library {
        name: "dry_python",
        from: &["dry/kernels", "dry/python"],
        exports: "vl_*",
        link: &["-Wl,-Bsymbolic", "-ltorch_cpu", "-lc10", "-lc10_cuda"],
        needs_cuda: true,
    },
    Library { name: "dry_backend", from: &["dry/host.cpp", "dry/kernels"], exports: "vramlab_*", link: &[], needs_cuda: true },
    // By it Python's CPU tensors are counted and recorded as ours are, and its settings read. Its own functions come before those of a
    // program that has them, too.
    Library {
        name: "meter",
        from: &["meter.cpp", "allocations.cpp", "settings.cpp"],
        exports: "vl_*",
        link: &["-Wl,-Bsymbolic", "-ltorch_cpu", "-lc10"],
        needs_cuda: false,
    },
    Library { name: "nccl", from: &[NCCL], exports: "vramlab_*", link: &[], needs_cuda: true },
];

/// Makes NCCL process groups. It takes the real headers of CUDA's runtime and of NCCL, and is left out where there are none.
const NCCL: &str = "distributed/nccl.cpp";

/// Declarations of CUDA's runtime and of Gloo, which libtorch's headers want and which need not be there.
const STAND_INS: [&str; 2] = ["src/native/dry/include", "src/native/distributed/include"];

/// The headers that are parsed once for all files that include ATen as a whole, or what lies under torch/. What only one file wants does not
/// belong here: each file that takes them instantiates their templates again (custom_function.h: half a second in each of 18).
const PRECOMPILED: &str = "#include <ATen/ATen.h>\n#include <torch/csrc/autograd/engine.h>\n#include <torch/library.h>\n";

/// Whether `rehearse` carries it, which needs no libtorch of its own.
fn is_rehearsals(library: &Library) -> bool {
    library.name == "dry_python" || SIMULATED.iter().any(|(name, ..)| library.name.strip_prefix("dry_") == Some(name))
}

/// Compiles everything and tells cargo what to link; without libtorch in the program only what rehearsals need.
pub fn compile(torch: &Path, version: &str, with_torch: bool) {
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let cache = target_folder(&out).join("native");
    fs::create_dir_all(&cache).expect("the target folder can be written");
    // Two cargos at once, an editor's and a person's, would compile everything twice.
    let lock = fs::File::create(cache.join("lock")).expect("the target folder can be written");
    lock.lock().expect("the target folder can be locked");

    let with_cuda = torch.join("include/c10/cuda/impl/cuda_cmake_macros.h").exists();
    let nccl = if with_cuda { real_headers(torch) } else { None };
    let compiler = Compiler::new(torch, version, nccl);
    let native = |name: &str| Path::new("src/native").join(name);
    let shim = if with_torch { cpp_files(Path::new(SHIM), false) } else { Vec::new() };
    let wanted = || LIBRARIES.iter().filter(|library| with_torch || is_rehearsals(library));
    let libraries = wanted().filter(|library| with_cuda || !library.needs_cuda);
    let mut sources = shim.clone();
    for name in libraries.flat_map(|library| library.from) {
        let folder = native(name).is_dir();
        sources.extend(if folder { cpp_files(&native(name), true) } else { vec![native(name)] });
    }
    sources.retain(|source| *source != native(NCCL) || compiler.nccl.is_some());
    sources.sort();
    sources.dedup();
    let units: Vec<Unit> = sources.into_iter().map(|source| Unit::new(source, &compiler, &cache)).collect();
    compile_missing(&units, &compiler, &cache);

    if with_torch {
        let mut archive = cc::Build::new();
        archive.cpp(true).objects(units.iter().filter(|unit| shim.contains(&unit.source)).map(|unit| &unit.object));
        archive.compile("vramlab_native");
    }
    for library in wanted() {
        let parts: Vec<PathBuf> = library.from.iter().map(|name| native(name)).collect();
        let objects = units.iter().filter(|unit| parts.iter().any(|part| unit.source.starts_with(part)));
        let objects: Vec<&Path> = objects.map(|unit| unit.object.as_path()).filter(|object| object.exists()).collect();
        let made = match objects.is_empty() {
            true => Vec::new(),
            false => link(library, &objects, &compiler, torch, &cache),
        };
        let file = out.join(format!("{}.so", library.name));
        if fs::read(&file).ok().as_ref() != Some(&made) {
            fs::write(&file, made).expect("OUT_DIR can be written");
        }
    }
}

/// Where cargo keeps what it builds for all profiles.
fn target_folder(out: &Path) -> &Path {
    out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists()).unwrap_or(out)
}

fn cpp_files(folder: &Path, with_folders: bool) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(folder, &mut files);
    files.retain(|path| path.extension().is_some_and(|e| e == "cpp") && (with_folders || path.parent() == Some(folder)));
    files
}

struct Compiler {
    tool: cc::Tool,
    /// Flags for the folders of the real headers of CUDA's runtime and NCCL; none where there are none.
    nccl: Option<Vec<String>>,
    /// Of all that goes into every object.
    hash: u64,
}

impl Compiler {
    fn new(torch: &Path, version: &str, nccl: Option<Vec<String>>) -> Compiler {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").opt_level(1).debug(false).pic(true);
        // libtorch's headers are not ours to mend.
        build.flag(format!("-isystem{}", torch.join("include").display()));
        build.flag(format!("-isystem{}", torch.join("include/torch/csrc/api/include").display()));
        let tool = build.get_compiler();
        let said = tool.to_command().arg("--version").output().expect("the C++ compiler starts").stdout;
        let flags = (tool.path(), tool.args(), &nccl);
        let known = format!("{flags:?} {version} {}", String::from_utf8_lossy(&said));
        Compiler { tool, nccl, hash: fnv_bytes(FNV_OFFSET, known.as_bytes()) }
    }
}

/// A source and the object that comes of it.
struct Unit {
    source: PathBuf,
    object: PathBuf,
    wants_precompiled: bool,
}

impl Unit {
    fn new(source: PathBuf, compiler: &Compiler, cache: &Path) -> Unit {
        let mut parts = Vec::new();
        with_own_headers(&source, &mut parts);
        let headers = parts.len();
        // A header of ours may be what includes libtorch's.
        let wants_precompiled = parts.iter().any(|path| {
            let text = fs::read_to_string(path).unwrap_or_default();
            ["#include <ATen/ATen.h>", "#include <torch/"].iter().any(|line| text.contains(line))
        });
        STAND_INS.iter().for_each(|folder| collect(Path::new(folder), &mut parts));
        parts[headers..].sort();
        let hash = parts.iter().fold(compiler.hash, |hash, path| fnv(hash, path));
        let name = source.file_stem().expect("a source has a name").to_string_lossy();
        let object = cache.join(format!("{name}-{hash:016x}.o"));
        Unit { wants_precompiled: wants_precompiled && !source.ends_with(NCCL), source, object }
    }

    /// Whether it compiled; one that must is an error.
    fn compile(&self, compiler: &Compiler, precompiled: Option<&Path>) {
        let mut command = compiler.tool.to_command();
        match &compiler.nccl {
            Some(flags) if self.source.ends_with(NCCL) => drop(command.args(flags)),
            _ => drop(command.args(STAND_INS.map(|folder| format!("-I{folder}")))),
        }
        if let Some(header) = precompiled {
            command.arg("-include").arg(header);
        }
        command.arg("-c").arg(&self.source);
        if !make(&mut command, &self.object) {
            assert!(self.source.ends_with(NCCL), "{} does not compile (what the compiler says is above)", self.source.display());
            println!(
                "cargo:warning={} does not compile with the headers here, so the programs have no NCCL",
                self.source.display()
            );
        }
    }
}

/// A source and the headers of ours that it includes, which say `#include "..."`, and that those include.
fn with_own_headers(path: &Path, found: &mut Vec<PathBuf>) {
    let Ok(path) = path.canonicalize() else { return };
    let path = env::current_dir()
        .ok()
        .and_then(|here| Some(path.strip_prefix(here.canonicalize().ok()?).ok()?.to_path_buf()))
        .unwrap_or(path);
    if found.contains(&path) {
        return;
    }
    let text = fs::read_to_string(&path).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.trim_start().strip_prefix("#include \"")?.split('"').next());
    let headers: Vec<PathBuf> = names.map(|name| path.parent().unwrap_or(Path::new(".")).join(name)).collect();
    found.push(path);
    headers.iter().for_each(|header| with_own_headers(header, found));
}

/// Has the compiler write a file, which is in its place only when it is whole.
fn make(command: &mut Command, file: &Path) -> bool {
    let aside = file.with_extension("part");
    let done = command.arg("-o").arg(&aside).status().expect("the C++ compiler starts").success();
    if done {
        fs::rename(&aside, file).expect("the target folder can be written");
    }
    done
}

/// Compiles what is not there yet, as many files at a time as cargo allows jobs.
fn compile_missing(units: &[Unit], compiler: &Compiler, cache: &Path) {
    let mut missing: Vec<&Unit> = units.iter().filter(|unit| !unit.object.exists()).collect();
    // Those that need not wait for the precompiled headers first, and large ones before small ones.
    missing
        .sort_by_key(|unit| (unit.wants_precompiled, std::cmp::Reverse(fs::metadata(&unit.source).map_or(0, |file| file.len()))));
    let header = cache.join(format!("torch-{:016x}.h", fnv_bytes(compiler.hash, PRECOMPILED.as_bytes())));
    let is_worth_it = missing.iter().filter(|unit| unit.wants_precompiled).count() > 2;
    let precompiled = OnceLock::new();
    let precompile = || precompiled.get_or_init(|| precompile(&header, compiler, cache, is_worth_it));
    let waiting = Mutex::new(missing.into_iter().collect::<VecDeque<_>>());
    let next = || waiting.lock().ok().and_then(|mut waiting| waiting.pop_front());
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs)
            .map(|worker| {
                scope.spawn(move || {
                    if worker == 0 && is_worth_it {
                        precompile();
                    }
                    while let Some(unit) = next() {
                        let header = if unit.wants_precompiled { precompile().as_deref() } else { None };
                        unit.compile(compiler, header);
                    }
                })
            })
            .collect();
        // Here, and not at the end of the scope, which would hide what the compiler said behind its own words.
        workers.into_iter().for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
}

/// The precompiled headers, made if they are not there and enough files want them. Only the last are kept: they are large.
fn precompile(header: &Path, compiler: &Compiler, cache: &Path, is_worth_it: bool) -> Option<PathBuf> {
    let precompiled = header.with_extension("h.gch");
    if !precompiled.exists() {
        if !is_worth_it {
            return None;
        }
        for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|e| e == "gch") {
                // It only takes room.
                let _ = fs::remove_file(entry.path());
            }
        }
        fs::write(header, PRECOMPILED).expect("the target folder can be written");
        let mut command = compiler.tool.to_command();
        command.args(STAND_INS.map(|folder| format!("-I{folder}"))).args(["-x", "c++-header"]).arg(header);
        assert!(make(&mut command, &precompiled), "libtorch's headers do not compile (what the compiler says is above)");
    }
    Some(header.to_path_buf())
}

fn link(library: &Library, objects: &[&Path], compiler: &Compiler, torch: &Path, cache: &Path) -> Vec<u8> {
    let known = format!("{} {objects:?} {} {:?}", library.name, library.exports, library.link);
    let file = cache.join(format!("{}-{:016x}.so", library.name, fnv_bytes(compiler.hash, known.as_bytes())));
    if !file.exists() {
        let exports = cache.join(format!("{}.exports", library.name));
        fs::write(&exports, format!("{{ global: {}; local: *; }};\n", library.exports)).expect("the target folder can be written");
        let mut command = compiler.tool.to_command();
        command.args(["-shared", "-s"]).args(objects).arg(format!("-L{}", torch.join("lib").display())).args(library.link);
        if library.exports != "*" {
            command.arg(format!("-Wl,--version-script={}", exports.display()));
        }
        assert!(make(&mut command, &file), "{}.so cannot be linked (what the linker says is above)", library.name);
    }
    fs::read(&file).expect("the target folder can be read")
}

/// Flags for the headers of CUDA's runtime and of NCCL: beside libtorch as in PyTorch's wheel, or a toolkit's.
fn real_headers(torch: &Path) -> Option<Vec<String>> {
    // libtorch may be named by a link.
    let wheel = fs::canonicalize(torch).unwrap_or_else(|_| torch.to_path_buf());
    let nvidia = wheel.parent().map(|packages| packages.join("nvidia")).unwrap_or_default();
    let toolkit = env::var_os("CUDA_HOME").map_or_else(|| PathBuf::from("/usr/local/cuda"), PathBuf::from).join("include");
    let runtime = [nvidia.join("cu13/include"), toolkit.clone()].into_iter().find(|dir| dir.join("cuda_runtime_api.h").exists())?;
    let nccl = [nvidia.join("nccl/include"), toolkit].into_iter().find(|dir| dir.join("nccl.h").exists())?;
    let mut flags: Vec<String> = [runtime, nccl].iter().map(|dir| format!("-isystem{}", dir.display())).collect();
    // The compiler's part of a toolkit, where there is none.
    flags.extend(["-idirafter", "src/native/distributed/include"].map(str::to_string));
    Some(flags)
}
