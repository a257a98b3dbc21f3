//! `vramlab calibrate`: times operators on the GPU that is there and writes its constants for predictions of time.

use anyhow::{Context, Result, ensure};
use base::{eprintln, println};
use clap::Args;
use rehearse::time;
use sim::cards::{self, Card};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Flags of `vramlab calibrate`.
#[derive(Debug, Clone, Args)]
pub struct CalibrateOptions {
    /// File for the constants, which --constants of `vramlab rehearse` takes
    #[arg(long, value_name = "FILE", default_value = "constants.csv")]
    out: PathBuf,

    /// File for the times themselves, worth sending to the project; with --from it is read and nothing runs
    #[arg(long, value_name = "FILE", default_value = "operators.csv")]
    records: PathBuf,

    /// Fit the times of --records, which were taken before or elsewhere
    #[arg(long, requires = "gpu")]
    from: bool,

    /// The card, where its name is not that of a known one
    #[arg(long, value_name = "NAME")]
    gpu: Option<Card>,

    /// The Python whose PyTorch sees the GPU
    #[arg(long, value_name = "PATH", default_value = "python")]
    python: PathBuf,
}

impl CalibrateOptions {
    pub fn run(&self) -> Result<u8> {
        // --from requires --gpu.
        let title = if self.from { String::new() } else { self.time()? };
        let card = self.gpu.or_else(|| cards::all().iter().find(|card| card.title == title).copied()).with_context(|| {
            format!(
                "no card of vramlab's is called '{title}': name the one that it is with --gpu; the times are in {}",
                self.records.display()
            )
        })?;
        let records = fs::read_to_string(&self.records).with_context(|| format!("reading {}", self.records.display()))?;
        let (text, errors) = time::calibrated(&card, &records).with_context(|| format!("fitting {}", self.records.display()))?;
        fs::write(&self.out, &text).with_context(|| format!("writing {}", self.out.display()))?;
        for (class, rows, error) in errors {
            println!("  {class:<28} {rows:>3} operators, off by {:.0} % in the median", error * 100.0);
        }
        println!("Wrote {0} for {card}: vramlab rehearse --constants {0} predicts with it.", self.out.display());
        if records.lines().any(|line| line.ends_with(",1")) {
            eprintln!("The GPU was simulated: these times mean nothing, and --constants refuses the file.");
        }
        Ok(0)
    }

    /// Runs the script; gives the card's name as PyTorch has it.
    fn time(&self) -> Result<String> {
        eprintln!("Timing some hundred operators, about two minutes ...");
        let output = Command::new(&self.python)
            .args(["-c", time::CALIBRATION])
            .arg(&self.records)
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
