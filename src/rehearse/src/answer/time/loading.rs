//! The script's own DataLoader, which runs for real in a rehearsal: what it gives on this machine beside what the card consumes.

use crate::capture::loading::Fetch;
use crate::capture::process::Trace;
use base::units::{counted, significant};
use serde::Serialize;
use std::collections::HashSet;

/// Times are of this machine; what the card consumes is predicted.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Loading {
    pub loader: String,
    pub workers: u32,
    pub batches_per_step: f64,
    /// Where the loader's length is known.
    pub steps_per_epoch: Option<u64>,
    /// One worker for one batch: the median of those after each worker's first.
    pub seconds_per_batch: f64,
    /// What all workers give, and what the card takes; of samples where a batch has a known number of them, else of batches.
    pub gives_per_second: f64,
    pub consumes_per_second: f64,
    pub unit: &'static str,
    /// Share of the time that the card waits for data.
    pub waits: f64,
    /// As many workers, each with a core of its own, as the card does not wait for.
    pub workers_needed: u32,
}

/// A share that is no waiting: the figures are not better than that.
const NOTHING: f64 = 0.05;

/// What a step takes without it; of the host, what it takes here `host_factor` times.
#[derive(Debug, Clone, Copy)]
pub struct StepSeconds {
    pub step: f64,
    pub device: f64,
    pub host: f64,
    pub host_factor: f64,
}

impl Loading {
    /// The loader of a process that most batches were taken from; none where it has none, or nothing was timed.
    pub fn of(trace: &Trace, traces: &[Trace], time: StepSeconds, (steps, cores): (u32, usize)) -> Option<Loading> {
        // One that no step after the first took from is no pace.
        let loader = trace.loaders.iter().filter(|loader| loader.per_step != Some(0.0)).max_by_key(|loader| loader.batches)?;
        let is_own = |fetch: &&Fetch| fetch.owner == trace.process.id && fetch.loads == loader.name;
        let fetches: Vec<&Fetch> = traces.iter().flat_map(|trace| &trace.fetches).filter(is_own).collect();
        // The first of each worker opens files and fills caches.
        let mut seen = HashSet::new();
        let warm: Vec<&Fetch> = fetches.iter().copied().filter(|fetch| !seen.insert(fetch.worker)).collect();
        let counted = if warm.is_empty() { &fetches } else { &warm };
        let seconds = median(counted.iter().map(|fetch| fetch.seconds))?;
        let processor = median(counted.iter().map(|fetch| fetch.processor_seconds))?;
        let batches = whole(loader.per_step.unwrap_or(loader.batches as f64 / f64::from(steps.max(1))));
        // Workers that compute need a core each.
        let cores = cores as f64;
        let at_work = match f64::from(loader.workers.max(1)) {
            workers if processor > 0.5 * seconds => workers.min(cores),
            workers => workers,
        };
        let loads = batches * seconds / at_work;
        let (alone, with) = match loader.workers {
            // The host loads before it launches, and its processor time is in the prediction's.
            0 => {
                let host = (time.host - batches * processor * time.host_factor).max(0.0);
                (time.device.max(host), time.device.max(host + loads))
            }
            _ => (time.step, time.step.max(loads)),
        };
        let samples = median(counted.iter().map(|fetch| fetch.samples as f64)).filter(|samples| *samples > 0.0);
        let of_step = batches * samples.unwrap_or(1.0);
        Some(Loading {
            loader: loader.name.clone(),
            workers: loader.workers,
            batches_per_step: batches,
            steps_per_epoch: (loader.length > 0).then(|| (loader.length as f64 / batches).ceil() as u64),
            seconds_per_batch: seconds,
            gives_per_second: of_step / loads.max(1e-9),
            consumes_per_second: of_step / alone.max(1e-9),
            unit: if samples.is_some() { "samples/s" } else { "batches/s" },
            waits: (1.0 - alone / with.max(1e-9)).max(0.0),
            workers_needed: (batches * seconds / alone.max(1e-9)).ceil().max(1.0) as u32,
        })
    }

    /// `your loader gives 494 samples/s with 2 workers, the card consumes 1120 (predicted): it waits 56 % of the time; 5 workers of this CPU would do`
    pub fn text(&self) -> String {
        let workers = match self.workers {
            0 => "in the script's own process".to_string(),
            n => format!("with {}", counted(n as usize, "worker")),
        };
        let needed = counted(self.workers_needed as usize, "worker");
        let waits = match self.waits >= NOTHING {
            true => format!("it waits {:.0} % of the time; {needed} of this CPU would do", self.waits * 100.0),
            false => "it does not wait".to_string(),
        };
        let [gives, consumes] = [self.gives_per_second, self.consumes_per_second].map(significant);
        let (loader, gives) = (&self.loader, format!("{gives} {} {workers} (measured on this machine)", self.unit));
        format!("{loader}: your loader gives {gives}, the card consumes {consumes} (predicted): {waits}")
    }
}

/// Batches of a step: whole ones, or a whole number of steps with one of them, as an attack makes forward passes.
fn whole(batches: f64) -> f64 {
    match batches {
        some if some >= 0.75 => some.round(),
        part => 1.0 / (1.0 / part).round(),
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
