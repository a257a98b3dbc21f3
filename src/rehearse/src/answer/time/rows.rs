//! Rows of a prediction: phases, modules, lines and kernels, those that take most first.

use super::bands::{Unrecorded, band_of_class};
use super::constants::Grade;
use super::device::{CardModel, Limit, OperatorTime, class_title};
use super::prediction::{BUSY, HostWait, KernelTime, Misaligned, ModuleTime, PhaseTime, Span};
use super::timeline::{Turn, steady};
use crate::answer::place::{MOST_ROWS, alike};
use crate::capture::process::{Frame, Trace};
use crate::capture::work::{Precision, Work, WorkKind};
use base::order::grouped;
use sim::cards::Card;
use sim::trace::Phase;
use std::collections::HashMap;
use std::hash::Hash;

/// Seconds by name, the most first.
pub(super) fn by_name<'a>(seconds: impl Iterator<Item = (&'a str, f64)>) -> Vec<(&'a str, f64)> {
    let mut sums: HashMap<&str, f64> = HashMap::new();
    for (name, seconds) in seconds {
        *sums.entry(name).or_default() += seconds;
    }
    let mut found: Vec<(&str, f64)> = sums.into_iter().collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    found
}

/// What each class of kernels takes of a card, in seconds, the longest first.
pub fn by_class(works: &[Work], card: &Card) -> Result<Vec<(&'static str, f64)>, String> {
    let device = CardModel::of(card)?.over(works);
    Ok(by_name(works.iter().map(|work| device.takes(work)).map(|taken| (taken.class, taken.seconds))))
}

pub(super) fn made_of(taken: &[OperatorTime]) -> &'static str {
    let whole: f64 = taken.iter().map(|one| one.seconds).sum();
    let share = |starts: &[&str]| {
        let of = |one: &&OperatorTime| starts.iter().any(|start| one.class.starts_with(start));
        taken.iter().filter(of).map(|one| one.seconds).sum::<f64>() / whole.max(f64::MIN_POSITIVE)
    };
    match () {
        () if share(&["compiled"]) >= 0.15 => "compiled",
        () if share(&["convolution", "grouped", "depthwise", "volume"]) >= 0.15 => "convolutions",
        () if share(&["matmul", "attention"]) >= 0.5 => "products",
        () => "passes",
    }
}

pub(super) fn records_of(device: &CardModel, taken: &[OperatorTime]) -> Vec<String> {
    let seconds = by_name(taken.iter().filter_map(|one| Some((device.whose(one.class)?, one.seconds))));
    seconds.into_iter().map(|(whose, _)| whose.to_string()).collect()
}

pub(super) fn limit_of<'a>(taken: impl IntoIterator<Item = &'a OperatorTime>) -> &'static str {
    let mut sums = [0.0; Limit::ALL.len()];
    taken.into_iter().for_each(|one| sums[one.limit as usize] += one.seconds);
    Limit::ALL.iter().zip(sums).max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |(limit, _)| limit.name())
}

pub(super) fn phases(works: &[&Work], taken: &[OperatorTime], turns: &[Turn]) -> Vec<PhaseTime> {
    let row = |phase: Phase| {
        let of: Vec<usize> = (0..works.len()).filter(|at| works[*at].phase == phase).collect();
        let device_seconds: f64 = of.iter().map(|at| taken[*at].seconds).sum();
        let host_seconds: f64 = of.iter().map(|at| turns[*at].host).sum();
        let bound_by = if device_seconds >= BUSY * host_seconds { limit_of(of.iter().map(|at| &taken[*at])) } else { "launches" };
        let name = if phase == Phase::Evaluation { "inference" } else { phase.name() };
        (!of.is_empty()).then_some(PhaseTime { phase: name, device_seconds, host_seconds, bound_by })
    };
    let all = [Phase::Forward, Phase::Backward, Phase::Optimizer, Phase::Evaluation, Phase::Generation];
    all.into_iter().filter_map(row).collect()
}

pub(super) fn operator_of(trace: &Trace, work: &Work) -> String {
    trace.operators.get(&work.operator).cloned().unwrap_or_default()
}

pub(super) fn module_of(trace: &Trace, work: &Work) -> String {
    trace.modules.get(&work.module).map(|module| alike(module)).unwrap_or_default()
}

/// The kernels of each key: what they take, how many there are, and what bounds them; those that take most first.
fn longest<K: Ord + Hash>(works: &[&Work], taken: &[OperatorTime], key: impl Fn(&Work) -> K) -> Vec<(K, f64, u64, &'static str)> {
    let mut found: HashMap<K, (Vec<OperatorTime>, u64)> = HashMap::new();
    for (work, taken) in works.iter().zip(taken) {
        let (all, launches) = found.entry(key(work)).or_default();
        all.push(*taken);
        *launches += u64::from(work.launches);
    }
    let seconds = |taken: &[OperatorTime]| taken.iter().map(|one| one.seconds).sum::<f64>();
    let mut rows: Vec<(K, f64, u64, &'static str)> =
        found.into_iter().map(|(key, (taken, launches))| (key, seconds(&taken), launches, limit_of(&taken))).collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    rows.truncate(MOST_ROWS);
    rows
}

pub(super) fn modules(trace: &Trace, works: &[&Work], taken: &[OperatorTime]) -> Vec<ModuleTime> {
    let rows = longest(works, taken, |work| module_of(trace, work)).into_iter();
    rows.map(|(module, seconds, launches, bound_by)| ModuleTime { module, seconds, launches, bound_by }).collect()
}

pub(super) fn spans(trace: &Trace, works: &[&Work], turns: &[Turn], of_step: &[(f64, f64)]) -> Vec<Span> {
    let span = |((work, turn), (begin, end)): ((&&Work, &Turn), &(f64, f64))| Span {
        operator: operator_of(trace, work),
        line: line_of(trace, work),
        module: module_of(trace, work),
        card: turn.card,
        lane: turn.lane,
        begin: *begin,
        seconds: end - begin,
    };
    works.iter().zip(turns).zip(of_step).filter(|((work, _), _)| work.kind != WorkKind::Order).map(span).collect()
}

/// The line that a work is of: in a backward pass, that of the forward pass.
pub(super) fn line_of(trace: &Trace, work: &Work) -> Option<Frame> {
    trace.line(if work.origin != 0 { work.origin } else { work.stack }).cloned()
}

pub(super) fn kernels(trace: &Trace, works: &[&Work], taken: &[OperatorTime]) -> Vec<KernelTime> {
    let key = |work: &Work| (operator_of(trace, work), line_of(trace, work), work.phase == Phase::Backward);
    let rows = longest(works, taken, key).into_iter();
    rows.map(|((operator, line, backward), seconds, launches, bound_by)| KernelTime {
        operator,
        line,
        backward,
        seconds,
        launches,
        bound_by,
    })
    .collect()
}

/// Sizes whose products would take less by 2 % of the step, the worst first.
pub(super) fn misaligned(trace: &Trace, device: &CardModel, works: &[&Work], step_seconds: f64) -> Vec<Misaligned> {
    let is_slow = |work: &&&Work| {
        work.kind == WorkKind::Matmul
            && matches!(work.alignment, 1..8)
            && matches!(work.precision, Precision::Half | Precision::Tf32)
    };
    let size = |work: &&Work| [work.n, work.k, work.m].into_iter().find(|size| size % 8 != 0);
    let of_size = |(size, works): (u32, Vec<&Work>)| Misaligned {
        size,
        padded: size.next_multiple_of(8),
        line: line_of(trace, works[0]),
        seconds: works.iter().map(|work| device.takes(work).seconds).sum(),
        padded_seconds: works.iter().map(|work| device.takes(&Work { alignment: 8, ..**work }).seconds).sum(),
    };
    let sized = works.iter().filter(is_slow).filter_map(|work| Some((size(work)?, *work)));
    let mut found: Vec<Misaligned> = grouped(sized).into_iter().map(of_size).collect();
    found.retain(|one| one.seconds - one.padded_seconds >= 0.02 * step_seconds);
    found.sort_by(|a, b| (b.seconds - b.padded_seconds).total_cmp(&(a.seconds - a.padded_seconds)));
    found
}

/// The line without whose waits a step would be shortest, where that is 5 % of it or more; of those at which the host waits most often.
pub(super) fn longest_wait(trace: &Trace, works: &[&Work], turns: &[Turn], step_seconds: f64) -> Option<HostWait> {
    const MOST_LINES: usize = 8;
    let waiting = (0..turns.len()).filter(|at| turns[*at].waits);
    let mut by_line = grouped(waiting.filter_map(|at| Some((line_of(trace, works[at])?, at))));
    by_line.sort_by_key(|(_, all)| std::cmp::Reverse(all.len()));
    let without = |(line, all): (Frame, Vec<usize>)| {
        let mut turns = turns.to_vec();
        all.iter().for_each(|at| turns[*at].waits = false);
        HostWait { line, seconds_without: steady(&turns, true) }
    };
    let shortest = by_line.into_iter().take(MOST_LINES).map(without).min_by(|a, b| a.seconds_without.total_cmp(&b.seconds_without));
    shortest.filter(|wait| wait.seconds_without < 0.95 * step_seconds)
}

/// Of a class whose records are none of this architecture: beyond its share of the time nothing is said of it.
pub(super) fn unrecorded(taken: &[OperatorTime], device_seconds: f64) -> Vec<Unrecorded> {
    let others = || taken.iter().filter(|one| one.grade >= Grade::Any && one.class != "copy");
    let shares = by_name(others().map(|one| (class_title(one.class), one.seconds / device_seconds.max(f64::MIN_POSITIVE))));
    let row = |(kernels, share): (&'static str, f64)| {
        let (low, high) = others().find(|one| class_title(one.class) == kernels).map(|one| band_of_class(one.class))?;
        Some(Unrecorded { kernels, share, low, high })
    };
    shares.into_iter().filter(|(_, share)| *share >= 0.1).filter_map(row).collect()
}
