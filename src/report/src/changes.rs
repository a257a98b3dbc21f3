//! What was changed after a look at figures, and what the figures say without the change: the table in METHODOLOGY.

use super::markup::Markdown;
use super::prose::{self, Against};
use super::recorded::Recorded;
use record::judge::{Changed, Verdict};
use record::protocol::Platform;

/// A claim or published figure that was changed, with its verdicts by machine.
struct ChangeRow<'a> {
    id: &'a str,
    what: &'a str,
    now: Vec<String>,
    without: Vec<String>,
}

/// The table, as Markdown: a row for each change.
pub fn table<'a>(recorded: &'a [Recorded]) -> String {
    let mut rows: Vec<ChangeRow> = Vec::new();
    for run in recorded.iter().filter(|run| !run.is_own) {
        let mut add = |id: &'a str, changed: &'a Changed, platform: Platform, carries: bool, now: Verdict, against| {
            let position = rows.iter().position(|row| row.id == id).unwrap_or_else(|| {
                rows.push(ChangeRow { id, what: &changed.what, now: Vec::new(), without: Vec::new() });
                rows.len() - 1
            });
            let without = changed.without.as_ref().map(|(verdict, _)| *verdict);
            if !carries || (now == Verdict::NotMeasured && without.is_none_or(|verdict| verdict == Verdict::NotMeasured)) {
                return;
            }
            // As the run says it that is judged: results of another machine may be older.
            rows[position].what = &changed.what;
            let said = |verdict| format!("{}: {}", prose::platform(platform), prose::word(verdict, against));
            rows[position].now.push(said(now));
            rows[position].without.extend(without.map(said));
        };
        for judged in &run.judgements {
            if let Some(changed) = &judged.changed {
                add(&judged.claim.id, changed, judged.platform, judged.carries, judged.verdict, Against::Claim);
            }
        }
        for found in &run.reproductions {
            if let Some(changed) = &found.changed {
                add(&found.published.id, changed, found.platform, found.comparable, found.verdict, Against::Published);
            }
        }
    }
    let or_none = |verdicts: Vec<String>| match verdicts.len() {
        0 => "no figure that is taken today can say".to_string(),
        _ => verdicts.join("; "),
    };
    let mut lines = vec![
        "| claim | what was changed after a look | verdict | verdict without the change |".to_string(),
        "|---|---|---|---|".to_string(),
    ];
    rows.sort_by_key(|row| row.id);
    lines.extend(rows.into_iter().map(|row| {
        let now = if row.now.is_empty() { "not measured here".to_string() } else { row.now.join("; ") };
        let [id, what, now, without] = [row.id, row.what, &now, &or_none(row.without)].map(Markdown::text);
        format!("| *{}* | {} | {} | {} |", id.as_str(), what.as_str(), now.as_str(), without.as_str())
    }));
    lines.join("\n")
}
