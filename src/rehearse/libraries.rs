//! The libraries and the Python files that a rehearsal puts into a script's process, and the folder in the user's cache where they are kept.

use anyhow::{Context, Result, ensure};
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

include!(concat!(env!("OUT_DIR"), "/rehearsal.rs"));

/// Where everything is kept: `$VRAMLAB_CACHE`, or `vramlab` in `$XDG_CACHE_HOME` or `~/.cache`.
///
/// # Errors
/// None of them is set.
pub fn cache() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let folder = set("VRAMLAB_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("vramlab")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/vramlab")))
        .context("there is no cache folder: set VRAMLAB_CACHE to a folder that vramlab may write to")?;
    fs::create_dir_all(&folder)
        .with_context(|| format!("making {}; set VRAMLAB_CACHE to a folder that can be written to", folder.display()))?;
    fs::canonicalize(&folder).with_context(|| format!("{}", folder.display()))
}

/// Where a process under rehearsal finds what it needs.
#[derive(Debug, Clone)]
pub struct Libraries {
    /// The simulated runtime and driver, the Python files, and sources.
    pub folder: PathBuf,
    /// What is compiled for a version of PyTorch; there for the version that this program was built with.
    pub compiled: PathBuf,
}

/// Fills the folders on first use.
///
/// # Errors
/// The cache cannot be written; there is no compiler where this program carries no libraries.
pub fn libraries() -> Result<Libraries> {
    let (cache, sources) = (cache()?, hash(&SOURCES));
    let carried = format!("python-{TORCH_VERSION}-abi1.so");
    let compiled = once(&cache.join(format!("compiled-{sources:016x}")), |_| Ok(()))?;
    if !LIBRARY.is_empty() && !compiled.join(&carried).exists() {
        let made = compiled.join(format!("{carried}.{}", std::process::id()));
        fs::write(&made, LIBRARY)
            .and_then(|()| fs::rename(&made, compiled.join(&carried)))
            .with_context(|| format!("writing {}", made.display()))?;
    }
    let folder = once(&cache.join(format!("rehearsal-{:016x}", hash(&(SOURCES, PYTHON, SMALL)))), fill)?;
    Ok(Libraries { folder, compiled })
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A folder that is made beside its place and moved there: another rehearsal finds all or nothing.
fn once(folder: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    if !folder.exists() {
        let made = folder.with_extension(std::process::id().to_string());
        fs::create_dir_all(&made).with_context(|| format!("making {}", made.display()))?;
        fill(&made).inspect_err(|_| drop(fs::remove_dir_all(&made)))?;
        if fs::rename(&made, folder).is_err() {
            // Somebody was faster.
            fs::remove_dir_all(&made).ok();
            ensure!(folder.exists(), "{} cannot be made", folder.display());
        }
    }
    Ok(folder.to_path_buf())
}

fn fill(folder: &Path) -> Result<()> {
    let write = |name: &Path, contents: &[u8]| -> Result<()> {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, contents).with_context(|| format!("writing {}", path.display()))
    };
    for (name, text) in SOURCES {
        write(&Path::new("source").join(name), text.as_bytes())?;
    }
    for (name, text) in PYTHON {
        write(&Path::new("python").join(name), text.as_bytes())?;
    }
    for (name, sources, compiled) in SMALL {
        if compiled.is_empty() {
            compile(folder, name, sources)?;
        } else {
            write(Path::new(name), compiled)?;
        }
    }
    Ok(())
}

/// Compiles a library that needs nothing of PyTorch.
fn compile(folder: &Path, name: &str, sources: &[&str]) -> Result<()> {
    let dry = folder.join("source/dry");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_string());
    let mut words = compiler.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("c++"));
    command.args(words).args(["-std=c++17", "-O2", "-shared", "-fPIC", "-g0", "-s", "-w"]);
    command
        .arg(format!("-Wl,-soname,{name}"))
        .arg("-I")
        .arg(dry.join("include"))
        .args(sources.iter().map(|source| dry.join(source)));
    let done = command.arg("-o").arg(folder.join(name)).output().with_context(|| {
        format!("starting the C++ compiler {compiler}; install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)")
    })?;
    ensure!(
        done.status.success(),
        "{} does not compile with {compiler}: {}",
        sources[0],
        String::from_utf8_lossy(&done.stderr).trim()
    );
    Ok(())
}
