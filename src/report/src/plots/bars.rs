//! A metric relative to its baseline, as bars; or its amounts, where it is they that tell.

use super::{PlotView, grouped, levels};
use anyhow::Result;
use base::order::place_of;
use base::units::{quantity, ratio, tick};
use chart::{
    Anchor, Canvas, EDGE, FAINT, GRID, INK, Marker, NARROW, Point, SMALL, Scale, TEXT, WHITE, look, picture, shortened, text_width,
    wrapped,
};
use record::protocol::PlainCell;

const BAR: i32 = 16;
const STEP: i32 = 21;
const GAP: i32 = 14;
/// Widest that the names of clusters may be.
const NAMES: i32 = 210;
/// Where some cluster has more bars than this, all are sorted, in one colour.
const MANY: usize = 5;
/// Widest that the names of bars may be, and on a phone.
const LEVEL: i32 = 240;
const LEVELS: i32 = 182;
/// Room right of the longest bar for its figure.
const FIGURES: i32 = 70;

struct Bar {
    level: String,
    /// Place of the level among those of the studied factor; the look follows it, so that it is the same in every cluster.
    rank: usize,
    /// A ratio or an amount, which are counted and so exact, or why there is none.
    outcome: Result<f64, String>,
}

/// What the lengths of bars mean.
struct Lengths {
    title: String,
    /// `x` for ratios, or the unit of amounts.
    unit: &'static str,
    /// What 1x is, beside its line; amounts have none.
    baseline: Option<String>,
}

impl Lengths {
    fn written(&self, value: f64) -> String {
        if self.unit == "x" { ratio(value) } else { quantity(value, self.unit) }
    }

    fn ticks(&self, scale: Scale) -> Vec<f64> {
        if self.unit == "B" { scale.linear_binary_ticks() } else { scale.linear_ticks(6) }
    }
}

struct Cluster {
    name: Vec<String>,
    /// What 1x is.
    baseline: String,
    bars: Vec<Bar>,
}

impl Cluster {
    fn name_height(&self) -> i32 {
        (self.name.len() as i32 + i32::from(!self.baseline.is_empty())) * (SMALL + 4)
    }

    /// On a phone the name stands above the bars, elsewhere beside them.
    fn height(&self, narrow: bool) -> i32 {
        let bars = self.bars.len() as i32 * STEP;
        if narrow { bars + self.name_height() } else { bars.max(self.name_height()) }
    }
}

/// The ratios of all levels to their baseline, or where `absolute` the amounts of all levels, the baseline among them.
pub fn bars(view: &PlotView, clusters: &[&str], absolute: bool) -> Result<Option<String>> {
    let view = &view.only(|grid| clusters.iter().all(|factor| !grid.levels_of(factor).is_empty()));
    let Some(grid) = view.cells.first().and_then(|cell| view.recorded.grid_of(cell)) else {
        return Ok(None);
    };
    let view = &view.only(|other| other.studied == grid.studied);
    let mut factors = view.distinguishing_factors(clusters, &[&grid.studied]);
    // Who ran it is no factor of cells that the lab runs itself.
    let has_ratio = |factor: &str, cell: &PlainCell| cell.get(factor).is_some() && view.recorded.ratio(cell, view.metric).is_some();
    factors.retain(|factor| absolute || view.cells.iter().any(|cell| has_ratio(factor, cell)));
    let header = (factors.join(" · "), grid.studied.to_string());
    let width = name_width(view, &header.0);
    let clusters = if absolute { amounts(view, &factors, &grid.studied, width) } else { ratios(view, &factors, width) };
    if clusters.iter().all(|cluster| cluster.bars.iter().all(|bar| bar.outcome.is_err())) {
        return Ok(None);
    }
    let baseline = || format!("1x: {}", view.recorded.protocol.doing(&grid.studied, grid.baseline_level()));
    let lengths = match absolute {
        true => Lengths { title: view.label(), unit: view.metric.shown_unit(), baseline: None },
        false => Lengths { title: format!("{} relative to the baseline", view.label()), unit: "x", baseline: Some(baseline()) },
    };
    paint(view, &clusters, header, &lengths).map(Some)
}

fn amounts(view: &PlotView, factors: &[&str], studied: &str, width: i32) -> Vec<Cluster> {
    let has_bar = |cell: &&PlainCell| view.value(cell).is_some() || view.is_out_of_memory(cell);
    let groups = grouped(view.cells.iter().filter(has_bar).map(|cell| (levels(cell, factors), cell)));
    let cluster = |(name, cells): (String, Vec<&PlainCell>)| {
        let bar = |cell: &&PlainCell| Bar {
            level: shortened(cell.get(studied).unwrap_or(""), SMALL, LEVEL),
            rank: 0,
            outcome: view.value(cell).ok_or_else(|| view.obstacle(cell).unwrap_or("not run").to_string()),
        };
        Cluster { name: wrapped(&name, TEXT, width), baseline: String::new(), bars: cells.iter().map(bar).collect() }
    };
    groups.into_iter().map(cluster).collect()
}

/// Room for the names of clusters: beside the bars at least as wide as their header, on a phone all of it.
fn name_width(view: &PlotView, header: &str) -> i32 {
    if view.head.width <= NARROW { view.head.width - 2 * EDGE } else { NAMES.max(text_width(header, SMALL)) }
}

fn ratios(view: &PlotView, factors: &[&str], width: i32) -> Vec<Cluster> {
    let mut seen: Vec<String> = Vec::new();
    let keyed = view.cells.iter().filter_map(|cell| Some((levels(cell, factors), (cell, view.recorded.grid_of(cell)?))));
    // Where nothing was run at all, the report says so beside its tables.
    let tells = |cell: &PlainCell| view.value(cell).is_some() || view.is_out_of_memory(cell);
    let drawn = grouped(keyed).into_iter().filter(|(_, cells)| cells.iter().any(|(cell, _)| tells(cell)));
    let clusters = drawn.map(|(name, cells)| {
        let baseline = cells.first().map(|(cell, grid)| grid.baseline_of(cell));
        let scale = baseline.as_ref().and_then(|cell| view.value(cell)).map(|v| match view.metric.unit {
            // What is relative already has no unit that would say anything.
            "1" | "" | "x" => String::new(),
            unit => format!("1x = {}", quantity(v, unit)),
        });
        let compared = cells.iter().filter(|(cell, grid)| *cell != &grid.baseline_of(cell));
        let bars = compared.map(|(cell, grid)| {
            let level = shortened(cell.get(&grid.studied).unwrap_or(""), SMALL, LEVEL);
            let rank = place_of(&mut seen, level.clone());
            Bar { level, rank, outcome: outcome(view, cell, &grid.baseline_of(cell)) }
        });
        let mut bars: Vec<Bar> = bars.collect();
        // PyTorch's own run of a level may lack a figure that ours has.
        let known: Vec<String> = bars.iter().filter(|bar| bar.outcome.is_ok()).map(|bar| bar.level.clone()).collect();
        bars.retain(|bar| bar.outcome.is_ok() || !known.contains(&bar.level));
        Cluster { name: wrapped(&name, TEXT, width), baseline: scale.unwrap_or_else(|| "no baseline".to_string()), bars }
    });
    let mut clusters: Vec<Cluster> = clusters.collect();
    join_alike(&mut clusters);
    // Of many, what counts is their order, and colours would only confuse.
    if clusters.iter().any(|cluster| cluster.bars.len() > MANY) {
        let effect = |bar: &Bar| *bar.outcome.as_ref().unwrap_or(&f64::INFINITY);
        for cluster in &mut clusters {
            cluster.bars.sort_by(|a, b| effect(a).total_cmp(&effect(b)));
            cluster.bars.iter_mut().for_each(|bar| bar.rank = 0);
        }
    }
    clusters
}

/// Levels whose bars are equal in every cluster are one bar, which names both.
fn join_alike(clusters: &mut [Cluster]) {
    let figures = |level: &str| -> Vec<Option<String>> {
        let of = |bar: &Bar| bar.outcome.as_ref().ok().map(f64::to_string);
        clusters.iter().map(|cluster| of(cluster.bars.iter().find(|bar| bar.level == level)?)).collect()
    };
    let mut known: Vec<(String, Vec<Option<String>>)> = Vec::new();
    let mut joined: Vec<(String, String)> = Vec::new();
    for bar in clusters.iter().flat_map(|cluster| &cluster.bars) {
        let figures = figures(&bar.level);
        match known.iter().find(|(_, other)| *other == figures && figures.iter().all(Option::is_some)) {
            Some((first, _)) if *first != bar.level => joined.push((first.clone(), bar.level.clone())),
            Some(_) => {}
            None => known.push((bar.level.clone(), figures)),
        }
    }
    joined.dedup();
    for (first, other) in joined {
        for cluster in &mut *clusters {
            let reference = cluster.bars.iter().position(|bar| bar.level == other);
            cluster.bars.retain(|bar| bar.level != other);
            cluster
                .bars
                .iter_mut()
                .filter(|bar| reference.is_some() && bar.level == first)
                .for_each(|bar| bar.level += &format!(" = {other}"));
        }
    }
}

fn outcome(view: &PlotView, cell: &PlainCell, baseline: &PlainCell) -> Result<f64, String> {
    if let Some(ratio) = view.recorded.ratio(cell, view.metric) {
        return Ok(ratio.estimate);
    }
    Err(match (view.value(cell), view.obstacle(cell), view.obstacle(baseline)) {
        (None, Some(why), _) => why.to_string(),
        (Some(value), _, Some(why)) => format!("{} (baseline: {why})", quantity(value, view.metric.unit)),
        (Some(value), _, None) => quantity(value, view.metric.unit),
        (None, None, _) => "not run".to_string(),
    })
}

/// Clusters of bars; the header names the clusters and the bars.
fn paint(view: &PlotView, clusters: &[Cluster], header: (String, String), lengths: &Lengths) -> Result<String> {
    let (width, narrow) = (view.head.width, view.head.width <= NARROW);
    let names = clusters.iter().flat_map(|c| c.name.iter().map(|line| text_width(line, TEXT)));
    let scales = clusters.iter().map(|c| text_width(&c.baseline, SMALL));
    let name_width = names.chain(scales).chain([text_width(&header.0, SMALL)]).max().unwrap_or(0) + 16;
    let labels = clusters.iter().flat_map(|c| c.bars.iter().map(|bar| text_width(&bar.level, SMALL)));
    let level_width = labels.chain([text_width(&header.1, SMALL)]).max().unwrap_or(0);
    let level_width = if narrow { level_width.min(LEVELS) } else { level_width };
    let level_right = EDGE + level_width + if narrow { 0 } else { name_width };
    let lengths_of_bars = clusters.iter().flat_map(|c| c.bars.iter().filter_map(|bar| bar.outcome.as_ref().ok().copied()));
    let least = if lengths.baseline.is_some() { 1.0 } else { f64::MIN_POSITIVE };
    let longest = lengths_of_bars.filter(|length| length.is_finite()).fold(least, f64::max);
    let scale = Scale::linear(0.0, longest, level_right + 8, width - EDGE - FIGURES);
    let top = view.head.bottom() + 40;
    let bottom = top + clusters.iter().map(|c| c.height(narrow) + GAP).sum::<i32>();
    let axis = wrapped(&lengths.title, TEXT, width - 2 * EDGE);
    picture(&view.head, bottom + 36 + axis.len() as i32 * (TEXT + 5), |canvas| {
        if !narrow {
            canvas.text((EDGE, top - 14), &header.0, SMALL, FAINT, Anchor::Start);
            canvas.text((level_right, top - 14), &header.1, SMALL, FAINT, Anchor::End);
        }
        draw_axis(canvas, scale, lengths, (top, bottom));
        for (n, line) in axis.iter().enumerate() {
            let middle = if narrow { width / 2 } else { (scale.from + scale.to) / 2 };
            let middle = middle.min(width - EDGE - text_width(line, TEXT) / 2);
            canvas.text((middle, bottom + 36 + n as i32 * (TEXT + 5)), line, TEXT, INK, Anchor::Middle);
        }
        let mut y = top + GAP / 2;
        let mut figures = Vec::new();
        for cluster in clusters {
            figures.extend(draw_cluster(canvas, cluster, y, level_right, (scale, lengths), narrow));
            y += cluster.height(narrow) + GAP;
            if y < bottom {
                canvas.line((EDGE, y - GAP / 2), (width - EDGE, y - GAP / 2), GRID, 1);
            }
        }
        if lengths.baseline.is_some() {
            let at = scale.at(1.0);
            canvas.path(&[(at, top - 4), (at, bottom)], INK, 2, &[5, 3]);
        }
        // On white and last, since the reference line may run through them.
        for ((x, middle), text) in figures {
            canvas.rectangle((x - 3, middle - 8), (x + text_width(&text, SMALL), middle + 8), WHITE);
            canvas.text((x, middle), &text, SMALL, INK, Anchor::Start);
        }
        if let Some(baseline) = &lengths.baseline {
            let half = text_width(baseline, SMALL) / 2;
            let middle = scale.at(1.0).clamp((level_right + 8 + half).min(width - EDGE - half), width - EDGE - half);
            canvas.text((middle, top - 14), baseline, SMALL, INK, Anchor::Middle);
        }
    })
}

fn draw_axis(canvas: &mut Canvas, scale: Scale, lengths: &Lengths, (top, bottom): (i32, i32)) {
    let ticks: Vec<(i32, String)> =
        lengths.ticks(scale).into_iter().map(|value| (scale.at(value), tick(value, lengths.unit))).collect();
    let half = |label: &str| text_width(label, SMALL) / 2 + 3;
    // Every label, or every second one, or fewer: never some with gaps.
    let fits = |every: &usize| {
        let shown: Vec<&(i32, String)> = ticks.iter().step_by(*every).collect();
        shown.windows(2).all(|pair| pair[0].0 + half(&pair[0].1) <= pair[1].0 - half(&pair[1].1))
    };
    let every = (1..=ticks.len()).find(fits).unwrap_or(1);
    for (n, (x, label)) in ticks.iter().enumerate() {
        canvas.line((*x, top), (*x, bottom), GRID, 1);
        if n % every == 0 {
            canvas.text((*x, bottom + 14), label, SMALL, INK, Anchor::Middle);
        }
    }
    canvas.line((scale.from, top), (scale.from, bottom), FAINT, 1);
}

/// Draws names and bars, and gives the figures that belong beside the bars.
fn draw_cluster(
    canvas: &mut Canvas,
    cluster: &Cluster,
    top: i32,
    level_right: i32,
    (scale, lengths): (Scale, &Lengths),
    narrow: bool,
) -> Vec<(Point, String)> {
    let mut y = top + STEP / 2;
    let lines = cluster.name.iter().map(|line| (line, TEXT, INK)).chain([(&cluster.baseline, SMALL, FAINT)]);
    for (line, size, color) in lines.filter(|(line, ..)| !line.is_empty()) {
        // On a phone the axis runs through the names.
        if narrow {
            canvas.rectangle((EDGE, y - size / 2 - 2), (EDGE + text_width(line, size) + 2, y + size / 2 + 2), WHITE);
        }
        canvas.text((EDGE, y), line, size, color, Anchor::Start);
        y += SMALL + 4;
    }
    let top = if narrow { top + cluster.name_height() } else { top };
    let rows = cluster.bars.iter().enumerate().map(|(row, bar)| {
        let middle = top + row as i32 * STEP + STEP / 2;
        canvas.text((level_right, middle), &shortened(&bar.level, SMALL, level_right - EDGE), SMALL, INK, Anchor::End);
        draw_bar(canvas, bar, middle, scale, lengths)
    });
    rows.collect()
}

fn draw_bar(canvas: &mut Canvas, bar: &Bar, middle: i32, scale: Scale, lengths: &Lengths) -> (Point, String) {
    match &bar.outcome {
        Ok(length) => {
            let (look, end) = (look(bar.rank), scale.at(*length));
            canvas.bar((scale.from, middle - BAR / 2), (end, middle + BAR / 2), look.color, look.hatch);
            ((end + 6, middle), lengths.written(*length))
        }
        Err(why) => {
            canvas.mark((scale.from + 12, middle), Marker::Cross, FAINT);
            ((scale.from + 24, middle), why.clone())
        }
    }
}
