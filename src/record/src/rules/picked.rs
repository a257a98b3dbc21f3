use super::{Bound, Comparison, Evidence, JudgedCells, RuleKind, RuleSubject, place};
use crate::protocol::{Metric, Pass, PlainCell, Select};
use crate::results::Samples;
use crate::rounds::ALPHA;
use base::order::grouped;
use base::stats::{Interval, ratio_interval};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// Of the selected cells that differ in the studied factor alone, the one with the lowest or highest metric, over the highest of those that
/// `over` selects: 'some of these are worse than the best', 'the best of these is better than that one'. The intervals are widened by the
/// number of pairs that the two were picked from (Bonferroni): the luckiest and the unluckiest of several that are equal differ by luck.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PickedRule {
    pub metric: String,
    pub pick: Pick,
    pub of: Select,
    pub over: Select,
    pub confirm: Bound,
    pub refute: Bound,
}

/// Which of several cells a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pick {
    Lowest,
    Highest,
}

impl Pick {
    fn of<'c>(self, cells: &[&'c PlainCell], samples: &Samples, metric: &str) -> Option<&'c PlainCell> {
        let by_value = |a: &&PlainCell, b: &&PlainCell| {
            samples.value(a, metric).partial_cmp(&samples.value(b, metric)).unwrap_or(Ordering::Equal)
        };
        match self {
            Pick::Lowest => cells.iter().copied().min_by(by_value),
            Pick::Highest => cells.iter().copied().max_by(by_value),
        }
    }
}

impl RuleKind for PickedRule {
    fn about(&self) -> RuleSubject<'_> {
        RuleSubject { of: &self.of, metrics: vec![&self.metric], bounds: Some((self.confirm, self.refute)) }
    }

    fn over(&self) -> Option<&str> {
        Some(&self.over)
    }

    fn is_relative(&self) -> bool {
        true
    }

    fn group(&self, _cell: &PlainCell, baseline: &PlainCell) -> String {
        baseline.to_string()
    }

    fn evaluate(&self, cells: &JudgedCells, samples: &Samples, evidence: &mut Evidence) {
        let name = self.metric.as_str();
        let Some(metric) = cells.metric(name) else { return };
        // Candidates and references that differ in the studied factor alone.
        let mut found: Vec<(PlainCell, (bool, PlainCell))> = Vec::new();
        for (is_reference, select) in [(false, &self.of), (true, &self.over)] {
            for (grid, cell) in cells.measured(select, metric) {
                if samples.value(&cell, name).is_none() {
                    if !evidence.missing.contains(&cell) {
                        evidence.missing.push(cell);
                    }
                    continue;
                }
                found.push((grid.baseline_of(&cell), (is_reference, cell)));
            }
        }
        let groups = grouped(found);
        let number = groups.len() as f64;
        for (_, group) in &groups {
            let of_kind = |wanted: bool| group.iter().filter(move |(kind, _)| *kind == wanted).map(|(_, cell)| cell).collect();
            let (candidates, references): (Vec<&PlainCell>, Vec<&PlainCell>) = (of_kind(false), of_kind(true));
            let picked = (self.pick.of(&candidates, samples, name), Pick::Highest.of(&references, samples, name));
            let (Some(cell), Some(best)) = picked else { continue };
            let pairs = (candidates.len() * references.len()) as f64;
            let found = match metric.pass {
                // A cell that is itself the best is level with it.
                _ if cell == best => Some((Interval::exact(1.0), 1)),
                Pass::Time => {
                    let logs = samples.log_ratios(cell, best, name);
                    let judged = cells.rounds.judged(logs.len());
                    judged.and_then(|(rounds, alpha)| Some((ratio_interval(&logs[..rounds], alpha / number / pairs)?, rounds)))
                }
                _ => samples.ratio(cell, best, metric, ALPHA).map(|effect| (effect, 1)),
            };
            evidence.compare(cell.clone(), Some(best.clone()), found, (self.confirm, self.refute));
        }
    }

    fn comparison(&self, metrics: &[Metric]) -> String {
        let which = if self.pick == Pick::Lowest { "lowest" } else { "highest" };
        let best = if self.over.is_empty() { "all".to_string() } else { format!("those{}", place(&self.over)) };
        format!("the {which} {}{} relative to the highest of {best}", self.subject(metrics), place(&self.of))
    }

    /// Which cell was picked is the answer.
    fn names(&self, _factor: &str) -> bool {
        false
    }

    fn row(&self, comparison: &Comparison, shared: &[&str]) -> String {
        let differs = |(factor, level): &&(String, String)| comparison.cell.get(factor) != Some(level);
        let best = comparison.baseline.iter().flat_map(|best| best.levels().iter().filter(differs));
        let best: Vec<String> = best.map(|(factor, level)| format!("{factor} = {level}")).collect();
        let best = if best.is_empty() { "itself".to_string() } else { best.join(", ") };
        format!("`{}`, against {best}", comparison.cell.name_without(shared))
    }
}
