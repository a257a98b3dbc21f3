//! `vramlab ci`: named cases of a project, rehearsed at its base and as it is, and what became of each.

use super::versions::Figure;
use crate::capture::plain::on_one_line;
use crate::check::{Earlier, Tolerance};
use crate::diff::PeakDiff;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What `vramlab.toml` says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Project {
    /// By how much each figure may grow; a case can say others.
    #[serde(default)]
    pub tolerance: Limits,
    /// A file of requirements, of which base and head each get an environment; without one both run in the command's own Python.
    pub requirements: Option<PathBuf>,
    #[serde(rename = "case", default)]
    pub cases: BTreeMap<String, Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// As it is typed: `python train.py --batch-size 8`.
    pub command: String,
    #[serde(default)]
    pub gpu: GpuNames,
    /// More flags of `vramlab rehearse`.
    #[serde(default)]
    pub flags: String,
    /// Where it is run, from the file's own folder.
    #[serde(default)]
    pub directory: PathBuf,
    #[serde(default)]
    pub tolerance: Limits,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum GpuNames {
    One(String),
    Several(Vec<String>),
}

impl Default for GpuNames {
    fn default() -> GpuNames {
        GpuNames::One("24GiB".to_string())
    }
}

impl GpuNames {
    pub fn names(&self) -> &[String] {
        match self {
            GpuNames::One(name) => std::slice::from_ref(name),
            GpuNames::Several(names) => names,
        }
    }
}

/// How much each figure may grow, as `2%` or `64MiB`; without one bytes may not grow at all, and a step's time by a tenth.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    allocated: Option<String>,
    reserved: Option<String>,
    needs: Option<String>,
    step: Option<String>,
}

impl Limits {
    fn said(&self, figure: Figure) -> Option<&str> {
        match figure {
            Figure::Tokens => &None,
            Figure::Allocated => &self.allocated,
            Figure::Reserved => &self.reserved,
            Figure::Needs => &self.needs,
            Figure::Step => &self.step,
        }
        .as_deref()
    }

    /// Of a case, else of the project.
    ///
    /// # Errors
    /// One is neither a share nor a size.
    fn tolerance(&self, project: &Limits, figure: Figure) -> Result<Tolerance> {
        let usual = if figure == Figure::Step { "10%" } else { "0%" };
        let said = self.said(figure).or(project.said(figure)).unwrap_or(usual);
        let read: Tolerance = said.parse().map_err(anyhow::Error::msg).with_context(|| format!("tolerance of {figure}"))?;
        ensure!(figure != Figure::Step || matches!(read, Tolerance::Percent(_)), "tolerance of step: a share, as in 10%");
        Ok(read)
    }
}

impl Project {
    /// # Errors
    /// There is no such file, or it says what no case has; with the line.
    pub fn read(path: &Path) -> Result<Project> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}; see docs/ci.md for one", path.display()))?;
        let project: Project = toml::from_str(&text).with_context(|| path.display().to_string())?;
        ensure!(!project.cases.is_empty(), "{}: there is no case; write one, as [case.train]", path.display());
        for (name, case) in &project.cases {
            for figure in Figure::LIMITED {
                case.tolerance.tolerance(&project.tolerance, figure).with_context(|| format!("{}: {name}", path.display()))?;
            }
        }
        Ok(project)
    }
}

/// Where a rehearsal's script failed, of the answer that it wrote: `FILE:LINE`.
pub fn failed_at(answer: &Path) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_slice(&std::fs::read(answer).ok()?).ok()?;
    let line = answer.pointer("/failed/failure/line")?;
    Some(on_one_line(&format!("{}:{}", line["file"].as_str()?, line["line"].as_u64()?)))
}

/// What became of a case, the news first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It has no answer now.
    Failed,
    /// And did at the base.
    NoLongerFits,
    Grew,
    Shrank,
    /// There is no answer at the base.
    New,
    /// Neither here nor at the base.
    DoesNotFit,
    Same,
}

/// A figure at the base and now: bytes, of a step's time nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct FigureRow {
    pub figure: Figure,
    pub before: Option<i64>,
    pub after: Option<i64>,
    /// Whether it grew by more than it may.
    pub grew: bool,
}

#[derive(Debug, Serialize)]
pub struct CaseRow {
    pub case: String,
    pub gpu: String,
    pub state: State,
    /// Why there is no answer, now or at the base.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Where it failed: `FILE:LINE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Whether it does not fit now.
    pub is_out: bool,
    pub figures: Vec<FigureRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<PeakDiff>,
}

/// Less is said to be the same, in bytes and in a step's time.
const SAME: [f64; 2] = [5e-4, 0.05];

impl CaseRow {
    /// Of the two answers, or of why there is none.
    pub fn of(name: &str, gpu: &str, before: Result<Earlier>, after: Result<Earlier>, project: &Project) -> Result<CaseRow> {
        let case = project.cases.get(name).with_context(|| format!("there is no case {name}"))?;
        let row = |state, why: Option<String>, figures, difference| {
            let (case, gpu) = (name.to_string(), gpu.to_string());
            CaseRow { case, gpu, state, why, figures, difference, place: None, is_out: false }
        };
        let after = match after {
            Ok(after) => after,
            Err(why) => {
                let why = format!("{why:#}");
                let also = before.err().map(|was| format!("{was:#}")).map_or(String::new(), |was| match was == why {
                    true => " (at the base it fails, too)".to_string(),
                    false => format!(" (at the base: {was})"),
                });
                return Ok(row(State::Failed, Some(on_one_line(&(why + &also))), Vec::new(), None));
            }
        };
        let (known, out) = (before.as_ref().ok(), |answer: &Earlier| answer.verdict == "does_not_fit");
        // What ran out of memory has no peak to compare.
        let both_end = !out(&after) && known.is_some_and(|before| !out(before));
        let mut figures = Vec::new();
        for figure in Figure::LIMITED {
            let (was, is) = (known.and_then(|before| figure.of(before)), figure.of(&after));
            let limit = case.tolerance.tolerance(&project.tolerance, figure)?;
            let grew = both_end && was.zip(is).is_some_and(|(was, is)| is - was > limit.of(was));
            figures.push(FigureRow { figure, before: was, after: is, grew });
        }
        let Ok(before) = before else {
            let why = before.err().map(|why| on_one_line(&format!("at the base: {why:#}")));
            return Ok(CaseRow { is_out: out(&after), ..row(State::New, why, figures, None) });
        };
        let changes = |row: &FigureRow| {
            let (was, is) = (row.before? as f64, row.after? as f64);
            Some((is / was - 1.0, SAME[usize::from(row.figure == Figure::Step)]))
        };
        let state = match (out(&before), out(&after)) {
            (false, true) => State::NoLongerFits,
            (true, true) => State::DoesNotFit,
            _ if figures.iter().any(|row| row.grew) => State::Grew,
            _ if figures.iter().filter_map(changes).any(|(change, least)| change < -least) => State::Shrank,
            _ => State::Same,
        };
        let difference = matches!(state, State::Grew | State::Shrank | State::NoLongerFits).then(|| before.difference(&after).ok());
        Ok(row(state, None, figures, difference.flatten()))
    }
}

/// The exit status: 1 where a case fails, 3 where one does not fit any more or is new and does not, 4 where one grew.
pub fn status(rows: &[CaseRow]) -> u8 {
    let has = |state| rows.iter().any(|row| row.state == state);
    match () {
        () if has(State::Failed) => 1,
        () if has(State::NoLongerFits) || rows.iter().any(|row| row.state == State::New && row.is_out) => 3,
        () if has(State::Grew) => 4,
        () => 0,
    }
}
