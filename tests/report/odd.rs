//! An experiment that nobody would plan, with shapes that strain every picture: long names, many levels, effects of a factor of 40,
//! baselines without memory, values of 0, a single point.

use vramlab::protocol::*;
use vramlab::results::{Manifest, PassRecord, Sample, Status};

const EVERY_PROFILE: &[Profile] = &[Profile::Smoke, Profile::Quick, Profile::Full];
const ERROR: Metric = Metric { name: "some_error", label: "relative error", unit: "1", pass: Pass::Check };

pub const ODD: Protocol = Protocol {
    name: "odd-shapes-of-every-kind",
    title: "Odd shapes",
    question: "Is every picture whole?",
    hypothesis: "It is.",
    factors: &[
        Factor { name: "kind", meaning: "a kind with a long name", levels: &[] },
        Factor { name: "size", meaning: "size", levels: &[] },
        Factor { name: "way", meaning: "way of doing it", levels: &[] },
    ],
    grids: &[
        Grid {
            name: "many",
            profiles: EVERY_PROFILE,
            studied: "way",
            axes: &[
                axis("kind", &["a-transformer-with-a-very-long-name-indeed", "b"]),
                axis("size", &["1", "3", "100", "101", "1000000"]),
                axis("way", &["plain", "first-of-many-ways", "second", "third", "fourth", "fifth", "sixth", "seventh"]),
            ],
            passes: &[Pass::Check, Pass::Memory, Pass::Time],
            only_on: &[],
        },
        Grid {
            name: "single",
            profiles: EVERY_PROFILE,
            studied: "way",
            axes: &[axis("kind", &["alone"]), axis("way", &["plain", "other"])],
            passes: &[Pass::Memory],
            only_on: &[],
        },
        Grid {
            name: "steps",
            profiles: EVERY_PROFILE,
            studied: "way",
            axes: &[
                axis("kind", &["a-step-of-a-very-long-name-indeed-which-goes-on", "step"]),
                axis("way", &["plain", "steep", "lost"]),
            ],
            passes: &[Pass::Memory],
            only_on: &[],
        },
    ],
    metrics: &[PEAK, TIME, ERROR],
    checks: &[Check { when: "", expect: Relation::Equal { tolerance: 1.0 } }],
    claims: &[],
    published: &[],
    plots: &[
        Plot {
            name: "lines",
            caption: "Lines of seconds, a great many of them, one over the other, with a caption that goes on and on, as if it had no end.",
            of: "",
            metric: "time",
            kind: PlotKind::Lines { x: "size", series: &["way"] },
        },
        Plot {
            name: "flat",
            caption: "Bytes in a narrow range.",
            of: "kind=b way=plain|second",
            metric: "requested_peak",
            kind: PlotKind::Lines { x: "size", series: &["way"] },
        },
        Plot { name: "bars", caption: "Bars.", of: "size=1|100", metric: "time", kind: PlotKind::Bars { clusters: &["size"] } },
        Plot {
            name: "small",
            caption: "One bar.",
            of: "kind=alone",
            metric: "requested_peak",
            kind: PlotKind::Bars { clusters: &[] },
        },
        Plot {
            name: "zeros",
            caption: "Nothing but zeros.",
            of: "kind=b",
            metric: "some_error",
            kind: PlotKind::Dots { rows: &["size"], threshold: 1e-6 },
        },
        Plot {
            name: "spread",
            caption: "Errors of every size.",
            of: "way=second|third",
            metric: "some_error",
            kind: PlotKind::Dots { rows: &["kind", "size"], threshold: 1e-6 },
        },
        Plot {
            name: "areas",
            caption: "Layers, a cell of which ran out of memory.",
            of: "kind=step|a-step-of-a-very-long-name-indeed-which-goes-on",
            metric: "requested_peak",
            kind: PlotKind::Area {
                panels: &["kind", "way"],
                layers: LAYERS,
                boundary: "curve.phase",
                phases: &["up", "and", "down"],
            },
        },
        Plot {
            name: "shares",
            caption: "Parts of a whole, most of them too small for a colour.",
            of: "kind=step|a-step-of-a-very-long-name-indeed-which-goes-on",
            metric: "requested_peak",
            kind: PlotKind::Shares { rows: &["kind", "way"], prefix: "part." },
        },
        Plot {
            name: "ranking",
            caption: "Parts that are ranked",
            of: "way=plain|lost",
            metric: "requested_peak",
            kind: PlotKind::Ranking {
                rows: &["kind", "way"],
                part: "part",
                columns: &[layer("part.", "bytes"), layer("never.", "what nobody told"), layer("again.", "bytes again")],
                most: 3,
            },
        },
    ],
    threats: &[],
};

const fn layer(name: &'static str, label: &'static str) -> Metric {
    Metric { name, label, unit: "B", pass: Pass::Memory }
}

const LAYERS: &[Metric] =
    &[layer("curve.low", "a lower layer"), layer("curve.none", "nothing"), layer("curve.high", "a higher layer of a long name")];

/// Where the curves of a step have their peak, in bytes: the lower layer's and the higher one's.
pub const STEEP: [f64; 2] = [3e6, 9e6];

/// Two layers over three phases of 4, 1 and 2 points, and parts of a whole.
fn step(cell: &Cell) -> PassRecord {
    let sample = |metric: &str, unit: &str, sample: u32, value: f64| Sample {
        metric: metric.into(),
        unit: unit.into(),
        value,
        sample,
        reason: String::new(),
    };
    let mut samples = vec![sample("requested_peak", "B", 0, 12e6)];
    samples.extend([(0, 0.0), (4, 1.0), (5, 2.0), (7, 3.0)].map(|(point, phase)| sample("curve.phase", "1", point, phase)));
    let [low, high] = if selects("way=steep", cell) { STEEP } else { [1e3, 0.0] };
    samples.extend([(0, low), (6, 0.0)].map(|(point, bytes)| sample("curve.low", "B", point, bytes)));
    samples.extend([(0, 0.0), (2, high), (3, 1.0)].map(|(point, bytes)| sample("curve.high", "B", point, bytes)));
    let parts = ["all<of>it", "b", "c", "d", "e", "f", "g", "h", "i"].iter().enumerate();
    samples.extend(parts.map(|(n, part)| sample(&format!("part.{part}"), "B", 0, 1e9 / 3f64.powi(n as i32))));
    samples.push(sample("again.b", "B", 0, 2048.0));
    PassRecord {
        cell: cell.clone(),
        pass: Pass::Memory,
        round: 1,
        status: Status::Ok,
        reason: String::new(),
        seconds: None,
        samples,
    }
}

pub fn records(manifest: &Manifest) -> Vec<PassRecord> {
    let cells = manifest.planned.iter().map(|text| Cell::parse(text).unwrap()).enumerate();
    cells.flat_map(|(n, cell)| of_cell(n, &cell)).collect()
}

fn of_cell(n: usize, cell: &Cell) -> Vec<PassRecord> {
    if selects("way=lost", cell) {
        return vec![PassRecord::not_run(cell, Pass::Memory, 1, Status::Oom, "")];
    }
    if cell.get("kind").is_some_and(|kind| kind.contains("step")) {
        return vec![step(cell)];
    }
    let size: f64 = cell.get("size").map_or(1.0, |s| s.parse().unwrap());
    let rank = (n % 8) as f64;
    let pass = |pass, round, metric: &str, unit: &str, value: f64| PassRecord {
        cell: cell.clone(),
        pass,
        round,
        status: Status::Ok,
        reason: String::new(),
        seconds: Some(1.0),
        samples: vec![Sample { metric: metric.into(), unit: unit.into(), value, sample: 0, reason: String::new() }],
    };
    if selects("size=101 way=plain|third", cell) || selects("size=1000000 way=plain|fourth|fifth", cell) {
        return vec![PassRecord::not_run(cell, Pass::Memory, 1, Status::Oom, "")];
    }
    let error = if selects("kind=b", cell) { 0.0 } else { 10f64.powf(3.0 - size.log10() * 4.0) };
    let mut passes = vec![
        pass(Pass::Check, 1, "some_error", "1", error),
        pass(Pass::Memory, 1, "requested_peak", "B", 1e9 + size.log10() * 1e7 + rank * 5e6),
    ];
    if cell.get("size").is_some() {
        let effect = [1.0, 40.0, 0.01, 1.001, 0.999, 3.0, 0.5, 1.5][n % 8];
        passes.extend((1..=5).map(|round| {
            let noise = 1.0 + 0.2 * ((round * 7 + n as u32 * 3) % 5) as f64 / 5.0;
            pass(Pass::Time, round, "time", "s", 2e-7 * size * effect * noise)
        }));
    }
    passes
}
