//! What the script's DataLoaders fetched: the file `loading` of a process's folder, and lines of `names`.

use serde::Deserialize;
use std::fs;
use std::path::Path;

/// One call of a DataLoader's fetcher, by the process that made it (`python/vramlab_rehearsal/loading.py`).
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Fetch {
    /// The loader's name.
    pub loads: String,
    pub worker: u32,
    /// The process whose loader it is.
    pub owner: u32,
    /// Without what it waited for a core.
    pub seconds: f64,
    pub processor_seconds: f64,
    /// 0 where that is not known.
    pub samples: u64,
    /// Of the batch's tensors.
    #[serde(default)]
    pub bytes: u64,
    /// Of a worker: what it has of the host's memory alone.
    #[serde(default)]
    pub private: u64,
}

impl Fetch {
    /// Those of the file `loading` of a process's folder; of one that is not there, none. The last line may be half written.
    pub fn of_folder(folder: &Path) -> Vec<Fetch> {
        let text = fs::read_to_string(folder.join("loading")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// A DataLoader that the script took batches from to train.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ScriptLoader {
    #[serde(rename = "loader")]
    pub name: String,
    pub workers: u32,
    pub batches: u64,
    /// Of a step that has ended; none where none has.
    #[serde(default)]
    pub per_step: Option<f64>,
    /// Batches that each worker has ready.
    #[serde(default)]
    pub prefetched: u32,
    /// Batches of an epoch; 0 where that is not known.
    #[serde(default)]
    pub length: u64,
}
