//! Ours and PyTorch's side by side, where both did the very same: are values and bytes equal, why not, and which takes how much of the
//! other's time.

use super::prose::digits;
use base::stats::Interval;
use base::units::{plain, quantity, ratio};
use record::protocol::{BY, Metric, PEAK, Pass, PlainCell, PlainGrid, PlainProtocol, Profile, Role, STEP_PEAK, TIME};
use record::results::Samples;
use serde::Serialize;
use std::collections::BTreeMap;

/// Every comparison of one experiment that both sides take part in, a row for each.
#[derive(Debug, PartialEq, Serialize)]
pub struct Pairs {
    /// How many of the first columns are factors; the others are what came out.
    pub factors: usize,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// What the columns say, and the factors with one level throughout.
    pub caption: String,
    /// Each difference in bytes with its reason, or that it has none.
    pub notes: Vec<String>,
}

/// Puts both sides of each comparison beside one another; none where a profile has no grid in which both do the same.
pub fn pairs(protocol: &PlainProtocol, profile: Profile, samples: &Samples) -> Option<Pairs> {
    let cells: Vec<PlainCell> = protocol.grids(profile).filter(|grid| grid.is_shared()).flat_map(PlainGrid::cells).collect();
    let has_figures = |cell: &&PlainCell| protocol.metrics.iter().any(|metric| samples.value(cell, metric.name).is_some());
    let ours: Vec<&PlainCell> = cells.iter().filter(|cell| !cell.is_reference()).filter(has_figures).collect();
    let first = *ours.first()?;
    let factors: Vec<&str> = first.levels().iter().map(|(factor, _)| factor.as_str()).filter(|factor| *factor != BY).collect();
    let varies = |factor: &&str| ours.iter().any(|cell| cell.get(factor) != first.get(factor));
    let (varied, constant): (Vec<&str>, Vec<&str>) = factors.into_iter().partition(varies);
    let throughout: Vec<String> = constant.iter().filter_map(|factor| Some(format!("{factor} = {}", first.get(factor)?))).collect();
    let throughout = if throughout.is_empty() { String::new() } else { format!(" Throughout: {}.", throughout.join(", ")) };
    let caption = format!(
        "Values, bytes and times of the lab against PyTorch's in Python; a ratio below 1 says that the lab takes less.{throughout}"
    );
    let mut head: Vec<String> = varied.iter().map(|factor| (*factor).to_string()).collect();
    head.extend(["values", "bytes", "time, PyTorch", "time, vramlab", "ratio", "95 % interval", "rounds"].map(str::to_string));
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for cell in ours {
        let pair = Pair { protocol, samples, ours: cell, theirs: cell.other_side() };
        let mut row: Vec<String> = varied.iter().map(|factor| cell.get(factor).unwrap_or_default().to_string()).collect();
        row.extend([pair.values(), pair.bytes()]);
        row.extend(pair.times());
        rows.push(row);
        notes.extend(pair.notes(&varied));
    }
    Some(Pairs { factors: varied.len(), head, rows, caption, notes })
}

/// One comparison.
struct Pair<'a> {
    protocol: &'a PlainProtocol,
    samples: &'a Samples,
    ours: &'a PlainCell,
    theirs: PlainCell,
}

const NOTHING: &str = "–";

/// What lives when a step is over.
const LIVE_AFTER: &str = "live_step";

impl<'a> Pair<'a> {
    fn metrics(&self, pass: Pass) -> impl Iterator<Item = &'a Metric> {
        self.protocol.metrics.iter().filter(move |metric| metric.pass == pass && metric.role == Role::Column)
    }

    /// How far apart what was computed is, at most.
    fn values(&self) -> String {
        let errors = self.metrics(Pass::Check).filter_map(|metric| self.samples.value(self.ours, metric.name));
        match errors.reduce(f64::max) {
            Some(0.0) => "equal".to_string(),
            Some(error) => format!("{} apart", plain(error)),
            None => NOTHING.to_string(),
        }
    }

    /// Each figure in bytes that both sides have, with ours less theirs.
    fn differences(&self) -> Vec<(&'a Metric, i64)> {
        let of = |metric: &'a Metric| {
            let (ours, theirs) = (self.samples.value(self.ours, metric.name)?, self.samples.value(&self.theirs, metric.name)?);
            Some((metric, (ours - theirs) as i64))
        };
        self.metrics(Pass::Memory).filter(|metric| metric.unit == "B").filter_map(of).collect()
    }

    fn bytes(&self) -> String {
        let found = self.differences();
        let apart: Vec<&(&Metric, i64)> = found.iter().filter(|(_, bytes)| *bytes != 0).collect();
        if found.is_empty() {
            return NOTHING.to_string();
        }
        if apart.is_empty() {
            return "equal".to_string();
        }
        let is_stated =
            apart.iter().all(|(metric, bytes)| self.stated(metric).iter().map(|(_, stated)| stated).sum::<i64>() == -bytes);
        let largest = apart.iter().map(|(_, bytes)| *bytes).max_by_key(|bytes| bytes.abs()).unwrap_or(0);
        let (amount, side) = (digits(largest.unsigned_abs()), if largest < 0 { "less" } else { "more" });
        if is_stated { format!("{amount} B {side}, as stated") } else { format!("{amount} B {side}, not explained") }
    }

    /// Why PyTorch has more bytes of a metric, and how many; negative where it has fewer.
    fn stated(&self, of: &Metric) -> Vec<(&'a str, i64)> {
        let reasons = self.protocol.metrics.iter().filter(|metric| metric.role == Role::Reason);
        let told = |reason: &Metric, of: &str| self.samples.value(self.ours, &format!("{}.{of}", reason.name)).unwrap_or(0.0);
        let bytes = |reason: &'a Metric| {
            let bytes = match of.name == STEP_PEAK.name {
                // The peak's own, less what lives after a step: that is there before the next one, too.
                true => told(reason, PEAK.name) - told(reason, LIVE_AFTER),
                false => told(reason, of.name),
            };
            (bytes != 0.0).then_some((reason.label, bytes as i64))
        };
        reasons.filter_map(bytes).collect()
    }

    fn times(&self) -> [String; 5] {
        let figure =
            |cell: &PlainCell| self.samples.value(cell, TIME.name).map_or(NOTHING.to_string(), |value| quantity(value, TIME.unit));
        let (theirs, ours) = (figure(&self.theirs), figure(self.ours));
        let rounds = self.samples.log_ratios(self.ours, &self.theirs, TIME.name).len();
        match self.samples.ratio(self.ours, &self.theirs, &TIME, 0.05) {
            Some(Interval { estimate, low, high }) => {
                [theirs, ours, ratio(estimate), format!("{} to {}", ratio(low), ratio(high)), rounds.to_string()]
            }
            None => [theirs, ours, NOTHING.to_string(), NOTHING.to_string(), NOTHING.to_string()],
        }
    }

    /// A sentence for the differences in bytes that have the same reasons.
    fn notes(&self, varied: &[&str]) -> Vec<String> {
        let levels: Vec<String> = varied.iter().filter_map(|f| Some(format!("{f}={}", self.ours.get(f)?))).collect();
        let mut by_reason: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (metric, bytes) in self.differences().into_iter().filter(|(_, bytes)| *bytes != 0) {
            let stated = self.stated(metric);
            let mut said: Vec<String> = stated.iter().map(|(why, bytes)| format!("{}: {why}", signed(-bytes))).collect();
            let rest = bytes + stated.iter().map(|(_, bytes)| bytes).sum::<i64>();
            if rest != 0 {
                said.push(format!("{} has no reason yet", signed(rest)));
            }
            by_reason.entry(said.join("; ")).or_default().push(metric.label);
        }
        let cell = levels.join(" ");
        by_reason.into_iter().map(|(why, metrics)| format!("`{cell}`, {}: {why}.", metrics.join(", "))).collect()
    }
}

/// Bytes to the byte.
fn signed(bytes: i64) -> String {
    format!("{}{} B", if bytes < 0 { "−" } else { "+" }, digits(bytes.unsigned_abs()))
}
