//! What a picture shows, as its title: from the figures that it draws.

use super::{PlotView, extent, grouped, levels, texts};
use base::units::quantity;
use base::units::{change, percent};
use record::protocol::{FigureStyle, PlainCell, PlainPlot, PlotKind};
use std::collections::BTreeMap;

/// A sentence for the title; none where the figures do not give one, and the caption has to do.
pub fn finding(view: &PlotView, plot: &PlainPlot) -> Option<String> {
    match &plot.kind {
        PlotKind::Bars { absolute: true, .. } => of_amounts(view),
        PlotKind::Bars { .. } => of_levels(view),
        // Less of a share is no saving.
        PlotKind::Lines { x, series } if view.metric.style == FigureStyle::Share => of_share_lines(view, x, &texts(series)),
        PlotKind::Lines { x, series } => of_lines(view, x, &texts(series)),
        PlotKind::Against { reference, .. } => super::against::finding(view, reference),
        PlotKind::Area { panels, layers, boundary, phases } => {
            super::area::finding(view, &super::area::AreaDesign { panels: &texts(panels), layers, boundary, phases })
        }
        PlotKind::Ranking { .. } => None,
    }
}

/// The level of the studied factor that changes most, and by how much.
fn of_levels(view: &PlotView) -> Option<String> {
    let named = |cell: &PlainCell| {
        let ratio = view.recorded.ratio(cell, view.metric)?;
        let studied = &view.recorded.grid_of(cell)?.studied;
        let level = cell.get(studied).filter(|level| !view.recorded.protocol.is_limit(studied, level))?;
        let label = view.level_label(studied, level);
        Some((if label == level { view.recorded.protocol.doing(studied, level) } else { label }, ratio))
    };
    let by_level = grouped(view.cells.iter().filter_map(named));
    let all = || by_level.iter().flat_map(|(_, ratios)| ratios);
    let label = view.label();
    if by_level.is_empty() {
        return None;
    }
    if all().all(|ratio| !ratio.is_exact() && ratio.low <= 1.0 && ratio.high >= 1.0) {
        return Some(format!("No difference in {label} shows: every 95 % CI includes 1"));
    }
    if all().all(|ratio| (ratio.estimate - 1.0).abs() < 0.01) {
        return Some(format!("Nothing changes {label} by 1 % or more"));
    }
    let strength = |ratios: &[base::stats::Interval]| {
        let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.estimate.max(1e-9).ln()).collect();
        (logs.iter().sum::<f64>() / logs.len() as f64).abs()
    };
    // A level that one configuration has says less than one that all have.
    let most = by_level.iter().map(|(_, ratios)| ratios.len()).max()?;
    let common = by_level.iter().filter(|(_, ratios)| ratios.len() == most);
    let (name, ratios) = common.max_by(|a, b| strength(&a.1).total_cmp(&strength(&b.1)))?;
    let (low, high) = extent(ratios.iter().map(|ratio| ratio.estimate));
    Some(capital(&changes(name, &label, low, high)))
}

/// `k = 4 cuts peak memory by 56 % to 75 %`.
fn changes(what: &str, label: &str, low: f64, high: f64) -> String {
    let told = change(low, high);
    match (low < 1.0, high > 1.0) {
        (true, false) if high < 0.995 => format!("{what} cuts {label} by {}", told.replace('−', "")),
        (false, true) if low > 1.005 && high < 2.0 => format!("{what} raises {label} by {}", told.replace('+', "")),
        _ => format!("{what}: {label} {told}"),
    }
}

/// At the largest level that several lines have, the lowest against the first; of one line, how it grows.
fn of_lines(view: &PlotView, x: &str, series: &[&str]) -> Option<String> {
    let factors = view.distinguishing_factors(series, &[x]);
    let at = |cell: &PlainCell| cell.get(x).and_then(|level| level.parse::<f64>().ok());
    let placed = || view.cells.iter().filter_map(|cell| Some((levels(cell, &factors), (at(cell)?, cell))));
    let point = |(name, (place, cell))| Some((name, (place, view.value(cell).filter(|value| *value > 0.0)?)));
    let lines: Vec<(String, Vec<(f64, f64)>)> = grouped(placed().filter_map(point));
    let lost = grouped(placed().filter(|(_, (_, cell))| view.is_out_of_memory(cell) && view.value(cell).is_none()));
    let first = |(name, cells): (String, Vec<(f64, _)>)| (name, extent(cells.into_iter().map(|(place, _)| place)).0);
    let lost: BTreeMap<String, f64> = lost.into_iter().map(first).collect();
    let written = |place: f64| base::units::tick(place, "1");
    // What a line is called, by the levels that it stands for.
    let spoken = |levels: &[&str]| -> String {
        let said = levels.iter().zip(&factors).map(|(level, factor)| view.recorded.protocol.doing(factor, level));
        if levels.len() == factors.len() { said.collect::<Vec<_>>().join(" · ") } else { levels.join(" · ") }
    };
    let called = |name: &str| spoken(&name.split(" · ").collect::<Vec<_>>());
    if let Some((name, first)) = lost.iter().min_by(|a, b| a.1.total_cmp(b.1)) {
        let fits = lines.iter().filter(|(line, _)| !lost.contains_key(line)).map(|(line, _)| called(line)).collect::<Vec<_>>();
        if !fits.is_empty() {
            let (name, fits) = (capital(&called(name)), fits.join(", "));
            return Some(format!("{name} runs out of memory from {x} = {} on; {fits} fits throughout", written(*first)));
        }
        let last = |points: &[(f64, f64)]| points.iter().map(|(place, _)| *place).fold(0.0, f64::max);
        let (best, points) = lines.iter().max_by(|a, b| last(&a.1).total_cmp(&last(&b.1)))?;
        let (best, name) = (capital(&called(best)), called(name));
        return Some(format!("{best} fits longest, up to {x} = {}; {name} runs out at {}", written(last(points)), written(*first)));
    }
    let most = lines.iter().flat_map(|(_, points)| points).map(|(place, _)| *place).fold(f64::NEG_INFINITY, f64::max);
    let value = |points: &[(f64, f64)]| points.iter().find(|(place, _)| *place == most).map(|(_, value)| *value);
    let here: Vec<(Vec<&str>, f64)> =
        lines.iter().filter_map(|(name, points)| Some((name.split(" · ").collect(), value(points)?))).collect();
    // Lines that differ in one thing alone can be compared.
    let differ = |a: &[&str], b: &[&str]| {
        let apart: Vec<usize> = (0..a.len().min(b.len())).filter(|n| a[*n] != b[*n]).collect();
        if a.len() == b.len() && apart.len() == 1 { Some(apart[0]) } else { None }
    };
    let pairs = here.iter().enumerate().flat_map(|(n, low)| here[..n].iter().map(move |base| (low, base)));
    let spread = |points: &[(Vec<&str>, f64)]| {
        let values = || points.iter().map(|(_, value)| *value);
        values().fold(0.0, f64::max) / values().fold(f64::INFINITY, f64::min)
    };
    if here.len() > 1 && here.len() <= FEW && spread(&here) < 1.01 {
        let names: Vec<String> = here.iter().map(|(levels, _)| spoken(levels)).collect();
        return Some(format!("At {x} = {}, {} is the same within 1 %: {}", written(most), view.label(), names.join(", ")));
    }
    let (low, base, at, ratio) = pairs
        .filter_map(|(low, base)| Some((low, base, differ(&low.0, &base.0)?, low.1 / base.1)))
        .min_by(|a, b| a.3.total_cmp(&b.3))
        .filter(|(.., ratio)| *ratio < 0.99)?;
    let name = |levels: &[&str], n: usize| {
        factors.get(n).map_or(levels[n].to_string(), |factor| view.recorded.protocol.doing(factor, levels[n]))
    };
    let others: Vec<String> = (0..low.0.len()).filter(|n| *n != at).map(|n| name(&low.0, n)).collect();
    let where_ = if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
    let less = percent(ratio).replace('−', "");
    let (low, base, label) = (name(&low.0, at), name(&base.0, at), view.label());
    Some(format!("At {x} = {}, {low} has {less} less {label} than {base}{where_}", written(most)))
}

/// The shares at the far end of the axis, for each level of the first factor.
fn of_share_lines(view: &PlotView, x: &str, series: &[&str]) -> Option<String> {
    let first = view.distinguishing_factors(series, &[x]).into_iter().next();
    let point = |cell: &PlainCell| {
        let place = cell.get(x).and_then(|level| level.parse::<f64>().ok());
        Some((first.and_then(|factor| cell.get(factor)).unwrap_or_default().to_string(), place.zip(view.value(cell))?))
    };
    let groups = grouped(view.cells.iter().filter_map(point));
    let told = |(name, points): &(String, Vec<(f64, f64)>)| {
        let far = extent(points.iter().map(|(place, _)| *place)).1;
        let (low, high) = extent(points.iter().filter(|(place, _)| *place == far).map(|(_, share)| *share));
        let with = if name.is_empty() { String::new() } else { format!("{name}, ") };
        format!("{} ({with}{x} = {})", range(low, high, "%"), base::units::tick(far, "1"))
    };
    let said: Vec<String> = groups.iter().map(told).collect();
    (!said.is_empty() && said.len() <= 2).then(|| format!("{}: {}", capital(&view.label()), said.join(", ")))
}

/// The amount of each level, or of those with most and with least where there are many.
fn of_amounts(view: &PlotView) -> Option<String> {
    let studied = |cell: &PlainCell| {
        let grid = view.recorded.grid_of(cell)?;
        Some((view.recorded.protocol.doing(&grid.studied, cell.get(&grid.studied)?), view.value(cell)?))
    };
    let by_level = grouped(view.cells.iter().filter_map(studied)).into_iter().map(|(level, values)| {
        let (low, high) = extent(values);
        (level, low, high)
    });
    let by_level: Vec<(String, f64, f64)> = by_level.collect();
    let told = |(level, low, high): &(String, f64, f64)| format!("{level} {}", range(*low, *high, view.metric.shown_unit()));
    let label = capital(&view.label());
    if by_level.len() <= FEW && !by_level.is_empty() {
        return Some(format!("{label}: {}", by_level.iter().map(told).collect::<Vec<_>>().join(", ")));
    }
    let most = by_level.iter().max_by(|a, b| a.2.total_cmp(&b.2))?;
    let least = by_level.iter().min_by(|a, b| a.2.total_cmp(&b.2))?;
    Some(format!("{label}: most with {}, least with {}", told(most), told(least)))
}

/// More levels than this do not fit into a title.
const FEW: usize = 5;

fn range(low: f64, high: f64, unit: &str) -> String {
    let (low, high) = (quantity(low, unit), quantity(high, unit));
    if low == high { low } else { format!("{low} to {high}") }
}

/// The text as a sentence begins; names from code keep their case.
pub(super) fn capital(text: &str) -> String {
    let first: String = text.chars().take_while(|c| !c.is_whitespace() && *c != ':').collect();
    let is_word = first.len() > 1 && first.chars().all(|c| c.is_alphabetic() || c == '-') && first != "vramlab";
    let mut characters = text.chars();
    match characters.next() {
        Some(letter) if is_word => letter.to_uppercase().chain(characters).collect(),
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_says_which_way_a_figure_goes() {
        assert_eq!(changes("k = 4", "peak memory", 0.25, 0.44), "k = 4 cuts peak memory by 56 % to 75 %");
        assert_eq!(changes("form = clone", "peak memory", 1.24, 1.64), "form = clone raises peak memory by 24 % to 64 %");
        assert_eq!(changes("k = 4", "time", 0.9, 1.1), "k = 4: time −10 % to +10 %");
        assert_eq!(capital("peak memory"), "Peak memory");
        for name in ["relu(x).clone() raises", "bf16 autocast cuts", "k = 4 cuts", "vramlab cuts", "no_grad cuts"] {
            assert_eq!(capital(name), name);
        }
    }
}
