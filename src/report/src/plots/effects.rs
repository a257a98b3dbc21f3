//! What each thing does on average over a full factorial design, and how two of them get into one another's way.

use super::bars::{Bar, Cluster, Lengths, paint};
use super::{PlotView, grouped, levels};
use anyhow::Result;
use base::stats::Interval;
use base::units::change;
use chart::{TEXT, wrapped};
use record::protocol::PlainCell;

/// A cell, and what it has that the plain one has not.
type Treated<'a> = (&'a PlainCell, Vec<&'a str>);

pub fn effects(view: &PlotView, factors: &[&str]) -> Result<Option<String>> {
    // What is not complete over all factors may be over fewer, apart for each level of the others.
    let Some((clusters, apart)) = (1..=factors.len()).rev().find_map(|kept| {
        let apart = view.telling(&[], &factors[..kept]);
        let clusters = collect(view, &factors[..kept], &apart);
        (!clusters.is_empty()).then_some((clusters, apart))
    }) else {
        return Ok(None);
    };
    let header = (apart.join(" · "), "on average".to_string());
    let title = format!("{}, with / without; of two: that ratio beside the other / alone", view.label());
    paint(view, &clusters, header, &Lengths { title: &title, unit: "x", baseline: Some("1x: no effect") }).map(Some)
}

/// The thing that changes most on average.
pub fn finding(view: &PlotView, factors: &[&str]) -> Option<String> {
    let apart = (1..=factors.len()).rev().find_map(|kept| {
        let clusters = collect(view, &factors[..kept], &view.telling(&[], &factors[..kept]));
        (!clusters.is_empty()).then_some(clusters)
    })?;
    let single = |bar: &&Bar| !bar.level.contains(" with ");
    let mut by_thing: Vec<(&str, Vec<f64>)> = Vec::new();
    for bar in apart.iter().flat_map(|cluster| &cluster.bars).filter(single) {
        let Ok(ratio) = &bar.outcome else { continue };
        match by_thing.iter_mut().find(|(known, _)| *known == bar.level) {
            Some((_, ratios)) => ratios.push(ratio.estimate),
            None => by_thing.push((&bar.level, vec![ratio.estimate])),
        }
    }
    let strength = |ratios: &[f64]| (ratios.iter().map(|ratio| ratio.max(1e-9).ln()).sum::<f64>() / ratios.len() as f64).abs();
    let (thing, ratios) = by_thing.iter().max_by(|a, b| strength(&a.1).total_cmp(&strength(&b.1)))?;
    let (low, high) = (ratios.iter().copied().fold(f64::INFINITY, f64::min), ratios.iter().copied().fold(0.0, f64::max));
    let thing = factors
        .iter()
        .find_map(|factor| Some(view.recorded.protocol.doing(factor, thing)).filter(|name| name != thing))
        .unwrap_or(thing.to_string());
    Some(format!("On average {thing} changes {} most: {}", view.label(), change(low, high)))
}

fn collect(view: &PlotView, factors: &[&str], apart: &[&str]) -> Vec<Cluster> {
    let shown = view.cells.iter().filter(|cell| view.value(cell).is_some());
    let clusters = grouped(shown.map(|cell| (levels(cell, apart), (cell, treatments(view, cell, factors)))));
    clusters.into_iter().filter_map(|(name, cells)| cluster(view, &name, &cells)).collect()
}

/// The levels of a cell that are not what the factor's grid begins with: `amp+checkpoint` is two things.
fn treatments<'a>(view: &PlotView, cell: &'a PlainCell, factors: &[&str]) -> Vec<&'a str> {
    let Some(grid) = view.recorded.grid_of(cell) else { return Vec::new() };
    let changed = factors
        .iter()
        .filter_map(|factor| cell.get(factor).filter(|level| grid.levels_of(factor).first().is_none_or(|first| first != level)));
    changed.flat_map(|level| level.split('+')).collect()
}

/// Nothing where not every combination is there exactly once.
fn cluster(view: &PlotView, name: &str, cells: &[Treated]) -> Option<Cluster> {
    let mut things: Vec<&str> = Vec::new();
    for thing in cells.iter().flat_map(|(_, has)| has) {
        if !things.contains(thing) {
            things.push(thing);
        }
    }
    let is_there_once = |subset: u32| {
        let wanted = |thing: &str| things.iter().position(|t| *t == thing).is_some_and(|n| subset >> n & 1 == 1);
        cells.iter().filter(|(_, has)| has.len() == subset.count_ones() as usize && has.iter().all(|t| wanted(t))).count() == 1
    };
    if things.is_empty() || !(0..1 << things.len()).all(is_there_once) {
        return None;
    }
    let singles = things.iter().map(|thing| vec![*thing]);
    let pairs = things.iter().enumerate().flat_map(|(n, a)| things[n + 1..].iter().map(|b| vec![*a, *b]));
    let bars = singles.chain(pairs).map(|of| Bar {
        level: of.join(" with "),
        // One look for main effects, one for interactions.
        rank: of.len() - 1,
        outcome: effect(view, cells, &of).ok_or_else(|| "not enough rounds".to_string()),
    });
    let name = wrapped(name, TEXT, super::bars::NAMES);
    Some(Cluster { name, baseline: format!("{} combinations", cells.len()), bars: bars.collect() })
}

/// Of one thing the geometric mean of its ratio, with over without, over all combinations of the others; of two the ratio that one has with
/// the other over the one that it has without. (Box, Hunter and Hunter, Statistics for Experimenters, on logarithms.)
fn effect(view: &PlotView, cells: &[Treated], of: &[&str]) -> Option<Interval> {
    let ratios = (cells.len() >> of.len()) as f64;
    let weighed: Vec<(&PlainCell, f64)> = cells
        .iter()
        .map(|(cell, has)| {
            let without = of.iter().filter(|thing| !has.contains(thing)).count();
            (*cell, if without % 2 == 0 { 1.0 } else { -1.0 } / ratios)
        })
        .collect();
    view.recorded.contrast(&weighed, view.metric)
}
