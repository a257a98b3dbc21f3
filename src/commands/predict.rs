//! `vramlab predict`: what a training step would need of a GPU, from the simulated GPU.

use super::{ConfigurationFlags, bytes_by_phase, dry_child};
use crate::cards::Card;
use crate::dry::{CUDNN, Dry};
use crate::machine::{DeviceChoice, libtorch_version};
use crate::predict::{self, Peak, Prediction, Term, Tried, Whole};
use crate::torch::{self, Phase, Stage};
use crate::training::{Configuration, OutOfMemory};
use crate::units::{Bytes, Seconds};
use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Instant;

/// Version of the JSON that is printed; a key that changes its meaning raises it.
const SCHEMA: u32 = 2;

/// Flags of `vramlab predict`. The parent repeats some to its child, and the last one counts.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub struct PredictOptions {
    #[command(flatten)]
    pub configuration: ConfigurationFlags,

    /// Samples of one step; with --accumulate those of all its micro-batches together
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub batch: i64,

    /// The card: a name like rtx-4090, or its memory alone
    #[arg(long, value_name = "CARD|SIZE", default_value = "24GiB", alias = "device-memory")]
    pub gpu: Card,

    /// Settings of PyTorch's allocator, as in PYTORCH_ALLOC_CONF: expandable_segments:True
    #[arg(long, value_name = "CONF")]
    pub alloc_conf: Option<String>,

    /// Draw the memory over the allocations of two steps; micro-batches that would do the same as the one before are left out
    #[arg(long, value_name = "FILE.svg")]
    pub timeline: Option<PathBuf>,

    /// Write a memory snapshot, which pytorch.org/memory_viz opens
    #[arg(long, value_name = "FILE.pickle")]
    pub snapshot: Option<PathBuf>,

    /// Print JSON with bytes as plain numbers
    #[arg(long)]
    pub json: bool,

    /// Predict in this process, for the parent of this number
    #[arg(long, hide = true)]
    pub child: Option<u32>,

    /// Write no files
    #[arg(long, hide = true)]
    pub no_files: bool,
}

/// What the child tells its parent.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    prediction: Prediction,
    seconds: f64,
}

/// What `--json` prints. What `vramlab measure` prints too has its keys.
#[derive(Debug, Serialize)]
struct Report<'a> {
    schema: u32,
    command: &'static str,
    device: String,
    /// What the simulated GPU takes the card for.
    assumed: String,
    libtorch: String,
    alloc_conf: Option<String>,
    configuration: &'a Configuration,
    parameters: Option<usize>,
    device_memory: u64,
    fits: bool,
    out_of_memory: Option<&'a OutOfMemory>,
    phases: &'a [Stage],
    second_iteration: Option<Whole>,
    peak: &'a Peak,
    requested: i64,
    allocated: i64,
    reserved: i64,
    device_used: i64,
    terms: Vec<Term>,
    retries: i64,
    /// Where it does not fit: what it would need on a GPU of unlimited memory.
    needs: Option<Tried>,
    /// Of the two iterations on the simulated GPU.
    dry_seconds: f64,
}

/// Predicts what the flags say, in a dry process, and prints it. Memory that runs out is a finding.
///
/// # Errors
/// A configuration that cannot be trained; a card that cannot be; a file that cannot be written; a child process without a finding.
pub fn predict(options: &PredictOptions) -> Result<()> {
    let configuration = options.configuration.configuration(options.batch)?;
    if let Some(parent) = options.child {
        return dry_child::report(parent, || child(options, &configuration));
    }
    dry_child::check(options.gpu)?;
    let start = |card, flags: &[&str]| dry_child::start(card, options.alloc_conf.as_deref(), flags);
    let found: Found = dry_child::wait(start(options.gpu, &[])?)?;
    let needs = match found.prediction.out_of_memory {
        Some(_) => {
            let endless: Found = dry_child::wait(start(options.gpu.with_memory(dry_child::ENDLESS), &["--no-files"])?)?;
            endless.prediction.fits().then(|| Tried::from(&endless.prediction))
        }
        None => None,
    };
    let prediction = &found.prediction;
    let report = Report {
        schema: SCHEMA,
        command: "predict",
        device: DeviceChoice::Dry(options.gpu).to_string(),
        assumed: format!("{}, {CUDNN}", options.gpu.assumption()),
        libtorch: libtorch_version().unwrap_or_else(|_| torch::compiled_version()),
        alloc_conf: options.alloc_conf.clone().or_else(|| std::env::var("PYTORCH_ALLOC_CONF").ok()),
        configuration: &configuration,
        parameters: prediction.parameters,
        device_memory: options.gpu.memory,
        fits: prediction.fits(),
        out_of_memory: prediction.out_of_memory.as_ref(),
        phases: &prediction.phases,
        second_iteration: prediction.second_iteration(),
        peak: &prediction.peak,
        requested: prediction.requested,
        allocated: prediction.allocated,
        reserved: prediction.reserved,
        device_used: prediction.device_used,
        terms: predict::terms(&options.gpu),
        retries: prediction.retries,
        needs,
        dry_seconds: found.seconds,
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text());
        for file in [&options.timeline, &options.snapshot].into_iter().flatten() {
            println!("wrote {}", file.display());
        }
    }
    Ok(())
}

fn child(options: &PredictOptions, configuration: &Configuration) -> Result<Found> {
    let dry = Dry::open()?;
    let start = Instant::now();
    let prediction = predict::predict(&dry, configuration)?;
    let seconds = start.elapsed().as_secs_f64();
    if !options.no_files {
        files(options, configuration, &prediction)?;
    }
    Ok(Found { prediction, seconds })
}

fn files(options: &PredictOptions, configuration: &Configuration, prediction: &Prediction) -> Result<()> {
    if let Some(file) = &options.timeline {
        let svg = predict::draw(&prediction.timeline, &configuration.to_string())?;
        fs::write(file, svg).with_context(|| format!("writing {}", file.display()))?;
    }
    if let Some(file) = &options.snapshot {
        let open = File::create(file).with_context(|| format!("writing {}", file.display()))?;
        let mut output = BufWriter::new(open);
        predict::write_snapshot(prediction, &mut output)?;
        output.flush().with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

impl Report<'_> {
    fn text(&self) -> String {
        let mut text = format!("{} device={}\npredicted for {}\n", self.configuration, self.device, self.assumed);
        if let Some(parameters) = self.parameters {
            text += &format!("{parameters} parameters\n");
        }
        text += &format!("\n{}\n", bytes_by_phase(self.phases));
        let peak = self.peak;
        let place = match (peak.iteration, peak.phase) {
            (0, _) => "load".to_string(),
            (n, phase) => format!("{phase} of iteration {n}"),
        };
        text += &format!("at the peak, {} in {place}:\n", bytes(peak.bytes));
        for tensors in &peak.tensors {
            let when = match (tensors.iteration, tensors.phase) {
                (0, _) | (_, Phase::Load) => "load".to_string(),
                (n, phase) => format!("{phase} of iteration {n}"),
            };
            let name = tensors.name.as_deref().map_or(String::new(), |name| format!(" {name}"));
            let all = bytes(tensors.count as i64 * tensors.bytes);
            text += &format!(
                "{all:>10}  {} x {} {}{name}, from {when}\n",
                tensors.count,
                bytes(tensors.bytes),
                tensors.category.name()
            );
        }
        let (requested, allocated, reserved) = (bytes(self.requested), bytes(self.allocated), bytes(self.reserved));
        text += &format!("\nmost at once: requested {requested}, allocated {allocated}, reserved {reserved}\n");
        let term = |t: &&Term| format!("{} {}{}", t.name, Bytes(t.bytes), if t.confirmed { "" } else { " (assumed)" });
        let terms: Vec<String> = self.terms.iter().filter(|t| t.bytes > 0).map(|t| term(&t)).collect();
        text += &format!("used on the device {} = reserved + {}\n", bytes(self.device_used), terms.join(" + "));
        let card = Bytes(self.device_memory);
        match self.out_of_memory {
            None => text += &format!("fits in {card}\n"),
            Some(out) => {
                text += &format!("does not fit: {card} ran out in {}: {}\n", out.place(), out.message);
                if let Some(needs) = &self.needs {
                    let (requested, used) = (bytes(needs.requested), bytes(needs.device_used));
                    text += &format!("with memory enough it requests {requested} and uses {used} on the device\n");
                }
            }
        }
        text += &format!("{} on the simulated GPU\n", Seconds(self.dry_seconds));
        text
    }
}

fn bytes(amount: i64) -> String {
    Bytes(amount.unsigned_abs()).to_string()
}
