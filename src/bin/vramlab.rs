//! The lab's own commands; each experiment is a program of its own.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures which claims about PyTorch memory and speed hold on this machine.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write report.md and its plots from the results of all machines.
    Report {
        /// Folder that holds MACHINE/EXPERIMENT/samples.csv and run.json.
        #[arg(long, value_name = "DIR", default_value = "results")]
        results: PathBuf,
        /// Folder for report.md and plots/.
        #[arg(long, value_name = "DIR", default_value = "report")]
        out: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vramlab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Report { results, out } => {
            let written = vramlab::report::write(&results, &out)?;
            println!("wrote {}", written.display());
            Ok(())
        }
    }
}
