//! What `--out` holds: the answer as JSON, and of each process on each card a page, a picture, the allocator's snapshot and a trace.
//!
//! The process that needs most has the plain names; those of others carry their rank.

use super::course::View;
use super::{page, perfetto, snapshot};
use crate::answer::{Answer, ProcessAnswer};
use crate::capture::process::Trace;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes all files into a folder, which is made where it is missing.
pub fn write(folder: &Path, answer: &Answer, traces: &[Trace]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    save(&folder.join("rehearsal.json"), |out| {
        serde_json::to_writer_pretty(&mut *out, answer)?;
        Ok(writeln!(out)?)
    })?;
    let names = names(&answer.processes);
    // Predicted for one process; those of others are alike.
    let time = |n: usize| answer.time.as_ref().filter(|_| n == 0);
    for (n, process) in answer.processes.iter().enumerate() {
        let Some(trace) = traces.iter().find(|trace| trace.process.id == process.process) else { continue };
        let view = View::new(trace, process);
        let file = |stem: &str, extension: &str| folder.join(format!("{stem}{}.{extension}", names[n]));
        save(&file("memory", "svg"), |out| Ok(out.write_all(page::picture(answer, &view, chart::WIDE)?.0.as_bytes())?))?;
        save(&file("memory", "html"), |out| Ok(out.write_all(page::page(answer, &view, &names, n)?.as_bytes())?))?;
        save(&file("snapshot", "pickle"), |out| Ok(snapshot::write(&view, out)?))?;
        save(&file("trace", "json"), |out| perfetto::write(&view, time(n), out))?;
    }
    Ok(())
}

/// Writes a file aside and renames it into place, so that a full disk leaves what was there. What is no file, as /dev/stdout, is written to.
pub fn save(path: &Path, write: impl FnOnce(&mut BufWriter<&File>) -> Result<()>) -> Result<()> {
    let attempt = || -> Result<()> {
        let written = |file: &File| -> Result<()> {
            let mut out = BufWriter::new(file);
            write(&mut out)?;
            Ok(out.flush()?)
        };
        if fs::symlink_metadata(path).is_ok_and(|about| !about.is_file()) {
            return written(&File::create(path)?);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Rights are those that the user gives to files.
        let aside =
            tempfile::Builder::new().prefix(".vramlab-").permissions(fs::Permissions::from_mode(0o666)).tempfile_in(folder)?;
        written(aside.as_file())?;
        aside.persist(path)?;
        Ok(())
    };
    attempt().with_context(|| format!("writing {}", path.display()))
}

/// What the files of each process have in their names, the first none.
fn names(processes: &[ProcessAnswer]) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let mut name = |(n, process): (usize, &ProcessAnswer)| {
        if n == 0 {
            return String::new();
        }
        let mut name = process.rank.map_or_else(|| format!("-process{}", process.process), |rank| format!("-rank{rank}"));
        if process.device > 0 {
            name += &format!("-gpu{}", process.device);
        }
        if !taken.insert(name.clone()) {
            name += &format!("-{}", n + 1);
        }
        name
    };
    processes.iter().enumerate().map(&mut name).collect()
}
