//! What an experiment is, as plain data: factors, cells, metrics, checks, claims and their rules.
//!
//! An experiment file writes its [`Protocol`] as a constant. The same value is stored in every `run.json`, so that old results keep
//! the protocol they were taken with and the reporter needs no list of experiments.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How text and lists that are constants in an experiment file are read back from a `run.json`: they are kept for the life of the
/// process, which reads a handful of them once.
mod kept {
    use serde::{Deserialize, Deserializer};

    pub fn text<'de, D: Deserializer<'de>>(input: D) -> Result<&'static str, D::Error> {
        String::deserialize(input).map(|text| &*text.leak())
    }

    pub fn texts<'de, D: Deserializer<'de>>(input: D) -> Result<&'static [&'static str], D::Error> {
        let texts = Vec::<String>::deserialize(input)?;
        Ok(texts.into_iter().map(|text| &*text.leak()).collect::<Vec<&'static str>>().leak())
    }

    pub fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(input: D) -> Result<&'static [T], D::Error> {
        Vec::<T>::deserialize(input).map(|items| &*items.leak())
    }

    pub fn one<'de, D: Deserializer<'de>, T: Deserialize<'de>>(input: D) -> Result<&'static T, D::Error> {
        T::deserialize(input).map(|item| &*Box::leak(Box::new(item)))
    }

    pub fn perhaps<'de, D: Deserializer<'de>, T: Deserialize<'de>>(input: D) -> Result<Option<&'static T>, D::Error> {
        Option::<T>::deserialize(input).map(|item| item.map(|item| &*Box::leak(Box::new(item))))
    }
}

/// Text that is a constant, or was read from a `run.json`. (An alias, so that serde does not take it for a borrow of its input.)
pub type Text = &'static str;

/// One experiment: what is asked, what is varied, what is measured, and how each claim is judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Protocol {
    /// File name of the experiment and of its results.
    #[serde(deserialize_with = "kept::text")]
    pub name: Text,
    #[serde(deserialize_with = "kept::text")]
    pub title: Text,
    #[serde(deserialize_with = "kept::text")]
    pub question: Text,
    /// What is expected and why, written down before measuring.
    #[serde(deserialize_with = "kept::text")]
    pub hypothesis: Text,
    #[serde(deserialize_with = "kept::list")]
    pub factors: &'static [Factor],
    #[serde(deserialize_with = "kept::list")]
    pub grids: &'static [Grid],
    #[serde(deserialize_with = "kept::list")]
    pub metrics: &'static [Metric],
    /// The relation to the baseline that each cell must show before anything of it is timed; the first that applies counts.
    #[serde(deserialize_with = "kept::list")]
    pub checks: &'static [Check],
    #[serde(deserialize_with = "kept::list")]
    pub claims: &'static [Claim],
    /// Figures of others that this experiment's figures are put against.
    #[serde(default, deserialize_with = "kept::list")]
    pub published: &'static [Published],
    #[serde(deserialize_with = "kept::list")]
    pub plots: &'static [Plot],
    /// Threats to validity.
    #[serde(deserialize_with = "kept::texts")]
    pub threats: &'static [&'static str],
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Factor {
    #[serde(deserialize_with = "kept::text")]
    pub name: Text,
    /// What is varied, in a few words; also the axis label of a plot.
    #[serde(deserialize_with = "kept::text")]
    pub meaning: Text,
    /// What single levels mean, where their names do not say it.
    #[serde(deserialize_with = "kept::list")]
    pub levels: &'static [Level],
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Level {
    #[serde(deserialize_with = "kept::text")]
    pub name: Text,
    #[serde(deserialize_with = "kept::text")]
    pub meaning: Text,
}

/// A full factorial over its axes. Grids of one name are parts of one table (models that need their own sizes, say).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    #[serde(deserialize_with = "kept::text")]
    pub name: Text,
    #[serde(deserialize_with = "kept::list")]
    pub profiles: &'static [Profile],
    /// The factor whose levels are compared; its first level in this grid is their baseline.
    #[serde(deserialize_with = "kept::text")]
    pub studied: Text,
    #[serde(deserialize_with = "kept::list")]
    pub axes: &'static [Axis],
    #[serde(deserialize_with = "kept::list")]
    pub passes: &'static [Pass],
    /// Devices that have what the grid is about; on others its cells are skipped. Empty: all.
    #[serde(default, deserialize_with = "kept::list")]
    pub only_on: &'static [Platform],
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    #[serde(deserialize_with = "kept::text")]
    pub factor: Text,
    #[serde(deserialize_with = "kept::texts")]
    pub levels: &'static [&'static str],
}

/// Shorthand for an [`Axis`], so that a grid reads as a table.
pub const fn axis(factor: &'static str, levels: &'static [&'static str]) -> Axis {
    Axis { factor, levels }
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

/// A figure that tables and rules can name.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    #[serde(deserialize_with = "kept::text")]
    pub name: Text,
    /// Column head and axis label, without the unit.
    #[serde(deserialize_with = "kept::text")]
    pub label: Text,
    /// `B`, `s`, `1`, or `x` for a ratio.
    #[serde(deserialize_with = "kept::text")]
    pub unit: Text,
    pub pass: Pass,
}

/// Peak of the bytes that tensors asked for during one step; the same notion on every device.
pub const PEAK: Metric = Metric { name: "requested_peak", label: "peak memory", unit: "B", pass: Pass::Memory };
/// What a step needs at its peak beyond what lives between steps: parameters, optimizer state, data.
pub const STEP_PEAK: Metric = Metric { name: "step_peak", label: "transient peak", unit: "B", pass: Pass::Memory };
/// Bytes still held for the backward pass when the forward pass is done.
pub const ACTIVATIONS: Metric = Metric { name: "activations", label: "saved activations", unit: "B", pass: Pass::Memory };
/// Bytes of the gradients when the backward pass is done.
pub const GRADIENTS: Metric = Metric { name: "gradients", label: "gradients", unit: "B", pass: Pass::Memory };
/// Wall-clock or device time of one work item of a step, after warm-up.
pub const TIME: Metric = Metric { name: "time", label: "time per step", unit: "s", pass: Pass::Time };
/// Floating-point operations a second of one operation. The highest in fp32 on a machine is what its other figures are put against.
pub const COMPUTED: Metric = Metric { name: "computed", label: "rate", unit: "FLOP/s", pass: Pass::Time };
/// The least fp32 operations of one work item, where they can be told, else 0: beside each time.
pub const LEAST_FLOPS: Metric = Metric { name: "least_flops", label: "operations, at least", unit: "1", pass: Pass::Time };
/// Bytes a second over the link between host and device.
pub const BANDWIDTH: Metric = Metric { name: "bandwidth", label: "bandwidth", unit: "B/s", pass: Pass::Time };
/// The same over what the link is specified for; more than 1 is a timing bug, and the cell invalid.
pub const LINK_SHARE: Metric = Metric { name: "link_share", label: "share of the link's bandwidth", unit: "1", pass: Pass::Time };

/// The factor that the runner itself sets: the device is limited to as much memory as the level says (`96MiB`).
pub const DEVICE_MEMORY: &str = "device-memory";

/// The other factor that the runner itself sets: the allocator's settings (`PYTORCH_ALLOC_CONF`), or `default`.
pub const ALLOC_CONF: &str = "alloc-conf";

/// The factor by which the runner sets how many threads libtorch computes with: a number, or `all`, which is as many as the user says or
/// the machine has.
pub const THREADS: &str = "threads";

/// The factor whose levels are types of numbers.
pub const DTYPE: &str = "dtype";

/// The factor that says who runs a cell: `vramlab`, as do all cells without it, or `pytorch`, the experiment's PyTorch reference
/// (`peers/pytorch/`), whose figures carry verdicts about [`Platform::Python`].
pub const BY: &str = "by";

/// Which cells something applies to: `k=4 recipe=divide|weighted`, or several such alternatives after commas; empty applies to all.
pub type Select = Text;

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
    #[serde(deserialize_with = "kept::text")]
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
        #[serde(deserialize_with = "kept::text")]
        factor: Text,
        tolerance: f64,
    },
    /// The baseline divided by the number that the cell's level of `factor` is.
    DividedBy {
        #[serde(deserialize_with = "kept::text")]
        factor: Text,
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
        #[serde(deserialize_with = "kept::text")]
        message: Text,
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
    #[serde(deserialize_with = "kept::text")]
    pub id: Text,
    /// The guides that make it, by number.
    #[serde(deserialize_with = "kept::text")]
    pub from: Text,
    /// The claim in our words.
    #[serde(deserialize_with = "kept::text")]
    pub text: Text,
    #[serde(deserialize_with = "kept::list")]
    pub judged_on: &'static [Platform],
    pub rule: Rule,
    pub meaning: Meaning,
}

/// What a verdict means for the reader. `{effect}` and `{where}` stand for the measured effect and for the conditions under which
/// the claim holds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Meaning {
    #[serde(deserialize_with = "kept::text")]
    pub confirmed: Text,
    #[serde(deserialize_with = "kept::text")]
    pub refuted: Text,
    #[serde(deserialize_with = "kept::text")]
    pub depends: Text,
    #[serde(deserialize_with = "kept::text")]
    pub inconclusive: Text,
}

/// A figure that someone published, and what reproduces it here. It is judged as claims are, and never mixed with them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Published {
    #[serde(deserialize_with = "kept::text")]
    pub id: Text,
    #[serde(deserialize_with = "kept::text")]
    pub source: Text,
    /// The figure as its source gives it.
    #[serde(deserialize_with = "kept::text")]
    pub figure: Text,
    /// Whose figures may be put against it.
    #[serde(deserialize_with = "kept::list")]
    pub judged_on: &'static [Platform],
    /// What reproduces it (confirms) and what does not (refutes); none where nothing that is measured here can be compared with it.
    pub rule: Option<Rule>,
    /// In what the cells here differ from the source's setup; without a rule, why nothing can be compared.
    #[serde(deserialize_with = "kept::text")]
    pub setup: Text,
}

/// Cells that the quick profile times at most.
const MOST_TIMED: usize = 10;

/// How far from a published figure a figure is still its reproduction: a tenth of it either way.
pub const REPRODUCES: f64 = 0.10;

/// What reproduces a published ratio of a metric to its baseline's.
pub const fn published_ratio(metric: &Metric, of: Select, figure: f64) -> Rule {
    let (confirm, refute) = around(figure);
    Rule::Ratio { metric: metric.name, of, confirm, refute, scope: None }
}

/// What reproduces a published value of a metric, in the metric's unit.
pub const fn published_value(metric: &Metric, of: Select, figure: f64) -> Rule {
    let (confirm, refute) = around(figure);
    Rule::Value { metric: metric.name, of, confirm, refute }
}

const fn around(figure: f64) -> (Bound, Bound) {
    let (low, high) = (figure * (1.0 - REPRODUCES), figure * (1.0 + REPRODUCES));
    (Bound::Within(low, high), Bound::Outside(low, high))
}

/// How figures become a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The metric of each selected cell over that of its baseline cell: exact for bytes, an interval for times.
    Ratio {
        #[serde(deserialize_with = "kept::text")]
        metric: Text,
        #[serde(deserialize_with = "kept::text")]
        of: Select,
        confirm: Bound,
        refute: Bound,
        /// Judge only where, in the baseline cell, one metric is at least this share of another.
        scope: Option<Share>,
    },
    /// How many of so many attempts came out so, as a share, over the baseline's share: with an interval, because both are counts of chance.
    Frequency {
        #[serde(deserialize_with = "kept::text")]
        metric: Text,
        /// The metric that counts the attempts.
        #[serde(deserialize_with = "kept::text")]
        attempts: Text,
        #[serde(deserialize_with = "kept::text")]
        of: Select,
        confirm: Bound,
        refute: Bound,
        /// Judge only where the baseline's share is at least this.
        least: f64,
    },
    /// The metric of each selected cell as it is.
    Value {
        #[serde(deserialize_with = "kept::text")]
        metric: Text,
        #[serde(deserialize_with = "kept::text")]
        of: Select,
        confirm: Bound,
        refute: Bound,
    },
    /// Growth exponent of the metric along a numeric factor, between its two largest levels.
    Exponent {
        #[serde(deserialize_with = "kept::text")]
        metric: Text,
        #[serde(deserialize_with = "kept::text")]
        along: Text,
        #[serde(deserialize_with = "kept::text")]
        of: Select,
        confirm: Bound,
        refute: Bound,
    },
    /// Of the selected cells that differ in the studied factor alone, the one with the lowest or highest metric, over the highest of those
    /// that `over` selects: 'some of these are worse than the best', 'the best of these is better than that one'.
    Picked {
        #[serde(deserialize_with = "kept::text")]
        metric: Text,
        pick: Pick,
        #[serde(deserialize_with = "kept::text")]
        of: Select,
        #[serde(deserialize_with = "kept::text")]
        over: Select,
        confirm: Bound,
        refute: Bound,
    },
    /// Whether one metric predicts another: their ratio, within each selected cell, lies in bounds in at least a share of the cells.
    Agreement {
        #[serde(deserialize_with = "kept::text")]
        metric: Text,
        #[serde(deserialize_with = "kept::text")]
        reference: Text,
        #[serde(deserialize_with = "kept::text")]
        of: Select,
        within: Bound,
        share: f64,
    },
    /// Whether an effect grows along a numeric factor: Spearman's rank correlation of the factor and the metric's ratio to its baseline,
    /// over the selected cells that differ in that factor alone.
    Trend {
        #[serde(deserialize_with = "kept::text")]
        metric: Text,
        #[serde(deserialize_with = "kept::text")]
        along: Text,
        #[serde(deserialize_with = "kept::text")]
        of: Select,
        confirm: Bound,
        refute: Bound,
    },
    /// How often levels that are one thing under several names would be called different: the share of resamplings, each of two names
    /// and of rounds looked at as [`crate::rounds::usual`] says for the profile, in which the interval of a look excludes 1.
    FalseAlarms {
        #[serde(deserialize_with = "kept::text")]
        metric: Text,
        #[serde(deserialize_with = "kept::text")]
        of: Select,
        at_most: f64,
    },
    /// Holds where all of these hold.
    All(#[serde(deserialize_with = "kept::list")] &'static [Rule]),
    /// A part that is judged where it can be and that does not decide: without it a claim can still be confirmed.
    Beside(#[serde(deserialize_with = "kept::one")] &'static Rule),
    /// A rule that was changed after a look at figures.
    Changed {
        /// What was changed, when and why.
        #[serde(deserialize_with = "kept::text")]
        what: Text,
        /// The rule without the change; none where nothing that is measured today can answer it.
        #[serde(deserialize_with = "kept::perhaps")]
        before: Option<&'static Rule>,
        #[serde(deserialize_with = "kept::one")]
        now: &'static Rule,
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
    #[serde(deserialize_with = "kept::text")]
    pub part: Text,
    #[serde(deserialize_with = "kept::text")]
    pub whole: Text,
    pub at_least: f64,
}

/// A picture that answers a question at a glance; one is drawn for each machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    #[serde(deserialize_with = "kept::text")]
    pub name: Text,
    /// What the picture shows, as a sentence for its caption.
    #[serde(deserialize_with = "kept::text")]
    pub caption: Text,
    #[serde(deserialize_with = "kept::text")]
    pub of: Select,
    #[serde(deserialize_with = "kept::text")]
    pub metric: Text,
    pub kind: PlotKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlotKind {
    /// The metric over a numeric factor, both axes logarithmic; a line for each combination of the `series` factors.
    Lines {
        #[serde(deserialize_with = "kept::text")]
        x: Text,
        #[serde(deserialize_with = "kept::texts")]
        series: &'static [&'static str],
    },
    /// The metric relative to its baseline as bars, with intervals where there are any; a cluster for each combination of the
    /// `clusters` factors, a bar for each level of the studied factor.
    Bars {
        #[serde(deserialize_with = "kept::texts")]
        clusters: &'static [&'static str],
    },
    /// Main effects on the metric over a full factorial design, and the interactions of each two, as ratios with intervals where there are
    /// any. Each level that a factor does not begin with is a thing of its own, `a+b` is two; a cluster for each combination of the other
    /// factors that vary.
    Effects {
        #[serde(deserialize_with = "kept::texts")]
        factors: &'static [&'static str],
    },
    /// One point for each cell on a logarithmic axis, a row for each combination of the `rows` factors, a mark for each level of the
    /// studied factor, and a line at the threshold.
    Dots {
        #[serde(deserialize_with = "kept::texts")]
        rows: &'static [&'static str],
        threshold: f64,
    },
    /// What a whole is made of: a bar for each cell, named by the `rows` factors, whose parts are the details of the samples with this
    /// prefix.
    Shares {
        #[serde(deserialize_with = "kept::texts")]
        rows: &'static [&'static str],
        #[serde(deserialize_with = "kept::text")]
        prefix: Text,
    },
    /// In place of a picture a table for each cell, named by the `rows` factors: what it is made of, the largest parts first, at most
    /// `most` of them and one row for the rest. The parts are details of the samples; each column's name is the prefix of its own, and
    /// the first column's figures rank them.
    Ranking {
        #[serde(deserialize_with = "kept::texts")]
        rows: &'static [&'static str],
        #[serde(deserialize_with = "kept::text")]
        part: Text,
        #[serde(deserialize_with = "kept::list")]
        columns: &'static [Metric],
        most: usize,
    },
    /// Bytes stacked by what they are for, through the phases of a step: a panel for each cell, named by the `panels` factors (with
    /// several, the levels of the first share a row and its scale). The layers, the lowest first, are details of the samples: curves
    /// that are told at the points where they change. The metric `boundary` tells at which point each of the `phases` begins, and
    /// after the last where it ends.
    Area {
        #[serde(deserialize_with = "kept::texts")]
        panels: &'static [&'static str],
        #[serde(deserialize_with = "kept::list")]
        layers: &'static [Metric],
        #[serde(deserialize_with = "kept::text")]
        boundary: Text,
        #[serde(deserialize_with = "kept::texts")]
        phases: &'static [&'static str],
    },
    /// The metric, from left to right, against the first of other metrics that there are figures of, from bottom to top: a point for each
    /// cell, named by the level of the studied factor, a look for each level of the `looks` factors, and a line along the cells
    /// that no other is better than in both.
    Pareto {
        #[serde(deserialize_with = "kept::texts")]
        against: &'static [&'static str],
        #[serde(deserialize_with = "kept::texts")]
        looks: &'static [&'static str],
    },
    /// The metric, from bottom to top, against a reference that it should equal, from left to right: a point for each cell, a look for each
    /// level of the `looks` factors, and the line on which both are the same.
    Against {
        #[serde(deserialize_with = "kept::text")]
        reference: Text,
        #[serde(deserialize_with = "kept::texts")]
        looks: &'static [&'static str],
    },
}

/// Whether a metric is a detail: pictures and whoever reads the samples may want it, tables leave it out. Its name has a dot.
pub fn is_detail(metric: &str) -> bool {
    metric.contains('.')
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
        for axis in self.axes {
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
    pub fn levels_of(&self, factor: &str) -> &'static [&'static str] {
        self.axes.iter().find(|axis| axis.factor == factor).map_or(&[], |axis| axis.levels)
    }

    /// Whether both sides of each comparison do the very same: a grid that studies [`BY`] and checks. Ours then hands its start over to the
    /// reference, and the check of ours compares its outcome with the reference's.
    pub fn is_shared(&self) -> bool {
        self.studied == BY && self.passes.contains(&Pass::Check)
    }

    /// The first level of the studied factor.
    pub fn baseline_level(&self) -> &'static str {
        self.levels_of(self.studied).first().copied().unwrap_or("")
    }

    /// The cell that `cell` is compared with: itself where it is a baseline.
    pub fn baseline_of(&self, cell: &Cell) -> Cell {
        cell.with(self.studied, self.baseline_level())
    }

    pub fn contains(&self, cell: &Cell) -> bool {
        cell.levels().len() == self.axes.len()
            && cell
                .levels()
                .iter()
                .zip(self.axes)
                .all(|((factor, level), axis)| factor == axis.factor && axis.levels.contains(&level.as_str()))
    }
}

impl Protocol {
    pub fn grids(&self, profile: Profile) -> impl Iterator<Item = &'static Grid> {
        self.grids.iter().filter(move |grid| grid.profiles.contains(&profile))
    }

    /// The grid of a profile that plans this cell.
    pub fn grid_of(&self, profile: Profile, cell: &Cell) -> Option<&'static Grid> {
        self.grids(profile).find(|grid| grid.contains(cell))
    }

    pub fn metric(&self, name: &str) -> Option<&'static Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    pub fn factor(&self, name: &str) -> Option<&'static Factor> {
        self.factors.iter().find(|factor| factor.name == name)
    }

    /// The relation that this cell must show to its baseline.
    pub fn check_of(&self, cell: &Cell) -> Option<&'static Relation> {
        self.checks.iter().find(|check| selects(check.when, cell)).map(|check| &check.expect)
    }

    /// What looks like a safeguard and is none: checks that no pass runs, or that let a wrong outcome pass; rules that give what moves no
    /// interval.
    pub fn empty_safeguards(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (position, check) in self.checks.iter().enumerate() {
            let is_run = |grid: &&Grid| {
                let applies = |cell: &Cell| self.checks.iter().position(|other| selects(other.when, cell)) == Some(position);
                // Against itself a baseline shows nothing, unless it is to fail; a check that must name baselines stands beside one that shows.
                let shows =
                    |cell: &Cell| grid.baseline_of(cell) != *cell || matches!(self.check_of(cell), Some(Relation::Raises { .. }));
                let cells = grid.cells();
                grid.passes.contains(&Pass::Check) && cells.iter().any(applies) && cells.iter().any(shows)
            };
            if !self.grids.iter().any(|grid| is_run(&grid)) {
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

    /// What is wrong with the protocol itself: names that nothing defines, cells planned twice, levels that cannot be written, selections of
    /// cells that nobody plans.
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = Vec::new();
        let planned: Vec<Cell> = self.grids.iter().flat_map(Grid::cells).collect();
        let selected_by = |rule: &Rule| -> Vec<&'static str> {
            let over = if let Rule::Picked { over, .. } = rule { Some(*over) } else { None };
            rule.select().into_iter().chain(over).collect()
        };
        let judged =
            self.claims.iter().map(|c| (c.id, &c.rule)).chain(self.published.iter().filter_map(|p| Some((p.id, p.rule.as_ref()?))));
        for (id, select) in judged
            .flat_map(|(id, rule)| rule.parts().into_iter().flat_map(selected_by).map(move |select| (id, select)))
            .chain(self.plots.iter().map(|plot| (plot.name, plot.of)))
            .chain(self.checks.iter().map(|check| ("a check", check.when)))
        {
            if !planned.iter().any(|cell| selects(select, cell)) {
                found.push(format!("{id} is about '{select}', and no such cell is planned"));
            }
        }
        for (position, plot) in self.plots.iter().enumerate() {
            if self.plots[..position].iter().any(|other| other.name == plot.name) {
                found.push(format!("two pictures are called '{}'", plot.name));
            }
        }
        for claim in self.claims {
            let Meaning { confirmed, refuted, depends, inconclusive } = claim.meaning;
            if [confirmed, refuted, depends, inconclusive].contains(&"") {
                found.push(format!("a verdict on '{}' has no meaning", claim.id));
            }
        }
        let timed = self.grids(Profile::Quick).filter(|grid| grid.passes.contains(&Pass::Time)).flat_map(Grid::cells);
        // A reference's cells stand beside ours and repeat them.
        let timed = timed.filter(|cell| !cell.is_reference()).count();
        if timed > MOST_TIMED {
            found.push(format!("profile quick times {timed} cells, more than {MOST_TIMED}: nobody waits so long"));
        }
        for grid in self.grids {
            for axis in grid.axes {
                if self.factor(axis.factor).is_none() {
                    found.push(format!("grid '{}' varies '{}', which is no factor", grid.name, axis.factor));
                }
                if axis.levels.iter().any(|l| l.is_empty() || l.contains([' ', '=', '|', ','])) {
                    found.push(format!(
                        "grid '{}', factor '{}': a level is empty or has a reserved character",
                        grid.name, axis.factor
                    ));
                }
            }
            if grid.levels_of(grid.studied).len() < 2 {
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
        let rules = self.claims.iter().map(|c| &c.rule).chain(self.published.iter().filter_map(|p| p.rule.as_ref()));
        let named = rules.flat_map(Rule::metrics).chain(self.plots.iter().map(|p| p.metric));
        found.extend(named.filter(|m| self.metric(m).is_none()).map(|m| format!("'{m}' is no metric of the protocol")));
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
            Relation::Raises { message: "" } => Some("any error"),
            _ => None,
        }
    }
}

impl Rule {
    /// The cells that the rule is about; none for a rule of several parts.
    pub fn select(&self) -> Option<&'static str> {
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
    pub fn changed(&self) -> Option<(Text, Option<&'static Rule>)> {
        match self {
            Rule::Changed { what, before, .. } => Some((what, *before)),
            _ => None,
        }
    }

    /// Whether the rule reads this cell's figures.
    pub fn selects(&self, cell: &Cell) -> bool {
        let beside = if let Rule::Picked { over, .. } = self { Some(*over) } else { None };
        self.select().into_iter().chain(beside).any(|select| selects(select, cell))
    }

    /// The metrics that the rule reads.
    pub fn metrics(&self) -> Vec<&'static str> {
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

    const GRID: Grid = Grid {
        name: "memory",
        profiles: &[Profile::Quick],
        studied: "k",
        axes: &[axis("model", &["mlp", "gpt"]), axis("k", &["1", "4"])],
        passes: &[Pass::Memory],
        only_on: &[],
    };

    #[test]
    fn cells_and_baselines() {
        let cells = GRID.cells();
        assert_eq!(
            cells.iter().map(Cell::to_string).collect::<Vec<_>>(),
            ["model=mlp k=1", "model=mlp k=4", "model=gpt k=1", "model=gpt k=4"]
        );
        assert_eq!(GRID.baseline_of(&cells[3]), cells[2]);
        assert_eq!(cells[3].without(&["k"]), "model=gpt");
        assert!(GRID.contains(&cells[1]) && !GRID.contains(&cells[1].with("k", "8")));
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
    fn checks_that_nothing_runs_and_that_check_nothing_are_mistakes() {
        const GRIDS: [Grid; 2] = [
            Grid { profiles: &[Profile::Smoke, Profile::Quick, Profile::Full], passes: &[Pass::Check], ..GRID },
            Grid { profiles: &[], axes: &[axis("model", &["bert"]), axis("k", &["1", "4"])], ..GRID },
        ];
        const FACTORS: [Factor; 2] =
            [Factor { name: "model", meaning: "", levels: &[] }, Factor { name: "k", meaning: "", levels: &[] }];
        fn checked(checks: &'static [Check]) -> Protocol {
            Protocol {
                name: "x",
                title: "",
                question: "",
                hypothesis: "",
                factors: &FACTORS,
                grids: &GRIDS,
                metrics: &[],
                checks,
                claims: &[],
                published: &[],
                plots: &[],
                threats: &[],
            }
        }
        const RIGHT: Check = Check { when: "", expect: Relation::Equal { tolerance: 1e-4 } };
        const UNRUN: [Check; 2] = [Check { when: "model=bert", expect: Relation::Equal { tolerance: 1e-4 } }, RIGHT];
        const HIDDEN: [Check; 2] = [RIGHT, Check { when: "k=4", expect: Relation::Equal { tolerance: 1e-4 } }];
        const OF_BASELINES: [Check; 2] = [Check { when: "k=1", expect: Relation::Equal { tolerance: 1e-4 } }, RIGHT];
        const SOUND: [Check; 1] = [RIGHT];
        assert_eq!(checked(&SOUND).empty_safeguards(), Vec::<String>::new());
        assert_eq!(checked(&OF_BASELINES).empty_safeguards(), Vec::<String>::new());
        for unrun in [&UNRUN, &HIDDEN] {
            let found = checked(unrun).empty_safeguards();
            assert!(found.len() == 1 && found[0].starts_with("no pass runs the check"), "{found:?}");
        }
        use Relation::{Differs, Equal, Missing, Raises, Scaled, Times};
        for empty in [
            Equal { tolerance: 0.6 },
            Equal { tolerance: f64::NAN },
            Times { factor: "k", tolerance: 1.0 },
            Scaled { by: 1.0, tolerance: 1e-4 },
            Scaled { by: 4.0, tolerance: 0.8 },
            Differs { at_least: 0.0, at_most: 2.0 },
            Missing { at_least: 0.0 },
            Raises { message: "" },
        ] {
            assert!(empty.lets_pass().is_some(), "{empty:?}");
        }
        for sound in [
            Equal { tolerance: 0.0 },
            Scaled { by: 4.0, tolerance: 1e-4 },
            Differs { at_least: 1e-3, at_most: 2.0 },
            Missing { at_least: 0.25 },
            Raises { message: "CUDA" },
        ] {
            assert_eq!(sound.lets_pass(), None, "{sound:?}");
        }
    }
}
