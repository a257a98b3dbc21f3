//! A card's constants from operators that were timed on it: what `vramlab calibrate` writes, in the form of `constants.csv`.

use super::constants::{self, Constants, HOST, SIMULATED};
use super::device::CardModel;
use super::kernels::work_of;
use crate::capture::work::Work;
use anyhow::{Context, Result, ensure};
use base::stats::median;
use sim::cards::Card;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// The script that times a list of kernels, for the Python whose PyTorch sees the GPU.
pub const SCRIPT: &str = include_str!("kernels.py");

/// Some hundred operators of each class.
pub const OPERATORS: &str = include_str!("operators.csv");

/// A class that fewer records speak of keeps the constants that it has.
const LEAST: usize = 3;

/// A class, how many operators speak of it, and how far it is off in the median.
pub type FitError = (&'static str, usize, f64);

/// `records` is what the script wrote: a row for each operator that was timed. Gives the file, and how far each class is off in the median.
///
/// # Errors
/// The card has no figures of speed, or a row is none.
pub fn calibrated(card: &Card, records: &str) -> Result<(String, Vec<FitError>)> {
    let mut device = CardModel::of(card).map_err(anyhow::Error::msg)?;
    let name = card.name.context("a size alone has no name")?;
    let mut classes: BTreeMap<&'static str, Vec<(Work, f64)>> = BTreeMap::new();
    let (mut host, mut is_simulated) = (None, false);
    let mut lines = records.lines();
    let columns: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    for line in lines {
        let row: HashMap<&str, &str> = columns.iter().copied().zip(line.split(',')).collect();
        let column = |name: &str| row.get(name).copied();
        let seconds = column("seconds").and_then(|seconds| seconds.parse::<f64>().ok());
        is_simulated |= column("simulated") == Some("1");
        if column("kind") == Some(HOST) {
            host = seconds;
            continue;
        }
        let (work, seconds) = work_of(column).zip(seconds).with_context(|| format!("'{line}' is no record of an operator"))?;
        classes.entry(device.takes(&work).class).or_default().push((work, seconds.max(1e-9)));
    }
    ensure!(!classes.is_empty(), "no operator was timed");
    let on = if is_simulated { SIMULATED.to_string() } else { "vramlab calibrate".to_string() };
    let (mut text, mut errors) = (format!("{}\n", constants::HEADER), Vec::new());
    for (class, rows) in classes.iter().filter(|(_, rows)| rows.len() >= LEAST) {
        let error = fit(&mut device, class, rows);
        let Constants { fixed, compute, memory, .. } = device.constants(class);
        let row =
            format!("{name},{class},{:.2},{compute:.3},{memory:.3},{},{error:.3},{on} {}", fixed * 1e6, rows.len(), rows.len());
        writeln!(text, "{row}")?;
        errors.push((*class, rows.len(), error));
    }
    if let Some(seconds) = host.filter(|seconds| *seconds > 0.0) {
        writeln!(text, "{name},{HOST},{:.2},1.000,1.000,1,0.000,{on}", seconds * 1e6)?;
    }
    Ok((text, errors))
}

/// Steps each constant up and down while that brings the mean of |log(predicted / timed)| down, in smaller and smaller steps. Gives the median.
fn fit(device: &mut CardModel, class: &'static str, rows: &[(Work, f64)]) -> f64 {
    let off = |device: &CardModel| -> Vec<f64> {
        rows.iter().map(|(work, seconds)| (device.takes(work).seconds / seconds).ln().abs()).collect()
    };
    let mean = |device: &CardModel| off(device).iter().sum::<f64>() / rows.len() as f64;
    let mut best = mean(device);
    for step in [1.5, 1.2, 1.1, 1.03, 1.01] {
        let mut is_better = true;
        while is_better {
            is_better = false;
            for factors in [[step, 1.0, 1.0], [1.0, step, 1.0], [1.0, 1.0, step]] {
                for sign in [1, -1] {
                    let before = device.constants(class).clone();
                    let [fixed, compute, memory] = factors.map(|factor: f64| factor.powi(sign));
                    let mut changed = before.clone();
                    changed.fixed = (before.fixed * fixed).clamp(5e-7, 4e-5);
                    changed.compute = (before.compute * compute).clamp(0.02, 1.2);
                    changed.memory = (before.memory * memory).clamp(0.05, 1.1);
                    device.set(class, changed);
                    let now = mean(device);
                    if now < best - 1e-6 {
                        (best, is_better) = (now, true);
                    } else {
                        device.set(class, before);
                    }
                }
            }
        }
    }
    median(&off(device)).exp_m1()
}
