//! Two machines side by side: which verdicts differ, and which effects lie apart by more than their intervals explain.

use super::prose::{self, Against};
use super::recorded::{Recorded, read_machine};
use anyhow::{Result, ensure};
use record::judge::{Judgement, Verdict};
use record::protocol::{Metric, PlainCell, Platform};
use std::fmt::Write;
use std::path::Path;

/// Effects whose estimates are this close are not called different, however narrow their intervals: counted bytes have none.
const CLOSE: f64 = record::protocol::NOISE;

/// What two result folders of machines, `results/MACHINE`, have in common and where they differ, as text.
pub fn diff(a: &Path, b: &Path) -> Result<String> {
    let (a, b) = (read_machine(a)?, read_machine(b)?);
    let pairs: Vec<(&Recorded, &Recorded)> =
        a.iter().filter_map(|run| Some((run, b.iter().find(|other| other.protocol.name == run.protocol.name)?))).collect();
    ensure!(!pairs.is_empty(), "the two folders have no experiment in common");
    let mut text = String::new();
    let (first, second) = pairs[0];
    writeln!(text, "A: {}\nB: {}\n", first.whose(), second.whose())?;
    let mut same = 0;
    let (mut verdicts, mut incomplete) = (String::new(), String::new());
    for (a, b) in &pairs {
        for judgement in &a.judgements {
            let other = b.judgements.iter().find(|o| {
                o.of.id == judgement.of.id && (o.platform == Platform::Python) == (judgement.platform == Platform::Python)
            });
            let Some(other) = other.filter(|o| o.verdict != Verdict::NotMeasured && judgement.verdict != Verdict::NotMeasured)
            else {
                continue;
            };
            let both = [judgement, other];
            let is_incomplete = both.iter().any(|j| j.verdict == Verdict::Incomplete);
            // Where the claim is about neither device there is no verdict that could differ.
            if !is_incomplete && (other.verdict == judgement.verdict || both.iter().all(|j| !j.carries)) {
                same += 1;
                continue;
            }
            let said = |run: &Recorded, j: &Judgement| {
                format!("{}: {}", prose::standing(j, Against::Claim), prose::effect_of_all(&run.protocol, &j.evidence))
            };
            let list = if is_incomplete { &mut incomplete } else { &mut verdicts };
            writeln!(list, "{}\n  A {}\n  B {}", judgement.of.id, said(a, judgement), said(b, other))?;
        }
    }
    writeln!(text, "Verdicts: {same} the same; different:\n{}", or_none(&verdicts))?;
    if !incomplete.is_empty() {
        writeln!(text, "Not all measured yet, so there is nothing to compare:\n{incomplete}")?;
    }
    let (mut compared, mut apart) = (0, String::new());
    for (a, b) in &pairs {
        for metric in &a.protocol.metrics {
            let Some(other) = b.protocol.metric(metric.name) else { continue };
            for cell in a.all_cells() {
                let Some((mine, theirs)) = a.ratio(&cell, metric).zip(b.ratio(&cell, other)) else { continue };
                compared += 1;
                let is_apart = mine.low > theirs.high || theirs.low > mine.high;
                if is_apart && (mine.estimate / theirs.estimate).ln().abs() > CLOSE {
                    writeln!(apart, "{}: {}", a.protocol.name, line(&cell, metric, mine.estimate, theirs.estimate))?;
                }
            }
        }
    }
    let lines = apart.lines().count();
    writeln!(
        text,
        "Effects of the same configuration: {compared} compared, {lines} apart beyond their intervals and by more than 2 %:\n{}",
        or_none(&apart)
    )?;
    Ok(text)
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "  none\n" } else { text }
}

fn line(cell: &PlainCell, metric: &Metric, a: f64, b: f64) -> String {
    format!("{cell}, {}: A {}, B {}", metric.label, base::units::percent(a), base::units::percent(b))
}
