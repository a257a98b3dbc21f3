//! What a rehearsal has downloaded into the caches of libraries, which would be fetched again each time: new files in a cache's own layout are put
//! there once the command has ended. Nothing that was there is changed, and what a script saves below a cache stays held back: a file that is named
//! by its contents passes only where it has them.

use crate::capture::held::FOLDER;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::{self, File, FileType};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::{env, os::unix::fs::symlink};

/// Whether a file may pass, by its path below the cache, its kind and where it is.
type Passes = fn(&[&str], FileType, &Path) -> bool;

/// The caches, as the environment names them.
fn caches() -> Vec<(PathBuf, Passes)> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = set("XDG_CACHE_HOME").unwrap_or_else(|| set("HOME").unwrap_or_default().join(".cache"));
    let hugging_face = set("HF_HOME").unwrap_or_else(|| caches.join("huggingface"));
    vec![
        (set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE")).unwrap_or_else(|| hugging_face.join("hub")), of_hugging_face),
        (set("TORCH_HOME").unwrap_or_else(|| caches.join("torch")).join("hub"), of_torch),
    ]
}

fn of_hugging_face(path: &[&str], kind: FileType, at: &Path) -> bool {
    let ["models" | "datasets" | "spaces", ..] = path[0].split("--").collect::<Vec<_>>()[..] else { return false };
    match path[1..] {
        ["blobs", name] => kind.is_file() && (hex(&digest::<Sha256>(at, false)) == name || hex(&digest::<Sha1>(at, true)) == name),
        ["refs", ..] => {
            fs::read_to_string(at).is_ok_and(|commit| commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()))
        }
        // A link into the blobs.
        ["snapshots", _, _, ..] => fs::read_link(at).is_ok_and(|target| {
            let parts: Vec<_> = target.components().skip_while(|part| *part == Component::ParentDir).collect();
            kind.is_symlink() && matches!(parts[..], [Component::Normal(blobs), Component::Normal(_)] if blobs == "blobs")
        }),
        _ => false,
    }
}

/// Weights are named by the beginning of their hash.
fn of_torch(path: &[&str], kind: FileType, at: &Path) -> bool {
    match path {
        ["checkpoints", name] => {
            let begins = name.split('.').next().and_then(|stem| stem.rsplit_once('-')).map(|(_, begins)| begins);
            kind.is_file()
                && begins.is_some_and(|begins| begins.len() >= 8 && hex(&digest::<Sha256>(at, false)).starts_with(begins))
        }
        _ => false,
    }
}

/// Of a file's contents, for git behind their kind and length.
fn digest<D: Digest + Write>(path: &Path, of_git: bool) -> Vec<u8> {
    let mut digest = D::new();
    let mut read = || -> io::Result<()> {
        let file = File::open(path)?;
        if of_git {
            write!(digest, "blob {}\0", file.metadata()?.len())?;
        }
        io::copy(&mut file.take(u64::MAX), &mut digest).map(drop)
    };
    if read().is_ok() { digest.finalize().to_vec() } else { Vec::new() }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Puts what passes where it belongs. What cannot be put there is downloaded again the next time.
pub fn keep_downloads(session: &Path) {
    let upper = session.join(FOLDER).join("files");
    for (cache, passes) in caches() {
        // As the script's processes name it: without links.
        let Some(cache) = canonical(&cache) else { continue };
        let held = upper.join(cache.strip_prefix("/").unwrap_or(&cache));
        keep(&held, &held, &cache, passes);
    }
}

/// With links followed as far as there is anything.
fn canonical(path: &Path) -> Option<PathBuf> {
    let there = path.ancestors().find_map(|parent| Some((parent, fs::canonicalize(parent).ok()?)))?;
    path.is_absolute().then(|| there.1.join(path.strip_prefix(there.0).unwrap_or(Path::new(""))))
}

fn keep(root: &Path, folder: &Path, cache: &Path, passes: Passes) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (at, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        if kind.is_dir() {
            keep(root, &at, cache, passes);
            continue;
        }
        let Ok(below) = at.strip_prefix(root) else { continue };
        let parts: Vec<&str> = below.iter().filter_map(OsStr::to_str).collect();
        let is_done =
            !parts.iter().any(|part| part.starts_with(".tmp") || part.ends_with(".incomplete") || part.ends_with(".lock"));
        let to = cache.join(below);
        if is_done && passes(&parts, kind, &at) && fs::symlink_metadata(&to).is_err() && put(&at, kind, &to).is_ok() {
            fs::remove_file(&at).ok();
        }
    }
}

fn put(at: &Path, kind: FileType, to: &Path) -> io::Result<()> {
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder)?;
    if kind.is_symlink() {
        return symlink(fs::read_link(at)?, to);
    }
    // A link to where it is, or a copy that comes whole; neither replaces what another rehearsal has put there.
    fs::hard_link(at, to).or_else(|_| {
        let mut copy = tempfile::NamedTempFile::new_in(folder)?;
        io::copy(&mut File::open(at)?, &mut copy)?;
        copy.as_file().set_permissions(fs::metadata(at)?.permissions())?;
        copy.persist_noclobber(to).map(drop).map_err(|error| error.error)
    })
}
