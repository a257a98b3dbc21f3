//! Rehearsals of one command that differ in techniques alone: each is a copy of a process that has imported PyTorch and waits. The import takes
//! longer than most scripts' first steps. Python's half is `forking.py`.

use super::session::{self, Session};
use crate::capture::held;
use anyhow::{Context, Result};
use sim::cards::Card;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Those that wait.
#[derive(Debug)]
pub struct Forks {
    waiting: Mutex<Vec<Started>>,
    to_start: Mutex<Sender<ToStart>>,
}

/// A script that does not fit has two, on its card and on a large one.
const MOST_PER_CORE: usize = 2;

type ToStart = (Command, Sender<io::Result<Child>>);

/// A command that runs, or waits for the next rehearsal.
#[derive(Debug)]
pub struct Started {
    pub session: Session,
    pub child: Child,
    /// What it says on the standard error.
    pub heard: Option<File>,
    /// What it found when it started: the card, and more of the environment.
    pub found: (Card, Settings),
}

type Settings = Vec<(&'static str, String)>;

impl Default for Forks {
    fn default() -> Forks {
        let (to_start, commands) = channel::<ToStart>();
        // A guard ends its command when the thread that started it has gone: this one lives as long as what it started is of use.
        thread::spawn(move || commands.into_iter().for_each(|(mut command, to)| drop(to.send(command.spawn()))));
        Forks { waiting: Mutex::default(), to_start: Mutex::new(to_start) }
    }
}

impl Forks {
    pub fn start(&self, command: Command) -> io::Result<Child> {
        let (to, started) = channel();
        self.to_start.lock().unwrap_or_else(PoisonError::into_inner).send((command, to)).map_err(io::Error::other)?;
        started.recv().map_err(io::Error::other)?
    }

    /// One that waits, if any does that found the same; its folder is as that of one that has just been started.
    pub fn take(&self, wanted: &(Card, Settings)) -> Result<Option<Started>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = waiting.iter().position(|one| one.found == *wanted) else {
            // Another is to be started, and each keeps an imported PyTorch in the host's memory.
            if waiting.len() >= MOST_PER_CORE * thread::available_parallelism().map_or(1, usize::from) {
                // Its guard ends with this program, too.
                session::end(&mut waiting.remove(0).child).ok();
            }
            return Ok(None);
        };
        let mut one = waiting.swap_remove(at);
        drop(waiting);
        one.clear().with_context(|| format!("clearing {}", one.session.path().display()))?;
        Ok(Some(one))
    }

    /// Keeps one that waits for the next.
    pub fn put(&self, started: Started) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(started);
    }
}

impl Started {
    /// Forgets the last rehearsal.
    fn clear(&mut self) -> io::Result<()> {
        for entry in fs::read_dir(self.session.path())? {
            let path = entry?.path();
            match path.file_name().and_then(|name| name.to_str()) {
                Some("bin" | "settings.json") => {}
                Some(held::FOLDER) => super::held::forget(&self.session)?,
                _ if path.is_dir() => fs::remove_dir_all(&path)?,
                _ => fs::remove_file(&path)?,
            }
        }
        if let Some(heard) = &mut self.heard {
            // Its processes write where this file is.
            heard.set_len(0)?;
            heard.rewind()?;
        }
        Ok(())
    }

    /// Has it rehearse again.
    pub fn again(&self) -> Result<()> {
        let path = self.session.path().join("again");
        File::create(&path).map(drop).with_context(|| format!("writing {}", path.display()))
    }
}

impl Drop for Forks {
    fn drop(&mut self) {
        for mut one in self.waiting.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // Its guard ends with this program, too.
            session::end(&mut one.child).ok();
        }
    }
}

/// How a copy ended.
pub fn ended(session: &Path) -> Option<ExitStatus> {
    fs::read_to_string(session.join("copy-ended")).ok()?.parse().ok().map(ExitStatus::from_raw)
}

/// Whether nothing of a copy is left, and the process waits for the next.
pub fn waits(session: &Path) -> bool {
    session.join("copy-gone").exists()
}
