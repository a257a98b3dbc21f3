//! Protocols on disk: one file for each method, `protocols/EXPERIMENT-REVISION.json`, in the folder that holds all machines' results.

use super::manifest::SHARD;
use super::rows::{read_file, replace_file};
use crate::protocol::{Method, PlainProtocol};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Name of the folder.
const PROTOCOLS: &str = "protocols";

/// Where the protocols of what is measured into an experiment's folder, or into a part of a sweep in it, belong.
pub(super) fn folder_of(dir: &Path) -> PathBuf {
    let is_part = dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(SHARD));
    let all = dir.ancestors().nth(if is_part { 3 } else { 2 }).unwrap_or(dir);
    all.join(PROTOCOLS)
}

fn file_name(method: &Method) -> String {
    format!("{method}.json")
}

/// Writes a protocol into a folder of protocols, where it is not there as it is.
///
/// # Errors
/// Names the file; what stood there is intact.
pub fn write(folder: &Path, protocol: &PlainProtocol) -> Result<()> {
    let path = folder.join(file_name(&protocol.method()));
    let text = serde_json::to_string_pretty(protocol)? + "\n";
    if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    replace_file(&path, text.as_bytes())
}

/// Of the folders around results the nearest that has such a file.
pub(super) fn around(results: &Path, file: &Path) -> Result<Option<PathBuf>> {
    let results = std::fs::canonicalize(results).with_context(|| format!("reading {}", results.display()))?;
    Ok(results.ancestors().find(|folder| folder.join(file).exists()).map(Path::to_path_buf))
}

/// Reads the protocol of results: of the folders around them the nearest that has it.
pub(super) fn read(results: &Path, method: &Method) -> Result<PlainProtocol> {
    let file = Path::new(PROTOCOLS).join(file_name(method));
    let found = around(results, &file)?.with_context(|| {
        format!("{} was measured by {method}, and no folder around it has {}", results.display(), file.display())
    })?;
    let path = found.join(file);
    serde_json::from_slice(&read_file(&path)?).with_context(|| format!("{} is no protocol", path.display()))
}
