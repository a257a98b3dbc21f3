//! `vramlab replay`: what PyTorch's caching allocator makes of a trace.

use anyhow::{Context, Result};
use base::units::Bytes;
use clap::Args;
use sim::cards::Card;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use torch::dry::replay::{ReplayTrace, Replayed, replay as play};
use torch::dry::{self, Dry};

/// Flags of `vramlab replay`.
#[derive(Debug, Args)]
pub struct ReplayOptions {
    /// CSV file: a header op,id,bytes, then lines alloc,ID,BYTES, free,ID and empty_cache
    trace: PathBuf,

    /// The card: a name like rtx-4090, or its memory alone
    #[arg(long, value_name = "CARD|SIZE", default_value = "24GiB", alias = "device-memory")]
    gpu: Card,

    /// Settings of the allocator, as in PYTORCH_ALLOC_CONF [default: that variable's]
    #[arg(long, value_name = "CONF")]
    alloc_conf: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Whether this is the process with the simulated GPU that plays the trace
    #[arg(long, hide = true)]
    dry_process: bool,
}

/// Plays the trace in a dry process, which takes the place of this one, and prints what came of it.
///
/// # Errors
/// The trace cannot be read or is malformed, with its line; PyTorch refuses the settings; there is no simulated GPU here.
pub fn replay(arguments: &ReplayOptions) -> Result<()> {
    let name = arguments.trace.display();
    if !arguments.dry_process {
        // Read there again: what is wrong with the file is said before a process is changed for it.
        File::open(&arguments.trace).with_context(|| format!("opening {name}"))?;
        let mut command = Command::new(std::env::current_exe().context("finding this program's own file")?);
        command.args(["replay", "--dry-process"]).args(std::env::args_os().skip(2));
        dry::prepare(&mut command, arguments.gpu)?;
        if let Some(settings) = &arguments.alloc_conf {
            command.env("PYTORCH_ALLOC_CONF", settings);
        }
        return Err(command.exec()).context("starting the process with the simulated GPU");
    }
    let file = File::open(&arguments.trace).with_context(|| format!("opening {name}"))?;
    let trace = ReplayTrace::read(BufReader::new(file)).with_context(|| format!("{name}"))?;
    let found = play(&Dry::open()?, &trace)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&found)?);
    } else {
        show(&found);
    }
    Ok(())
}

fn show(found: &Replayed) {
    let bytes = |name: &str, value: i64| println!("{name:16} {value:>16} B  {}", Bytes(value.unsigned_abs()));
    bytes("allocated", found.allocated);
    bytes("peak allocated", found.peak_allocated);
    bytes("reserved", found.reserved);
    bytes("peak reserved", found.peak_reserved);
    bytes("inactive split", found.inactive_split);
    println!("{:16} {:>16}", "segments", found.segments);
    println!("{:16} {:>16}", "retries", found.retries);
    match found.oom {
        Some(line) => println!("out of memory at line {line}, where the trace was stopped"),
        None => println!("the whole trace fits"),
    }
}
