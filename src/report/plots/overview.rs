//! All techniques of one machine: memory saved against time paid.

use super::{Picture, WIDTH, whose};
use crate::chart::LogScale;
use crate::chart::{
    Anchor, BAND, Canvas, EDGE, FAINT, GRID, Head, INK, Look, Point, SMALL, TEXT, look, picture, shortened, text_width,
};
use crate::protocol::{BY, Cell, Metric, PEAK, TIME};
use crate::report::recorded::Recorded;
use anyhow::Result;

const HEIGHT: i32 = 460;
/// Room above and below the points for the names of the quadrants.
const BAND_HEIGHT: i32 = 28;
/// Widest that the names of techniques may be.
const LEGEND: i32 = 220;
const LABELS_OF_EACH: usize = 3;

struct Dot {
    technique: usize,
    time: f64,
    memory: f64,
    /// What to write beside it, the fullest first.
    labels: Vec<String>,
}

/// A point for each cell whose time and peak memory are known relative to its baseline; nothing where there is none.
///
/// # Errors
/// The drawing library fails.
pub fn overview(of_machine: &[&Recorded]) -> Result<Option<Picture>> {
    let mut techniques: Vec<&str> = Vec::new();
    let mut dots = Vec::new();
    for recorded in of_machine {
        let found = collect(recorded, techniques.len());
        if !found.is_empty() {
            techniques.push(recorded.protocol.name);
            dots.extend(found);
        }
    }
    let Some(first) = of_machine.first().filter(|_| !dots.is_empty()) else {
        return Ok(None);
    };
    let head = Head::new("Memory saved against time paid, each technique relative to its own baseline", &whose(first), WIDTH);
    let svg = Chart::new(&head, &dots, &techniques).draw(&head, &dots, &techniques)?;
    let alt = format!("Peak memory against time of every technique, relative to its baseline, on {}", whose(first));
    Ok(Some(Picture { file: format!("overview-{}.svg", first.machine), alt, svg }))
}

fn collect(recorded: &Recorded, technique: usize) -> Vec<Dot> {
    let metric = |name: &str| -> Option<&'static Metric> { recorded.protocol.metric(name) };
    let (Some(time), Some(peak)) = (metric(TIME.name), metric(PEAK.name)) else {
        return Vec::new();
    };
    let both = |cell: Cell| {
        let (time, memory) = (recorded.ratio(&cell, time)?.estimate, recorded.ratio(&cell, peak)?.estimate);
        (time > 0.0 && memory > 0.0).then_some((cell, time, memory))
    };
    // Who does it is no technique.
    let is_technique = |cell: &Cell| recorded.grid_of(cell).is_some_and(|grid| grid.studied != BY);
    let found: Vec<(Cell, f64, f64)> = recorded.all_cells().into_iter().filter(is_technique).filter_map(both).collect();
    let dot = |(cell, time, memory): &(Cell, f64, f64)| Dot {
        technique,
        time: *time,
        memory: *memory,
        labels: labels(recorded, cell, &found),
    };
    found.iter().map(dot).collect()
}

/// The studied level with those of the other factors that vary among the points, and for want of room the studied level alone.
fn labels(recorded: &Recorded, cell: &Cell, among: &[(Cell, f64, f64)]) -> Vec<String> {
    let studied = recorded.grid_of(cell).map_or("", |grid| grid.studied);
    let varies = |factor: &str| among.iter().any(|(other, ..)| other.get(factor).is_some_and(|l| Some(l) != cell.get(factor)));
    // Numbers and yes-or-no levels say nothing without their factor.
    let needs_factor = |level: &str| {
        level.starts_with(|c: char| c.is_ascii_digit()) || ["with", "without", "yes", "no", "on", "off", "none"].contains(&level)
    };
    let name = |(factor, level): &(String, String)| match needs_factor(level) {
        true => format!("{factor}={level}"),
        false => level.clone(),
    };
    let own = cell.levels().iter().filter(|(factor, _)| factor == studied);
    let others = cell.levels().iter().filter(|(factor, _)| factor != studied && varies(factor));
    let short: Vec<String> = own.map(name).collect();
    let full: Vec<String> = short.iter().cloned().chain(others.map(name)).collect();
    vec![full.join(", "), short.join(", ")]
}

/// A box on the picture: left, top, right, bottom.
#[derive(Debug, Clone, Copy)]
struct Area(i32, i32, i32, i32);

impl Area {
    fn overlaps(&self, other: &Area) -> bool {
        self.0 < other.2 && other.0 < self.2 && self.1 < other.3 && other.1 < self.3
    }

    fn within(&self, outer: &Area) -> bool {
        self.0 >= outer.0 && self.1 >= outer.1 && self.2 <= outer.2 && self.3 <= outer.3
    }
}

struct Chart {
    frame: Area,
    x: LogScale,
    y: LogScale,
    y_ticks: Vec<(i32, String)>,
}

impl Chart {
    fn new(head: &Head, dots: &[Dot], techniques: &[&str]) -> Chart {
        let top = head.bottom() + TEXT + 16;
        let bottom = top + HEIGHT;
        let y = LogScale::over(dots.iter().map(|d| d.memory).chain([0.8, 1.25]), 1.5, bottom - BAND_HEIGHT, top + BAND_HEIGHT);
        let y_ticks = y.ticks("x");
        let left = EDGE + 12 + y_ticks.iter().map(|(_, label)| text_width(label, SMALL)).max().unwrap_or(0);
        let legend = techniques.iter().map(|t| text_width(&shortened(t, TEXT, LEGEND), TEXT)).max().unwrap_or(0);
        let right = WIDTH - EDGE - 40 - legend;
        let x = LogScale::over(dots.iter().map(|d| d.time).chain([0.8, 1.25]), 1.5, left, right);
        Chart { frame: Area(left, top, right, bottom), x, y, y_ticks }
    }

    fn at(&self, dot: &Dot) -> Point {
        (self.x.at(dot.time), self.y.at(dot.memory))
    }

    fn draw(&self, head: &Head, dots: &[Dot], techniques: &[&str]) -> Result<String> {
        let Area(left, top, right, bottom) = self.frame;
        picture((WIDTH, bottom + 60), &format!("{} {}", head.title, head.subtitle), |canvas| {
            head.draw(canvas);
            canvas.text((left, top - 14), "peak memory relative to the baseline", TEXT, INK, Anchor::Start);
            self.draw_axes(canvas);
            let words = self.draw_quadrants(canvas);
            for dot in dots {
                let Look { mark, color, .. } = look(dot.technique);
                canvas.mark(self.at(dot), mark, color);
            }
            self.draw_labels(canvas, dots, techniques.len(), words);
            for (n, technique) in techniques.iter().enumerate() {
                let (y, look) = (top + 12 + n as i32 * 22, look(n));
                canvas.mark((right + 22, y), look.mark, look.color);
                canvas.text((right + 36, y), &shortened(technique, TEXT, LEGEND), TEXT, INK, Anchor::Start);
            }
        })
    }

    fn draw_axes(&self, canvas: &mut Canvas) {
        let Area(left, top, right, bottom) = self.frame;
        // What costs neither: the quarter that everybody wants.
        canvas.rectangle((left, self.y.at(1.0)), (self.x.at(1.0), bottom), BAND, true);
        for (y, label) in &self.y_ticks {
            canvas.line((left, *y), (right, *y), GRID, 1);
            canvas.text((left - 8, *y), label, SMALL, INK, Anchor::End);
        }
        let mut free = left - 20;
        for (x, label) in self.x.ticks("x") {
            canvas.line((x, top), (x, bottom), GRID, 1);
            let half = text_width(&label, SMALL) / 2 + 3;
            if x - half >= free {
                canvas.text((x, bottom + 14), &label, SMALL, INK, Anchor::Middle);
                free = x + half;
            }
        }
        canvas.line((left, self.y.at(1.0)), (right, self.y.at(1.0)), FAINT, 2);
        canvas.line((self.x.at(1.0), top), (self.x.at(1.0), bottom), FAINT, 2);
        canvas.rectangle((left, top), (right, bottom), FAINT, false);
        canvas.text(((left + right) / 2, bottom + 38), "time relative to the baseline", TEXT, INK, Anchor::Middle);
    }

    /// Names the quadrants that are wide enough for it, and gives the places that this takes.
    fn draw_quadrants(&self, canvas: &mut Canvas) -> Vec<Area> {
        let Area(left, top, right, bottom) = self.frame;
        let mut taken = Vec::new();
        for (memory, y) in [("more memory", top + BAND_HEIGHT / 2), ("less memory", bottom - BAND_HEIGHT / 2)] {
            let faster = (format!("{memory}, less time"), left + 8, Anchor::Start, self.x.at(1.0) - left);
            let slower = (format!("{memory}, more time"), right - 8, Anchor::End, right - self.x.at(1.0));
            for (words, x, anchor, room) in [faster, slower] {
                let width = text_width(&words, SMALL);
                if width + 16 <= room {
                    canvas.text((x, y), &words, SMALL, FAINT, anchor);
                    let from = if anchor == Anchor::Start { x } else { x - width };
                    taken.push(Area(from, y - 8, from + width, y + 8));
                }
            }
        }
        taken
    }

    /// Labels the points that say most of each technique, where there is room.
    fn draw_labels(&self, canvas: &mut Canvas, dots: &[Dot], techniques: usize, mut taken: Vec<Area>) {
        taken.extend(dots.iter().map(|dot| {
            let (x, y) = self.at(dot);
            Area(x - 6, y - 6, x + 6, y + 6)
        }));
        let Area(left, top, right, bottom) = self.frame;
        let (x, y) = (self.x.at(1.0), self.y.at(1.0));
        taken.extend([Area(left, y - 2, right, y + 2), Area(x - 2, top, x + 2, bottom)]);
        for technique in 0..techniques {
            let mut labelled = 0;
            for dot in telling(dots, technique) {
                let is_free = |p: &Area| p.within(&self.frame) && !taken.iter().any(|t| t.overlaps(p));
                let placed = dot.labels.iter().find_map(|label| {
                    let around = places(self.at(dot), (text_width(label, SMALL), 15));
                    around.into_iter().find(|(place, _)| is_free(place)).map(|(place, anchor)| (label, place, anchor))
                });
                if let Some((label, place, anchor)) = placed.filter(|_| labelled < LABELS_OF_EACH) {
                    let x = match anchor {
                        Anchor::Start => place.0,
                        Anchor::Middle => (place.0 + place.2) / 2,
                        Anchor::End => place.2,
                    };
                    canvas.text((x, (place.1 + place.3) / 2), label, SMALL, INK, anchor);
                    taken.push(place);
                    labelled += 1;
                }
            }
        }
    }
}

/// The points of a technique, those first that say most: least memory, then least and most time.
fn telling(dots: &[Dot], technique: usize) -> Vec<&Dot> {
    let mut own: Vec<&Dot> = dots.iter().filter(|dot| dot.technique == technique).collect();
    own.sort_by(|a, b| a.memory.total_cmp(&b.memory));
    let by_time = |a: &&&Dot, b: &&&Dot| a.time.total_cmp(&b.time);
    let firsts = [own.first(), own.iter().min_by(by_time), own.iter().max_by(by_time), own.last()];
    let mut order: Vec<&Dot> = Vec::new();
    for dot in firsts.into_iter().flatten().chain(&own) {
        if !order.iter().any(|o| std::ptr::eq(*o, *dot)) {
            order.push(dot);
        }
    }
    order
}

/// Where a label of a size can stand beside a point, best first, and which of its ends is next to the point.
fn places((x, y): Point, (width, height): (i32, i32)) -> Vec<(Area, Anchor)> {
    let corner = |left: i32, top: i32, anchor: Anchor| (Area(left, top, left + width, top + height), anchor);
    let middle = y - height / 2;
    vec![
        corner(x + 9, middle, Anchor::Start),
        corner(x - 9 - width, middle, Anchor::End),
        corner(x - width / 2, y - 8 - height, Anchor::Middle),
        corner(x - width / 2, y + 8, Anchor::Middle),
        corner(x + 6, y - 6 - height, Anchor::Start),
        corner(x + 6, y + 6, Anchor::Start),
        corner(x - 6 - width, y - 6 - height, Anchor::End),
        corner(x - 6 - width, y + 6, Anchor::End),
    ]
}
