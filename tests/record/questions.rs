//! What a rule asks: of which grid, on which side of no effect, and which parts decide.

use record::judge::{RunContext, Verdict, judge};
use record::protocol::*;
use record::results::{PassRecord, Sample, Samples, Status};
use record::rounds::Rounds;
use record::rules::{Bound, PlainRule, RatioRule, RecordedFigure, RecordedRule, TrendRule, ValueRule};

const UNSAID: &Rounds = &Rounds::unsaid();

/// Figures of cells, by pass and round.
type Figures<'a> = &'a [(&'a str, Pass, u32, &'a str, f64)];

fn grid(name: &str, studied: &str, axes: Vec<Axis>, pass: Pass) -> PlainGrid {
    PlainGrid {
        name: name.into(),
        profiles: vec![Profile::Quick],
        studied: studied.into(),
        axes,
        passes: vec![pass],
        only_on: vec![],
    }
}

fn verdict(grids: Vec<PlainGrid>, rule: PlainRule, machine: &str, device: Platform, figures: Figures) -> Verdict {
    let claim =
        Claim { id: "x".into(), from: String::new(), text: String::new(), judged_on: vec![device], rule, about_the_lab: false };
    let protocol =
        PlainProtocol { name: "x".into(), grids, metrics: vec![PEAK, TIME], claims: vec![claim], ..PlainProtocol::default() };
    let record = |(cell, pass, round, metric, value): &(&str, Pass, u32, &str, f64)| PassRecord {
        cell: PlainCell::parse(cell).unwrap(),
        pass: *pass,
        round: *round,
        status: Status::Ok,
        reason: String::new(),
        seconds: None,
        samples: vec![Sample { metric: (*metric).into(), unit: "B".into(), value: *value, sample: 0, reason: String::new() }],
    };
    let samples = Samples::new(&figures.iter().map(record).collect::<Vec<_>>());
    judge(&protocol, RunContext { machine, profile: Profile::Quick, device, rounds: UNSAID }, &samples).remove(0).verdict
}

fn peak_ratio(of: &str, confirm: f64, refute: f64) -> PlainRule {
    let (confirm, refute) = (Bound::AtMost(confirm), Bound::AtLeast(refute));
    RatioRule { metric: PEAK.name.into(), of: of.into(), confirm, refute, scope: None }.into()
}

fn peaks<'a>(cells: &[(&'a str, f64)]) -> Vec<(&'a str, Pass, u32, &'a str, f64)> {
    cells.iter().map(|(cell, peak)| (*cell, Pass::Memory, 1, PEAK.name, *peak)).collect()
}

/// Two grids have the same levels, and the claim is about one of them.
#[test]
fn a_rule_reads_the_grid_that_it_names_and_no_other() {
    let of = |name: &str, more: &str| {
        let mut axes = vec![axis("pinning", &["off", "on"])];
        axes.extend((!more.is_empty()).then(|| axis(more, &["1"])));
        grid(name, "pinning", axes, Pass::Memory)
    };
    let figures =
        peaks(&[("pinning=off", 10.0), ("pinning=on", 5.0), ("pinning=off images=1", 10.0), ("pinning=on images=1", 10.0)]);
    let judged = |rule| verdict(vec![of("alone", ""), of("loader", "images")], rule, "", Platform::Cpu, &figures);
    let rule = || peak_ratio("pinning=on", 0.98, 1.0);
    assert_eq!(judged(rule()), Verdict::Depends, "text that another grid matches");
    let of_one = |grid: &str| judged(PlainRule::In { grid: grid.into(), rule: Box::new(rule()) });
    assert_eq!((of_one("alone"), of_one("loader")), (Verdict::Confirmed, Verdict::Refuted));
}

#[test]
fn falls_short_needs_an_effect_on_the_claims_side() {
    let judged = |ratios: [f64; 2]| {
        let grids = vec![grid("g", "k", vec![axis("m", &["a", "b"]), axis("k", &["1", "4"])], Pass::Memory)];
        let cells = [("m=a k=1", 1.0), ("m=a k=4", ratios[0]), ("m=b k=1", 1.0), ("m=b k=4", ratios[1])];
        verdict(grids, peak_ratio("k=4", 0.6, 1.02), "", Platform::Cpu, &peaks(&cells))
    };
    assert_eq!(judged([0.9, 0.8]), Verdict::FallsShort);
    assert_eq!(judged([1.01, 1.05]), Verdict::Refuted, "each needs more");
    assert_eq!(judged([1.01, 1.01]), Verdict::Refuted, "between the bounds, and on the other side");
    assert_eq!(judged([0.9, 1.05]), Verdict::Refuted, "none holds, and one is on the other side");
    assert_eq!(judged([0.5, 1.05]), Verdict::Depends);
}

#[test]
fn what_is_informational_decides_only_where_nothing_else_can() {
    let grids = || vec![grid("g", "k", vec![axis("k", &["1", "4"])], Pass::Memory)];
    let beside = |bound: f64| PlainRule::Informational(Box::new(peak_ratio("k=4", bound, bound)));
    let judged = |rule| verdict(grids(), rule, "", Platform::Cpu, &peaks(&[("k=1", 1.0), ("k=4", 0.8)]));
    assert_eq!(judged(PlainRule::All(vec![peak_ratio("k=4", 0.9, 1.0), beside(0.5)])), Verdict::Confirmed);
    assert_eq!(judged(PlainRule::All(vec![beside(0.5), beside(0.5)])), Verdict::Refuted);
}

/// 10 ms of 20, 80 of 100, 300 of 900: the ratio falls, what is saved grows.
#[test]
fn a_trend_is_of_what_is_saved_or_of_the_ratio() {
    let cells: Vec<(String, f64)> = [("1", 20.0, 10.0), ("10", 100.0, 20.0), ("100", 900.0, 600.0)]
        .iter()
        .flat_map(|(size, plain, pinned)| {
            [(format!("bytes={size} memory=plain"), *plain), (format!("bytes={size} memory=pinned"), *pinned)]
        })
        .collect();
    let figures: Vec<_> = (1..=3u32)
        .flat_map(|round| {
            cells.iter().map(move |(cell, time)| (cell.as_str(), Pass::Time, round, TIME.name, time + f64::from(round) / 1e3))
        })
        .collect();
    let judged = |saved| {
        let (confirm, refute) = (Bound::AtLeast(0.8), Bound::AtMost(0.8));
        let rule =
            TrendRule { metric: TIME.name.into(), along: "bytes".into(), of: "memory=pinned".into(), confirm, refute, saved };
        let grids =
            vec![grid("g", "memory", vec![axis("bytes", &["1", "10", "100"]), axis("memory", &["plain", "pinned"])], Pass::Time)];
        verdict(grids, rule.into(), "", Platform::Cpu, &figures)
    };
    assert_eq!((judged(true), judged(false)), (Verdict::Confirmed, Verdict::Refuted));
}

/// One cell of a grid confirms; on an H200, of which records/gpus has a conv net that hardly gets faster, it depends.
#[test]
fn rows_of_a_real_gpu_count_where_it_is_that_gpu() {
    let grids = || vec![grid("time", "precision", vec![axis("precision", &["fp32", "half"])], Pass::Time)];
    let (confirm, refute) = (Bound::AtMost(1.0 / 1.5), Bound::AtLeast(1.0 / 1.5));
    let recorded = RecordedRule { technique: "autocast-bf16".into(), figure: RecordedFigure::Time, confirm, refute };
    let own = RatioRule { metric: TIME.name.into(), of: "precision=half".into(), confirm, refute, scope: None };
    let figures: Vec<_> = (1..=5u32)
        .flat_map(|round| {
            let jitter = 1.0 + f64::from(round) / 1e3;
            [("precision=fp32", Pass::Time, round, TIME.name, 1.0), ("precision=half", Pass::Time, round, TIME.name, 0.2 * jitter)]
        })
        .collect();
    let judged = |machine, device| {
        verdict(grids(), PlainRule::All(vec![own.clone().into(), recorded.clone().into()]), machine, device, &figures)
    };
    assert_eq!(judged("nvidia-h200", Platform::Gpu), Verdict::Depends);
    assert_eq!(judged("somebodys-gpu", Platform::Gpu), Verdict::Confirmed, "of which there are no records");
}

/// A bound that a value rule has is about the value, and 1 means nothing there.
#[test]
fn a_value_has_no_side() {
    let rule = ValueRule { metric: PEAK.name.into(), of: String::new(), confirm: Bound::AtMost(2.0), refute: Bound::AtLeast(9.0) };
    let grids = vec![grid("g", "k", vec![axis("k", &["1", "4"])], Pass::Memory)];
    assert_eq!(verdict(grids, rule.into(), "", Platform::Cpu, &peaks(&[("k=1", 3.0), ("k=4", 4.0)])), Verdict::FallsShort);
}
