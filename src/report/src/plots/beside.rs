//! Published figures beside ours, as paired dots.

use super::Picture;
use crate::markup::slug;
use crate::prose;
use crate::recorded::Recorded;
use anyhow::Result;
use base::units::{change, percent};
use chart::{Dot, Head, RangeAxis, Ranges, Row, ranges};
use record::protocol::Published;
use record::rules::{Bound, PlainPart, PlainRule, RatioRule, RulePart};

/// Parts of a published table that make a picture worth it.
const FEWEST: usize = 3;

/// A row for each part of a published table of ratios: its range, and what each machine found; nothing for single figures.
pub fn beside(runs: &[Recorded], published: &Published) -> Result<Option<Picture>> {
    let found: Vec<_> = runs
        .iter()
        .flat_map(|run| run.reproductions.iter().map(move |found| (run, found)))
        .filter(|(_, found)| found.of.id == published.id && found.carries)
        .collect();
    let parts = published.rule.as_ref().map_or(Vec::new(), PlainRule::parts);
    let row = |(n, part): (usize, &PlainPart)| {
        let RulePart::Ratio(RatioRule { metric, of, confirm: Bound::Within(low, high), .. }) = part.rule else { return None };
        let (low, high) = (*low, *high);
        let theirs =
            Dot { series: 0, middle: (low + high) / 2.0, low, high, text: format!("published {}", percent((low + high) / 2.0)) };
        let ours = found.iter().enumerate().flat_map(|(machine, (_, found))| {
            let comparisons = found.evidence.get(n).map_or(&[][..], |evidence| &evidence.comparisons);
            comparisons.iter().map(move |comparison| {
                let effect = comparison.effect;
                let text = if effect.is_exact() { percent(effect.estimate) } else { change(effect.low, effect.high) };
                Dot { series: machine + 1, middle: effect.estimate, low: effect.low, high: effect.high, text }
            })
        });
        let dots: Vec<Dot> = std::iter::once(theirs).chain(ours).collect();
        let label = runs[0].protocol.metric(metric).map_or("", |m| m.label);
        let name = of.split_whitespace().next_back().and_then(|term| Some(term.split_once('=')?.1)).unwrap_or("").to_string();
        (dots.len() > 1).then_some((label, Row { name, dots }))
    };
    let mut rows: Vec<(&str, Row)> = parts.iter().enumerate().filter_map(row).collect();
    let first = rows.first().map_or("", |(label, _)| label);
    let what = if rows.iter().all(|(label, _)| *label == first) { format!("; {first}") } else { String::new() };
    if what.is_empty() {
        rows.iter_mut().for_each(|(label, row)| row.name = format!("{}: {label}", row.name));
    }
    let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    if rows.len() < FEWEST {
        return Ok(None);
    }
    let near = |row: &&Row| row.dots[1..].iter().all(|dot| dot.middle >= row.dots[0].low && dot.middle <= row.dots[0].high);
    let title = format!(
        "{} of {} published ratios that can be compared come out within a tenth",
        rows.iter().filter(near).count(),
        rows.len()
    );
    let machines = found.iter().map(|(run, found)| prose::whose(found.platform, &run.machine));
    let series: Vec<String> = std::iter::once("published, a tenth either way".to_string()).chain(machines).collect();
    let name = format!("published-beside-{}", slug(&published.id));
    Picture::drawn(&name, format!("Published figures beside ours: {}", published.figure), |width| {
        let head = Head::new(&title, &format!("{}{what}", published.source), width);
        let axis = RangeAxis { title: "change against the baseline".to_string(), tick: percent, reference: 1.0 };
        ranges(&Ranges { head: &head, axis, series: series.clone(), rows: rows.clone() }).map(Some)
    })
}
