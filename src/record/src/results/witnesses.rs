//! Witnesses on disk: `witnesses/EXPERIMENT-REVISION.csv` beside the protocols has a row for each measured cell of a method, with what its step asked
//! for as a digest, and what today's step asks for otherwise.

use super::rows::{read_file, replace_file};
use crate::protocol::{Method, PlainCell};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Name of the folder.
pub(super) const WITNESSES: &str = "witnesses";

/// Of a witness that no second run gave again: it is compared with none.
pub const VARIES: &str = "varies";

/// What the step of a cell asked for when it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Witness {
    pub cell: PlainCell,
    /// 16 hexadecimal digits of operators and allocations in their order; [`VARIES`]; or empty where no run gave one.
    pub witness: String,
    /// How many there are, and digits by which a difference is found.
    pub trail: String,
    /// What today's step asks for otherwise, the first of it; empty where nothing.
    pub today: String,
}

impl Witness {
    /// As the step's own process gives and takes it: empty where there is nothing to compare with.
    pub fn text(&self) -> String {
        if self.trail.is_empty() { String::new() } else { format!("{} {}", self.witness, self.trail) }
    }
}

/// The witnesses of a method, in a folder of records; none where it has no file.
pub fn read(records: &Path, method: &Method) -> Result<Vec<Witness>> {
    let path = records.join(WITNESSES).join(format!("{method}.csv"));
    if !path.exists() {
        return Ok(Vec::new());
    }
    let rows = read_file(&path)?;
    let rows = csv::Reader::from_reader(&rows[..]).into_deserialize().collect::<Result<_, _>>();
    rows.with_context(|| format!("reading {}", path.display()))
}

/// Writes the witnesses of a method, in order of cell.
pub fn write(records: &Path, method: &Method, mut rows: Vec<Witness>) -> Result<()> {
    rows.sort_by(|a, b| a.cell.cmp(&b.cell));
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.iter().try_for_each(|row| writer.serialize(row))?;
    let folder = records.join(WITNESSES);
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    replace_file(&folder.join(format!("{method}.csv")), &writer.into_inner().context("formatting witnesses")?)
}
