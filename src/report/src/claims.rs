//! Claims and published figures as the report shows them, each with its evidence.

use super::markup::{Markdown, slug};
use super::plots::grouped;
use super::prose::{self, Against};
use super::recorded::Recorded;
use super::sentences::{compared, quotes};
use base::units::counted;
use minijinja::{Value, context};
use record::judge::{Comparison, Evidence, Judged, Outcome, Reproduction, Verdict};
use record::protocol::Published;
use record::rules::RulePart;
use serde::Serialize;

/// Of more comparisons than this only the most telling are shown; the data have all.
const FEW: usize = 8;

/// One claim on one machine, its effect first.
#[derive(Debug, Clone, Serialize)]
pub struct VerdictRow {
    pub effect: String,
    /// The guides' sentences, or the claim where no guide makes it.
    pub claim: Markdown,
    pub id: String,
    /// What was compared, and where.
    pub compared: String,
    pub machine: String,
    #[serde(skip)]
    device: &'static str,
    pub verdict: String,
    /// What the user's own results say of the same on a device of this kind.
    pub yours: Vec<String>,
    /// Whether the row itself is of the user's own results, because no others are of such a device.
    pub is_own: bool,
    /// `confirmed`, `refuted`, ...: what a filter asks for.
    pub kind: String,
}

/// The claims of an experiment over all machines: ids with their texts, in the order in which they first appear.
pub fn claims_of(of_experiment: &[Recorded]) -> Vec<(&str, &str)> {
    let claims = of_experiment.iter().flat_map(|r| &r.protocol.claims);
    grouped(claims.map(|claim| (&*claim.id, &*claim.text))).into_iter().map(|(id, texts)| (id, texts[0])).collect()
}

/// The published figures that an experiment is about, over all machines, in the order in which they first appear.
pub fn published_of(of_experiment: &[Recorded]) -> Vec<&Published> {
    let published = of_experiment.iter().flat_map(|r| &r.protocol.published);
    grouped(published.map(|published| (&published.id, published))).into_iter().map(|(_, alike)| alike[0]).collect()
}

/// A claim with what every machine found.
pub fn section(of_experiment: &[Recorded], (id, text): (&str, &str)) -> Value {
    let judged = of_experiment.iter().flat_map(|r| r.judgements.iter().map(move |j| (r, j)));
    let found = judged.filter(|(_, judgement)| judgement.of.id == id && judgement.verdict != Verdict::NotMeasured);
    let findings = found.map(|(run, judgement)| finding(run, judgement, Against::Claim, prose::meaning(judgement)));
    context! { text, findings => findings.collect::<Vec<_>>() }
}

/// The published figures of one experiment, each with what every machine gives instead.
pub fn published_sections(of_experiment: &[Recorded]) -> Vec<Value> {
    let section = |published: &Published| {
        let found = of_experiment.iter().flat_map(|run| run.reproductions.iter().map(move |found| (run, found)));
        let found: Vec<(&Recorded, &Reproduction)> = found.filter(|(_, found)| found.of.id == published.id).collect();
        let said = |is_own: bool| {
            let compared = found.iter().filter(|(_, found)| found.carries && found.verdict != Verdict::NotMeasured);
            let each = compared.filter(|(run, _)| run.is_own == is_own);
            let each = each.map(|(run, found)| standing(found, Against::Published, run));
            each.collect::<Vec<_>>().join("; ")
        };
        let ours = Some(said(false)).filter(|ours| !ours.is_empty());
        let finding =
            |(run, found): &(&Recorded, &Reproduction)| finding(run, found, Against::Published, prose::why(&run.protocol, found));
        context! {
            id => slug(&published.id),
            source => &published.source,
            figure => &published.figure,
            setup => &published.setup,
            ours => ours.unwrap_or_else(|| format!("not comparable: {}", if published.rule.is_none() { "the setups differ" } else { "it needs another device" })),
            yours => said(true),
            findings => found.iter().map(finding).collect::<Vec<_>>(),
        }
    };
    published_of(of_experiment).into_iter().map(section).collect()
}

/// What became of it on a machine, and by what effect.
pub fn standing<T>(judged: &Judged<T>, against: Against, run: &Recorded) -> String {
    let effect = prose::effect_of_all(&run.protocol, &judged.evidence);
    format!("{}, {}: {effect}", prose::standing(judged, against), prose::taken_by(judged, &run.machine))
}

fn finding<T>(run: &Recorded, found: &Judged<T>, against: Against, meaning: String) -> Value {
    context! {
        machine => &run.machine,
        device => prose::platform(found.platform),
        verdict => prose::standing(found, against),
        meaning,
        evidence => found.evidence.iter().map(|evidence| part(run, evidence, against)).collect::<Vec<_>>(),
    }
}

/// The evidence for one part of a claim's rule.
fn part(recorded: &Recorded, evidence: &Evidence, against: Against) -> Value {
    let protocol = &recorded.protocol;
    let (confirm, refute) = evidence.rule.thresholds(&protocol.metrics);
    let common = common(&evidence.comparisons);
    let row = |c: &Comparison| comparison_row(recorded, &evidence.rule, c, &common, against);
    let many = evidence.comparisons.len() > FEW;
    let shown = if many { most_telling(&evidence.comparisons) } else { evidence.comparisons.iter().collect() };
    let unnamed = common.iter().filter(|(factor, _)| !evidence.rule.names(factor));
    context! {
        verdict => match evidence.awaited {
            0 => prose::verdict(evidence.verdict, against),
            awaited => format!("{} of {} measured", evidence.planned - awaited, evidence.planned),
        },
        comparison => evidence.rule.comparison(&protocol.metrics),
        confirm,
        refute,
        tally => tally(&evidence.comparisons, against),
        effects => prose::effects(protocol, evidence),
        out_of_scope => out_of_scope(recorded, evidence),
        more => evidence.comparisons.len() - shown.len(),
        shown => shown.into_iter().map(row).collect::<Vec<_>>(),
        common => unnamed.map(|(factor, level)| format!("{factor} = {level}")).collect::<Vec<_>>().join(", "),
    }
}

/// The levels that all compared cells share.
fn common(comparisons: &[Comparison]) -> Vec<(String, String)> {
    let Some(first) = comparisons.first().filter(|_| comparisons.len() > 1) else {
        return Vec::new();
    };
    let shared = |(factor, level): &&(String, String)| comparisons.iter().all(|c| c.cell.get(factor) == Some(level));
    first.cell.levels().iter().filter(shared).cloned().collect()
}

fn comparison_row(
    recorded: &Recorded,
    rule: &RulePart,
    comparison: &Comparison,
    common: &[(String, String)],
    against: Against,
) -> Vec<String> {
    let factors: Vec<&str> = common.iter().map(|(factor, _)| factor.as_str()).collect();
    let rounds = if comparison.effect.is_exact() { "–".to_string() } else { comparison.rounds.to_string() };
    vec![
        rule.row(comparison, &factors),
        rule.figure(&recorded.protocol.metrics, comparison.effect.estimate),
        prose::interval(&recorded.protocol, rule, comparison.effect),
        rounds,
        prose::outcome(comparison.outcome, against).to_string(),
    ]
}

fn tally(comparisons: &[Comparison], against: Against) -> String {
    let count = |outcome: Outcome| comparisons.iter().filter(|c| c.outcome == outcome).count();
    let (confirm, refute) = match against {
        Against::Claim => (("confirm", "confirms"), ("refute", "refutes")),
        Against::Published => (("reproduce it", "reproduces it"), ("do not", "does not")),
    };
    let said = [
        (count(Outcome::Confirms), confirm.0, confirm.1),
        (count(Outcome::Refutes), refute.0, refute.1),
        (count(Outcome::Between), "lie between the thresholds", "lies between the thresholds"),
        (count(Outcome::Straddles), "have an interval that includes a threshold", "has an interval that includes a threshold"),
    ];
    let parts: Vec<String> = said
        .into_iter()
        .filter(|(n, ..)| *n > 0)
        .map(|(n, many, one)| if n == 1 { format!("1 {one}") } else { format!("{n} {many}") })
        .collect();
    match comparisons.len() {
        0 => "nothing to compare".to_string(),
        n => format!("{}: {}", counted(n, "comparison"), parts.join(", ")),
    }
}

/// The extremes of each outcome, in the order of the grid.
fn most_telling(comparisons: &[Comparison]) -> Vec<&Comparison> {
    let mut chosen: Vec<usize> = Vec::new();
    for outcome in [Outcome::Confirms, Outcome::Refutes, Outcome::Between, Outcome::Straddles] {
        let of_outcome = || comparisons.iter().enumerate().filter(|(_, c)| c.outcome == outcome);
        let by_effect = |a: &(usize, &Comparison), b: &(usize, &Comparison)| a.1.effect.estimate.total_cmp(&b.1.effect.estimate);
        chosen.extend(of_outcome().min_by(by_effect).map(|(i, _)| i));
        chosen.extend(of_outcome().max_by(by_effect).map(|(i, _)| i));
    }
    chosen.sort_unstable();
    chosen.dedup();
    chosen.into_iter().map(|i| &comparisons[i]).collect()
}

fn out_of_scope(recorded: &Recorded, evidence: &Evidence) -> String {
    let Some(scope) = evidence.rule.scope(&recorded.protocol.metrics) else { return String::new() };
    let outside = match evidence.out_of_scope {
        0 => "none outside".to_string(),
        n => format!("{} outside", counted(n, "configuration")),
    };
    format!("Judged only where, {scope}: {outside}")
}

/// Every claim on every machine that has figures of it.
pub fn verdicts(runs: &[Recorded]) -> Vec<VerdictRow> {
    let mut rows: Vec<VerdictRow> = Vec::new();
    for (id, text) in claims_of(runs) {
        let of_claim = rows.len();
        let (others, own): (Vec<&Recorded>, Vec<&Recorded>) = runs.iter().partition(|run| !run.is_own);
        for run in others.into_iter().chain(own) {
            for judgement in run.judgements.iter().filter(|j| j.of.id == id && j.verdict != Verdict::NotMeasured) {
                let effect = prose::effect_of_all(&run.protocol, &judgement.evidence);
                let device = prose::platform(judgement.platform);
                let same = rows[of_claim..].iter_mut().find(|row| run.is_own && row.device == device);
                if let Some(row) = same {
                    row.yours.push(format!("{}: {effect}", prose::standing(judgement, Against::Claim)));
                    continue;
                }
                rows.push(VerdictRow {
                    effect,
                    device,
                    yours: Vec::new(),
                    is_own: run.is_own,
                    claim: quotes(id, text),
                    id: slug(id),
                    compared: compared(&run.protocol, &judgement.evidence),
                    machine: prose::taken_by(judgement, &run.machine),
                    verdict: prose::standing(judgement, Against::Claim),
                    kind: if judgement.carries { judgement.verdict.to_string() } else { "informational".to_string() },
                });
            }
        }
    }
    rows
}
