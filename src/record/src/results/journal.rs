//! The one writer of a results folder.

use super::manifest::{MANIFEST, Manifest, differences, read};
use super::protocols;
use super::rows::{ASIDE, PassRecord, parse, replace_file, write};
use super::run::{SAMPLES, has_rows, read_rows};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The one writer of a results folder; holds the folder's lock while it lives.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Length of the part of the file that holds complete passes.
    length: u64,
    _lock: File,
}

impl Journal {
    /// Opens a folder for a run: a new one, or one to go on with. Gives back the passes that need not be measured again; what failed,
    /// what a budget left out and what was cut short is removed, so that it is measured now.
    ///
    /// # Errors
    /// Another run holds the folder; it holds results of another method, machine, libtorch, flags, seed or profile (each difference
    /// named) and `fresh` is not given; a damaged row (file and line named); a file cannot be written.
    pub fn open(dir: &Path, manifest: &mut Manifest, fresh: bool) -> Result<(Journal, Vec<PassRecord>)> {
        std::fs::create_dir_all(dir).with_context(|| format!("making the results folder {}", dir.display()))?;
        let lock = File::open(dir).with_context(|| format!("opening the results folder {}", dir.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("another run is writing to {}; wait for it, or give this one a folder of its own with --out", dir.display())
            }
            Err(TryLockError::Error(e)) => {
                return Err(e).with_context(|| format!("locking {}", dir.display()));
            }
        }
        sweep_aside(dir);
        let (path, manifest_path) = (dir.join(SAMPLES), dir.join(MANIFEST));
        let mut kept = Vec::new();
        // Results name their protocol, so a run that is killed anywhere in here must not leave them without it: the protocol is written first.
        let write_manifest = |manifest: &Manifest| {
            protocols::write(&protocols::folder_of(dir), &manifest.protocol)?;
            replace_file(&manifest_path, &serde_json::to_vec_pretty(manifest)?)
        };
        if fresh || !manifest_path.exists() {
            ensure!(
                fresh || !has_rows(&path),
                "{} has samples but no {MANIFEST}, so nobody knows what they are; --fresh starts over and removes them",
                dir.display()
            );
            // A run that ends between the two leaves results without rows, which can be read: the manifest of old ones without them, or a new one.
            if path.exists() {
                replace_file(&path, &write(&[], true)?)?;
            }
            write_manifest(manifest)?;
            replace_file(&path, &write(&[], true)?)?;
        } else {
            let stored = read(&manifest_path)?;
            let differences = differences(&stored, manifest)?;
            ensure!(
                differences.is_empty(),
                "{} holds results that this run may not add to:\n{}\nGive --fresh to start over, or another folder with --out",
                dir.display(),
                differences.iter().map(|d| format!("  - {d}\n")).collect::<String>().trim_end()
            );
            let earlier = stored.commands.into_iter();
            manifest.commands.splice(0..0, earlier);
            for cell in stored.planned {
                if !manifest.planned.contains(&cell) {
                    manifest.planned.push(cell);
                }
            }
            let text = read_rows(&path)?;
            let (passes, complete) = parse(&text, &path)?;
            let read = passes.len();
            kept.extend(passes.into_iter().filter(|p| !p.is_to_be_repeated()));
            // What follows the last complete pass is torn; without a header there is nothing.
            if kept.len() < read || complete < text.len() as u64 || text.is_empty() {
                replace_file(&path, &write(&kept, true)?)?;
            }
            write_manifest(manifest)?;
        }
        let open = || OpenOptions::new().read(true).append(true).open(&path);
        let file = open().with_context(|| format!("opening {}", path.display()))?;
        let length = file.metadata()?.len();
        Ok((Journal { path, file, length, _lock: lock }, kept))
    }

    /// Appends passes and syncs them to the disk.
    ///
    /// # Errors
    /// The disk is full or gone; what was there before stays as it was.
    pub fn append(&mut self, passes: &[PassRecord]) -> Result<()> {
        let rows = write(passes, false)?;
        let written = self.file.write_all(&rows).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Shrinking needs no space, so the half-written rows can go even on a full disk.
            let _ = self.file.set_len(self.length).and_then(|()| self.file.sync_data());
            return Err(error).with_context(|| {
                format!(
                    "cannot write to {}: what was measured before is kept; make room and run the same command again to go on",
                    self.path.display()
                )
            });
        }
        self.length += rows.len() as u64;
        Ok(())
    }
}

/// Whether a run is writing to a folder.
pub(super) fn is_held(dir: &Path) -> bool {
    File::open(dir).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Removes files that a killed run had written aside and not renamed yet.
fn sweep_aside(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(ASIDE) {
            // It is litter; a run need not fail for it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
