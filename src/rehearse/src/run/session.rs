//! The folder in which one rehearsal's processes tell what they do, and the end of those processes.

use super::libraries::{Libraries, PRELOADED, cache, not_written};
use super::nvidia_smi::NAME as NVIDIA_SMI;
use super::zygote::Copied;
use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant, SystemTime};
use std::{env, io, thread};
use tempfile::TempDir;

/// A folder of one rehearsal's, gone in the end.
#[derive(Debug)]
pub struct Own {
    folder: TempDir,
    /// Locked as long as its owner lives.
    _lock: File,
}

impl Own {
    fn new(place: &Path, prefix: &str) -> io::Result<Own> {
        sweep(place, prefix);
        // What a script prints of its data is nobody else's.
        let owner_only = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix(prefix).permissions(owner_only).tempdir_in(place)?;
        let lock = File::open(folder.path())?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        Ok(Own { folder, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The folders of one rehearsal: in the cache; for temporary files and sockets whose names others are told; and in shared memory.
#[derive(Debug)]
pub struct Session {
    folder: Own,
    pub temporary: Own,
    pub shared: Own,
}

impl Session {
    pub fn new() -> Result<Session> {
        let cache = cache()?;
        let make = || -> io::Result<Session> {
            let folder = Own::new(&cache, "session-")?;
            let apart = |place: &Path| {
                fs::canonicalize(place)
                    .and_then(|place| Own::new(&place, "vramlab-session-"))
                    .or_else(|_| Own::new(&cache, "session-"))
            };
            let (temporary, shared) = (apart(&env::temp_dir())?, apart(Path::new("/dev/shm"))?);
            let programs = folder.path().join("bin");
            fs::create_dir(&programs)?;
            // This program answers by that name, too.
            symlink(env::current_exe()?, programs.join(NVIDIA_SMI))?;
            Ok(Session { folder, temporary, shared })
        };
        make().map_err(|error| not_written(error, &cache))
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders of owners that were killed.
fn sweep(place: &Path, prefix: &str) {
    // One that is just being made is not locked yet.
    const NEW: Duration = Duration::from_secs(60);
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_new = || {
            let made = entry.metadata().and_then(|about| about.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            made.elapsed().is_ok_and(|age| age < NEW)
        };
        if !entry.file_name().to_string_lossy().starts_with(prefix) || is_new() {
            continue;
        }
        if let Ok(folder) = File::open(&path)
            && rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            fs::remove_dir_all(&path).ok();
        }
    }
}

/// Has a command's processes preload what follows them. `simulated` where they are to find no other GPU than the simulated one.
pub fn follow(command: &mut Command, session: &Path, libraries: &Libraries, simulated: bool) {
    let (drivers, programs) = (libraries.drivers(), session.join("bin"));
    let preload = libraries.folder.join(PRELOADED);
    let has_spaces = preload.to_string_lossy().contains(char::is_whitespace);
    // A space ends a name there; one without a folder is looked for where libraries are.
    let preload = if has_spaces { OsString::from(PRELOADED) } else { preload.into_os_string() };
    let folders = if has_spaces { libraries.folder.clone().into_os_string() } else { OsString::new() };
    let folders = if simulated { joined(drivers.as_os_str().to_owned(), &folders) } else { folders };
    let before = |name: &str, first: &OsString| joined(first.clone(), &env::var_os(name).unwrap_or_default());
    command
        .env("VRAMLAB_REHEARSAL", session)
        .env("VRAMLAB_REHEARSAL_LIBRARIES", &libraries.folder)
        .env("VRAMLAB_REHEARSAL_OWNER", std::process::id().to_string())
        .env("VRAMLAB_REHEARSAL_PRELOAD", &preload)
        .env("LD_PRELOAD", before("LD_PRELOAD", &preload));
    if !folders.is_empty() {
        command.env("VRAMLAB_REHEARSAL_FOLDERS", &folders).env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", &folders));
    }
    if simulated {
        command
            .env("VRAMLAB_REHEARSAL_DRIVERS", &drivers)
            .env("VRAMLAB_REHEARSAL_PROGRAMS", &programs)
            .env("PATH", before("PATH", &programs.into_os_string()))
            // For processes without the preloaded library; those with it never see this.
            .env("CUDA_VISIBLE_DEVICES", "vramlab");
    }
}

fn joined(mut first: OsString, others: &OsString) -> OsString {
    if !first.is_empty() && !others.is_empty() {
        first.push(":");
    }
    first.push(others);
    first
}

/// How long processes that outlive the command have to end, where others of it have ended.
const LEFT: Duration = Duration::from_secs(10);

/// How long a command that has ended may take to start the Python that it leaves.
const STARTING: Duration = Duration::from_secs(2);

/// How long a Python that it leaves may take to import PyTorch.
const IMPORTING: Duration = Duration::from_secs(60);

/// Whether the command has ended, as it has `since`, and nothing of what it left is waited for: those that train are, helpers are not.
pub fn has_left_nothing(session: &Path, since: &mut Option<Instant>) -> bool {
    if !session.join("command-ended").exists() {
        return false;
    }
    let since = *since.get_or_insert_with(Instant::now);
    let (mut alive, mut ended, mut pythons) = (false, false, false);
    for entry in fs::read_dir(session).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let Some(id) = name.split(['-', '.']).next().and_then(|id| id.parse().ok()) else { continue };
        let is_alive = Pid::from_raw(id).is_some_and(|id| test_kill_process(id).is_ok());
        match (is_folder, is_alive) {
            (true, true) => alive = true,
            (true, false) => ended = true,
            (false, true) => pythons = true,
            (false, false) => {}
        }
    }
    match (alive, ended) {
        (true, false) => false,
        (true, true) => since.elapsed() > LEFT,
        (false, true) => true,
        // Without PyTorch so far: it may be about to be imported, or never.
        (false, false) => since.elapsed() > if pythons { IMPORTING } else { STARTING },
    }
}

/// How long all processes of a command have done nothing, since one of them was stopped after its steps: others may wait for its result for ever.
#[derive(Debug, Default)]
pub struct Rest {
    looked: Option<Instant>,
    /// Since when, and ticks of processor time that all had had by then; and how often in a row one was about to run.
    since: Option<(Instant, u64)>,
    busy: u32,
}

impl Rest {
    /// Whether it was longer than others may need, where all that used the GPU were stopped; else three times that.
    pub fn is_long(&mut self, session: &Path, guard: Option<u32>) -> bool {
        const OFTEN: Duration = Duration::from_millis(500);
        // What waits and looks again every now and then takes less, in ticks of a hundredth of a second.
        const LITTLE: u64 = 30;
        let now = Instant::now();
        if self.looked.is_some_and(|looked| now - looked < OFTEN) {
            return false;
        }
        self.looked = Some(now);
        let folders =
            || fs::read_dir(session).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
        if !folders().any(|folder| folder.join("stopped").exists()) {
            return false;
        }
        let of_folders = || folders().filter_map(|folder| process_of(&folder)?.as_raw_nonzero().get().try_into().ok()).collect();
        let (ticks, runs) = below(guard.map_or_else(of_folders, |guard| vec![guard]));
        self.busy = if runs { self.busy + 1 } else { 0 };
        let (since, before) = *self.since.get_or_insert((now, ticks));
        // What an ended process had is gone from the sum.
        if self.busy > 2 || ticks.abs_diff(before) > LITTLE {
            self.since = None;
            return false;
        }
        let is_at_work = |folder: PathBuf| folder.join("events").exists() && !folder.join("stopped").exists();
        let is_alive = |folder: &PathBuf| process_of(folder).is_some_and(|id| test_kill_process(id).is_ok());
        let longest = if folders().filter(is_alive).any(is_at_work) { 3 * LEFT } else { LEFT };
        now - since > longest
    }
}

/// The process whose folder that is.
fn process_of(folder: &Path) -> Option<Pid> {
    Pid::from_raw(folder.file_name()?.to_str()?.split(['-', '.']).next()?.parse().ok()?)
}

/// Ticks of processor time of all processes that one has started, and they in turn; and whether any of them runs, or waits for a disk.
fn below(mut found: Vec<u32>) -> (u64, bool) {
    let read = |entry: fs::DirEntry| {
        let id: u32 = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("stat")).ok()?;
        // After its name, which can hold anything.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some((id, fields.get(1)?.parse::<u32>().ok()?, ticks(11)? + ticks(12)?, matches!(*fields.first()?, "R" | "D")))
    };
    let all: Vec<_> = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(read).collect();
    let (mut sum, mut runs) = (0, false);
    while let Some(parent) = found.pop() {
        for (id, _, ticks, is_running) in all.iter().filter(|(_, of, ..)| *of == parent) {
            found.push(*id);
            sum += ticks;
            runs |= is_running;
        }
    }
    (sum, runs)
}

/// Ends the command and all that it has started, however it was started: first asked, then made. Its guard does that.
pub fn end(child: &mut Running) -> Result<ExitStatus> {
    // The guard asks for two seconds, and then makes them end for as long as ten.
    const MOST: Duration = Duration::from_secs(15);
    match child {
        Running::Process(child) => drop(kill_process(Pid::from_child(child), Signal::TERM)),
        Running::Copy(copy) => copy.end(),
    }
    let began = Instant::now();
    while began.elapsed() < MOST {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(20));
    }
    match child {
        Running::Process(child) => child.kill().and_then(|()| child.wait()).context("ending the command"),
        Running::Copy(_) => bail!("ending the command"),
    }
}

/// A rehearsal's command: its guard, or that of a copy.
#[derive(Debug)]
pub enum Running {
    Process(Child),
    Copy(Copied),
}

impl Running {
    /// Of its guard, where that is known.
    pub fn id(&self) -> Option<u32> {
        if let Running::Process(child) = self { Some(child.id()) } else { None }
    }

    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        match self {
            Running::Process(child) => child.try_wait(),
            Running::Copy(copy) => copy.try_wait(),
        }
        .context("waiting for the command")
    }
}
