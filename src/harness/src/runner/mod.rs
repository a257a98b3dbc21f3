//! Runs an experiment: command line, cells, one child process for each cell and pass, and the record of all of it.

mod all;
mod child;
mod evidence;
mod launch;
mod options;
mod plan;
mod preconditions;
mod progress;
mod provenance;
mod python;
mod reference_process;
mod round_count;
mod shared_tensors;
mod spec;
mod start;
mod summary;
mod sweep;
mod template;

pub use all::{RunAllSummary, run_all};
pub use evidence::{EvidenceOptions, evidence};
pub use options::Options;
pub use python::{Python, for_reference, project_with};
pub use start::{interruptible, stopped};

use crate::lab;
use crate::measure::SetUp;
use anyhow::{Context, Result};
use clap::{CommandFactory, FromArgMatches};
use record::protocol::{Pass, PlainProtocol, intern};
use record::results::protocols;
use std::process::ExitCode;
use torch::allow_tf32;

/// The experiments by name, in the order of `experiments/Cargo.toml`, which lists their programs.
pub fn experiments() -> impl Iterator<Item = &'static str> {
    let lines = include_str!("../../../../experiments/Cargo.toml").lines();
    lines.filter_map(|line| Some(line.trim_start().strip_prefix("{ name = \"")?.split_once('"')?.0))
}

/// Exit status after Ctrl-C, as shells count it: 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// The `main` of an experiment, with the function that gives its protocol: `harness::main!(protocol);`.
#[macro_export]
macro_rules! main {
    ($protocol:path) => {
        fn main() -> std::process::ExitCode {
            $crate::run($protocol())
        }
    };
}

/// Parses the command line of an experiment, and runs the protocol's cells or, as a child, one of them.
pub fn run(protocol: lab::Protocol) -> ExitCode {
    match protocol.plain() {
        Ok(plain) => begin(&plain, &|cell, bench| protocol.prepare(cell, bench)),
        Err(mistakes) => {
            let list: String = mistakes.iter().map(|mistake| format!("\n  - {mistake}")).collect();
            eprintln!("{}: the protocol has mistakes, so nothing is run:{list}", protocol.name());
            ExitCode::from(2)
        }
    }
}

fn begin(protocol: &PlainProtocol, prepare: SetUp) -> ExitCode {
    let options = parse(protocol).unwrap_or_else(|error| error.exit());
    // TF32 rounds what fp32 products multiply, and cuDNN uses it unless told not to: off, but where it is what a step is about.
    if let Err(error) = allow_tf32(false, false) {
        eprintln!("{}: turning TF32 off: {error}", protocol.name);
        return ExitCode::from(2);
    }
    if let Some(folder) = &options.protocol {
        return match protocols::write(folder, protocol) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}: {error:#}", protocol.name);
                ExitCode::from(2)
            }
        };
    }
    if let Some(spec) = &options.child {
        child::run(prepare, spec)
    }
    if let Some(parent) = options.template {
        return template::serve(prepare, parent);
    }
    match start(protocol, &options) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{}: {error:#}", protocol.name);
            ExitCode::from(2)
        }
    }
}

fn parse(protocol: &PlainProtocol) -> Result<Options, clap::Error> {
    let command = Options::command().name(intern(&protocol.name)).about(protocol.title.clone()).long_about(format!(
        "{}\n\n{}\n\nResults go to OUT/MACHINE/{}, raw and resumable: the same command again goes on where it stopped.",
        protocol.title, protocol.question, protocol.name
    ));
    Options::from_arg_matches(&command.try_get_matches()?)
}

fn start(protocol: &PlainProtocol, options: &Options) -> Result<u8> {
    if let Some(file) = &options.witness {
        return evidence::tell(protocol, options, file);
    }
    let choice = options.device();
    let profile = options.profile(choice);
    let plan = match plan::Plan::new(protocol, profile, options) {
        // Among all experiments a filter is for some.
        Err(_) if options.within.is_some() && options.filter.is_some() => return Ok(0),
        plan => plan?,
    };
    if options.list {
        let is_there =
            |planned: &&plan::Planned| planned.grid.only_on.is_empty() || planned.grid.only_on.contains(&choice.platform());
        for planned in plan.cells.iter().filter(is_there) {
            let passes: Vec<String> = planned.grid.passes.iter().map(Pass::to_string).collect();
            println!("{}\t{}", planned.cell, passes.join(" "));
        }
        return Ok(0);
    }
    let rounds = round_count::rounds(protocol, choice, profile, options.rounds);
    match options.results(profile) {
        Some(out) => sweep::run(protocol, options, choice, profile, rounds, &plan, &out),
        None => {
            let scratch = tempfile::tempdir().context("making a folder for results that are not kept")?;
            sweep::run(protocol, options, choice, profile, rounds, &plan, scratch.path())
        }
    }
}
