//! Cells, and the grids that plan them.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A full factorial over its axes. Grids of one name are parts of one table (models that need their own sizes, say).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PlainGrid {
    pub name: String,
    pub profiles: Vec<Profile>,
    /// The factor whose levels are compared; its first level in this grid is their baseline.
    pub studied: String,
    pub axes: Vec<Axis>,
    pub passes: Vec<Pass>,
    /// Devices that have what the grid is about; on others its cells are skipped. Empty: all.
    #[serde(default)]
    pub only_on: Vec<Platform>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    pub factor: String,
    pub levels: Vec<String>,
}

/// Shorthand for an [`Axis`], so that a grid reads as a table.
pub fn axis(factor: &str, levels: &[&str]) -> Axis {
    Axis { factor: factor.to_string(), levels: levels.iter().map(|level| (*level).to_string()).collect() }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Seconds, for tests; results are thrown away.
    Smoke,
    /// The default on a CPU.
    Quick,
    /// The default on a GPU.
    Full,
}

/// What one child process does with one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// Compares the cell with its baseline on the same data and seed.
    Check,
    /// Counts bytes over one step; done twice, and a difference is an error.
    Memory,
    /// One round of timed samples.
    Time,
}

impl Pass {
    /// The metric of the row that closes a pass; its value is the wall-clock time of the child in seconds.
    pub fn closing_metric(self) -> &'static str {
        match self {
            Pass::Check => "pass.check",
            Pass::Memory => "pass.memory",
            Pass::Time => "pass.time",
        }
    }

    pub fn from_closing_metric(metric: &str) -> Option<Pass> {
        [Pass::Check, Pass::Memory, Pass::Time].into_iter().find(|pass| pass.closing_metric() == metric)
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(&self.closing_metric()["pass.".len()..])
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.serialize(f)
    }
}

/// Who runs a cell: `vramlab`, as do all cells without it, or `pytorch`, the experiment's PyTorch reference (`step.py`), whose figures
/// carry verdicts about [`Platform::Python`].
pub const BY: &str = "by";
/// The device is limited to as much memory as the level says (`96MiB`).
pub const DEVICE_MEMORY: &str = "device-memory";
/// The allocator's settings (`PYTORCH_ALLOC_CONF`), or `default`.
pub const ALLOC_CONF: &str = "alloc-conf";
/// How many threads libtorch computes with: a number, or `all`, which is as many as the user says or the machine has.
pub const THREADS: &str = "threads";
/// Types of numbers.
pub const DTYPE: &str = "dtype";

/// Which cells something applies to: `k=4 recipe=divide|weighted`, or several such alternatives after commas; empty applies to all.
pub type Select = String;

/// Whether a cell has every level that one of the selection's alternatives names.
pub fn selects(select: &str, cell: &PlainCell) -> bool {
    let has = |term: &str| match term.split_once('=') {
        Some((factor, levels)) => cell.get(factor).is_some_and(|level| levels.split('|').any(|l| l == level)),
        None => false,
    };
    select.split(',').any(|alternative| alternative.split_whitespace().all(has))
}

/// Whose figures may carry a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    Cpu,
    Gpu,
    /// A prediction; carries bytes only.
    Dry,
    /// PyTorch in Python, where a claim is about Python's own machinery.
    Python,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Platform::Cpu => "CPU",
            Platform::Gpu => "GPU",
            Platform::Dry => "dry",
            Platform::Python => "Python",
        })
    }
}

/// One combination of levels. Its canonical text is its identity everywhere: `model=mlp k=4`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PlainCell {
    levels: Vec<(String, String)>,
}

impl PlainCell {
    pub fn new(levels: Vec<(String, String)>) -> Self {
        PlainCell { levels }
    }

    /// The level of a factor, where the cell has that factor.
    pub fn get(&self, factor: &str) -> Option<&str> {
        self.levels.iter().find(|(f, _)| f == factor).map(|(_, level)| level.as_str())
    }

    pub fn levels(&self) -> &[(String, String)] {
        &self.levels
    }

    /// Whether PyTorch in Python runs the cell; see [`BY`].
    pub fn is_reference(&self) -> bool {
        self.get(BY) == Some("pytorch")
    }

    /// The other side of a comparison with PyTorch in Python.
    pub fn other_side(&self) -> PlainCell {
        self.with(BY, if self.is_reference() { "vramlab" } else { "pytorch" })
    }

    /// The settings of the caching allocator that the cell asks for; none for those that there are.
    pub fn alloc_conf(&self) -> Option<&str> {
        self.get(ALLOC_CONF).filter(|level| *level != "default")
    }

    /// The threads that the cell asks for; none where it takes as many as there are.
    pub fn threads(&self) -> Option<&str> {
        self.get(THREADS).filter(|level| *level != "all")
    }

    /// Whether the cell computes in fp32.
    pub fn is_fp32(&self) -> bool {
        self.get(DTYPE) == Some("fp32")
    }

    /// The cell with another level of one factor.
    pub fn with(&self, factor: &str, level: &str) -> PlainCell {
        let replace = |(f, l): &(String, String)| (f.clone(), if f == factor { level.to_string() } else { l.clone() });
        PlainCell { levels: self.levels.iter().map(replace).collect() }
    }

    /// The cell's text without some factors: what it has in common with the cells it is compared with.
    pub fn without(&self, factors: &[&str]) -> String {
        let rest = self.levels.iter().filter(|(f, _)| !factors.contains(&f.as_str()));
        rest.map(|(f, l)| format!("{f}={l}")).collect::<Vec<_>>().join(" ")
    }

    /// [`PlainCell::without`], or the whole text where that leaves nothing.
    pub fn name_without(&self, factors: &[&str]) -> String {
        Some(self.without(factors)).filter(|name| !name.is_empty()).unwrap_or_else(|| self.to_string())
    }

    /// Parses a canonical text: one `factor=level`, or more.
    pub fn parse(text: &str) -> std::result::Result<PlainCell, String> {
        let terms = text.split(' ').map(|term| match term.split_once('=') {
            Some((factor, level)) if !factor.is_empty() && !level.is_empty() => Ok((factor.into(), level.into())),
            _ => Err(format!("'{text}' is no cell: '{term}' is not of the form factor=level")),
        });
        Ok(PlainCell { levels: terms.collect::<Result<_, _>>()? })
    }
}

impl TryFrom<String> for PlainCell {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<PlainCell, String> {
        PlainCell::parse(&text)
    }
}

impl From<PlainCell> for String {
    fn from(cell: PlainCell) -> String {
        cell.to_string()
    }
}

impl fmt::Display for PlainCell {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(&self.without(&[]))
    }
}

impl PlainGrid {
    /// All cells of the grid, the last axis running fastest.
    pub fn cells(&self) -> Vec<PlainCell> {
        let mut cells = vec![Vec::new()];
        for axis in &self.axes {
            cells = cells
                .iter()
                .flat_map(|prefix| {
                    axis.levels.iter().map(|level| {
                        let mut levels = prefix.clone();
                        levels.push((axis.factor.to_string(), level.to_string()));
                        levels
                    })
                })
                .collect();
        }
        cells.into_iter().map(PlainCell::new).collect()
    }

    /// The levels of a factor in this grid; empty where it has no such axis.
    pub fn levels_of(&self, factor: &str) -> &[String] {
        self.axes.iter().find(|axis| axis.factor == factor).map_or(&[], |axis| &axis.levels)
    }

    /// Whether both sides of each comparison do the very same: a grid that studies [`BY`] and checks. Ours then hands its start over to the
    /// reference, and the check of ours compares its outcome with the reference's.
    pub fn is_shared(&self) -> bool {
        self.studied == BY && self.passes.contains(&Pass::Check)
    }

    /// Whether a cell is the PyTorch reference's beside one of ours, which it repeats.
    pub fn repeats(&self, cell: &PlainCell) -> bool {
        cell.is_reference() && self.levels_of(BY).len() > 1
    }

    /// The first level of the studied factor.
    pub fn baseline_level(&self) -> &str {
        self.levels_of(&self.studied).first().map_or("", String::as_str)
    }

    /// The cell that `cell` is compared with: itself where it is a baseline.
    pub fn baseline_of(&self, cell: &PlainCell) -> PlainCell {
        cell.with(&self.studied, self.baseline_level())
    }

    pub fn contains(&self, cell: &PlainCell) -> bool {
        cell.levels().len() == self.axes.len()
            && cell
                .levels()
                .iter()
                .zip(&self.axes)
                .all(|((factor, level), axis)| *factor == axis.factor && axis.levels.contains(level))
    }
}

/// `k=4 recipe=divide|weighted` as `k = 4 and recipe = divide or weighted`.
pub fn conditions(select: &str) -> String {
    let term = |term: &str| match term.split_once('=') {
        Some((factor, levels)) => match &levels.split('|').collect::<Vec<_>>()[..] {
            many if many.len() > MOST_NAMED => format!("{factor} is one of {}", many.len()),
            levels => format!("{factor} = {}", alternatives(levels)),
        },
        None => term.to_string(),
    };
    let shared: Vec<String> = shared_terms(select).into_iter().map(term).collect();
    let listed = select.split(", ").count();
    match (shared.is_empty(), listed) {
        (_, 1) => shared.join(" and "),
        (true, _) => format!("the configuration is one of the {listed} below"),
        (false, _) => format!("{} ({listed} configurations)", shared.join(" and ")),
    }
}

/// The terms of a selection; where it lists configurations, those that all of them share.
pub fn shared_terms(select: &str) -> Vec<&str> {
    let mut listed = select.split(", ").map(|cell| cell.split_whitespace().collect::<Vec<_>>());
    let first = listed.next().unwrap_or_default();
    let others: Vec<Vec<&str>> = listed.collect();
    first.into_iter().filter(|term| others.iter().all(|other| other.contains(term))).collect()
}

/// More levels than this are counted in a sentence.
const MOST_NAMED: usize = 12;

/// `a`, `a or b`, `a, b or c`.
pub fn alternatives(levels: &[&str]) -> String {
    match levels {
        [] => String::new(),
        [one] => (*one).to_string(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}

/// The factors of which a selection leaves one level.
pub fn fixed_by(select: &str) -> Vec<&str> {
    // Of alternatives none is fixed.
    if select.contains(',') {
        return Vec::new();
    }
    let has_one_level = |(_, levels): &(&str, &str)| !levels.contains('|');
    select.split_whitespace().filter_map(|term| term.split_once('=')).filter(has_one_level).map(|(factor, _)| factor).collect()
}
