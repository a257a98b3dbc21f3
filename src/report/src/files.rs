//! Files that cells kept beside their figures: copied into the report, so that its links hold wherever it is put, and linked with what opens
//! them.

use super::markup::{Markdown, slug};
use super::recorded::Recorded;
use anyhow::{Context, Result};
use base::units::Bytes;
use record::results::{read_kept, replace_file};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Folder of the files inside the report's.
const FOLDER: &str = "files";

/// A file that the report links.
#[derive(Debug, Clone, Serialize)]
pub struct Linked {
    /// Its name in the results, as a link.
    pub link: Markdown,
    /// Its path inside the report's folder.
    pub path: String,
    pub size: String,
    /// What opens it.
    pub opens: Markdown,
    #[serde(skip)]
    from: PathBuf,
}

/// The files of an experiment on one machine.
pub fn of(recorded: &Recorded) -> Vec<Linked> {
    let linked = |from: &PathBuf| {
        let name = from.file_name()?.to_string_lossy().into_owned();
        let size = std::fs::metadata(from).map_or_else(|_| "missing".to_string(), |m| Bytes(m.len()).to_string());
        let path = format!("{FOLDER}/{}-{}-{}", slug(&recorded.protocol.name), slug(&recorded.machine), slug(&name));
        let link = Markdown::link(&name, &path);
        Some(Linked { opens: Markdown::trusted(opens(&name).to_string()), path, size, link, from: from.clone() })
    };
    recorded.files.iter().filter_map(linked).collect()
}

fn opens(name: &str) -> &'static str {
    if name.ends_with(".json.gz") || name.ends_with(".json") {
        "a trace, for [Perfetto](https://ui.perfetto.dev) (Open trace file)"
    } else if name.ends_with(".pickle") {
        "a memory snapshot, for [memory_viz](https://pytorch.org/memory_viz) (drag it onto the page)"
    } else {
        "kept as it is"
    }
}

/// Copies the files, and removes those that the report no longer links.
///
/// # Errors
/// A file cannot be read or written.
pub fn save(linked: &[Linked], out: &Path) -> Result<()> {
    let folder = out.join(FOLDER);
    if !linked.is_empty() {
        std::fs::create_dir_all(&folder).with_context(|| format!("making the folder {}", folder.display()))?;
    }
    for file in linked {
        let contents = read_kept(&file.from)?;
        replace_file(&out.join(&file.path), &contents)?;
    }
    let Ok(entries) = std::fs::read_dir(&folder) else { return Ok(()) };
    for entry in entries {
        let old = entry.with_context(|| format!("reading {}", folder.display()))?.path();
        if !linked.iter().any(|file| out.join(&file.path) == old) {
            std::fs::remove_file(&old).with_context(|| format!("removing the outdated file {}", old.display()))?;
        }
    }
    Ok(())
}
