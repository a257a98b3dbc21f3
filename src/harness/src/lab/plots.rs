//! Pictures of a grid.

use super::claims::{Predicate, chosen};
use super::levels::{Cell, Has, Level};
use record::protocol::{self, Metric, PEAK, PlotKind, intern};

/// A picture that answers a question at a glance; one is drawn for each machine.
pub struct Plot<C> {
    drawn: PlotSpec,
    of: Predicate<C>,
}

/// What of a picture does not depend on cells.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlotSpec {
    pub name: String,
    pub caption: String,
    pub metric: Metric,
    kind: PlotForm,
    /// Factors by which figures are grouped; none says those that tell a grid's comparisons apart.
    by: Vec<String>,
    x: String,
    on_front: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum PlotForm {
    Bars { absolute: bool },
    Lines,
    Ranking { part: &'static str, columns: Vec<Metric>, most: usize },
    Area { layers: Vec<Metric>, boundary: Metric, phases: Vec<&'static str> },
}

fn plot<C>(metric: Metric, kind: PlotForm) -> Plot<C> {
    let name = if metric.name == PEAK.name { "peak".to_string() } else { metric.name.replace('_', "-") };
    Plot {
        drawn: PlotSpec { name, caption: String::new(), metric, kind, by: Vec::new(), x: String::new(), on_front: false },
        of: None,
    }
}

/// The metric relative to its baseline: a bar for each compared level, a cluster for each combination of the other factors.
pub fn bars<C>(metric: Metric) -> Plot<C> {
    plot(metric, PlotForm::Bars { absolute: false })
}

/// The metric itself, where it has no baseline that a reader would divide by: a bar for each compared level, a cluster for each combination
/// of the other factors.
pub fn amounts<C>(metric: Metric) -> Plot<C> {
    plot(metric, PlotForm::Bars { absolute: true })
}

/// The metric over a number ([`Plot::over`]), both axes logarithmic; a line for each combination of the factors that [`Plot::by`] names.
pub fn lines<C>(metric: Metric) -> Plot<C> {
    plot(metric, PlotForm::Lines)
}

/// In place of a picture a table for each cell: its parts, those with most of the first column first.
pub fn ranking<C>(metric: Metric, part: &'static str, columns: &[Metric], most: usize) -> Plot<C> {
    plot(metric, PlotForm::Ranking { part, columns: columns.to_vec(), most })
}

/// Bytes stacked by what they are for through the phases of a step: curves whose points the step gave, the lowest first.
pub fn area<C>(metric: Metric, layers: &[Metric], boundary: Metric, phases: &[&'static str]) -> Plot<C> {
    plot(metric, PlotForm::Area { layers: layers.to_vec(), boundary, phases: phases.to_vec() })
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
        self.drawn.by.push(L::factor());
        self
    }

    /// The number along the axis of [`lines`].
    pub fn over<L: Level>(mut self) -> Self
    where
        C: Has<L>,
    {
        self.drawn.x = L::factor();
        self
    }

    pub(super) fn metric(&self) -> Metric {
        self.drawn.metric
    }

    /// The picture with its cells; `distinguishing` are the factors that tell comparisons apart, and `baseline` what they are compared with.
    pub(super) fn erase(&self, cells: &[C], distinguishing: &[String], baseline: &str) -> (PlotSpec, Vec<protocol::PlainCell>) {
        let mut drawn = self.drawn.clone();
        if drawn.by.is_empty() && matches!(drawn.kind, PlotForm::Bars { .. }) {
            drawn.by = distinguishing.to_vec();
        }
        if drawn.caption.is_empty() {
            let label = drawn.metric.label;
            let label =
                label.chars().next().map_or(String::new(), |first| first.to_uppercase().chain(label.chars().skip(1)).collect());
            drawn.caption = if matches!(drawn.kind, PlotForm::Bars { .. }) { format!("{label} against {baseline}") } else { label };
        }
        (drawn, chosen(&self.of, cells))
    }
}

impl PlotSpec {
    pub fn plain(self, of: String) -> protocol::PlainPlot {
        let by = self.by;
        let kind = match self.kind {
            PlotForm::Bars { absolute } => PlotKind::Bars { clusters: by, absolute },
            PlotForm::Lines => PlotKind::Lines { x: self.x, series: by },
            PlotForm::Ranking { part, columns, most } => {
                let column = |metric: Metric| Metric { name: intern(&format!("{}.", metric.name)), ..metric };
                PlotKind::Ranking { rows: by, part: part.into(), columns: columns.into_iter().map(column).collect(), most }
            }
            PlotForm::Area { layers, boundary, phases } => {
                let phases = phases.into_iter().map(str::to_string).collect();
                PlotKind::Area { panels: by, layers, boundary: boundary.name.into(), phases }
            }
        };
        protocol::PlainPlot {
            name: self.name,
            caption: self.caption,
            of,
            metric: self.metric.name.into(),
            kind,
            on_front: self.on_front,
        }
    }
}
