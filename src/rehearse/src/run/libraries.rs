//! The libraries and the Python files that a rehearsal puts into a script's process, and the folder in the user's cache where they are kept.

use crate::capture::session::remedy;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::StatVfsMountFlags;
use sha2::{Digest, Sha256};
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, DirBuilder};
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use sim::{IN_PYTHON, LIBRARIES, SOURCES, TORCH_VERSION};

include!(concat!(env!("OUT_DIR"), "/python.rs"));

/// What is preloaded into every process of a rehearsal.
pub const PRELOADED: &str = "libvramlab_start.so";

/// Where everything is kept: `$VRAMLAB_CACHE`, or `vramlab` in `$XDG_CACHE_HOME` or `~/.cache`.
///
/// # Errors
/// None of them is set; a rehearsal's libraries could not be loaded from there, or everybody could change them.
pub fn cache() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let folder = set("VRAMLAB_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("vramlab")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/vramlab")))
        .context("there is no cache folder: set VRAMLAB_CACHE to a folder that vramlab may write to")?;
    let name = folder.display();
    make_folder(&folder).with_context(|| format!("making {name}; set VRAMLAB_CACHE to a folder that can be written to"))?;
    let folder = fs::canonicalize(&folder).with_context(|| format!("{name}"))?;
    let name = folder.display();
    // What separates folders where programs look for libraries.
    ensure!(
        !folder.to_string_lossy().contains([':', ';', '$']),
        "the cache {name}: no library can be loaded from a folder with : ; or $ in its name; set VRAMLAB_CACHE to another"
    );
    let mount = rustix::fs::statvfs(&folder).with_context(|| format!("asking about the disk of {name}"))?;
    ensure!(
        !mount.f_flag.contains(StatVfsMountFlags::NOEXEC),
        "the cache {name} is on a disk that is mounted noexec, so no library can be loaded from it; set VRAMLAB_CACHE to a folder elsewhere"
    );
    is_ours(&folder)?;
    Ok(folder)
}

/// A folder that others can read, whatever the user's umask lets groups write to.
fn make_folder(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(folder)
}

/// What is loaded from a folder runs with the user's rights, so nobody else but root may write to it.
fn is_ours(folder: &Path) -> Result<()> {
    let about = fs::metadata(folder).with_context(|| format!("{}", folder.display()))?;
    let Some(who) = others_who_write(about.uid(), about.gid(), about.mode(), rustix::process::geteuid().as_raw()) else {
        return Ok(());
    };
    let name = folder.display();
    let mend = if about.uid() == rustix::process::geteuid().as_raw() { format!("`chmod go-w {name}`, or ") } else { String::new() };
    bail!("the cache {name} {who}, so what is in it is not safe to run: {mend}set VRAMLAB_CACHE to a folder of your own");
}

/// Who but `user` and root can put files into a folder; none where nobody can.
fn others_who_write(owner: u32, group: u32, mode: u32, user: u32) -> Option<String> {
    const STICKY: u32 = 0o1000;
    // In a sticky folder, as /tmp is, nobody replaces what others made, and each folder in it is looked at by itself.
    let by = |bits| mode & bits != 0 && mode & STICKY == 0;
    match () {
        () if owner != user && owner != 0 => Some(format!("belongs to another user (uid {owner})")),
        () if by(0o002) => Some("can be written to by everybody".to_string()),
        // A group of the owner's number has the owner alone, as Debian's and Fedora's users have it.
        () if by(0o020) && group != owner => Some(format!("can be written to by a group (gid {group})")),
        () => None,
    }
}

/// Where a process under rehearsal finds what it needs.
#[derive(Debug, Clone)]
pub struct Libraries {
    /// The simulated runtime and driver, the Python files, and sources.
    pub folder: PathBuf,
    /// What is compiled for a version of PyTorch; there for the version that this program was built with.
    pub compiled: PathBuf,
    /// The same for further versions, where a wheel brings them: beside the program.
    pub carried: PathBuf,
    /// What `torch.compile` makes of scripts, which later rehearsals take from there.
    pub graphs: PathBuf,
    /// What Hugging Face's hub has of models, with holes for their weights.
    pub hub: PathBuf,
}

impl Libraries {
    /// A folder with the GPU's driver alone, by all of its names.
    pub fn drivers(&self) -> PathBuf {
        self.folder.join("drivers")
    }
}

/// Fills the folders on first use, and mends what is no longer what it was.
pub fn libraries() -> Result<Libraries> {
    let cache = cache()?;
    let name = format!("compiled-{:016x}", hash(&SOURCES));
    let compiled = cache.join(&name);
    let carried = std::env::current_exe().context("looking for this program")?.with_file_name(name);
    let folder = cache.join(format!("rehearsal-{:016x}", hash(&(SOURCES, PYTHON, LIBRARIES))));
    for (name, library) in IN_PYTHON.into_iter().filter(|(_, library)| !library.is_empty()) {
        put(&compiled.join(format!("{name}-{TORCH_VERSION}-abi1.so")), library)?;
    }
    for (name, text) in SOURCES {
        put(&folder.join("source").join(name), text.as_bytes())?;
    }
    for (name, text) in PYTHON {
        put(&folder.join("python").join(name), text.as_bytes())?;
    }
    for (name, sources, library) in LIBRARIES {
        if library.is_empty() {
            compile(&folder, name, sources)?;
        } else {
            put(&folder.join(name), library)?;
        }
    }
    for driver in ["libcuda.so", "libnvidia-ml.so"] {
        for name in [driver, &format!("{driver}.1")] {
            put_link(&folder.join("drivers").join(name), &Path::new("..").join(format!("{driver}.1")))?;
        }
    }
    let (graphs, hub) = (cache.join("graphs"), cache.join("hub"));
    for made in [&compiled, &graphs, &hub] {
        make_folder(made).with_context(|| format!("making {}", made.display()))?;
    }
    [&folder, &compiled, &graphs, &hub].into_iter().try_for_each(|folder| is_ours(folder))?;
    Ok(Libraries { folder, compiled, carried, graphs, hub })
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A file with these contents, made beside its place and moved there: others find all of it or nothing.
fn put(path: &Path, contents: &[u8]) -> Result<()> {
    // A file that a machine lost power over can be cut, or all zeros.
    if fs::read(path).is_ok_and(|found| found == contents) {
        return Ok(());
    }
    made_aside(path, |folder| {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(contents)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
        file.persist(path)?;
        Ok(())
    })
}

/// In the path's folder, which is made where it is missing.
fn made_aside(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    make_folder(folder).and_then(|()| make(folder)).map_err(|error| not_written(error, path))
}

/// Says what helps where the cache cannot be written.
pub fn not_written(error: std::io::Error, path: &Path) -> anyhow::Error {
    let remedy = remedy(&error);
    anyhow::Error::new(error).context(format!("writing {}; {remedy}", path.display()))
}

fn put_link(path: &Path, target: &Path) -> Result<()> {
    if fs::read_link(path).is_ok_and(|found| found == target) {
        return Ok(());
    }
    made_aside(path, |folder| {
        let made = tempfile::tempdir_in(folder)?;
        symlink(target, made.path().join("link"))?;
        fs::rename(made.path().join("link"), path)
    })
}

/// Compiles a library that needs nothing of PyTorch, unless it is there as it was compiled.
fn compile(folder: &Path, name: &str, sources: &[&str]) -> Result<()> {
    let (library, known) = (folder.join(name), folder.join(format!("{name}.sha256")));
    let sum = |library: &[u8]| format!("{:x}", Sha256::digest(library));
    if fs::read(&library).is_ok_and(|library| fs::read_to_string(&known).is_ok_and(|known| known == sum(&library))) {
        return Ok(());
    }
    let source = folder.join("source");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_string());
    let made = tempfile::tempdir_in(folder).with_context(|| format!("writing to {}", folder.display()))?;
    let mut words = compiler.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("c++"));
    command.args(words).args(["-std=c++17", "-O2", "-shared", "-fPIC", "-g0", "-s", "-w", "-Wl,--as-needed"]);
    command
        .arg(format!("-Wl,-soname,{name}"))
        .arg("-I")
        .arg(source.join("include"))
        .args(sources.iter().map(|name| source.join(name)));
    let done = command.arg("-o").arg(made.path().join(name)).output().with_context(|| {
        format!("starting the C++ compiler {compiler}; install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)")
    })?;
    if !done.status.success() {
        bail!("{} does not compile with {compiler}: {}", sources[0], String::from_utf8_lossy(&done.stderr).trim());
    }
    let contents = fs::read(made.path().join(name)).with_context(|| format!("reading what {compiler} made of {name}"))?;
    put(&library, &contents)?;
    put(&known, sum(&contents).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::others_who_write;

    #[test]
    fn a_cache_is_trusted_where_nobody_but_its_user_and_root_can_write() {
        let refused = |owner, group, mode| others_who_write(owner, group, mode, 1000);
        for (owner, group, mode) in [(1000, 100, 0o755), (1000, 1000, 0o775), (0, 0, 0o755), (0, 0, 0o1777), (1000, 100, 0o2755)] {
            assert_eq!(refused(owner, group, mode), None, "{owner} {group} {mode:o}");
        }
        assert!(refused(1001, 1001, 0o755).unwrap().contains("another user (uid 1001)"));
        assert!(refused(1000, 1000, 0o777).unwrap().contains("everybody"));
        assert!(refused(0, 0, 0o777).unwrap().contains("everybody"));
        assert!(refused(1000, 100, 0o2775).unwrap().contains("a group (gid 100)"));
    }
}
