//! Kernels that were timed one by one on a card: what `vramlab calibrate --for` asks of a rehearsal's step and writes, and what a prediction takes
//! of it: the row of a kernel where there is one, a value between two rows that differ by their batch alone, else nothing.

use super::calibrate::work_of;
use super::constants::SIMULATED;
use super::device::CardModel;
use super::predict::{HostModel, Stretch};
use crate::capture::process::Trace;
use crate::capture::work::{Work, WorkKind};
use anyhow::{Context, Result, ensure};
use sim::cards::Card;
use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

/// The first line of such a file. `samples` go through the model in the step, `count` times the kernel runs in it.
pub const HEADER: &str = "card,operator,kind,precision,direction,flags,alignment,flops,bytes,m,n,k,batch,groups,taps,stride,launches,\
                          samples,count,seconds,simulated";

/// Between rows further apart than this nothing is said.
const APART: f64 = 8.0;

/// What a kernel is but for its batch, and the batch.
type Key = ([u32; 10], u64);

/// By what a kernel is, how long it takes at each size of its batch.
#[derive(Debug, Default)]
pub struct Timed(HashMap<Key, BTreeMap<u64, f64>>);

/// A product may grow in its rows or, for a gradient, in what it sums over.
fn keys(work: &Work) -> Vec<(Key, u64)> {
    let Work { m, n, k, batch, groups, taps, launches, .. } = *work;
    let flags = flags(work) | u32::from(work.stride) << 8;
    let of = |sizes: [u32; 5], bytes: u64| {
        let [a, b, c, d, e] = sizes;
        (
            [work.kind as u32, work.precision as u32, u32::from(work.direction), flags, u32::from(work.alignment), a, b, c, d, e],
            bytes,
        )
    };
    let bytes = work.bytes.round() as u64;
    match work.kind {
        WorkKind::Matmul if batch > 1 => vec![(of([m, n, k, 0, 1], 0), batch.into())],
        WorkKind::Matmul => vec![(of([0, n, k, 0, 0], 0), m.into()), (of([m, n, 0, 0, 2], 0), k.into())],
        WorkKind::Attention | WorkKind::AttentionBackward => vec![(of([m, n, k, 0, 0], 0), batch.into())],
        WorkKind::Convolution => vec![(of([n, k, groups, taps.into(), 0], 0), m.into())],
        WorkKind::Recurrent => vec![(of([n, k, groups, batch, 0], 0), m.into())],
        // Rows of one length.
        WorkKind::Reduction if m > 0 => vec![(of([0; 5], bytes / u64::from(m)), bytes)],
        // What it sums over is not known.
        WorkKind::Reduction => vec![(of([0; 5], bytes), bytes)],
        _ => vec![(of([launches, 0, 0, 0, 0], 0), bytes)],
    }
}

fn flags(work: &Work) -> u32 {
    let bits = [
        (work.changes_layout, 4),
        (work.is_channels_last, 16),
        (work.is_transposed, 32),
        (work.is_volume, 64),
        (work.of_batch, 128),
    ];
    bits.into_iter().map(|(is_set, bit)| if is_set { bit } else { 0 }).sum()
}

impl Timed {
    /// A kernel's seconds, timed or between two that were.
    pub fn seconds(&self, work: &Work) -> Option<f64> {
        keys(work).into_iter().find_map(|(key, batch)| {
            let rows = self.0.get(&key)?;
            let (below, above) = (rows.range(..=batch).next_back()?, rows.range(batch..).next()?);
            let [(from, low), (to, high)] = [below, above].map(|(at, seconds)| (*at as f64, *seconds));
            let share = if to > from { (batch as f64 - from) / (to - from) } else { 0.0 };
            (to <= APART * from).then_some(low + share * (high - low))
        })
    }
}

static OWN: OnceLock<String> = OnceLock::new();

/// The rows of a file for the rest of the program's life, before those that came with it.
pub(super) fn use_rows(text: String) -> Result<()> {
    checked(&text)?;
    let _ = OWN.set(text);
    Ok(())
}

/// Those of a card.
pub fn of(card: &Card) -> Timed {
    let mut found = Timed::default();
    for text in [include_str!("kernels.csv"), OWN.get().map_or("", String::as_str)] {
        for row in rows(text).flatten().filter(|row| card.name == Some(row.card)) {
            for (key, batch) in keys(&row.work) {
                found.0.entry(key).or_default().insert(batch, row.seconds);
            }
        }
    }
    found
}

struct Row<'a> {
    card: &'a str,
    work: Work,
    seconds: f64,
}

fn rows(text: &str) -> impl Iterator<Item = Result<Row<'_>>> {
    let columns: Vec<&str> = HEADER.split(',').collect();
    text.lines().skip(1).map(move |line| {
        let row: HashMap<&str, &str> = columns.iter().copied().zip(line.split(',')).collect();
        let seconds = row.get("seconds").and_then(|seconds| seconds.parse::<f64>().ok()).filter(|seconds| *seconds > 0.0);
        let work = work_of(|name| row.get(name).copied());
        let (work, seconds) = work.zip(seconds).with_context(|| format!("'{line}' is no row of a kernel"))?;
        Ok(Row { card: row["card"], work, seconds })
    })
}

/// What is said of a file that somebody wants to send: of each card how many kernels it has.
///
/// # Errors
/// It is none that a real card wrote, or a kernel takes less than the card's specification allows.
pub fn checked(text: &str) -> Result<BTreeMap<String, usize>> {
    ensure!(text.lines().next() == Some(HEADER), "its first line is not '{HEADER}'");
    ensure!(!text.lines().skip(1).any(|line| line.ends_with(",1")), "it was written on {SIMULATED}");
    let mut found = BTreeMap::new();
    for row in rows(text) {
        let Row { card, work, seconds } = row?;
        let known: Card = card.parse().map_err(anyhow::Error::msg)?;
        let least = CardModel::of(&known).map_err(anyhow::Error::msg)?.least(&work);
        ensure!(seconds > 0.8 * least, "{card}: a kernel of {seconds:.3e} s would take {least:.3e} s at the card's peak");
        *found.entry(card.to_string()).or_default() += 1;
    }
    Ok(found)
}

/// The kernels of a step, or a pass, of a rehearsal, those that take longest first, as a file without times; each gradient of a convolution by itself.
pub fn of_step(trace: &Trace, card: &Card, steps: u32) -> Result<Vec<String>, String> {
    let device = CardModel::of(card)?;
    let stretch = Stretch::of(trace, &device, steps, HostModel::of(card, None))?;
    let device = device.over(stretch.works.iter().copied());
    let mut found: BTreeMap<String, (f64, u32)> = BTreeMap::new();
    for work in stretch.works.iter().filter(|work| work.kind != WorkKind::Copy) {
        let parts = if work.kind == WorkKind::Convolution && work.direction == 3 { vec![1, 2] } else { vec![work.direction] };
        let share = 1.0 / parts.len() as f64;
        for direction in parts {
            let one = Work { direction, flops: work.flops * share, bytes: work.bytes * share, ..**work };
            let operator = trace.operators.get(&work.operator).map_or("", |name| name.trim_start_matches("aten::"));
            let (kind, precision, flags) = (work.kind.name(), work.precision.name(), flags(work));
            let Work { alignment, flops, bytes, m, n, k, batch, groups, taps, stride, launches, .. } = one;
            let line = format!(
                "{operator},{kind},{precision},{direction},{flags},{alignment},{flops},{bytes},{m},{n},{k},{batch},{groups},{taps},{stride},{launches},{}",
                stretch.batch.0
            );
            let sum = found.entry(line).or_default();
            (sum.0, sum.1) = (sum.0 + device.takes(&one).seconds, sum.1 + 1);
        }
    }
    let mut rows: Vec<(String, (f64, u32))> = found.into_iter().collect();
    rows.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    Ok(rows.into_iter().map(|(line, (_, count))| format!(",{line},{count},,")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_its_row_or_one_between_two_of_its_batch() {
        let mut timed = Timed::default();
        for (m, seconds) in [(1024, 1e-4), (4096, 4e-4)] {
            keys(&Work::product(m, 512, 256)).into_iter().for_each(|(key, at)| {
                timed.0.entry(key).or_default().insert(at, seconds);
            });
        }
        let of = |m, n, k| timed.seconds(&Work::product(m, n, k));
        assert_eq!(of(1024, 512, 256), Some(1e-4));
        assert!((of(2048, 512, 256).unwrap() - 2e-4).abs() < 1e-9);
        for other in [of(8192, 512, 256), of(1024, 512, 128), of(1024, 256, 256)] {
            assert_eq!(other, None);
        }
    }
}
