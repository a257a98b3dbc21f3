//! Two metrics of each cell against one another, both axes logarithmic: which settings of a workload no other is better than in both.

use super::{PlotView, levels};
use anyhow::Result;
use chart::Scale;
use chart::{Anchor, Canvas, EDGE, FAINT, GRID, INK, Look, NARROW, Point, SMALL, TEXT, look, picture, shortened, text_width};
use record::protocol::Metric;

const PLOT_HEIGHT: i32 = 420;
const LABEL_STEP: i32 = 15;
/// Room between a mark and its name.
const GAP: i32 = 9;

struct ParetoDot {
    name: String,
    x: f64,
    y: f64,
    /// Place of the kind of cell, which gives the look.
    kind: usize,
    /// Place of the baseline: settings of one workload compete with one another, and not with those of a smaller model.
    workload: usize,
    /// Whether no other cell of the workload is as good in both metrics and better in one.
    on_front: bool,
}

/// Draws the plot's metric against the first of `against` that some cell has; a look for each level of the `looks` factors, a name for each
/// level of the studied one.
pub fn pareto(view: &PlotView, against: &[&str], looks: &[&str]) -> Result<Option<String>> {
    let Some((other, kinds, looks, dots)) = collect(view, against, looks) else { return Ok(None) };
    draw(view, other, &looks.join(" · "), &kinds, &dots).map(Some)
}

/// The settings that nothing beats in both.
pub fn finding(view: &PlotView, against: &[&str]) -> Option<String> {
    let (other, _, _, dots) = collect(view, against, &[])?;
    let front: Vec<&str> = dots.iter().filter(|dot| dot.on_front).map(|dot| dot.name.as_str()).collect();
    Some(format!("{} of {} settings are Pareto-optimal in {} and {}", front.len(), dots.len(), view.label(), other.label))
}

type Trade<'a> = (&'a Metric, Vec<String>, Vec<&'a str>, Vec<ParetoDot>);

/// What is drawn: the other metric, the kinds of cells, the factors that tell them, and a dot for each cell.
fn collect<'a>(view: &PlotView<'a>, against: &[&str], looks: &[&'a str]) -> Option<Trade<'a>> {
    let metrics = against.iter().filter_map(|name| view.recorded.protocol.metric(name));
    let has = |metric: &&Metric| view.cells.iter().any(|cell| view.recorded.samples.value(cell, metric.name).is_some());
    let other = metrics.into_iter().find(has)?;
    let varies = |factor: &str| view.cells.iter().any(|cell| cell.get(factor) != view.cells[0].get(factor));
    let looks: Vec<&str> = looks.iter().copied().filter(|factor| varies(factor)).collect();
    let mut kinds: Vec<String> = Vec::new();
    let mut baselines = Vec::new();
    let dot = |cell| {
        let (x, y) = (view.value(cell)?, view.recorded.samples.value(cell, other.name)?);
        let kind = levels(cell, &looks);
        let grid = view.recorded.grid_of(cell)?;
        let name = cell.get(&grid.studied)?.to_string();
        let (kind, workload) = (place(&mut kinds, kind), place(&mut baselines, grid.baseline_of(cell)));
        (x > 0.0 && y > 0.0).then_some(ParetoDot { name, x, y, kind, workload, on_front: false })
    };
    let mut dots: Vec<ParetoDot> = view.cells.iter().filter_map(dot).collect();
    if dots.len() < 2 {
        return None;
    }
    mark_front(&mut dots);
    Some((other, kinds, looks, dots))
}

/// Where it stands among those that were met, as the newest if it was not.
fn place<T: PartialEq>(met: &mut Vec<T>, one: T) -> usize {
    met.iter().position(|other| *other == one).unwrap_or_else(|| {
        met.push(one);
        met.len() - 1
    })
}

const KEY: &str = "no setting is better in both";

fn mark_front(dots: &mut [ParetoDot]) {
    let beaten = |a: &ParetoDot, b: &ParetoDot| a.workload == b.workload && b.x <= a.x && b.y <= a.y && (b.x < a.x || b.y < a.y);
    let front: Vec<bool> = dots.iter().map(|a| !dots.iter().any(|b| beaten(a, b))).collect();
    for (dot, on_front) in dots.iter_mut().zip(front) {
        dot.on_front = on_front;
    }
}

fn draw(view: &PlotView, other: &Metric, factor: &str, kinds: &[String], dots: &[ParetoDot]) -> Result<String> {
    let legend = view.head.bottom() + 10;
    let (places, key) = legend_places(view, legend, factor, kinds);
    // Names stand above the highest marks.
    let top = key.1 + 74;
    let bottom = top + PLOT_HEIGHT;
    let y = Scale::over(dots.iter().map(|dot| dot.y), 1.5, bottom, top);
    let y_ticks = y.ticks(other.unit);
    let left = EDGE + 12 + y_ticks.iter().map(|(_, label)| text_width(label, SMALL)).max().unwrap_or(0);
    let names = dots.iter().map(|dot| text_width(&dot.name, SMALL)).max().unwrap_or(0);
    let (width, narrow) = (view.head.width, view.head.width <= NARROW);
    let right = width - EDGE - if narrow { 12 } else { names + GAP };
    let x = Scale::over(dots.iter().map(|dot| dot.x), 1.5, left, right);
    let title = format!("{} {}", view.head.title, view.head.subtitle);
    let other_label = if view.recorded.is_prediction() { format!("predicted {}", other.label) } else { other.label.into() };
    picture((width, bottom + 60), &title, |canvas| {
        view.head.draw(canvas);
        draw_legend(canvas, legend, factor, (kinds, &places), key);
        canvas.text(
            (left, key.1 + 28),
            &shortened(&format!("{other_label} (logarithmic)"), TEXT, width - left - EDGE),
            TEXT,
            INK,
            Anchor::Start,
        );
        for (at, label) in &y_ticks {
            canvas.line((left, *at), (right, *at), GRID, 1);
            canvas.text((left - 8, *at), label, SMALL, INK, Anchor::End);
        }
        let mut free = 0;
        for (at, label) in x.ticks(view.metric.unit) {
            canvas.line((at, top), (at, bottom), GRID, 1);
            let half = text_width(&label, SMALL) / 2 + 3;
            if at - half >= free && at + half <= width {
                canvas.text((at, bottom + 14), &label, SMALL, INK, Anchor::Middle);
                free = at + half;
            }
        }
        let middle = (left + right) / 2;
        let title = shortened(&format!("{} (logarithmic)", view.label()), TEXT, 2 * middle.min(width - middle));
        canvas.text((middle, bottom + 38), &title, TEXT, INK, Anchor::Middle);
        for workload in 0..=dots.iter().map(|dot| dot.workload).max().unwrap_or(0) {
            canvas.path(&stairs(dots.iter().filter(|dot| dot.workload == workload), &x, &y), FAINT, 2, &[5, 3]);
        }
        for dot in dots {
            let Look { mark, color, .. } = look(dot.kind);
            canvas.mark((x.at(dot.x), y.at(dot.y)), mark, color);
        }
        draw_names(canvas, dots, &x, &y, width);
    })
}

/// Where each kind stands in the legend, and after them what the dashed line is, in a row of its own where there is no room.
fn legend_places(view: &PlotView, y: i32, factor: &str, kinds: &[String]) -> (Vec<i32>, Point) {
    let mut end = EDGE + text_width(factor, SMALL) + 20;
    let place = |kind: &String| {
        let x = end;
        end += if kind.is_empty() { 0 } else { text_width(kind, TEXT) + 40 };
        x
    };
    let places = kinds.iter().map(place).collect();
    let has_room = end + 36 + text_width(KEY, TEXT) <= view.head.width;
    (places, if has_room { (end, y) } else { (EDGE, y + 18) })
}

fn draw_legend(canvas: &mut Canvas, y: i32, factor: &str, (kinds, places): (&[String], &[i32]), key: Point) {
    canvas.text((EDGE, y), factor, SMALL, FAINT, Anchor::Start);
    for (n, (kind, x)) in kinds.iter().zip(places).enumerate().filter(|(_, (kind, _))| !kind.is_empty()) {
        let Look { mark, color, .. } = look(n);
        canvas.mark((*x, y), mark, color);
        canvas.text((x + 12, y), kind, TEXT, INK, Anchor::Start);
    }
    canvas.path(&[key, (key.0 + 28, key.1)], FAINT, 2, &[5, 3]);
    canvas.text((key.0 + 36, key.1), KEY, TEXT, INK, Anchor::Start);
}

/// A workload's front as stairs: what is reached up to each of its cells.
fn stairs<'a>(dots: impl Iterator<Item = &'a ParetoDot>, x: &Scale, y: &Scale) -> Vec<Point> {
    let mut front: Vec<Point> = dots.filter(|dot| dot.on_front).map(|dot| (x.at(dot.x), y.at(dot.y))).collect();
    front.sort_unstable();
    let mut path: Vec<Point> = Vec::new();
    for point in front {
        if let Some(before) = path.last().copied() {
            path.push((point.0, before.1));
        }
        path.push(point);
    }
    path
}

/// Names above their marks, moved up where they would lie on one another or on a mark; those of the front in ink.
fn draw_names(canvas: &mut Canvas, dots: &[ParetoDot], x: &Scale, y: &Scale, width: i32) {
    let mark = |dot: &ParetoDot| (x.at(dot.x) - GAP, x.at(dot.x) + GAP, y.at(dot.y));
    let mut placed: Vec<(i32, i32, i32)> = dots.iter().map(mark).collect();
    let mut order: Vec<&ParetoDot> = dots.iter().collect();
    order.sort_by_key(|dot| (!dot.on_front, y.at(dot.y), x.at(dot.x)));
    for dot in order {
        let (from, mut at) = (x.at(dot.x) + 2, y.at(dot.y) - LABEL_STEP);
        let from = from.min(width - EDGE - text_width(&dot.name, SMALL)).max(EDGE);
        let to = from + text_width(&dot.name, SMALL);
        while placed.iter().any(|(a, b, row)| from < *b && *a < to && (row - at).abs() < LABEL_STEP) {
            at -= 1;
        }
        placed.push((from, to, at));
        canvas.text((from, at), &dot.name, SMALL, if dot.on_front { INK } else { FAINT }, Anchor::Start);
    }
    // Marks of cells that are not on the front stay below those that are.
    for dot in dots.iter().filter(|dot| dot.on_front) {
        let Look { mark, color, .. } = look(dot.kind);
        canvas.mark((x.at(dot.x), y.at(dot.y)), mark, color);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_is_what_nothing_beats() {
        let dot = |x: f64, y: f64| ParetoDot { name: String::new(), x, y, kind: 0, workload: 0, on_front: false };
        let mut dots = [dot(1.0, 4.0), dot(2.0, 2.0), dot(2.0, 3.0), dot(3.0, 2.0), dot(4.0, 1.0)];
        mark_front(&mut dots);
        assert_eq!(dots.each_ref().map(|d| d.on_front), [true, true, false, false, true]);
    }
}
