//! What a command under rehearsal left: how it ended, and the folders of its processes.

use super::held::{self, HeldBack};
use super::occupancy::Occupancy;
use super::plain::on_one_line;
use super::process::{Frame, Trace, VERSION};
use crate::answer::FittingRun;
use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use sim::cards::Card;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::SystemTime;

/// In the session's folder: why a process could not be rehearsed.
pub const FAILED: &str = "failed";

/// What a command under rehearsal left: `session.json` in the session's folder, and what its processes wrote there.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Capture {
    /// Of the form of all of it.
    pub version: u32,
    /// As it ran, and on what.
    pub command: Vec<String>,
    #[serde(deserialize_with = "card")]
    pub card: Card,
    /// Of the machine that was named: what each GPU has to others, in bytes a second.
    #[serde(default)]
    pub network: Option<f64>,
    pub gpus: u32,
    pub lag: u32,
    /// How many times this machine's time the host takes between launches; without it each launch takes as long. Before, 1 was what nobody asked for.
    #[serde(default, rename = "own_host_factor")]
    pub host_factor: Option<f64>,
    /// Processes of this machine that wanted a core, for each that it has, when the command ended.
    #[serde(default)]
    pub load: f64,
    pub timeout: Option<f64>,
    /// Of the machine that it ran on, or of what was said of the target's host: bytes of memory; 0 where that is not known.
    #[serde(default)]
    pub host_memory: u64,
    /// Processes of that machine that its kernel ended for want of memory while it ran.
    #[serde(default)]
    pub killed: u64,
    /// How long it ran.
    #[serde(default)]
    pub seconds: f64,
    /// Of the machine that it ran on.
    pub cores: usize,
    /// As the system gives it.
    pub status: i32,
    pub timed_out: bool,
    pub interrupted: bool,
    /// Whether it was ended because it waited for what trainings would have given that were stopped after their steps.
    #[serde(default)]
    pub waited: bool,
    /// What it wrote, where that was held back.
    #[serde(default)]
    pub held: Option<HeldBack>,
    /// The last line that a silent run wrote to its standard error.
    pub last_line_of_stderr: String,
    /// What was found out of it since, with the script's PyTorch and its files, which a reader may not have.
    #[serde(default)]
    pub found: Found,
    /// Where it was written.
    #[serde(skip)]
    pub folder: PathBuf,
    #[serde(skip)]
    pub traces: Vec<Trace>,
    #[serde(skip)]
    pub occupancy: Occupancy,
    /// Whether a Python came up that had the hook, and one that found no torch.
    #[serde(skip)]
    pub hooked: bool,
    #[serde(skip)]
    pub without_torch: Option<String>,
    /// The exception that ended a Python which had not imported torch; of several the last.
    #[serde(skip)]
    pub raised: Option<String>,
    /// What `replaying.py` answered, where it was asked.
    #[serde(skip)]
    pub replayed: Option<Vec<u8>>,
    /// Why a process could not be rehearsed, which was ended before it did anything.
    #[serde(skip)]
    pub not_set_up: Option<String>,
}

/// What needs more than the capture.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Found {
    pub needs: Option<Needs>,
    /// Of a command that does not fit, a run on a card where it does.
    #[serde(default)]
    pub fitting: Option<FittingRun>,
    /// Why they are not known.
    pub needs_missing: Option<String>,
    #[serde(default)]
    pub sized: Option<SizedByFree>,
    pub other_values: Option<OtherValues>,
    /// Why it is not known what others would do.
    pub other_values_missing: Option<String>,
    /// What is written in lines of the script, by `file:line`.
    pub lines: BTreeMap<String, String>,
}

/// What came of a rehearsal in which the values that the script reads are others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OtherValues {
    /// Where values are read that may decide something.
    pub lines: Vec<Frame>,
    /// What it then takes on the GPU, as far as it came.
    pub peak_on_device: i64,
    pub fits: bool,
    /// Whether it had not ended when its time was over.
    pub endless: bool,
}

/// What a rehearsal needs of a card.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// With fewer bytes memory runs out: those of all processes that may run at one time, each with its context.
    pub least: i64,
    /// How many contexts are among them.
    pub contexts: u64,
    /// What would be reserved with expandable segments, where they are not used already.
    pub expandable: Option<i64>,
    /// By how much less would do with them; none where that is next to nothing.
    #[serde(default)]
    pub saved_if_expandable: Option<i64>,
    #[serde(default)]
    pub pools: Option<OnePool>,
    /// By how much less may do: what is less by more does not.
    #[serde(default)]
    pub unknown: i64,
}

impl Needs {
    /// Of one card, on another, whose contexts take more or less.
    pub fn move_to(&mut self, card: &Card, from: &Card) {
        self.least += self.contexts.cast_signed() * (card.context.cast_signed() - from.context.cast_signed());
    }
}

/// What the script makes as large as the card's free memory allows: larger on a larger card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SizedByFree {
    /// Where it asks what is free.
    pub asked: Frame,
    /// The lines that make it.
    pub lines: Vec<Frame>,
    pub bytes: i64,
    /// Bytes that they have more for each that the card has more; none of what was kept before that was known.
    #[serde(default)]
    pub share: Option<f64>,
}

/// What the fullest process would reserve if its memory pools, of CUDA graphs for instance, were one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OnePool {
    /// How many it has.
    pub pools: usize,
    pub reserved: i64,
}

fn card<'de, D: Deserializer<'de>>(from: D) -> Result<Card, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

const ABOUT: &str = "session.json";
/// Of the session's folder, beside those that end in `.python`, `.without-torch` and `.raised`.
const OF_SESSION: [&str; 2] = ["cards", FAILED];
/// Of a process's folder.
const OF_PROCESS: [&str; 6] = ["names", "events", "work", "loading", "lost", "status"];

/// Unpacks the regular files that a rehearsal keeps, and nothing else that a stranger's archive may have.
fn unpack(archive: File, folder: &Path) -> Result<()> {
    // More than any that was kept: 4 MiB of events are zeros in a short process.
    const LEAST: u64 = 64 << 20;
    const PER_PROCESS: u64 = 8 << 20;
    const MOST_PROCESSES: u64 = 1024;
    let packed = archive.metadata()?.len();
    let (mut unpacked, mut processes) = (0, 0);
    for entry in tar::Archive::new(GzDecoder::new(archive)).entries()? {
        let mut entry = entry?;
        let (name, kind) = (entry.path()?.into_owned(), entry.header().entry_type());
        let parts: Vec<&str> = name.iter().map(|part| part.to_str().unwrap_or_default()).collect();
        if kind.is_dir() && parts.len() == 1 {
            continue;
        }
        let is_known = (kind.is_file() || kind.is_gnu_sparse())
            && match parts[..] {
                [file] => {
                    file == ABOUT
                        || OF_SESSION.contains(&file)
                        || file.ends_with(".python")
                        || file.ends_with(".without-torch")
                        || file.ends_with(".raised")
                }
                [process, file] => process.starts_with(|first: char| first.is_ascii_digit()) && OF_PROCESS.contains(&file),
                _ => false,
            };
        ensure!(is_known, "it holds {}, which no rehearsal keeps", name.display());
        let to = folder.join(&name);
        if let Some(process) = to.parent().filter(|process| !process.exists()) {
            processes += 1;
            fs::create_dir(process)?;
        }
        unpacked += entry.size();
        ensure!(
            processes <= MOST_PROCESSES && unpacked <= LEAST + 100 * packed + PER_PROCESS * processes,
            "it unpacks to more than {} MiB, or has more than {MOST_PROCESSES} processes",
            unpacked >> 20
        );
        std::io::copy(&mut entry, &mut File::options().write(true).create_new(true).open(&to)?)?;
    }
    Ok(())
}

impl Capture {
    /// Of a command that ended well at once, in whose folder nothing has been read yet.
    pub fn new(command: Vec<String>, card: Card, folder: &Path) -> Capture {
        let (version, folder) = (VERSION, folder.to_owned());
        Capture { version, command, card, network: card.network, folder, gpus: 1, cores: 1, ..Capture::default() }
    }

    /// Adds what processes wrote into the folder.
    pub fn of_session(mut self) -> Result<Capture> {
        let session = &self.folder;
        self.occupancy = Occupancy::of_session(session);
        self.not_set_up = fs::read_to_string(session.join(FAILED)).ok();
        self.replayed = fs::read(session.join("replay.answer")).ok();
        let mut raised: Vec<(SystemTime, String)> = Vec::new();
        for entry in fs::read_dir(session).with_context(|| format!("reading {}; did the script remove it?", session.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                if !matches!(path.file_name().and_then(OsStr::to_str), Some("bin" | held::FOLDER)) {
                    self.traces.push(Trace::read(&path)?);
                }
                continue;
            }
            match path.extension().and_then(OsStr::to_str) {
                Some("raised") => {
                    raised.push((fs::metadata(&path)?.modified()?, String::from_utf8_lossy(&fs::read(&path)?).into_owned()))
                }
                Some("without-torch") => self.without_torch = fs::read_to_string(&path).ok(),
                Some("python") => self.hooked = true,
                _ => {}
            }
        }
        self.raised = raised.into_iter().max().map(|(_, raised)| on_one_line(&raised));
        // A folder's order is nobody's.
        self.traces.sort_by_key(|trace| (trace.process.rank, trace.process.id));
        Ok(self)
    }

    /// Packs it into one file.
    ///
    /// # Errors
    /// The file cannot be written, or the session's folder is gone.
    pub fn keep(&self, path: &Path) -> Result<()> {
        let pack = || -> Result<()> {
            let mut archive = tar::Builder::new(GzEncoder::new(File::create(path)?, Compression::default()));
            let about = serde_json::to_vec_pretty(self)?;
            let mut header = tar::Header::new_gnu();
            header.set_size(about.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, ABOUT, &about[..])?;
            for entry in fs::read_dir(&self.folder)? {
                let path = entry?.path();
                let name = path.file_name().map(PathBuf::from).unwrap_or_default();
                if path.is_dir() {
                    for file in OF_PROCESS.iter().filter(|file| path.join(file).is_file()) {
                        archive.append_path_with_name(path.join(file), name.join(file))?;
                    }
                } else if OF_SESSION.iter().any(|file| name.as_os_str() == *file)
                    || name.extension().is_some_and(|e| e == "python" || e == "without-torch" || e == "raised")
                {
                    archive.append_path_with_name(&path, &name)?;
                }
            }
            Ok(archive.into_inner()?.finish()?.sync_all()?)
        };
        pack().with_context(|| format!("--keep: writing {}", path.display()))
    }

    /// Reads what [`Capture::keep`] wrote.
    ///
    /// # Errors
    /// It is none, or of another version; with what to do.
    pub fn open(path: &Path) -> Result<Capture> {
        let file = File::open(path).with_context(|| format!("reading {}", path.display()))?;
        let folder = tempfile::tempdir().context("making a folder for what is kept")?;
        let about = unpack(file, folder.path()).and_then(|()| Ok(fs::read(folder.path().join(ABOUT))?)).map_err(|error| {
            let none = format!("{} is no rehearsal that was kept", path.display());
            anyhow::anyhow!("{none} ({}); make one by vramlab rehearse --keep FILE -- COMMAND", on_one_line(&error.to_string()))
        })?;
        let version = serde_json::from_slice::<Value>(&about).ok().and_then(|about| about["version"].as_u64()).unwrap_or(0);
        ensure!(
            version == u64::from(VERSION),
            "{} was kept by another version of vramlab (form {version}; this one reads {VERSION}): show it with that version, or rehearse \
             the script again",
            path.display()
        );
        let mut capture: Capture = serde_json::from_slice(&about).with_context(|| format!("reading {}", path.display()))?;
        capture.card.network = capture.network;
        Capture { folder: folder.path().to_owned(), ..capture }.of_session()
    }

    pub fn status(&self) -> ExitStatus {
        ExitStatus::from_raw(self.status)
    }

    /// Why there is no time of a step, where a process has several trainings.
    pub fn one_training(&self) -> Result<(), String> {
        match self.traces.iter().map(|trace| trace.trainings).find(|trainings| *trainings > 1) {
            Some(several) => Err(format!("{several} trainings ran in one process, each with steps of its own")),
            None => Ok(()),
        }
    }

    /// That the host ran out of memory, of a command that failed.
    pub fn host_ran_out(&self) -> Option<String> {
        let helps = "--no-init makes no weights there, and --world-size N --rank R runs one rank of N";
        let ended = if self.killed == 1 { "a process".to_string() } else { format!("{} processes", self.killed) };
        (self.killed > 0 && !self.status().success())
            .then(|| format!("the host ran out of memory and its kernel ended {ended} while this ran: {helps}"))
    }

    /// How the command ended, and what it said to that where nobody saw it.
    pub fn end(&self) -> String {
        let end = match (self.status().signal(), self.status().code()) {
            (Some(signal), _) => format!("it was ended by signal {signal}"),
            (None, code) => format!("it ended with status {}", code.unwrap_or_default()),
        };
        let said = Some(&self.last_line_of_stderr).filter(|line| !line.is_empty()).or(self.raised.as_ref());
        said.map_or_else(|| end.clone(), |said| format!("{end}: {said}"))
    }
}

/// What helps where a file in the cache cannot be written.
pub fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::FileTooLarge => "allow larger files (ulimit -f)",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room there, or set VRAMLAB_CACHE to a folder on another disk",
        _ => "set VRAMLAB_CACHE to a folder that can be written to",
    }
}

/// The script's own exception, that is none of memory.
#[derive(Debug)]
pub struct ScriptFailed(pub String);

impl fmt::Display for ScriptFailed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ScriptFailed {}

/// The file that a Python is given, where the command is one.
pub fn script_of(command: &[String]) -> Option<&Path> {
    let program = Path::new(command.first()?).file_name()?.to_str()?;
    let file = command.get(1).filter(|_| program.starts_with("python"))?;
    (!file.starts_with('-')).then_some(Path::new(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_another_version_is_refused_and_so_is_what_is_no_capture() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept.cap");
        let refused = || format!("{:#}", Capture::open(&path).unwrap_err());
        assert!(refused().contains("reading"), "{}", refused());
        fs::write(&path, "no archive").unwrap();
        assert!(refused().contains("make one by vramlab rehearse --keep FILE"), "{}", refused());
        let of_version = |version: u32| {
            let capture = Capture::new(vec!["train".to_string()], "24GiB".parse().unwrap(), &folder.path().join("session"));
            Capture { version, ..capture }.keep(&path).unwrap();
        };
        fs::create_dir(folder.path().join("session")).unwrap();
        of_version(VERSION + 1);
        assert!(refused().contains("another version") && refused().contains("rehearse the script again"), "{}", refused());
        of_version(VERSION);
        let kept = Capture::open(&path).unwrap();
        assert_eq!((kept.command[0].as_str(), kept.card.memory, kept.traces.len()), ("train", 24 << 30, 0));
    }
}
