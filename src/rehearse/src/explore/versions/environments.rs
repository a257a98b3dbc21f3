//! Virtual environments with other versions of packages, kept in the cache: each has what differs, and sees the packages of the script's own
//! Python behind that.

use super::followed;
use super::ranges::Pin;
use crate::run::executor::{WAS_INTERRUPTED, last_line, was_interrupted};
use crate::run::libraries::{cache, libraries, not_written};
use anyhow::{Context, Result, bail, ensure};
use base::units::Bytes;
use rustix::fs::FlockOperation;
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

/// The Python that a command names, and what follows it there.
#[derive(Debug, Clone)]
pub struct Base {
    pub python: PathBuf,
    pub words: Vec<OsString>,
    /// All packages that it sees, with their versions: what an environment beside it was resolved for.
    packages: String,
}

/// The file that a program is started from.
pub(in crate::explore) fn in_path(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return path.is_file().then(|| path.to_owned());
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|file| file.is_file())
}

impl Base {
    /// Of `python train.py`, or of a program that is itself a file of Python, as `accelerate launch train.py`.
    ///
    /// # Errors
    /// The command is neither.
    pub fn of(command: &[OsString]) -> Result<Base> {
        let (name, rest) = command.split_first().context("there is no command; write it after --, as in: -- python train.py")?;
        let shown = name.display();
        let file = in_path(name).with_context(|| format!("there is no program '{shown}'; is it installed and spelled right?"))?;
        let is_python = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"));
        let (interpreter, words) = if is_python(&file) {
            (file, rest.to_vec())
        } else {
            let mut first = String::new();
            let program = File::open(&file).with_context(|| format!("reading {}", file.display()))?;
            BufReader::new(program.take(400)).read_line(&mut first).ok();
            let words: Vec<&str> = first.strip_prefix("#!").unwrap_or_default().split_whitespace().collect();
            let interpreter = words.iter().map(Path::new).find(|word| is_python(word));
            let interpreter = interpreter.and_then(|path| in_path(path.as_os_str())).with_context(|| {
                format!("versions are of Python's packages, and '{shown}' is no Python: write the command as in -- python train.py")
            })?;
            (interpreter, [&[file.into_os_string()], rest].concat())
        };
        let asked = Command::new(&interpreter).args(["-c", ASK]).stderr(Stdio::inherit()).output();
        let asked = asked.with_context(|| format!("starting {}", interpreter.display()))?;
        let said = String::from_utf8_lossy(&asked.stdout);
        let (python, packages) = said.split_once('\n').unwrap_or_default();
        ensure!(asked.status.success() && !python.is_empty(), "{} does not start", interpreter.display());
        Ok(Base { python: python.into(), words, packages: packages.to_string() })
    }

    /// The releases of a package that its index has for this Python.
    ///
    /// # Errors
    /// There is no such package, or no way to the index.
    pub fn released(&self, package: &str) -> Result<Vec<String>> {
        let package = package.split('[').next().unwrap_or(package);
        let ask = |mut pip: Command| {
            let said = pip.args(["-m", "pip", "--disable-pip-version-check", "index", "versions", package]).output();
            let said = said.context("starting pip")?;
            let listed = String::from_utf8_lossy(&said.stdout).lines().find_map(|line| {
                let versions = line.strip_prefix("Available versions:")?;
                Some(versions.split(',').map(|version| version.trim().to_string()).collect::<Vec<String>>())
            });
            anyhow::Ok((listed, String::from_utf8_lossy(&said.stderr).into_owned()))
        };
        let (listed, mut said) = ask(Command::new(&self.python))?;
        if let Some(listed) = listed {
            return Ok(listed);
        }
        // The Python itself may have no pip, as those of uv.
        if said.contains("No module named pip") {
            let mut pip = Command::new(uv(&self.python)?);
            pip.args(["run", "--no-project", "--quiet", "--with", "pip", "--python"]).arg(&self.python).arg("python");
            match ask(pip)? {
                (Some(listed), _) => return Ok(listed),
                (None, why) => said = why,
            }
        }
        let why = said.lines().rfind(|line| line.to_lowercase().contains("error")).unwrap_or("the index says nothing");
        bail!("which versions of {package} there are cannot be found: {why}; list them, as in 4.50.0,4.51.3")
    }
}

/// Where a Python is, and what it sees.
const ASK: &str = "import sys; from importlib import metadata; print(sys.executable); \
    print(*sorted({f\"{d.metadata['Name']}=={d.version}\" for d in metadata.distributions()}))";

/// uv, which resolves and installs: the user's own, else one that pip puts into the cache once.
fn uv(python: &Path) -> Result<PathBuf> {
    if let Some(own) = in_path(OsStr::new("uv")) {
        return Ok(own);
    }
    let folder = cache()?.join("uv");
    let program = folder.join("bin/uv");
    if !program.exists() {
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target"]).arg(&folder).arg("uv");
        let done = pip.stdin(Stdio::null()).output().context("starting pip")?;
        let said = String::from_utf8_lossy(&done.stderr);
        let why = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        ensure!(
            done.status.success() && program.exists(),
            "uv is not in PATH, and pip could not install it: {why}; see docs.astral.sh/uv for how to install it"
        );
    }
    Ok(program)
}

/// Made once, and kept as long as there is room.
#[derive(Debug)]
pub struct Environments<'a> {
    pub base: &'a Base,
    /// Another version of Python than the base's.
    pub python: Option<String>,
    /// Requirements that each of them meets beside the versions, and whether nothing else is looked at.
    pub with: Vec<String>,
    pub has_no_dependencies: bool,
    /// The most bytes that all of them may take.
    pub limit: u64,
    pub progress: fn(&str),
}

/// A Python with the versions; it is not removed by others as long as this is there.
#[derive(Debug)]
pub struct Environment {
    pub python: PathBuf,
    _in_use: File,
}

fn folder() -> Result<PathBuf> {
    let folder = cache()?.join("environments");
    fs::create_dir_all(&folder).map_err(|error| not_written(error, &folder))?;
    Ok(folder)
}

/// Bytes on the disk below a folder.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |path: PathBuf| match path.symlink_metadata() {
        Ok(about) if about.is_dir() => size(&path),
        Ok(about) => about.blocks() * 512 / about.nlink().max(1),
        Err(_) => 0,
    };
    entries.map(|entry| of(entry.path())).sum()
}

/// Those that are whole, with when they were last used, the oldest first, and their bytes.
fn kept(folder: &Path) -> Vec<(SystemTime, PathBuf, u64)> {
    let of = |path: PathBuf| {
        let whole = path.join("whole");
        let used = whole.metadata().and_then(|about| about.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let bytes = fs::read_to_string(&whole).ok().and_then(|text| text.parse().ok());
        (used, path.clone(), bytes.unwrap_or_else(|| size(&path)))
    };
    let mut found: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).filter(|p| p.is_dir()).map(of).collect();
    found.sort();
    found
}

/// Removes all environments, and gives how many there were and their bytes.
pub fn clear() -> Result<(usize, u64)> {
    let all = kept(&folder()?);
    for (_, path, _) in &all {
        fs::remove_dir_all(path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok((all.len(), all.iter().map(|(.., bytes)| bytes).sum()))
}

impl Environments<'_> {
    /// An environment with these versions.
    ///
    /// # Errors
    /// They cannot be installed; with the reason in one line.
    pub fn with(&self, pins: &[Pin]) -> Result<Environment> {
        let all = folder()?;
        let mut names: Vec<String> = pins.iter().map(Pin::to_string).collect();
        let parts = libraries()?.folder.join("python/versions");
        let maker = parts.join("environment.py");
        let read = |path: PathBuf| fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()));
        let made_by = read(maker.clone())? + &read(parts.join("stand_in.py"))?;
        let Base { python, packages, .. } = self.base;
        let how = (&self.python, &self.with, self.has_no_dependencies);
        let key = format!("{names:?} {how:?} {} {packages} {made_by}", python.display());
        let hash = format!("{:x}", Sha256::digest(key));
        let called = if names.is_empty() { "requirements".to_string() } else { names.join("-") };
        let name = format!("{}-{}", called.replace(['[', ']', ','], "-").replace("==", "-"), &hash[..12]);
        let (folder, whole) = (all.join(&name), all.join(&name).join("whole"));
        // Whoever waits finds what the other has made.
        let lock = File::create(all.join("lock")).map_err(|error| not_written(error, &all))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            (self.progress)("another vramlab makes an environment; waiting for it");
            while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                ensure!(!was_interrupted(), WAS_INTERRUPTED);
                thread::sleep(Duration::from_millis(100));
            }
        }
        if !whole.exists() {
            (self.progress)(&format!("installing {}", [&names[..], &self.with[..]].concat().join(" ")));
            let mut command = Command::new(python);
            command.arg(maker).arg(&folder).arg("--beside").arg("--uv").arg(uv(python)?);
            command.args(self.python.iter().map(|version| format!("--python={version}")));
            command.args(self.with.iter().map(|requirement| format!("--with={requirement}")));
            command.args(self.has_no_dependencies.then_some("--no-deps"));
            command.args(names.drain(..)).env_remove("PYTHONPATH").stdin(Stdio::null());
            let mut heard = tempfile::tempfile().context("making a temporary file")?;
            command.stdout(Stdio::null()).stderr(heard.try_clone().context("opening a temporary file")?);
            let made = followed::run(&mut command);
            if !made.as_ref().is_ok_and(|status| status.success()) {
                fs::remove_dir_all(&folder).ok();
                made?;
                let said = last_line(&mut heard);
                bail!("{}", if said.is_empty() { "it cannot be installed" } else { &said });
            }
        }
        // Also says when it was used.
        let bytes = fs::read_to_string(&whole).ok().filter(|text| !text.is_empty()).unwrap_or_else(|| size(&folder).to_string());
        fs::write(&whole, bytes).map_err(|error| not_written(error, &whole))?;
        let in_use = File::open(&whole).with_context(|| format!("opening {}", whole.display()))?;
        rustix::fs::flock(&in_use, FlockOperation::LockShared).with_context(|| format!("locking {}", whole.display()))?;
        self.make_room(&all);
        let libraries = libraries()?;
        for torch in pins.iter().filter(|pin| pin.package == "torch") {
            let is_of =
                |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&format!("python-{}-", torch.version));
            let mut compiled = [&libraries.compiled, &libraries.carried].into_iter().flat_map(fs::read_dir).flatten().flatten();
            if !compiled.any(is_of) {
                (self.progress)(&format!("the simulated GPU is compiled for {torch} first, about a minute"));
            }
        }
        Ok(Environment { python: folder.join("bin/python"), _in_use: in_use })
    }

    /// Removes what was not used for longest, until the rest is within the limit.
    fn make_room(&self, all: &Path) {
        let kept = kept(all);
        let mut sum: u64 = kept.iter().map(|(.., bytes)| bytes).sum();
        for (_, path, bytes) in kept {
            let is_free = |file: File| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            let is_free = sum > self.limit && File::open(path.join("whole")).map_or(true, is_free);
            if is_free && fs::remove_dir_all(&path).is_ok() {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                (self.progress)(&format!("removed the environment {name}, {}: --cache-size", Bytes(bytes)));
                sum -= bytes;
            }
        }
    }
}
