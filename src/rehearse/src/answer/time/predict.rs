//! The predicted time of a step, with what bounds it.

use super::bands::{COVERAGE, interval};
use super::constants::Grade;
use super::device::OperatorTime;
use super::prediction::{BUSY, Estimates, FORWARD_PASS, Prediction, RankTime, RanksTogether};
use super::prices::cost;
use super::rows::{
    kernels, limit_of, longest_wait, made_of, misaligned, module_of, modules, operator_of, phases, records_of, spans, unrecorded,
};
use super::stretch::{TimedStep, WHOLE_LAUNCH};
use super::timeline::{Turn, play, steady};
use crate::capture::process::Trace;
use crate::capture::work::{Work, WorkKind};
use sim::cards::Card;
use sim::trace::Phase;

/// What autocast converts for each product of a forward pass: its weight and the weight's gradient; and where norms give fp32 biases, too, and what
/// is multiplied.
const CONVERSIONS: [f64; 2] = [2.0, 6.0];

/// Norms that autocast leaves in fp32.
const IN_FP32: [&str; 3] = ["aten::native_group_norm", "aten::native_layer_norm", "aten::rsqrt"];

/// What no prediction counts.
const NOT_MODELLED: [&str; 4] =
    ["loading of data", "compiling and kernels of extensions", "heat, and most cards' power limits", "other programs on the GPU"];

/// Plays ranks of a job against each other, each a process of its own; none where they move nothing, or one of them has no step.
pub fn play_ranks(traces: &[&Trace], card: &Card, steps: u32, host_factor: Option<f64>) -> Option<RanksTogether> {
    let mut traces: Vec<&&Trace> = traces.iter().filter(|trace| trace.process.rank.is_some() && !trace.work.is_empty()).collect();
    traces.sort_by_key(|trace| trace.process.rank);
    traces.dedup_by_key(|trace| trace.process.rank);
    let timed: Vec<TimedStep> =
        traces.iter().map(|trace| TimedStep::of(trace, card, steps, host_factor)).collect::<Result<_, _>>().ok()?;
    let moves = |timed: &TimedStep| timed.turns.iter().any(|turn| turn.meets.is_some());
    if timed.len() < 2 || !timed.iter().all(moves) {
        return None;
    }
    let played = play(&timed.iter().map(|timed| timed.turns.as_slice()).collect::<Vec<_>>(), true);
    let step_seconds = played.step_seconds();
    let of = |at: usize| {
        let rank = |at: usize| traces[at].process.rank.unwrap_or(0);
        let longest = played.waited(at).iter().max_by(|a, b| a.1.total_cmp(b.1));
        RankTime {
            rank: rank(at),
            alone_seconds: steady(&timed[at].turns, true),
            device_seconds: timed[at].own().map(|each| timed[at].taken[each].seconds).sum(),
            waits_for: longest.map(|(whom, _)| rank(*whom)),
            waits_seconds: longest.map_or(0.0, |(_, seconds)| *seconds),
        }
    };
    let ranks: Vec<RankTime> = (0..timed.len()).map(of).collect();
    let alone: f64 = ranks.iter().map(|rank| rank.alone_seconds).sum::<f64>() / ranks.len() as f64;
    let is_pair = |turn: &Turn| turn.meets.is_some_and(|meeting| meeting.pair.is_some());
    Some(RanksTogether {
        step_seconds,
        is_pipeline: timed.iter().any(|timed| timed.turns.iter().any(is_pair)),
        waiting: (1.0 - alone / step_seconds).max(0.0),
        ranks,
        unmatched: played.unmatched,
    })
}

/// Predicts a step of a process on a card, where the host takes `host_factor` times as long as here, or each launch as long.
///
/// # Errors
/// Why there is none: the card has no figures of speed, or no step ended.
pub fn predict(trace: &Trace, card: &Card, steps: u32, host_factor: Option<f64>) -> Result<Prediction, String> {
    let timed = TimedStep::of(trace, card, steps, host_factor)?;
    let TimedStep { stretch, device, host, clock, turns, .. } = &timed;
    let played = play(&[turns], true);
    let step_seconds = played.step_seconds();
    let of_step: Vec<(f64, f64)> = played.spans(0).collect();
    let communication = timed.communication(card, &of_step);
    // Of a rehearsal that was kept before what ranks move was seen.
    let unseen = (communication.is_empty() && !trace.communicators.is_empty()).then_some("communication between GPUs");
    let exposed_seconds = if communication.is_empty() { 0.0 } else { exposed(&timed, step_seconds) };
    let works: Vec<&Work> = timed.own().map(|at| stretch.works[at]).collect();
    let taken: Vec<OperatorTime> = timed.own().map(|at| timed.taken[at]).collect();
    let own_turns: Vec<Turn> = timed.own().map(|at| turns[at]).collect();
    let device_seconds: f64 = taken.iter().map(|taken| taken.seconds).sum();
    let host_seconds: f64 = turns.iter().map(|turn| turn.host).sum();
    let (bound_by, is_busy) = bound(turns, &taken, step_seconds, exposed_seconds);
    let records = whose(&taken);
    let unrecorded = unrecorded(&taken, device_seconds);
    let host_band = (!is_busy).then_some(if host.launch.is_some() { "host" } else { "other-host" });
    let timed_seconds: f64 = taken.iter().filter(|one| one.is_timed).map(|one| one.seconds).sum();
    let timed_share = timed_seconds / device_seconds.max(f64::MIN_POSITIVE);
    let made_of = made_of(&taken);
    let (low, high) = interval(made_of, records, host_band, &unrecorded, timed_share);
    let (samples, tokens) = stretch.batch;
    let known = |count: u64| (count > 0).then_some(count);
    let replicas = trace.process.rank.map(|_| trace.replicas);
    let rate = |count: u64| known(count).map(|count| count as f64 * f64::from(trace.replicas.max(1)) / step_seconds);
    Ok(Prediction {
        gpu: card.to_string(),
        predicted: true,
        unit: stretch.unit,
        step_seconds,
        low_seconds: step_seconds * low,
        high_seconds: step_seconds * high,
        total_seconds: match stretch.all {
            // None takes longer than the longest: what the first take to warm up is this machine's, and in no figure.
            Some((passes, seconds)) if stretch.unit == FORWARD_PASS => seconds.min(step_seconds * passes as f64),
            Some((_, seconds)) => seconds,
            None => step_seconds * f64::from(steps),
        },
        total_device_seconds: stretch.seen.iter().map(|work| device.takes(work).seconds).sum(),
        total_launches: stretch.seen.iter().map(|work| u64::from(work.launches)).sum(),
        estimates: estimates(trace, &timed),
        passes: stretch.all.map(|(passes, _)| passes),
        prefill_seconds: stretch.prefill,
        samples: known(samples),
        tokens: known(tokens),
        // Tokens are made, not samples.
        samples_per_second: rate(samples).filter(|_| stretch.unit != "token"),
        tokens_per_second: rate(tokens),
        replicas,
        coverage: COVERAGE,
        cost: cost(card, [1.0, low, high].map(|of| step_seconds * of)),
        bound_by,
        waits: (bound_by == "synchronisation").then(|| longest_wait(trace, &stretch.works, turns, step_seconds)).flatten(),
        device_seconds,
        host_seconds,
        host_factor,
        clock: *clock,
        busy: None,
        timed_share,
        anchored: records == "chip",
        records,
        made_of,
        records_of: records_of(device, &taken),
        unrecorded,
        launches: works.iter().map(|work| u64::from(work.launches)).sum(),
        modules: modules(trace, &works, &taken),
        spans: spans(trace, &stretch.works, turns, &of_step),
        phases: phases(&works, &taken, &own_turns),
        kernels: kernels(trace, &works, &taken),
        misaligned: misaligned(trace, device, &works, step_seconds),
        communication,
        exposed_seconds,
        job: None,
        loading: None,
        epoch: None,
        not_modelled: NOT_MODELLED.into_iter().chain(unseen).collect(),
    })
}

/// What bounds a step, and whether its cards are busy.
fn bound(turns: &[Turn], taken: &[OperatorTime], step_seconds: f64, exposed_seconds: f64) -> (&'static str, bool) {
    // Whether a host that took nothing would leave the step as long: cards may work beside each other, or wait for each other.
    let devices_alone: Vec<Turn> = turns.iter().map(|turn| Turn { host: 0.0, ..*turn }).collect();
    let is_busy = steady(&devices_alone, true) >= BUSY * step_seconds;
    let bound_by = match is_busy {
        _ if exposed_seconds > 0.5 * step_seconds => "communication",
        true => limit_of(taken),
        false if steady(turns, false) < 0.95 * step_seconds => "synchronisation",
        false => "launches",
    };
    (bound_by, is_busy)
}

/// What a step takes in nothing but what ranks move: as if nothing had to be moved. What the script does before it is its own work, and stays.
fn exposed(timed: &TimedStep, step_seconds: f64) -> f64 {
    let still = |(turn, own): (&Turn, &f64)| if turn.meets.is_some() { Turn { host: *own, device: 0.0, ..*turn } } else { *turn };
    let turns: Vec<Turn> = timed.turns.iter().zip(&timed.own_work).map(still).collect();
    (step_seconds - steady(&turns, true)).max(0.0)
}

/// Whose constants most of the card's time has.
fn whose(taken: &[OperatorTime]) -> &'static str {
    let all: f64 = taken.iter().map(|one| one.seconds).sum();
    let most_are = |worst: Grade| {
        taken.iter().filter(|one| one.grade <= worst).map(|one| one.seconds).sum::<f64>() >= 0.5 * all.max(f64::MIN_POSITIVE)
    };
    match () {
        () if most_are(Grade::Chip) => "chip",
        () if most_are(Grade::Architecture) => "architecture",
        () => "specification",
    }
}

fn estimates(trace: &Trace, timed: &TimedStep) -> Estimates {
    let TimedStep { stretch, taken, turns, own_work, .. } = timed;
    let works = &stretch.works;
    let own_seconds: f64 = own_work.iter().sum();
    let of_forward = || timed.own().filter(|at| works[*at].phase == Phase::Forward);
    // Where no module is known, of the whole pass.
    let has_modules = timed.own().any(|at| works[at].module != 0);
    let again = |share: fn(WorkKind) -> f64| {
        let of_blocks = of_forward().filter(|at| !has_modules || module_of(trace, works[*at]).contains(".*"));
        of_blocks.fold([0.0, 0.0], |[card, host], at| {
            [card + share(works[at].kind) * taken[at].seconds, host + share(works[at].kind) * turns[at].host]
        })
    };
    let is_fp32 = |work: &Work| IN_FP32.contains(&operator_of(trace, work).split('.').next().unwrap_or_default());
    let each = CONVERSIONS[usize::from(timed.own().any(|at| is_fp32(works[at])))];
    let is_product = |at: &usize| matches!(works[*at].kind, WorkKind::Matmul | WorkKind::Convolution) && works[*at].batch <= 1;
    Estimates {
        own_seconds,
        turns: turns.iter().copied().zip(own_work.iter().copied()).filter(|_| own_seconds > 0.0).collect(),
        conversions: each * WHOLE_LAUNCH * of_forward().filter(is_product).count() as f64,
        blocks: again(|_| 1.0),
        blocks_in_part: again(|kind| match kind {
            WorkKind::Matmul => 0.5,
            WorkKind::Attention => 0.0,
            _ => 1.0,
        }),
    }
}
