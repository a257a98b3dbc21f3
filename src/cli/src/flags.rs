//! Flags of the commands that rehearse.

use super::terminal::{progress, write_json};
use anyhow::{Context, Result, bail, ensure};
use base::units::Bytes;
use base::{eprint, print};
use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use rehearse::check::{Earlier, Tolerance};
use rehearse::what_if::{self, BatchFlags};
use rehearse::{FlagTemplate, Rehearsal, preset};
use serde::Serialize;
use sim::cards::Card;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

/// What is run, and how: flags of every command that rehearses.
#[derive(Debug, Clone, Args)]
pub struct RunFlags {
    /// The simulated GPU: a card as anybody writes it (rtx-4090, "NVIDIA A100-SXM4-80GB", g5.xlarge; vramlab gpus lists them), a size, such
    /// as 24GiB, or both, as h100:79.18GiB; several, with commas, and `all` give a table
    #[arg(long, value_name = "NAME|SIZE|all", default_value = "24GiB", value_delimiter = ',', help_heading = "Answer")]
    pub gpu: Vec<String>,

    /// Stop the script after this many optimizer steps, or run it to its end with `all`
    #[arg(long, value_name = "N|all", default_value = "3", help_heading = "Run")]
    pub steps: String,

    /// Of a script without an optimizer, stop it after this many forward passes, or run it to its end with `all`; without it, loops that have no end are
    /// stopped after some
    #[arg(long, value_name = "N|all", help_heading = "Run")]
    pub passes: Option<String>,

    /// Ask a server so much over its OpenAI route once it listens, such as 8x512+64: 8 requests at a time of 512 tokens, for 64 more each; then end it
    #[arg(long, value_name = "N×IN+OUT", value_parser = requests, help_heading = "Run", hide_short_help = true)]
    pub requests: Option<(u32, u32, u32)>,

    /// Let the script change files and upload; else what it writes is held back, and your files stay as they are
    #[arg(long, help_heading = "Run", hide_short_help = true)]
    pub writes: bool,

    /// Make rows in place of data sets that are not there: of the columns that a data set of the hub describes, or of these, such as
    /// text:string,label:class10,image:image224x224
    #[arg(long, value_name = "COLUMNS", num_args = 0..=1, require_equals = true, default_missing_value = "", help_heading = "Run")]
    pub fake_data: Option<String>,

    /// Leave new parameters uninitialised, so that large models need little host memory
    #[arg(long, help_heading = "Run")]
    pub no_init: bool,

    /// Turn torch.compile off
    #[arg(long, help_heading = "Run", hide_short_help = true)]
    pub eager: bool,

    /// Stop the command after this many seconds, and report what was seen
    #[arg(long, value_name = "SECONDS", help_heading = "Run")]
    pub timeout: Option<f64>,

    /// GPUs of the simulated machine; one where it is not given, as many as a launcher starts ranks, or as many as the cloud's machine of --gpu has
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=64), help_heading = "Several processes")]
    pub gpus: Option<u32>,

    /// With --world-size: machines that the job's ranks are spread over; without it, each has as many GPUs as --gpus or the machine of --gpu says, or 8
    #[arg(long, value_name = "N", requires = "world_size", conflicts_with = "gpus", value_parser = value_parser!(u32).range(1..), help_heading = "Several processes")]
    pub nodes: Option<u32>,

    /// Let other streams' work end N kernels later, as behind a host that runs ahead of its GPU; 0 is never behind
    #[arg(long, value_name = "N", default_value = "0", help_heading = "Several processes", hide_short_help = true)]
    pub lag: u32,

    /// Run as one rank of a job with this many processes
    #[arg(long, value_name = "N", requires = "rank", help_heading = "Several processes")]
    pub world_size: Option<u32>,

    /// Which rank; `all` rehearses the first two, the middle and the last, which may differ, and says which needs most
    #[arg(long, value_name = "R|all", requires = "world_size", help_heading = "Several processes")]
    pub rank: Option<Rank>,
}

/// How an answer is said: flags of every command that rehearses.
#[derive(Debug, Clone, Args)]
pub struct SaidFlags {
    /// Write the answer as JSON to a file, or with - to the standard output
    #[arg(long, value_name = "FILE", help_heading = "Answer")]
    pub json: Option<PathBuf>,

    /// Print nothing but errors; the exit status is the answer
    #[arg(long, help_heading = "Answer")]
    pub quiet: bool,

    /// Print all of the answer: phases, modules, lines, kernels, host memory
    #[arg(short, long, help_heading = "Answer")]
    pub verbose: bool,
}

/// Set to anything, it has all of the answer printed, as `-v` does.
const VERBOSE: &str = "VRAMLAB_VERBOSE";

impl SaidFlags {
    pub fn is_verbose(&self) -> bool {
        self.verbose || std::env::var_os(VERBOSE).is_some_and(|value| !value.is_empty())
    }

    /// Writes an answer as JSON where that is wanted.
    pub fn write(&self, answer: &impl Serialize) -> Result<()> {
        self.json.as_deref().map_or(Ok(()), |path| write_json(path, answer))
    }

    /// Writes an answer as JSON where that is wanted, and prints its text, on the standard output unless JSON is there.
    pub fn say(&self, answer: &impl Serialize, text: &str) -> Result<()> {
        self.write(answer)?;
        match self.json.as_ref().is_some_and(|path| path.as_os_str() == "-") {
            _ if self.quiet => {}
            true => eprint!("{text}"),
            false => print!("{text}"),
        }
        Ok(())
    }
}

/// Where an answer goes: flags of `vramlab rehearse` and `vramlab show`.
#[derive(Debug, Clone, Args)]
pub struct Outputs {
    #[command(flatten)]
    pub said: SaidFlags,

    /// Folder for the answer's files
    #[arg(long, value_name = "DIR", help_heading = "Answer")]
    pub out: Option<PathBuf>,

    /// Write a badge for a README, such as 'fits 12 GB', as SVG
    #[arg(long, value_name = "FILE", help_heading = "CI", hide_short_help = true)]
    pub badge: Option<PathBuf>,

    /// Compare with what --update wrote, or an answer of --json or --keep; exit status 4 where the peak grew
    #[arg(long, value_name = "FILE", help_heading = "CI")]
    pub check: Option<PathBuf>,

    /// With --check: how much the peak may grow, such as 64MiB or 2%
    #[arg(long, value_name = "SIZE|%", default_value = "0%", requires = "check", help_heading = "CI")]
    pub tolerance: Tolerance,

    /// Compare nothing, and write the file of --check: small, and the same on every machine
    #[arg(long, requires = "check", help_heading = "CI")]
    pub update: bool,
}

impl Outputs {
    /// What a rehearsal is compared with.
    pub fn earlier(&self) -> Result<Option<Earlier>> {
        self.check.as_deref().filter(|_| !self.update).map(Earlier::read).transpose()
    }
}

/// Flags of `vramlab rehearse`.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "vramlab rehearse [OPTIONS] -- COMMAND...\n       vramlab rehearse [OPTIONS] --model NAME --batch N [-- FLAGS...]",
    after_help = "Exit status: 0 the script fits the GPU, 3 it does not, 1 the script failed, 2 there was nothing to rehearse or no whole answer, 4 --check: the peak grew, 5 --timeout ended it before enough was seen, 130 Ctrl-C did."
)]
pub struct RehearseOptions {
    #[command(flatten)]
    pub run: RunFlags,

    #[command(flatten)]
    pub outputs: Outputs,

    /// For the predicted time: the target host's time between launches, relative to what it takes here
    #[arg(long, value_name = "X", help_heading = "Time", hide_short_help = true)]
    pub host_factor: Option<f64>,

    /// For the predicted time: what the target host takes for each launch, in microseconds; 20 where nobody says
    #[arg(long, value_name = "X", conflicts_with = "host_factor", help_heading = "Time", hide_short_help = true)]
    pub launch_us: Option<f64>,

    /// For the predicted time: the limit of the target's power, where it is not the card's usual one
    #[arg(long, value_name = "W", help_heading = "Time", hide_short_help = true)]
    pub watts: Option<f64>,

    /// For the predicted time: a card's kernels, as `vramlab calibrate` writes them
    #[arg(long, value_name = "FILE", help_heading = "Time", hide_short_help = true)]
    pub constants: Vec<PathBuf>,

    /// Beside the predicted time, what it costs: rows of `card,per_hour,currency,date,source`
    #[arg(long, value_name = "FILE", help_heading = "Time")]
    pub prices: Option<PathBuf>,

    /// Folder for the files that the script wrote, which are held back
    #[arg(long, value_name = "DIR", conflicts_with = "writes", help_heading = "Run", hide_short_help = true)]
    pub keep_writes: Option<PathBuf>,

    /// Rehearse the largest batch of the training's DataLoader, too: it is given as the second
    #[arg(long, help_heading = "Run")]
    pub longest: bool,

    /// Memory of the target's host, for the warning where a job takes most of it; without it, this machine's
    #[arg(long, value_name = "SIZE", help_heading = "Run", hide_short_help = true)]
    pub host_memory: Option<Bytes>,

    /// Have the script's own clocks (time.time, time.perf_counter) advance by predicted time, so that its log shows predicted rates
    #[arg(long, conflicts_with = "device", help_heading = "Time", hide_short_help = true)]
    pub clock: bool,

    /// Try memory techniques on the script, one by one and together: what each saves and costs, and the lines to write
    #[arg(long, conflicts_with_all = ["keep", "badge", "check"], help_heading = "Answer")]
    pub what_if: bool,

    /// Rehearse a built-in model instead of a command; flags after -- are those of its training, `-- --help` lists them
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(preset::models()), help_heading = "Run")]
    pub model: Option<String>,

    /// With --model: samples of a micro-batch. With --what-if: the command's flag for its batch size, as in '--batch-size {}'
    #[arg(long, value_name = "N|FLAG {}", allow_hyphen_values = true, help_heading = "Answer")]
    pub batch: Option<BatchFlag>,

    /// With --what-if: the command's flag for its gradient accumulation steps, as in '--grad-accum {}'
    #[arg(
        long,
        value_name = "FLAG {}",
        allow_hyphen_values = true,
        requires = "batch",
        help_heading = "Answer",
        hide_short_help = true
    )]
    pub accumulation: Option<FlagTemplate>,

    /// With --what-if: number of GPUs for zero1, zero2 and fsdp2
    #[arg(long, value_name = "N", default_value = "2", requires = "what_if", value_parser = value_parser!(u32).range(2..), help_heading = "Answer", hide_short_help = true)]
    pub cards: u32,

    #[arg(long, help = what_if::only_help(), value_name = "NAMES", value_delimiter = ',', requires = "what_if", help_heading = "Answer")]
    pub only: Vec<String>,

    /// With --what-if: `cuda` measures bytes and times on a real GPU; `dry` is the simulated one
    #[arg(
        long,
        value_name = "dry|cuda",
        default_value = "dry",
        requires = "what_if",
        conflicts_with = "gpu",
        help_heading = "Answer",
        hide_short_help = true
    )]
    #[arg(value_parser = ["dry", "cuda"])]
    pub device: String,

    /// Keep the whole rehearsal in one file, for `vramlab show FILE`
    #[arg(long, value_name = "FILE", help_heading = "Answer")]
    pub keep: Option<PathBuf>,

    /// The command, after --, as in: vramlab rehearse --gpu rtx-4090 -- python train.py --batch-size 32
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// What `--rank` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    One(u32),
    All,
}

impl FromStr for Rank {
    type Err = String;

    fn from_str(text: &str) -> Result<Rank, String> {
        match text {
            "all" => Ok(Rank::All),
            _ => text.parse().map(Rank::One).map_err(|_| format!("'{text}' is no rank: a number from 0 on, or all")),
        }
    }
}

/// What `--requests` says.
fn requests(text: &str) -> Result<(u32, u32, u32), String> {
    let read = || {
        let (count, tokens) = text.split_once(['×', 'x'])?;
        let (given, wanted) = tokens.split_once('+')?;
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number > 0);
        Some((number(count)?, number(given)?, number(wanted)?))
    };
    read().ok_or_else(|| format!("'{text}' names no requests: write how many, their tokens and those of an answer, as in 8x512+64"))
}

/// What `--batch` says: a preset's batch, or how the user's command is given its batch.
#[derive(Debug, Clone)]
pub enum BatchFlag {
    Samples(u64),
    Template(FlagTemplate),
}

impl FromStr for BatchFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchFlag, String> {
        match text.parse() {
            Ok(0) => Err("a batch has at least one sample".to_string()),
            Ok(samples) => Ok(BatchFlag::Samples(samples)),
            Err(_) => text.parse().map(BatchFlag::Template),
        }
    }
}

impl RunFlags {
    /// Once the flags are seen to be possible, the rehearsal of a command on a card; `quiet` where no progress is printed.
    pub fn rehearsal(&self, command: &[OsString], card: Card, quiet: bool) -> Result<Rehearsal> {
        let steps = match self.steps.parse::<u32>() {
            Ok(steps) if steps > 0 => Some(steps),
            _ if self.steps == "all" => None,
            _ => bail!("--steps {}: write a number from 1 on, or all", self.steps),
        };
        let passes = match self.passes.as_deref() {
            Some("all") => Some(0),
            Some(passes) => {
                let number = passes.parse::<u32>().ok().filter(|number| *number > 0);
                Some(number.with_context(|| format!("--passes {passes}: write a number from 1 on, or all"))?)
            }
            None => None,
        };
        ensure!(
            card.memory > card.context,
            "--gpu {card}: that is {} of memory, and the CUDA context alone takes {}; write a size like 24GiB",
            Bytes(card.memory),
            Bytes(card.context)
        );
        if let Some(seconds) = self.timeout {
            ensure!(seconds > 0.0 && seconds < 1e9, "--timeout {seconds}: write a number of seconds greater than 0");
        }
        let first = if let Some(Rank::One(rank)) = self.rank { rank } else { 0 };
        let rank = self.world_size.map(|size| (first, size));
        if let Some((rank, size)) = rank {
            ensure!(rank < size, "--rank {rank}: the ranks of a job of {size} are 0 to {}", size.saturating_sub(1));
        }
        let machine = self.gpu.iter().filter(|name| name.parse() == Ok(card)).find_map(|name| sim::cards::gpus_of_machine(name));
        let of_nodes = self.nodes.zip(self.world_size).map(|(nodes, size)| {
            ensure!(
                size % nodes == 0 && size / nodes <= 64,
                "--nodes {nodes}: {size} ranks are not spread evenly over them, or more than 64 on each"
            );
            Ok(size / nodes)
        });
        let mut rehearsal = Rehearsal::new(command.to_vec(), card)?;
        (rehearsal.gpus, rehearsal.lag, rehearsal.rank) = (self.gpus.or(of_nodes.transpose()?).or(machine), self.lag, rank);
        (rehearsal.steps, rehearsal.passes, rehearsal.timeout) = (steps, passes, self.timeout);
        rehearsal.requests = self.requests;
        rehearsal.clocks = rehearse::time::clock;
        (rehearsal.no_init, rehearsal.eager, rehearsal.progress) = (self.no_init, self.eager, progress(quiet, false));
        (rehearsal.writes, rehearsal.fake_data) = (self.writes, self.fake_data.clone());
        if rank.is_some() { rehearsal.without_launcher() } else { Ok(rehearsal) }
    }

    /// Where each try is of one process.
    ///
    /// # Errors
    /// All ranks are asked for.
    pub fn ensure_one_rank(&self) -> Result<()> {
        ensure!(
            self.rank != Some(Rank::All),
            "--rank all is for vramlab rehearse, which says which rank needs most: name that one"
        );
        Ok(())
    }
}

impl RehearseOptions {
    /// Whether anybody reads more of an answer than its exit status.
    pub fn is_read(&self) -> bool {
        let Outputs { said, out, badge, check, .. } = &self.outputs;
        !said.quiet || [&said.json, out, &self.keep, badge, check].into_iter().any(Option::is_some)
    }

    /// Once the flags are seen to be possible, the rehearsal on that card.
    pub fn rehearsal(&self, command: &[OsString], card: Card) -> Result<Rehearsal> {
        ensure!(
            self.host_factor.is_none_or(|factor| (0.01..=100.0).contains(&factor)),
            "--host-factor {}: write a number from 0.01 to 100, such as 0.7 for a host that is faster than this one",
            self.host_factor.unwrap_or_default()
        );
        if let Some(launch) = self.launch_us {
            ensure!(
                (0.1..=1000.0).contains(&launch),
                "--launch-us {launch}: write microseconds from 0.1 to 1000; most hosts take 3 to 15"
            );
            rehearse::time::use_launch_seconds(launch * 1e-6);
        }
        if let Some(watts) = self.watts {
            ensure!((50.0..=2000.0).contains(&watts), "--watts {watts}: write a card's limit from 50 to 2000, such as 500");
            rehearse::time::use_power_limit(watts);
        }
        for file in &self.constants {
            rehearse::time::use_constants(file)?;
        }
        if let Some(file) = &self.prices {
            rehearse::time::use_prices(file)?;
        }
        let mut rehearsal = self.run.rehearsal(command, card, self.outputs.said.quiet)?;
        (rehearsal.host_factor, rehearsal.cards, rehearsal.clock) = (self.host_factor, self.cards, self.clock);
        (rehearsal.longest, rehearsal.host_memory) = (self.longest, self.host_memory.map(|size| size.0));
        (rehearsal.measures, rehearsal.is_silent) = (self.device == "cuda", false);
        rehearsal.leaves_stdout = self.outputs.said.json.as_deref().is_some_and(|path| path.as_os_str() == "-");
        rehearsal.keep_writes = self.keep_writes.clone();
        Ok(rehearsal)
    }

    /// The command: the user's, or a preset's; and how it is given its batch and its micro-batches.
    pub fn resolved(&self) -> Result<(Vec<OsString>, Option<BatchFlags>)> {
        match (&self.model, &self.batch) {
            (Some(model), Some(BatchFlag::Samples(samples))) => Ok((
                preset::command(model, *samples, &self.command)?,
                Some(BatchFlags { batch: preset::batch(), accumulation: Some(preset::accumulation()) }),
            )),
            (Some(model), _) => bail!("--model {model}: name the samples of a batch, as in --batch 8"),
            (None, Some(BatchFlag::Samples(samples))) => {
                bail!(
                    "--batch {samples} is for --model; of your own command it says how that is given its batch, as in '--batch-size {{}}'"
                )
            }
            (None, Some(BatchFlag::Template(batch))) => {
                ensure!(self.what_if, "--batch goes with --what-if; vramlab fit finds the largest batch that fits");
                Ok((self.command.clone(), Some(BatchFlags { batch: batch.clone(), accumulation: self.accumulation.clone() })))
            }
            (None, None) => Ok((self.command.clone(), None)),
        }
    }
}

/// The word for every card there is.
pub const ALL: &str = "all";

/// The cards that --gpu names.
pub fn cards(names: &[String]) -> Result<Vec<Card>> {
    let read = |name: &String| name.parse::<Card>().map_err(|why| anyhow::anyhow!("--gpu: {why}"));
    match names {
        [name] if name == ALL => {
            let mut cards = sim::cards::all().to_vec();
            cards.sort_by_key(|card| card.memory);
            Ok(cards)
        }
        _ => names.iter().map(read).collect(),
    }
}
