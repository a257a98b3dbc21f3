//! From a protocol and its samples to a verdict for each claim.

mod explain;

pub use crate::rules::{Comparison, Evidence, Outcome, Verdict};
pub use explain::WhereItHolds;

use crate::protocol::{Claim, Pass, PlainCell, PlainProtocol, Platform, Profile, Published};
use crate::results::Samples;
use crate::rounds::Rounds;
use crate::rules::{JudgedCells, PlainPart, PlainRule, RulePart};
use explain::{holds_where, joined};
use std::collections::BTreeSet;

/// How the figures of one run were taken.
#[derive(Debug, Clone, Copy)]
pub struct RunContext<'a> {
    /// Name of the machine, as that of its results.
    pub machine: &'a str,
    pub profile: Profile,
    /// What the cells ran on, also where PyTorch in Python ran them.
    pub device: Platform,
    pub rounds: &'a Rounds,
}

/// A claim or a published figure, judged on one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged<T> {
    pub of: T,
    /// Whose figures these are: the device's, or those that PyTorch in Python gave on it.
    pub platform: Platform,
    /// Of a published figure `Confirmed` is reproduced, `Refuted` not reproduced, `Depends` reproduced in part.
    pub verdict: Verdict,
    /// What the cells that were measured say, where not all were.
    pub so_far: Verdict,
    /// Whether this platform's figures may carry the verdict, or be put against the published one at all; else they are informational.
    pub carries: bool,
    /// One for each part of the rule; none of a published figure without a rule.
    pub evidence: Vec<Evidence>,
    /// Where a claim holds, if the verdict is 'depends' or the claim is about a prediction.
    pub holds: WhereItHolds,
    /// What was changed of the rule after a look at figures.
    pub changed: Option<Changed>,
}

pub type Judgement = Judged<Claim>;
pub type Reproduction = Judged<Published>;

/// What was changed of a claim after a look at figures, and what these figures say without the change.
#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    pub what: String,
    /// None where nothing that is measured today can answer the claim as it was.
    pub without: Option<Verdict>,
}

impl<T> Judged<T> {
    /// The rule's parts as `evaluate` finds them, and the verdict that `conclude` makes of them.
    fn by(
        rule: Option<&PlainRule>,
        (of, platform, judged_on): (T, Platform, &[Platform]),
        evaluate: impl Fn(&PlainRule) -> Vec<Evidence>,
        conclude: fn(&[Evidence]) -> Verdict,
    ) -> Judged<T> {
        let evidence = rule.map_or(Vec::new(), &evaluate);
        let changed = rule.and_then(PlainRule::changed).map(|(what, before)| Changed {
            what: what.to_string(),
            without: before.map(evaluate).map(|evidence| if_all_measured(conclude(&evidence), &evidence)),
        });
        let (so_far, carries) = (conclude(&evidence), judged_on.contains(&platform));
        let verdict = if_all_measured(so_far, &evidence);
        Judged { of, platform, verdict, so_far, carries, evidence, holds: WhereItHolds::default(), changed }
    }

    /// Whether the rule is about any cell of this platform at all.
    fn is_about_something(&self) -> bool {
        self.evidence.iter().any(|e| !e.comparisons.is_empty() || !e.missing.is_empty() || e.out_of_scope > 0)
    }

    /// How many parts of the rule can be judged on this platform, of how many.
    pub fn parts(&self) -> (usize, usize) {
        (self.evidence.iter().filter(|e| e.is_judged).count(), self.evidence.len())
    }

    /// How many of the cells that the rule is about here were measured, of how many.
    pub fn measured(&self) -> (usize, usize) {
        measured(&self.evidence)
    }
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
    let on = |claim: &Claim, platform: Platform, references: bool| {
        let evaluate = |rule: &PlainRule| evaluate_parts(protocol, rule, references, taken, true, samples);
        let judged = Judged::by(Some(&claim.rule), (claim.clone(), platform, &claim.judged_on), evaluate, decided);
        let judged_parts: Vec<&Evidence> = judged.evidence.iter().filter(|e| e.is_judged).collect();
        let mixed =
            joined(&judged_parts).into_iter().filter(|(verdict, _)| *verdict == Verdict::Depends).flat_map(|(_, parts)| parts);
        let by_share = judged.evidence.iter().filter(|e| e.rule.holds_by_share() && e.verdict != Verdict::Depends);
        let holds = holds_where(&mixed.chain(by_share).collect::<Vec<_>>());
        Judged { holds, ..judged }
    };
    let both = |claim: &Claim| {
        both_sides(taken, &claim.judged_on, Judged::is_about_something, |platform, is_python| on(claim, platform, is_python))
    };
    protocol.claims.iter().flat_map(both).collect()
}

/// What cells of ours say, and apart from it what those of the PyTorch reference do; of one alone where the other says nothing.
fn both_sides<T>(
    taken: RunContext,
    judged_on: &[Platform],
    says_something: impl Fn(&Judged<T>) -> bool,
    on: impl Fn(Platform, bool) -> Judged<T>,
) -> Vec<Judged<T>> {
    let own = on(taken.device, false);
    let reference = on(whose(judged_on, says_something(&own), taken), true);
    match (says_something(&own), says_something(&reference)) {
        (true, true) => vec![own, reference],
        (false, true) => vec![reference],
        (_, false) => vec![own],
    }
}

/// Whose figures cells of the PyTorch reference are, beside cells of ours or without any. What was predicted is the simulated GPU's.
fn whose(judged_on: &[Platform], beside_ours: bool, taken: RunContext) -> Platform {
    let is_predicted = taken.device == Platform::Dry && judged_on.contains(&Platform::Dry);
    let is_python = judged_on.contains(&Platform::Python) && !is_predicted;
    if beside_ours || is_python { Platform::Python } else { taken.device }
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
    let RunContext { machine, profile, device, rounds } = taken;
    let is_timed = |part: &RulePart| part.metrics().iter().any(|m| protocol.metric(m).is_none_or(|m| m.pass == Pass::Time));
    let evaluate = |part: PlainPart| {
        let grids = protocol.grids(profile).filter(|grid| part.is_about(grid)).collect();
        let cells = JudgedCells { grids, metrics: &protocol.metrics, profile, rounds, device, machine, references };
        let PlainPart { rule, decides, grid } = part;
        let is_judged = cells.have(rule, decides) && (times_count || !is_timed(rule));
        Evidence { is_judged, decides, grid: grid.map(str::to_string), ..rule.evidence(&cells, samples) }
    };
    rule.parts()
        .into_iter()
        .filter(|part| part.rule.is_there(machine) && (part.rule.reads_cells() || !references))
        .map(evaluate)
        .collect()
}

/// The cells whose times a claim or a published figure that this platform carries leaves undecided: what more rounds are for.
pub fn undecided(protocol: &PlainProtocol, taken: RunContext, samples: &Samples) -> BTreeSet<PlainCell> {
    let claims = judge(protocol, taken, samples).into_iter().filter(|j| j.carries).flat_map(|j| j.evidence);
    let published = reproduce(protocol, taken, samples).into_iter().filter(|r| r.carries).flat_map(|r| r.evidence);
    let mut cells = BTreeSet::new();
    for evidence in claims.chain(published).filter(|evidence| evidence.is_judged) {
        let straddling: Vec<&Comparison> = evidence.comparisons.iter().filter(|c| c.outcome == Outcome::Straddles).collect();
        for (grid, cell) in protocol.grids(taken.profile).flat_map(|grid| grid.cells().into_iter().map(move |cell| (grid, cell))) {
            let group = |cell: &PlainCell| evidence.rule.group(cell, &grid.baseline_of(cell));
            let belongs = |c: &&Comparison| group(&c.cell) == group(&cell);
            let is_of = evidence.grid.as_ref().is_none_or(|name| *name == grid.name);
            if is_of && evidence.rule.reads(&cell) && straddling.iter().any(belongs) {
                cells.insert(cell);
            }
        }
    }
    cells
}

/// Puts one run's figures against those that others published. Times were published of GPUs, so only a GPU's are put against them.
pub fn reproduce(protocol: &PlainProtocol, taken: RunContext, samples: &Samples) -> Vec<Reproduction> {
    let on = |published: &Published, platform: Platform, references: bool| {
        let evaluate = |rule: &PlainRule| evaluate_parts(protocol, rule, references, taken, taken.device == Platform::Gpu, samples);
        let of = (published.clone(), platform, &published.judged_on[..]);
        let judged = Judged::by(published.rule.as_ref(), of, evaluate, reproduced);
        Judged { carries: judged.carries && judged.evidence.iter().any(|e| e.is_judged), ..judged }
    };
    let has_figures = |found: &Reproduction| found.evidence.iter().any(|e| !e.comparisons.is_empty());
    let both = |published: &Published| {
        both_sides(taken, &published.judged_on, has_figures, |platform, is_python| on(published, platform, is_python))
    };
    protocol.published.iter().flat_map(both).collect()
}

/// The verdict on a published table: a part that does not come out, or that cannot be compared here, leaves the others reproduced.
fn reproduced(evidence: &[Evidence]) -> Verdict {
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

/// The verdict on a claim: its parts that decide, case by case. What holds of the parts that can be judged here confirms nothing where one that decides is not
/// among them.
fn decided(evidence: &[Evidence]) -> Verdict {
    let decides_elsewhere = evidence.iter().any(|e| e.decides && !e.is_judged);
    let judged = || evidence.iter().filter(|e| e.is_judged);
    // What is informational decides where nothing else can.
    let any_decides = judged().any(|e| e.decides && e.verdict != Verdict::NotMeasured);
    let judged: Vec<&Evidence> = judged().filter(|e| e.decides || !any_decides).collect();
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
