//! Pictures of a grid.

use super::claims::{Predicate, chosen};
use super::levels::{Cell, Has, Level};
use record::protocol::{Metric, PEAK, PlainCell, PlainPlot, PlotKind, intern};

/// A picture that answers a question at a glance; one is drawn for each machine.
pub struct Plot<C> {
    /// What it becomes, but for its selection and what follows from its grid.
    drawn: PlainPlot,
    pub(super) metric: Metric,
    of: Predicate<C>,
}

fn plot<C>(metric: Metric, kind: PlotKind) -> Plot<C> {
    let name = if metric.name == PEAK.name { "peak".to_string() } else { metric.name.replace('_', "-") };
    let (caption, of, on_front) = (String::new(), String::new(), false);
    Plot { drawn: PlainPlot { name, caption, of, metric: metric.name.into(), kind, on_front }, metric, of: None }
}

/// The metric relative to its baseline: a bar for each compared level, a cluster for each combination of the other factors.
pub fn bars<C>(metric: Metric) -> Plot<C> {
    plot(metric, PlotKind::Bars { clusters: Vec::new(), absolute: false })
}

/// The metric itself, where it has no baseline that a reader would divide by: a bar for each compared level, a cluster for each combination
/// of the other factors.
pub fn amounts<C>(metric: Metric) -> Plot<C> {
    plot(metric, PlotKind::Bars { clusters: Vec::new(), absolute: true })
}

/// The metric over a number ([`Plot::over`]), both axes logarithmic; a line for each combination of the factors that [`Plot::by`] names.
pub fn lines<C>(metric: Metric) -> Plot<C> {
    plot(metric, PlotKind::Lines { x: String::new(), series: Vec::new() })
}

/// In place of a picture a table for each cell: its parts, those with most of the first column first.
pub fn ranking<C>(metric: Metric, part: &str, columns: &[Metric], most: usize) -> Plot<C> {
    let column = |metric: &Metric| Metric { name: intern(&format!("{}.", metric.name)), ..*metric };
    let columns = columns.iter().map(column).collect();
    plot(metric, PlotKind::Ranking { rows: Vec::new(), part: part.into(), columns, most })
}

/// Bytes stacked by what they are for through the phases of a step: curves whose points the step gave, the lowest first.
pub fn area<C>(metric: Metric, layers: &[Metric], boundary: Metric, phases: &[&str]) -> Plot<C> {
    let phases = phases.iter().map(|phase| (*phase).to_string()).collect();
    plot(metric, PlotKind::Area { panels: Vec::new(), layers: layers.to_vec(), boundary: boundary.name.into(), phases })
}

/// The factors by which a picture groups its figures.
fn groups(kind: &mut PlotKind) -> &mut Vec<String> {
    match kind {
        PlotKind::Bars { clusters: groups, .. }
        | PlotKind::Lines { series: groups, .. }
        | PlotKind::Ranking { rows: groups, .. }
        | PlotKind::Area { panels: groups, .. } => groups,
    }
}

impl<C: Cell> Plot<C> {
    /// Another name than the metric's own; it is part of the picture's file name.
    pub fn named(mut self, name: &str) -> Self {
        self.drawn.name = name.to_string();
        self
    }

    /// What the picture shows, as a sentence.
    pub fn caption(mut self, caption: &str) -> Self {
        self.drawn.caption = caption.to_string();
        self
    }

    /// Put it on the front page, too.
    pub fn on_front(mut self) -> Self {
        self.drawn.on_front = true;
        self
    }

    /// The cells that are drawn; else all.
    pub fn of(self, of: impl Fn(&C) -> bool + 'static) -> Self {
        Plot { of: Some(Box::new(of)), ..self }
    }

    /// Groups figures by a factor, after those named before.
    pub fn by<L: Level>(mut self) -> Self
    where
        C: Has<L>,
    {
        groups(&mut self.drawn.kind).push(L::factor());
        self
    }

    /// The number along the axis of [`lines`].
    pub fn over<L: Level>(mut self) -> Self
    where
        C: Has<L>,
    {
        if let PlotKind::Lines { x, .. } = &mut self.drawn.kind {
            *x = L::factor();
        }
        self
    }

    /// The picture with its cells; `distinguishing` are the factors that tell comparisons apart, and `baseline` what they are compared with.
    pub(super) fn plain(&self, cells: &[C], distinguishing: &[String], baseline: &str) -> (PlainPlot, Vec<PlainCell>) {
        let mut drawn = self.drawn.clone();
        let is_bars = matches!(drawn.kind, PlotKind::Bars { .. });
        if is_bars && groups(&mut drawn.kind).is_empty() {
            *groups(&mut drawn.kind) = distinguishing.to_vec();
        }
        if drawn.caption.is_empty() {
            let mut label = self.metric.label.chars();
            let first = label.next().into_iter().flat_map(char::to_uppercase);
            drawn.caption = first.chain(label).collect();
            if is_bars {
                drawn.caption += &format!(" against {baseline}");
            }
        }
        (drawn, chosen(&self.of, cells))
    }
}
