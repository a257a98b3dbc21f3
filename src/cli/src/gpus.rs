//! `vramlab gpus`: the cards that can be simulated.

use super::terminal::write_json;
use anyhow::{Result, anyhow, ensure};
use base::println;
use base::units::{Bytes, significant};
use clap::Args;
use serde_json::{Value, json};
use sim::cards::{self, Card, Speed};
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
fn row(card: &Card) -> Value {
    let speed = |of: fn(Speed) -> f64| card.speed.map(of);
    json!({
        "name": card.name.unwrap_or_default(),
        "title": card.title,
        "also": card.also.split_whitespace().collect::<Vec<&str>>(),
        "memory": card.memory,
        "memory_source": card.memory_source,
        "context": card.context,
        "context_source": card.context_source,
        "usable": card.memory - card.context,
        "compute_capability": capability(card),
        "multiprocessors": card.multiprocessors,
        "shared_memory_per_multiprocessor": card.shared_per_multiprocessor,
        "l2": card.l2,
        "bandwidth": speed(|speed| speed.bandwidth),
        "host_bandwidth": speed(|speed| speed.host_bandwidth),
        "fp32": speed(|speed| speed.single),
        "tf32": speed(|speed| speed.tf32),
        "half": speed(|speed| speed.half),
        "speed_source": card.speed_source,
    })
}

fn capability(card: &Card) -> String {
    format!("{}.{}", card.capability.0, card.capability.1)
}

/// A rate of a card as text; a dash of one that has none.
fn rate(card: &Card, unit: f64, of: fn(Speed) -> f64) -> String {
    card.speed.map_or("-".to_string(), |speed| significant(of(speed) / unit))
}

/// TFLOP/s in fp32, TF32 and half precision.
fn operations(card: &Card) -> [String; 3] {
    let of: [fn(Speed) -> f64; 3] = [|speed| speed.single, |speed| speed.tf32, |speed| speed.half];
    of.map(|of| rate(card, 1e12, of))
}

/// Lists the cards, or tells those that are named.
pub fn gpus(options: &GpusOptions) -> Result<u8> {
    let named = |name: &String| -> Result<Card> {
        let card: Card = name.parse().map_err(|why| anyhow!("{why}"))?;
        ensure!(card.name.is_some(), "{name} is a size, which --gpu takes, and no card; vramlab gpus lists the cards");
        Ok(card)
    };
    let cards = match options.names.is_empty() {
        true => cards::all().to_vec(),
        false => options.names.iter().map(named).collect::<Result<Vec<Card>>>()?,
    };
    if let Some(path) = &options.json {
        return write_json(path, &cards.iter().map(row).collect::<Vec<Value>>()).map(|()| 0);
    }
    if options.names.is_empty() {
        list(&cards)
    } else {
        cards.iter().for_each(tell)
    }
    Ok(0)
}

/// A card with the sources of its figures.
fn tell(card: &Card) {
    println!("{} ({}), compute capability {}", card.name.unwrap_or_default(), card.title, capability(card));
    println!("  memory     {}, as PyTorch reports it: {}", Bytes(card.memory), card.memory_source);
    let (usable, context) = (Bytes(card.memory - card.context), Bytes(card.context));
    println!("  usable     {usable} beside a CUDA context of {context} (assumed): {}", card.context_source);
    let (shared, l2) = (Bytes(card.shared_per_multiprocessor), Bytes(card.l2));
    println!("  processors {}, each with {shared} of shared memory; L2 cache {l2}", card.multiprocessors);
    let (bandwidth, host) = (rate(card, 1e9, |speed| speed.bandwidth), rate(card, 1e9, |speed| speed.host_bandwidth));
    let [single, tf32, half] = operations(card);
    println!(
        "  speed      {bandwidth} GB/s, {host} GB/s to the host; TFLOP/s {single} fp32, {tf32} TF32, {half} half: {}",
        card.speed_source
    );
    if !card.also.is_empty() {
        println!("  also       {}", card.also);
    }
}

/// A line a card.
fn list(cards: &[Card]) {
    println!(
        "{:<20} {:>9} {:>9} {:>7} {:>6} {:>6} {:>6}  {:<5} also",
        "--gpu", "memory", "usable", "GB/s", "fp32", "TF32", "half", "CC"
    );
    for card in cards {
        let (name, memory, usable) = (card.name.unwrap_or_default(), Bytes(card.memory), Bytes(card.memory - card.context));
        let (bandwidth, [single, tf32, half]) = (rate(card, 1e9, |speed| speed.bandwidth), operations(card));
        let line = format!(
            "{name:<20} {memory:>9} {usable:>9} {bandwidth:>7} {single:>6} {tf32:>6} {half:>6}  {:<5} {}",
            capability(card),
            card.also
        );
        println!("{}", line.trim_end());
    }
    println!(
        "\nMemory as PyTorch reports it; usable beside a CUDA context, which is assumed; dense TFLOP/s; CC is the compute capability."
    );
    println!(
        "Names are read as others write them: RTX4090, \"NVIDIA A100-SXM4-80GB\", 4090, g5.xlarge. `vramlab gpus NAME` has the sources."
    );
}
