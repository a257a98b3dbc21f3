//! Files of `vramlab calibrate`: what `--for` asks of a rehearsal's step, what is said of one that somebody wants to send, and its use.

use super::constants;
use super::device::CardModel;
use super::kernels::{self, HEADER, Row, flags, rows};
use super::stretch::{HostModel, Stretch};
use crate::capture::process::Trace;
use crate::capture::work::{Work, WorkKind};
use anyhow::{Context, Result, ensure};
use sim::cards::Card;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The script that times a list of kernels, for the Python whose PyTorch sees the GPU.
pub const SCRIPT: &str = include_str!("kernels.py");

/// Constants, or kernels, of a file of `vramlab calibrate` come before those that the program has, for the rest of its life.
///
/// # Errors
/// The file cannot be read, or is no such file.
pub fn use_file(path: &Path) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    if text.starts_with(kernels::HEADER) {
        checked(&text).with_context(|| format!("{} has not what a card wrote", path.display()))?;
        kernels::use_rows(text);
        return Ok(());
    }
    constants::use_text(&text).with_context(|| format!("{} is no file of vramlab calibrate", path.display()))
}

/// What is said of a file that somebody wants to send: of each card how many kernels it has.
///
/// # Errors
/// It is none that a real card wrote, or a kernel takes less than the card's specification allows.
pub fn checked(text: &str) -> Result<BTreeMap<String, usize>> {
    ensure!(text.lines().next() == Some(HEADER), "its first line is not '{HEADER}'");
    ensure!(
        !text.lines().skip(1).any(|line| line.ends_with(",1")),
        "it was written on a simulated GPU, whose times mean nothing: run vramlab calibrate on a real one"
    );
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
    let stretch = Stretch::of(trace, card, &device, steps, HostModel::of(None))?;
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
