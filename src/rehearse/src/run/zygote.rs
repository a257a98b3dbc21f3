//! Pythons that have imported PyTorch and wait, of which rehearsals are copies: the import takes longer than most scripts' first steps. Python's
//! half is `zygote.py`.

use anyhow::{Context, Result};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{env, io, process};
use tempfile::TempDir;

/// Names a folder in which Pythons wait for all programs, each until nobody has come for a minute or the folder is gone, as tests have it. Where it is empty, each
/// rehearsal is a process of its own.
pub(crate) const SHARED: &str = "VRAMLAB_ZYGOTES";

/// Waiting Pythons, each of a program and an environment.
#[derive(Debug)]
pub struct Zygotes {
    folder: PathBuf,
    /// Where it is this program's own, its folder and itself: one, since another would be started for a few rehearsals alone.
    own: Option<(TempDir, Mutex<Option<Child>>)>,
    /// Whether it has imported what many copies would import each, too (`_Later` in zygote.py).
    more: bool,
    /// Commands of which a copy would not do.
    unfit: Mutex<HashSet<Vec<OsString>>>,
}

/// A rehearsal's command as a copy.
#[derive(Debug)]
pub struct Copied {
    asked: UnixStream,
    status: Vec<u8>,
}

/// Of the environment what no import of PyTorch reads, and what tells where one rehearsal's files are.
fn is_of_a_rehearsal(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let others = ["PATH", "PWD", "OLDPWD", "SHLVL", "_", "CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE", "GROUP_RANK"];
    let beginnings = ["VRAMLAB_", "NEXTEST", "__NEXTEST", "CARGO", "RUST", "LOCAL_", "MASTER_"];
    others.contains(&&*name) || beginnings.iter().any(|beginning| name.starts_with(beginning))
}

/// What a process has of this one beside the environment: limits, rights, namespaces.
fn surroundings() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kept = ["Uid", "Gid", "Groups", "Umask", "CapEff", "NoNewPrivs", "Seccomp:", "Cpus_allowed:", "Mems_allowed:", "SigIgn"];
    let lines = status.lines().filter(|line| kept.iter().any(|name| line.starts_with(name)));
    let namespaces = ["mnt", "net", "pid", "user", "ipc", "uts", "cgroup"];
    let namespaces = namespaces.map(|name| fs::read_link(format!("/proc/self/ns/{name}")).unwrap_or_default());
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    format!("{}{namespaces:?}{limits}", lines.collect::<String>())
}

/// Paths as they are meant in a folder, for who waits in another one.
fn absolute(paths: &OsStr, folder: &Path) -> OsString {
    if paths.is_empty() {
        return OsString::new();
    }
    let of_folder = |path: PathBuf| if path.as_os_str().is_empty() { folder.to_path_buf() } else { folder.join(path) };
    env::join_paths(env::split_paths(paths).map(of_folder)).unwrap_or_else(|_| paths.to_owned())
}

impl Zygotes {
    /// Of this program alone; none where there are to be none. With `more` for many copies.
    pub fn own(more: bool) -> Result<Option<Zygotes>> {
        if env::var_os(SHARED).is_some() {
            return Ok(None);
        }
        let folder = tempfile::tempdir().context("making a temporary folder")?;
        Ok(Some(Zygotes {
            folder: folder.path().to_path_buf(),
            own: Some((folder, Mutex::default())),
            more,
            unfit: Mutex::default(),
        }))
    }

    /// Those of all programs, where there are such.
    pub fn shared(more: bool) -> Option<Zygotes> {
        let folder = env::var_os(SHARED).filter(|folder| !folder.is_empty())?;
        Some(Zygotes { folder: folder.into(), own: None, more, unfit: Mutex::default() })
    }

    /// Whether what a copy prints before it is found not to do may be printed twice: in tests.
    pub fn is_shared(&self) -> bool {
        self.own.is_none()
    }

    /// A copy that runs a command with these files as its standard input, output and error; none where it takes a process of its own, which then
    /// says what is wrong.
    pub fn copy(&self, command: &Command, files: &[OwnedFd; 3]) -> Option<Copied> {
        let words: Vec<OsString> = [command.get_program()].into_iter().chain(command.get_args()).map(OsStr::to_owned).collect();
        let is_python = Path::new(&words[0]).file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"));
        let first = words.get(1)?;
        let is_script = first.as_bytes().ends_with(b".py") && !first.as_bytes().starts_with(b"-") && Path::new(first).is_file();
        let is_other = words.len() > 2 && (first == "-m" || first == "-c");
        let is_unfit = self.unfit.lock().unwrap_or_else(PoisonError::into_inner).contains(&words);
        if !is_python || is_unfit || !(is_script || is_other) {
            return None;
        }
        self.copied(command, words, files).ok().flatten()
    }

    /// That a copy would not do for a command.
    pub fn leave_out(&self, words: &[OsString]) {
        self.unfit.lock().unwrap_or_else(PoisonError::into_inner).insert(words.to_vec());
    }

    fn copied(&self, command: &Command, words: Vec<OsString>, files: &[OwnedFd; 3]) -> Result<Option<Copied>> {
        let mut environment: BTreeMap<OsString, OsString> = env::vars_os().collect();
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => environment.insert(name.to_owned(), value.to_owned()),
                None => environment.remove(name),
            };
        }
        let folder = env::current_dir().context("asking for this folder")?;
        let program = if words[0].as_bytes().contains(&b'/') { folder.join(&words[0]) } else { PathBuf::from(&words[0]) };
        let own = |(name, value): (&OsString, &OsString)| {
            let value = if name == "PYTHONPATH" { absolute(value, &folder) } else { value.clone() };
            (name.clone(), value)
        };
        let of_all: Vec<_> = environment.iter().filter(|(name, _)| !is_of_a_rehearsal(name)).map(own).collect();
        let libraries = environment.get(OsStr::new("VRAMLAB_REHEARSAL_LIBRARIES")).context("the simulated GPU's libraries")?;
        let path = env::var_os("PATH").unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        (&program, &path, &of_all, libraries, surroundings(), self.more).hash(&mut hasher);
        let owner = if self.own.is_some() { process::id() } else { 0 };
        let asked = self.connect(hasher.finish(), |listener| {
            let mut python = Command::new(&program);
            python.args(["-c", ""]).current_dir("/").stdin(listener).stdout(Stdio::null()).stderr(Stdio::null());
            python.env_clear().envs(of_all).env("PATH", &path).env("VRAMLAB_REHEARSAL_LIBRARIES", libraries);
            python.env("VRAMLAB_WAITS", owner.to_string());
            if self.more {
                python.env("VRAMLAB_WAITS_WITH_MORE", "1");
            }
            if owner == 0 {
                // It outlives whoever a Ctrl-C is for.
                python.process_group(0);
            }
            python.spawn()
        })?;
        let Some(mut asked) = asked else { return Ok(None) };
        let mut parts = vec![folder.into_os_string(), words.len().to_string().into()];
        parts.extend(words);
        parts.extend(environment.into_iter().map(|(name, value)| [name, value].join(OsStr::new("="))));
        let text = parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>().join(&0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut with_files = SendAncillaryBuffer::new(&mut space);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        with_files.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&asked, &[IoSlice::new(&(text.len() as u64).to_ne_bytes())], &mut with_files, SendFlags::NOSIGNAL)?;
        asked.write_all(&text)?;
        let mut is_copied = [0; 4];
        asked.read_exact(&mut is_copied)?;
        asked.set_nonblocking(true)?;
        Ok((is_copied != [0; 4]).then_some(Copied { asked, status: Vec::new() }))
    }

    /// One that waits by this name; none where it is not worth it to start one.
    fn connect(&self, name: u64, start: impl FnOnce(OwnedFd) -> io::Result<Child>) -> io::Result<Option<UnixStream>> {
        let path = self.folder.join(format!("{name:016x}"));
        fs::create_dir_all(&self.folder)?;
        let lock = path.with_extension("lock");
        // What is asked for once takes as long in a process of its own.
        let is_first = !lock.exists();
        let lock = File::create(lock)?;
        lock.lock()?;
        if let Ok(there) = UnixStream::connect(&path) {
            return Ok(Some(there));
        }
        let mut own = self.own.as_ref().map(|(_, own)| own.lock().unwrap_or_else(PoisonError::into_inner));
        if own.as_ref().map_or(is_first, |own| own.is_some()) {
            return Ok(None);
        }
        fs::remove_file(&path).ok();
        let child = start(UnixListener::bind(&path)?.into())?;
        if let Some(own) = &mut own {
            **own = Some(child);
        }
        UnixStream::connect(&path).map(Some)
    }
}

impl Drop for Zygotes {
    fn drop(&mut self) {
        if let Some((_, own)) = &mut self.own
            && let Some(child) = own.get_mut().unwrap_or_else(PoisonError::into_inner)
        {
            // Its copies have ended: whoever asked for one has waited.
            child.kill().and_then(|()| child.wait()).ok();
        }
    }
}

impl Copied {
    /// How it ended, and all that it left; none before.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let mut part = [0; 4];
        match self.asked.read(&mut part[self.status.len()..]) {
            // The waiting one was killed, and its copies with it.
            Ok(0) => return Ok(Some(ExitStatus::from_raw(9))),
            Ok(length) => self.status.extend(&part[self.status.len()..][..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        Ok(<[u8; 4]>::try_from(&self.status[..]).ok().map(|status| ExitStatus::from_raw(i32::from_ne_bytes(status))))
    }

    /// Has its guard end it and all that it left.
    pub fn end(&self) {
        self.asked.shutdown(Shutdown::Write).ok();
    }
}
