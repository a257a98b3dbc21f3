//! `vramlab rehearse`: one rehearsal and its answer, or the techniques tried on it.

use super::terminal;
use anyhow::{Context, Result, bail, ensure};
use base::order::grouped;
use base::units::Bytes;
use base::{eprint, eprintln, print};
use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use rehearse::check::{Checked, Earlier, Tolerance};
use rehearse::what_if::{self, BatchFlags, Trials};
use rehearse::{Answer, FlagTemplate, Rehearsal, RehearsalResult, RehearsalVerdict, files, preset, show};
use serde::Serialize;
use sim::cards::Card;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
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
    run: RunFlags,

    #[command(flatten)]
    outputs: Outputs,

    /// For the predicted time: the target host's time between launches, relative to what it takes here
    #[arg(long, value_name = "X", help_heading = "Time", hide_short_help = true)]
    host_factor: Option<f64>,

    /// For the predicted time: what the target host takes for each launch, in microseconds; 20 where nobody says
    #[arg(long, value_name = "X", conflicts_with = "host_factor", help_heading = "Time", hide_short_help = true)]
    launch_us: Option<f64>,

    /// For the predicted time: the limit of the target's power, where it is not the card's usual one
    #[arg(long, value_name = "W", help_heading = "Time", hide_short_help = true)]
    watts: Option<f64>,

    /// For the predicted time: a card's kernels, as `vramlab calibrate` writes them
    #[arg(long, value_name = "FILE", help_heading = "Time", hide_short_help = true)]
    constants: Vec<PathBuf>,

    /// Beside the predicted time, what it costs: rows of `card,per_hour,currency,date,source`
    #[arg(long, value_name = "FILE", help_heading = "Time")]
    prices: Option<PathBuf>,

    /// Folder for the files that the script wrote, which are held back
    #[arg(long, value_name = "DIR", conflicts_with = "writes", help_heading = "Run", hide_short_help = true)]
    keep_writes: Option<PathBuf>,

    /// Rehearse the largest batch of the training's DataLoader, too: it is given as the second
    #[arg(long, help_heading = "Run")]
    longest: bool,

    /// Memory of the target's host, for the warning where a job takes most of it; without it, this machine's
    #[arg(long, value_name = "SIZE", help_heading = "Run", hide_short_help = true)]
    host_memory: Option<Bytes>,

    /// Have the script's own clocks (time.time, time.perf_counter) advance by predicted time, so that its log shows predicted rates
    #[arg(long, conflicts_with = "device", help_heading = "Time", hide_short_help = true)]
    clock: bool,

    /// Try memory techniques on the script, one by one and together: what each saves and costs, and the lines to write
    #[arg(long, conflicts_with_all = ["keep", "badge", "check"], help_heading = "Answer")]
    what_if: bool,

    /// Rehearse a built-in model instead of a command; flags after -- are those of its training, `-- --help` lists them
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(preset::models()), help_heading = "Run")]
    model: Option<String>,

    /// With --model: samples of a micro-batch. With --what-if: the command's flag for its batch size, as in '--batch-size {}'
    #[arg(long, value_name = "N|FLAG {}", allow_hyphen_values = true, help_heading = "Answer")]
    batch: Option<BatchFlag>,

    /// With --what-if: the command's flag for its gradient accumulation steps, as in '--grad-accum {}'
    #[arg(
        long,
        value_name = "FLAG {}",
        allow_hyphen_values = true,
        requires = "batch",
        help_heading = "Answer",
        hide_short_help = true
    )]
    accumulation: Option<FlagTemplate>,

    /// With --what-if: number of GPUs for zero1, zero2 and fsdp2
    #[arg(long, value_name = "N", default_value = "2", requires = "what_if", value_parser = value_parser!(u32).range(2..), help_heading = "Answer", hide_short_help = true)]
    cards: u32,

    #[arg(long, help = what_if::only_help(), value_name = "NAMES", value_delimiter = ',', requires = "what_if", help_heading = "Answer")]
    only: Vec<String>,

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
    device: String,

    /// Keep the whole rehearsal in one file, for `vramlab show FILE`
    #[arg(long, value_name = "FILE", help_heading = "Answer")]
    keep: Option<PathBuf>,

    /// The command, after --, as in: vramlab rehearse --gpu rtx-4090 -- python train.py --batch-size 32
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
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
enum BatchFlag {
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

/// Exit status where the peak grew since the answer of `--check`.
const GREW: u8 = 4;

/// Exit status of a command line that is no rehearsal.
pub const BAD_INPUT: u8 = 2;

pub fn status(verdict: RehearsalVerdict) -> u8 {
    match verdict {
        RehearsalVerdict::Fits | RehearsalVerdict::BarelyFits => 0,
        RehearsalVerdict::ScriptFailed => 1,
        RehearsalVerdict::FitsInPart => BAD_INPUT,
        RehearsalVerdict::DoesNotFit => 3,
        RehearsalVerdict::TimedOut => 5,
        // As a shell gives it for a command that was interrupted.
        RehearsalVerdict::Interrupted => 130,
    }
}

/// Writes to a file, or with `-` to the standard output.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("writing the answer")? + "\n";
    if path.as_os_str() == "-" {
        print!("{text}")
    } else {
        files::save(path, |out| Ok(out.write_all(text.as_bytes())?))?
    }
    Ok(())
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
    /// Once the flags are seen to be possible, the rehearsal on that card.
    fn rehearsal(&self, command: &[OsString], card: Card) -> Result<Rehearsal> {
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
    fn resolved(&self) -> Result<(Vec<OsString>, Option<BatchFlags>)> {
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
const ALL: &str = "all";

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

/// Where a rehearsal's progress is printed: while the script is heard, too, in lines of its own.
pub fn progress(quiet: bool, is_silent: bool) -> fn(&str) {
    match (quiet, is_silent) {
        (true, _) => |_| {},
        (false, true) => terminal::rewritten,
        (false, false) => terminal::progress,
    }
}

/// Rehearses the command, says what came of it, and gives the exit status.
pub fn rehearse(options: &RehearseOptions) -> Result<u8> {
    if options.model.is_none() {
        let first = options
            .command
            .first()
            .context("there is no command to rehearse; write it after --, as in: vramlab rehearse -- python train.py")?;
        if let Some(flag) = first.to_str().filter(|word| word.starts_with('-')) {
            bail!("there is no flag '{flag}'; vramlab rehearse --help lists them, and the command comes after --");
        }
    }
    let (command, batch) = options.resolved()?;
    let cards = cards(&options.run.gpu)?;
    let rehearsals = cards.iter().map(|card| options.rehearsal(&command, *card)).collect::<Result<Vec<Rehearsal>>>()?;
    let [rehearsal, others @ ..] = rehearsals.as_slice() else { bail!("--gpu: name a card") };
    // What is of one answer.
    let is_of_one =
        [&options.outputs.out, &options.outputs.check, &options.keep, &options.outputs.badge].into_iter().any(Option::is_some);
    ensure!(
        others.is_empty() || !(is_of_one || options.what_if),
        "--gpu: --out, --keep, --badge, --check and --what-if take one GPU"
    );
    // Before a script has run for nothing.
    if let Some(folder) = &options.outputs.out {
        let can_write = fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
        can_write.with_context(|| format!("--out {}: files cannot be written there", folder.display()))?;
    }
    let Outputs { said, badge, check, .. } = &options.outputs;
    for (flag, file) in [("--json", &said.json), ("--keep", &options.keep), ("--badge", badge), ("--check", check)] {
        if let Some(parent) = file.as_deref().and_then(Path::parent) {
            ensure!(parent.as_os_str().is_empty() || parent.is_dir(), "{flag}: there is no folder {}", parent.display());
        }
    }
    let earlier = options.outputs.earlier()?;
    if let Some(earlier) = &earlier {
        earlier.is_of(&rehearsal.card.to_string())?;
    }
    if options.what_if {
        return what_if(options, rehearsal, batch);
    }
    if options.run.rank == Some(Rank::All) {
        ensure!(others.is_empty(), "--rank all takes one GPU");
        return all_ranks(options, rehearsal, options.run.world_size.unwrap_or(1), earlier);
    }
    if !others.is_empty() {
        return several(options, &rehearsals);
    }
    let mut found = whole(options, rehearsal)?;
    let is_read = is_read(options);
    present(&options.outputs, &mut found, earlier, options.keep.as_deref(), |found| {
        is_read.then(|| rehearsal.find_other_values(found)).flatten()
    })
}

/// Writes and prints a rehearsal, then what `more` adds to it, compares it with an earlier one, and gives the exit status.
pub fn present(
    outputs: &Outputs,
    found: &mut RehearsalResult,
    earlier: Option<Earlier>,
    kept: Option<&Path>,
    more: impl FnOnce(&mut RehearsalResult) -> Option<String>,
) -> Result<u8> {
    let is_file = outputs.said.json.as_deref().is_none_or(|path| path.as_os_str() != "-");
    let is_whole = found.answer.verdict.fits() || found.answer.verdict == RehearsalVerdict::DoesNotFit;
    let updated = outputs.check.as_deref().filter(|_| outputs.update && is_whole);
    let files = [outputs.said.json.as_deref().filter(|_| is_file), outputs.badge.as_deref(), kept, updated];
    let mut wrote: Vec<String> = files.into_iter().flatten().map(|path| path.display().to_string()).collect();
    wrote.extend(
        outputs.out.as_deref().map(|folder| format!("{} (memory.html, snapshot.pickle, trace.json, ...)", folder.display())),
    );
    let compared = earlier.filter(|_| is_whole).map(|earlier| earlier.compare(&found.answer, outputs.tolerance)).transpose()?;
    // Before anything is printed: whoever reads that may be gone. Where the disk is full, that is said after the answer. The standard output has
    // room for one.
    let write = |found: &RehearsalResult| {
        let json = outputs.said.write(&Checked { answer: &found.answer, check: compared.as_ref() });
        let out = outputs.out.as_deref().map_or(Ok(()), |folder| files::write(folder, &found.answer, &found.capture.traces));
        json.and(out).and(kept.map_or(Ok(()), |path| found.capture.keep(path)))
    };
    let mut written = if is_file { write(found) } else { Ok(()) };
    let answer = &found.answer;
    if let Some(compared) = &compared {
        if !outputs.said.quiet {
            eprintln!("\n{}", compared.first);
        }
        if compared.grew || outputs.said.is_verbose() && !outputs.said.quiet {
            eprint!("{}", compared.text);
        }
    }
    if !outputs.said.quiet {
        eprint!("\n{}", terminal::styled(&said(&outputs.said, answer)));
    }
    let others = more(found);
    if !is_file || others.is_some() {
        written = written.and(write(found));
    }
    if let Some(others) = others.filter(|_| !outputs.said.quiet) {
        eprintln!("\n{others}");
    }
    written?;
    let answer = &found.answer;
    if let Some(path) = &outputs.badge {
        let text = show::badge(answer).with_context(|| format!("--badge {}: there is no whole answer", path.display()))?;
        files::save(path, |out| Ok(out.write_all(text.as_bytes())?))?;
    }
    updated.map_or(Ok(()), |path| Earlier::keep(answer, path))?;
    if !outputs.said.quiet && !wrote.is_empty() {
        eprintln!("\nWrote {}.", wrote.join(", "));
    }
    Ok(if compared.is_some_and(|compared| compared.grew) && answer.verdict.fits() { GREW } else { status(answer.verdict) })
}

/// The answer as it is asked for: whole, in lines as wide as the terminal, or short.
fn said(said: &SaidFlags, answer: &Answer) -> String {
    if !said.is_verbose() {
        return show::short(answer);
    }
    let text = show::answer(answer).trim_start().to_string();
    terminal::columns().map_or_else(|| text.clone(), |columns| show::wrapped(&text, columns))
}

/// With the least memory that would do, unless nobody reads it.
fn whole(options: &RehearseOptions, rehearsal: &Rehearsal) -> Result<RehearsalResult> {
    rehearsal.rehearse(is_read(options))
}

/// Whether anybody reads more of an answer than its exit status.
fn is_read(options: &RehearseOptions) -> bool {
    let Outputs { said, out, badge, check, .. } = &options.outputs;
    !said.quiet || [&said.json, out, &options.keep, badge, check].into_iter().any(Option::is_some)
}

/// Tries the techniques, says what came of it, and gives the exit status.
fn what_if(options: &RehearseOptions, rehearsal: &Rehearsal, batch: Option<BatchFlags>) -> Result<u8> {
    let mut rehearsal = rehearsal.clone();
    rehearsal.progress = progress(options.outputs.said.quiet, true);
    let rehearsal = &rehearsal;
    let found = what_if::what_if(rehearsal, &Trials { batch, only: options.only.clone() })?;
    terminal::end_progress();
    let text = found.text();
    if let Some(folder) = &options.outputs.out {
        write_json(&folder.join("what-if.json"), found.rows())?;
        for (name, content) in [("what-if.txt", &text), ("what-if.svg", &found.picture()?)] {
            let path = folder.join(name);
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    options.outputs.said.say(found.rows(), &text)?;
    Ok(status(match found.fits() {
        // What was not tried might.
        _ if rehearse::was_interrupted() => RehearsalVerdict::Interrupted,
        true => RehearsalVerdict::Fits,
        false => RehearsalVerdict::DoesNotFit,
    }))
}

/// The exit status of the first answer that has another than 0.
fn first_bad(answers: &[Answer]) -> u8 {
    answers.iter().map(|answer| status(answer.verdict)).find(|status| *status != 0).unwrap_or(0)
}

/// The ranks of a job that may differ: the first two, as stages of a pipeline or groups of experts part there, the middle one and the last. Where ranks
/// send nothing from one to another, and the first and the last are equal, those between them are, too, and are not run. Prints them side by side, and
/// the answer of the one that needs most, or failed, which is the one that is kept and compared. The exit status is the first one's that is not 0.
fn all_ranks(options: &RehearseOptions, rehearsal: &Rehearsal, size: u32, earlier: Option<Earlier>) -> Result<u8> {
    let last = size.saturating_sub(1);
    let mut ranks: BTreeSet<u32> = [0, 1, size / 2, last].into_iter().filter(|rank| *rank < size).collect();
    let sent = tempfile::tempdir().context("making a folder for what ranks send each other")?;
    let rehearsal = rehearsal.in_copies()?;
    let of = |rank: u32| {
        let mut one = rehearsal.clone();
        (one.rank, one.sent, one.is_silent) = (Some((rank, size)), Some(sent.path().to_owned()), true);
        one
    };
    let run = |rank: u32| {
        (rehearsal.progress)(&format!("rank {rank} of {size}"));
        whole(options, &of(rank))
    };
    let mut found = BTreeMap::from([(0, run(0)?)]);
    let sends = |result: &RehearsalResult| {
        let pairs = result.capture.traces.iter().flat_map(|trace| trace.communicators.values()).any(|of| of.pairs > 0);
        // What the root of a group says to all of it has its kind before.
        let to_one = |name: &OsStr| name.to_str().is_some_and(|name| !name.contains('-'));
        pairs || fs::read_dir(sent.path()).is_ok_and(|objects| objects.flatten().any(|object| to_one(&object.file_name())))
    };
    if last > 1 && !sends(&found[&0]) {
        found.insert(last, run(last)?);
        if is_equal(&found[&0].answer, &found[&last].answer) {
            ranks = found.keys().copied().collect();
        }
    }
    // The stages of a pipeline are played against each other: all of the first rank's own.
    let groups = found[&0].capture.traces.iter().flat_map(|trace| trace.communicators.values()).filter(|of| of.pairs > 0);
    ranks.extend(groups.filter(|of| of.members.len() <= MOST_STAGES).flat_map(|of| of.members.clone()));
    for rank in &ranks {
        if !found.contains_key(rank) {
            found.insert(*rank, run(*rank)?);
        }
    }
    let mut answers: Vec<Answer> = found.values().map(|result| result.answer.clone()).collect();
    // What the host took for one may have been more for an equal one, since this machine was busy.
    for at in 0..answers.len() {
        let equal = answers.iter().filter(|other| is_equal(other, &answers[at])).filter_map(|other| other.time.clone());
        answers[at].time = equal.min_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
    }
    if let Some(job) = rehearse::play_ranks(found.values().map(|result| (&result.capture, &result.answer))) {
        let first = answers[0].time.clone();
        answers.iter_mut().filter_map(|answer| answer.time.as_mut()).for_each(|time| time.in_job(&job, first.as_ref()));
    }
    let names: Vec<String> = found.keys().map(u32::to_string).collect();
    let most = (0..answers.len()).max_by_key(|at| (!answers[*at].verdict.fits(), answers[*at].peak_on_device));
    let Some(at) = most else { bail!("--world-size: a job has one rank or more") };
    let (rank, mut worst) = found.into_iter().nth(at).context("a rank has no answer")?;
    worst.answer = answers[at].clone();
    if is_read(options) {
        of(rank).find_other_values(&mut worst);
        answers[at] = worst.answer.clone();
    }
    options.outputs.said.write(&answers)?;
    let answer = &answers[at];
    let said = SaidFlags { json: None, ..options.outputs.said.clone() };
    let outputs = Outputs { said, ..options.outputs.clone() };
    let code = present(&outputs, &mut worst, earlier, options.keep.as_deref(), |_| None)?;
    if !options.outputs.said.quiet {
        eprint!("{}", show::side_by_side("rank", names.iter().map(String::as_str).zip(&answers)));
        let is_whole = answer.verdict.fits() || answer.verdict == RehearsalVerdict::DoesNotFit;
        let why = if is_whole { "needs most" } else { "did not come to its steps" };
        eprintln!("\n  Rank {} {why}: the answer above is its.", names[at]);
        if size > 2 && names.len() == 2 {
            eprintln!(
                "  Ranks 0 and {last} are equal and send nothing to single others: those between them are taken to be equal, too, and were not run."
            );
        }
    }
    Ok(if code == GREW { GREW } else { first_bad(&answers) })
}

/// Of a pipeline with more, some stages alone are rehearsed, and none is played.
const MOST_STAGES: usize = 32;

/// Whether two ranks have done the same.
fn is_equal(one: &Answer, other: &Answer) -> bool {
    let bytes = |of: &Answer| {
        (of.verdict, of.steps, of.peak_requested, of.peak_allocated, of.peak_reserved, of.peak_on_device, of.needs_at_least)
    };
    let work = |of: &Answer| of.time.as_ref().map(|time| (time.launches, (time.device_seconds * 1e9).round() as u64));
    bytes(one) == bytes(other) && work(one) == work(other)
}

/// The same on more cards. What PyTorch and its libraries choose depends on the card, so each is rehearsed, all but the first in silence; cards
/// that differ by their size alone share a rehearsal, and with `--gpu all` those of one compute capability do. The exit status is the first
/// one's that is not 0; with `--gpu all` it is 0 where a card is large enough.
fn several(options: &RehearseOptions, rehearsals: &[Rehearsal]) -> Result<u8> {
    let is_all = options.run.gpu.iter().any(|name| name == ALL);
    let rehearsals = Rehearsal::all_in_copies(rehearsals)?;
    let shared = |card: &Card| (is_all.then_some(card.capability), (!is_all).then(|| card.kind()));
    let groups = grouped(rehearsals.iter().enumerate().map(|(at, one)| (shared(&one.card), at)));
    let (count, mut answers, mut left_out, mut interrupted) = (groups.len(), Vec::new(), Vec::new(), None);
    for (done, (_, group)) in groups.into_iter().enumerate() {
        let cards: Vec<Card> = group.iter().map(|at| rehearsals[*at].card).collect();
        // Workspaces grow with the multiprocessors.
        let Some(most) = group.iter().max_by_key(|at| rehearsals[**at].card.multiprocessors) else { continue };
        let mut one = rehearsals[*most].clone();
        one.is_silent |= done > 0;
        one.host_times.clone_from(&rehearsals[0].host_times);
        if is_all {
            let ((major, minor), cards) = (one.card.capability, cards.len());
            (one.progress)(&format!("{} of {count}: compute capability {major}.{minor}, cards: {cards}", done + 1));
        }
        let found = match cards.as_slice() {
            [_] if !is_all => whole(options, &one).map(|mut found| {
                if is_read(options) {
                    one.find_other_values(&mut found);
                }
                vec![found.answer]
            }),
            _ => one.on_cards(&cards),
        };
        let is_interrupted = rehearse::was_interrupted();
        if is_interrupted && !answers.is_empty() {
            interrupted = Some(done);
            break;
        }
        match found {
            Ok(found) => answers.extend(group.into_iter().zip(found)),
            // Other cards may have an answer: what a script asks for may be of a later one.
            Err(why) if is_all && !is_interrupted => left_out.push((cards, why)),
            Err(why) => return Err(why),
        }
    }
    if answers.is_empty()
        && let Some((_, why)) = left_out.pop()
    {
        return Err(why);
    }
    answers.sort_by_key(|(at, _)| *at);
    let answers: Vec<Answer> = answers.into_iter().map(|(_, answer)| answer).collect();
    options.outputs.said.write(&answers)?;
    if !options.outputs.said.quiet {
        eprint!("{}", show::side_by_side("GPU", answers.iter().map(|answer| (answer.gpu.name.as_str(), answer))));
        for (cards, why) in &left_out {
            let names: Vec<String> = cards.iter().map(Card::to_string).collect();
            eprintln!("  No answer for {}: {why:#}", names.join(", "));
        }
        if is_all {
            eprintln!(
                "\n  Cards of one compute capability shared a rehearsal, on the one with most multiprocessors and with memory for anything; the least\n  \
                 memory is that of a replay through PyTorch's allocator. --gpu NAME rehearses one card, and can differ by some MiB of workspaces."
            );
        }
    }
    if let Some(done) = interrupted {
        eprintln!("\n  Interrupted: {done} of {count} rehearsals were done.");
        return Ok(status(RehearsalVerdict::Interrupted));
    }
    if is_all && answers.iter().any(|answer| answer.verdict.fits()) {
        return Ok(0);
    }
    Ok(first_bad(&answers))
}
