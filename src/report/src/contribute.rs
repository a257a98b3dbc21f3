//! What somebody's results bring to the project: whether they may stand beside the others, what they say otherwise, and the text to send them with.

use super::check::check;
use super::diff::diff;
use super::markup::Markdown;
use super::recorded::{Recorded, read_machine};
use anyhow::{Context, Result, ensure};
use record::protocol::Platform;
use record::results::{came, folders, holds_results};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How far below a folder that is given results are looked for: an archive of a day on a GPU has `gpu-day/results/MACHINE`.
const DEPTH: usize = 3;

/// What came of looking at somebody's results.
#[derive(Debug)]
pub struct Contribution {
    /// Why they may not be contributed as they are, by machine and experiment.
    pub problems: Vec<String>,
    /// The text of the pull request.
    pub text: String,
}

/// Looks at the results of one machine or of several, in a folder or an archive, beside those that came with the project in `results`.
pub fn contribute(given: &Path, results: &Path) -> Result<Contribution> {
    let unpacked = tempfile::tempdir().context("making a folder for an archive's files")?;
    let folder = if given.is_file() {
        let status = Command::new("tar").arg("-xf").arg(given).arg("-C").arg(unpacked.path()).status().context("starting tar")?;
        ensure!(status.success(), "{} cannot be unpacked with tar", given.display());
        unpacked.path()
    } else {
        given
    };
    let machines = machines_in(folder, DEPTH);
    ensure!(!machines.is_empty(), "no results in {}: there is no MACHINE/EXPERIMENT/run.json in it", given.display());
    let (mut problems, mut text) = (Vec::new(), String::new());
    for machine in machines {
        let runs = read_machine(&machine)?;
        problems.extend(check(&machine)?.into_iter().map(|problem| format!("{}: {problem}", runs[0].machine)));
        describe(&mut text, &machine, &runs, results)?;
    }
    writeln!(
        text,
        "Made with `vramlab contribute {}`; the folders go into `records/measured/`, the protocols into `records/protocols/`, and `just report` writes the pages.",
        given.display()
    )?;
    Ok(Contribution { problems, text })
}

/// The folders of machines in a folder, or the folder itself.
fn machines_in(folder: &Path, depth: usize) -> Vec<PathBuf> {
    let folders = folders(folder).unwrap_or_default();
    if folders.iter().any(|experiment| holds_results(experiment)) {
        return vec![folder.to_path_buf()];
    }
    // What only showed that everything runs is no result.
    let folders = folders.iter().filter(|folder| !folder.ends_with("smoke"));
    if depth == 0 { Vec::new() } else { folders.flat_map(|folder| machines_in(folder, depth - 1)).collect() }
}

fn describe(text: &mut String, machine: &Path, runs: &[Recorded], results: &Path) -> Result<()> {
    let first = &runs[0];
    let identity = &first.manifest.identity;
    // What a stranger wrote is text, and no markup.
    let plain = |text: &str| Markdown::text(text).as_str().to_string();
    writeln!(text, "# Results of {}\n", plain(&first.whose()))?;
    for (what, value) in &identity.hardware {
        writeln!(text, "- {}: {}", plain(what), plain(value))?;
    }
    writeln!(text, "- libtorch: {}", plain(&identity.libtorch))?;
    let names: Vec<&str> = runs.iter().map(|run| run.protocol.name.as_str()).collect();
    writeln!(text, "- experiments: {}\n", plain(&names.join(", ")))?;
    // Measured beside measured, or else beside what was predicted.
    let others = came(results).into_iter().filter(|other| other.file_name() != machine.file_name());
    // Of several the one with most of the same experiments.
    let shared = |theirs: &[Recorded]| theirs.iter().filter(|run| names.contains(&run.protocol.name.as_str())).count();
    let about = |other: PathBuf| read_machine(&other).ok().map(|theirs| (theirs[0].platform(), shared(&theirs), other));
    let others: Vec<(Platform, usize, PathBuf)> = others.filter_map(about).collect();
    let of = |wanted: Platform| others.iter().filter(|(platform, ..)| *platform == wanted).max_by_key(|(_, shared, _)| *shared);
    if let Some((_, _, other)) = of(first.platform()).or_else(|| of(Platform::Dry)) {
        match diff(other, machine) {
            Ok(found) => writeln!(
                text,
                "Beside the project's own (A), these (B):\n\n```\n{}\n```\n",
                Markdown::code(found.trim_end()).as_str()
            )?,
            Err(nothing) => writeln!(text, "Beside the project's own results: {}.\n", plain(&format!("{nothing:#}")))?,
        }
    }
    Ok(())
}
