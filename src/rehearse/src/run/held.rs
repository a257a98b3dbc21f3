//! Has what a command's processes write held back in the session's folder (`src/sim/native/overlay.cpp`).

use super::libraries::{Libraries, not_written};
use super::session::Session;
use crate::capture::held::FOLDER;
use anyhow::Result;
use rustix::fs::{FallocateFlags, fallocate};
use std::env;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of the table of marks: four counters, and a mark for each name (`kSlots` in held.h).
const SLOTS: u64 = 1 << 20;
const TABLE: u64 = 8 * (4 + SLOTS);

/// Has a command's processes write into the session's folder.
pub fn hold(command: &mut Command, session: &Session, libraries: &Libraries, sent: Option<&Path>) -> Result<()> {
    let folder = session.path().join(FOLDER);
    let (temporary, shared) = (session.temporary.path(), session.shared.path());
    let own = [session.path(), temporary, shared, &libraries.folder, &libraries.compiled, &libraries.graphs, &libraries.hub];
    let real = own.into_iter().map(Path::to_path_buf).chain(sent.and_then(|folder| fs::canonicalize(folder).ok()));
    let uv = uv_cache();
    if uv.is_none() {
        command.env("UV_CACHE_DIR", temporary.join("uv"));
    }
    let real = real.chain(uv);
    let make = || -> io::Result<()> {
        fs::create_dir_all(folder.join("files"))?;
        zero(&File::create(folder.join("table"))?)?;
        fs::write(folder.join("real"), lines(real))?;
        fs::write(folder.join("temporary"), temporary.as_os_str().as_bytes())?;
        fs::write(folder.join("shared"), shared.as_os_str().as_bytes())
    };
    make().map_err(|error| not_written(error, &folder))?;
    command.env("VRAMLAB_REHEARSAL_HELD", folder);
    Ok(())
}

/// Where uv has its downloads, which is written as it is: uv calls the kernel itself to put them there. None where there is no such folder, or the user
/// works in it.
fn uv_cache() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = || Some(set("XDG_CACHE_HOME").unwrap_or(set("HOME")?.join(".cache")).join("uv"));
    let cache = fs::canonicalize(set("UV_CACHE_DIR").or_else(caches)?).ok()?;
    let places = [env::current_dir().ok(), set("HOME")].into_iter().flatten().filter_map(|folder| fs::canonicalize(folder).ok());
    places.into_iter().all(|place| !place.starts_with(&cache)).then_some(cache)
}

fn lines(folders: impl IntoIterator<Item = PathBuf>) -> Vec<u8> {
    folders.into_iter().flat_map(|folder| [folder.as_os_str().as_bytes(), b"\n"].concat()).collect()
}

/// With room on the disk for all of it: a process that has it in its memory would be ended by the first mark that finds none.
fn zero(mut table: &File) -> io::Result<()> {
    if fallocate(table, FallocateFlags::ZERO_RANGE, 0, TABLE).is_ok() {
        return Ok(());
    }
    table.rewind()?;
    (0..TABLE.div_ceil(1 << 16)).try_for_each(|at| table.write_all(&[0; 1 << 16][..(TABLE - (at << 16)).min(1 << 16) as usize]))
}
