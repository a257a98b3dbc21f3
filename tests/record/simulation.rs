//! How often the whole procedure (rounds, looks, Holm, verdict) decides by noise alone, simulated: no look decides more often than is promised.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use record::judge::{Outcome, RunContext, judge, undecided};
use record::protocol::{Claim, Metric, PEAK, Pass, PlainCell, PlainGrid, PlainProtocol, Platform, Profile, TIME, axis};
use record::results::{PassRecord, Sample, Samples, Status};
use record::rounds::{Rounds, usual};
use record::rules::{Bound, PlainRule, RatioRule, ValueRule};

fn claim(id: &str, rule: PlainRule) -> Claim {
    let judged_on = vec![Platform::Cpu];
    Claim { id: id.into(), from: String::new(), text: String::new(), judged_on, rule, about_the_lab: false }
}

const RATE: Metric = Metric::timed("rate", "", "1/s");

/// Three levels against a baseline, by a ratio of times; and one of them by a rate of its own.
fn protocol() -> PlainProtocol {
    PlainProtocol {
        name: "noise".into(),
        grids: vec![PlainGrid {
            name: "g".into(),
            profiles: vec![Profile::Quick, Profile::Full],
            studied: "k".into(),
            axes: vec![axis("k", &["1", "2", "3", "4"])],
            passes: vec![Pass::Time],
            only_on: vec![],
        }],
        metrics: vec![PEAK, TIME, RATE],
        claims: vec![
            claim(
                "faster",
                RatioRule {
                    metric: "time".into(),
                    of: "".into(),
                    confirm: Bound::AtMost(0.8),
                    refute: Bound::AtLeast(0.8),
                    scope: None,
                }
                .into(),
            ),
            claim(
                "value",
                ValueRule { metric: "rate".into(), of: "k=2|3".into(), confirm: Bound::AtLeast(1.0), refute: Bound::AtMost(1.0) }
                    .into(),
            ),
        ],
        ..PlainProtocol::default()
    }
}

/// What moves the times of processes on a machine that others use, too.
#[derive(Debug, Clone, Copy)]
enum SimulatedNoise {
    /// Each process is a little faster or slower than the next, by its memory layout.
    Processes,
    /// One process in ten meets a neighbour's burst and takes up to twice as long.
    Bursts,
    /// The machine becomes slower by half from the first round to the last, also within a round.
    Drift,
}

struct SimulatedMachine {
    random: ChaCha8Rng,
    noise: SimulatedNoise,
    /// Processes so far, of all that could be run.
    run: f64,
}

impl SimulatedMachine {
    fn normal(&mut self) -> f64 {
        let (u, v): (f64, f64) = (1.0 - self.random.random::<f64>(), self.random.random());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Logarithm of what one process takes, over what it should.
    fn process(&mut self) -> f64 {
        self.run += 1.0;
        let own = 0.03 * self.normal();
        match self.noise {
            SimulatedNoise::Processes => own,
            SimulatedNoise::Bursts if self.random.random::<f64>() < 0.1 => own + (1.0 + self.random.random::<f64>()).ln(),
            SimulatedNoise::Bursts => own,
            SimulatedNoise::Drift => own + (1.0 + 0.5 * self.run / 100.0).ln(),
        }
    }

    /// One round of all cells, in a random order. Every true ratio is `ratio`, every true rate 1.
    fn round(&mut self, round: u32, ratio: f64, records: &mut Vec<PassRecord>) {
        let mut cells = protocol().grids[0].cells();
        for last in (1..cells.len()).rev() {
            cells.swap(last, self.random.random_range(0..=last));
        }
        for cell in cells {
            let is_baseline = protocol().grids[0].baseline_of(&cell) == cell;
            let time = self.process().exp() * if is_baseline { 1.0 } else { ratio };
            // A rate is symmetric around its mean, and no drift moves it: it stands for one that is no ratio.
            let rate = 1.0 + 0.03 * self.normal();
            records.push(record(cell, round, &[("time", time), ("rate", rate)]));
        }
    }
}

fn record(cell: PlainCell, round: u32, figures: &[(&str, f64)]) -> PassRecord {
    let sample = |(metric, value): &(&str, f64)| Sample {
        metric: (*metric).to_string(),
        unit: String::new(),
        value: *value,
        sample: 0,
        reason: String::new(),
    };
    let samples = figures.iter().map(sample).collect();
    PassRecord { cell, pass: Pass::Time, round, status: Status::Ok, reason: String::new(), seconds: None, samples }
}

const REPETITIONS: u32 = 600;

/// Share of runs in which some look decides some comparison of each claim, where the true effect lies on the threshold: every decision is
/// false. So no way of stopping at a look can be wrong more often.
fn decided_by_noise(noise: SimulatedNoise, profile: Profile, looks: &[u32], judged_by: &Rounds) -> [f64; 2] {
    let taken = RunContext { machine: "", profile, device: Platform::Cpu, rounds: judged_by };
    let mut decided = [0; 2];
    for seed in 0..REPETITIONS {
        let mut machine = SimulatedMachine { random: ChaCha8Rng::seed_from_u64(u64::from(seed)), noise, run: 0.0 };
        let mut records = Vec::new();
        let mut found = [false; 2];
        for round in 1..=looks.iter().copied().max().unwrap_or(0) {
            machine.round(round, 0.8, &mut records);
            if looks.contains(&round) {
                for (found, judgement) in found.iter_mut().zip(judge(&protocol(), taken, &Samples::new(&records))) {
                    assert!(!judgement.evidence[0].comparisons.is_empty(), "nothing was compared");
                    *found |= judgement.evidence[0].comparisons.iter().any(|c| c.outcome != Outcome::Straddles);
                }
            }
        }
        decided.iter_mut().zip(found).for_each(|(decided, found)| *decided += u32::from(found));
    }
    decided.map(|n| f64::from(n) / f64::from(REPETITIONS))
}

/// A true rate of 5 % gives more than 7.2 % of 600 in one test of a hundred.
const CHANCE: f64 = 0.072;

#[test]
fn noise_decides_one_run_of_twenty() {
    for noise in [SimulatedNoise::Processes, SimulatedNoise::Bursts, SimulatedNoise::Drift] {
        for (profile, rounds) in [(Profile::Quick, usual(Profile::Quick)), (Profile::Full, usual(Profile::Full))] {
            let found = decided_by_noise(noise, profile, rounds.looks(), &rounds);
            assert!(found.iter().all(|share| *share <= CHANCE), "{noise:?}, {rounds} rounds: {found:?}");
        }
    }
}

/// What the procedure is corrected for: more rounds where five left something open, judged as if they had been planned.
#[test]
fn looking_again_for_nothing_decides_by_noise_too_often() {
    let found = decided_by_noise(SimulatedNoise::Processes, Profile::Full, &[5, 10, 25], &Rounds::unsaid());
    assert!(found.iter().all(|share| *share > 0.08), "{found:?}");
}

/// Power is what the correction may cost: an effect of half of its margin beyond the threshold is still found.
#[test]
fn an_effect_beyond_the_threshold_is_decided_rightly() {
    let rounds = usual(Profile::Full);
    let taken = RunContext { machine: "", profile: Profile::Full, device: Platform::Cpu, rounds: &rounds };
    let mut machine = SimulatedMachine { random: ChaCha8Rng::seed_from_u64(1), noise: SimulatedNoise::Processes, run: 0.0 };
    let mut records = Vec::new();
    (1..=5).for_each(|round| machine.round(round, 0.6, &mut records));
    let judged = judge(&protocol(), taken, &Samples::new(&records)).remove(0);
    assert!(judged.evidence[0].comparisons.iter().all(|c| c.outcome == Outcome::Confirms && c.rounds == 5), "{judged:?}");
    assert!(
        undecided(&protocol(), taken, &Samples::new(&records)).iter().all(|cell| cell.get("k") != Some("4")),
        "only the rate is open"
    );
}
