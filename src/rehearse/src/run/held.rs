//! Has what a command's processes write held back in the session's folder (`src/sim/native/writes.cpp`).

use super::libraries::{Libraries, not_written};
use crate::capture::held::FOLDER;
use anyhow::Result;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

/// Of the table of marks: four counters, and a mark for each name (`Table` in writes.cpp).
const TABLE: u64 = 8 * (4 + (1 << 18));

/// Has a command's processes write into the session's folder.
pub fn hold(command: &mut Command, session: &Path, libraries: &Libraries, sent: Option<&Path>) -> Result<()> {
    let folder = session.join(FOLDER);
    let make = || -> io::Result<()> {
        fs::create_dir_all(folder.join("files"))?;
        File::create(folder.join("table"))?.set_len(TABLE)?;
        fs::write(folder.join("real"), lines(written_as_they_are(session, libraries, sent)))?;
        fs::write(folder.join("temporary"), lines(temporary()))
    };
    make().map_err(|error| not_written(error, &folder))?;
    command.env("VRAMLAB_REHEARSAL_HELD", folder);
    Ok(())
}

fn lines(folders: impl IntoIterator<Item = PathBuf>) -> Vec<u8> {
    folders.into_iter().flat_map(|folder| [folder.as_os_str().as_bytes(), b"\n"].concat()).collect()
}

/// Folders for temporary files, in which others look for sockets.
fn temporary() -> BTreeSet<PathBuf> {
    let folders = ["/tmp", "/var/tmp", "/dev/shm"].into_iter().map(PathBuf::from).chain([env::temp_dir()]);
    folders.filter_map(|folder| fs::canonicalize(folder).ok()).collect()
}

/// Our own folders, sockets of the desktop, and what libraries have downloaded, which would be fetched again each time.
fn written_as_they_are(session: &Path, libraries: &Libraries, sent: Option<&Path>) -> Vec<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = set("HOME").unwrap_or_default();
    let caches = set("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
    let hugging_face = set("HF_HOME").unwrap_or_else(|| caches.join("huggingface"));
    let theirs = [
        set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE")).unwrap_or_else(|| hugging_face.join("hub")),
        set("HF_XET_CACHE").unwrap_or_else(|| hugging_face.join("xet")),
        set("TORCH_HOME").unwrap_or_else(|| caches.join("torch")).join("hub"),
        set("PIP_CACHE_DIR").unwrap_or_else(|| caches.join("pip")),
        set("UV_CACHE_DIR").unwrap_or_else(|| caches.join("uv")),
        set("XDG_RUNTIME_DIR").unwrap_or_default(),
    ];
    // The nearest that is there may be made writable as a whole, and must not be one in which the user works.
    let places: Vec<PathBuf> =
        [env::current_dir().ok(), Some(home)].into_iter().flatten().filter_map(|folder| fs::canonicalize(folder).ok()).collect();
    let is_apart = |folder: &Path| !places.iter().any(|place| place.starts_with(folder));
    let there = |folder: PathBuf| {
        let nearest = folder.ancestors().find_map(|parent| Some((parent, fs::canonicalize(parent).ok()?)))?;
        let rest = folder.strip_prefix(nearest.0).ok()?;
        (folder.is_absolute() && is_apart(&nearest.1))
            .then(|| if rest.as_os_str().is_empty() { nearest.1.clone() } else { nearest.1.join(rest) })
    };
    let ours = [session, &libraries.folder, &libraries.compiled, &libraries.graphs, &libraries.hub];
    ours.into_iter()
        .map(Path::to_path_buf)
        .chain(sent.and_then(|folder| fs::canonicalize(folder).ok()))
        .chain(theirs.into_iter().filter_map(there))
        .collect()
}
