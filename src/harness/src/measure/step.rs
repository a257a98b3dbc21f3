//! A step of a cell, and what it tells about itself while it runs.

use super::{Timing, sample};
use anyhow::Result;
use num_traits::AsPrimitive;
use record::protocol::{ACTIVATIONS, Metric, Pass, Role};
use record::results::Sample;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use tch::Tensor;
use torch::{Backend, Memory};

/// What one step does.
type Run = Box<dyn FnMut(&mut Probe) -> Result<()>>;

/// One step of a cell, ready to be measured: only what the closure does counts; everything else was set up before.
pub struct Step {
    run: Run,
    pub(super) items: f64,
    pub(super) least_flops: f64,
    pub(super) link_bytes: f64,
    /// Figures by the time of a step, with the work that it does.
    pub(super) rates: Vec<(Metric, f64)>,
    pub(crate) timing: Timing,
    start: Vec<(String, Tensor)>,
}

impl Step {
    /// Does one whole step at each call. Figures that only the step can see are given with [`Probe::emit`]; what is compared with the
    /// baseline's, with [`Probe::compare`].
    pub fn new(run: impl FnMut(&mut Probe) -> Result<()> + 'static) -> Step {
        let (timing, rates, start) = (Timing::default(), Vec::new(), Vec::new());
        Step { run: Box::new(run), items: 1.0, least_flops: 0.0, link_bytes: 0.0, rates, timing, start }
    }

    /// Equal work items in one step; time is given for each.
    pub fn items(self, items: i64) -> Step {
        Step { items: items as f64, ..self }
    }

    /// The least fp32 operations of one step. A step that claims more than the device's specified rate is a timing bug.
    pub fn least_flops(self, least_flops: f64) -> Step {
        Step { least_flops, ..self }
    }

    /// Whether it has operations to count, so that the clock of the device's cores decides its time.
    pub fn computes(&self) -> bool {
        self.least_flops > 0.0
    }

    /// Bytes that one step moves over the link between host and device, in one direction, where that is what is measured. A step that moves
    /// more than the link's specified rate is a timing bug.
    pub fn link_bytes(self, bytes: i64) -> Step {
        Step { link_bytes: bytes as f64, ..self }
    }

    /// How long to warm up and how much to sample in the time pass. What happens once in a process (a load, a first epoch) has no warm-up and
    /// one sample, and gets its spread from the rounds.
    pub fn timing(self, timing: Timing) -> Step {
        Step { timing, ..self }
    }

    /// What each step does so much of: a figure of each sample by its time, as bytes or operations a second.
    pub fn rate(mut self, metric: Metric, work: f64) -> Step {
        self.rates.push((metric, work));
        self
    }

    /// What the first step begins with, by name, where PyTorch's side of the comparison is to begin with the same numbers: parameters and
    /// buffers, under their names in the model, and inputs.
    pub fn start(self, start: Vec<(String, Tensor)>) -> Step {
        Step { start, ..self }
    }

    /// What [`Step::start`] was given.
    pub fn begins_with(&self) -> &[(String, Tensor)] {
        &self.start
    }

    /// Changes what the step gives to compare, as a test does that breaks a technique.
    pub fn altered(self, change: impl Fn(&Tensor) -> Tensor + 'static) -> Step {
        let mut run = self.run;
        let altered = move |probe: &mut Probe| {
            run(probe)?;
            for quantity in probe.compared.iter_mut().flatten() {
                quantity.tensors = quantity.tensors.iter().map(&change).collect();
            }
            Ok(())
        };
        Step { run: Box::new(altered), ..self }
    }

    /// Does one whole step.
    ///
    /// # Errors
    /// What the step fails with; where the protocol expects an error, its message is compared.
    pub fn run(&mut self, probe: &mut Probe) -> Result<()> {
        (self.run)(probe)
    }
}

/// A computed result: the gradients, say.
#[derive(Debug)]
pub struct Quantity {
    pub name: String,
    pub tensors: Vec<Tensor>,
}

/// What a step tells about itself while it runs: bytes in the memory pass, where it reads the meter, samples in the time pass, and in the
/// check nothing.
#[derive(Default)]
pub struct Probe<'a> {
    meter: Option<&'a dyn Backend>,
    /// What is compared, where that is what the step is run for.
    pub(super) compared: Option<Vec<Quantity>>,
    /// Samples that the step gave beside its time; none where time is not what is measured.
    pub(super) sampled: Option<Vec<Sample>>,
    /// Unit and value by metric.
    pub(super) figures: BTreeMap<Cow<'static, str>, (&'static str, f64)>,
    pub(super) details: Vec<Sample>,
    pub(super) rest: Option<i64>,
    pub(super) failure: OnceCell<anyhow::Error>,
}

impl<'a> Probe<'a> {
    pub fn idle() -> Probe<'a> {
        Probe::default()
    }

    /// For a step that is run to be compared.
    pub fn comparing() -> Probe<'a> {
        Probe { compared: Some(Vec::new()), ..Probe::idle() }
    }

    pub(super) fn timing() -> Probe<'a> {
        Probe { sampled: Some(Vec::new()), ..Probe::idle() }
    }

    pub(super) fn reading(meter: &'a dyn Backend) -> Probe<'a> {
        Probe { meter: Some(meter), ..Probe::idle() }
    }

    /// Bytes that live tensors asked for, now; 0 where memory is not what is measured.
    pub fn live(&self) -> i64 {
        self.memory().map_or(0, |memory| memory.requested)
    }

    /// Says that nothing of the step lives now: what does is parameters, optimizer state and data. Gives its bytes.
    pub fn at_rest(&mut self) -> i64 {
        let rest = self.live();
        self.rest = Some(rest);
        rest
    }

    /// Whether memory is what is measured.
    pub fn is_reading(&self) -> bool {
        self.meter.is_some()
    }

    /// What the memory meter says now; none where memory is not what is measured.
    pub fn memory(&self) -> Option<Memory> {
        match self.meter?.memory() {
            Ok(memory) => Some(memory),
            Err(e) => {
                // The first says it.
                let _ = self.failure.set(e);
                None
            }
        }
    }

    /// Sets the meter's peaks to what lives now: what ran in this step until now counts in no peak, and a step can tell apart what it does
    /// one after the other. Nothing where memory is not what is measured.
    pub fn reset_peaks(&self) {
        if let Some(Err(e)) = self.meter.map(Backend::reset_peaks) {
            let _ = self.failure.set(e);
        }
    }

    /// Gives a figure, where it is one of what is measured: while bytes are counted those that are counted, of which under one name the
    /// largest counts, and of a detail the last; while time is taken those that move, each of which is a sample.
    pub fn emit(&mut self, metric: Metric, value: impl AsPrimitive<f64>) {
        self.note(metric.name.into(), metric.role != Role::Column, metric, value.as_());
    }

    /// Gives a part of the whole that a metric is, which tables leave out: `saved.relu`.
    pub fn emit_part(&mut self, metric: Metric, part: &str, value: impl AsPrimitive<f64>) {
        self.note(format!("{}.{part}", metric.name).into(), true, metric, value.as_());
    }

    fn note(&mut self, name: Cow<'static, str>, is_detail: bool, Metric { unit, pass, .. }: Metric, value: f64) {
        match pass {
            Pass::Memory if self.meter.is_some() && is_detail => {
                self.details.retain(|known| known.metric != name);
                self.details.push(sample(name, unit, value));
            }
            Pass::Memory if self.meter.is_some() => {
                let figure = self.figures.entry(name).or_insert((unit, f64::NEG_INFINITY));
                figure.1 = figure.1.max(value);
            }
            Pass::Time => {
                if let Some(sampled) = &mut self.sampled {
                    let number = sampled.iter().filter(|known| known.metric == name).count();
                    sampled.push(Sample { sample: number as u32, ..sample(name, unit, value) });
                }
            }
            Pass::Memory | Pass::Check => {}
        }
    }

    /// Gives something to compare with the baseline's, under the metric that its relative error is recorded as; the relation is about the first.
    /// `tensors` is run only where it is compared.
    pub fn compare(&mut self, error: Metric, tensors: impl FnOnce() -> Result<Vec<Tensor>>) -> Result<()> {
        if let Some(compared) = &mut self.compared {
            let name = error.name.strip_suffix("_error").unwrap_or(error.name).to_string();
            compared.push(Quantity { name, tensors: tensors()? });
        }
        Ok(())
    }

    /// Whether the step is run to be compared.
    pub fn is_comparing(&self) -> bool {
        self.compared.is_some()
    }

    /// Takes what the last step gave to compare.
    pub(super) fn take_outcome(&mut self) -> Vec<Quantity> {
        self.compared.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether time is what is measured, and with it what moves from run to run.
    pub fn is_timing(&self) -> bool {
        self.sampled.is_some()
    }

    /// Takes the samples that the steps so far gave.
    pub(super) fn take_samples(&mut self) -> Vec<Sample> {
        self.sampled.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Runs a forward pass and records what it leaves alive as saved activations.
    pub fn forward<T>(&mut self, forward: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.live();
        let result = forward()?;
        let kept = self.live() - before;
        self.emit(ACTIVATIONS, kept);
        Ok(result)
    }
}
