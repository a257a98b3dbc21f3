//! `--check`: a rehearsal held against an earlier one, as a test of memory.

use super::diff::{PeakDiff, diff, requested, signed, without_folder};
use super::files::save;
use crate::answer::{Answer, BlockGroup, answer, moment};
use crate::capture::plain::on_one_line;
use crate::capture::process::{Fill, INSTALLED};
use crate::capture::session::Capture;
use crate::explore::ci::FigureRow;
use crate::explore::versions::Figure;
use crate::words::{bytes, short};
use anyhow::{Context, Result, bail, ensure};
use base::units::{Bytes, thousands};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// What came of a comparison.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Compared {
    pub grew: bool,
    /// By how much each figure did, and the line with most of it.
    pub first: String,
    #[serde(skip)]
    pub text: String,
    /// Where what grew is.
    pub difference: Option<PeakDiff>,
}

/// What `--json` writes of a rehearsal.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Checked<'a> {
    #[serde(flatten)]
    pub answer: &'a Answer,
    /// What came of `--check`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<&'a Compared>,
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

/// Lines of a difference that are listed.
const LINES: usize = 8;

/// How a capture begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// In a kept answer, groups of blocks of less than this part of the peak are one for each category.
const SMALL_PART: i64 = 1000;

/// As much of an earlier answer as is compared; this by itself is what `--update` keeps.
#[derive(Debug, Deserialize, Serialize)]
pub struct Earlier {
    /// Whether small groups of blocks were put together.
    #[serde(default)]
    is_short: bool,
    gpu: EarlierGpu,
    #[serde(default)]
    pub(crate) verdict: String,
    pub(crate) peak_allocated: i64,
    pub(crate) peak_reserved: i64,
    #[serde(default)]
    pub(crate) needs_at_least: Option<i64>,
    #[serde(default, skip_serializing)]
    time: Option<EarlierTime>,
    #[serde(default, skip_serializing)]
    pub(crate) serves: Option<EarlierServer>,
    processes: Vec<EarlierProcess>,
}

#[derive(Debug, Deserialize)]
pub struct EarlierTime {
    step_seconds: f64,
}

/// What a server has for keys and values, and what its engine takes off before.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, schemars::JsonSchema)]
pub struct EarlierServer {
    pub(crate) kv_cache: i64,
    pub(crate) tokens: Option<i64>,
    #[serde(default)]
    beside: Vec<Fill>,
    #[serde(default, skip_serializing)]
    token_times: Vec<EarlierTokens>,
}

/// A decoding step of so many requests.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, schemars::JsonSchema)]
struct EarlierTokens {
    seconds: f64,
}

#[derive(Debug, Deserialize, Serialize)]
struct EarlierGpu {
    name: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct EarlierProcess {
    torch: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    packages: BTreeMap<String, String>,
    peak: EarlierPeak,
}

#[derive(Debug, Deserialize, Serialize)]
struct EarlierPeak {
    step: u32,
    phase: String,
    #[serde(default)]
    pass: i64,
    contents: Vec<BlockGroup>,
}

impl EarlierServer {
    pub(crate) fn tokens_said(&self) -> String {
        self.tokens.map_or("-".to_string(), |tokens| thousands(tokens.unsigned_abs()))
    }

    /// What a later one has more or less of the card: the KV cache first, then what the engine takes off before it.
    fn parts(&self, later: &EarlierServer) -> Vec<(String, i64)> {
        let mut changes: BTreeMap<&str, i64> = BTreeMap::new();
        for (sign, server) in [(-1, self), (1, later)] {
            server.beside.iter().for_each(|fill| *changes.entry(&fill.what).or_default() += sign * fill.bytes);
        }
        let mut parts: Vec<(String, i64)> = changes.into_iter().map(|(what, change)| (what.to_string(), change)).collect();
        parts.retain(|(_, change)| change.abs() >= 1 << 20);
        parts.sort_by_key(|(_, change)| -change.abs());
        parts.insert(0, ("KV cache".to_string(), later.kv_cache - self.kv_cache));
        parts
    }

    fn bytes_of_a_token(&self) -> Option<i64> {
        Some(self.kv_cache / self.tokens.filter(|tokens| *tokens > 0)?)
    }
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
        let bytes = fs::read(path)
            .with_context(|| format!("reading {}; vramlab rehearse --check {0} --update writes it", path.display()))?;
        let mut read: Earlier = if bytes.starts_with(&GZIP) {
            let capture = Capture::open(path)?;
            let mut answer = answer(&capture)?;
            answer.add(&capture.found, &capture.card);
            Earlier::of(&answer)?
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

    /// Of an answer of today.
    fn of(answer: &Answer) -> Result<Earlier> {
        Ok(serde_json::from_value(serde_json::to_value(answer)?)?)
    }

    /// Writes what later rehearsals are compared with: small, a group of blocks a line, and the same on every machine.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(answer: &Answer, path: &Path) -> Result<()> {
        let mut kept = Earlier::of(answer)?;
        let here = std::env::current_dir().unwrap_or_default();
        let here = format!("{}/", here.display());
        let portable = |line: &str| match INSTALLED.iter().find_map(|folder| line.split_once(*folder)) {
            Some((_, package)) => format!("{}{package}", INSTALLED[0].trim_start_matches('/')),
            None => line.strip_prefix(&here).unwrap_or_else(|| without_folder(line)).to_string(),
        };
        kept.is_short = true;
        // The one that needs most is compared.
        kept.processes.truncate(1);
        for EarlierPeak { contents, .. } in kept.processes.iter_mut().map(|process| &mut process.peak) {
            *contents = together(contents, kept.peak_allocated / SMALL_PART, |_| false);
            for group in contents.iter_mut() {
                group.line = portable(&group.line);
                let freed = group.freed.take();
                group.freed =
                    freed.map(|at| at.split_once(", ").map_or(at.clone(), |(phase, line)| format!("{phase}, {}", portable(line))));
            }
            contents.sort_by_cached_key(|group| (-group.allocated, -group.bytes, group.line.clone(), group.operator.clone()));
        }
        let text = serde_json::to_string(&kept)?.replace("{\"line\"", "\n{\"line\"") + "\n";
        save(path, |file| Ok(std::io::Write::write_all(file, text.as_bytes())?))
    }

    /// Of a step, of a server a decoding one of as many requests as were predicted; predicted.
    pub(crate) fn step_seconds(&self) -> Option<f64> {
        match &self.serves {
            Some(server) => Some(server.token_times.last()?.seconds),
            None => Some(self.time.as_ref()?.step_seconds),
        }
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
        let (mut was, mut is) = (of(self)?, of(later)?);
        // What one of them has put together is put together in the other.
        let least = self.peak_allocated / SMALL_PART;
        if self.is_short {
            is = together(&is, least, |group| was.iter().any(|other| is_same_line(group, other)));
        } else if later.is_short {
            was = together(&was, least, |group| is.iter().any(|other| is_same_line(group, other)));
        }
        let figures = Figure::ALL.map(|figure| FigureRow { figure, before: figure.of(self), after: figure.of(later), grew: false });
        let servers = self.serves.as_ref().zip(later.serves.as_ref());
        let parts = servers.map_or_else(Vec::new, |(was, is)| was.parts(is));
        let token = servers.and_then(|(was, is)| was.bytes_of_a_token().zip(is.bytes_of_a_token()));
        Ok(PeakDiff { figures: figures.into(), parts, token, ..diff(&was, &is) })
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
    ///
    /// # Errors
    /// The answer cannot be read as an earlier one.
    pub fn compare(&self, now: &Answer, tolerance: Tolerance) -> Result<Compared> {
        let now = Earlier::of(now)?;
        let (mut text, mut grew, mut changes) = (String::new(), false, Vec::new());
        for figure in [Figure::Allocated, Figure::Reserved, Figure::Needs] {
            let (Some(before), Some(after)) = (figure.of(self), figure.of(&now)) else { continue };
            let more = after - before > tolerance.of(before);
            grew |= more;
            let (change, grown) = (signed(after - before), if more { "  GREW" } else { "" });
            let name = if figure == Figure::Needs { "needs".to_string() } else { format!("peak {figure}") };
            let _ = writeln!(text, "  {name:<15} {before:>15} B -> {after:>15} B  {change}{grown}");
            changes.push(format!("{figure} {change}"));
        }
        let difference = grew.then(|| self.difference(&now).ok()).flatten();
        if let (Some(before), Some(after)) = (self.processes.first(), now.processes.first()) {
            if (&before.peak.phase, before.peak.step) != (&after.peak.phase, after.peak.step) {
                let (was, is) = (before.peak.moment(), after.peak.moment());
                let _ = writeln!(text, "  The peak was {was} and is {is}.");
            }
            if before.torch != after.torch {
                let _ = writeln!(text, "  The earlier answer is of PyTorch {}, this one of PyTorch {}.", before.torch, after.torch);
            }
            if let Some(difference) = &difference {
                let (was, is, change) = (difference.before, difference.after, signed(difference.after - difference.before));
                text +=
                    &format!("\n  What lives at the peak, {} -> {}, {change}:\n{}", bytes(was), bytes(is), difference.brief(LINES));
            }
        }
        let verdict = if grew { "THE PEAK GREW" } else { "The peak did not grow" };
        let by = if tolerance.of(self.peak_reserved) > 0 { " by more than --tolerance allows" } else { "" };
        let most = difference.as_ref().and_then(PeakDiff::most);
        let most = most.map_or(String::new(), |(line, bytes)| format!("; most at {} ({})", short(&line), signed(bytes)));
        let first = format!("{}{by}: {}{most}", if grew { "GREW" } else { "DID NOT GROW" }, changes.join(", "));
        Ok(Compared { grew, first, text: format!("\n{verdict}{by}, compared with --check:\n{text}"), difference })
    }
}

/// Whether two groups are of one line, whatever its number, and of blocks of one kind.
fn is_same_line(a: &BlockGroup, b: &BlockGroup) -> bool {
    let of = |group: &BlockGroup| without_folder(&group.line).rsplit_once(':').map(|(file, _)| file.to_string());
    (a.bytes, &a.source, &a.operator, &a.category) == (b.bytes, &b.source, &b.operator, &b.category) && of(a) == of(b)
}

/// Groups of fewer bytes that are not known by themselves become one for each category.
fn together(groups: &[BlockGroup], least: i64, is_known: impl Fn(&BlockGroup) -> bool) -> Vec<BlockGroup> {
    let is_large = |group: &&BlockGroup| group.blocks == 0 || group.allocated >= least || is_known(group);
    let (mut large, small): (Vec<&BlockGroup>, Vec<&BlockGroup>) = groups.iter().partition(is_large);
    let mut sums: BTreeMap<&str, BlockGroup> = BTreeMap::new();
    for group in small {
        let sum = sums.entry(&group.category).or_insert_with(|| BlockGroup {
            line: "elsewhere".to_string(),
            source: Some("small blocks together".to_string()),
            module: "elsewhere".to_string(),
            category: group.category.clone(),
            blocks: 1,
            made: 1,
            ..BlockGroup::default()
        });
        sum.bytes += requested(group);
        sum.allocated += group.allocated;
    }
    large.extend(sums.values());
    large.into_iter().cloned().collect()
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

    pub fn of_a_server(self, serves: &str) -> Earlier {
        Earlier { serves: serde_json::from_str(serves).unwrap(), ..self }
    }
}
