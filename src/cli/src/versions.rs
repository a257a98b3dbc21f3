//! `vramlab versions` and `vramlab bisect`: a script with other versions of what it imports.

use super::flags::{Rank, RunFlags, SaidFlags, cards};
use super::terminal::{progress, write_json};
use anyhow::{Context, Result, bail, ensure};
use base::units::Bytes;
use base::{eprint, println};
use clap::Args;
use rehearse::check::Earlier;
use rehearse::diff::Bisected;
use rehearse::versions::bisect::{FirstBad, Peaks, Worktree};
use rehearse::versions::{Base, Environments, Figure, Table, Trial, Wanted, clear, combinations, rows};
use serde::Serialize;
use sim::cards::Card;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// How each version is rehearsed: what both commands take.
#[derive(Debug, Args)]
#[command(mut_arg("gpu", |gpu| gpu.value_name("NAME|SIZE").help("The simulated GPU, one, as for `vramlab rehearse`")))]
pub struct Rehearsing {
    #[command(flatten)]
    run: RunFlags,

    /// Version of Python, where the versions want another than the command's own: its packages are then installed again
    #[arg(long, value_name = "3.N")]
    python: Option<String>,

    /// What each environment has beside the versions, as datasets<4; may be repeated
    #[arg(long, value_name = "REQUIREMENT")]
    with: Vec<String>,

    /// Install the versions and nothing that they require: what is there stays, whatever it says
    #[arg(long)]
    no_deps: bool,

    /// The most that environments may take in the cache: those that were not used for longest are removed
    #[arg(long, value_name = "SIZE", default_value = "20GiB")]
    cache_size: Bytes,

    #[command(flatten)]
    said: SaidFlags,

    /// Keep the answer and, of each version, its answer and capture; what is there is not rehearsed again
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// The command, after --, as in: -- python train.py
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Flags of `vramlab versions`.
#[derive(Debug, Args)]
#[command(
    override_usage = "vramlab versions [OPTIONS] <--torch VERSIONS|--package NAME=VERSIONS> -- COMMAND...\n       vramlab versions --clear",
    after_help = "VERSIONS: 2.9..2.15 is the newest release of each of 2.9 to 2.15, 2.9.0..2.15.0 every release, 2.9.1,2.11.0 just these.\nWithout --timeout each has half an hour.\nExit status: 0 there are figures, 2 there are none for any version."
)]
pub struct VersionsOptions {
    /// Versions of PyTorch
    #[arg(long, value_name = "VERSIONS")]
    torch: Option<String>,

    /// Versions of a package; of several, each with each
    #[arg(long, value_name = "NAME=VERSIONS")]
    package: Vec<Wanted>,

    /// Remove all environments that are kept in the cache
    #[arg(long)]
    clear: bool,

    #[command(flatten)]
    rehearsing: Rehearsing,
}

/// Flags of `vramlab bisect`.
#[derive(Debug, Args)]
#[command(
    override_usage = "vramlab bisect [OPTIONS] --package NAME GOOD BAD -- COMMAND...\n       vramlab bisect [OPTIONS] --repo CLONE GOOD BAD -- COMMAND...",
    after_help = "Without --timeout each version has half an hour.\nExit status: 0 found, 2 not."
)]
pub struct BisectOptions {
    /// The package whose releases are tried
    #[arg(long, value_name = "NAME", required_unless_present = "repo", conflicts_with = "repo")]
    package: Option<String>,

    /// A clone whose commits are tried, in a worktree of it: of the script, or of a package of Python alone
    #[arg(long, value_name = "CLONE")]
    repo: Option<PathBuf>,

    /// A release or commit before it grew
    #[arg(value_name = "GOOD")]
    good: String,

    /// A later one
    #[arg(value_name = "BAD")]
    bad: String,

    /// What is compared: tokens (of a server), allocated, reserved, needs or step; without it the first of these that differs by 5 %
    #[arg(long, value_name = "FIGURE")]
    by: Option<Figure>,

    /// Bytes above which it is bad; else halfway between the two
    #[arg(long, value_name = "SIZE")]
    threshold: Option<Bytes>,

    #[command(flatten)]
    rehearsing: Rehearsing,
}

/// Where rows are kept: a folder of the user's, or one that is gone afterwards.
struct Place {
    path: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

/// A version whose script goes on for longer is ended, where no --timeout says it.
const LONGEST_SECONDS: f64 = 1800.0;

/// What an earlier run in the same folder has to have asked for.
const ASKED: &str = "asked.json";

impl Rehearsing {
    fn card(&self) -> Result<Card> {
        match cards(&self.run.gpu)?.as_slice() {
            [card] => Ok(*card),
            _ => bail!("--gpu: name one card"),
        }
    }

    fn place(&self, more: &str) -> Result<Place> {
        let Some(folder) = &self.out else {
            let folder = tempfile::tempdir().context("making a folder for answers")?;
            return Ok(Place { path: folder.path().to_owned(), _temporary: Some(folder) });
        };
        fs::create_dir_all(folder).with_context(|| format!("--out {}", folder.display()))?;
        let command: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let here = std::env::current_dir().unwrap_or_default();
        let asked = format!("{}\n", serde_json::json!([command, self.flags()?, self.python, self.with, self.no_deps, more, here]));
        let known = folder.join(ASKED);
        if let Ok(other) = fs::read_to_string(&known) {
            ensure!(
                other == asked,
                "--out {}: there are rows of another command or other flags; name another folder",
                folder.display()
            );
        }
        fs::write(&known, asked).with_context(|| format!("writing {}", known.display()))?;
        Ok(Place { path: fs::canonicalize(folder).with_context(|| format!("--out {}", folder.display()))?, _temporary: None })
    }

    fn flags(&self) -> Result<Vec<String>> {
        let RunFlags { steps, timeout, fake_data, gpus, lag, world_size, rank, .. } = &self.run;
        self.run.ensure_one_rank()?;
        let timeout = timeout.unwrap_or(LONGEST_SECONDS).to_string();
        let mut flags = ["--gpu", &self.card()?.to_string(), "--steps", steps, "--timeout", &timeout].map(String::from).to_vec();
        flags.extend(fake_data.iter().map(|columns| format!("--fake-data={columns}")));
        let rank = if let Some(Rank::One(rank)) = rank { Some(*rank) } else { None };
        let numbers = [("gpus", *gpus), ("lag", (*lag > 0).then_some(*lag)), ("world-size", *world_size), ("rank", rank)];
        flags.extend(numbers.iter().filter_map(|(flag, number)| Some(format!("--{flag}={}", (*number)?))));
        let switches = [("--writes", self.run.writes), ("--no-init", self.run.no_init), ("--eager", self.run.eager)];
        flags.extend(switches.iter().filter(|(_, is_on)| *is_on).map(|(flag, _)| flag.to_string()));
        Ok(flags)
    }

    /// What the environments are made with beside the versions, as flags.
    fn environment_flags(&self) -> String {
        let python = self.python.iter().map(|version| format!(" --python {version}"));
        let with = self.with.iter().map(|requirement| format!(" --with '{requirement}'"));
        python.chain(with).chain(self.no_deps.then(|| " --no-deps".to_string())).collect()
    }

    fn trial<'a>(&self, base: &'a Base, out: &'a Path) -> Result<Trial<'a>> {
        let program = std::env::current_exe().context("finding this program's own file")?;
        let flags = self.flags()?.into_iter().map(OsString::from).collect();
        Ok(Trial { program, flags, base, out, zygotes: None })
    }

    fn environments<'a>(&self, base: &'a Base) -> Environments<'a> {
        let (python, with, limit) = (self.python.clone(), self.with.clone(), self.cache_size.0);
        Environments { base, python, with, has_no_dependencies: self.no_deps, limit, progress: progress(self.said.quiet, false) }
    }

    fn present(&self, place: &Place, name: &str, value: &impl Serialize, text: &str) -> Result<()> {
        if self.out.is_some() {
            write_json(&place.path.join(format!("{name}.json")), value)?;
            fs::write(place.path.join(format!("{name}.txt")), text).with_context(|| format!("writing {name}.txt"))?;
        }
        self.said.say(value, text)
    }
}

/// Rehearses each version, says what it takes, and gives the exit status.
pub fn versions(options: &VersionsOptions) -> Result<u8> {
    if options.clear {
        let (count, bytes) = clear()?;
        println!("removed environments: {count}, {}", Bytes(bytes));
        return Ok(0);
    }
    let rehearsing = &options.rehearsing;
    let torch = options.torch.iter().map(|versions| Wanted { package: "torch".to_string(), versions: versions.clone() });
    let packages: Vec<Wanted> = torch.chain(options.package.iter().cloned()).collect();
    ensure!(!packages.is_empty(), "name what to vary: --torch 2.9..2.15, or --package transformers=4.50..4.57");
    let (base, card, place) = (Base::of(&rehearsing.command)?, rehearsing.card()?, rehearsing.place("")?);
    // The index takes ten seconds to answer.
    let released = |wanted: &Wanted| wanted.named().map_or_else(|| base.released(&wanted.package), Ok);
    let pins = packages.iter().map(|wanted| wanted.choose(&released(wanted)?)).collect::<Result<Vec<_>>>()?;
    let (trial, environments) = (rehearsing.trial(&base, &place.path)?, rehearsing.environments(&base));
    let rehearse = |name: &str, pins: &[_]| trial.with(&environments, name, pins);
    let rows = rows(combinations(&pins), rehearse, progress(rehearsing.said.quiet, false))?;
    let table = Table::new(&trial, &card.to_string(), rows);
    rehearsing.present(&place, "versions", &table, &table.text())?;
    if rehearsing.out.is_some() && table.has_figures() {
        let picture = place.path.join("versions.svg");
        fs::write(&picture, table.picture()?).with_context(|| format!("writing {}", picture.display()))?;
    }
    Ok(if table.has_figures() { 0 } else { 2 })
}

/// Finds the version that made it grow, says it, and gives the exit status.
pub fn bisect(options: &BisectOptions) -> Result<u8> {
    let rehearsing = &options.rehearsing;
    let (base, progress) = (Base::of(&rehearsing.command)?, progress(rehearsing.said.quiet, false));
    let place = rehearsing.place(&format!("{:?} {:?}", options.package, options.repo))?;
    let trial = rehearsing.trial(&base, &place.path)?;
    let threshold = (options.by, options.threshold.map(|size| size.0));
    let (good, bad) = (options.good.as_str(), options.bad.as_str());
    let command: Vec<_> = rehearsing.command.iter().map(|word| word.to_string_lossy()).collect();
    let flags = rehearsing.flags()?.join(" ");
    let again = |found: &FirstBad| {
        let version = |name: &str| name.split_once("==").map_or(String::new(), |(_, version)| version.to_string());
        let package = options.package.as_deref().unwrap_or_default();
        let pair = format!("{},{}", version(&found.last_good), version(&found.first_bad));
        let made_with = rehearsing.environment_flags();
        format!("vramlab versions {flags}{made_with} --package {package}={pair} -- {}", command.join(" "))
    };
    let Some(clone) = &options.repo else {
        let wanted: Wanted =
            format!("{}={bad}", options.package.as_deref().unwrap_or_default()).parse().map_err(anyhow::Error::msg)?;
        let releases = wanted.between(good, bad, &base.released(&wanted.package)?)?;
        let environments = rehearsing.environments(&base);
        let rehearse = |name: &str| {
            let Some(pin) = releases.iter().find(|pin| pin.to_string() == name) else { bail!("{name} is no release") };
            trial.with(&environments, name, std::slice::from_ref(pin))
        };
        let (Some(first), Some(last)) = (releases.first(), releases.last()) else { bail!("there are no releases between them") };
        let mut peaks = Peaks::new((&first.to_string(), &last.to_string()), threshold, progress, rehearse)?;
        let found = peaks.of_releases(&releases)?;
        return report_first_bad(rehearsing, &place, &found, &peaks, &found.first_bad, &again(&found));
    };
    let worktree = Worktree::new(clone, bad)?;
    let (good, bad) = (worktree.commit(good)?, worktree.commit(bad)?);
    let folder = std::env::current_dir().ok().and_then(|here| worktree.place_of(&here));
    let rehearse = |commit: &str| {
        if let Some(kept) = trial.kept(commit) {
            return Ok(Ok(kept));
        }
        worktree.check_out(commit)?;
        // A folder that this commit does not have.
        let folder = folder.as_deref().map(|folder| if folder.is_dir() { folder.to_owned() } else { worktree.path() });
        trial.run(commit, &base.python, folder.as_deref(), &worktree.imports(), &[])
    };
    let mut peaks = Peaks::new((&good, &bad), threshold, progress, rehearse)?;
    let found = peaks.of_commits(&worktree, &good, &bad)?;
    let again = format!("git -C {} show {}", clone.display(), found.first_bad);
    report_first_bad(rehearsing, &place, &found, &peaks, &worktree.subject(&found.first_bad), &again)
}

fn report_first_bad(
    rehearsing: &Rehearsing,
    place: &Place,
    found: &FirstBad,
    peaks: &Peaks,
    title: &str,
    again: &str,
) -> Result<u8> {
    let of = |name: &str| peaks.answers.get(name).with_context(|| format!("{name} was not rehearsed"));
    let (before, after): (&Earlier, &Earlier) = (of(&found.last_good)?, of(&found.first_bad)?);
    let difference = before.difference(after)?;
    let much = if found.figure.of(after) < found.figure.of(before) { "little" } else { "much" };
    let text = format!(
        "{title}\n  is the first that takes as {much}; {} is the last that does not. Rehearsed: {}, could not be: {}.\n{}\n{}\n  To see it again:\n    {again}\n",
        found.last_good,
        found.rehearsed,
        found.skipped.len(),
        before.heading(after),
        difference.text()
    );
    if !found.skipped.is_empty() && !rehearsing.said.quiet {
        eprint!("vramlab: skipped, so that it may be one of them: {}\n", found.skipped.join(", "));
    }
    rehearsing.present(place, "bisect", &Bisected { found, difference }, &text)?;
    Ok(0)
}
