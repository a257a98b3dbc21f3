//! One step of a cell, ready to be measured.

use crate::measure::{self, Probe, Quantity, Timing};
use anyhow::Result;
use tch::Tensor;

/// What one step does.
pub type Run = Box<dyn FnMut(&mut Probe) -> Result<()>>;

/// What a cell's process measures: only what the closure does counts; everything else was set up before.
pub struct Step {
    run: Run,
    outcome: Vec<Quantity>,
    items: f64,
    least_flops: f64,
    link_bytes: f64,
    timing: Timing,
    times_itself: bool,
    start: Vec<(String, Tensor)>,
}

impl Step {
    /// Does one whole step at each call. Figures that only the step can see are given with [`Probe::emit`]; what is compared with the
    /// baseline's, with [`Probe::compare`].
    pub fn new(run: impl FnMut(&mut Probe) -> Result<()> + 'static) -> Step {
        Step {
            run: Box::new(run),
            outcome: Vec::new(),
            items: 1.0,
            least_flops: 0.0,
            link_bytes: 0.0,
            timing: Timing::default(),
            times_itself: false,
            start: Vec::new(),
        }
    }

    /// Equal work items in one step; time is given for each.
    pub fn items(self, items: i64) -> Step {
        Step { items: items as f64, ..self }
    }

    /// The least fp32 operations of one step. A step that claims more than the device's specified rate is a timing bug.
    pub fn least_flops(self, least_flops: f64) -> Step {
        Step { least_flops, ..self }
    }

    /// Bytes that one step moves over the link between host and device, in one direction, where that is what is measured.
    pub fn link_bytes(self, bytes: i64) -> Step {
        Step { link_bytes: bytes as f64, ..self }
    }

    /// How long to warm up and how much to sample. What happens once in a process has no warm-up and one sample, and gets its spread from
    /// the rounds.
    pub fn timing(self, timing: Timing) -> Step {
        Step { timing, ..self }
    }

    /// The step is a procedure whose parts it times itself ([`Probe::emit`]): the time of the whole is no figure.
    pub fn times_itself(self) -> Step {
        Step { times_itself: true, ..self }
    }

    /// What the first step begins with, by name, where PyTorch's side of the comparison is to begin with the same numbers.
    pub fn start(self, start: Vec<(String, Tensor)>) -> Step {
        Step { start, ..self }
    }

    /// Changes what each step does; the closure is given what it did before. Tests break techniques with it.
    pub fn wrapped(self, mut change: impl FnMut(&mut Run, &mut Probe) -> Result<()> + 'static) -> Step {
        let mut run = self.run;
        Step { run: Box::new(move |probe| change(&mut run, probe)), ..self }
    }
}

impl measure::Step for Step {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        (self.run)(probe)?;
        self.outcome = probe.take_compared();
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(self.outcome.iter().map(Quantity::share).collect())
    }

    fn start(&self) -> Vec<(String, Tensor)> {
        self.start.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect()
    }

    fn items(&self) -> f64 {
        self.items
    }

    fn least_flops(&self) -> f64 {
        self.least_flops
    }

    fn link_bytes(&self) -> f64 {
        self.link_bytes
    }

    fn timing(&self) -> Timing {
        self.timing
    }

    fn times_itself(&self) -> bool {
        self.times_itself
    }
}
