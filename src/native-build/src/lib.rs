//! What the build scripts share: compiling our C++.
//!
//! Every file is compiled once for all crates, profiles and targets, on all cores, and again only when it, a header of ours, the compiler or
//! libtorch changed. Objects lie in `native/` of the target folder under a hash of what they were made from.
//!
//! Nearly all of the time goes into libtorch's headers, so those that most files include are precompiled, and nothing is optimised beyond
//! -O1: what these files do is to call libtorch.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::{env, fs};

/// The only version that the C++ and tch are written for.
pub const TORCH_VERSION: &str = "2.11.0";

/// Folder of the simulated GPU's C++.
pub const SIMULATED_GPU: &str = "src/sim/native";

/// A library that a program carries inside and opens at run time. It is `NAME.so` in `OUT_DIR`, and empty where libtorch has no CUDA and
/// the library needs it: the programs say so.
#[derive(Debug, Clone)]
pub struct Library<'a> {
    pub name: &'a str,
    /// Files, and folders of which each C++ file belongs to it. Libraries may share them.
    pub from: Vec<PathBuf>,
    /// What it exports, as the linker's pattern; everything else stays its own.
    pub exports: &'a str,
    pub link: Vec<String>,
    pub needs_cuda: bool,
}

/// The libraries that stand for a GPU's and need nothing of libtorch, for `rehearse` to compile where there is none: name, soname, sources
/// in the simulated GPU's folder. PyTorch opens them by these names.
pub const SIMULATED: [(&str, &str, &[&str]); 5] = [
    (
        "runtime",
        "libnvidia-ml.so.1",
        &[
            "runtime.cpp",
            "memory.cpp",
            "streams.cpp",
            "launches.cpp",
            "occupancy.cpp",
            "nvml.cpp",
            "cublas.cpp",
            "cudnn.cpp",
            "cufft.cpp",
            "cusparse.cpp",
            "rnn.cpp",
        ],
    ),
    ("driver", "libcuda.so.1", &["driver.cpp"]),
    ("nvrtc12", "libnvrtc.so.12", &["nvrtc.cpp"]),
    ("nvrtc13", "libnvrtc.so.13", &["nvrtc.cpp"]),
    // Preloaded into programs of all kinds, so it needs the C library alone.
    (
        "start",
        "libvramlab_start.so",
        &["start.cpp", "guard.cpp", "marks.cpp", "overlay.cpp", "folders.cpp", "confine.cpp", "others.cpp", "calls.cpp"],
    ),
];

/// Those of [`SIMULATED`], to be compiled.
pub fn simulated() -> impl Iterator<Item = Library<'static>> {
    SIMULATED.iter().map(|&(name, soname, sources)| Library {
        name,
        from: sources.iter().map(|source| Path::new(SIMULATED_GPU).join(source)).collect(),
        exports: "*",
        link: vec![format!("-Wl,-soname,{soname}"), "-Wl,--as-needed".to_string()],
        needs_cuda: true,
    })
}

/// A libtorch of [`TORCH_VERSION`].
#[derive(Debug, Clone)]
pub struct Libtorch {
    pub folder: PathBuf,
    version: String,
}

impl Libtorch {
    /// The libtorch in a folder.
    ///
    /// # Errors
    /// What it holds in place of the version that is wanted.
    pub fn find(folder: &Path) -> Result<Libtorch, String> {
        let version = torch_version(folder).unwrap_or_else(|| "no known version".to_string());
        match version.split('+').next() == Some(TORCH_VERSION) {
            true => Ok(Libtorch { folder: folder.to_path_buf(), version }),
            false => Err(version),
        }
    }
}

/// Version of a libtorch directory: `version.py` in a wheel, `build-version` in an archive.
pub fn torch_version(torch: &Path) -> Option<String> {
    let python = fs::read_to_string(torch.join("version.py")).unwrap_or_default();
    let quoted = python.lines().find_map(|line| line.strip_prefix("__version__ = "));
    let archive = || fs::read_to_string(torch.join("build-version")).ok();
    quoted.map(|version| version.trim_matches(['\'', '"']).to_string()).or_else(archive).map(|version| version.trim().to_string())
}

/// Makes the project's folder the current one, so that paths, which are part of hashes, are the same in each crate.
///
/// # Panics
/// The crate does not lie in `src/` of the project.
pub fn enter_project() {
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let project = folder.ancestors().nth(2).expect("a crate lies in src/");
    env::set_current_dir(project).expect("the project's folder is there");
    println!("cargo:rerun-if-changed={}", folder.join("build.rs").display());
}

/// Tells cargo to run the build script again when a file or folder of the project changes.
///
/// # Panics
/// One is not there: cargo would run the script at every build.
pub fn depends_on(paths: &[&str]) {
    let project = env::current_dir().expect("the project's folder is there");
    for path in paths.iter().map(|path| project.join(path)) {
        assert!(path.exists(), "{} is not there", path.display());
        println!("cargo:rerun-if-changed={}", path.display());
    }
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

/// Writes a list of files with their contents, as a constant's items: names are paths below `root`.
pub fn included(folder: &str, root: &str, extensions: &[&str]) -> String {
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
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a over a file's name and contents: stable across compilers, and no attacker is about.
fn fnv(hash: u64, path: &Path) -> u64 {
    fnv_bytes(fnv_bytes(hash, path.to_string_lossy().as_bytes()), &fs::read(path).unwrap_or_default())
}

fn fnv_bytes(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |h, byte| (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Declarations of CUDA's runtime, which libtorch's headers want and which need not be there.
const STAND_IN_HEADERS: &str = "src/sim/native/include";

/// The headers that are parsed once for all files that include ATen as a whole, or what lies under torch/. What only one file wants does not
/// belong here: each file that takes them instantiates their templates again (custom_function.h: half a second in each of 18).
const PRECOMPILED: &str = "#include <ATen/ATen.h>\n#include <torch/csrc/autograd/engine.h>\n#include <torch/library.h>\n";

/// Compiles a crate's libraries, and the C++ files that directly lie in `shim`, of which it makes an archive that is linked to the crate.
///
/// # Panics
/// With what the compiler said.
pub fn compile(torch: &Libtorch, libraries: &[Library], shim: Option<&str>) {
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let cache = target_folder(&out).join("native");
    fs::create_dir_all(&cache).expect("the target folder can be written");
    // Two build scripts or two cargos at once would compile everything twice.
    let lock = fs::File::create(cache.join("lock")).expect("the target folder can be written");
    lock.lock().expect("the target folder can be locked");

    let with_cuda = torch.folder.join("include/c10/cuda/impl/cuda_cmake_macros.h").exists();
    let compiler = Compiler::new(&torch.folder, &torch.version);
    let shim = shim.map(|folder| cpp_files(Path::new(folder), false)).unwrap_or_default();
    let mut sources = shim.clone();
    for path in libraries.iter().filter(|library| with_cuda || !library.needs_cuda).flat_map(|library| &library.from) {
        sources.extend(if path.is_dir() { cpp_files(path, true) } else { vec![path.clone()] });
    }
    sources.sort();
    sources.dedup();
    let units: Vec<Unit> = sources.into_iter().map(|source| Unit::new(source, &compiler, &cache)).collect();
    compile_missing(&units, &compiler, &cache);

    if !shim.is_empty() {
        let mut archive = cc::Build::new();
        archive.cpp(true).objects(units.iter().filter(|unit| shim.contains(&unit.source)).map(|unit| &unit.object));
        archive.compile("vramlab_native");
    }
    for library in libraries {
        let objects = units.iter().filter(|unit| library.from.iter().any(|part| unit.source.starts_with(part)));
        let objects: Vec<&Path> = objects.map(|unit| unit.object.as_path()).filter(|object| object.exists()).collect();
        let made = if objects.is_empty() { Vec::new() } else { link(library, &objects, &compiler, &torch.folder, &cache) };
        let file = out.join(format!("{}.so", library.name));
        if fs::read(&file).ok().as_ref() != Some(&made) {
            fs::write(&file, made).expect("OUT_DIR can be written");
        }
    }
}

/// Where cargo keeps what it builds for all profiles.
fn target_folder(out: &Path) -> &Path {
    // cargo marks a folder that it makes itself; in others it is the one above PROFILE/build/CRATE/out.
    let is_marked = |folder: &&Path| folder.join("CACHEDIR.TAG").exists();
    out.ancestors().find(is_marked).or_else(|| out.ancestors().nth(4)).unwrap_or(out)
}

fn cpp_files(folder: &Path, with_folders: bool) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(folder, &mut files);
    files.retain(|path| path.extension().is_some_and(|e| e == "cpp") && (with_folders || path.parent() == Some(folder)));
    files
}

struct Compiler {
    tool: cc::Tool,
    /// Of all that goes into every object.
    hash: u64,
}

impl Compiler {
    fn new(torch: &Path, version: &str) -> Compiler {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").opt_level(1).debug(false).pic(true);
        // As libtorch was compiled: its headers lay out other classes without it.
        build.define("NDEBUG", None);
        // libtorch's headers are not ours to mend.
        build.flag(format!("-isystem{}", torch.join("include").display()));
        build.flag(format!("-isystem{}", torch.join("include/torch/csrc/api/include").display()));
        let tool = build.get_compiler();
        let said = tool.to_command().arg("--version").output().expect("the C++ compiler starts").stdout;
        let flags = (tool.path(), tool.args());
        let known = format!("{flags:?} {version} {}", String::from_utf8_lossy(&said));
        Compiler { tool, hash: fnv_bytes(FNV_OFFSET, known.as_bytes()) }
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
        collect(Path::new(STAND_IN_HEADERS), &mut parts);
        parts[headers..].sort();
        let hash = parts.iter().fold(compiler.hash, |hash, path| fnv(hash, path));
        let name = source.file_stem().expect("a source has a name").to_string_lossy();
        let object = cache.join(format!("{name}-{hash:016x}.o"));
        Unit { wants_precompiled, source, object }
    }

    fn compile(&self, compiler: &Compiler, precompiled: Option<&Path>) {
        let mut command = compiler.tool.to_command();
        command.arg(format!("-I{STAND_IN_HEADERS}"));
        if let Some(header) = precompiled {
            command.arg("-include").arg(header);
        }
        command.arg("-c").arg(&self.source);
        let made = make(&mut command, &self.object);
        assert!(made, "{} does not compile (what the compiler says is above)", self.source.display());
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
        command.arg(format!("-I{STAND_IN_HEADERS}")).args(["-x", "c++-header"]).arg(header);
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
        command.args(["-shared", "-s"]).args(objects).arg(format!("-L{}", torch.join("lib").display())).args(&library.link);
        if library.exports != "*" {
            command.arg(format!("-Wl,--version-script={}", exports.display()));
        }
        assert!(make(&mut command, &file), "{}.so cannot be linked (what the linker says is above)", library.name);
    }
    fs::read(&file).expect("the target folder can be read")
}

/// Tells the linker where libtorch is, for the programs and tests of a crate that uses `torch`: as DT_RUNPATH, so that LD_LIBRARY_PATH can
/// name another machine's libtorch.
pub fn link_libtorch() {
    let lib = env::var("DEP_VRAMLAB_TORCH_LIB").expect("the crate depends on torch, which says where libtorch is");
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{lib}");
    // And not at each change of a source.
    println!("cargo:rerun-if-env-changed=LIBTORCH");
}
