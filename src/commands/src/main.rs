//! The program `vramlab-lab`: the lab's own commands, which `vramlab` starts by their names. Each experiment is a program of its own.

use anyhow::Result;
use base::{console, eprintln, println};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure what techniques save and cost
#[derive(Debug, Parser)]
#[command(name = "vramlab", bin_name = "vramlab", version, max_term_width = 100)]
struct LabArguments {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Run every experiment, then write the report into report/, or with --out DIR into DIR-report/; the flags are those of an experiment
    RunAll {
        #[command(flatten)]
        options: Box<harness::runner::Options>,

        /// Only these experiments
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        only: Vec<String>,
    },

    /// Say whether the steps of measured cells still ask for what they asked for when they were measured
    Evidence(harness::runner::EvidenceOptions),

    /// Say what this machine has, what is missing and what would fix it
    Doctor,

    /// Run the most useful GPU experiments within a time budget and pack the results
    GpuDay(commands::GpuDayOptions),
}

fn main() -> ExitCode {
    console::outlive_limits();
    let code = run(LabArguments::parse().command).unwrap_or_else(|error| {
        eprintln!("vramlab: {error:#}");
        1
    });
    ExitCode::from(console::status(code))
}

fn run(command: LabCommand) -> Result<u8> {
    match command {
        LabCommand::RunAll { options, only } => {
            // Each experiment takes the others.
            let mut flags: Vec<String> = std::env::args().skip_while(|a| a != "run-all").skip(1).collect();
            while let Some(at) = flags.iter().position(|flag| flag == "--only" || flag.starts_with("--only=")) {
                flags.drain(at..at + 1 + usize::from(flags[at] == "--only"));
            }
            let Some(summary) = harness::runner::run_all(&options, &only, &flags)? else { return Ok(0) };
            let written = match &summary.results {
                None if summary.code == harness::runner::INTERRUPTED => return Ok(summary.code),
                None if options.out.is_some() => "there are no results, so there is no report".to_string(),
                None => "smoke results are not kept and make no report; name a folder with --out to keep them".to_string(),
                Some(results) => {
                    // What is measured elsewhere leaves the report of results/ as it is.
                    let out = match &options.out {
                        Some(_) => PathBuf::from(format!("{}-report", results.components().as_path().display())),
                        None => "report".into(),
                    };
                    match report::write(results, &out) {
                        Ok(report) => format!("report: {}", report.display()),
                        Err(error) => format!("no report: {error:#}; `vramlab report` writes it when that is mended"),
                    }
                }
            };
            println!("{summary}  {written}");
            Ok(summary.code)
        }
        LabCommand::Evidence(options) => harness::runner::evidence(&options),
        LabCommand::Doctor => harness::doctor::run().map(|()| 0),
        LabCommand::GpuDay(options) => commands::gpu_day(&options),
    }
}
