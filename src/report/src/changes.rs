//! What was changed after a look at figures, and what the figures say without the change: the table in METHODOLOGY.

use super::markup::Markdown;
use super::prose::{self, Against};
use super::recorded::Recorded;
use record::judge::Verdict;
use std::collections::BTreeMap;

/// A claim or published figure that was changed, with its verdicts by machine.
#[derive(Default)]
struct ChangeRow<'a> {
    what: &'a str,
    now: Vec<String>,
    without: Vec<String>,
}

/// The table, as Markdown: a row for each change.
pub fn table(recorded: &[Recorded]) -> String {
    let mut rows: BTreeMap<&str, ChangeRow> = BTreeMap::new();
    for run in recorded.iter().filter(|run| !run.is_own) {
        let claims = run.judgements.iter().map(|j| (&j.of.id, &j.changed, j.platform, j.carries, j.verdict, Against::Claim));
        let published =
            run.reproductions.iter().map(|r| (&r.of.id, &r.changed, r.platform, r.carries, r.verdict, Against::Published));
        for (id, changed, platform, carries, now, against) in claims.chain(published) {
            let Some(changed) = changed else { continue };
            let row = rows.entry(id).or_insert(ChangeRow { what: &changed.what, ..ChangeRow::default() });
            if !carries || (now == Verdict::NotMeasured && changed.without.is_none_or(|verdict| verdict == Verdict::NotMeasured)) {
                continue;
            }
            // As the run says it that is judged: results of another machine may be older.
            row.what = &changed.what;
            let said = |verdict| format!("{}: {}", prose::platform(platform), prose::word(verdict, against));
            row.now.push(said(now));
            row.without.extend(changed.without.map(said));
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
    lines.extend(rows.into_iter().map(|(id, row)| {
        let now = if row.now.is_empty() { "not measured here".to_string() } else { row.now.join("; ") };
        let [id, what, now, without] = [id, row.what, &now, &or_none(row.without)].map(Markdown::text);
        format!("| *{}* | {} | {} | {} |", id.as_str(), what.as_str(), now.as_str(), without.as_str())
    }));
    lines.join("\n")
}
