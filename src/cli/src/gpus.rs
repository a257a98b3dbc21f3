//! `vramlab gpus`: the cards that can be simulated.

use super::rehearsal::write_json;
use anyhow::{Result, anyhow};
use base::println;
use base::units::{Bytes, significant};
use clap::Args;
use serde::Serialize;
use sim::cards::{self, Card};
use std::path::PathBuf;

/// Flags of `vramlab gpus`.
#[derive(Debug, Args)]
pub struct GpusOptions {
    /// Tell all of these cards, with the sources of each figure; by any name that --gpu takes
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Write the cards as JSON to a file, or with - to the standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A card as JSON; bytes, and units per second.
#[derive(Serialize)]
struct CardRow {
    name: &'static str,
    title: &'static str,
    also: Vec<&'static str>,
    memory: u64,
    memory_source: &'static str,
    context: u64,
    context_source: &'static str,
    usable: u64,
    compute_capability: String,
    multiprocessors: u32,
    shared_memory_per_multiprocessor: u64,
    l2: u64,
    bandwidth: Option<f64>,
    host_bandwidth: Option<f64>,
    fp32: Option<f64>,
    tf32: Option<f64>,
    half: Option<f64>,
    speed_source: &'static str,
}

impl CardRow {
    fn of(card: &Card) -> CardRow {
        let speed = card.speed;
        CardRow {
            name: card.name.unwrap_or_default(),
            title: card.title,
            also: card.also.split(' ').filter(|name| !name.is_empty()).collect(),
            memory: card.memory,
            memory_source: card.memory_source,
            context: card.context,
            context_source: card.context_source,
            usable: card.memory - card.context,
            compute_capability: format!("{}.{}", card.capability.0, card.capability.1),
            multiprocessors: card.multiprocessors,
            shared_memory_per_multiprocessor: card.shared_per_multiprocessor,
            l2: card.l2,
            bandwidth: speed.map(|speed| speed.bandwidth),
            host_bandwidth: speed.map(|speed| speed.host_bandwidth),
            fp32: speed.map(|speed| speed.single),
            tf32: speed.map(|speed| speed.tf32),
            half: speed.map(|speed| speed.half),
            speed_source: card.speed_source,
        }
    }
}

/// Lists the cards, or tells those that are named.
pub fn gpus(options: &GpusOptions) -> Result<u8> {
    let named = |name: &String| name.parse::<Card>().map_err(|why| anyhow!("{why}"));
    let cards = match options.names.is_empty() {
        true => cards::all().to_vec(),
        false => options.names.iter().map(named).collect::<Result<Vec<Card>>>()?,
    };
    let rows: Vec<CardRow> = cards.iter().map(CardRow::of).collect();
    if let Some(path) = &options.json {
        return write_json(path, &rows).map(|()| 0);
    }
    let bytes = |bytes: u64| Bytes(bytes).to_string();
    let rate = |rate: Option<f64>, unit: f64| rate.map_or("-".to_string(), |rate| significant(rate / unit));
    if !options.names.is_empty() {
        for row in &rows {
            println!("{} ({}), compute capability {}", row.name, row.title, row.compute_capability);
            println!("  memory     {}, as PyTorch is told: {}", bytes(row.memory), row.memory_source);
            println!(
                "  usable     {} beside a CUDA context of {} (assumed): {}",
                bytes(row.usable),
                bytes(row.context),
                row.context_source
            );
            let (shared, l2) = (bytes(row.shared_memory_per_multiprocessor), bytes(row.l2));
            println!("  processors {}, each with {shared} of shared memory; L2 cache {l2}", row.multiprocessors);
            let [bandwidth, host] = [row.bandwidth, row.host_bandwidth].map(|of| rate(of, 1e9));
            let [single, tf32, half] = [row.fp32, row.tf32, row.half].map(|of| rate(of, 1e12));
            println!(
                "  speed      {bandwidth} GB/s, {host} GB/s to the host; TFLOP/s {single} fp32, {tf32} TF32, {half} half: {}",
                row.speed_source
            );
            if !row.also.is_empty() {
                println!("  also       {}", row.also.join(" "));
            }
        }
        return Ok(0);
    }
    println!(
        "{:<20} {:>9} {:>9} {:>7} {:>6} {:>6} {:>6}  {:<5} also",
        "--gpu", "memory", "usable", "GB/s", "fp32", "TF32", "half", "CC"
    );
    for row in &rows {
        let [single, tf32, half] = [row.fp32, row.tf32, row.half].map(|of| rate(of, 1e12));
        let line = format!(
            "{:<20} {:>9} {:>9} {:>7} {single:>6} {tf32:>6} {half:>6}  {:<5} {}",
            row.name,
            bytes(row.memory),
            bytes(row.usable),
            rate(row.bandwidth, 1e9),
            row.compute_capability,
            row.also.join(" ")
        );
        println!("{}", line.trim_end());
    }
    println!(
        "\nMemory as PyTorch is told; usable beside a CUDA context, which is assumed; dense TFLOP/s; CC is the compute capability."
    );
    println!(
        "Names are read as others write them: RTX4090, \"NVIDIA A100-SXM4-80GB\", 4090, g5.xlarge. `vramlab gpus NAME` has the sources."
    );
    Ok(0)
}
