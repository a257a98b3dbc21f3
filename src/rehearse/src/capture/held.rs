//! What a rehearsal's processes wrote, none of which reached the user's files.

use super::plain::on_one_line;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The folder's name in the session's.
pub const FOLDER: &str = "held";

/// Of the counters at the beginning of its table (`Table` in held.h), those that say that it, or the disk, was full.
const FULL: u64 = 8;

/// What kept the script's processes from the user's files, the strongest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, schemars::JsonSchema, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeldBy {
    /// The kernel: a mount namespace in which all but the rehearsal's own folders is read-only.
    Namespace,
    /// The kernel: Landlock, which refuses to write, make, move and remove; modes and times it does not know.
    Landlock,
    /// Landlock before Linux 6.2, by which a program that calls the kernel itself can still empty a file.
    LandlockWithoutTruncation,
    /// The preloaded library alone, past which a program can call the kernel.
    #[default]
    Library,
}

impl HeldBy {
    /// What is known of the user's own files.
    pub fn known(self) -> &'static str {
        match self {
            HeldBy::Namespace => "your own files are as they were",
            HeldBy::Landlock => "what is in your own files is as it was",
            HeldBy::LandlockWithoutTruncation => {
                "by the preloaded library, and by Landlock of a Linux before 6.2, under which a program that calls the kernel itself can empty a file"
            }
            HeldBy::Library => "by the preloaded library alone, past which a program can call the kernel",
        }
    }
}

/// What a script wrote, none of which reached the user's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema, Deserialize)]
pub struct HeldBack {
    #[serde(default)]
    pub by: HeldBy,
    /// The largest first.
    pub files: Vec<HeldFile>,
    pub bytes: u64,
    /// Files and folders that the script removed or moved, and that are still there.
    pub removed: Vec<String>,
    /// Whom the script sent something over the network, which nothing holds back: the most first.
    #[serde(default)]
    pub sent: Vec<Sent>,
    /// Where `--keep-writes` has put the files.
    pub kept_in: Option<PathBuf>,
}

/// What was sent over connections to one address outside of the script's own processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema, Deserialize)]
pub struct Sent {
    /// `HOST:PORT`, with the address where no name was asked for.
    pub to: String,
    /// With those of requests and of encryption; 0 where a connection was still open when its process was ended.
    pub bytes: u64,
    pub connections: usize,
}

/// A file that the script wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema, Deserialize)]
pub struct HeldFile {
    pub path: String,
    pub bytes: u64,
    /// Whether there was one of this name, which is as it was.
    pub replaces: bool,
}

impl HeldBack {
    /// What is in a session's folder; none where everything was written as it is.
    ///
    /// # Errors
    /// The disk was full, so that the script could not write what it wanted to; or it changed more files than can be kept apart.
    pub fn read(session: &Path) -> Result<Option<HeldBack>> {
        let folder = session.join(FOLDER);
        let Ok(table) = File::open(folder.join("table")) else { return Ok(None) };
        let (mut names, mut disk) = ([0; 8], [0; 8]);
        table
            .read_exact_at(&mut names, FULL)
            .and_then(|()| table.read_exact_at(&mut disk, FULL + 8))
            .context("reading what the script wrote")?;
        if names != [0; 8] {
            bail!(
                "the script makes, changes or removes more files than are held back, some million: let it write its files by --writes, or have \
                 it do fewer steps"
            );
        }
        if disk != [0; 8] {
            bail!(
                "the disk of {} is full, where what the script writes is held back: make room there, set VRAMLAB_CACHE to a folder on another \
                 disk, or let the script write its files by --writes",
                session.parent().unwrap_or(session).display()
            );
        }
        let upper = folder.join("files");
        let by = fs::read(folder.join("guarded")).ok().and_then(|by| serde_json::from_slice(&by).ok()).unwrap_or_default();
        let mut held = HeldBack { by, files: Vec::new(), bytes: 0, removed: Vec::new(), sent: sent(&folder), kept_in: None };
        gather(&upper, &upper, &mut held.files);
        held.files.sort_by(|a, b| (b.bytes, &a.path).cmp(&(a.bytes, &b.path)));
        held.bytes = held.files.iter().map(|file| file.bytes).sum();
        let gone = fs::read(folder.join("removed")).unwrap_or_default();
        for name in gone.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let path = Path::new(OsStr::from_bytes(name));
            let (text, is_again) =
                (path.to_string_lossy().into_owned(), upper.join(path.strip_prefix("/").unwrap_or(path)).exists());
            if !is_again && !text.contains("/__pycache__") && !held.removed.contains(&text) {
                held.removed.push(text);
            }
        }
        Ok(Some(held))
    }

    /// Puts the files into a folder of the user's, below their whole names.
    pub fn keep(&mut self, session: &Path, folder: &Path) -> Result<()> {
        let upper = session.join(FOLDER).join("files");
        for file in &self.files {
            let name = file.path.trim_start_matches('/');
            let to = folder.join(name);
            let put = || -> io::Result<()> {
                fs::create_dir_all(to.parent().unwrap_or(folder))?;
                // Holes stay holes where it is the same disk.
                fs::rename(upper.join(name), &to)
                    .or_else(|_| io::copy(&mut File::open(upper.join(name))?, &mut File::create(&to)?).map(drop))
            };
            put().with_context(|| format!("--keep-writes: writing {}", to.display()))?;
        }
        self.kept_in = Some(folder.to_path_buf());
        Ok(())
    }
}

/// The lines of `network` (others.cpp): `name ADDRESS HOST`, `listens PORT`, `open ADDRESS PORT` of connections as far as they are known when they
/// begin, and `sent ADDRESS PORT BYTES` when they end.
fn sent(folder: &Path) -> Vec<Sent> {
    let text = fs::read(folder.join("network")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = || text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let names: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.strip_prefix("name ")?.split_once(' ')).collect();
    let own: BTreeSet<&str> = text.lines().filter_map(|line| line.strip_prefix("listens ")).collect();
    let mut sent = BTreeMap::<String, (Sent, usize)>::new();
    for line in lines() {
        let (address, port, bytes) = match line[..] {
            ["open", address, port] => (address, port, None),
            ["sent", address, port, bytes] => (address, port, bytes.parse::<u64>().ok()),
            _ => continue,
        };
        if own.contains(port) {
            continue;
        }
        let host = on_one_line(names.get(address).unwrap_or(&address));
        let to = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let (one, opened) = sent.entry(to.clone()).or_insert((Sent { to, bytes: 0, connections: 0 }, 0));
        match bytes {
            Some(bytes) => (one.bytes, one.connections) = (one.bytes + bytes, one.connections + 1),
            None => *opened += 1,
        }
    }
    let all = sent.into_values().map(|(one, opened)| Sent { connections: one.connections.max(opened), ..one });
    let mut sent: Vec<Sent> = all.collect();
    sent.sort_by(|a, b| (b.bytes, &a.to).cmp(&(a.bytes, &b.to)));
    sent
}

/// The files in a folder of those held back, by their names outside of it. A link stands for a file that was moved, or is small.
fn gather(upper: &Path, folder: &Path, files: &mut Vec<HeldFile>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(about) = entry.metadata() else { continue };
        if about.is_dir() && name != "__pycache__" {
            gather(upper, &path, files);
        } else if about.is_file() {
            let real = Path::new("/").join(path.strip_prefix(upper).unwrap_or(&path));
            let replaces = fs::symlink_metadata(&real).is_ok();
            files.push(HeldFile { path: real.to_string_lossy().into_owned(), bytes: about.size(), replaces });
        }
    }
}
