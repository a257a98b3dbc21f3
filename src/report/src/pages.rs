//! The page of one experiment: what to do, the picture, when it fails, one table, caveats; then, folded, rules, evidence and protocol.

use super::claims::{self, VerdictRow};
use super::data;
use super::effects::{Effect, compared};
use super::findings::ExperimentFindings;
use super::markup::{Markdown, slug};
use super::measured;
use super::notes::notes_of;
use super::pairs::{Pairs, pairs};
use super::plots::{PictureLink, distinct, grouped};
use super::prose;
use super::rankings;
use super::recorded::Recorded;
use super::words::PageWords;
use base::units::percent;
use minijinja::{Value, context};
use record::protocol::{Metric, PEAK, Pass, PlainCell, SubjectKind, TIME};
use serde::Serialize;

/// Rows of a table that stand in the open; the others are in the data.
const ROWS: usize = 14;

/// Columns of a table at most.
const MOST_COLUMNS: usize = 12;

/// Levels of a factor that are listed.
const MOST_LEVELS: usize = 24;

#[derive(Debug, Serialize)]
pub struct Page {
    pub name: String,
    pub title: String,
    pub file: String,
    pub question: String,
    pub hypothesis: String,
    pub words: PageWords,
    /// The effects of a technique that no editor has described yet, and the user's own.
    pub headlines: Vec<String>,
    /// Pictures that the words do not place.
    pub pictures: Vec<PictureLink>,
    pub verdicts: Vec<VerdictRow>,
    /// What a real GPU measured, beside what was predicted.
    pub measured_rows: Vec<Value>,
    pub pivots: Vec<Value>,
    pub pairs: Vec<Pairs>,
    pub rankings: Vec<Value>,
    pub threats: Vec<String>,
    /// Claims that no machine's figures can decide yet.
    pub undecided: Vec<String>,
    pub claims: Vec<Value>,
    pub factors: Vec<Value>,
    pub measured: Vec<Value>,
    pub protocols_differ: bool,
    #[serde(skip)]
    pub kind: SubjectKind,
}

/// The page of an experiment from all machines that ran it.
pub fn page(findings: &ExperimentFindings, mut words: PageWords, pictures: Vec<(String, PictureLink)>) -> Page {
    let runs = findings.runs;
    let first = &runs[0];
    let subject = &first.protocol.subject;
    let is_own = |id: &str| subject.kind == SubjectKind::SelfCheck || !first.is_self_check(id);
    let verdicts: Vec<VerdictRow> = findings.verdicts.iter().filter(|row| is_own(&row.id)).cloned().collect();
    let claims = || claims::claims_of(runs).into_iter().filter(|(id, _)| is_own(id));
    let judged_on = |id: &str| {
        let of = runs.iter().flat_map(|run| &run.protocol.claims).find(|claim| claim.id == id);
        of.map_or(&[][..], |claim| &claim.judged_on)
    };
    let undecided = claims().filter(|(id, _)| !verdicts.iter().any(|row| row.id == *id && row.kind != "informational"));
    Page {
        name: slug(&first.protocol.name),
        title: first.protocol.title.clone(),
        file: format!("{}.md", slug(&first.protocol.name)),
        question: first.protocol.question.to_string(),
        hypothesis: first.protocol.hypothesis.to_string(),
        headlines: headlines(findings, words.standing.is_empty()),
        pictures: words.place(pictures),
        words,
        undecided: undecided.map(|(id, text)| format!("{text}: {}", prose::wanting(judged_on(id)))).collect(),
        verdicts,
        measured_rows: measured::rows(runs),
        pivots: runs.iter().flat_map(pivots).collect(),
        pairs: runs.iter().filter_map(|run| pairs(&run.protocol, run.manifest.profile, &run.samples)).collect(),
        rankings: runs.iter().flat_map(rankings::rankings).collect(),
        threats: first.protocol.threats.iter().map(|text| text.to_string()).collect(),
        claims: claims().map(|claim| claims::section(runs, claim)).collect(),
        factors: factors(runs),
        measured: runs.iter().filter(|run| data::has_rows(run)).map(taken).collect(),
        protocols_differ: runs.iter().any(|run| run.protocol != first.protocol),
        kind: subject.kind,
    }
}

/// `Accumulate 4 micro-batches: peak memory −56 % to −75 % (simulated GPU: gpt-12x768, ...); time 0 % to +8 % (CPU: ...)`.
fn headlines(findings: &ExperimentFindings, is_unedited: bool) -> Vec<String> {
    let sentence = |effect: &Effect| {
        format!("{} {} ({}: {}{})", effect.label, effect.change(), effect.device, effect.rests_on, effect.progress())
    };
    let lines = |is_own: bool| {
        let whose = if is_own { "Yours: " } else { "" };
        findings.effects.iter().filter_map(move |found| {
            let effects = found.memory.iter().chain(&found.time).filter(|effect| effect.is_own == is_own);
            let said: Vec<String> = effects.map(sentence).collect();
            (!said.is_empty()).then(|| format!("{whose}{}: {}.", found.shown.label, said.join("; ")))
        })
    };
    lines(false).filter(|_| is_unedited).chain(lines(true)).collect()
}

/// The ratios of a machine's first metric in bytes, and of its times.
fn pivots(run: &Recorded) -> Vec<Value> {
    let has_ratio = |metric: &&Metric| compared(run, "").iter().any(|cell| run.ratio(cell, metric).is_some());
    let bytes = run.protocol.metrics.iter().filter(|m| m.unit == "B" && m.pass == Pass::Memory).filter(has_ratio);
    let bytes = run.protocol.metric(PEAK.name).filter(has_ratio).or_else(|| bytes.clone().next());
    let time = run.protocol.metric(TIME.name).filter(has_ratio);
    bytes.into_iter().chain(time).flat_map(|metric| pivots_of(run, metric)).collect()
}

/// A table for each factor that is studied.
fn pivots_of(run: &Recorded, metric: &Metric) -> Vec<Value> {
    let cells: Vec<PlainCell> = compared(run, "").into_iter().filter(|cell| run.ratio(cell, metric).is_some()).collect();
    let studied_by = |cell: &PlainCell| run.grid_of(cell).map_or("", |grid| grid.studied.as_str());
    let by_factor = grouped(cells.iter().map(|cell| (studied_by(cell), cell)));
    by_factor.into_iter().filter_map(|(factor, own)| pivot(run, metric, factor, &own)).collect()
}

/// Ratios to a baseline: a row for each configuration, a column for each level of the studied factor.
fn pivot(run: &Recorded, metric: &Metric, studied: &str, cells: &[&PlainCell]) -> Option<Value> {
    let first = cells.first()?;
    let grid = run.grid_of(first)?;
    let varies = |factor: &&str| cells.iter().any(|cell| cell.get(factor) != first.get(factor));
    let others: Vec<&str> =
        run.protocol.factors.iter().map(|f| f.name.as_str()).filter(|name| *name != studied).filter(varies).collect();
    let key = |cell: &PlainCell| others.iter().map(|factor| cell.get(factor).unwrap_or("").to_string()).collect::<Vec<_>>();
    let levels = distinct(cells.iter().map(|cell| cell.get(studied)).collect::<Option<Vec<&str>>>()?);
    let keys = distinct(cells.iter().map(|cell| key(cell)));
    let figure = |wanted: &[String], level: &str| {
        let cell = cells.iter().find(|cell| key(cell) == wanted && cell.get(studied) == Some(level));
        cell.and_then(|cell| run.ratio(cell, metric)).map_or(String::new(), |ratio| percent(ratio.estimate))
    };
    // Columns that say the same are one, and so are rows.
    let columns = levels.iter().map(|level| (keys.iter().map(|key| figure(key, level)).collect::<Vec<_>>(), *level));
    let merged = grouped(columns);
    // So many columns are no table: the data have them.
    if merged.len() > MOST_COLUMNS {
        return None;
    }
    let rows: Vec<Vec<String>> = keys
        .iter()
        .enumerate()
        .map(|(n, key)| key.iter().cloned().chain(merged.iter().map(|(figures, _)| figures[n].clone())).collect())
        .collect();
    let rows = alike_joined(rows, others.len());
    let (whose, what) = (run.whose(), prose::label(metric, run.is_prediction()));
    let mut head: Vec<String> = others.iter().map(|name| (*name).to_string()).collect();
    head.extend(merged.iter().map(|(_, levels)| format!("{studied} = {}", levels.join(" = "))));
    Some(context! {
        caption => format!("{whose}: {what} against {studied} = {}", grid.baseline_level()),
        factors => others.len(),
        head,
        more => rows.len().saturating_sub(ROWS),
        rows => rows.into_iter().take(ROWS).collect::<Vec<_>>(),
    })
}

/// Rows with the same figures that differ in one factor alone become one.
fn alike_joined(rows: Vec<Vec<String>>, factors: usize) -> Vec<Vec<String>> {
    let mut joined: Vec<Vec<String>> = Vec::new();
    for row in rows {
        let same = joined.iter_mut().find_map(|other| {
            let apart: Vec<usize> = (0..row.len()).filter(|n| other[*n] != row[*n]).collect();
            match apart[..] {
                [one] if one < factors => Some((other, one)),
                _ => None,
            }
        });
        match same {
            Some((other, at)) => other[at] = format!("{}, {}", other[at], row[at]),
            None => joined.push(row),
        }
    }
    joined
}

/// The factors with the levels that some machine ran.
fn factors(runs: &[Recorded]) -> Vec<Value> {
    let cells: Vec<PlainCell> = runs.iter().flat_map(Recorded::all_cells).collect();
    let factor = |factor: &record::protocol::Factor| {
        let levels = distinct(cells.iter().filter_map(|cell| cell.get(&factor.name)));
        let explained = |level: &&str| match factor.levels.iter().find(|l| l.name == *level) {
            Some(l) if !l.meaning.is_empty() => format!("{level} ({})", l.meaning),
            _ => (*level).to_string(),
        };
        let mut named: Vec<String> = levels.iter().take(MOST_LEVELS).map(explained).collect();
        if levels.len() > MOST_LEVELS {
            named.push(format!("and {} more", levels.len() - MOST_LEVELS));
        }
        (!levels.is_empty()).then(|| context! { name => &factor.name, meaning => &factor.meaning, levels => named })
    };
    runs[0].protocol.factors.iter().filter_map(factor).collect()
}

fn taken(run: &Recorded) -> Value {
    let cells = run.all_cells();
    let in_python = cells.iter().filter(|cell| cell.is_reference()).count();
    let by = match in_python {
        0 => "through libtorch".to_string(),
        all if all == cells.len() => "by PyTorch in Python".to_string(),
        some => format!("through libtorch, {some} of {} configurations by PyTorch in Python", cells.len()),
    };
    context! {
        machine => run.whose(),
        by,
        taken => if run.is_prediction() { "Predicted" } else { "Measured" },
        profile => run.manifest.profile.to_string(),
        command => run.manifest.commands.iter().map(|command| invocation(&command.argv)).collect::<Vec<_>>().join("; then "),
        data => Markdown::link("every configuration as CSV", &data::path(run)),
        notes => notes_of(run),
    }
}

/// The command line that measured, without the folders of the program and of the results, which runs recorded until November 2026.
fn invocation(argv: &[String]) -> String {
    let Some((program, arguments)) = argv.split_first() else {
        return String::new();
    };
    let program = program.rsplit(['/', '\\']).next().unwrap_or(program).to_string();
    let is_folder = |at: usize| arguments[at] == "--out" || at > 0 && arguments[at - 1] == "--out";
    let arguments = (0..arguments.len()).filter(|at| !is_folder(*at)).map(|at| arguments[at].clone());
    std::iter::once(program).chain(arguments).collect::<Vec<_>>().join(" ")
}
