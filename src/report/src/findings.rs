//! What all results say, computed once: sections print it.

use super::claims::{self, VerdictRow};
use super::effects::Effect;
use super::markup::slug;
use super::recorded::{self, Recorded};
use record::protocol::{Platform, ShownEffect, SubjectKind};

pub struct Findings<'a> {
    pub recorded: &'a [Recorded],
    /// One record of each machine, those that measure before those that predict.
    pub machines: Vec<&'a Recorded>,
    /// The machine whose results are the column 'yours': what measures before what predicts, a GPU before a CPU, and the last of several.
    pub own: Option<&'a Recorded>,
    /// By experiment, in the order of their names.
    pub experiments: Vec<ExperimentFindings<'a>>,
}

/// What the results of one experiment say.
pub struct ExperimentFindings<'a> {
    /// One for each machine; at least one.
    pub runs: &'a [Recorded],
    pub verdicts: Vec<VerdictRow>,
    pub effects: Vec<FoundEffect<'a>>,
}

/// An effect that stands for a technique, with what each machine gives of it.
pub struct FoundEffect<'a> {
    pub shown: &'a ShownEffect,
    pub memory: Vec<Effect>,
    pub time: Vec<Effect>,
}

impl<'a> Findings<'a> {
    pub fn new(recorded: &'a [Recorded]) -> Findings<'a> {
        let machines = recorded::machines(recorded);
        let own = machines.iter().filter(|machine| machine.is_own);
        let own = own.max_by_key(|machine| (!machine.is_prediction(), machine.platform() == Platform::Gpu)).copied();
        let experiments = recorded.chunk_by(|a, b| a.protocol.name == b.protocol.name).map(ExperimentFindings::new).collect();
        Findings { recorded, machines, own, experiments }
    }
}

impl<'a> ExperimentFindings<'a> {
    fn new(runs: &'a [Recorded]) -> ExperimentFindings<'a> {
        let of = |shown: &ShownEffect, metric: &Option<String>| -> Vec<Effect> {
            runs.iter().filter_map(|run| Effect::of(run, &shown.of, metric.as_deref()?)).collect()
        };
        // What is shown is what the results say that came with the project; the user's own may be older.
        let first = runs.iter().find(|run| !run.is_own).unwrap_or(&runs[0]);
        let found = |shown: &'a ShownEffect| FoundEffect { shown, memory: of(shown, &shown.memory), time: of(shown, &shown.time) };
        ExperimentFindings {
            runs,
            verdicts: claims::verdicts(runs),
            effects: first.protocol.subject.shown.iter().map(found).collect(),
        }
    }

    pub fn name(&self) -> &'a str {
        &self.runs[0].protocol.name
    }

    /// The file of the page that it stands on.
    pub fn page(&self) -> String {
        match self.kind() {
            SubjectKind::Technique => format!("{}.md", slug(self.name())),
            SubjectKind::SelfCheck => "self-checks.md".to_string(),
            SubjectKind::Published => "published.md".to_string(),
            SubjectKind::RealGpus => "real-gpus.md".to_string(),
        }
    }

    pub fn kind(&self) -> SubjectKind {
        self.runs[0].protocol.subject.kind
    }

    /// What the technique saves, for the order of all of them: the least of the middle ratios of memory among the machines that came with the
    /// project; infinite where there is none, so that it comes last.
    pub fn saving(&self) -> f64 {
        let effects = self.effects.iter().flat_map(|found| &found.memory).filter(|effect| !effect.is_own);
        effects.map(|effect| effect.middle).fold(f64::INFINITY, f64::min)
    }
}
