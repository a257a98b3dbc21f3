//! What a script takes with each version: a table, a picture, and what made it jump.

use super::figure::{Changed, Figure};
use super::ranges::Pin;
use super::trial::Trial;
use crate::capture::plain::on_one_line;
use crate::check::{Earlier, EarlierServer};
use crate::diff::PeakDiff;
use crate::words::{bytes, signed_or_dash};
use anyhow::Result;
use base::units::{Bytes, Seconds};
use chart::{Bar, Head, WIDE, bars};
use serde::Serialize;
use std::fmt::Write;

/// A version, and what became of the script with it.
#[derive(Debug, Default, Serialize, schemars::JsonSchema)]
pub struct VersionRow {
    pub pins: Vec<Pin>,
    /// Why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    pub peak_allocated: Option<i64>,
    pub peak_reserved: Option<i64>,
    pub needs_at_least: Option<i64>,
    /// Of a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serves: Option<EarlierServer>,
    /// Predicted.
    pub step_seconds: Option<f64>,
    /// Against the row before that has figures and differs by one package.
    pub changes: Vec<Changed>,
    /// What made it jump, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jump: Option<PeakDiff>,
    /// The row that it is held against.
    #[serde(skip)]
    before: Option<usize>,
}

/// A change of this part is explained.
pub const JUMP: f64 = 0.05;
/// Less is said to be none.
const SAME: f64 = 5e-4;
/// Lines of a jump that the table shows.
const LINES: usize = 3;

/// All rows, on a card.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Table {
    pub gpu: String,
    pub command: Vec<String>,
    pub rows: Vec<VersionRow>,
}

impl VersionRow {
    /// As files are named.
    fn name(&self) -> String {
        let names: Vec<String> = self.pins.iter().map(|pin| format!("{}-{}", pin.package, pin.version)).collect();
        names.join("_").replace(['[', ']', ','], "-")
    }

    /// The change of the peak that was allocated, of a server that of its tokens, and beside it what jumped more.
    fn changed(&self) -> String {
        let first = [Figure::Tokens, Figure::Allocated].into_iter();
        let allocated = first.filter_map(|figure| self.changes.iter().find(|changed| changed.figure == figure)).next();
        let Some(allocated) = allocated else { return String::new() };
        let size = |changed: &&Changed| changed.change.abs();
        let most = self.changes.iter().filter(|changed| size(changed) >= JUMP).max_by(|a, b| size(a).total_cmp(&size(b)));
        match most {
            Some(most) if allocated.change.abs() < JUMP => most.said(),
            _ if allocated.change.abs() < SAME => "same".to_string(),
            _ => format!("{:+.1} %", allocated.change * 100.0),
        }
    }

    /// What differs from others: of one package alone its version.
    fn title(&self) -> String {
        self.pins.iter().map(|pin| format!("{} {}", pin.package, pin.version)).collect::<Vec<String>>().join(", ")
    }
}

/// A row for each combination of versions, of what `rehearse` gives by its name; the inner error is why there are no figures.
///
/// # Errors
/// The run was ended.
pub fn rows(
    wanted: Vec<Vec<Pin>>,
    mut rehearse: impl FnMut(&str, &[Pin]) -> Result<Result<Earlier>>,
    progress: fn(&str),
) -> Result<Vec<VersionRow>> {
    let (count, mut rows, mut answers) = (wanted.len(), Vec::<VersionRow>::new(), Vec::<Option<Earlier>>::new());
    for (at, pins) in wanted.into_iter().enumerate() {
        let mut row = VersionRow { pins, ..VersionRow::default() };
        let (name, title) = (row.name(), row.title());
        progress(&format!("{title} ({} of {count})", at + 1));
        let answer = match rehearse(&name, &row.pins)? {
            Ok(answer) => Some(answer),
            Err(why) => {
                let why = on_one_line(&format!("{why:#}"));
                progress(&format!("{title}: {why}"));
                row.missing = Some(why);
                None
            }
        };
        if let Some(now) = &answer {
            (row.verdict, row.step_seconds) = (Some(now.verdict.clone()), now.step_seconds());
            (row.peak_allocated, row.peak_reserved) = (Some(now.peak_allocated), Some(now.peak_reserved));
            (row.needs_at_least, row.serves) = (now.needs_at_least, now.serves.clone());
            let differ = |other: &VersionRow| other.pins.iter().zip(&row.pins).filter(|(a, b)| a != b).count() == 1;
            row.before = (0..rows.len()).rev().find(|at| answers[*at].is_some() && differ(&rows[*at]));
            if let Some(before) = row.before.and_then(|at| answers[at].as_ref()) {
                // Where one of them did not come to its end, their peaks are of other moments.
                if before.verdict != "does_not_fit" && now.verdict != "does_not_fit" {
                    row.changes = Figure::ALL.into_iter().filter_map(|figure| figure.change(before, now)).collect();
                    let jumps = row.changes.iter().any(|changed| changed.change.abs() >= JUMP);
                    row.jump = jumps.then(|| before.difference(now).ok()).flatten();
                }
            }
        }
        answers.push(answer);
        rows.push(row);
    }
    Ok(rows)
}

impl Table {
    /// Of what a trial rehearsed.
    pub fn new(trial: &Trial, gpu: &str, rows: Vec<VersionRow>) -> Table {
        let words = trial.base.words.iter().map(|word| word.to_string_lossy().into_owned());
        Table {
            gpu: gpu.to_string(),
            command: [trial.base.python.to_string_lossy().into_owned()].into_iter().chain(words).collect(),
            rows,
        }
    }

    /// Whether any version was rehearsed.
    pub fn has_figures(&self) -> bool {
        self.rows.iter().any(|row| row.verdict.is_some())
    }

    pub fn text(&self) -> String {
        let width = self.rows.iter().map(|row| row.title().len()).max().unwrap_or(0).max(7);
        // A server's allocator fills the card with every version.
        let serves = self.rows.iter().any(|row| row.serves.is_some());
        let heads = if serves { ["KV cache", "tokens"] } else { ["allocated", "reserved"] };
        let mut text = format!(
            "  {:<width$}  {:>11}  {:>11}  {:>11}  {:>9}  {:>8}\n",
            "version", heads[0], heads[1], "needs", "step", "change"
        );
        for row in &self.rows {
            let title = row.title();
            if let Some(why) = &row.missing {
                let _ = writeln!(text, "  {title:<width$}  {why}");
                continue;
            }
            let change = row.changed();
            let verdict = if row.verdict.as_deref() == Some("does_not_fit") { "  does not fit" } else { "" };
            let time = row.step_seconds.map_or("-".to_string(), |seconds| Seconds(seconds).to_string());
            let needs = signed_or_dash(row.needs_at_least);
            let [first, second] = match &row.serves {
                Some(server) => [bytes(server.kv_cache), server.tokens_said()],
                None if serves => ["-".to_string(), "-".to_string()],
                None => [row.peak_allocated, row.peak_reserved].map(signed_or_dash),
            };
            let line = format!("  {title:<width$}  {first:>11}  {second:>11}  {needs:>11}  {time:>9}  {change:>8}{verdict}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        for row in &self.rows {
            if let (Some(jump), Some(before)) = (&row.jump, row.before) {
                let jumps: Vec<String> =
                    row.changes.iter().filter(|changed| changed.change.abs() >= JUMP).map(Changed::said).collect();
                let _ = writeln!(text, "\n  {} -> {}: {}", self.rows[before].title(), row.title(), jumps.join(", "));
                text += &match jump.rows.is_empty() && jump.parts.is_empty() {
                    true => "    The peak holds the same blocks, line by line: the allocator or the work of the step differs.\n"
                        .to_string(),
                    false => jump.brief(LINES),
                };
            }
        }
        let _ = writeln!(text, "\n  On {}. Peaks are the allocator's; the time of a step is predicted.", self.gpu);
        text
    }

    /// As an SVG document.
    pub fn picture(&self) -> Result<String> {
        let bar = |row: &VersionRow| {
            let change = Some(row.changed()).filter(|said| !said.is_empty()).map_or(String::new(), |said| format!(", {said}"));
            let bytes = row.peak_allocated?.unsigned_abs();
            Some(Bar {
                name: row.title(),
                bytes,
                figures: format!("{}{change}", Bytes(bytes)),
                look: usize::from(row.jump.is_some()),
                is_hatched: row.verdict.as_deref() == Some("does_not_fit"),
            })
        };
        let head = Head::new("Peak memory by version", &format!("Most bytes allocated at once, on {}.", self.gpu), WIDE);
        bars(&head, &self.rows.iter().filter_map(bar).collect::<Vec<Bar>>(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{anyhow, bail};

    #[test]
    fn each_version_has_a_row_a_jump_its_lines_and_what_is_missing_its_reason() {
        let pins = |versions: &[&str]| -> Vec<Vec<Pin>> {
            versions.iter().map(|version| vec![Pin { package: "pkg".into(), version: version.to_string() }]).collect()
        };
        let rehearse = |name: &str, _: &[Pin]| {
            Ok(match name {
                "pkg-1" => Ok(Earlier::of_one_line(1000 << 20, "fits")),
                "pkg-2" => Err(anyhow!("no wheel\nfor this Python")),
                "pkg-3" => Ok(Earlier::of_one_line(1500 << 20, "fits")),
                "pkg-4" => Ok(Earlier::of_one_line(1510 << 20, "fits")),
                "pkg-5" => Ok(Earlier::of_one_line(9000 << 20, "does_not_fit")),
                _ => bail!("interrupted"),
            })
        };
        let found = rows(pins(&["1", "2", "3", "4", "5"]), rehearse, |_| {}).unwrap();
        let table = Table { gpu: "t4".into(), command: Vec::new(), rows: found };
        let text = table.text();
        for line in [
            "pkg 2    no wheel",
            "+50.0 %",
            "+0.7 %",
            "does not fit",
            "pkg 1 -> pkg 3: allocated +50.0 %, reserved +50.0 %",
            "+500 MiB  larger         t.py",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert_eq!(text.matches(" -> pkg ").count(), 1, "{text}");
        assert!(table.rows[4].changes.is_empty(), "what ran out of memory has no peak to compare");
        let picture = table.picture().unwrap();
        assert!(picture.contains("pkg 4") && !picture.contains("pkg 2"), "{picture}");
        assert!(rows(pins(&["3", "6"]), rehearse, |_| {}).unwrap_err().to_string().contains("interrupted"));
    }

    #[test]
    fn a_servers_row_has_its_kv_cache() {
        let answer = |tokens: i64, kv_cache: i64, graphs: i64| {
            let beside =
                format!(r#"[{{"what":"weights","bytes":1000000000}},{{"what":"CUDA graphs as estimated","bytes":{graphs}}}]"#);
            let serves = format!(
                r#"{{"kv_cache":{kv_cache},"tokens":{tokens},"beside":{beside},"token_times":[{{"requests":1,"seconds":0.004}},{{"requests":64,"seconds":0.02}}]}}"#
            );
            Earlier::of_one_line(20 << 30, "fits").of_a_server(&serves)
        };
        let rehearse = |name: &str, _: &[Pin]| {
            Ok(Ok(match name {
                "vllm-1" => answer(200_000, 20 << 30, 1 << 28),
                "vllm-2" => answer(150_000, 15 << 30, (1 << 28) + (5 << 30)),
                _ => answer(75_000, 15 << 30, (1 << 28) + (5 << 30)),
            }))
        };
        let pins = ["1", "2", "3"].map(|version| vec![Pin { package: "vllm".into(), version: version.into() }]);
        let table = Table { gpu: "a100-40g".into(), command: Vec::new(), rows: rows(pins.into(), rehearse, |_| {}).unwrap() };
        let text = table.text();
        for line in [
            "version     KV cache       tokens        needs       step    change",
            "vllm 1      20.0 GiB      200,000            -    20.0 ms",
            "tokens -25.0 %",
            "vllm 1 -> vllm 2: tokens -25.0 %\n    KV cache -5.00 GiB: +5.00 GiB CUDA graphs as estimated\n",
            "vllm 2 -> vllm 3: tokens -50.0 %\n    KV cache +0 B\n    a token takes 105 KiB -> 210 KiB (+100.0 %)\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
