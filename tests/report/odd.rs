//! An experiment that nobody would plan, with shapes that strain every picture: long names, many levels, effects of a factor of 40,
//! baselines without memory, values of 0, a single point.

use record::protocol::*;
use record::results::{Manifest, PassRecord, Sample, Status};

const EVERY_PROFILE: &[Profile] = &[Profile::Smoke, Profile::Quick, Profile::Full];
const ERROR: Metric = Metric::compared("some_error", "relative error");

pub fn odd() -> PlainProtocol {
    PlainProtocol {
    name: "odd-shapes-of-every-kind".into(),
    revision: 1,
    title: "Odd shapes".into(),
    question: "Is every picture whole?".into(),
    hypothesis: "It is.".into(),
    factors: vec![
        Factor { name: "kind".into(), meaning: "a kind with a long name".into(), levels: vec![] },
        Factor { name: "size".into(), meaning: "size".into(), levels: vec![] },
        Factor { name: "way".into(), meaning: "way of doing it".into(), levels: vec![] },
    ],
    grids: vec![
        PlainGrid {
            name: "many".into(),
            profiles: EVERY_PROFILE.to_vec(),
            studied: "way".into(),
            axes: vec![
                axis("kind", &["a-transformer-with-a-very-long-name-indeed", "b"]),
                axis("size", &["1", "3", "100", "101", "1000000"]),
                axis("way", &["plain", "first-of-many-ways", "second", "third", "fourth", "fifth", "sixth", "seventh"]),
            ],
            passes: vec![Pass::Check, Pass::Memory, Pass::Time],
            only_on: vec![],
        },
        PlainGrid {
            name: "single".into(),
            profiles: EVERY_PROFILE.to_vec(),
            studied: "way".into(),
            axes: vec![axis("kind", &["alone"]), axis("way", &["plain", "other"])],
            passes: vec![Pass::Memory],
            only_on: vec![],
        },
        PlainGrid {
            name: "steps".into(),
            profiles: EVERY_PROFILE.to_vec(),
            studied: "way".into(),
            axes: vec![
                axis("kind", &["a-step-of-a-very-long-name-indeed-which-goes-on", "step"]),
                axis("way", &["plain", "steep", "lost"]),
            ],
            passes: vec![Pass::Memory],
            only_on: vec![],
        },
    ],
    metrics: vec![PEAK, TIME, ERROR],
    checks: vec![Check { when: "".into(), expect: Relation::Equal { tolerance: 0.5 } }],
    plots: vec![
        PlainPlot {
            name: "lines".into(),
            caption: "Lines of seconds, a great many of them, one over the other, with a caption that goes on and on, as if it had no end.".into(),
            of: "".into(),
            metric: "time".into(),
            kind: PlotKind::Lines { x: "size".into(), series: vec!["way".into()] }, on_front: false },
        PlainPlot {
            name: "flat".into(),
            caption: "Bytes in a narrow range.".into(),
            of: "kind=b way=plain|second".into(),
            metric: "requested_peak".into(),
            kind: PlotKind::Lines { x: "size".into(), series: vec!["way".into()] }, on_front: false },
        PlainPlot { name: "bars".into(), caption: "Bars.".into(), of: "size=1|100".into(), metric: "time".into(), kind: PlotKind::Bars { clusters: vec!["size".into()], absolute: false }, on_front: false },
        PlainPlot {
            name: "small".into(),
            caption: "One bar.".into(),
            of: "kind=alone".into(),
            metric: "requested_peak".into(),
            kind: PlotKind::Bars { clusters: vec![], absolute: false }, on_front: false },
        PlainPlot {
            name: "areas".into(),
            caption: "Layers, a cell of which ran out of memory.".into(),
            of: "kind=step|a-step-of-a-very-long-name-indeed-which-goes-on".into(),
            metric: "requested_peak".into(),
            kind: PlotKind::Area {
                panels: vec!["kind".into(), "way".into()],
                layers: layers().to_vec(),
                boundary: "curve.phase".into(),
                phases: vec!["up".into(), "and".into(), "down".into()],
            }, on_front: false },
        PlainPlot {
            name: "one-area".into(),
            caption: "Layers of one cell, whose panel no factor names.".into(),
            of: "kind=step way=steep".into(),
            metric: "requested_peak".into(),
            kind: PlotKind::Area {
                panels: vec![],
                layers: layers().to_vec(),
                boundary: "curve.phase".into(),
                phases: vec!["up".into(), "and".into(), "down".into()],
            }, on_front: false },
        PlainPlot {
            name: "ranking".into(),
            caption: "Parts that are ranked".into(),
            of: "way=plain|lost".into(),
            metric: "requested_peak".into(),
            kind: PlotKind::Ranking {
                rows: vec!["kind".into(), "way".into()],
                part: "part".into(),
                columns: vec![layer("part.", "bytes"), layer("never.", "what nobody told"), layer("again.", "bytes again")],
                most: 3,
            }, on_front: false },
    ],
 ..PlainProtocol::default()
}
}

const fn layer(name: &'static str, label: &'static str) -> Metric {
    Metric::counted(name, label, "B")
}

fn layers() -> [Metric; 3] {
    [layer("curve.low", "a lower layer"), layer("curve.none", "nothing"), layer("curve.high", "a higher layer of a long name")]
}

/// Where the curves of a step have their peak, in bytes: the lower layer's and the higher one's.
pub const STEEP: [f64; 2] = [3e6, 9e6];

/// Two layers over three phases of 4, 1 and 2 points, and parts of a whole.
fn step(cell: &PlainCell) -> PassRecord {
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
    let cells = manifest.planned.iter().map(|text| PlainCell::parse(text).unwrap()).enumerate();
    cells.flat_map(|(n, cell)| of_cell(n, &cell)).collect()
}

fn of_cell(n: usize, cell: &PlainCell) -> Vec<PassRecord> {
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
