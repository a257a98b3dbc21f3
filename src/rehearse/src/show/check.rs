//! `--check`: a rehearsal held against an earlier one, as a test of memory.

use super::diff::{PeakDiff, diff, signed};
use crate::answer::{Answer, BlockGroup, answer, moment};
use crate::capture::plain::on_one_line;
use crate::capture::session::Capture;
use crate::words::short;
use anyhow::{Context, Result, bail, ensure};
use base::units::Bytes;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// What came of a comparison.
#[derive(Debug)]
pub struct Compared {
    /// Whether a peak grew, by how much, and the line with most of it.
    pub first: String,
    pub text: String,
    pub grew: bool,
}

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
    pub fn of(self, bytes: i64) -> i64 {
        match self {
            Tolerance::Bytes(bytes) => bytes,
            Tolerance::Percent(percent) => (bytes as f64 * percent / 100.0) as i64,
        }
    }
}

/// More than all lines of all cards can hold together.
const MOST: i64 = 1 << 50;

/// How a capture begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// As much of an earlier answer as is compared.
#[derive(Debug, Deserialize)]
pub struct Earlier {
    gpu: EarlierGpu,
    #[serde(default)]
    pub(crate) verdict: String,
    pub(crate) peak_allocated: i64,
    pub(crate) peak_reserved: i64,
    #[serde(default)]
    pub(crate) needs_at_least: Option<i64>,
    #[serde(default)]
    pub(crate) time: Option<EarlierTime>,
    processes: Vec<EarlierProcess>,
}

#[derive(Debug, Deserialize)]
pub struct EarlierTime {
    pub(crate) step_seconds: f64,
}

#[derive(Debug, Deserialize)]
struct EarlierGpu {
    name: String,
}

#[derive(Debug, Deserialize)]
struct EarlierProcess {
    torch: String,
    #[serde(default)]
    packages: BTreeMap<String, String>,
    peak: EarlierPeak,
}

#[derive(Debug, Deserialize)]
struct EarlierPeak {
    step: u32,
    phase: String,
    #[serde(default)]
    pass: i64,
    contents: Vec<BlockGroup>,
}

impl EarlierPeak {
    fn moment(&self) -> String {
        moment(&self.phase, self.step, self.pass)
    }
}

impl Earlier {
    /// Reads what `--json` or `--keep` wrote.
    ///
    /// # Errors
    /// There is no such file, or it is no answer of a rehearsal.
    pub fn read(path: &Path) -> Result<Earlier> {
        let bytes =
            fs::read(path).with_context(|| format!("reading {}; make it by vramlab rehearse --json {0}", path.display()))?;
        let mut read: Earlier = if bytes.starts_with(&GZIP) {
            let capture = Capture::open(path)?;
            let mut answer = answer(&capture)?;
            answer.add(&capture.found, &capture.card);
            serde_json::from_value(serde_json::to_value(answer)?)?
        } else {
            let what =
                "neither an answer of vramlab rehearse --json nor a capture of --keep, or of an earlier vramlab: rehearse it again";
            serde_json::from_slice(&bytes).with_context(|| format!("{} is {what}", path.display()))?
        };
        let contents = read.processes.iter().flat_map(|process| &process.peak.contents);
        let bytes = contents.flat_map(|group| [group.bytes, group.allocated]);
        ensure!(
            [read.peak_allocated, read.peak_reserved].into_iter().chain(bytes).all(|bytes| (0..=MOST).contains(&bytes)),
            "{} has bytes that no card has",
            path.display()
        );
        // It may come from anywhere, and is shown.
        for process in &mut read.processes {
            (process.torch, process.peak.phase) = (on_one_line(&process.torch), on_one_line(&process.peak.phase));
            for group in &mut process.peak.contents {
                let texts = [&mut group.line, &mut group.function, &mut group.module, &mut group.category, &mut group.operator];
                let texts = texts.into_iter().chain(&mut group.source).chain(&mut group.freed);
                texts.for_each(|text| *text = on_one_line(text));
            }
        }
        read.gpu.name = on_one_line(&read.gpu.name);
        Ok(read)
    }

    /// Versions of the packages that were asked for, of each process.
    pub(crate) fn versions(&self) -> impl Iterator<Item = &BTreeMap<String, String>> {
        self.processes.iter().map(|process| &process.packages)
    }

    /// Another card's answer says nothing of this one's: peaks differ by what PyTorch and its libraries choose for it.
    ///
    /// # Errors
    /// The earlier answer is of another card; with both.
    pub fn is_of(&self, gpu: &str) -> Result<()> {
        let (earlier, now) = (&self.gpu.name, on_one_line(gpu));
        ensure!(*earlier == now, "--check: the earlier answer is of {earlier}, and this is {now}: name the same with --gpu");
        Ok(())
    }

    /// Where the difference to a later answer's peak comes from, of the process that needs most.
    ///
    /// # Errors
    /// An answer of an earlier version does not say what its peak holds.
    pub fn difference(&self, later: &Earlier) -> Result<PeakDiff> {
        let of = |answer: &Earlier| match answer.processes.first() {
            Some(process) if !process.peak.contents.is_empty() => Ok(process.peak.contents.clone()),
            _ => bail!(
                "an answer does not say what lives at its peak: it is of an earlier vramlab, or of a script that used no GPU; rehearse it again"
            ),
        };
        Ok(diff(&of(self)?, &of(later)?))
    }

    /// What the two are of.
    pub fn heading(&self, later: &Earlier) -> String {
        let of = |answer: &Earlier| {
            let process = answer.processes.first();
            let (torch, at) = process.map_or(("", String::new()), |process| (process.torch.as_str(), process.peak.moment()));
            let ended =
                if answer.verdict == "does_not_fit" { "; out of memory, so that what comes later is not in it" } else { "" };
            format!("peak allocated {} B, {at}; PyTorch {torch}, {}{ended}", answer.peak_allocated, answer.gpu.name)
        };
        format!("  before: {}\n  after:  {}\n", of(self), of(later))
    }

    /// Whether a peak grew by more than is allowed, and where.
    pub fn compare(&self, now: &Answer, tolerance: Tolerance) -> Compared {
        let mut text = String::new();
        let mut grew = false;
        for (name, before, after) in
            [("allocated", self.peak_allocated, now.peak_allocated), ("reserved", self.peak_reserved, now.peak_reserved)]
        {
            let more = after - before > tolerance.of(before);
            grew |= more;
            let (change, grown) = (signed(after - before), if more { "  GREW" } else { "" });
            let _ = writeln!(text, "  peak {name:<10} {before:>15} B -> {after:>15} B  {change}{grown}");
        }
        if let (Some(before), Some(after)) = (self.processes.first(), now.processes.first()) {
            if (before.peak.phase.as_str(), before.peak.step) != (after.peak.phase, after.peak.step) {
                let (was, is) = (before.peak.moment(), moment(after.peak.phase, after.peak.step, after.peak.pass));
                let _ = writeln!(text, "  The peak was {was} and is {is}.");
            }
            if before.torch != after.torch {
                let _ = writeln!(text, "  The earlier answer is of PyTorch {}, this one of PyTorch {}.", before.torch, after.torch);
            }
            if grew {
                text += &format!("\n  What lives at the peak:\n{}", diff(&before.peak.contents, &after.peak.contents).text());
            }
        }
        let verdict = if grew { "THE PEAK GREW" } else { "The peak did not grow" };
        let by = if tolerance.of(self.peak_reserved) > 0 { " by more than --tolerance allows" } else { "" };
        let changes = [("allocated", self.peak_allocated, now.peak_allocated), ("reserved", self.peak_reserved, now.peak_reserved)];
        let changes = changes
            .map(|(name, before, after)| format!("{name} {}{}", if after < before { "" } else { "+" }, signed(after - before)));
        let most = match (self.processes.first(), now.processes.first()) {
            (Some(before), Some(after)) if grew => diff(&before.peak.contents, &after.peak.contents).most(),
            _ => None,
        };
        let most = most.map_or(String::new(), |(line, bytes)| format!("; most at {} (+{})", short(&line), signed(bytes)));
        let first = format!("{}{by}: {}{most}", if grew { "GREW" } else { "DID NOT GROW" }, changes.join(", "));
        Compared { first, text: format!("\n{verdict}{by}, compared with --check:\n{text}"), grew }
    }
}

#[cfg(test)]
impl Earlier {
    pub fn of_one_line(bytes: i64, verdict: &str) -> Earlier {
        let group = format!(
            r#"{{"line":"/a/t.py:{bytes}","function":"forward","source":"y = f(x)","module":"Net","category":"activations",
            "operator":"aten::mm","bytes":{bytes},"blocks":1,"allocated":{bytes},"made":1}}"#
        );
        let text = format!(
            r#"{{"gpu":{{"name":"t4"}},"verdict":"{verdict}","peak_allocated":{bytes},"peak_reserved":{bytes},"needs_at_least":null,
            "processes":[{{"torch":"2.9","peak":{{"step":1,"phase":"forward","lines":[],"contents":[{group}]}}}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }
}
