//! Figures that the protocol, the pass that they are of, or the rows beside them do not allow: bytes and seconds of another unit, rows that stand twice
//! or are missing, errors beyond what the check passes.

use super::recorded::Recorded;
use record::protocol::{Metric, PEAK, Pass, Platform, Relation};
use record::results::{PassRecord, Sample, Status};
use std::collections::{BTreeMap, BTreeSet};

/// The allocator of a GPU gives memory in blocks of so many bytes.
const BLOCK: f64 = 512.0;
/// Peaks of which none is above the next.
const ORDER: [&str; 3] = [PEAK.name, "allocated_peak", "reserved_peak"];
/// What is part of the first.
const PARTS: [&str; 5] = ["step_peak", "activations", "parameters", "gradients", "optimizer_state"];
/// How many times the middle of its pass a time may be.
const MOST_APART: f64 = 300.0;

/// A sentence for each kind of figure that cannot be, of the first that has it.
pub fn implausible(run: &Recorded) -> Vec<String> {
    let passes = || run.passes.iter().filter(|pass| pass.status == Status::Ok);
    let mut found: Vec<String> = passes().filter_map(|pass| of_pass(run, pass)).take(1).collect();
    found.extend(passes().find_map(|pass| beyond_its_check(run, pass)));
    found.extend(twice(run));
    found.extend(uneven(run));
    found
}

/// A pass's samples by metric, of those that the protocol knows.
fn by_metric<'a>(run: &'a Recorded, pass: &'a PassRecord) -> BTreeMap<&'a str, (&'a Metric, Vec<&'a Sample>)> {
    let mut found: BTreeMap<&str, (&Metric, Vec<&Sample>)> = BTreeMap::new();
    for sample in &pass.samples {
        if let Some(metric) = run.protocol.metric(&sample.metric) {
            found.entry(&sample.metric).or_insert((metric, Vec::new())).1.push(sample);
        }
    }
    found
}

fn of_pass(run: &Recorded, pass: &PassRecord) -> Option<String> {
    let has_gpu = run.platform() != Platform::Cpu;
    let metrics = by_metric(run, pass);
    let last = |name: &str| metrics.get(name).and_then(|(_, samples)| samples.last()).map(|sample| sample.value);
    let (cell, mut peaks) =
        (&pass.cell, ORDER.iter().filter_map(|name| Some((*name, last(name)?))).filter(|(_, value)| *value > 0.0));
    if let Some((name, value)) =
        peaks.clone().find(|(name, value)| value % if has_gpu && *name != PEAK.name { BLOCK } else { 1.0 } != 0.0)
    {
        return Some(format!("'{cell}' has a '{name}' of {value} B, which no allocator gives"));
    }
    let parts = PARTS.iter().filter_map(|name| Some((*name, last(name)?)));
    if let Some((name, value)) = last(PEAK.name).and_then(|peak| parts.into_iter().find(|(_, part)| *part > peak)) {
        return Some(format!("'{cell}' has a '{name}' of {value} B above its '{}'", PEAK.name));
    }
    let mut before = peaks.next();
    for (name, value) in peaks {
        if let Some((other, larger)) = before.filter(|(_, before)| *before > value) {
            return Some(format!("'{cell}' has a '{other}' of {larger} B above its '{name}' of {value} B"));
        }
        before = Some((name, value));
    }
    for (name, (metric, samples)) in metrics {
        if metric.unit != "s" || run.is_prediction() {
            continue;
        }
        let mut values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
        let sum: f64 = values.iter().sum();
        if let Some(seconds) = pass.seconds.filter(|seconds| sum > *seconds) {
            return Some(format!("'{cell}' has {sum:.1} s of '{name}' in a pass that took {seconds:.1} s"));
        }
        values.sort_by(f64::total_cmp);
        let middle = values[values.len() / 2];
        if let Some(most) = values.last().filter(|most| middle > 0.0 && **most > MOST_APART * middle) {
            return Some(format!("'{cell}' has {most} s of '{name}' beside {middle} s"));
        }
    }
    None
}

/// An error that its check would not have passed: the relation is about the first (`harness::measure`), and that of others is as good, roughly.
fn beyond_its_check(run: &Recorded, pass: &PassRecord) -> Option<String> {
    const OTHERS: f64 = 0.1;
    let relation = run.protocol.check_of(&pass.cell).filter(|_| pass.pass == Pass::Check)?;
    let mut errors = pass.samples.iter().filter(|sample| sample.metric.ends_with("_error"));
    let is_beyond = |error: f64| match *relation {
        Relation::Equal { tolerance } => error > tolerance,
        // From the baseline itself.
        Relation::Scaled { by, tolerance } => (error - (by - 1.0).abs()).abs() > by.max(1.0) * tolerance,
        Relation::Differs { at_least, at_most } => !(at_least..=at_most).contains(&error),
        Relation::Missing { .. } | Relation::Raises { .. } => false,
    };
    let first = errors.next()?;
    let is_equal = matches!(relation, Relation::Equal { .. });
    let beyond = if is_beyond(first.value) { first } else { errors.find(|other| is_equal && other.value > OTHERS)? };
    Some(format!("'{}' has a '{}' of {}, with which its check fails", pass.cell, beyond.metric, beyond.value))
}

/// A row that stands twice, or one that is missing between others.
fn twice(run: &Recorded) -> Option<String> {
    let mut passes = BTreeSet::new();
    if let Some(pass) = run.passes.iter().find(|pass| !passes.insert((&pass.cell, pass.pass, pass.round))) {
        return Some(format!("'{}' has round {} of its {} passes twice", pass.cell, pass.round, pass.pass));
    }
    run.passes.iter().find_map(|pass| {
        by_metric(run, pass).into_iter().find_map(|(name, (_, samples))| {
            let numbers: BTreeSet<u32> = samples.iter().map(|sample| sample.sample).collect();
            // A figure that is counted once may be corrected once.
            let is_twice = numbers.len() > 1 && numbers.len() < samples.len()
                || samples
                    .windows(2)
                    .any(|two| two[0].sample == two[1].sample && two[0].value == two[1].value && two[0].value != 0.0);
            let has_gap = numbers.len() > 1
                && numbers.last().zip(numbers.first()).is_some_and(|(last, first)| (last - first) as usize >= numbers.len());
            let how = if is_twice { "rows that stand twice" } else { "rows that are missing" };
            (is_twice || has_gap)
                .then(|| format!("'{}' has {how} of '{name}' in round {} of its {} passes", pass.cell, pass.round, pass.pass))
        })
    })
}

/// Rounds that have fewer times than others.
fn uneven(run: &Recorded) -> Option<String> {
    let mut counts: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
    for pass in run.passes.iter().filter(|pass| pass.status == Status::Ok) {
        for (name, (_, samples)) in by_metric(run, pass).into_iter().filter(|(_, (metric, _))| metric.unit == "s") {
            counts.entry((&pass.cell, pass.pass, name)).or_default().insert(samples.len());
        }
    }
    let ((cell, kind, name), counts) = counts.into_iter().find(|(_, counts)| counts.len() > 1)?;
    Some(format!("'{cell}' has {counts:?} rows of '{name}' in rounds of its {kind} passes"))
}
