//! The lab's own commands; each experiment is a program of its own.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vramlab::{console, eprintln, print, println};

/// Predict and reduce the GPU memory of PyTorch training
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run every experiment, then write the report into report/, or with --out DIR into DIR-report/; the flags are those of an experiment
    #[cfg(feature = "torch")]
    RunAll(Box<vramlab::runner::Options>),

    /// Say what this machine has, what is missing and what would fix it
    #[cfg(feature = "torch")]
    Doctor,

    /// Run the most useful GPU experiments within a time budget and pack the results
    #[cfg(feature = "torch")]
    GpuDay(vramlab::commands::GpuDayOptions),

    /// Train a model as one of several processes, started by torchrun, and say where the memory of its gradient buckets goes
    #[cfg(feature = "torch")]
    Ddp(Box<vramlab::commands::DdpFlags>),

    /// Run ours and PyTorch's side by side, and print both
    #[cfg(feature = "torch")]
    Compare(vramlab::commands::CompareOptions),

    /// Play a trace of allocations on PyTorch's caching allocator over a simulated GPU
    #[cfg(feature = "torch")]
    Replay(vramlab::commands::ReplayOptions),

    /// Run your own training script, unmodified, on a simulated GPU: does it fit, and what fills the memory?
    Rehearse(Box<vramlab::rehearse::RehearseOptions>),

    /// Find the largest batch or context of your own training script that fits a GPU, without one
    Fit(Box<vramlab::rehearse::FitOptions>),

    /// Set two machines' results side by side: which verdicts differ, which effects lie apart beyond their intervals
    Diff {
        /// Folder of one machine, results/MACHINE
        #[arg(value_name = "A")]
        a: PathBuf,
        /// Folder of another, or of the same at another time
        #[arg(value_name = "B")]
        b: PathBuf,
    },

    /// Check that a machine's results are whole and valid, as CONTRIBUTING.md asks; fails with what is wrong
    Check {
        /// Folder of one machine, results/MACHINE
        #[arg(value_name = "DIR")]
        machine: PathBuf,
    },

    /// Write the report, pages and pictures, from the results of all machines
    Report {
        /// Folder that holds MACHINE/EXPERIMENT/samples.csv and run.json
        #[arg(long, value_name = "DIR", default_value = "results")]
        results: PathBuf,
        /// Folder for README.md and the other pages, index.html, plots/ and data/
        #[arg(long, value_name = "DIR", default_value = "report")]
        out: PathBuf,
        /// Put the table of what to try between the marks of this README, too
        #[arg(long, value_name = "FILE")]
        readme: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    console::outlive_limits();
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    if words.next().is_some_and(|name| Path::new(&name).ends_with(vramlab::rehearse::NVIDIA_SMI)) {
        let (text, status) = vramlab::rehearse::nvidia_smi(&words.collect::<Vec<String>>());
        print!("{text}");
        return ExitCode::from(console::status(status));
    }
    let code = run(Arguments::parse().command).unwrap_or_else(|error| {
        eprintln!("vramlab: {error:#}");
        1
    });
    ExitCode::from(console::status(code))
}

fn run(command: Command) -> Result<u8> {
    match command {
        #[cfg(feature = "torch")]
        Command::RunAll(options) => {
            let flags: Vec<String> = std::env::args().skip_while(|a| a != "run-all").skip(1).collect();
            let Some(summary) = vramlab::runner::run_all(&options, &flags)? else { return Ok(0) };
            let written = match &summary.results {
                None if summary.code == vramlab::runner::INTERRUPTED => return Ok(summary.code),
                None if options.out.is_some() => "there are no results, so there is no report".to_string(),
                None => "smoke results are not kept and make no report; name a folder with --out to keep them".to_string(),
                Some(results) => {
                    // What is measured elsewhere leaves the report of results/ as it is.
                    let out = match &options.out {
                        Some(_) => PathBuf::from(format!("{}-report", results.components().as_path().display())),
                        None => "report".into(),
                    };
                    match vramlab::report::write(results, &out) {
                        Ok(report) => format!("report: {}", report.display()),
                        Err(error) => format!("no report: {error:#}; `vramlab report` writes it when that is mended"),
                    }
                }
            };
            println!("{summary}  {written}");
            Ok(summary.code)
        }
        #[cfg(feature = "torch")]
        Command::Doctor => vramlab::doctor::run().map(|()| 0),
        #[cfg(feature = "torch")]
        Command::GpuDay(options) => vramlab::commands::gpu_day(&options),
        #[cfg(feature = "torch")]
        Command::Compare(options) => vramlab::commands::compare(&options),
        #[cfg(feature = "torch")]
        Command::Replay(options) => vramlab::commands::replay(&options).map(|()| 0),
        #[cfg(feature = "torch")]
        Command::Ddp(flags) => vramlab::commands::ddp(&flags).map(|()| 0),
        Command::Diff { a, b } => {
            print!("{}", vramlab::report::diff(&a, &b)?);
            Ok(0)
        }
        Command::Check { machine } => {
            let problems = vramlab::report::check(&machine)?;
            for problem in &problems {
                println!("{problem}");
            }
            anyhow::ensure!(problems.is_empty(), "{} must not be contributed as they are: see above", machine.display());
            println!("{}: whole and valid", machine.display());
            Ok(0)
        }
        Command::Rehearse(options) => Ok(vramlab::rehearse::rehearse(&options)),
        Command::Fit(options) => Ok(vramlab::rehearse::fit(&options)),
        Command::Report { results, out, readme } => {
            report(&results, &out)?;
            if let Some(readme) = readme {
                vramlab::report::show_summary(&results, &readme)?;
            }
            Ok(0)
        }
    }
}

fn report(results: &Path, out: &Path) -> Result<()> {
    let written = vramlab::report::write(results, out)?;
    println!("wrote {}", written.display());
    Ok(())
}
