//! Whether today's steps ask for what was asked for when they were measured: the witness of each measured cell, made again.
//!
//! A witness is taken on the simulated GPU, or on the CPU where the cell is about nothing else, so that any machine can make it. It does not
//! change with the names in a source, its files or its order.

use super::launch::Launcher;
use super::python::{Python, for_reference};
use super::reference_process::Exchanges;
use super::spec::Spec;
use super::start::{interruptible, stopped};
use super::template::Templates;
use super::{INTERRUPTED, all::program};
use crate::machine::{DeviceChoice, cores};
use anyhow::{Context, Result, ensure};
use base::units::{Bytes, counted};
use rand::seq::SliceRandom;
use record::protocol::{DEVICE_MEMORY, Method, Pass, PlainCell, PlainProtocol, Platform};
use record::results::witnesses::{self, VARIES, Witness};
use record::results::{Run, Status, folders, records};
use serde::{Deserialize, Serialize};
use sim::cards::Card;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

/// Bytes of the simulated GPU: none of the GPUs that measured has more.
const MEMORY: u64 = 141 << 30;

/// Longer no step takes on a simulated GPU.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Flags of `vramlab evidence`.
#[derive(Debug, clap::Args)]
pub struct EvidenceOptions {
    /// Cells that only CPUs measured, drawn by chance beside all that GPUs did
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub cells: usize,

    /// Only these experiments
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Write down the witnesses of cells that have none, and what differs today
    #[arg(long)]
    pub write: bool,
}

/// What a program of an experiment is asked.
#[derive(Debug, Serialize, Deserialize)]
struct WitnessRequest {
    revision: u32,
    /// Cells, with the witness of before, which may be empty.
    cells: Vec<(PlainCell, String)>,
}

/// A line of its answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct WitnessRow {
    cell: PlainCell,
    /// Empty where today's program has no such cell, as `difference` says.
    witness: String,
    difference: String,
    /// Why the step came to no end here, which says nothing of what it asks for.
    failed: String,
}

/// Makes the witnesses that a file asks for and prints them, a line each.
pub fn tell(protocol: &PlainProtocol, options: &super::Options, file: &Path) -> Result<u8> {
    interruptible()?;
    let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let asked: WitnessRequest =
        serde_json::from_slice(&text).with_context(|| format!("{} is for the lab's own use", file.display()))?;
    let simulated = DeviceChoice::Dry(Card::of_size(MEMORY));
    let python = asked.cells.iter().any(|(cell, _)| cell.is_reference()).then(|| Python::find(&protocol.name)).transpose()?;
    let launcher =
        |choice| Launcher { choice, device_memory: Some(MEMORY), timeout: TIMEOUT, usual: BTreeMap::new(), python: python.clone() };
    let launchers = [launcher(simulated), launcher(DeviceChoice::Cpu)];
    let (mut templates, mut exchanges) = ([Templates::default(), Templates::default()], Exchanges::default());
    for (cell, known) in asked.cells {
        let mut of = |known: &str| -> Result<Option<WitnessRow>> {
            let told = |witness: &str, difference: &str| WitnessRow {
                cell: cell.clone(),
                witness: witness.to_string(),
                difference: difference.to_string(),
                failed: String::new(),
            };
            if asked.revision != protocol.revision {
                return Ok(Some(told("", &format!("the method is of revision {} now", protocol.revision))));
            }
            let Some(grid) = protocol.grids.iter().find(|grid| grid.contains(&cell)) else {
                return Ok(Some(told("", "no grid plans it any more")));
            };
            let is_simulated = grid.only_on.is_empty() || grid.only_on.iter().any(|on| *on != Platform::Cpu);
            let at = usize::from(!is_simulated);
            let threads = cell.threads().and_then(|level| level.parse().ok()).unwrap_or(1);
            let limit = cell.get(DEVICE_MEMORY).map(str::parse::<Bytes>).transpose().map_err(anyhow::Error::msg)?;
            let spec = Spec {
                cell: cell.clone(),
                pass: Pass::Memory,
                round: 1,
                device: launchers[at].choice.to_string(),
                threads,
                seed: options.seed,
                memory_limit: limit.map(|bytes| bytes.0),
                baseline: grid.baseline_of(&cell),
                expected: None,
                exchange: grid.is_shared().then(|| exchanges.files(&cell)).transpose()?,
                writes_for_other_side: false,
                waits: false,
                anew: false,
                reference: cell.is_reference().then(|| for_reference(threads)).transpose()?,
                witness: Some(known.to_string()),
                alloc_conf: cell.alloc_conf().map(str::to_string),
                parent: std::process::id(),
            };
            let record = launchers[at].run(&spec, &mut templates[at])?;
            Ok(record.map(|record| match (record.status, record.reason.split_once('|')) {
                (Status::Ok, Some((witness, difference))) => told(witness, difference),
                (status, _) => WitnessRow { failed: format!("{status}: {}", record.reason), ..told("", "") },
            }))
        };
        let Some(mut made) = of(&known)? else { return Ok(INTERRUPTED) };
        // What a second run does not give again is no witness, and a difference no finding.
        if !made.witness.is_empty() && (known.is_empty() || !made.difference.is_empty()) {
            let Some(again) = of(&made.witness)? else { return Ok(INTERRUPTED) };
            if !again.difference.is_empty() || !again.failed.is_empty() {
                (made.witness, made.difference) = (VARIES.to_string(), String::new());
            }
        }
        println!("{}", serde_json::to_string(&made)?);
    }
    Ok(0)
}

/// The measured cells of a method, and whether a GPU measured them.
type Measured = BTreeMap<PlainCell, bool>;

/// What came of the cells of a method.
#[derive(Debug, Default)]
struct Outcome {
    compared: usize,
    added: usize,
    /// What is not as it is written down.
    changed: Vec<String>,
}

/// Makes the witnesses of measured cells again, and says which ask for something else today; gives the exit status.
///
/// # Errors
/// There are no records; a program is missing.
pub fn evidence(options: &EvidenceOptions) -> Result<u8> {
    interruptible()?;
    let records = records(Path::new("results"));
    let mut methods = measured(&records.join("measured"))?;
    methods.retain(|method, _| options.only.is_empty() || options.only.contains(&method.experiment));
    let of_cpu = |(method, cells): (&Method, &Measured)| -> Vec<(Method, PlainCell)> {
        cells.iter().filter(|(_, on_gpu)| !**on_gpu).map(|(cell, _)| (method.clone(), cell.clone())).collect()
    };
    let mut drawn: Vec<_> = methods.iter().flat_map(of_cpu).collect();
    drawn.shuffle(&mut rand::rng());
    drawn.truncate(options.cells);
    let (waiting, outcomes) = (Mutex::new(methods.into_iter()), Mutex::new(Vec::new()));
    let work = || {
        while let Some((method, cells)) = waiting.lock().ok().and_then(|mut waiting| waiting.next()).filter(|_| !stopped()) {
            let is_wanted = |cell: &PlainCell| cells[cell] || drawn.iter().any(|(of, drawn)| *of == method && drawn == cell);
            let outcome = compare(&records, &method, cells.keys(), is_wanted, options.write);
            outcomes.lock().map(|mut outcomes| outcomes.push(outcome)).unwrap_or_default();
        }
    };
    std::thread::scope(|scope| (0..cores()).for_each(|_| drop(scope.spawn(work))));
    if stopped() {
        return Ok(INTERRUPTED);
    }
    let mut all = Outcome::default();
    for outcome in outcomes.into_inner().unwrap_or_default() {
        let Outcome { compared, added, changed } = outcome?;
        all.compared += compared;
        all.added += added;
        all.changed.extend(changed);
    }
    all.changed.iter().for_each(|changed| println!("{changed}"));
    let added = if options.write { format!(", {} written down anew", all.added) } else { String::new() };
    println!(
        "evidence: {} of {} ask for what is written down{added}",
        all.compared - all.changed.len(),
        counted(all.compared, "measured cell")
    );
    if !options.write && !all.changed.is_empty() {
        println!(
            "If the steps are to be others now, raise the revision of the method, or write it down with --write: pages then say so."
        );
    }
    Ok(u8::from(!options.write && !all.changed.is_empty()))
}

/// The measured cells of each method.
fn measured(machines: &Path) -> Result<BTreeMap<Method, Measured>> {
    let mut methods: BTreeMap<Method, Measured> = BTreeMap::new();
    for experiment in folders(machines)?.iter().map(|machine| folders(machine)).collect::<Result<Vec<_>>>()?.concat() {
        let run = Run::read(&experiment)?;
        let cells = methods.entry(run.manifest.method).or_default();
        let on_gpu = run.manifest.identity.platform == Platform::Gpu;
        for pass in run.passes.into_iter().filter(|pass| pass.status == Status::Ok && !pass.samples.is_empty()) {
            *cells.entry(pass.cell).or_default() |= on_gpu;
        }
    }
    Ok(methods)
}

/// Asks for the witnesses of a method's cells: of those that are wanted, and to be written down of those that have none.
fn compare<'a>(
    records: &Path,
    method: &Method,
    cells: impl Iterator<Item = &'a PlainCell>,
    is_wanted: impl Fn(&PlainCell) -> bool,
    write: bool,
) -> Result<Outcome> {
    let mut known = witnesses::read(records, method)?;
    let place = |known: &[Witness], cell: &PlainCell| known.iter().position(|row| row.cell == *cell);
    let asked = cells.filter_map(|cell| match place(&known, cell) {
        None if write => Some((cell.clone(), String::new())),
        Some(at) if is_wanted(cell) && !known[at].trail.is_empty() => Some((cell.clone(), known[at].text())),
        _ => None,
    });
    let asked: Vec<(PlainCell, String)> = asked.collect();
    let mut outcome = Outcome::default();
    if asked.is_empty() {
        return Ok(outcome);
    }
    for WitnessRow { cell, witness, difference, failed } in ask(method, asked)? {
        if !failed.is_empty() {
            println!("{method}, {cell}: no witness here: {failed}");
            continue;
        }
        let (witness, trail) = witness.split_once(' ').unwrap_or((&witness, ""));
        let Some(at) = place(&known, &cell) else {
            known.push(Witness { cell, witness: witness.to_string(), trail: trail.to_string(), today: difference });
            outcome.added += 1;
            continue;
        };
        outcome.compared += 1;
        if known[at].today != difference {
            let what = if difference.is_empty() { "asks for what it asked for when it was measured again" } else { &difference };
            outcome.changed.push(format!("{method}, {cell}: {what}"));
            known[at].today = difference;
        }
    }
    if write {
        witnesses::write(records, method, known)?;
    }
    Ok(outcome)
}

/// What the program of a method tells of cells.
fn ask(method: &Method, cells: Vec<(PlainCell, String)>) -> Result<Vec<WitnessRow>> {
    let mut file = tempfile::NamedTempFile::new().context("making a file for the cells that are asked for")?;
    serde_json::to_writer(&mut file, &WitnessRequest { revision: method.revision, cells })?;
    file.flush()?;
    // What a product in 16 bits allocates on a CPU depends on its instructions: these are every machine's.
    let mut command = program(&method.experiment)?;
    command.env("ONEDNN_MAX_CPU_ISA", "AVX2").env("ATEN_CPU_CAPABILITY", "avx2");
    let output = command.arg("--witness").arg(file.path()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("starting {}", method.experiment))?;
    ensure!(output.status.success(), "{} ended with {}", method.experiment, output.status);
    let lines = String::from_utf8(output.stdout)?;
    lines.lines().map(|line| serde_json::from_str(line).with_context(|| format!("{}: {line}", method.experiment))).collect()
}
