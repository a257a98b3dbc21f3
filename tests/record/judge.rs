//! From samples to verdicts: each kind of rule, parts, platforms, published figures.

use base::stats::Interval;
use record::judge::{Comparison, Judgement, Outcome, RunContext, Verdict, judge, reproduce};
use record::protocol::*;
use record::results::{PassRecord, Sample, Samples, Status};
use record::rounds::Rounds;
use record::rules::{
    AgreementRule, Bound, ExponentRule, FalseAlarmsRule, Pick, PickedRule, PlainRule, RatioRule, RuleKind, Scope, TrendRule,
    ValueRule,
};

const UNSAID: &Rounds = &Rounds::unsaid();
const ON_CPU: RunContext = RunContext { machine: "", profile: Profile::Quick, device: Platform::Cpu, rounds: UNSAID };

fn claim(id: &str, on: &[Platform], rule: impl Into<PlainRule>) -> Claim {
    let (from, text) = (String::new(), String::new());
    Claim { id: id.into(), from, text, judged_on: on.to_vec(), rule: rule.into(), about_the_lab: false }
}

fn protocol() -> PlainProtocol {
    PlainProtocol {
        name: "x".into(),
        grids: vec![PlainGrid {
            name: "memory".into(),
            profiles: vec![Profile::Quick],
            studied: "k".into(),
            axes: vec![axis("model", &["mlp", "gpt"]), axis("depth", &["8", "16", "32"]), axis("k", &["1", "4"])],
            passes: vec![Pass::Memory, Pass::Time],
            only_on: vec![],
        }],
        metrics: vec![PEAK, ACTIVATIONS, TIME],
        claims: vec![
            claim(
                "less",
                &[Platform::Cpu],
                RatioRule {
                    metric: "requested_peak".into(),
                    of: "k=4".into(),
                    confirm: Bound::AtMost(0.6),
                    refute: Bound::AtLeast(0.9),
                    scope: Some(Scope { part: "activations".into(), whole: "requested_peak".into(), at_least: 0.5 }),
                },
            ),
            claim(
                "fast",
                &[Platform::Gpu],
                RatioRule {
                    metric: "time".into(),
                    of: "k=4".into(),
                    confirm: Bound::AtMost(1.5),
                    refute: Bound::AtLeast(1.5),
                    scope: None,
                },
            ),
            claim(
                "grows",
                &[Platform::Cpu],
                ExponentRule {
                    metric: "requested_peak".into(),
                    along: "depth".into(),
                    of: "k=1".into(),
                    confirm: Bound::Within(0.9, 1.1),
                    refute: Bound::AtMost(0.8),
                },
            ),
        ],
        ..PlainProtocol::default()
    }
}

fn pass(cell: &PlainCell, pass: Pass, round: u32, figures: &[(&str, f64)]) -> PassRecord {
    let sample = |(metric, value): &(&str, f64)| Sample {
        metric: metric.to_string(),
        unit: "B".into(),
        value: *value,
        sample: 0,
        reason: String::new(),
    };
    PassRecord {
        cell: cell.clone(),
        pass,
        round,
        status: Status::Ok,
        reason: String::new(),
        seconds: None,
        samples: figures.iter().map(sample).collect(),
    }
}

/// Judges one claim with peaks, activation shares and times given by cell.
fn judged(
    id: &str,
    peak: impl Fn(&PlainCell) -> f64,
    share: impl Fn(&PlainCell) -> f64,
    time: impl Fn(&PlainCell, u32) -> f64,
) -> Judgement {
    let mut records = Vec::new();
    for cell in protocol().grids[0].cells() {
        let p = peak(&cell);
        records.push(pass(&cell, Pass::Memory, 1, &[("requested_peak", p), ("activations", p * share(&cell))]));
        records.extend((1..=6).map(|round| pass(&cell, Pass::Time, round, &[("time", time(&cell, round))])));
    }
    let samples = Samples::new(&records);
    judge(&protocol(), ON_CPU, &samples).into_iter().find(|j| j.of.id == id).unwrap()
}

/// A run that was stopped has a part of its cells, and what that part says is no verdict.
#[test]
fn a_verdict_takes_all_planned_cells() {
    use record::results::BUDGET_ENDED;
    let taken = RunContext { rounds: &Rounds::fixed(6), ..ON_CPU };
    let of = |id: &str, leave_out: &dyn Fn(&PassRecord) -> bool, instead: &[PassRecord]| {
        let mut records = Vec::new();
        for cell in protocol().grids[0].cells() {
            let peak = if is(&cell, "k=4") { 40.0 } else { 100.0 };
            records.push(pass(&cell, Pass::Memory, 1, &[("requested_peak", peak), ("activations", peak * 0.9)]));
            records.extend((1..=6).map(|round| pass(&cell, Pass::Time, round, &[("time", 1.0 + f64::from(round) * 1e-3)])));
        }
        records.retain(|record| !leave_out(record));
        records.extend_from_slice(instead);
        let judged = judge(&protocol(), taken, &Samples::new(&records)).into_iter().find(|j| j.of.id == id).unwrap();
        (judged.verdict, judged.so_far, judged.measured())
    };
    assert_eq!(of("less", &|_| false, &[]), (Verdict::Confirmed, Verdict::Confirmed, (6, 6)));
    let one = PlainCell::parse("model=gpt depth=8 k=4").unwrap();
    let is_one = |record: &PassRecord| record.cell == one;
    let budget = |pass| PassRecord::not_run(&one, pass, 1, Status::Skipped, BUDGET_ENDED);
    let incomplete = (Verdict::Incomplete, Verdict::Confirmed, (5, 6));
    assert_eq!(of("less", &is_one, &[]), incomplete, "no row at all");
    assert_eq!(of("less", &is_one, &[budget(Pass::Memory), budget(Pass::Time)]), incomplete, "a row that says why");
    let baseline = |record: &PassRecord| is(&record.cell, "model=gpt depth=8 k=1");
    assert_eq!(of("less", &baseline, &[]), incomplete, "what it is compared with");
    let last_round = |record: &PassRecord| record.cell == one && record.round == 6;
    assert_eq!(of("fast", &last_round, &[]).2, (5, 6), "a round that is lacking");
    assert_eq!(of("less", &last_round, &[]).0, Verdict::Confirmed, "which bytes do not need");
    // What became of a cell is an answer.
    let out_of_memory = PassRecord::not_run(&one, Pass::Memory, 1, Status::Oom, "");
    assert_eq!(of("less", &is_one, &[out_of_memory]), (Verdict::Confirmed, Verdict::Confirmed, (6, 6)));
    assert_eq!(of("less", &|_| true, &[]).0, Verdict::NotMeasured);
}

fn is(cell: &PlainCell, select: &str) -> bool {
    selects(select, cell)
}

#[test]
fn exact_bytes_fall_by_threshold_and_scope() {
    let with = |ratio: f64| judged("less", |c| if is(c, "k=4") { 100.0 * ratio } else { 100.0 }, |_| 0.7, |_, _| 1.0);
    assert_eq!(with(0.60).verdict, Verdict::Confirmed);
    assert_eq!(with(0.90).verdict, Verdict::Refuted);
    assert_eq!(with(0.75).verdict, Verdict::FallsShort, "between the thresholds");
    let none = judged("less", |_| 100.0, |_| 0.4, |_, _| 1.0);
    assert_eq!((none.verdict, none.evidence[0].out_of_scope), (Verdict::NotMeasured, 6));
}

#[test]
fn depends_names_where_it_holds() {
    let peak = |c: &PlainCell| {
        if is(c, "k=4 model=gpt depth=8|32") || is(c, "k=4 model=mlp depth=8") { 50.0 } else { 100.0 }
    };
    let j = judged("less", peak, |_| 0.7, |_, _| 1.0);
    assert_eq!(j.verdict, Verdict::Depends);
    assert_eq!(j.holds.paths, ["depth=8", "depth=32 model=gpt"]);
    assert_eq!((j.holds.held, j.holds.of), (3, 6));
}

#[test]
fn times_need_their_interval_beyond_the_threshold() {
    let noisy = |effect: f64, noise: f64| {
        judged(
            "fast",
            |_| 1.0,
            |_| 1.0,
            move |c, round| {
                let wobble = 1.0 + noise * f64::from(round % 3);
                if is(c, "k=4") { effect * wobble } else { 1.0 }
            },
        )
    };
    assert_eq!(noisy(1.2, 0.01).verdict, Verdict::Confirmed);
    assert_eq!(noisy(1.9, 0.01).verdict, Verdict::Refuted);
    assert_eq!(noisy(1.4, 0.2).verdict, Verdict::Inconclusive);
    let j = noisy(1.2, 0.01);
    assert!(!j.carries, "the claim is about GPUs");
    assert!(j.evidence[0].comparisons.iter().all(|c| c.rounds == 6 && c.effect.low < c.effect.high));
}

#[test]
fn exponents_come_from_the_two_largest_levels() {
    let depth = |c: &PlainCell| c.get("depth").unwrap().parse::<f64>().unwrap();
    let j = judged("grows", |c| if depth(c) < 16.0 { 1000.0 } else { depth(c) }, |_| 1.0, |_, _| 1.0);
    assert_eq!(j.verdict, Verdict::Confirmed);
    let j = judged("grows", |c| depth(c).sqrt(), |_| 1.0, |_, _| 1.0);
    assert_eq!(j.verdict, Verdict::Refuted);
    assert!((j.evidence[0].comparisons[0].effect.estimate - 0.5).abs() < 1e-9);
}

fn of_trend() -> PlainProtocol {
    PlainProtocol {
        claims: vec![claim(
            "trend",
            &[Platform::Cpu],
            TrendRule {
                metric: "time".into(),
                along: "depth".into(),
                of: "model=gpt".into(),
                confirm: Bound::AtLeast(0.8),
                refute: Bound::AtMost(0.8),
                saved: false,
            },
        )],
        ..protocol()
    }
}

/// Judges the trend of the ratio of k=4 to k=1 over the depths, given by depth and round.
fn trend(ratio: impl Fn(f64, u32) -> f64) -> Judgement {
    let mut records = Vec::new();
    for cell in protocol().grids[0].cells() {
        let depth = cell.get("depth").unwrap().parse().unwrap();
        let time = |round| if is(&cell, "k=4") { ratio(depth, round) } else { 1.0 };
        records.extend((1..=6).map(|round| pass(&cell, Pass::Time, round, &[("time", time(round))])));
    }
    judge(&of_trend(), ON_CPU, &Samples::new(&records)).remove(0)
}

#[test]
fn a_trend_is_the_rank_correlation_of_the_effect() {
    let grows = trend(|depth, _| 1.0 + depth);
    assert_eq!(grows.verdict, Verdict::Confirmed);
    let found = &grows.evidence[0].comparisons;
    assert_eq!((found.len(), found[0].effect.estimate, found[0].rounds), (1, 1.0, 6));
    assert_eq!(found[0].cell.get("depth"), Some("32"));
    assert_eq!(trend(|depth, _| 1.0 / depth).verdict, Verdict::Refuted);
    let noisy = trend(|depth, round| if round % 3 == 0 { 1.0 / depth } else { depth });
    assert_eq!(noisy.verdict, Verdict::Inconclusive, "{:?}", noisy.evidence[0].comparisons);
    assert_eq!(trend(|_, _| 1.0).verdict, Verdict::NotMeasured, "equal ratios have no order");
}

#[test]
fn invalid_cells_carry_nothing_and_are_missing() {
    let cell = PlainCell::parse("model=mlp depth=8 k=4").unwrap();
    let mut broken = pass(&cell, Pass::Check, 1, &[]);
    broken.status = Status::Invalid;
    broken.reason = "gradients differ".into();
    let base = cell.with("k", "1");
    let records = [
        pass(&base, Pass::Memory, 1, &[("requested_peak", 9.0)]),
        pass(&cell, Pass::Memory, 1, &[("requested_peak", 1.0)]),
        broken,
    ];
    let samples = Samples::new(&records);
    assert_eq!(samples.value(&cell, "requested_peak"), None);
    let j = judge(&protocol(), ON_CPU, &samples);
    assert_eq!(j[0].verdict, Verdict::NotMeasured);
    assert!(j[0].evidence[0].missing.contains(&cell));
}

#[test]
fn what_failed_keeps_the_others_from_being_every_one() {
    let with = |status, reason: &str| {
        let mut records = Vec::new();
        for cell in protocol().grids[0].cells() {
            let peak = if is(&cell, "k=4") { 50.0 } else { 100.0 };
            let mut record = pass(&cell, Pass::Memory, 1, &[("requested_peak", peak), ("activations", 0.9 * peak)]);
            if is(&cell, "model=gpt depth=32 k=4") {
                (record.status, record.reason) = (status, reason.to_string());
            }
            records.push(record);
        }
        judge(&protocol(), ON_CPU, &Samples::new(&records)).remove(0)
    };
    assert_eq!(with(Status::Ok, "").verdict, Verdict::Confirmed);
    for failure in [Status::Crashed, Status::Timeout, Status::Error, Status::Invalid] {
        let judged = with(failure, "why");
        assert_eq!((judged.verdict, judged.evidence[0].failed), (Verdict::Inconclusive, 1), "{failure}");
    }
    let cut = with(Status::Skipped, record::results::BUDGET_ENDED);
    assert_eq!((cut.verdict, cut.evidence[0].missing.len()), (Verdict::Incomplete, 1), "what was not its turn yet decides nothing");
    assert_eq!(with(Status::Oom, "").verdict, Verdict::Confirmed, "running out of memory is an outcome");
}

#[test]
fn a_prediction_has_to_be_right_in_its_share_of_cells() {
    let comparison = |outcome| Comparison {
        cell: PlainCell::parse("k=1").unwrap(),
        baseline: None,
        effect: Interval::exact(1.0),
        rounds: 1,
        outcome,
    };
    let of = |right: usize, wrong: usize, failed: usize| {
        let right = std::iter::repeat_n(comparison(Outcome::Confirms), right);
        let rule = AgreementRule {
            metric: String::new(),
            reference: String::new(),
            of: String::new(),
            within: Bound::AtMost(1.0),
            share: 0.9,
        };
        rule.combine(&right.chain(std::iter::repeat_n(comparison(Outcome::Refutes), wrong)).collect::<Vec<_>>(), failed)
    };
    assert_eq!((of(9, 1, 0), of(17, 3, 0), of(0, 0, 0)), (Verdict::Confirmed, Verdict::Refuted, Verdict::NotMeasured));
    assert_eq!((of(9, 0, 1), of(9, 1, 1), of(7, 2, 1)), (Verdict::Confirmed, Verdict::Inconclusive, Verdict::Refuted));
}

#[test]
fn a_part_about_what_a_platform_lacks_does_not_count_there() {
    fn at_most_one(of: &str) -> PlainRule {
        ValueRule { metric: "requested_peak".into(), of: of.into(), confirm: Bound::AtMost(1.0), refute: Bound::AtLeast(2.0) }
            .into()
    }
    fn grid(axis: Axis, only_on: &[Platform]) -> PlainGrid {
        let (profiles, passes, only_on) = (vec![Profile::Quick], vec![Pass::Memory], only_on.to_vec());
        PlainGrid { name: String::new(), profiles, studied: "moment".into(), axes: vec![axis], passes, only_on }
    }
    fn halves() -> PlainProtocol {
        PlainProtocol {
            grids: vec![
                grid(axis("moment", &["before", "dropped"]), &[]),
                grid(axis("moment", &["emptied", "later"]), &[Platform::Gpu]),
            ],
            claims: vec![claim(
                "two-parts",
                &[Platform::Cpu],
                PlainRule::All(vec![at_most_one("moment=dropped"), at_most_one("moment=emptied")]),
            )],
            ..protocol()
        }
    }
    fn beside() -> PlainProtocol {
        PlainProtocol {
            claims: vec![claim(
                "beside",
                &[Platform::Cpu],
                PlainRule::All(vec![
                    at_most_one("moment=dropped"),
                    PlainRule::Informational(Box::new(at_most_one("moment=emptied"))),
                ]),
            )],
            ..halves()
        }
    }
    let on = |protocol: &PlainProtocol, device, dropped: f64| {
        let records = [pass(&PlainCell::parse("moment=dropped").unwrap(), Pass::Memory, 1, &[("requested_peak", dropped)])];
        let judged = judge(protocol, RunContext { device, ..ON_CPU }, &Samples::new(&records)).remove(0);
        (judged.verdict, judged.parts())
    };
    use Verdict::{Confirmed, InPart, Incomplete, Refuted};
    assert_eq!(on(&halves(), Platform::Cpu, 0.5), (InPart, (1, 2)), "the other part decides, too");
    assert_eq!(on(&halves(), Platform::Cpu, 2.5), (Refuted, (1, 2)));
    assert_eq!(on(&halves(), Platform::Gpu, 0.5), (Incomplete, (2, 2)), "there it lacks");
    assert_eq!(on(&beside(), Platform::Cpu, 0.5), (Confirmed, (1, 2)));
    assert_eq!(on(&beside(), Platform::Gpu, 0.5), (Incomplete, (2, 2)));
    let in_full = |mut protocol: PlainProtocol| {
        protocol.grids[1] = PlainGrid { profiles: vec![Profile::Full], ..grid(axis("moment", &["emptied", "later"]), &[]) };
        protocol
    };
    assert_eq!(on(&in_full(beside()), Platform::Cpu, 0.5), (Confirmed, (1, 2)));
    assert_eq!(on(&in_full(halves()), Platform::Cpu, 0.5), (InPart, (2, 2)), "the profile lacks what decides");
}

#[test]
fn a_verdict_without_what_was_changed_stands_beside_it() {
    fn narrower() -> PlainProtocol {
        PlainProtocol {
            claims: vec![Claim {
                rule: PlainRule::Changed {
                    what: "a scope".into(),
                    before: Some(Box::new(
                        RatioRule {
                            metric: "requested_peak".into(),
                            of: "k=4".into(),
                            confirm: Bound::AtMost(0.6),
                            refute: Bound::AtLeast(0.9),
                            scope: None,
                        }
                        .into(),
                    )),
                    now: Box::new(protocol().claims[0].rule.clone()),
                },
                ..protocol().claims[0].clone()
            }],
            ..protocol()
        }
    }
    let mut records = Vec::new();
    for cell in protocol().grids[0].cells() {
        let is_mlp = is(&cell, "model=mlp");
        let peak = if is(&cell, "k=4") && is_mlp { 50.0 } else { 100.0 };
        let share = if is_mlp { 0.9 } else { 0.1 };
        records.push(pass(&cell, Pass::Memory, 1, &[("requested_peak", peak), ("activations", share * peak)]));
    }
    let judged = judge(&narrower(), ON_CPU, &Samples::new(&records)).remove(0);
    let without = judged.changed.and_then(|changed| changed.without);
    assert_eq!((judged.verdict, without), (Verdict::Confirmed, Some(Verdict::Depends)));
}

/// Within a tenth of a published ratio.
fn published_ratio(metric: Metric, low: f64, high: f64) -> PlainRule {
    RatioRule {
        metric: metric.name.into(),
        of: "model=mlp depth=8 k=4".into(),
        confirm: Bound::Within(low, high),
        refute: Bound::Outside(low, high),
        scope: None,
    }
    .into()
}

fn published() -> PlainProtocol {
    PlainProtocol {
        published: vec![
            Published {
                id: "table".into(),
                source: "".into(),
                figure: "".into(),
                judged_on: vec![Platform::Cpu, Platform::Gpu],
                rule: Some(PlainRule::All(vec![published_ratio(PEAK, 0.45, 0.55), published_ratio(TIME, 1.08, 1.32)])),
                setup: "".into(),
            },
            Published {
                id: "nowhere".into(),
                source: "".into(),
                figure: "".into(),
                judged_on: vec![Platform::Cpu],
                rule: None,
                setup: "no such data".into(),
            },
        ],
        ..protocol()
    }
}

#[test]
fn a_published_figure_is_reproduced_within_a_tenth_and_a_table_in_parts() {
    let found = |peak: f64, time: f64, platform| {
        let cell = |k: &str| PlainCell::parse(&format!("model=mlp depth=8 k={k}")).unwrap();
        let mut records = vec![
            pass(&cell("1"), Pass::Memory, 1, &[("requested_peak", 100.0)]),
            pass(&cell("4"), Pass::Memory, 1, &[("requested_peak", peak)]),
        ];
        for round in 1..=6 {
            let wobble = 1.0 + 1e-3 * f64::from(round);
            records.push(pass(&cell("1"), Pass::Time, round, &[("time", 1.0)]));
            records.push(pass(&cell("4"), Pass::Time, round, &[("time", time * wobble)]));
        }
        let mut all = reproduce(&published(), RunContext { device: platform, ..ON_CPU }, &Samples::new(&records));
        (all.remove(0), all.remove(0))
    };
    let verdict = |peak, time| found(peak, time, Platform::Gpu).0.verdict;
    assert_eq!(verdict(46.0, 1.3), Verdict::Confirmed);
    assert_eq!(verdict(46.0, 1.5), Verdict::Depends, "one part of two");
    assert_eq!(verdict(44.0, 0.9), Verdict::Refuted, "too small is as wrong as too large");
    let (table, nowhere) = found(50.0, 9.9, Platform::Dry);
    assert_eq!((table.verdict, table.carries), (Verdict::Depends, false), "nobody compares a simulated GPU here");
    let (table, _) = found(50.0, 9.9, Platform::Cpu);
    let found = (table.verdict, table.carries, table.parts());
    assert_eq!(found, (Verdict::Depends, true, (1, 2)), "a CPU's time is put against nobody's, so a part is reproduced");
    assert_eq!((nowhere.verdict, nowhere.carries), (Verdict::NotMeasured, false));
}

fn alike() -> PlainProtocol {
    PlainProtocol {
        grids: vec![PlainGrid {
            name: "one level".into(),
            profiles: vec![Profile::Quick],
            studied: "name".into(),
            axes: vec![axis("name", &["a", "b", "c", "d"])],
            passes: vec![Pass::Time],
            only_on: vec![],
        }],
        claims: vec![claim("same-level", &[Platform::Cpu], FalseAlarmsRule { metric: "time".into(), of: "".into(), at_most: 0.1 })],
        ..protocol()
    }
}

#[test]
fn a_name_that_is_always_slower_raises_false_alarms() {
    let judged = |rounds: u32, slower: f64| {
        let mut records = Vec::new();
        for round in 1..=rounds {
            for (n, name) in ["a", "b", "c", "d"].iter().enumerate() {
                // Scattered over 0 to 1 and the same every time.
                let mixed = (round * 4 + n as u32).wrapping_mul(0x9E37_79B1);
                let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85EB_CA77);
                let noise = f64::from((mixed ^ (mixed >> 13)) >> 8) / f64::from(1 << 24);
                let time = 1.0 + 0.1 * noise + if *name == "a" { slower } else { 0.0 };
                let cell = PlainCell::parse(&format!("name={name}")).unwrap();
                records.push(pass(&cell, Pass::Time, round, &[("time", time)]));
            }
        }
        judge(&alike(), ON_CPU, &Samples::new(&records)).remove(0)
    };
    let alike = judged(400, 0.0);
    assert_eq!(alike.verdict, Verdict::Confirmed, "{:?}", alike.evidence[0].comparisons);
    let few = judged(15, 0.0);
    assert_eq!(few.verdict, Verdict::Inconclusive, "its interval reaches beyond: {:?}", few.evidence[0].comparisons);
    let biased = judged(20, 0.5);
    assert_eq!(biased.verdict, Verdict::Refuted);
    let rate = biased.evidence[0].comparisons[0].effect;
    assert!((0.45..0.6).contains(&rate.estimate) && rate.low > 0.05, "half of the pairs have the slow one: {rate:?}");
    assert_eq!(judged(4, 0.0).verdict, Verdict::NotMeasured, "too few rounds");
}

fn references() -> PlainProtocol {
    PlainProtocol {
        grids: vec![PlainGrid {
            name: "references".into(),
            profiles: vec![Profile::Quick],
            studied: "k".into(),
            axes: vec![axis("by", &["vramlab", "pytorch"]), axis("k", &["1", "4"])],
            passes: vec![Pass::Time],
            only_on: vec![],
        }],
        claims: vec![
            claim(
                "both",
                &[Platform::Cpu, Platform::Python],
                RatioRule {
                    metric: "time".into(),
                    of: "k=4".into(),
                    confirm: Bound::AtMost(0.9),
                    refute: Bound::AtLeast(1.1),
                    scope: None,
                },
            ),
            claim(
                "python",
                &[Platform::Python],
                ValueRule {
                    metric: "time".into(),
                    of: "by=pytorch k=1".into(),
                    confirm: Bound::AtLeast(1.5),
                    refute: Bound::AtMost(1.5),
                },
            ),
        ],
        ..protocol()
    }
}

#[test]
fn references_are_judged_apart() {
    let times = [("vramlab", "1", 2.0), ("vramlab", "4", 1.0), ("pytorch", "1", 2.0), ("pytorch", "4", 4.0)];
    let mut records = Vec::new();
    for (by, k, time) in times {
        let cell = PlainCell::parse(&format!("by={by} k={k}")).unwrap();
        records.extend((1..=5).map(|round| pass(&cell, Pass::Time, round, &[("time", time * (1.0 + f64::from(round) * 1e-3))])));
    }
    let judged = judge(&references(), ON_CPU, &Samples::new(&records));
    let found: Vec<_> = judged.iter().map(|j| (j.of.id.as_str(), j.platform, j.verdict, j.carries)).collect();
    assert_eq!(
        found,
        [
            ("both", Platform::Cpu, Verdict::Confirmed, true),
            ("both", Platform::Python, Verdict::Refuted, true),
            ("python", Platform::Python, Verdict::Confirmed, true),
        ]
    );
    let value = &judged[2].evidence[0].comparisons[0];
    assert!(value.rounds == 5 && value.effect.low < 2.006 && 2.006 < value.effect.high, "an interval over rounds: {value:?}");
}

fn counts() -> PlainProtocol {
    PlainProtocol {
        grids: vec![PlainGrid {
            name: "workers".into(),
            profiles: vec![Profile::Quick],
            studied: "workers".into(),
            axes: vec![axis("transform", &["light", "heavy"]), axis("workers", &["0", "1x", "2x", "4x"])],
            passes: vec![Pass::Time],
            only_on: vec![],
        }],
        metrics: vec![Metric::timed("rate", "images/s", "1")],
        claims: vec![
            claim(
                "some-worse",
                &[Platform::Cpu],
                PickedRule {
                    metric: "rate".into(),
                    pick: Pick::Lowest,
                    of: "workers=2x|4x".into(),
                    over: "".into(),
                    confirm: Bound::AtMost(0.95),
                    refute: Bound::AtLeast(0.98),
                },
            ),
            claim(
                "best-better",
                &[Platform::Cpu],
                PickedRule {
                    metric: "rate".into(),
                    pick: Pick::Highest,
                    of: "workers=2x|4x".into(),
                    over: "workers=1x".into(),
                    confirm: Bound::AtLeast(1.05),
                    refute: Bound::AtMost(1.02),
                },
            ),
        ],
        ..protocol()
    }
}

/// Both claims about worker counts, from images per second at 0, 1x, 2x and 4x.
fn counted_workers(rates: fn(&str) -> [f64; 4], spread: f64) -> Vec<Judgement> {
    let mut records = Vec::new();
    for cell in counts().grids[0].cells() {
        let at = ["0", "1x", "2x", "4x"].iter().position(|level| cell.get("workers") == Some(level)).unwrap();
        let rate = rates(cell.get("transform").unwrap())[at];
        records.extend((1..=6).map(|round| {
            let noise = spread * (f64::from((round * 7 + at as u32 * 3) % 5) - 2.0);
            pass(&cell, Pass::Time, round, &[("rate", rate * (1.0 + noise))])
        }));
    }
    judge(&counts(), ON_CPU, &Samples::new(&records))
}

#[test]
fn the_worst_of_some_is_put_against_the_best_of_all() {
    let verdicts = |rates, spread| counted_workers(rates, spread).iter().map(|j| j.verdict).collect::<Vec<_>>();
    assert_eq!(verdicts(|_| [500.0, 900.0, 900.0, 700.0], 1e-3), [Verdict::Confirmed, Verdict::Refuted]);
    assert_eq!(verdicts(|_| [500.0, 900.0, 1000.0, 1000.0], 1e-3), [Verdict::Refuted, Verdict::Confirmed]);
    assert_eq!(verdicts(|_| [500.0, 900.0, 900.0, 900.0], 0.05), [Verdict::Inconclusive, Verdict::Inconclusive]);
    let mixed = |transform: &str| if transform == "light" { [500.0, 900.0, 900.0, 700.0] } else { [500.0, 900.0, 910.0, 909.0] };
    let judged = counted_workers(mixed, 1e-3);
    assert_eq!((judged[0].verdict, &judged[0].holds.paths[..]), (Verdict::Depends, &["transform=light".to_string()][..]));
    let comparison = &judged[0].evidence[0].comparisons[0];
    assert_eq!(comparison.cell.to_string(), "transform=light workers=4x");
    assert_eq!(comparison.baseline.as_ref().unwrap().get("transform"), Some("light"), "best of its own group");
    assert!((comparison.effect.estimate - 700.0 / 900.0).abs() < 0.01);
}

#[test]
fn a_cell_that_failed_is_missing_and_the_others_are_compared() {
    let cells = counts().grids[0].cells();
    let records: Vec<PassRecord> = cells
        .iter()
        .filter(|cell| !is(cell, "workers=4x"))
        .flat_map(|cell| (1..=5).map(move |round| pass(cell, Pass::Time, round, &[("rate", 100.0 + f64::from(round))])))
        .collect();
    let judged = judge(&counts(), ON_CPU, &Samples::new(&records));
    let evidence = &judged[1].evidence[0];
    assert_eq!((evidence.comparisons.len(), evidence.missing.len()), (2, 2));
}
