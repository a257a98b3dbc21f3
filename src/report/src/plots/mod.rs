//! The pictures of the report. Each is a pure function of what was recorded, so that the same samples give the same bytes.

mod area;
mod bars;
mod beside;
mod intervals;
mod lines;

use super::markup::slug;
use super::prose;
use super::recorded::Recorded;
use anyhow::Result;
use chart::{Head, NARROW, WIDE};
use record::protocol::{Metric, Pass, PlainCell, PlainGrid, PlainPlot, PlotKind, selects};
use record::results::Status;
use serde::Serialize;
use std::collections::BTreeMap;

pub use base::order::{distinct, grouped};
pub use beside::beside;

/// A picture with its narrow form for phones, as a page shows it.
#[derive(Debug, Clone, Serialize)]
pub struct PictureLink {
    /// Names of the files under `plots/`, for a page and for a phone.
    pub file: String,
    pub narrow: String,
    /// What the picture shows, for who cannot see it.
    pub alt: String,
}

#[derive(Debug, Clone)]
pub struct Picture {
    pub link: PictureLink,
    pub svg: String,
    pub narrow_svg: String,
    pub is_on_front: bool,
}

impl Picture {
    /// Draws a picture twice; nothing where there is nothing to draw.
    fn drawn(name: &str, alt: String, draw: impl Fn(i32) -> Result<Option<String>>) -> Result<Option<Picture>> {
        let (Some(svg), Some(narrow_svg)) = (draw(WIDE)?, draw(NARROW)?) else { return Ok(None) };
        let link = PictureLink { file: format!("{name}.svg"), narrow: format!("{name}-narrow.svg"), alt };
        Ok(Some(Picture { link, svg, narrow_svg, is_on_front: false }))
    }
}

/// Draws one plot of a protocol for one machine, under a title, or what its areas say, or its caption; nothing where the machine has no figure
/// for it.
pub fn draw(recorded: &Recorded, plot: &PlainPlot, title: Option<&str>) -> Result<Option<Picture>> {
    let Some(metric) = recorded.protocol.metric(&plot.metric) else {
        return Ok(None);
    };
    let draw = |width: i32| -> Result<Option<String>> {
        let mut view = PlotView::new(recorded, plot, metric, width);
        let areas = area::AreaDesign::of(plot);
        let finding = || areas.as_ref().and_then(|design| area::finding(&view, design));
        if let Some(title) = title.map(str::to_string).or_else(finding) {
            view.head = Head::new(&title, &format!("{}. {}", plot.caption.trim_end_matches('.'), recorded.whose()), width);
        }
        if let Some(svg) = intervals::signed(&view)? {
            return Ok(Some(svg));
        }
        match &plot.kind {
            PlotKind::Lines { x, series } => lines::lines(&view, x, &texts(series)),
            // Times are no bars from zero: a difference of a few percent would not be seen.
            PlotKind::Bars { clusters, absolute: false } if metric.pass == Pass::Time => {
                intervals::intervals(&view, &texts(clusters))
            }
            PlotKind::Bars { clusters, absolute } => bars::bars(&view, &texts(clusters), *absolute),
            PlotKind::Area { .. } => areas.as_ref().map_or(Ok(None), |design| area::area(&view, design)),
            // A table, which stands among the others.
            PlotKind::Ranking { .. } => Ok(None),
        }
    };
    let name = format!("{}-{}-{}", slug(&recorded.protocol.name), slug(&plot.name), slug(&recorded.machine));
    Picture::drawn(&name, format!("{} {}", plot.caption, recorded.whose()), draw)
}

/// Of a plot that stands on the front page what is drawn there: its last baseline alone.
pub fn front(recorded: &Recorded, plot: &PlainPlot) -> Result<Option<Picture>> {
    let is_plain = |cell: &PlainCell| recorded.grid_of(cell).is_some_and(|grid| grid.baseline_of(cell) == *cell);
    let last = recorded.all_cells().into_iter().rfind(|cell| selects(&plot.of, cell) && is_plain(cell));
    let Some(last) = last.filter(|_| recorded.is_prediction()) else { return Ok(None) };
    let alone = PlainPlot { name: "front".to_string(), of: last.to_string(), ..plot.clone() };
    Ok(draw(recorded, &alone, None)?.map(|picture| Picture { is_on_front: true, ..picture }))
}

/// Borrowed names.
pub fn texts(own: &[String]) -> Vec<&str> {
    own.iter().map(String::as_str).collect()
}

/// The cells that a plot shows, with what it asks of each.
struct PlotView<'a> {
    recorded: &'a Recorded,
    metric: &'a Metric,
    head: Head,
    cells: Vec<PlainCell>,
}

impl<'a> PlotView<'a> {
    fn new(recorded: &'a Recorded, plot: &PlainPlot, metric: &'a Metric, width: i32) -> PlotView<'a> {
        let grids = recorded.grids().filter(|grid| grid.passes.contains(&metric.pass));
        let cells = grids.flat_map(|grid| recorded.cells(grid)).filter(|cell| selects(&plot.of, cell)).collect();
        PlotView { recorded, metric, head: Head::new(&plot.caption, &recorded.whose(), width), cells }
    }

    /// The view without the cells of other grids: one that holds a factor fixed has no line along it, one without a factor no
    /// place among its clusters.
    fn only(&self, wanted: impl Fn(&PlainGrid) -> bool) -> PlotView<'a> {
        let cells = self.cells.iter().filter(|cell| self.recorded.grid_of(cell).is_some_and(&wanted));
        PlotView { cells: cells.cloned().collect(), head: self.head.clone(), ..*self }
    }

    fn value(&self, cell: &PlainCell) -> Option<f64> {
        self.recorded.samples.value(cell, self.metric.name)
    }

    /// Why a cell has no figure, in a few words.
    fn obstacle(&self, cell: &PlainCell) -> Option<&'static str> {
        self.recorded.obstacle(cell, self.metric.pass).map(|(status, _)| prose::status(status))
    }

    fn is_out_of_memory(&self, cell: &PlainCell) -> bool {
        self.recorded.obstacle(cell, self.metric.pass).is_some_and(|(status, _)| status == Status::Oom)
    }

    /// A level as an axis names it: workers by their number, also where the protocol counts them by cores.
    fn level_label(&self, factor: &str, level: &str) -> String {
        let cores = self.recorded.manifest.identity.hardware.get("cores").and_then(|cores| cores.parse::<u32>().ok());
        match (factor, level.strip_suffix('x').and_then(|times| times.parse::<u32>().ok()), cores) {
            ("workers", Some(times), Some(cores)) => format!("{} workers ({times} per core)", times.saturating_mul(cores)),
            ("workers", ..) => format!("{level} workers"),
            _ => level.to_string(),
        }
    }

    /// The metric's label, said to be a prediction where it is one.
    fn label(&self) -> String {
        prose::label(self.metric, self.recorded.is_prediction())
    }

    /// What a factor stands for, as an axis title.
    fn factor_title(&self, factor: &str) -> String {
        match self.recorded.protocol.factor(factor) {
            Some(f) if f.meaning.contains(factor) => f.meaning.clone(),
            Some(f) if !f.meaning.is_empty() => format!("{factor}: {}", f.meaning),
            _ => factor.to_string(),
        }
    }

    /// The factors that tell cells apart: the plot's own where they vary, then any other that does and that the ones before it do not
    /// decide, so that no two cells of different kind ever share a mark.
    fn distinguishing_factors<'b>(&'b self, own: &[&'b str], shown_otherwise: &[&str]) -> Vec<&'b str> {
        let varies = |factor: &str| self.cells.iter().any(|cell| cell.get(factor) != self.cells[0].get(factor));
        let others = self.recorded.protocol.factors.iter().map(|f| f.name.as_str());
        let others = others.filter(|name| !own.contains(name) && !shown_otherwise.contains(name));
        let mut distinguishing: Vec<&str> = own.iter().copied().filter(|factor| varies(factor)).collect();
        for factor in others {
            let mut decided: BTreeMap<Vec<Option<&str>>, Option<&str>> = BTreeMap::new();
            let key = |cell: &'b PlainCell| {
                distinguishing.iter().chain(shown_otherwise).map(|factor| cell.get(factor)).collect::<Vec<_>>()
            };
            let adds = self.cells.iter().any(|cell| *decided.entry(key(cell)).or_insert(cell.get(factor)) != cell.get(factor));
            if adds {
                distinguishing.push(factor);
            }
        }
        distinguishing
    }
}

/// The levels of some factors of a cell, as a label; a number does not say of what it is.
fn levels(cell: &PlainCell, factors: &[&str]) -> String {
    let named = |factor: &&str| {
        let level = cell.get(factor)?;
        Some(if level.parse::<f64>().is_ok() { format!("{factor} {level}") } else { level.to_string() })
    };
    factors.iter().filter_map(named).collect::<Vec<_>>().join(" · ")
}

/// A ratio beside an axis of changes.
fn change_tick(ratio: f64) -> String {
    let percent = ((ratio - 1.0) * 100.0).round();
    match percent {
        0.0 => "0 %".to_string(),
        percent if percent > 0.0 => format!("+{percent} %"),
        percent => format!("−{} %", percent.abs()),
    }
}

/// The least and the largest; from infinity to its negative where there is none.
pub fn extent(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    values.into_iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}
