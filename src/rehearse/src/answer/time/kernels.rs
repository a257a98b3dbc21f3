//! Kernels that were timed one by one on a card, and what a prediction takes of them: the row of a kernel where there is one, a value between two rows that differ by their batch alone, else nothing.

use crate::capture::work::{Precision, Work, WorkKind};
use anyhow::{Context, Result};
use sim::cards::Card;
use sim::trace::Phase;
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

pub(super) fn flags(work: &Work) -> u32 {
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
pub(super) fn use_rows(text: String) {
    let _ = OWN.set(text);
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

pub(super) struct Row<'a> {
    pub card: &'a str,
    pub work: Work,
    pub seconds: f64,
}

pub(super) fn rows(text: &str) -> impl Iterator<Item = Result<Row<'_>>> {
    let columns: Vec<&str> = HEADER.split(',').collect();
    text.lines().skip(1).map(move |line| {
        let row: HashMap<&str, &str> = columns.iter().copied().zip(line.split(',')).collect();
        let seconds = row.get("seconds").and_then(|seconds| seconds.parse::<f64>().ok()).filter(|seconds| *seconds > 0.0);
        let work = work_of(|name| row.get(name).copied());
        let (work, seconds) = work.zip(seconds).with_context(|| format!("'{line}' is no row of a kernel"))?;
        Ok(Row { card: row["card"], work, seconds })
    })
}

/// An operator of a row, by the names of its columns.
pub fn work_of<'a>(column: impl Fn(&str) -> Option<&'a str>) -> Option<Work> {
    let integer = |name: &str| column(name)?.parse::<u32>().ok();
    let number = |name: &str| column(name)?.parse::<f64>().ok();
    let (direction, flags) = (u8::try_from(integer("direction")?).ok()?, integer("flags")?);
    let goes_back = direction != 0 || column("operator").is_some_and(|name| name.contains("backward"));
    Some(Work {
        kind: WorkKind::named(column("kind")?)?,
        precision: Precision::named(column("precision")?)?,
        phase: if goes_back { Phase::Backward } else { Phase::Forward },
        changes_layout: flags & 4 != 0,
        is_channels_last: flags & 16 != 0,
        is_transposed: flags & 32 != 0,
        is_volume: flags & 64 != 0,
        // Of records of before the operator's name alone tells it.
        of_batch: flags & 128 != 0 || goes_back && column("operator").is_some_and(|name| name.contains("batch_norm")),
        alignment: u16::try_from(integer("alignment")?).ok()?,
        launches: integer("launches")?,
        flops: number("flops")?,
        bytes: number("bytes")?,
        m: integer("m")?,
        n: integer("n")?,
        k: integer("k")?,
        batch: integer("batch").unwrap_or(1),
        groups: integer("groups")?,
        taps: u16::try_from(integer("taps")?).ok()?,
        direction,
        stride: u8::try_from(integer("stride").unwrap_or(0)).ok()?,
        ..Work::default()
    })
}
