//! What lives through the phases of a step, read from the points of a pass.

use super::{PlotView, levels, texts};
use anyhow::Result;
use chart::{Areas, MemoryCurve, Panel, PhaseBand, areas};
use record::protocol::{Metric, PlainCell, PlainPlot, PlotKind};
use record::results::{PassRecord, Status};
use std::collections::BTreeMap;
use std::ops::Range;

/// Panels in a row.
const COLUMNS: usize = 2;

/// More points than any pass records; a damaged file may name a point far behind the others.
const MOST_POINTS: usize = 1 << 20;

/// What a picture of areas shows, as the protocol says it.
pub struct AreaDesign<'a> {
    panels: Vec<&'a str>,
    layers: &'a [Metric],
    boundary: &'a str,
    phases: &'a [String],
}

impl<'a> AreaDesign<'a> {
    /// None of a plot that is another picture.
    pub fn of(plot: &'a PlainPlot) -> Option<AreaDesign<'a>> {
        let PlotKind::Area { panels, layers, boundary, phases } = &plot.kind else { return None };
        Some(AreaDesign { panels: texts(panels), layers, boundary, phases })
    }
}

pub fn area(view: &PlotView, design: &AreaDesign) -> Result<Option<String>> {
    // The level of the first of several panel factors, whose panels share a row and its scale.
    let panels: Vec<(String, Panel)> = view
        .cells
        .iter()
        .map(|cell| (levels(cell, design.panels.get(..1).unwrap_or_default()), panel(view, cell, design)))
        .collect();
    if panels.iter().all(|(_, panel)| panel.course.is_err()) {
        return Ok(None);
    }
    let has_rows = design.panels.len() > 1;
    let mut rows: Vec<(String, Vec<Panel>)> = Vec::new();
    for (row, panel) in panels {
        match rows.last_mut() {
            Some((last, row_panels)) if row_panels.len() < COLUMNS && (!has_rows || *last == row) => row_panels.push(panel),
            _ => rows.push((row, vec![panel])),
        }
    }
    let what = if view.recorded.is_prediction() { "predicted bytes" } else { "bytes" };
    areas(&Areas {
        head: &view.head,
        layers: design.layers.iter().map(|layer| layer.label.to_string()).collect(),
        rows: rows.into_iter().map(|(_, panels)| panels).collect(),
        one_scale: !has_rows,
        note: format!("{what} after each allocation and free, in order; each phase is as wide as the others"),
    })
    .map(|(picture, _)| Some(picture))
}

/// In which phase the peak is, and what makes most of it.
pub fn finding(view: &PlotView, design: &AreaDesign) -> Option<String> {
    let courses: Vec<MemoryCurve> = view.cells.iter().filter_map(|cell| panel(view, cell, design).course.ok()).collect();
    let peaks = || courses.iter().map(|course| (course, course.peak()));
    let places: Vec<&str> = peaks().map(|(course, peak)| course.place(peak)).collect();
    let place = places.iter().max_by_key(|place| places.iter().filter(|other| other == place).count())?;
    let share = |layer: usize| -> Vec<f64> {
        peaks()
            .map(|(course, peak)| course.points[peak][layer] / course.points[peak].iter().sum::<f64>().max(1.0) * 100.0)
            .collect()
    };
    let (name, shares) = design
        .layers
        .iter()
        .enumerate()
        .map(|(n, layer)| (layer.label, share(n)))
        .max_by(|a, b| a.1.iter().sum::<f64>().total_cmp(&b.1.iter().sum::<f64>()))?;
    let (low, high) = (shares.iter().copied().fold(f64::INFINITY, f64::min), shares.iter().copied().fold(0.0, f64::max));
    let count = places.iter().filter(|other| *other == place).count();
    let most = match places.len() {
        1 => return Some(format!("The peak is {place}; {name} are {low:.0} % of it")),
        all if all == count => "always".to_string(),
        all => format!("in {count} of {all} cases"),
    };
    Some(format!("The peak is {most} {place}; {name} are {low:.0} to {high:.0} % of it"))
}

fn panel(view: &PlotView, cell: &PlainCell, design: &AreaDesign) -> Panel {
    let own = |record: &&PassRecord| record.cell == *cell && record.pass == view.metric.pass && record.status == Status::Ok;
    let course = view.recorded.passes.iter().find(own).and_then(|record| read(record, design));
    let name = design.panels.iter().filter_map(|factor| Some(format!("{factor} = {}", cell.get(factor)?)));
    Panel {
        name: name.collect::<Vec<_>>().join(", "),
        course: course.ok_or_else(|| view.obstacle(cell).unwrap_or("not recorded").to_string()),
    }
}

/// Reads the curves of a pass: of each the points where it changes.
fn read(record: &PassRecord, design: &AreaDesign) -> Option<MemoryCurve> {
    let curve = |metric: &str| -> BTreeMap<usize, f64> {
        let points = record.samples.iter().filter(|sample| sample.metric == metric);
        points.map(|sample| (sample.sample as usize, sample.value)).collect()
    };
    let begins: Vec<usize> = curve(design.boundary).into_keys().collect();
    let ranges: Vec<Range<usize>> = begins.windows(2).map(|w| w[0]..w[1]).collect();
    let count = *begins.last()?;
    if ranges.len() != design.phases.len() || count == 0 || count > MOST_POINTS {
        return None;
    }
    let curves: Vec<BTreeMap<usize, f64>> = design.layers.iter().map(|layer| curve(layer.name)).collect();
    let at = |curve: &BTreeMap<usize, f64>, point: usize| curve.range(..=point).next_back().map_or(0.0, |(_, value)| *value);
    let points = (0..count).map(|point| curves.iter().map(|curve| at(curve, point)).collect()).collect();
    let phase = |(name, points): (&String, Range<usize>)| PhaseBand {
        name: name.to_string(),
        group: String::new(),
        place: format!("in {name}"),
        points,
    };
    Some(MemoryCurve { points, phases: design.phases.iter().zip(ranges).map(phase).collect() })
}
