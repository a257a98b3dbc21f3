//! `vramlab tune-loader`: which workers, prefetching and pinning the loader should have for the user's own data on this machine.

use super::table::aligned;
use crate::data::{Config, ImageFolder, Images, Loader, OnBad, Residence, Textured, Transform, cache_folder};
use crate::machine::{DeviceChoice, cores};
use crate::runner::open;
use crate::tune::{Advice, Measured, Search, Setting, Trial, Tried};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tch::Device;

/// Seconds of loading in a slice; the slices' spread is the noise.
const SLICE: f64 = 0.25;

/// Flags of `vramlab tune-loader`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each image is decoded, randomly cropped and resized to 224 x 224, mirrored at random and normalised, as for training.
Without --step-time the fastest setting is looked for, with it the cheapest one that your training step does not wait for:

  vramlab tune-loader --data train/ --step-time 0.045"
)]
pub struct TuneOptions {
    /// Folder with one subfolder of JPEG files for each class [default: 512 made-up photographs]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Seconds that one training step takes for a batch
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    step_time: Option<f64>,

    /// Samples in a batch
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    batch: u32,

    /// Time to search for; some seconds more are possible where the data is slow
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive)]
    budget: f64,

    /// Where batches are to go: cpu, or cuda, for which pinning is tried [default: cuda where libtorch can use it, else cpu]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s < 1e5);
    value.ok_or_else(|| format!("'{text}' is no number of seconds"))
}

/// Searches, shows what was tried and advises.
///
/// # Errors
/// The data cannot be loaded; the device cannot be used.
pub fn tune_loader(options: &TuneOptions) -> Result<()> {
    let choice = options.device.unwrap_or_else(DeviceChoice::best);
    ensure!(!matches!(choice, DeviceChoice::Dry(_)), "a simulated GPU has no time, so nothing can be tuned for it");
    let device = open(choice, None)?.device();
    let folder = match &options.data {
        Some(folder) => folder.clone(),
        None => Textured::default().folder(&cache_folder())?,
    };
    let images = Arc::new(Images::new(ImageFolder::open(&folder)?, Transform::training(224)));
    let batch = options.batch as usize;
    let mut loading = Loading { images, batch, device, left_out: BTreeSet::new() };
    let search =
        Search { seconds: options.budget, cores: cores(), batch, step_time: options.step_time, gpu: device != Device::Cpu };
    if !options.json {
        println!(
            "{}: {} images, batches of {batch}, {} cores, {} s",
            folder.display(),
            count(&loading),
            search.cores,
            search.seconds
        );
    }
    let ignored = loading.images.source().ignored();
    match ignored {
        0 => {}
        1 => eprintln!("1 file is left out: its name does not end in .jpg or .jpeg"),
        n => eprintln!("{n} files are left out: their names do not end in .jpg or .jpeg"),
    }
    let start = Instant::now();
    let mut told = |tried: &Tried| {
        eprintln!("{:5.1} s  {}: {:.0} images/s so far", start.elapsed().as_secs_f64(), name(tried.setting), tried.rate());
    };
    let advice = search.run(&mut loading, &mut told)?;
    if options.json {
        println!("{}", serde_json::to_string(&Report::new(&advice))?);
    } else {
        show(&advice, device);
    }
    complain(&loading.left_out);
    Ok(())
}

fn count(loading: &Loading) -> usize {
    use crate::data::Dataset;
    loading.images.len()
}

fn name(setting: Setting) -> String {
    let pinning = if setting.pinning { ", pinned" } else { "" };
    match setting.workers {
        // Without workers nobody is ahead.
        0 => format!("no workers{pinning}"),
        1 => format!("1 worker, prefetch {}{pinning}", setting.prefetch),
        n => format!("{n} workers, prefetch {}{pinning}", setting.prefetch),
    }
}

fn show(advice: &Advice, device: Device) {
    let mut rows = vec![["workers", "prefetch", "pinning", "images/s", "95 % interval", "measured"].map(str::to_string).to_vec()];
    rows.extend(advice.tried.iter().map(|tried| {
        let interval = tried.interval();
        let known = tried.has_spread();
        vec![
            tried.setting.workers.to_string(),
            if tried.setting.workers == 0 { "–".to_string() } else { tried.setting.prefetch.to_string() },
            if tried.setting.pinning { "on" } else { "off" }.to_string(),
            format!("{:.0}", tried.rate()),
            if known { format!("{:.0} to {:.0}", interval.low, interval.high) } else { "too short".to_string() },
            format!("{:.1} s", tried.seconds),
        ]
    }));
    println!("\n{}", aligned(&rows));
    println!("advice: {}", name(advice.setting));
    println!("because: {}", advice.reason);
    if device == Device::Cpu {
        println!("pinning: off; it is for a GPU, and there is none in use");
    }
}

/// Says which images cannot be loaded.
fn complain(left_out: &BTreeSet<String>) {
    if left_out.is_empty() {
        return;
    }
    let warning = "a training that does not skip such images ends there";
    eprintln!("\n{} cannot be loaded, of those that were tried; {warning}:", images(left_out.len()));
    left_out.iter().take(COMPLAINTS).for_each(|what| eprintln!("  {what}"));
    if left_out.len() > COMPLAINTS {
        eprintln!("  and {} more", left_out.len() - COMPLAINTS);
    }
}

fn images(count: usize) -> String {
    if count == 1 { "1 image".to_string() } else { format!("{count} images") }
}

/// Images that cannot be loaded and are named.
const COMPLAINTS: usize = 5;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    schema: u32,
    command: &'static str,
    workers: usize,
    prefetch: usize,
    pinning: bool,
    reason: &'a str,
    tried: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    workers: usize,
    prefetch: usize,
    pinning: bool,
    images_per_second: f64,
    seconds: f64,
}

impl Report<'_> {
    fn new(advice: &Advice) -> Report<'_> {
        let Setting { workers, prefetch, pinning } = advice.setting;
        let line = |tried: &Tried| Line {
            workers: tried.setting.workers,
            prefetch: tried.setting.prefetch,
            pinning: tried.setting.pinning,
            images_per_second: tried.rate(),
            seconds: tried.seconds,
        };
        let tried = advice.tried.iter().map(line).collect();
        Report { schema: 1, command: "tune-loader", workers, prefetch, pinning, reason: &advice.reason, tried }
    }
}

/// The loader on the user's images.
struct Loading {
    images: Arc<Images<ImageFolder>>,
    batch: usize,
    device: Device,
    /// What was wrong with images that cannot be loaded.
    left_out: BTreeSet<String>,
}

impl Trial for Loading {
    fn run(&mut self, setting: Setting, seconds: f64) -> Result<Measured> {
        let start = Instant::now();
        let config = Config {
            batch: self.batch,
            workers: setting.workers,
            prefetch: setting.prefetch,
            // One that cannot be decoded is for training to complain of.
            on_bad: OnBad::Skip,
            across_epochs: true,
            residence: if setting.pinning { Residence::PageLocked } else { Residence::Pageable },
            ..Config::default()
        };
        let mut loader = Loader::<Images<ImageFolder>>::new(Arc::clone(&self.images), config)?;
        let (mut rates, mut enough) = (Vec::new(), false);
        let (mut slice, mut loaded, mut total) = (Instant::now(), 0, 0);
        // What is loaded ahead at the start came from a time that no slice counts.
        let mut warm_up = 1 + if setting.workers > 0 { setting.prefetch } else { 0 };
        for epoch in 0.. {
            let before = total;
            for batch in loader.epoch(epoch)? {
                let batch = batch?;
                loaded += batch.indices.len();
                if self.device != Device::Cpu {
                    drop(batch.samples.f_to_device_(self.device, batch.samples.kind(), true, true)?);
                }
                let spent = start.elapsed().as_secs_f64();
                total += batch.indices.len();
                // Data so slow that even warming up takes too long still has a rate, if a rough one.
                if warm_up > 0 && spent >= 2.0 * seconds {
                    (rates, enough) = (vec![total as f64 / spent], true);
                    break;
                }
                if warm_up > 0 {
                    warm_up -= 1;
                    (slice, loaded) = (Instant::now(), 0);
                    continue;
                }
                let length = slice.elapsed().as_secs_f64();
                if length >= SLICE {
                    rates.push(loaded as f64 / length);
                    (slice, loaded) = (Instant::now(), 0);
                }
                if spent >= seconds && !rates.is_empty() {
                    enough = true;
                    break;
                }
            }
            let skipped = loader.skipped();
            if enough {
                self.left_out.extend(skipped.first);
                return Ok(Measured { rates, seconds: start.elapsed().as_secs_f64() });
            }
            let first = || skipped.first.first().cloned().unwrap_or_default();
            ensure!(total > before, "no image can be loaded: {}", first());
        }
        None.context("epochs have no end")
    }
}
