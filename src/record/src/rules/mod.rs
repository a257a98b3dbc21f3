//! How figures become a verdict. Each kind of rule has a file, which says what it selects, which metrics it reads, what their samples say, and
//! how that is written.

mod agreement;
mod cells;
mod exponent;
mod false_alarms;
mod frequency;
mod outcome;
mod picked;
mod ratio;
mod recorded;
mod trend;
mod value;

pub use agreement::AgreementRule;
pub use cells::JudgedCells;
pub use exponent::ExponentRule;
pub use false_alarms::FalseAlarmsRule;
pub use frequency::FrequencyRule;
pub use outcome::{Bound, Comparison, Evidence, Outcome, Verdict};
pub use picked::{Pick, PickedRule};
pub use ratio::{RatioRule, Scope};
pub use recorded::{RecordedFigure, RecordedProgram, RecordedRule, recorded_programs};
pub use trend::TrendRule;
pub use value::ValueRule;

use crate::protocol::cells::{PlainCell, PlainGrid, conditions, selects};
use crate::protocol::metrics::Metric;
use crate::results::Samples;
use base::units::range;
pub(crate) use outcome::combine_outcomes;
use outcome::compared_with;
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// What judges a claim or a published figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlainRule {
    /// Holds where all of these hold.
    All(Vec<PlainRule>),
    /// A part that is judged where it can be and that does not decide: without it a claim can still be confirmed.
    #[serde(alias = "beside")]
    Informational(Box<PlainRule>),
    /// About cells of the grids of this name alone: another grid may have the same levels.
    In { grid: String, rule: Box<PlainRule> },
    /// A rule that was changed after a look at figures.
    Changed {
        /// What was changed, when and why.
        what: String,
        /// The rule without the change; none where nothing that is measured today can answer it.
        before: Option<Box<PlainRule>>,
        now: Box<PlainRule>,
    },
    #[serde(untagged)]
    Part(RulePart),
}

/// The kinds of rules, each a struct that serde tags with the kind's name.
macro_rules! kinds {
    ($($name:ident: $kind:ident),*) => {
        /// A rule of one kind.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum RulePart {
            $($name($kind)),*
        }

        impl Deref for RulePart {
            type Target = dyn RuleKind;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(RulePart::$name(rule) => rule),*
                }
            }
        }

        $(
            impl From<$kind> for RulePart {
                fn from(rule: $kind) -> RulePart {
                    RulePart::$name(rule)
                }
            }

            impl From<$kind> for PlainRule {
                fn from(rule: $kind) -> PlainRule {
                    PlainRule::Part(rule.into())
                }
            }
        )*
    };
}

kinds! {
    Ratio: RatioRule, Frequency: FrequencyRule, Value: ValueRule, Exponent: ExponentRule, Picked: PickedRule, Agreement: AgreementRule,
    Trend: TrendRule, FalseAlarms: FalseAlarmsRule, Recorded: RecordedRule
}

/// What a rule is about; [`RuleKind`] says what each is.
pub struct RuleSubject<'a> {
    of: &'a str,
    metrics: Vec<&'a str>,
    bounds: Option<(Bound, Bound)>,
}

/// What one kind of rule reads, finds and says.
pub trait RuleKind {
    fn about(&self) -> RuleSubject<'_>;

    /// The cells that are judged, as a selection.
    fn select(&self) -> &str {
        self.about().of
    }

    /// The cells that those are put against, where it is not their baselines.
    fn over(&self) -> Option<&str> {
        None
    }

    /// The metrics that the rule reads, the one that it is about first.
    fn metrics(&self) -> Vec<&str> {
        self.about().metrics
    }

    /// What confirms and what refutes, where it is a bound of each comparison.
    fn bounds(&self) -> Option<(Bound, Bound)> {
        self.about().bounds
    }

    /// Whether each cell is put against its baseline.
    fn compares_with_baseline(&self) -> bool {
        false
    }

    /// Whether the rule is about cells at all, and not about records of others.
    fn reads_cells(&self) -> bool {
        true
    }

    /// Whether this machine has what the rule is about.
    fn is_there(&self, _machine: &str) -> bool {
        true
    }

    /// Whether an effect of 1 is none.
    fn is_relative(&self) -> bool {
        self.compares_with_baseline()
    }

    /// Whether a baseline's figures leave what is compared with it in the rule's scope; none where they are missing.
    fn is_in_scope(&self, _baseline: &PlainCell, _samples: &Samples) -> Option<bool> {
        Some(true)
    }

    /// The same text for all cells that only together give a figure.
    fn group(&self, cell: &PlainCell, _baseline: &PlainCell) -> String {
        cell.to_string()
    }

    /// Whether figures that move from run to run get intervals.
    fn gives_intervals(&self) -> bool {
        true
    }

    /// Whether the answer needs every round that the profile takes, so that a cell must not stop early.
    fn needs_all_rounds(&self) -> bool {
        false
    }

    /// Whether the rule holds where a share of its cells does, so that the reader wants to know which.
    fn holds_by_share(&self) -> bool {
        false
    }

    /// Compares what was measured.
    fn evaluate(&self, cells: &JudgedCells, samples: &Samples, evidence: &mut Evidence);

    /// What the comparisons say together, where so many cells failed.
    fn combine(&self, comparisons: &[Comparison], failed: usize) -> Verdict {
        combine_outcomes(comparisons.iter().map(|c| c.outcome), failed)
    }

    /// The figure that the rule is about, as a column head.
    fn subject(&self, metrics: &[Metric]) -> String {
        label(metrics, self.metrics()[0])
    }

    /// The figure in front of its effect in a sentence.
    fn effect_subject(&self, metrics: &[Metric]) -> String {
        self.subject(metrics)
    }

    /// One effect: a ratio, a value with its unit, an exponent.
    fn figure(&self, _metrics: &[Metric], value: f64) -> String {
        base::units::ratio(value)
    }

    /// Effects from one to another.
    fn effects(&self, metrics: &[Metric], low: f64, high: f64) -> String {
        range(self.figure(metrics, low), self.figure(metrics, high))
    }

    /// The same in a sentence that says more of them than their figures.
    fn effects_in_words(&self, metrics: &[Metric], low: f64, high: f64) -> String {
        self.effects(metrics, low, high)
    }

    /// What all comparisons say in one sentence, where that is more than their effects.
    fn sentence(&self, _metrics: &[Metric], _comparisons: &[Comparison]) -> Option<String> {
        None
    }

    /// What is added to the range of the effects.
    fn remark(&self, _comparisons: &[Comparison]) -> String {
        String::new()
    }

    /// The two thresholds: what confirms and what refutes.
    fn thresholds(&self, metrics: &[Metric]) -> (String, String) {
        let write = |bound: Bound| self.bound(metrics, bound);
        self.bounds().map(|(confirm, refute)| (write(confirm), write(refute))).unwrap_or_default()
    }

    fn bound(&self, metrics: &[Metric], bound: Bound) -> String {
        let write = |x: f64| self.figure(metrics, x);
        match bound {
            Bound::AtMost(x) => format!("at most {}", write(x)),
            Bound::AtLeast(x) => format!("at least {}", write(x)),
            Bound::Within(low, high) if low == high => format!("exactly {}", write(low)),
            Bound::Within(low, high) => format!("{} to {}", write(low), write(high)),
            Bound::Outside(low, high) => format!("less than {} or more than {}", write(low), write(high)),
        }
    }

    /// What is compared, as a sentence without its full stop.
    fn comparison(&self, metrics: &[Metric]) -> String {
        format!("{}{}", self.subject(metrics), place(self.select()))
    }

    /// The condition under which cells are judged at all.
    fn scope(&self, _metrics: &[Metric]) -> Option<String> {
        None
    }

    /// Whether the rule's own words say something about a factor, so that it need not be said again.
    fn names(&self, factor: &str) -> bool {
        is_named(self.select(), factor)
    }

    /// What was compared in one comparison, without the factors that all of them share.
    fn row(&self, comparison: &Comparison, shared: &[&str]) -> String {
        format!("`{}`", comparison.cell.name_without(shared))
    }
}

impl PlainRule {
    /// The rules that must all hold.
    pub fn parts(&self) -> Vec<PlainPart<'_>> {
        match self {
            PlainRule::All(parts) => parts.iter().flat_map(PlainRule::parts).collect(),
            PlainRule::Informational(rule) => rule.parts().into_iter().map(|part| PlainPart { decides: false, ..part }).collect(),
            PlainRule::In { grid, rule } => rule.parts().into_iter().map(|part| PlainPart { grid: Some(grid), ..part }).collect(),
            PlainRule::Changed { now, .. } => now.parts(),
            PlainRule::Part(rule) => vec![PlainPart { rule, decides: true, grid: None }],
        }
    }

    /// What of the rule was changed after a look at figures, and the rule as it was.
    pub fn changed(&self) -> Option<(&str, Option<&PlainRule>)> {
        match self {
            PlainRule::Changed { what, before, .. } => Some((what, before.as_deref())),
            _ => None,
        }
    }

    /// The metrics that the rule reads.
    pub fn metrics(&self) -> impl Iterator<Item = &str> {
        self.parts().into_iter().flat_map(|part| part.rule.metrics())
    }
}

/// A rule of one kind, with what is said of it.
#[derive(Debug, Clone, Copy)]
pub struct PlainPart<'a> {
    pub rule: &'a RulePart,
    /// Whether the claim cannot be confirmed without it.
    pub decides: bool,
    /// The only grids whose cells it is about; none where it is about those of all.
    pub grid: Option<&'a str>,
}

impl PlainPart<'_> {
    pub fn is_about(&self, grid: &PlainGrid) -> bool {
        self.grid.is_none_or(|name| name == grid.name)
    }
}

impl RulePart {
    /// Whether the rule reads this cell's figures.
    pub fn reads(&self, cell: &PlainCell) -> bool {
        self.reads_cells() && self.selections().any(|select| selects(select, cell))
    }

    /// The selections of all cells that the rule reads.
    pub fn selections(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.select()).chain(self.over())
    }

    /// The rule's evidence, from the samples of one run.
    pub fn evidence(&self, cells: &JudgedCells, samples: &Samples) -> Evidence {
        let mut evidence = Evidence::nothing(self);
        self.evaluate(cells, samples, &mut evidence);
        // What is not on the claim's side of no effect at all is no smaller effect than claimed.
        let is_other_side =
            |c: &Comparison| self.is_relative() && !self.bounds().is_some_and(|(confirm, _)| confirm.points_at(c.effect));
        for comparison in evidence.comparisons.iter_mut().filter(|c| c.outcome == Outcome::Between && is_other_side(c)) {
            comparison.outcome = Outcome::Refutes;
        }
        (evidence.planned, evidence.awaited) = cells.awaited(self, samples);
        evidence.failed = evidence.missing.iter().filter(|cell| cells.failed(cell, samples)).count();
        evidence.verdict = self.combine(&evidence.comparisons, evidence.failed);
        evidence
    }
}

fn is_named(select: &str, factor: &str) -> bool {
    select.split_whitespace().filter_map(|term| term.split_once('=')).any(|(named, _)| named == factor)
}

/// A metric's label.
fn label(metrics: &[Metric], name: &str) -> String {
    metrics.iter().find(|metric| metric.name == name).map_or_else(|| name.replace('_', " "), |metric| metric.label.to_string())
}

/// The end of a sentence about the cells of a selection.
fn place(select: &str) -> String {
    if select.is_empty() { String::new() } else { format!(" where {}", conditions(select)) }
}
