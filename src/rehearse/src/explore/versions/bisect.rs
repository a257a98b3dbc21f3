//! Which release, or which commit, made a peak grow.

use super::figure::Figure;
use super::ranges::Pin;
use super::rows::JUMP;
use crate::check::Earlier;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where it grew.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct FirstBad {
    pub last_good: String,
    pub first_bad: String,
    /// What versions were compared by, and above how much one is as the bad one: bytes, or nanoseconds.
    pub figure: Figure,
    pub threshold: i64,
    /// How many were rehearsed, and those that could not be.
    pub rehearsed: usize,
    pub skipped: Vec<String>,
}

/// Rehearses a version by its name; the inner error is why it has no figures.
type Rehearse<'a> = Box<dyn FnMut(&str) -> Result<Result<Earlier>> + 'a>;

/// What versions take, by their names.
pub struct Peaks<'a> {
    rehearse: Rehearse<'a>,
    pub answers: HashMap<String, Earlier>,
    figure: Figure,
    threshold: i64,
    grows: bool,
    skipped: Vec<String>,
    progress: fn(&str),
}

impl<'a> Peaks<'a> {
    /// With both ends, which have to differ.
    ///
    /// # Errors
    /// They do not, or one of them cannot be rehearsed.
    pub fn new(
        ends: (&str, &str),
        (by, threshold): (Option<Figure>, Option<u64>),
        progress: fn(&str),
        rehearse: impl FnMut(&str) -> Result<Result<Earlier>> + 'a,
    ) -> Result<Peaks<'a>> {
        let (answers, skipped, figure) = (HashMap::new(), Vec::new(), by.unwrap_or(Figure::Allocated));
        let mut peaks = Peaks { rehearse: Box::new(rehearse), answers, figure, threshold: 0, grows: true, skipped, progress };
        peaks.end(ends.0)?;
        peaks.end(ends.1)?;
        let (first, last) = (&peaks.answers[ends.0], &peaks.answers[ends.1]);
        let change = |figure: Figure| figure.change(first, last).map_or(0.0, |changed| changed.change.abs());
        // Where nobody says it, the first that jumps, else what differs most.
        let jumps = Figure::ALL.into_iter().find(|figure| change(*figure) >= JUMP);
        let differ = || Figure::ALL.into_iter().filter(|figure| change(*figure) > 0.0);
        let most = || differ().max_by(|a, b| change(*a).total_cmp(&change(*b))).unwrap_or(figure);
        let figure = by.or(jumps).unwrap_or_else(most);
        let of = |answer| figure.of(answer).with_context(|| format!("--by {figure}: an answer does not say it"));
        let (good, bad) = (of(first)?, of(last)?);
        let [shown_good, shown_bad] = [good, bad].map(|value| figure.show(value));
        ensure!(
            change(figure) > 0.001,
            "{} and {} take the same, {shown_good} and {shown_bad}: there is nothing to find between them",
            ends.0,
            ends.1
        );
        (peaks.figure, peaks.grows) = (figure, bad > good);
        peaks.threshold = threshold.map_or(good.midpoint(bad), |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        ensure!(
            (good.min(bad)..good.max(bad)).contains(&peaks.threshold),
            "--threshold: {} is not between {shown_good} and {shown_bad}, which {} and {} take",
            figure.show(peaks.threshold),
            ends.0,
            ends.1
        );
        progress(&format!("compared by: {figure}, {shown_good} and {shown_bad}"));
        Ok(peaks)
    }

    fn end(&mut self, name: &str) -> Result<()> {
        let answer = (self.rehearse)(name)?.with_context(|| format!("{name} cannot be rehearsed"))?;
        ensure!(
            answer.verdict != "does_not_fit",
            "{name} does not fit this GPU, so that its peak is not known: name a larger one with --gpu"
        );
        self.answers.insert(name.to_string(), answer);
        Ok(())
    }

    /// Whether a version is as the bad one; none where that cannot be said.
    fn is_bad(&mut self, name: &str) -> Result<Option<bool>> {
        let figure = self.figure;
        let found = (self.rehearse)(name)?.and_then(|answer| {
            let runs_out = answer.verdict == "does_not_fit";
            let value =
                figure.of(&answer).or(runs_out.then_some(0)).with_context(|| format!("its answer does not say {figure}"))?;
            Ok((answer, value, runs_out))
        });
        match found {
            Ok((answer, value, runs_out)) => {
                let is_bad = (runs_out || value > self.threshold) == self.grows;
                let shown = figure.show(value);
                (self.progress)(&format!("{name}: {shown}, as the {} one", if is_bad { "bad" } else { "good" }));
                self.answers.insert(name.to_string(), answer);
                Ok(Some(is_bad))
            }
            Err(why) => {
                (self.progress)(&format!("{name}: skipped: {why:#}"));
                self.skipped.push(name.to_string());
                Ok(None)
            }
        }
    }

    fn found(&self, last_good: &str, first_bad: &str) -> FirstBad {
        let [last_good, first_bad] = [last_good, first_bad].map(str::to_string);
        let (figure, threshold, rehearsed) = (self.figure, self.threshold, self.answers.len());
        FirstBad { last_good, first_bad, figure, threshold, rehearsed, skipped: self.skipped.clone() }
    }

    /// Between releases, the good one first.
    pub fn of_releases(&mut self, releases: &[Pin]) -> Result<FirstBad> {
        let names: Vec<String> = releases.iter().map(Pin::to_string).collect();
        let (mut low, mut high) = (0usize, names.len().saturating_sub(1));
        loop {
            // The middle one, or the nearest to it that can be rehearsed.
            let between = (low + 1..high).filter(|at| !self.skipped.contains(&names[*at]));
            let middle = between.min_by_key(|at| at.abs_diff(low.midpoint(high)));
            let Some(at) = middle else { return Ok(self.found(&names[low], &names[high])) };
            match self.is_bad(&names[at])? {
                Some(true) => high = at,
                Some(false) => low = at,
                None => {}
            }
        }
    }

    /// Between commits of a clone, as `git bisect` chooses them in a worktree of it.
    pub fn of_commits(&mut self, worktree: &Worktree, good: &str, bad: &str) -> Result<FirstBad> {
        let mut said = worktree.git(&["bisect", "start", bad, good])?;
        loop {
            if let Some(line) =
                said.lines().find(|line| line.ends_with(" is the first bad commit") || line.contains("first bad commit is"))
            {
                let first =
                    line.split_whitespace().find(|word| word.len() >= 40).context("git bisect names no commit")?.to_string();
                let parents = worktree.git(&["rev-list", "--parents", "-n", "1", &first])?;
                let known = parents.split_whitespace().skip(1).find(|parent| self.answers.contains_key(*parent));
                return Ok(self.found(known.or_else(|| parents.split_whitespace().nth(1)).unwrap_or(good), &first));
            }
            if said.contains("only 'skip'ped commits left") {
                let left: Vec<&str> = said.lines().filter(|line| line.len() == 40).collect();
                bail!("the first bad commit is one of {}: the others of them cannot be rehearsed", left.join(", "));
            }
            let commit = worktree.git(&["rev-parse", "HEAD"])?.trim().to_string();
            let how = self.is_bad(&commit)?.map_or("skip", |is_bad| if is_bad { "bad" } else { "good" });
            said = worktree.git(&["bisect", how])?;
        }
    }
}

/// A worktree of a clone, which is gone afterwards; the clone and its own files stay as they are.
#[derive(Debug)]
pub struct Worktree {
    clone: PathBuf,
    folder: tempfile::TempDir,
}

fn git(folder: &Path, words: &[&str]) -> Result<String> {
    let done = Command::new("git").arg("-C").arg(folder).args(words).stdin(Stdio::null()).output();
    let done = done.context("starting git; is it installed?")?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    // Where only skipped commits are left git bisect ends so.
    if !done.status.success() && !said.contains("only 'skip'ped commits left") {
        bail!("git {}: {}", words.join(" "), String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(said)
}

impl Worktree {
    /// Of a clone, at a commit.
    pub fn new(clone: &Path, commit: &str) -> Result<Worktree> {
        let top = git(clone, &["rev-parse", "--show-toplevel"]).with_context(|| format!("--repo {}", clone.display()))?;
        let folder = tempfile::tempdir().context("making a folder for a worktree")?;
        let worktree = Worktree { clone: PathBuf::from(top.trim_end()), folder };
        let path = worktree.path().to_string_lossy().into_owned();
        git(&worktree.clone, &["worktree", "add", "--quiet", "--detach", &path, commit])?;
        Ok(worktree)
    }

    /// Where a clone and a commit parted: at the commit itself, if that is one of the clone's own.
    pub fn parted(folder: &Path, commit: &str) -> Result<Worktree> {
        Worktree::new(folder, git(folder, &["merge-base", "HEAD", commit])?.trim())
    }

    /// The clone's own folder.
    pub fn top(&self) -> PathBuf {
        self.clone.clone()
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    fn git(&self, words: &[&str]) -> Result<String> {
        git(&self.path(), words)
    }

    /// The whole name of a commit.
    pub fn commit(&self, name: &str) -> Result<String> {
        Ok(self
            .git(&["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")])
            .with_context(|| format!("no commit is '{name}'"))?
            .trim()
            .to_string())
    }

    /// Its files are those of a commit.
    pub fn check_out(&self, commit: &str) -> Result<()> {
        self.git(&["checkout", "--quiet", "--detach", "--force", commit]).map(|_| ())
    }

    /// First line of a commit's message, and when it was made.
    pub fn subject(&self, commit: &str) -> String {
        self.git(&["log", "-1", "--format=%h %cs %s", commit]).unwrap_or_default().trim().to_string()
    }

    /// Where a folder of the clone lies in the worktree; none of a folder elsewhere.
    pub fn place_of(&self, folder: &Path) -> Option<PathBuf> {
        folder.canonicalize().ok()?.strip_prefix(self.clone.canonicalize().ok()?).ok().map(|inside| self.path().join(inside))
    }

    /// What a package of the clone is imported from.
    pub fn imports(&self) -> Vec<PathBuf> {
        [self.path().join("src"), self.path()].into_iter().filter(|folder| folder.is_dir()).collect()
    }
}

impl Drop for Worktree {
    fn drop(&mut self) {
        let path = self.path().to_string_lossy().into_owned();
        git(&self.path(), &["bisect", "reset"]).ok();
        git(&self.clone, &["worktree", "remove", "--force", &path]).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    /// Bisects releases 0 to 40, of which those from `grows` on take more and those that `is_broken` names cannot be rehearsed.
    fn found(grows: usize, is_broken: fn(usize) -> bool, threshold: Option<u64>) -> Result<FirstBad> {
        let releases: Vec<Pin> = (0..=40).map(|n| Pin { package: "p".into(), version: n.to_string() }).collect();
        let rehearse = |name: &str| {
            let n: usize = name.strip_prefix("p==").unwrap().parse().unwrap();
            let bytes = if n >= grows { 3000 } else { 1000 + n as i64 };
            Ok(if is_broken(n) { Err(anyhow!("broken")) } else { Ok(Earlier::of_one_line(bytes, "fits")) })
        };
        let mut peaks = Peaks::new(("p==0", "p==40"), (None, threshold), |_| {}, rehearse)?;
        peaks.of_releases(&releases)
    }

    #[test]
    fn a_release_is_found_in_few_rehearsals_and_past_those_that_fail() {
        for grows in 1..=40 {
            let found = found(grows, |_| false, None).unwrap();
            assert_eq!((found.last_good, found.first_bad), (format!("p=={}", grows - 1), format!("p=={grows}")));
            assert!(found.rehearsed <= 2 + 6, "{}", found.rehearsed);
        }
        let past = found(21, |n| (18..=20).contains(&n), None).unwrap();
        assert_eq!((past.last_good.as_str(), past.first_bad.as_str()), ("p==17", "p==21"));
        assert!(past.skipped.len() >= 2, "{:?}", past.skipped);
        let why = |found: Result<FirstBad>| format!("{:#}", found.unwrap_err());
        assert!(why(found(41, |_| false, Some(1))).contains("--threshold"));
        assert!(why(found(9, |n| n == 40, None)).contains("p==40 cannot be rehearsed: broken"));
        assert!(why(found(0, |_| false, None)).contains("nothing to find"));
    }
}
