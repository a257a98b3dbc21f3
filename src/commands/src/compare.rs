//! `vramlab compare`: ours beside PyTorch's, from one interleaved run of an experiment whose PyTorch reference does the same job.

use super::table::aligned;
use anyhow::{Context, Result, bail, ensure};
use base::stats::Interval;
use base::units::{quantity, ratio};
use clap::{Args, ValueEnum};
use harness::machine::DeviceChoice;
use harness::runner::{Python, RunAllContext, RunSummary};
use record::pairs::pairs;
use record::protocol::{BY, Pass, PlainCell, PlainProtocol, Profile};
use record::results::{Run, Samples};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compared {
    /// The data loader, against torch.utils.data.DataLoader with torchvision
    Loader,
    /// Training steps: values, bytes and times, against the same steps in plain PyTorch
    Pytorch,
}

impl Compared {
    /// The experiment that measures both.
    fn experiment(self) -> &'static str {
        match self {
            Compared::Loader => "loader",
            Compared::Pytorch => "agreement",
        }
    }

    /// What its reference imports besides torch.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Compared::Loader => &["torchvision", "numpy", "PIL"],
            Compared::Pytorch => &[],
        }
    }
}

/// Flags of `vramlab compare`.
#[derive(Debug, Args)]
#[command(
    after_help = "Both sides run in processes of their own, in the same rounds, one directly after the other. The raw samples stay in
OUT/MACHINE/EXPERIMENT, where `vramlab report` finds them; with --data they are thrown away, because they would not compare with others'.
PyTorch's side of the loader needs torchvision: `just peers` installs it."
)]
pub struct CompareOptions {
    /// What to compare
    what: Compared,

    /// Where to compare: cpu, cuda or cuda:N [default: the first GPU that libtorch can use, else cpu]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,

    /// Your own images for the loader, a folder with one subfolder of JPEG files for each class [default: some hundred made-up photographs]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Rounds, exactly [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: Option<u32>,

    /// Stop after this time [default: 420]
    #[arg(long, value_name = "SECONDS", default_value_t = 420, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    budget: u32,

    /// Only these cells, as a regular expression: 'workers=(0|2)', 'threads=1'
    #[arg(long, value_name = "REGEX")]
    filter: Option<String>,

    /// Folder of all results
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,

    /// Start over: remove what was compared on this machine before
    #[arg(long)]
    fresh: bool,
}

/// Runs both sides and prints them beside one another; gives the run's exit status.
///
/// # Errors
/// PyTorch's side cannot run, with what to do about it; the experiment's program is missing.
pub fn compare(options: &CompareOptions) -> Result<u8> {
    let name = options.what.experiment();
    ensure!(
        options.data.is_none() || options.what == Compared::Loader,
        "--data is for the loader: `vramlab compare loader --data DIR`"
    );
    let device = options.device.unwrap_or_else(DeviceChoice::best);
    ensure!(!matches!(device, DeviceChoice::Dry(_)), "PyTorch in Python runs on no simulated GPU; compare on cpu or cuda");
    let python = Python::find(name)?.map_err(anyhow::Error::msg)?;
    if let Some(missing) = python.lacks(options.what.modules()) {
        bail!("{} lacks {missing}, which PyTorch's side of the comparison needs; `just peers` installs it", python.describe());
    }
    let here = std::env::current_exe().context("finding this program's own file")?;
    let program = here.with_file_name(name);
    ensure!(program.exists(), "{} is missing; build all programs with `cargo build --release`", program.display());
    let scratch = options.data.as_ref().map(|_| tempfile::tempdir().context("making a folder for results that are not kept"));
    let scratch = scratch.transpose()?;
    let out = scratch.as_ref().map_or(options.out.as_path(), |scratch| scratch.path());
    let folder = tempfile::tempdir().context("making a folder for the run's summary")?;
    let within = RunAllContext { summary: folder.path().join("summary.json"), share: None, first_look: false };
    let mut command = Command::new(&program);
    command.args(["--device", &device.to_string(), "--budget", &options.budget.to_string(), "--out"]).arg(out);
    command.arg("--within").arg(serde_json::to_string(&within)?);
    command.args(options.fresh.then_some("--fresh"));
    if let Some(rounds) = options.rounds {
        command.args(["--rounds", &rounds.to_string()]);
    }
    if let Some(filter) = &options.filter {
        command.args(["--filter", filter]);
    }
    if let Some(data) = &options.data {
        let data = data.canonicalize().with_context(|| format!("--data {}", data.display()))?;
        command.env("VRAMLAB_IMAGES", data);
    }
    let status = command.status().with_context(|| format!("starting {}", program.display()))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    let Some(summary) = RunSummary::read(&within.summary)? else {
        eprintln!("compare: nothing was measured, for the reason above, so nothing is shown");
        return Ok(code);
    };
    let table = table(&summary.dir)?;
    if let (None, Some(data)) = (&table, &options.data) {
        bail!(
            "nothing could be compared, for the reasons above. An image that cannot be loaded ends both sides: look for a \
             file in {} that is no whole JPEG image",
            data.display()
        );
    }
    let taken = match (summary.passes, options.data.is_some()) {
        (_, true) => "Measured now, and not kept:".to_string(),
        (0, _) => format!("Nothing was left to measure. These figures were taken earlier, in {}:", summary.dir.display()),
        (passes, _) => format!("{passes} passes measured now; all figures of {}:", summary.dir.display()),
    };
    println!("\n{taken}\n\n{}", table.unwrap_or_default());
    // What cannot be read is no reference.
    for (there, found) in summary.left.iter().filter_map(|dir| Some((dir, self::table(dir).ok()??))) {
        println!("\nFor reference, figures that were taken elsewhere or earlier, in {}:\n\n{found}", there.display());
    }
    Ok(code)
}

/// Both sides of each comparison, metric by metric; none where there is no figure.
fn table(results: &Path) -> Result<Option<String>> {
    let run = Run::read(results)?;
    let protocol = &run.manifest.protocol;
    let samples = Samples::new(&run.passes);
    if let Some(pairs) = pairs(protocol, run.manifest.profile, &samples) {
        let rows: Vec<Vec<String>> = std::iter::once(pairs.head).chain(pairs.rows).collect();
        let notes: String = pairs.notes.iter().map(|note| format!("- {note}\n")).collect();
        let throughout = match pairs.throughout.is_empty() {
            true => String::new(),
            false => format!("Throughout: {}.\n", pairs.throughout.join(", ")),
        };
        return Ok(Some(format!("{}\n{throughout}{notes}", aligned(&rows))));
    }
    let mut rows = vec![["", "", "PyTorch", "vramlab", "ratio", "95 % interval", "rounds"].map(str::to_string).to_vec()];
    for metric in protocol.metrics.iter().filter(|metric| metric.pass == Pass::Time) {
        for cell in ours(protocol, run.manifest.profile) {
            let theirs = cell.other_side();
            let figure =
                |cell: &PlainCell| samples.value(cell, metric.name).map_or("–".to_string(), |value| quantity(value, metric.unit));
            let over = samples.ratio(&cell, &theirs, metric, 0.05);
            let (effect, interval) = over.map_or(("–".to_string(), "–".to_string()), |i: Interval| {
                (ratio(i.estimate), format!("{} to {}", ratio(i.low), ratio(i.high)))
            });
            let rounds = samples.log_ratios(&cell, &theirs, metric.name).len();
            if samples.value(&cell, metric.name).is_none() && samples.value(&theirs, metric.name).is_none() {
                continue;
            }
            rows.push(vec![
                metric.label.to_string(),
                cell.without(&[BY, "images", "size"]),
                figure(&theirs),
                figure(&cell),
                effect,
                interval,
                rounds.to_string(),
            ]);
        }
    }
    Ok((rows.len() > 1).then(|| aligned(&rows)))
}

fn ours(protocol: &PlainProtocol, profile: Profile) -> Vec<PlainCell> {
    let cells = protocol.grids(profile).flat_map(|grid| grid.cells());
    cells.filter(|cell| cell.get(BY) == Some("vramlab")).collect()
}
