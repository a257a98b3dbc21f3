//! `vramlab calibrate`: times the kernels of rehearsals on the GPU that is there, for predictions of time.

use anyhow::{Context, Result, ensure};
use base::{eprintln, println};
use clap::Args;
use rehearse::{RehearsalResult, time};
use sim::cards::{self, Card};
use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Flags of `vramlab calibrate`.
#[derive(Debug, Clone, Args)]
pub struct CalibrateOptions {
    /// File for the kernels with their times, which --constants of `vramlab rehearse` takes
    #[arg(long, value_name = "FILE", default_value = "kernels.csv")]
    out: PathBuf,

    /// The card, where its name is not that of a known one
    #[arg(long, value_name = "NAME")]
    gpu: Option<Card>,

    /// Time exactly the kernels of these rehearsals (what `vramlab rehearse --keep` wrote) or lists (what --list wrote), each with a cold L2
    #[arg(long = "for", value_name = "FILE", num_args = 1.., required = true)]
    rehearsals: Vec<PathBuf>,

    /// End after so many minutes, the kernels that take longest first
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,

    /// Write the list of kernels and time none, for a machine with the GPU that is without the rehearsals
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,

    /// The Python whose PyTorch sees the GPU
    #[arg(long, value_name = "PATH", default_value = "python")]
    python: PathBuf,
}

impl CalibrateOptions {
    /// Times the kernels of kept rehearsals, those of all that take longest first.
    pub fn run(&self) -> Result<u8> {
        let mut lists = Vec::new();
        for file in &self.rehearsals {
            let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            if let Some(list) = bytes.strip_prefix(time::KERNELS.as_bytes()) {
                lists.push(String::from_utf8_lossy(list).lines().skip(1).map(str::to_string).collect());
                continue;
            }
            let found = RehearsalResult::open(file)?;
            // Which step is the usual one depends on the card a little.
            let card = [self.gpu, Some(found.capture.card)].into_iter().flatten().find(|card| card.speed.is_some());
            let card = card.map_or_else(|| "h100".parse().map_err(anyhow::Error::msg), Ok)?;
            let kernels = |trace| time::kernels_of(trace, &card, found.answer.steps).ok();
            let longest = found.capture.traces.iter().filter_map(kernels).max_by_key(Vec::len);
            lists.push(longest.with_context(|| format!("{} has no step whose kernels could be timed", file.display()))?);
        }
        // In turns, so that each program has its longest where time is short; alike ones once.
        let most = lists.iter().map(Vec::len).max().unwrap_or(0);
        let in_turns = (0..most).flat_map(|at| lists.iter().filter_map(move |list| list.get(at)));
        let mut seen = HashSet::new();
        let is_new = |line: &&String| seen.insert(line.rsplitn(5, ',').last().unwrap_or_default().to_string());
        let kernels: Vec<&String> = in_turns.filter(is_new).collect();
        let lines: Vec<&str> = [time::KERNELS].into_iter().chain(kernels.iter().map(|line| line.as_str())).collect();
        let lines = lines.join("\n") + "\n";
        if let Some(list) = &self.list {
            fs::write(list, &lines).with_context(|| format!("writing {}", list.display()))?;
            println!("Wrote {} kernels to {1}: vramlab calibrate --for {1} times them.", kernels.len(), list.display());
            return Ok(0);
        }
        let (out, title) = (&self.out, self.time(&lines)?);
        let card = self.gpu.or_else(|| cards::all().iter().find(|card| card.title == title).copied());
        let card = card.with_context(|| {
            format!(
                "no card of vramlab's is called '{title}': name the one that it is with --gpu; the times are in {}",
                out.display()
            )
        })?;
        let text = fs::read_to_string(out).with_context(|| format!("reading {}", out.display()))?;
        let name = card.name.context("a size alone has no kernels")?;
        let (head, rows) = text.split_once('\n').unwrap_or_default();
        let rows: Vec<String> = rows.lines().map(|line| format!("{name}{line}\n")).collect();
        fs::write(out, format!("{head}\n{}", rows.concat())).with_context(|| format!("writing {}", out.display()))?;
        println!(
            "Wrote {} of {} kernels of {card} to {out}: vramlab rehearse --constants {out} predicts with them, vramlab contribute {out} says how to send them.",
            rows.len(),
            kernels.len(),
            out = out.display()
        );
        if rows.iter().any(|line| line.ends_with(",1\n")) {
            eprintln!("The GPU was simulated: these times mean nothing, and --constants refuses the file.");
        }
        Ok(0)
    }

    /// Runs the script; gives the card's name as PyTorch has it.
    fn time(&self, list: &str) -> Result<String> {
        let mut given = tempfile::NamedTempFile::new().context("making a file for the list of kernels")?;
        given.write_all(list.as_bytes()).context("writing the list of kernels")?;
        eprintln!("Timing {} kernels ...", list.lines().count() - 1);
        let output = Command::new(&self.python)
            .args(["-c", time::TIMING])
            .args([given.path(), &self.out])
            .args(self.minutes.map(|minutes| (minutes * 60.0).to_string()))
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("starting {}", self.python.display()))?;
        ensure!(
            output.status.success(),
            "{} ended with {}: it needs a PyTorch that sees a GPU; --python names another one",
            self.python.display(),
            output.status
        );
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().last().unwrap_or_default().trim().to_string())
    }
}

/// Says whether a file of kernels may be sent, and where to.
pub fn contributed(file: &Path) -> Result<u8> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let cards = time::checked_kernels(&text).with_context(|| format!("{} must not be contributed as it is", file.display()))?;
    for (card, rows) in cards {
        println!("# {rows} kernels of {card}, timed by `vramlab calibrate --for`\n");
    }
    println!("The rows go to the end of src/rehearse/src/answer/time/kernels.csv: predictions for these cards take them.");
    Ok(0)
}
