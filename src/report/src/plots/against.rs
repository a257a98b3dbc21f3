//! A metric against what it should equal, both axes logarithmic and the same, with the line on which both are the same.

use super::{PlotView, levels};
use anyhow::Result;
use base::units::counted;
use chart::{Anchor, EDGE, FAINT, GRID, INK, Look, NARROW, SMALL, Scale, TEXT, look, picture, shortened, text_width};

const LEGEND_ROW: i32 = 20;

/// Of each cell that has both: the reference, the metric, and the place of its kind, which gives the look.
type Points = Vec<(f64, f64, usize)>;

pub fn against(view: &PlotView, reference: &str, looks: &[&str]) -> Result<Option<String>> {
    let (kinds, points) = collect(view, reference, looks);
    let Some(other) = view.recorded.protocol.metric(reference).filter(|_| points.len() > 1) else { return Ok(None) };
    let (width, narrow) = (view.head.width, view.head.width <= NARROW);
    let places = legend(&kinds, width);
    let legend_top = view.head.bottom() + 10;
    let top = legend_top + (places.last().map_or(0, |(_, row)| *row) + 1) * LEGEND_ROW + 28;
    let both = || points.iter().flat_map(|(x, y, _)| [*x, *y]);
    let labels = Scale::over(both(), 1.5, 0, 1).ticks(view.metric.unit);
    let left = EDGE + 12 + labels.iter().map(|(_, label)| text_width(label, SMALL)).max().unwrap_or(0);
    let right = width - EDGE - 12;
    // As high as wide, so that the line of equals is a diagonal; not higher than a screen.
    let bottom = top + (right - left).min(if narrow { 320 } else { 520 });
    let (x, y) = (Scale::over(both(), 1.5, left, right), Scale::over(both(), 1.5, bottom, top));
    let title = format!("{} {}", view.head.title, view.head.subtitle);
    picture((width, bottom + 60), &title, |canvas| {
        view.head.draw(canvas);
        for (n, (kind, (at, row))) in kinds.iter().zip(places).enumerate() {
            let Look { mark, color, .. } = look(n);
            let line = legend_top + row * LEGEND_ROW;
            canvas.mark((at, line), mark, color);
            canvas.text((at + 12, line), kind, TEXT, INK, Anchor::Start);
        }
        let above = shortened(&format!("{} (logarithmic)", view.metric.label), TEXT, width - 2 * EDGE);
        canvas.text((EDGE, top - 16), &above, TEXT, INK, Anchor::Start);
        for (at, label) in y.ticks(view.metric.unit) {
            canvas.line((left, at), (right, at), GRID, 1);
            canvas.text((left - 8, at), &label, SMALL, INK, Anchor::End);
        }
        let mut free = 0;
        for (at, label) in x.ticks(other.unit) {
            canvas.line((at, top), (at, bottom), GRID, 1);
            let half = text_width(&label, SMALL) / 2 + 3;
            if at - half >= free && at + half <= width {
                canvas.text((at, bottom + 14), &label, SMALL, INK, Anchor::Middle);
                free = at + half;
            }
        }
        let below = format!("{} (logarithmic)", other.label);
        canvas.text(((left + right) / 2, bottom + 38), &below, TEXT, INK, Anchor::Middle);
        canvas.path(&[(left, bottom), (right, top)], FAINT, 2, &[5, 3]);
        for (reference, value, kind) in &points {
            let Look { mark, color, .. } = look(*kind);
            canvas.mark((x.at(*reference), y.at(*value)), mark, color);
        }
    })
    .map(Some)
}

/// How many are equal, and how far the others are off (real over predicted, as tables have it); where none is, how far half and nine in ten of them are.
pub fn finding(view: &PlotView, reference: &str) -> Option<String> {
    let (_, points) = collect(view, reference, &[]);
    let off: Vec<f64> = points.iter().filter(|(x, y, _)| x != y).map(|(x, y, _)| (x / y - 1.0).abs()).collect();
    let all = counted(points.len(), "figure");
    match off.iter().copied().reduce(f64::max) {
        _ if points.is_empty() => None,
        None => Some(format!("All {all} are equal to the last digit")),
        // Where none is, the largest difference says little.
        _ if off.len() == points.len() => Some(format!(
            "Half of {all} are off by at most {:.0} %, nine in ten by at most {:.0} %",
            share_below(&off, 0.5) * 100.0,
            share_below(&off, 0.9) * 100.0
        )),
        Some(most) => Some(format!(
            "{} of {all} are equal to the last digit; the others differ by at most {:.2} %",
            points.len() - off.len(),
            most * 100.0
        )),
    }
}

/// What this share of the values does not exceed.
fn share_below(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

fn collect(view: &PlotView, reference: &str, looks: &[&str]) -> (Vec<String>, Points) {
    let mut kinds: Vec<String> = Vec::new();
    let points = view.cells.iter().filter_map(|cell| {
        let (x, y) = (view.recorded.samples.value(cell, reference)?, view.value(cell)?);
        let kind = levels(cell, looks);
        let place = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
            kinds.push(kind);
            kinds.len() - 1
        });
        Some((x, y, place))
    });
    let points = points.filter(|(x, y, _)| *x > 0.0 && *y > 0.0).collect();
    (kinds, points)
}

/// Place of each kind's mark: pixels from the left, and row.
fn legend(kinds: &[String], width: i32) -> Vec<(i32, i32)> {
    let (mut x, mut row) = (EDGE + 6, 0);
    let place = |kind: &String| {
        let own = 12 + text_width(kind, TEXT);
        if x > EDGE + 6 && x + own > width - EDGE {
            (x, row) = (EDGE + 6, row + 1);
        }
        let at = (x, row);
        x += own + 22;
        at
    };
    kinds.iter().map(place).collect()
}
