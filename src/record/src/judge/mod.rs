//! From a protocol and its samples to a verdict for each claim.

mod explain;

pub use crate::rules::{Comparison, Evidence, Outcome, Verdict};
pub use explain::WhereItHolds;

use crate::protocol::{Claim, Pass, PlainCell, PlainProtocol, Platform, Profile, Published};
use crate::results::Samples;
use crate::rounds::Rounds;
use crate::rules::{JudgedCells, PlainRule, RulePart};
use explain::{holds_where, joined};
use std::collections::BTreeSet;

/// How the figures of one run were taken.
#[derive(Debug, Clone, Copy)]
pub struct RunContext<'a> {
    pub profile: Profile,
    /// What the cells ran on, also where PyTorch in Python ran them.
    pub device: Platform,
    pub rounds: &'a Rounds,
}

/// A claim, judged on one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    pub claim: Claim,
    /// Whose figures these are: the device's, or those that PyTorch in Python gave on it.
    pub platform: Platform,
    pub verdict: Verdict,
    /// Whether this platform's figures may carry the verdict; else they are informational.
    pub carries: bool,
    /// One for each part of the claim's rule.
    pub evidence: Vec<Evidence>,
    /// Where the claim holds, if the verdict is 'depends' or the claim is about a prediction.
    pub holds: WhereItHolds,
    /// What was changed of the claim after a look at figures.
    pub changed: Option<Changed>,
}

/// What was changed of a claim after a look at figures, and what these figures say without the change.
#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    pub what: String,
    /// None where nothing that is measured today can answer the claim as it was.
    pub without: Option<(Verdict, Vec<Evidence>)>,
}

impl Judgement {
    /// Whether the claim is about any cell of this platform at all.
    fn is_about_something(&self) -> bool {
        self.evidence.iter().any(|e| !e.comparisons.is_empty() || !e.missing.is_empty() || e.out_of_scope > 0)
    }

    /// How many parts of the claim can be judged on this platform, of how many.
    pub fn parts(&self) -> (usize, usize) {
        parts(&self.evidence)
    }

    /// What the cells that were measured say, of a claim of which not all were.
    pub fn so_far(&self) -> Verdict {
        decided(&self.evidence)
    }

    /// How many of the cells that the claim is about here were measured, of how many.
    pub fn measured(&self) -> (usize, usize) {
        measured(&self.evidence)
    }
}

fn parts(evidence: &[Evidence]) -> (usize, usize) {
    (evidence.iter().filter(|e| e.is_judged).count(), evidence.len())
}

fn measured(evidence: &[Evidence]) -> (usize, usize) {
    let judged = || evidence.iter().filter(|e| e.is_judged);
    let planned = judged().map(|e| e.planned).sum();
    (planned - judged().map(|e| e.awaited).sum::<usize>(), planned)
}

/// A verdict takes all of the cells that were planned for it: what a part of them says is another thing, and decides nothing.
fn if_all_measured(verdict: Verdict, evidence: &[Evidence]) -> Verdict {
    let (measured, planned) = measured(evidence);
    if verdict != Verdict::NotMeasured && measured < planned { Verdict::Incomplete } else { verdict }
}

fn verdicts(evidence: &[Evidence]) -> Vec<Verdict> {
    evidence.iter().filter(|e| e.is_judged).map(|e| e.verdict).collect()
}

/// Judges every claim of a protocol from the samples of one run. Cells that the PyTorch reference ran are judged apart from ours, so a
/// claim may have two judgements. Where there are no others, and the claim is not about Python, they say it of the run's device.
pub fn judge(protocol: &PlainProtocol, taken: RunContext, samples: &Samples) -> Vec<Judgement> {
    let both = |claim: &Claim| {
        let own = judge_claim(protocol, claim, (taken.device, false), taken, samples);
        let whose = whose(&claim.judged_on, own.is_about_something(), taken);
        let reference = judge_claim(protocol, claim, (whose, true), taken, samples);
        match (own.is_about_something(), reference.is_about_something()) {
            (true, true) => vec![own, reference],
            (false, true) => vec![reference],
            (_, false) => vec![own],
        }
    };
    protocol.claims.iter().flat_map(both).collect()
}

/// Whose figures cells of the PyTorch reference are, beside cells of ours or without any. What was predicted is the simulated GPU's.
fn whose(judged_on: &[Platform], beside_ours: bool, taken: RunContext) -> Platform {
    let is_predicted = taken.device == Platform::Dry && judged_on.contains(&Platform::Dry);
    let is_python = judged_on.contains(&Platform::Python) && !is_predicted;
    if beside_ours || is_python { Platform::Python } else { taken.device }
}

/// Of cells of ours, or of the reference's.
fn judge_claim(
    protocol: &PlainProtocol,
    claim: &Claim,
    (platform, references): (Platform, bool),
    taken: RunContext,
    samples: &Samples,
) -> Judgement {
    let judged = |rule: &PlainRule| {
        let evidence = evaluate_parts(protocol, rule, references, taken, true, samples);
        (combine_parts(&evidence), evidence)
    };
    let (verdict, evidence) = judged(&claim.rule);
    let judged_parts: Vec<&Evidence> = evidence.iter().filter(|e| e.is_judged).collect();
    let mixed = joined(&judged_parts).into_iter().filter(|(verdict, _)| *verdict == Verdict::Depends).flat_map(|(_, parts)| parts);
    let by_share = evidence.iter().filter(|e| e.rule.holds_by_share() && e.verdict != Verdict::Depends);
    let holds = holds_where(&mixed.chain(by_share).collect::<Vec<_>>());
    let changed = claim.rule.changed().map(|(what, before)| Changed { what: what.to_string(), without: before.map(judged) });
    let carries = claim.judged_on.contains(&platform);
    Judgement { claim: claim.clone(), platform, verdict, carries, evidence, holds, changed }
}

/// The evidence for each part of a rule.
fn evaluate_parts(
    protocol: &PlainProtocol,
    rule: &PlainRule,
    references: bool,
    taken: RunContext,
    times_count: bool,
    samples: &Samples,
) -> Vec<Evidence> {
    let RunContext { profile, device, rounds } = taken;
    let (grids, metrics) = (protocol.grids(profile).collect(), &protocol.metrics[..]);
    let cells = JudgedCells { grids, metrics, profile, rounds, device, references };
    let is_timed = |part: &RulePart| part.metrics().iter().any(|m| protocol.metric(m).is_none_or(|m| m.pass == Pass::Time));
    let evaluate = |(part, decides): (&RulePart, bool)| {
        let is_judged = cells.have(part, decides) && (times_count || !is_timed(part));
        Evidence { is_judged, decides, ..part.evidence(&cells, samples) }
    };
    rule.parts_that_decide().into_iter().map(evaluate).collect()
}

/// The cells whose times a claim or a published figure that this platform carries leaves undecided: what more rounds are for.
pub fn undecided(protocol: &PlainProtocol, taken: RunContext, samples: &Samples) -> BTreeSet<PlainCell> {
    let claims = judge(protocol, taken, samples).into_iter().filter(|j| j.carries).flat_map(|j| j.evidence);
    let published = reproduce(protocol, taken, samples).into_iter().filter(|r| r.comparable).flat_map(|r| r.evidence);
    let mut cells = BTreeSet::new();
    for evidence in claims.chain(published).filter(|evidence| evidence.is_judged) {
        let straddling: Vec<&Comparison> = evidence.comparisons.iter().filter(|c| c.outcome == Outcome::Straddles).collect();
        for (grid, cell) in protocol.grids(taken.profile).flat_map(|grid| grid.cells().into_iter().map(move |cell| (grid, cell))) {
            let group = |cell: &PlainCell| evidence.rule.group(cell, &grid.baseline_of(cell));
            let belongs = |c: &&Comparison| group(&c.cell) == group(&cell);
            if evidence.rule.reads(&cell) && straddling.iter().any(belongs) {
                cells.insert(cell);
            }
        }
    }
    cells
}

/// A published figure, put against one machine's.
#[derive(Debug, Clone, PartialEq)]
pub struct Reproduction {
    pub published: Published,
    /// Whose figures these are: the device's, or those that PyTorch in Python gave on it.
    pub platform: Platform,
    /// `Confirmed` is reproduced, `Refuted` not reproduced, `Depends` reproduced in part.
    pub verdict: Verdict,
    /// Whether this platform's figures can be put against the published one at all; else they are shown.
    pub comparable: bool,
    /// One for each part of the figure's rule; none where it has no rule.
    pub evidence: Vec<Evidence>,
    /// What was changed of its rule after a look at figures.
    pub changed: Option<Changed>,
}

impl Reproduction {
    /// How many parts of the figure can be compared on this platform, of how many.
    pub fn parts(&self) -> (usize, usize) {
        parts(&self.evidence)
    }

    /// What the cells that were measured say, of a figure of which not all were.
    pub fn so_far(&self) -> Verdict {
        reproduced_so_far(&self.evidence)
    }

    /// How many of the cells that the figure is about here were measured, of how many.
    pub fn measured(&self) -> (usize, usize) {
        measured(&self.evidence)
    }
}

/// Puts one run's figures against those that others published. Times were published of GPUs, so only a GPU's are put against them.
pub fn reproduce(protocol: &PlainProtocol, taken: RunContext, samples: &Samples) -> Vec<Reproduction> {
    let on = |published: &Published, platform, references| {
        let times_count = taken.device == Platform::Gpu;
        let evaluated = |rule: &PlainRule| evaluate_parts(protocol, rule, references, taken, times_count, samples);
        let evidence = published.rule.as_ref().map_or(Vec::new(), evaluated);
        let comparable = published.judged_on.contains(&platform) && evidence.iter().any(|e| e.is_judged);
        let without = |rule: &PlainRule| {
            let evidence = evaluated(rule);
            (reproduced(&evidence), evidence)
        };
        let changed = published.rule.as_ref().and_then(PlainRule::changed);
        let changed = changed.map(|(what, before)| Changed { what: what.to_string(), without: before.map(without) });
        Reproduction { published: published.clone(), platform, verdict: reproduced(&evidence), comparable, evidence, changed }
    };
    let both = |published: &Published| {
        let has_figures = |r: &Reproduction| r.evidence.iter().any(|e| !e.comparisons.is_empty());
        let own = on(published, taken.device, false);
        let reference = on(published, whose(&published.judged_on, has_figures(&own), taken), true);
        match (has_figures(&own), has_figures(&reference)) {
            (true, true) => vec![own, reference],
            (false, true) => vec![reference],
            (_, false) => vec![own],
        }
    };
    protocol.published.iter().flat_map(both).collect()
}

fn reproduced(evidence: &[Evidence]) -> Verdict {
    if_all_measured(reproduced_so_far(evidence), evidence)
}

/// The verdict on a published table: a part that does not come out, or that cannot be compared here, leaves the others reproduced.
fn reproduced_so_far(evidence: &[Evidence]) -> Verdict {
    let judged = verdicts(evidence);
    let all = |v| judged.iter().all(|part| *part == v);
    let any = |v| judged.contains(&v);
    let is_whole = judged.len() == evidence.len();
    if all(Verdict::NotMeasured) {
        Verdict::NotMeasured
    } else if all(Verdict::Confirmed) && is_whole {
        Verdict::Confirmed
    } else if all(Verdict::Refuted) {
        Verdict::Refuted
    } else if any(Verdict::Confirmed) || any(Verdict::Depends) {
        Verdict::Depends
    } else if any(Verdict::FallsShort) && !any(Verdict::Inconclusive) {
        Verdict::FallsShort
    } else {
        Verdict::Inconclusive
    }
}

fn combine_parts(evidence: &[Evidence]) -> Verdict {
    if_all_measured(decided(evidence), evidence)
}

/// The verdict on a claim: its parts case by case. What holds of the parts that can be judged here confirms nothing where one that decides is not
/// among them.
fn decided(evidence: &[Evidence]) -> Verdict {
    let decides_elsewhere = evidence.iter().any(|e| e.decides && !e.is_judged);
    let judged: Vec<&Evidence> = evidence.iter().filter(|e| e.is_judged).collect();
    let verdicts: Vec<Verdict> = joined(&judged).into_iter().map(|(verdict, _)| verdict).collect();
    match combine(&verdicts) {
        Verdict::Confirmed | Verdict::Depends if decides_elsewhere => Verdict::InPart,
        verdict => verdict,
    }
}

/// The verdict on a claim whose parts must all hold and have no case in common.
fn combine(parts: &[Verdict]) -> Verdict {
    use Verdict::{Confirmed, Depends, FallsShort, InPart, Inconclusive, NotMeasured, Refuted};
    let any = |v| parts.contains(&v);
    if parts.iter().all(|v| *v == NotMeasured) {
        return NotMeasured;
    }
    let first = [Refuted, FallsShort, Inconclusive].into_iter().find(|v| any(*v));
    first.unwrap_or(if any(NotMeasured) {
        InPart
    } else if any(Depends) {
        Depends
    } else {
        Confirmed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_of_several_parts_needs_them_all() {
        use Verdict::*;
        assert_eq!(combine(&[Confirmed, Confirmed]), Confirmed);
        assert_eq!(combine(&[Confirmed, Refuted]), Refuted);
        assert_eq!(combine(&[Confirmed, NotMeasured]), InPart);
        assert_eq!(combine(&[FallsShort, Inconclusive]), FallsShort);
        assert_eq!(combine(&[Depends, Confirmed]), Depends);
        assert_eq!(combine(&[NotMeasured]), NotMeasured);
    }
}
