//! What lives through the phases of a step, stacked by what it is for, in panels side by side; the peak is marked and named.

use super::canvas::{Anchor, BAND, Canvas, FAINT, GRID, INK, Mark, Point, SMALL, TEXT, look, picture, shortened, text_width};
use super::scale::LinearScale;
use super::{EDGE, View, WIDTH, levels};
use crate::protocol::{Cell, Metric};
use crate::record::{PassRecord, Status};
use crate::units::{quantity, tick};
use anyhow::Result;
use std::collections::BTreeMap;
use std::ops::Range;

/// Panels in a row.
const COLUMNS: usize = 2;
/// Room between two panels, which holds the right one's axis.
const GAP: i32 = 20;
const PLOT_HEIGHT: i32 = 170;
/// Lines above a plot: its levels, the peak, what makes it, and the names of the phases.
const HEADING: i32 = 3 * (SMALL + 5) + 4;
const PHASES: i32 = 18;
const ROW: i32 = HEADING + PHASES + PLOT_HEIGHT + 22;
/// How each layer looks, the lowest first: neighbours differ most.
const LOOKS: [usize; 7] = [0, 4, 5, 2, 1, 3, 6];
/// Least share of a layer that a peak's text names.
const LEAST_SHARE: f64 = 0.02;
/// A layer that nowhere has this share of the highest peak cannot be seen, and has no place in the legend.
const VISIBLE: f64 = 0.003;

/// What a picture of areas shows, as the protocol says it.
pub struct Design {
    pub panels: &'static [&'static str],
    pub layers: &'static [Metric],
    pub boundary: &'static str,
    pub phases: &'static [&'static str],
}

/// The points of one cell.
struct Course {
    /// Bytes of each layer, point by point.
    points: Vec<Vec<f64>>,
    /// Points of each phase.
    phases: Vec<Range<usize>>,
}

struct Panel {
    name: String,
    /// Level of the first of several panel factors, whose panels share a row and its scale.
    row: String,
    course: Result<Course, String>,
}

impl Course {
    /// Reads the curves of a pass: of each the points where it changes.
    fn read(record: &PassRecord, design: &Design) -> Option<Course> {
        let curve = |metric: &str| -> BTreeMap<usize, f64> {
            let points = record.samples.iter().filter(|sample| sample.metric == metric);
            points.map(|sample| (sample.sample as usize, sample.value)).collect()
        };
        let begins: Vec<usize> = curve(design.boundary).into_keys().collect();
        let phases: Vec<Range<usize>> = begins.windows(2).map(|w| w[0]..w[1]).collect();
        let count = *begins.last()?;
        if phases.len() != design.phases.len() || count == 0 {
            return None;
        }
        let curves: Vec<BTreeMap<usize, f64>> = design.layers.iter().map(|layer| curve(layer.name)).collect();
        let at = |curve: &BTreeMap<usize, f64>, point: usize| curve.range(..=point).next_back().map_or(0.0, |(_, value)| *value);
        let points = (0..count).map(|point| curves.iter().map(|curve| at(curve, point)).collect()).collect();
        Some(Course { points, phases })
    }

    fn total(&self, point: usize) -> f64 {
        self.points[point].iter().sum()
    }

    /// The first of the points at which most bytes live.
    fn peak(&self) -> usize {
        (0..self.points.len()).fold(0, |most, point| if self.total(point) > self.total(most) { point } else { most })
    }

    /// Name of the phase that a point belongs to.
    fn phase(&self, point: usize, design: &Design) -> &'static str {
        let position = self.phases.iter().position(|phase| phase.contains(&point));
        position.map_or("", |position| design.phases[position])
    }

    /// `activations 61 %, parameters 15 %`: what lives at a point, the most first, as far as there is room.
    fn shares(&self, point: usize, design: &Design, width: i32) -> String {
        let total = self.total(point).max(1.0);
        let mut shares: Vec<(f64, &str)> =
            self.points[point].iter().zip(design.layers).map(|(bytes, layer)| (bytes / total, layer.label)).collect();
        shares.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut text = String::new();
        for (share, name) in shares.into_iter().filter(|(share, _)| *share >= LEAST_SHARE) {
            let comma = if text.is_empty() { "" } else { ", " };
            let longer = format!("{text}{comma}{name} {:.0} %", share * 100.0);
            if text_width(&longer, SMALL) > width {
                break;
            }
            text = longer;
        }
        text
    }
}

pub fn area(view: &View, design: &Design) -> Result<Option<String>> {
    let panels: Vec<Panel> = view.cells.iter().map(|cell| panel(view, cell, design)).collect();
    if panels.iter().all(|panel| panel.course.is_err()) {
        return Ok(None);
    }
    // Panels of a second factor stand side by side; those of a single one follow one another.
    let rows: Vec<&[Panel]> = match design.panels.len() {
        1 => panels.chunks(COLUMNS).collect(),
        _ => panels.chunk_by(|a, b| a.row == b.row).flat_map(|row| row.chunks(COLUMNS)).collect(),
    };
    let highest =
        |panels: &[Panel]| panels.iter().filter_map(|p| p.course.as_ref().ok()).map(|c| c.total(c.peak())).fold(1.0, f64::max);
    let together = highest(&panels);
    let top = view.head.bottom() + 34;
    let height = top + rows.len() as i32 * ROW + 26;
    let title = format!("{} {}", view.head.title, view.head.subtitle);
    picture((WIDTH, height), &title, |canvas| {
        view.head.draw(canvas);
        draw_legend(canvas, design, &panels, together, view.head.bottom() + 10);
        for (n, row) in rows.iter().enumerate() {
            let high = if design.panels.len() == 1 { together } else { highest(row) };
            let frame = Frame::new(high, top + n as i32 * ROW);
            for (column, panel) in row.iter().enumerate() {
                frame.draw(canvas, panel, design, column);
            }
        }
        let what = if view.recorded.is_prediction() { "predicted bytes" } else { "bytes" };
        let note = format!("{what} after each allocation and free, in order; each phase is as wide as the others");
        canvas.text((WIDTH / 2, height - 16), &note, SMALL, FAINT, Anchor::Middle);
    })
    .map(Some)
}

fn panel(view: &View, cell: &Cell, design: &Design) -> Panel {
    let own = |record: &&PassRecord| record.cell == *cell && record.pass == view.metric.pass && record.status == Status::Ok;
    let course = view.recorded.passes.iter().find(own).and_then(|record| Course::read(record, design));
    let name = design.panels.iter().filter_map(|factor| Some(format!("{factor} = {}", cell.get(factor)?)));
    Panel {
        name: name.collect::<Vec<_>>().join(", "),
        row: levels(cell, &design.panels[..1]),
        course: course.ok_or_else(|| view.obstacle(cell).unwrap_or("not recorded").to_string()),
    }
}

fn draw_legend(canvas: &mut Canvas, design: &Design, panels: &[Panel], highest: f64, y: i32) {
    let mut x = EDGE;
    for (n, layer) in design.layers.iter().enumerate() {
        let any = |course: &Course| course.points.iter().any(|point| point[n] > VISIBLE * highest);
        if !panels.iter().filter_map(|panel| panel.course.as_ref().ok()).any(any) {
            continue;
        }
        canvas.rectangle((x, y - 6), (x + 14, y + 6), look(LOOKS[n % LOOKS.len()]).color, true);
        canvas.text((x + 20, y), layer.label, TEXT, INK, Anchor::Start);
        x += 20 + text_width(layer.label, TEXT) + 16;
    }
}

/// A row of panels of one scale.
struct Frame {
    /// Upper edge of the headings.
    top: i32,
    y: LinearScale,
    ticks: Vec<(i32, String)>,
    /// Room for the axis's labels.
    axis: i32,
}

impl Frame {
    fn new(high: f64, top: i32) -> Frame {
        let (upper, lower) = (top + HEADING + PHASES, top + HEADING + PHASES + PLOT_HEIGHT);
        let y = LinearScale { high: high * 1.04, from: lower, to: upper };
        // Round in binary units, with at most five to the top.
        let step = (y.high / 5.0).log2().ceil().exp2().max(1.0);
        // Panels without any figure have no scale.
        let most = if high > 1.0 { y.high } else { -1.0 };
        let values = (0..).map(|n| f64::from(n) * step).take_while(|value| *value <= most);
        let ticks: Vec<(i32, String)> = values.map(|value| (y.at(value), tick(value, "B"))).collect();
        let axis = ticks.iter().map(|(_, label)| text_width(label, SMALL)).max().unwrap_or(0) + 8;
        Frame { top, y, ticks, axis }
    }

    fn draw(&self, canvas: &mut Canvas, panel: &Panel, design: &Design, column: usize) {
        let width = (WIDTH - 2 * EDGE - GAP * (COLUMNS as i32 - 1)) / COLUMNS as i32;
        let start = EDGE + column as i32 * (width + GAP);
        let (left, right) = (start + self.axis, start + width);
        let (upper, lower) = (self.y.to, self.y.from);
        let line = |n: i32| self.top + (SMALL + 5) / 2 + n * (SMALL + 5);
        canvas.bold((start, line(0)), &shortened(&panel.name, TEXT, width), TEXT, INK, Anchor::Start);
        let phase = |n: usize| left + (right - left) * n as i32 / design.phases.len() as i32;
        for n in (0..design.phases.len()).step_by(2) {
            canvas.rectangle((phase(n), upper - PHASES), (phase(n + 1), lower), BAND, true);
        }
        for (n, name) in design.phases.iter().enumerate() {
            let middle = (phase(n) + phase(n + 1)) / 2;
            canvas.text((middle, upper - PHASES / 2), name, SMALL, FAINT, Anchor::Middle);
        }
        for (y, label) in &self.ticks {
            canvas.line((left, *y), (right, *y), GRID, 1);
            canvas.text((left - 6, *y), label, SMALL, INK, Anchor::End);
        }
        match &panel.course {
            Ok(course) => {
                let peak = course.peak();
                let told = format!("peak {} in {}:", quantity(course.total(peak), "B"), course.phase(peak, design));
                canvas.text((start, line(1)), &told, SMALL, INK, Anchor::Start);
                canvas.text((start, line(2)), &course.shares(peak, design, width), SMALL, INK, Anchor::Start);
                let x = self.positions(course, phase);
                self.stack(canvas, course, &x);
                for n in 1..design.phases.len() {
                    canvas.path(&[(phase(n), upper - PHASES), (phase(n), lower)], FAINT, 1, &[3, 3]);
                }
                let height = self.y.at(course.total(peak));
                canvas.path(&[(left, height), (right, height)], INK, 1, &[5, 3]);
                canvas.mark(((x[peak].0 + x[peak].1) / 2, height), Mark::Circle, INK);
            }
            Err(why) => canvas.text(((left + right) / 2, (upper + lower) / 2), why, TEXT, FAINT, Anchor::Middle),
        }
        canvas.line((left, lower), (right, lower), FAINT, 1);
        canvas.line((left, upper - PHASES), (left, lower), FAINT, 1);
    }

    /// From where to where each point reaches: those of a phase share its width.
    fn positions(&self, course: &Course, phase: impl Fn(usize) -> i32) -> Vec<(i32, i32)> {
        let mut positions = Vec::with_capacity(course.points.len());
        for (n, points) in course.phases.iter().enumerate() {
            let (from, width) = (phase(n), phase(n + 1) - phase(n));
            let edge = |point: usize| from + (width as usize * point / points.len().max(1)) as i32;
            positions.extend((0..points.len()).map(|point| (edge(point), edge(point + 1))));
        }
        positions
    }

    /// Each layer down to the ground, the highest first, so that the lower ones lie over it.
    fn stack(&self, canvas: &mut Canvas, course: &Course, x: &[(i32, i32)]) {
        let ground = self.y.from;
        let layers = course.points.first().map_or(0, Vec::len);
        for layer in (0..layers).rev() {
            if course.points.iter().all(|point| point[layer] == 0.0) {
                continue;
            }
            let height = |point: &Vec<f64>| self.y.at(point[..=layer].iter().sum());
            let line = course.points.iter().zip(x).flat_map(|(point, (from, to))| {
                let y = height(point);
                [(*from, y), (*to, y)]
            });
            let line = simplified(line);
            let (Some(first), Some(last)) = (line.first(), line.last()) else { continue };
            let outline: Vec<Point> = line.iter().copied().chain([(last.0, ground), (first.0, ground)]).collect();
            canvas.area(&outline, look(LOOKS[layer % LOOKS.len()]).color);
        }
    }
}

/// A line without the points that change nothing.
fn simplified(line: impl Iterator<Item = Point>) -> Vec<Point> {
    let mut kept: Vec<Point> = Vec::new();
    for point in line {
        if kept.last() == Some(&point) {
            continue;
        }
        if let [.., before, last] = kept[..]
            && ((before.1 == last.1 && last.1 == point.1) || (before.0 == last.0 && last.0 == point.0))
        {
            kept.pop();
        }
        kept.push(point);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Pass;
    use crate::record::Sample;

    const DESIGN: Design = Design {
        panels: &["model"],
        layers: &[
            Metric { name: "curve.a", label: "a", unit: "B", pass: Pass::Memory },
            Metric { name: "curve.b", label: "b", unit: "B", pass: Pass::Memory },
        ],
        boundary: "curve.phase",
        phases: &["forward", "backward"],
    };

    fn record(samples: &[(&str, u32, f64)]) -> PassRecord {
        let sample = |(metric, sample, value): &(&str, u32, f64)| Sample {
            metric: metric.to_string(),
            unit: "B".into(),
            value: *value,
            sample: *sample,
            reason: String::new(),
        };
        PassRecord {
            cell: Cell::parse("model=mlp").unwrap(),
            pass: Pass::Memory,
            round: 1,
            status: Status::Ok,
            reason: String::new(),
            seconds: None,
            samples: samples.iter().map(sample).collect(),
        }
    }

    #[test]
    fn curves_are_read_from_the_points_where_they_change() {
        let phases = [("curve.phase", 0, 0.0), ("curve.phase", 2, 1.0), ("curve.phase", 5, 2.0)];
        let curves = [("curve.a", 0, 10.0), ("curve.b", 0, 0.0), ("curve.b", 2, 30.0), ("curve.b", 4, 5.0)];
        let course = Course::read(&record(&[&phases[..], &curves].concat()), &DESIGN).unwrap();
        assert_eq!(course.points, [[10.0, 0.0], [10.0, 0.0], [10.0, 30.0], [10.0, 30.0], [10.0, 5.0]]);
        assert_eq!((course.peak(), course.phase(course.peak(), &DESIGN)), (2, "backward"));
        assert_eq!(course.shares(2, &DESIGN, 400), "b 75 %, a 25 %");
        assert_eq!(course.shares(2, &DESIGN, 70), "b 75 %");
        assert_eq!(course.shares(0, &DESIGN, 400), "a 100 %");
        assert!(Course::read(&record(&curves), &DESIGN).is_none(), "no phases");
        assert!(Course::read(&record(&phases[..2]), &DESIGN).is_none(), "a phase too few");
    }

    #[test]
    fn level_and_upright_parts_of_a_line_become_two_points() {
        let line = [(0, 5), (1, 5), (1, 5), (2, 5), (2, 9), (2, 12), (3, 12)];
        assert_eq!(simplified(line.into_iter()), [(0, 5), (2, 5), (2, 12), (3, 12)]);
    }
}
