//! `--check`: a rehearsal held against an earlier one, as a test of memory.

use super::answer::{Answer, Held};
use crate::units::Bytes;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// How much a peak may grow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tolerance {
    Bytes(i64),
    Percent(f64),
}

impl FromStr for Tolerance {
    type Err = String;

    fn from_str(text: &str) -> Result<Tolerance, String> {
        match text.trim().strip_suffix('%') {
            Some(number) => match number.trim().parse::<f64>() {
                Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(Tolerance::Percent(percent)),
                _ => Err(format!("'{text}' is no share; write it like 2%, or a size like 64MiB")),
            },
            None => Ok(Tolerance::Bytes(i64::try_from(text.parse::<Bytes>()?.0).map_err(|e| e.to_string())?)),
        }
    }
}

impl Tolerance {
    fn of(self, bytes: i64) -> i64 {
        match self {
            Tolerance::Bytes(bytes) => bytes,
            Tolerance::Percent(percent) => (bytes as f64 * percent / 100.0) as i64,
        }
    }
}

/// As much of an earlier answer as is compared.
#[derive(Debug, Deserialize)]
pub struct Earlier {
    peak_allocated: i64,
    peak_reserved: i64,
    processes: Vec<EarlierProcess>,
}

#[derive(Debug, Deserialize)]
struct EarlierProcess {
    peak: EarlierPeak,
}

#[derive(Debug, Deserialize)]
struct EarlierPeak {
    lines: Vec<Held>,
}

impl Earlier {
    /// Reads what `--json` wrote.
    ///
    /// # Errors
    /// There is no such file, or it is no answer of a rehearsal.
    pub fn read(path: &Path) -> Result<Earlier> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("--check: reading {}; make it by vramlab rehearse --json {0}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("--check: {} is no answer of vramlab rehearse --json", path.display()))
    }

    /// What to say, and whether a peak grew by more than is allowed.
    pub fn compare(&self, now: &Answer, tolerance: Tolerance) -> (String, bool) {
        let mut text = String::new();
        let mut grew = false;
        for (name, before, after) in
            [("allocated", self.peak_allocated, now.peak_allocated), ("reserved", self.peak_reserved, now.peak_reserved)]
        {
            let more = after - before > tolerance.of(before);
            grew |= more;
            let sign = if after < before { "-" } else { "+" };
            let change = Bytes((after - before).unsigned_abs());
            let _ = writeln!(
                text,
                "  peak {name:<10} {before:>15} B -> {after:>15} B  {sign}{change}{}",
                if more { "  GREW" } else { "" }
            );
        }
        let lines = |held: Option<&Vec<Held>>| by_line(held.map_or(&[], Vec::as_slice));
        let before = lines(self.processes.first().map(|process| &process.peak.lines));
        let after = lines(now.processes.first().map(|process| &process.peak.lines));
        let mut changes: Vec<(&String, i64, i64)> = after
            .iter()
            .map(|(line, bytes)| (line, before.get(line).copied().unwrap_or(0), *bytes))
            .filter(|(_, before, after)| after > before)
            .collect();
        changes.sort_by_key(|(_, before, after)| before - after);
        if grew && !changes.is_empty() {
            let _ = writeln!(text, "\n  Lines that hold more at the peak than they did:");
            for (line, before, after) in changes {
                let _ = writeln!(
                    text,
                    "    +{:>10}  {line}  ({} before)",
                    Bytes((after - before).unsigned_abs()).to_string(),
                    Bytes(before.unsigned_abs())
                );
            }
        }
        let verdict = if grew { "THE PEAK GREW by more than --tolerance allows" } else { "The peak did not grow" };
        (format!("\n{verdict}, compared with --check:\n{text}"), grew)
    }
}

/// By file and line without the folder, which is another one on another machine.
fn by_line(held: &[Held]) -> BTreeMap<String, i64> {
    let mut lines = BTreeMap::new();
    for held in held {
        let name = held.name.rsplit('/').next().unwrap_or(&held.name);
        *lines.entry(name.to_string()).or_insert(0) += held.bytes;
    }
    lines
}
