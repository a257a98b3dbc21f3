//! `vramlab show`: what was kept of a rehearsal, in any form that the rehearsal itself could have had.

use super::flags::Outputs;
use super::outcome::{present, status};
use anyhow::{Result, ensure};
use base::{eprint, println};
use clap::Args;
use rehearse::snapshot::{self, SnapshotAnswer};
use rehearse::{Capture, RehearsalResult, Witness, files};
use sim::cards::Card;
use std::path::{Path, PathBuf};

/// Flags of `vramlab show`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: that of the rehearsal; 2 the file cannot be read, 4 --check: the peak grew.")]
pub struct ShowOptions {
    /// What `vramlab rehearse --keep FILE` wrote, or a snapshot of a real GPU (torch.cuda.memory._dump_snapshot)
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Of a rehearsal: print 16 digits that stand for all that it asked for, in place of the answer; and what differs first from another
    #[arg(long, value_name = "OTHER")]
    witness: Option<Option<PathBuf>>,

    #[command(flatten)]
    outputs: Outputs,

    /// Of a snapshot: the card that it is to fit
    #[arg(long, value_name = "NAME|SIZE")]
    gpu: Option<Card>,

    /// Of a snapshot: a Python with PyTorch, whose allocator is asked what it would need
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: String,
}

/// Shows it, and gives the exit status.
pub fn show(options: &ShowOptions) -> Result<u8> {
    if snapshot::is_snapshot(&options.file) {
        return of_snapshot(options);
    }
    if let Some(other) = &options.witness {
        return witness(&options.file, other.as_deref());
    }
    let earlier = options.outputs.earlier()?;
    let mut found = RehearsalResult::open(&options.file)?;
    present(&options.outputs, &mut found, earlier, None, |_| None)
}

fn witness(file: &Path, other: Option<&Path>) -> Result<u8> {
    let of = |file: &Path| -> Result<Witness> { Ok(Witness::of(&Capture::open(file)?)) };
    let own = of(file)?;
    println!("{own}");
    let difference = other.map(of).transpose()?.and_then(|other| own.difference(&other));
    difference.iter().for_each(|difference| println!("{difference}"));
    Ok(if difference.is_some() { 4 } else { 0 })
}

fn of_snapshot(options: &ShowOptions) -> Result<u8> {
    ensure!(
        options.outputs.check.is_none() && options.outputs.badge.is_none(),
        "--check and --badge are for a rehearsal; of two snapshots compare what --json writes, by vramlab diff"
    );
    let found = SnapshotAnswer::open(&options.file, options.gpu, &options.python)?;
    options.outputs.said.write(&found.answer)?;
    if let Some(folder) = &options.outputs.out {
        files::write(folder, &found.answer, &found.capture.traces)?;
    }
    if !options.outputs.said.quiet {
        eprint!("{}", rehearse::show::of_snapshot(&found));
    }
    Ok(status(found.answer.verdict))
}
