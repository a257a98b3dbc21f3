//! What an experiment is, as plain data: factors, cells, metrics, checks, claims and their rules.
//!
//! `harness::lab` makes a [`Protocol`] of what an experiment says. It is stored in every `run.json`, so that old results keep the protocol
//! they were taken with and the reporter needs no list of experiments.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// One experiment: what is asked, what is varied, what is measured, and how each claim is judged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Protocol {
    /// File name of the experiment and of its results.
    pub name: String,
    pub title: String,
    pub question: String,
    /// What is expected and why, written down before measuring.
    pub hypothesis: String,
    pub factors: Vec<Factor>,
    pub grids: Vec<Grid>,
    pub metrics: Vec<Metric>,
    /// The relation to the baseline that each cell must show before anything of it is timed; the first that applies counts.
    pub checks: Vec<Check>,
    pub claims: Vec<Claim>,
    /// Figures of others that this experiment's figures are put against.
    #[serde(default)]
    pub published: Vec<Published>,
    pub plots: Vec<Plot>,
    /// Threats to validity.
    pub threats: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Factor {
    pub name: String,
    /// What is varied, in a few words; also the axis label of a plot.
    pub meaning: String,
    /// What single levels mean, where their names do not say it.
    pub levels: Vec<Level>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Level {
    pub name: String,
    pub meaning: String,
}

/// A full factorial over its axes. Grids of one name are parts of one table (models that need their own sizes, say).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Grid {
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
        f.pad(match self {
            Profile::Smoke => "smoke",
            Profile::Quick => "quick",
            Profile::Full => "full",
        })
    }
}

/// Text that lives as long as the process. (An alias, so that serde does not take it for a borrow of its input.)
pub type Text = &'static str;

/// A figure that tables and rules can name.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    #[serde(deserialize_with = "interned")]
    pub name: Text,
    /// Column head and axis label, without the unit.
    #[serde(deserialize_with = "interned")]
    pub label: Text,
    /// `B`, `s`, `1`, or `x` for a ratio.
    #[serde(deserialize_with = "interned")]
    pub unit: Text,
    pub pass: Pass,
    #[serde(default, skip_serializing_if = "is_usual")]
    pub role: Role,
    /// Whether two memory passes may differ in it: other processes move what is used of a device.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub moves: bool,
}

/// What a metric is there for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A column of tables.
    #[default]
    Column,
    /// Tables leave it out; rules, pictures and whoever reads the samples may want it.
    Detail,
    /// Its label says why PyTorch's bytes are more than ours; a step of ours gives, as the part `REASON.METRIC`, by how many bytes of that
    /// metric they are.
    Reason,
}

/// Reads text that a metric names: constants of experiments in which the same few come again and again, so each is kept once for the life
/// of the process.
fn interned<'de, D: serde::Deserializer<'de>>(input: D) -> std::result::Result<&'static str, D::Error> {
    String::deserialize(input).map(|text| intern(&text))
}

/// The one copy of a text that lives as long as the process.
pub fn intern(text: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(same) = known.get(text) {
        return same;
    }
    let own: &'static str = text.to_string().leak();
    known.insert(own);
    own
}

fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Metric {
    const fn new(name: &'static str, label: &'static str, unit: &'static str, pass: Pass) -> Metric {
        Metric { name, label, unit, pass, role: Role::Column, moves: false }
    }

    /// A figure that is counted once, as bytes are.
    pub const fn counted(name: &'static str, label: &'static str, unit: &'static str) -> Metric {
        Metric::new(name, label, unit, Pass::Memory)
    }

    /// A figure that moves from run to run, as times do, and so gets rounds.
    pub const fn timed(name: &'static str, label: &'static str, unit: &'static str) -> Metric {
        Metric::new(name, label, unit, Pass::Time)
    }

    /// The relative error of something that is compared with the baseline's; its name ends in `_error`.
    pub const fn compared(name: &'static str, label: &'static str) -> Metric {
        Metric::new(name, label, "1", Pass::Check)
    }

    /// The same figure under another label.
    pub const fn labelled(self, label: &'static str) -> Metric {
        Metric { label, ..self }
    }

    /// A figure for rules and pictures, which tables leave out.
    pub const fn detail(self) -> Metric {
        Metric { role: Role::Detail, ..self }
    }

    /// Why PyTorch's bytes are more than ours; see [`Role::Reason`].
    pub const fn reason(self) -> Metric {
        Metric { role: Role::Reason, ..self }
    }

    /// A count that other processes move, so that two passes may differ in it.
    pub const fn moving(self) -> Metric {
        Metric { moves: true, ..self }
    }
}

/// Peak of the bytes that tensors asked for during one step; the same notion on every device.
pub const PEAK: Metric = Metric::counted("requested_peak", "peak memory", "B");
/// What a step needs at its peak beyond what lives between steps: parameters, optimizer state, data.
pub const STEP_PEAK: Metric = Metric::counted("step_peak", "transient peak", "B");
/// Bytes still held for the backward pass when the forward pass is done.
pub const ACTIVATIONS: Metric = Metric::counted("activations", "saved activations", "B");
/// Bytes of the gradients when the backward pass is done.
pub const GRADIENTS: Metric = Metric::counted("gradients", "gradients", "B");
/// Wall-clock or device time of one work item of a step, after warm-up.
pub const TIME: Metric = Metric::timed("time", "time per step", "s");
/// Floating-point operations a second of one operation. The highest in fp32 on a machine is what its other figures are put against.
pub const COMPUTED: Metric = Metric::timed("computed", "rate", "FLOP/s");
/// The least fp32 operations of one work item, where they can be told, else 0: beside each time.
pub const LEAST_FLOPS: Metric = Metric::timed("least_flops", "operations, at least", "1");
/// Bytes a second over the link between host and device.
pub const BANDWIDTH: Metric = Metric::timed("bandwidth", "bandwidth", "B/s");
/// The same over what the link is specified for; more than 1 is a timing bug, and the cell invalid.
pub const LINK_SHARE: Metric = Metric::timed("link_share", "share of the link's bandwidth", "1");

/// Blocks that live at a step's peak, as parts `held.OPERATION.BYTES`.
pub const HELD: Metric = Metric::counted("held", "blocks alive at the peak", "1").detail();

// Factors that mean something to the runner and the report. Only the lab's own types of levels may be spelt so.

/// Who runs a cell: `vramlab`, as do all cells without it, or `pytorch`, the experiment's PyTorch reference (`peers/pytorch/`), whose figures
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
pub fn selects(select: &str, cell: &Cell) -> bool {
    let has = |term: &str| match term.split_once('=') {
        Some((factor, levels)) => cell.get(factor).is_some_and(|level| levels.split('|').any(|l| l == level)),
        None => false,
    };
    select.split(',').any(|alternative| alternative.split_whitespace().all(has))
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    pub when: Select,
    pub expect: Relation,
}

/// How a cell's outcome relates to its baseline's. Errors are relative: |a - b| / |b| in the Euclidean norm over all values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    Equal {
        tolerance: f64,
    },
    /// The baseline times the number that the cell's level of `factor` is.
    Times {
        factor: String,
        tolerance: f64,
    },
    /// The baseline divided by the number that the cell's level of `factor` is.
    DividedBy {
        factor: String,
        tolerance: f64,
    },
    /// So many times the baseline.
    Scaled {
        by: f64,
        tolerance: f64,
    },
    /// A wrong result that nothing reports: the relative error lies in this range. Nothing at all, which has an error of 1, is none.
    Differs {
        at_least: f64,
        at_most: f64,
    },
    /// A result of which this share or more is not there; it may be zero.
    Missing {
        at_least: f64,
    },
    /// The step fails with a message that contains this text.
    Raises {
        message: String,
    },
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub id: String,
    /// The guides that make it, by number.
    pub from: String,
    /// The claim in our words.
    pub text: String,
    pub judged_on: Vec<Platform>,
    pub rule: Rule,
    pub meaning: Meaning,
}

/// What a verdict means for the reader. `{effect}` and `{where}` stand for the measured effect and for the conditions under which
/// the claim holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Meaning {
    pub confirmed: String,
    pub refuted: String,
    pub depends: String,
    pub inconclusive: String,
}

/// A figure that someone published, and what reproduces it here. It is judged as claims are, and never mixed with them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Published {
    pub id: String,
    pub source: String,
    /// The figure as its source gives it.
    pub figure: String,
    /// Whose figures may be put against it.
    pub judged_on: Vec<Platform>,
    /// What reproduces it (confirms) and what does not (refutes); none where nothing that is measured here can be compared with it.
    pub rule: Option<Rule>,
    /// In what the cells here differ from the source's setup; without a rule, why nothing can be compared.
    pub setup: String,
}

/// Cells that the quick profile times at most.
const MOST_TIMED: usize = 10;

/// How far from a published figure a figure is still its reproduction: a tenth of it either way.
pub const REPRODUCES: f64 = 0.10;

/// How figures become a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The metric of each selected cell over that of its baseline cell: exact for bytes, an interval for times.
    Ratio {
        metric: String,
        of: Select,
        confirm: Bound,
        refute: Bound,
        /// Judge only where, in the baseline cell, one metric is at least this share of another.
        scope: Option<Share>,
    },
    /// How many of so many attempts came out so, as a share, over the baseline's share: with an interval, because both are counts of chance.
    Frequency {
        metric: String,
        /// The metric that counts the attempts.
        attempts: String,
        of: Select,
        confirm: Bound,
        refute: Bound,
        /// Judge only where the baseline's share is at least this.
        least: f64,
    },
    /// The metric of each selected cell as it is.
    Value { metric: String, of: Select, confirm: Bound, refute: Bound },
    /// Growth exponent of the metric along a numeric factor, between its two largest levels.
    Exponent { metric: String, along: String, of: Select, confirm: Bound, refute: Bound },
    /// Of the selected cells that differ in the studied factor alone, the one with the lowest or highest metric, over the highest of those
    /// that `over` selects: 'some of these are worse than the best', 'the best of these is better than that one'.
    Picked { metric: String, pick: Pick, of: Select, over: Select, confirm: Bound, refute: Bound },
    /// Whether one metric predicts another: their ratio, within each selected cell, lies in bounds in at least a share of the cells.
    Agreement { metric: String, reference: String, of: Select, within: Bound, share: f64 },
    /// Whether an effect grows along a numeric factor: Spearman's rank correlation of the factor and the metric's ratio to its baseline,
    /// over the selected cells that differ in that factor alone.
    Trend { metric: String, along: String, of: Select, confirm: Bound, refute: Bound },
    /// How often levels that are one thing under several names would be called different: the share of resamplings, each of two names
    /// and of rounds looked at as [`crate::rounds::usual`] says for the profile, in which the interval of a look excludes 1.
    FalseAlarms { metric: String, of: Select, at_most: f64 },
    /// Holds where all of these hold.
    All(Vec<Rule>),
    /// A part that is judged where it can be and that does not decide: without it a claim can still be confirmed.
    Beside(Box<Rule>),
    /// A rule that was changed after a look at figures.
    Changed {
        /// What was changed, when and why.
        what: String,
        /// The rule without the change; none where nothing that is measured today can answer it.
        before: Option<Box<Rule>>,
        now: Box<Rule>,
    },
}

/// Which of several cells a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pick {
    Lowest,
    Highest,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
    Within(f64, f64),
    /// Below the first or above the second.
    Outside(f64, f64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Bound::AtMost(x) => write!(f, "≤ {x}"),
            Bound::AtLeast(x) => write!(f, "≥ {x}"),
            Bound::Within(a, b) => write!(f, "{a} to {b}"),
            Bound::Outside(a, b) => write!(f, "< {a} or > {b}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    pub part: String,
    pub whole: String,
    pub at_least: f64,
}

/// A picture that answers a question at a glance; one is drawn for each machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    pub name: String,
    /// What the picture shows, as a sentence for its caption.
    pub caption: String,
    pub of: Select,
    pub metric: String,
    pub kind: PlotKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlotKind {
    /// The metric over a numeric factor, both axes logarithmic; a line for each combination of the `series` factors.
    Lines { x: String, series: Vec<String> },
    /// The metric relative to its baseline as bars, with intervals where there are any; a cluster for each combination of the
    /// `clusters` factors, a bar for each level of the studied factor.
    Bars { clusters: Vec<String> },
    /// Main effects on the metric over a full factorial design, and the interactions of each two, as ratios with intervals where there are
    /// any. Each level that a factor does not begin with is a thing of its own, `a+b` is two; a cluster for each combination of the other
    /// factors that vary.
    Effects { factors: Vec<String> },
    /// One point for each cell on a logarithmic axis, a row for each combination of the `rows` factors, a mark for each level of the
    /// studied factor, and a line at the threshold.
    Dots { rows: Vec<String>, threshold: f64 },
    /// What a whole is made of: a bar for each cell, named by the `rows` factors, whose parts are the details of the samples with this
    /// prefix.
    Shares { rows: Vec<String>, prefix: String },
    /// In place of a picture a table for each cell, named by the `rows` factors: what it is made of, the largest parts first, at most
    /// `most` of them and one row for the rest. The parts are details of the samples; each column's name is the prefix of its own, and
    /// the first column's figures rank them.
    Ranking { rows: Vec<String>, part: String, columns: Vec<Metric>, most: usize },
    /// Bytes stacked by what they are for, through the phases of a step: a panel for each cell, named by the `panels` factors (with
    /// several, the levels of the first share a row and its scale). The layers, the lowest first, are details of the samples: curves
    /// that are told at the points where they change. The metric `boundary` tells at which point each of the `phases` begins, and
    /// after the last where it ends.
    Area { panels: Vec<String>, layers: Vec<Metric>, boundary: String, phases: Vec<String> },
    /// The metric, from left to right, against the first of other metrics that there are figures of, from bottom to top: a point for each
    /// cell, named by the level of the studied factor, a look for each level of the `looks` factors, and a line along the cells
    /// that no other is better than in both.
    Pareto { against: Vec<String>, looks: Vec<String> },
    /// The metric, from bottom to top, against a reference that it should equal, from left to right: a point for each cell, a look for each
    /// level of the `looks` factors, and the line on which both are the same.
    Against { reference: String, looks: Vec<String> },
}

/// One combination of levels. Its canonical text is its identity everywhere: `model=mlp k=4`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    levels: Vec<(String, String)>,
}

impl Cell {
    pub fn new(levels: Vec<(String, String)>) -> Self {
        Cell { levels }
    }

    /// The level of a factor, where the cell has that factor.
    pub fn get(&self, factor: &str) -> Option<&str> {
        self.levels.iter().find(|(f, _)| f == factor).map(|(_, level)| level.as_str())
    }

    /// The level of a factor that the experiment relies on.
    ///
    /// # Errors
    /// The cell has no such factor.
    pub fn level(&self, factor: &str) -> Result<&str> {
        self.get(factor).with_context(|| format!("cell '{self}' has no factor '{factor}'"))
    }

    /// The level of a factor as a number.
    ///
    /// # Errors
    /// The cell has no such factor, or its level is no whole number.
    pub fn number(&self, factor: &str) -> Result<i64> {
        let level = self.level(factor)?;
        level.parse().with_context(|| format!("cell '{self}': {factor}={level} is no whole number"))
    }

    pub fn levels(&self) -> &[(String, String)] {
        &self.levels
    }

    /// Whether PyTorch in Python runs the cell; see [`BY`].
    pub fn is_reference(&self) -> bool {
        self.get(BY) == Some("pytorch")
    }

    /// The other side of a comparison with PyTorch in Python.
    pub fn other_side(&self) -> Cell {
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
    pub fn with(&self, factor: &str, level: &str) -> Cell {
        let replace = |(f, l): &(String, String)| (f.clone(), if f == factor { level.to_string() } else { l.clone() });
        Cell { levels: self.levels.iter().map(replace).collect() }
    }

    /// The cell's text without some factors: what it has in common with the cells it is compared with.
    pub fn without(&self, factors: &[&str]) -> String {
        let rest = self.levels.iter().filter(|(f, _)| !factors.contains(&f.as_str()));
        rest.map(|(f, l)| format!("{f}={l}")).collect::<Vec<_>>().join(" ")
    }

    /// Parses a canonical text.
    ///
    /// # Errors
    /// A term that is not `factor=level`, or no term at all.
    pub fn parse(text: &str) -> std::result::Result<Cell, String> {
        let terms = text.split(' ').map(|term| match term.split_once('=') {
            Some((factor, level)) if !factor.is_empty() && !level.is_empty() => Ok((factor.into(), level.into())),
            _ => Err(format!("'{text}' is no cell: '{term}' is not of the form factor=level")),
        });
        Ok(Cell { levels: terms.collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(&self.without(&[]))
    }
}

impl Grid {
    /// All cells of the grid, the last axis running fastest.
    pub fn cells(&self) -> Vec<Cell> {
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
        cells.into_iter().map(Cell::new).collect()
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

    /// The first level of the studied factor.
    pub fn baseline_level(&self) -> &str {
        self.levels_of(&self.studied).first().map_or("", String::as_str)
    }

    /// The cell that `cell` is compared with: itself where it is a baseline.
    pub fn baseline_of(&self, cell: &Cell) -> Cell {
        cell.with(&self.studied, self.baseline_level())
    }

    pub fn contains(&self, cell: &Cell) -> bool {
        cell.levels().len() == self.axes.len()
            && cell
                .levels()
                .iter()
                .zip(&self.axes)
                .all(|((factor, level), axis)| *factor == axis.factor && axis.levels.contains(level))
    }
}

impl Protocol {
    pub fn grids(&self, profile: Profile) -> impl Iterator<Item = &Grid> {
        self.grids.iter().filter(move |grid| grid.profiles.contains(&profile))
    }

    /// The grid of a profile that plans this cell.
    pub fn grid_of(&self, profile: Profile, cell: &Cell) -> Option<&Grid> {
        self.grids(profile).find(|grid| grid.contains(cell))
    }

    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    pub fn factor(&self, name: &str) -> Option<&Factor> {
        self.factors.iter().find(|factor| factor.name == name)
    }

    /// The relation that this cell must show to its baseline.
    pub fn check_of(&self, cell: &Cell) -> Option<&Relation> {
        self.checks.iter().find(|check| selects(&check.when, cell)).map(|check| &check.expect)
    }

    /// Rules of claims and published figures, each with the id of what it answers.
    fn judged(&self) -> impl Iterator<Item = (&str, &Rule)> {
        let claims = self.claims.iter().map(|claim| (claim.id.as_str(), &claim.rule));
        claims.chain(self.published.iter().filter_map(|p| Some((p.id.as_str(), p.rule.as_ref()?))))
    }

    /// What is wrong with the protocol itself: names that nothing defines or that two things have, cells planned twice, levels that cannot be
    /// written, selections of cells and levels that nobody plans, safeguards that guard nothing.
    pub fn mistakes(&self) -> Vec<String> {
        [self.doubled(), self.unplanned(), self.unmeasurable(), self.empty_safeguards()].concat()
    }

    /// Names that two things have.
    fn doubled(&self) -> Vec<String> {
        let doubled = |what: &str, names: Vec<&str>| -> Vec<String> {
            let is_second = |(position, name): &(usize, &&str)| names[..*position].contains(name);
            names.iter().enumerate().filter(is_second).map(|(_, name)| format!("two {what} are called '{name}'")).collect()
        };
        let claims = self.claims.iter().map(|claim| claim.id.as_str());
        [
            doubled("factors", self.factors.iter().map(|factor| factor.name.as_str()).collect()),
            doubled("metrics", self.metrics.iter().map(|metric| metric.name).collect()),
            doubled("claims or published figures", claims.chain(self.published.iter().map(|p| p.id.as_str())).collect()),
            doubled("pictures", self.plots.iter().map(|plot| plot.name.as_str()).collect()),
        ]
        .concat()
    }

    /// Selections of cells and levels that no grid has.
    fn unplanned(&self) -> Vec<String> {
        fn selected_by(rule: &Rule) -> Vec<&str> {
            let over = if let Rule::Picked { over, .. } = rule { Some(over.as_str()) } else { None };
            rule.select().into_iter().chain(over).collect()
        }
        let planned: Vec<Cell> = self.grids.iter().flat_map(Grid::cells).collect();
        let has = |factor: &str, level: &str| self.grids.iter().any(|grid| grid.levels_of(factor).iter().any(|own| own == level));
        let mut found = Vec::new();
        for (what, select) in self
            .judged()
            .flat_map(|(id, rule)| rule.parts().into_iter().flat_map(selected_by).map(move |select| (id, select)))
            .chain(self.plots.iter().map(|plot| (plot.name.as_str(), plot.of.as_str())))
            .chain(self.checks.iter().map(|check| ("a check", check.when.as_str())))
        {
            if !planned.iter().any(|cell| selects(select, cell)) {
                found.push(format!("{what} is about '{select}', and no such cell is planned"));
            }
            for (factor, levels) in select.split([',', ' ']).filter_map(|term| term.split_once('=')) {
                let unknown = levels.split('|').filter(|level| !has(factor, level));
                found.extend(unknown.map(|level| format!("{what} is about '{factor}={level}', and no grid has that level")));
            }
        }
        found
    }

    /// What cannot be measured or told as it is planned.
    fn unmeasurable(&self) -> Vec<String> {
        let mut found = Vec::new();
        for claim in &self.claims {
            let Meaning { confirmed, refuted, depends, inconclusive } = &claim.meaning;
            if [confirmed, refuted, depends, inconclusive].iter().any(|text| text.is_empty()) {
                found.push(format!("a verdict on '{}' has no meaning", claim.id));
            }
        }
        let timed = self.grids(Profile::Quick).filter(|grid| grid.passes.contains(&Pass::Time)).flat_map(Grid::cells);
        // A reference's cells stand beside ours and repeat them.
        let timed = timed.filter(|cell| !cell.is_reference()).count();
        if timed > MOST_TIMED {
            found.push(format!("profile quick times {timed} cells, more than {MOST_TIMED}: nobody waits so long"));
        }
        for grid in &self.grids {
            for axis in &grid.axes {
                if self.factor(&axis.factor).is_none() {
                    found.push(format!("grid '{}' varies '{}', which is no factor", grid.name, axis.factor));
                }
                if axis.levels.iter().any(|l| l.is_empty() || l.contains([' ', '=', '|', ','])) {
                    found.push(format!(
                        "grid '{}', factor '{}': a level is empty or has a reserved character",
                        grid.name, axis.factor
                    ));
                }
            }
            if grid.levels_of(&grid.studied).len() < 2 {
                found.push(format!("grid '{}' studies '{}' and has fewer than two levels of it", grid.name, grid.studied));
            }
        }
        for profile in [Profile::Smoke, Profile::Quick, Profile::Full] {
            let mut cells: Vec<Cell> = self.grids(profile).flat_map(Grid::cells).collect();
            if cells.is_empty() {
                found.push(format!("profile {profile} plans no cell"));
            }
            let checked = self.grids(profile).filter(|grid| grid.passes.contains(&Pass::Check)).flat_map(Grid::cells);
            found.extend(checked.filter(|c| self.check_of(c).is_none()).map(|c| format!("no check applies to {c}")));
            let planned = cells.len();
            cells.sort();
            cells.dedup();
            if cells.len() < planned {
                found.push(format!("profile {profile} plans a cell twice"));
            }
        }
        let named = self.judged().flat_map(|(_, rule)| rule.metrics()).chain(self.plots.iter().map(|p| p.metric.as_str()));
        found.extend(named.filter(|m| self.metric(m).is_none()).map(|m| format!("'{m}' is no metric of the protocol")));
        found
    }

    /// What looks like a safeguard and is none: checks that no pass runs, or that let a wrong outcome pass; rules that give what moves no
    /// interval.
    fn empty_safeguards(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (position, check) in self.checks.iter().enumerate() {
            let is_run = |grid: &Grid| {
                let applies = |cell: &Cell| self.checks.iter().position(|other| selects(&other.when, cell)) == Some(position);
                // Against itself a baseline shows nothing, unless it is to fail; a check that must name baselines stands beside one that shows.
                let shows =
                    |cell: &Cell| grid.baseline_of(cell) != *cell || matches!(self.check_of(cell), Some(Relation::Raises { .. }));
                let cells = grid.cells();
                grid.passes.contains(&Pass::Check) && cells.iter().any(applies) && cells.iter().any(shows)
            };
            if !self.grids.iter().any(is_run) {
                found.push(format!("no pass runs the check of '{}': drop it, or give cells of it the pass", check.when));
            }
            if let Some(what) = check.expect.lets_pass() {
                found.push(format!("the check of '{}' lets {what} pass, so it checks nothing", check.when));
            }
        }
        for rule in self.claims.iter().flat_map(|claim| claim.rule.parts()) {
            if let Rule::Exponent { metric, .. } | Rule::Agreement { metric, .. } = rule
                && self.metric(metric).is_some_and(|metric| metric.pass == Pass::Time)
            {
                found.push(format!("'{metric}' moves from run to run, and this kind of rule gives it no interval"));
            }
        }
        found
    }
}

/// The largest relative error that may still be called equal: nothing at all has one of 1, the opposite one of 2.
const LARGEST_TOLERANCE: f64 = 0.5;

impl Relation {
    /// What wrong outcome the relation would let pass; none where it lets none.
    fn lets_pass(&self) -> Option<&'static str> {
        match self {
            // Zero has a relative error of 1.
            Relation::Equal { tolerance } | Relation::Times { tolerance, .. } | Relation::DividedBy { tolerance, .. }
                if !(0.0..=LARGEST_TOLERANCE).contains(tolerance) =>
            {
                Some("an outcome that is far off")
            }
            Relation::Scaled { by, tolerance } if (1.0 - by).abs() / by.abs() <= *tolerance => {
                Some("a copy of the baseline's outcome")
            }
            Relation::Scaled { tolerance, .. } if !(0.0..=LARGEST_TOLERANCE).contains(tolerance) => {
                Some("an outcome that is far off")
            }
            Relation::Differs { at_least, .. } | Relation::Missing { at_least } if *at_least <= 0.0 => {
                Some("a copy of the baseline's outcome")
            }
            Relation::Missing { at_least } if *at_least > 1.0 => Some("no outcome at all"),
            Relation::Raises { message } if message.is_empty() => Some("any error"),
            _ => None,
        }
    }
}

impl Rule {
    /// The cells that the rule is about; none for a rule of several parts.
    pub fn select(&self) -> Option<&str> {
        match self {
            Rule::Ratio { of, .. } | Rule::Value { of, .. } | Rule::Exponent { of, .. } => Some(of),
            Rule::Trend { of, .. } | Rule::Agreement { of, .. } | Rule::Picked { of, .. } => Some(of),
            Rule::FalseAlarms { of, .. } | Rule::Frequency { of, .. } => Some(of),
            Rule::Beside(rule) | Rule::Changed { now: rule, .. } => rule.select(),
            Rule::All(_) => None,
        }
    }

    /// The rules that must all hold, each without what is said about it: a rule of several parts is those parts, every other itself.
    pub fn parts(&self) -> Vec<&Rule> {
        self.weighed().into_iter().map(|(rule, _)| rule).collect()
    }

    /// [`Rule::parts`], each with whether it decides.
    pub fn weighed(&self) -> Vec<(&Rule, bool)> {
        match self {
            Rule::All(parts) => parts.iter().flat_map(Rule::weighed).collect(),
            Rule::Beside(rule) => rule.parts().into_iter().map(|rule| (rule, false)).collect(),
            Rule::Changed { now, .. } => now.weighed(),
            rule => vec![(rule, true)],
        }
    }

    /// What of the rule was changed after a look at figures, and the rule as it was.
    pub fn changed(&self) -> Option<(&str, Option<&Rule>)> {
        match self {
            Rule::Changed { what, before, .. } => Some((what, before.as_deref())),
            _ => None,
        }
    }

    /// Whether the rule reads this cell's figures.
    pub fn selects(&self, cell: &Cell) -> bool {
        let beside = if let Rule::Picked { over, .. } = self { Some(over.as_str()) } else { None };
        self.select().into_iter().chain(beside).any(|select| selects(select, cell))
    }

    /// The metrics that the rule reads.
    pub fn metrics(&self) -> Vec<&str> {
        match self {
            Rule::Ratio { metric, .. } | Rule::Value { metric, .. } | Rule::Exponent { metric, .. } => vec![metric],
            Rule::Trend { metric, .. } | Rule::Picked { metric, .. } => vec![metric],
            Rule::Agreement { metric, reference: other, .. } | Rule::Frequency { metric, attempts: other, .. } => {
                vec![metric, other]
            }
            Rule::FalseAlarms { metric, .. } => vec![metric],
            Rule::All(rules) => rules.iter().flat_map(Rule::metrics).collect(),
            Rule::Beside(rule) | Rule::Changed { now: rule, .. } => rule.metrics(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        Grid {
            name: "memory".into(),
            profiles: vec![Profile::Smoke, Profile::Quick, Profile::Full],
            studied: "k".into(),
            axes: vec![axis("model", &["mlp", "gpt"]), axis("k", &["1", "4"])],
            passes: vec![Pass::Check],
            only_on: vec![],
        }
    }

    fn protocol() -> Protocol {
        let factor = |name: &str| Factor { name: name.into(), meaning: String::new(), levels: vec![] };
        Protocol {
            factors: vec![factor("model"), factor("k")],
            grids: vec![grid()],
            metrics: vec![PEAK, TIME],
            checks: vec![check("")],
            ..Protocol::default()
        }
    }

    fn check(when: &str) -> Check {
        Check { when: when.into(), expect: Relation::Equal { tolerance: 1e-4 } }
    }

    fn rule(of: &str) -> Rule {
        let (confirm, refute) = (Bound::AtMost(0.6), Bound::AtLeast(0.9));
        Rule::Ratio { metric: PEAK.name.into(), of: of.into(), confirm, refute, scope: None }
    }

    fn claim(id: &str, of: &str) -> Claim {
        let [confirmed, refuted, depends, inconclusive] = [(); 4].map(|()| "so".to_string());
        let meaning = Meaning { confirmed, refuted, depends, inconclusive };
        Claim { id: id.into(), from: String::new(), text: String::new(), judged_on: vec![], rule: rule(of), meaning }
    }

    fn published(id: &str) -> Published {
        let [source, figure, setup] = [(); 3].map(|()| String::new());
        Published { id: id.into(), source, figure, judged_on: vec![], rule: None, setup }
    }

    #[test]
    fn cells_and_baselines() {
        let grid = grid();
        let cells = grid.cells();
        assert_eq!(
            cells.iter().map(Cell::to_string).collect::<Vec<_>>(),
            ["model=mlp k=1", "model=mlp k=4", "model=gpt k=1", "model=gpt k=4"]
        );
        assert_eq!(grid.baseline_of(&cells[3]), cells[2]);
        assert_eq!(cells[3].without(&["k"]), "model=gpt");
        assert!(grid.contains(&cells[1]) && !grid.contains(&cells[1].with("k", "8")));
        for cell in &cells {
            assert_eq!(Cell::parse(&cell.to_string()).as_ref(), Ok(cell));
        }
        assert!(Cell::parse("model").is_err() && Cell::parse("").is_err() && Cell::parse("a=1  b=2").is_err());
    }

    #[test]
    fn selections() {
        let cell = Cell::parse("model=gpt k=4").unwrap();
        assert!(selects("", &cell) && selects("k=2|4 model=gpt", &cell));
        assert!(!selects("k=2", &cell) && !selects("depth=8", &cell) && !selects("k", &cell));
    }

    #[test]
    fn a_name_that_two_things_have_is_a_mistake() {
        assert_eq!(protocol().mistakes(), Vec::<String>::new());
        let twice = |of: &str| format!("two {of}");
        let two_claims = Protocol { claims: vec![claim("less", ""), claim("more", ""), claim("less", "k=4")], ..protocol() };
        assert_eq!(two_claims.mistakes(), [twice("claims or published figures are called 'less'")]);
        let two_published = Protocol { published: vec![published("table"), published("table")], ..protocol() };
        assert_eq!(two_published.mistakes(), [twice("claims or published figures are called 'table'")]);
        let of_both = Protocol { claims: vec![claim("less", "")], published: vec![published("less")], ..protocol() };
        assert_eq!(of_both.mistakes(), [twice("claims or published figures are called 'less'")]);
        let other_unit = Metric { unit: "1", ..PEAK };
        let two_metrics = Protocol { metrics: vec![PEAK, TIME, other_unit], ..protocol() };
        assert_eq!(two_metrics.mistakes(), [twice("metrics are called 'requested_peak'")]);
        let mut two_factors = protocol();
        two_factors.factors.push(two_factors.factors[1].clone());
        assert_eq!(two_factors.mistakes(), [twice("factors are called 'k'")]);
    }

    #[test]
    fn a_selection_of_what_nobody_plans_is_a_mistake() {
        let claimed = |of: &str| Protocol { claims: vec![claim("less", of)], ..protocol() }.mistakes();
        assert_eq!(claimed("model=mlp|gpt k=4"), Vec::<String>::new());
        assert_eq!(claimed("k=4|16"), ["less is about 'k=16', and no grid has that level"]);
        let found = claimed("depth=8");
        assert_eq!(
            found,
            ["less is about 'depth=8', and no such cell is planned", "less is about 'depth=8', and no grid has that level"]
        );
        let published = Published { rule: Some(rule("model=mlp k=16")), ..published("table") };
        assert_eq!(Protocol { published: vec![published], ..protocol() }.mistakes().len(), 2);
        // Each level is planned somewhere, and never both together.
        let other = Grid { axes: vec![axis("model", &["bert"]), axis("k", &["1", "8"])], ..grid() };
        let plot = Plot {
            name: "p".into(),
            caption: String::new(),
            of: "model=bert k=4".into(),
            metric: TIME.name.into(),
            kind: PlotKind::Bars { clusters: vec![] },
        };
        let apart = Protocol { grids: vec![grid(), other], plots: vec![plot], ..protocol() };
        assert_eq!(apart.mistakes(), ["p is about 'model=bert k=4', and no such cell is planned"]);
    }

    #[test]
    fn checks_that_nothing_runs_and_that_check_nothing_are_mistakes() {
        let uncounted = Grid { passes: vec![Pass::Memory], axes: vec![axis("model", &["bert"]), axis("k", &["1", "4"])], ..grid() };
        let found = |checks: Vec<Check>| Protocol { grids: vec![grid(), uncounted.clone()], checks, ..protocol() }.mistakes();
        assert_eq!(found(vec![check("")]), Vec::<String>::new());
        assert_eq!(
            found(vec![check("k=1"), check("")]),
            Vec::<String>::new(),
            "one that names baselines stands beside one that shows"
        );
        for unrun in [vec![check("model=bert"), check("")], vec![check(""), check("k=4")]] {
            let found = found(unrun);
            assert!(found.len() == 1 && found[0].starts_with("no pass runs the check"), "{found:?}");
        }
        assert!(found(vec![]).iter().all(|mistake| mistake.starts_with("no check applies to ")) && found(vec![]).len() == 12);
        use Relation::{Differs, Equal, Missing, Raises, Scaled, Times};
        for empty in [
            Equal { tolerance: 0.6 },
            Equal { tolerance: f64::NAN },
            Times { factor: "k".into(), tolerance: 1.0 },
            Scaled { by: 1.0, tolerance: 1e-4 },
            Scaled { by: 4.0, tolerance: 0.8 },
            Differs { at_least: 0.0, at_most: 2.0 },
            Missing { at_least: 0.0 },
            Raises { message: String::new() },
        ] {
            assert!(empty.lets_pass().is_some(), "{empty:?}");
        }
        for sound in [
            Equal { tolerance: 0.0 },
            Scaled { by: 4.0, tolerance: 1e-4 },
            Differs { at_least: 1e-3, at_most: 2.0 },
            Missing { at_least: 0.25 },
            Raises { message: "CUDA".into() },
        ] {
            assert_eq!(sound.lets_pass(), None, "{sound:?}");
        }
    }
}
