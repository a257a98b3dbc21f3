//! How one cell is measured inside its child process: the check, the memory pass and the time pass.

mod step;

pub use step::{Probe, Quantity, Step};

use crate::machine::Conditions;
use anyhow::{Context, Result, ensure};
use record::protocol::{BANDWIDTH, LEAST_FLOPS, LINK_SHARE, PEAK, PlainCell, Platform, Relation, STEP_PEAK, TIME};
use record::results::{Sample, Status};
use std::collections::BTreeSet;
use tch::{Device, Kind, Tensor};
pub use torch::is_out_of_memory;
use torch::{Backend, COUNTS, attempt};

/// Builds the step of a cell; everything that is not measured happens here.
pub type SetUp<'a> = &'a dyn Fn(&PlainCell, &Bench) -> Result<Step>;

/// Where a cell is set up.
#[derive(Debug, Clone, Copy)]
pub struct Bench {
    pub device: Device,
    pub platform: Platform,
    pub seed: i64,
}

impl Bench {
    /// Normally distributed numbers on the device.
    pub fn randn(&self, shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, self.device))
    }

    /// Sets up a cell from a random state that depends on the seed alone, so that cells of one comparison get the same data.
    pub fn set_up(&self, prepare: SetUp, cell: &PlainCell) -> Result<Step> {
        tch::manual_seed(self.seed);
        let step = prepare(cell, self).with_context(|| format!("setting up {cell}"))?;
        tch::manual_seed(self.seed + 1);
        Ok(step)
    }
}

/// What a pass found: samples, and what became of the cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    pub samples: Vec<Sample>,
    pub status: Status,
    pub reason: String,
}

impl Found {
    pub fn ok(samples: Vec<Sample>) -> Found {
        Found { samples, status: Status::Ok, reason: String::new() }
    }

    fn invalid(samples: Vec<Sample>, reason: String) -> Found {
        Found { samples, status: Status::Invalid, reason }
    }

    /// What an error means for the cell: out of memory is an outcome, everything else a failure.
    pub fn failed(error: &anyhow::Error) -> Found {
        let message = format!("{error:#}");
        let status = if is_out_of_memory(&message) { Status::Oom } else { Status::Error };
        // libtorch appends a C++ stack of a hundred lines.
        let reason = message.split("Exception raised from").next().unwrap_or_default().trim().chars().take(400).collect();
        Found { samples: Vec::new(), status, reason }
    }
}

fn sample(metric: impl Into<String>, unit: &str, value: f64) -> Sample {
    Sample { metric: metric.into(), unit: unit.into(), value, sample: 0, reason: String::new() }
}

/// Compares one step of a cell with one of its baseline, on the same data and seed.
///
/// # Errors
/// The baseline fails, which leaves nothing to compare with.
pub fn check(expected: &Relation, prepare: SetUp, cell: &PlainCell, baseline: &PlainCell, bench: &Bench) -> Result<Found> {
    let reference = attempt(|| outcome(prepare, baseline, bench)).context("the baseline that this cell is compared with")?;
    check_against(expected, prepare, cell, &reference, bench)
}

/// Compares one step of a cell with an outcome from elsewhere: that of the same step in Python.
///
/// # Errors
/// Outcomes that do not match.
pub fn check_against(
    expected: &Relation,
    prepare: SetUp,
    cell: &PlainCell,
    reference: &[Quantity],
    bench: &Bench,
) -> Result<Found> {
    judge(expected, attempt(|| outcome(prepare, cell, bench)), reference)
}

/// Does all that a check of these cells does, one after the other, and ignores what comes out: for a device without values.
///
/// # Errors
/// What a cell fails with, where the relation expects no error.
pub fn smoke_check(expected: &Relation, prepare: SetUp, cells: &[&PlainCell], bench: &Bench) -> Result<()> {
    let mut outcomes = cells.iter().map(|cell| attempt(|| outcome(prepare, cell, bench)));
    outcomes.try_for_each(|found| if matches!(expected, Relation::Raises { .. }) { Ok(()) } else { found.map(drop) })
}

/// Runs what a time pass runs, and takes no time: for a device without a clock.
pub fn smoke_time(step: &mut Step) -> Result<()> {
    let mut probe = Probe::timing();
    (0..=step.timing.warm_up_steps).try_for_each(|_| step.run(&mut probe))
}

/// What one step of a cell computes.
fn outcome(prepare: SetUp, cell: &PlainCell, bench: &Bench) -> Result<Vec<Quantity>> {
    let mut step = bench.set_up(prepare, cell)?;
    let mut probe = Probe::comparing();
    step.run(&mut probe)?;
    Ok(probe.take_outcome())
}

/// Puts an outcome against the relation that is expected of it.
fn judge(expected: &Relation, found: Result<Vec<Quantity>>, reference: &[Quantity]) -> Result<Found> {
    if let Relation::Raises { message } = expected {
        let raised = |raised: f64| vec![sample("raised", "1", raised)];
        let got = match found {
            Err(e) if format!("{e:#}").contains(message) => return Ok(Found::ok(raised(1.0))),
            Err(e) => format!("got: {}", Found::failed(&e).reason),
            Ok(_) => "and none was raised".to_string(),
        };
        return Ok(Found::invalid(raised(0.0), format!("expected an error with '{message}', {got}")));
    }
    let found = match found {
        Ok(found) => found,
        Err(e) => return Ok(Found::failed(&e)),
    };
    let scale = if let Relation::Scaled { by, .. } = expected { *by } else { 1.0 };
    let mut samples = vec![sample("raised", "1", 0.0)];
    let mut first = None;
    let names = |quantities: &[Quantity]| quantities.iter().map(|quantity| quantity.name.clone()).collect::<BTreeSet<_>>();
    ensure!(names(&found) == names(reference), "{:?} are to be compared with {:?}", names(&found), names(reference));
    for quantity in &found {
        // A file gives them in no order.
        let reference = reference.iter().find(|reference| reference.name == quantity.name).context("the names are the same")?;
        let apart = distance(&quantity.tensors, &reference.tensors, 1.0)?;
        samples.push(sample(format!("{}_error", quantity.name), "1", apart));
        if first.is_none() {
            let error = if scale == 1.0 { apart } else { distance(&quantity.tensors, &reference.tensors, scale)? };
            first = Some((&quantity.name, error));
        }
    }
    let (name, error) = first.context("the step gives no outcome to compare")?;
    let (holds, expectation) = match expected {
        Relation::Equal { tolerance } => (error <= *tolerance, format!("equal within {tolerance:e}")),
        Relation::Scaled { by, tolerance } => (error <= *tolerance, format!("{by} times the baseline's within {tolerance:e}")),
        Relation::Differs { at_least, at_most } => {
            ((*at_least..=*at_most).contains(&error), format!("apart by {at_least:e} to {at_most:e}"))
        }
        Relation::Missing { at_least } => {
            ((*at_least..=1.0 + 1e-6).contains(&error), format!("{} % or more of it missing", at_least * 100.0))
        }
        Relation::Raises { .. } => (false, String::new()),
    };
    let squares = |t: &Tensor| t.detach().to_kind(Kind::Double).square().sum(Kind::Double).double_value(&[]);
    let is_there = |quantity: &Quantity| quantity.tensors.iter().any(|t| t.defined() && squares(t) > 0.0);
    if !matches!(expected, Relation::Missing { .. }) && !found.first().is_some_and(is_there) {
        return Ok(Found::invalid(samples, format!("{name}: all of it is zero")));
    }
    Ok(match holds {
        true => Found::ok(samples),
        false => Found::invalid(samples, format!("{name}: expected {expectation}, found a relative error of {error:.3e}")),
    })
}

/// |a - scale b| / |scale b| in the Euclidean norm over all values of all tensors, summed in double precision.
///
/// # Errors
/// Tensors that do not match, a reference that is zero, a value that is not finite.
pub fn distance(a: &[Tensor], b: &[Tensor], scale: f64) -> Result<f64> {
    ensure!(a.len() == b.len(), "{} tensors to compare with {}", a.len(), b.len());
    let (mut difference, mut norm) = (0.0, 0.0);
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        ensure!(a.defined() == b.defined(), "tensor {i} is missing on one side");
        if !a.defined() {
            continue;
        }
        ensure!(a.size() == b.size(), "tensor {i} has shape {:?} here and {:?} in the baseline", a.size(), b.size());
        // A reference from another process comes from a file, on the CPU.
        let (a, b) = (a.detach().to_kind(Kind::Double), b.detach().to_device(a.device()).to_kind(Kind::Double) * scale);
        difference += (&a - &b).square().sum(Kind::Double).double_value(&[]);
        norm += b.square().sum(Kind::Double).double_value(&[]);
    }
    ensure!(norm > 0.0, "the baseline's outcome is zero, which every relation would fit");
    let error = (difference / norm).sqrt();
    ensure!(error.is_finite(), "an outcome is not finite");
    Ok(error)
}

/// What cuBLAS kept of the device's memory in the end, for each thread that had multiplied: part of what lives and of every peak.
const WORKSPACES: &str = "workspaces";

/// Counts the bytes of one step, after steps that bring optimizer state and caches into being.
pub fn memory(step: &mut Step, backend: &dyn Backend) -> Result<Vec<Sample>> {
    for _ in 0..2 {
        step.run(&mut Probe::idle())?;
    }
    backend.reset_peaks()?;
    let mut probe = Probe::reading(backend);
    step.run(&mut probe)?;
    let after = backend.memory()?;
    backend.clear_workspaces()?;
    let workspaces = after.requested - backend.memory()?.requested;
    if let Some(failure) = probe.failure.into_inner() {
        return Err(failure.context("reading the memory meter"));
    }
    let mut samples = vec![sample(PEAK.name, "B", after.requested_peak as f64)];
    samples.extend(probe.rest.map(|rest| sample(STEP_PEAK.name, "B", (after.requested_peak - rest) as f64)));
    // Where there is no such meter, nothing is kept either.
    samples.extend((!after.others.is_empty()).then(|| sample(WORKSPACES, "B", workspaces as f64)));
    let unit = |metric: &str| if COUNTS.contains(&metric) { "1" } else { "B" };
    samples.extend(after.others.iter().map(|(metric, value)| sample(*metric, unit(metric), *value as f64)));
    samples.extend(probe.figures.into_iter().map(|(metric, (unit, value))| sample(metric, unit, value)));
    samples.extend(probe.details);
    Ok(samples)
}

/// What one step asks for, after steps as before a count of bytes: its witness, and what differs first from one of before.
pub fn witness(step: &mut Step, backend: &dyn Backend, known: &str) -> Result<Found> {
    for _ in 0..2 {
        step.run(&mut Probe::idle())?;
    }
    backend.reset_peaks()?;
    let mut probe = Probe::reading(backend);
    let (witness, difference) = torch::witness(backend.device(), known, || step.run(&mut probe))?;
    Ok(Found { reason: format!("{witness}|{difference}"), ..Found::ok(Vec::new()) })
}

/// How long to warm up and how much to sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Steps, and seconds, of warm-up: both must be over.
    pub warm_up_steps: usize,
    pub warm_up_seconds: f64,
    pub samples: usize,
    /// Steps shorter than this are timed several at once.
    pub least_sample: f64,
}

impl Default for Timing {
    fn default() -> Self {
        Timing { warm_up_steps: 2, warm_up_seconds: 0.02, samples: 5, least_sample: 5e-3 }
    }
}

impl Timing {
    /// The same on a GPU, which was idle and takes its time to reach its clock; under load it boosts for some tenths of a second, so that steps that
    /// compute are sampled for a second. What happens once in a process stays as it is.
    pub fn on_gpu(self, computes: bool) -> Timing {
        match (self.warm_up_steps, computes) {
            (0, _) => self,
            (_, false) => Timing { warm_up_seconds: self.warm_up_seconds.max(0.3), ..self },
            (_, true) => Timing {
                warm_up_seconds: self.warm_up_seconds.max(1.0),
                least_sample: self.least_sample.max(1.0 / self.samples as f64),
                ..self
            },
        }
    }
}

/// Times steps by the device's clock, in seconds for each work item.
pub fn time(step: &mut Step, backend: &dyn Backend, plan: Timing, conditions: &dyn Fn() -> Conditions) -> Result<Found> {
    let mut probe = Probe::timing();
    let (mut steps, mut spent, mut last) = (0, 0.0, f64::INFINITY);
    while steps < plan.warm_up_steps || spent < plan.warm_up_seconds {
        last = backend.time(&mut || step.run(&mut probe))?;
        spent += last;
        steps += 1;
    }
    drop(probe.take_samples());
    // Without warm-up each step stands for itself.
    let batch = (plan.least_sample / last.max(1e-9)).ceil().max(1.0);
    let items = batch * step.items;
    let mut samples = Vec::new();
    let mut throttled = 0;
    for index in 0..plan.samples {
        let before = conditions();
        let seconds = backend.time(&mut || (0..batch as usize).try_for_each(|_| step.run(&mut probe)))?;
        let after = conditions();
        let reason = before.throttled.or(after.throttled).map(|why| format!("throttled: {why}")).unwrap_or_default();
        throttled += usize::from(!reason.is_empty());
        let number = u32::try_from(index)?;
        samples.push(Sample { sample: number, reason, ..sample(TIME.name, "s", seconds / items) });
        let mut figures = Vec::new();
        if step.link_bytes > 0.0 {
            let bandwidth = step.link_bytes * batch / seconds;
            figures.push((BANDWIDTH.name, BANDWIDTH.unit, bandwidth));
            figures.extend(after.link.map(|link| (LINK_SHARE.name, LINK_SHARE.unit, bandwidth / link)));
        }
        figures.extend(step.rates.iter().map(|(metric, work)| (metric.name, metric.unit, work * batch / seconds)));
        figures.extend(after.readings);
        // What the energy counter says of the sample itself: the power that is read after it is an idle device's.
        figures.extend(before.energy.zip(after.energy).map(|(before, after)| ("sample_power", "W", (after - before) / seconds)));
        let numbered = |(metric, unit, value): (&str, &str, f64)| Sample { sample: number, ..sample(metric, unit, value) };
        samples.extend(figures.into_iter().map(numbered));
    }
    samples.extend(probe.take_samples());
    samples.push(sample(LEAST_FLOPS.name, LEAST_FLOPS.unit, step.least_flops / step.items));
    Ok(match throttled == plan.samples {
        true => Found::invalid(samples, "every sample was taken while the device was throttled".to_string()),
        false => Found::ok(samples),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::stats::{mean, standard_deviation};
    use record::protocol::Metric;
    use std::cell::Cell as Shared;
    use std::rc::Rc;
    use torch::{Cpu, Memory};

    fn values(found: &Found, metric: &str) -> Vec<f64> {
        found.samples.iter().filter(|s| s.metric == metric).map(|s| s.value).collect()
    }

    #[test]
    fn step_samples_figures_and_sets_timing() {
        let of = |found: &Found| -> Vec<(u32, f64)> {
            found.samples.iter().filter(|s| s.metric == "steps").map(|s| (s.sample, s.value)).collect()
        };
        let mut steps = 0;
        let mut step = Step::new(move |probe| {
            steps += 1;
            probe.emit(Metric::timed("steps", "steps so far", "1"), steps);
            Ok(())
        });
        let once = Timing { warm_up_steps: 0, warm_up_seconds: 0.0, samples: 1, least_sample: 1e-3 };
        let found = time(&mut step, &Cpu::new(None), once, &Conditions::default).unwrap();
        assert_eq!(of(&found), [(0, 1.0)]);
        let plan = Timing { warm_up_steps: 2, warm_up_seconds: 0.0, samples: 3, least_sample: 0.0 };
        let found = time(&mut step, &Cpu::new(None), plan, &Conditions::default).unwrap();
        assert_eq!(of(&found), [(0, 4.0), (1, 5.0), (2, 6.0)], "those of the warm-up are kept out");
    }

    #[test]
    fn on_a_gpu_steps_that_compute_are_sampled_for_a_second() {
        let usual = Timing::default();
        let computing = usual.on_gpu(true);
        assert!((computing.samples as f64 * computing.least_sample, computing.warm_up_seconds) == (1.0, 1.0), "{computing:?}");
        assert_eq!(usual.on_gpu(false), Timing { warm_up_seconds: 0.3, ..usual });
        let once = Timing { warm_up_steps: 0, warm_up_seconds: 0.0, samples: 1, least_sample: 1e-3 };
        assert_eq!(once.on_gpu(true), once);
    }

    #[test]
    fn sample_has_its_power_and_throttling() {
        let fake = Fake::default();
        let calls = Shared::new(0);
        let conditions = || {
            calls.set(calls.get() + 1);
            // 150 J for each half second; the second sample begins throttled.
            let throttled = (calls.get() == 3).then(|| "hw_thermal_slowdown".to_string());
            Conditions { energy: Some(f64::from(calls.get()) * 150.0), throttled, ..Conditions::default() }
        };
        let plan = Timing { warm_up_steps: 1, warm_up_seconds: 0.0, samples: 2, least_sample: 0.0 };
        let found = time(&mut fake.steps_of(&[0.5]), &fake, plan, &conditions).unwrap();
        assert_eq!(values(&found, "sample_power"), [300.0, 300.0]);
        let marked: Vec<bool> = found.samples.iter().filter(|s| s.metric == "time").map(|s| !s.reason.is_empty()).collect();
        assert_eq!((found.status, &marked[..]), (Status::Ok, &[false, true][..]));
    }

    /// A clock that the test's steps move, so that batching and spread are exact.
    #[derive(Default)]
    struct Fake {
        now: Rc<Shared<f64>>,
        steps: Rc<Shared<usize>>,
        calls: Shared<usize>,
    }

    impl Fake {
        /// Steps of these lengths in seconds, in turn.
        fn steps_of(&self, lengths: &'static [f64]) -> Step {
            let (now, steps) = (self.now.clone(), self.steps.clone());
            Step::new(move |_| {
                now.set(now.get() + lengths[steps.get() % lengths.len()]);
                steps.set(steps.get() + 1);
                Ok(())
            })
        }
    }

    impl Backend for Fake {
        fn device(&self) -> Device {
            Device::Cpu
        }
        fn memory(&self) -> Result<Memory> {
            Ok(Memory { requested: 0, requested_peak: 0, allocated: 0, reserved: 0, others: vec![] })
        }
        fn reset_peaks(&self) -> Result<()> {
            Ok(())
        }
        fn time(&self, body: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
            body()?;
            self.calls.set(self.calls.get() + 1);
            Ok(self.now.replace(0.0))
        }
    }

    #[test]
    fn mean_and_spread_of_a_known_step_come_out() {
        let clock = Fake::default();
        let mut step = clock.steps_of(&[0.008, 0.012]).items(4);
        let found = time(&mut step, &clock, Timing { samples: 40, ..Timing::default() }, &Conditions::default).unwrap();
        let times = values(&found, "time");
        assert!((mean(&times) - 0.0025).abs() < 1e-12, "four items a step");
        assert!((standard_deviation(&times) - 0.0005 * (40.0f64 / 39.0).sqrt()).abs() < 1e-9);
        let warm_up = clock.calls.get() - 40;
        assert!((2..=6).contains(&warm_up), "warm-up lasts two steps and 20 ms: {warm_up}");
    }

    #[test]
    fn bytes_that_move_become_a_share_of_their_link() {
        let clock = Fake::default();
        let mut step = clock.steps_of(&[0.0004]).link_bytes(6_000_000);
        let link = || Conditions { link: Some(60e9), ..Conditions::default() };
        let found = time(&mut step, &clock, Timing::default(), &link).unwrap();
        let (bandwidths, shares) = (values(&found, "bandwidth"), values(&found, "link_share"));
        assert_eq!((bandwidths.len(), shares.len()), (5, 5));
        assert!(bandwidths.iter().all(|b| (b - 15e9).abs() < 1.0), "several short steps make a sample: {bandwidths:?}");
        assert!(shares.iter().all(|s| (s - 0.25).abs() < 1e-9));
        let unknown = time(&mut step, &clock, Timing::default(), &Conditions::default).unwrap();
        assert!(values(&unknown, "link_share").is_empty(), "an unknown link has no share");
    }

    #[test]
    fn throttled_cell_is_invalid() {
        let clock = Fake::default();
        let mut step = clock.steps_of(&[0.01]);
        let hot =
            || Conditions { readings: vec![("sm_clock", "Hz", 1e9)], throttled: Some("thermal".into()), ..Conditions::default() };
        let found = time(&mut step, &clock, Timing::default(), &hot).unwrap();
        assert_eq!(found.status, Status::Invalid);
        assert_eq!(values(&found, "sm_clock").len(), 5);
    }

    fn gradient(values: &[f32]) -> Vec<Quantity> {
        vec![Quantity { name: "gradient".into(), tensors: vec![Tensor::from_slice(values)] }]
    }

    #[test]
    fn relations_hold_and_break() {
        let reference = gradient(&[3.0, 4.0]);
        let status = |expected: &Relation, found: Result<Vec<Quantity>>| judge(expected, found, &reference).map(|f| f.status);
        let equal = Relation::Equal { tolerance: 1e-6 };
        let scaled = Relation::Scaled { by: 4.0, tolerance: 1e-6 };
        let differs = Relation::Differs { at_least: 0.1, at_most: 10.0 };
        let missing = Relation::Missing { at_least: 0.5 };
        let raises = Relation::Raises { message: "modified".into() };
        let cases = [
            (&equal, vec![[3.0, 4.0]], vec![[3.0, 4.001]]),
            (&scaled, vec![[12.0, 16.0]], vec![[3.0, 4.0]]),
            // Nothing is no wrong result.
            (&differs, vec![[3.0, 0.0]], vec![[3.0, 4.0], [0.0, 0.0]]),
            (&missing, vec![[0.0, 0.0]], vec![[3.0, 3.5], [-3.0, -4.0]]),
            (&raises, vec![], vec![[3.0, 4.0]]),
        ];
        for (expected, right, wrong) in cases {
            let of = |found: &[f32; 2]| status(expected, Ok(gradient(found))).unwrap();
            assert!(right.iter().all(|found| of(found) == Status::Ok), "{expected:?}");
            assert!(wrong.iter().all(|found| of(found) == Status::Invalid), "{expected:?}");
        }
        for (expected, error, wanted) in [
            (&raises, "has been modified by", Status::Ok),
            (&raises, "another error", Status::Invalid),
            (&equal, "CPU out of memory. Tried to allocate 8 bytes", Status::Oom),
        ] {
            assert_eq!(status(expected, Err(anyhow::anyhow!(error))).unwrap(), wanted);
        }
        assert!(status(&equal, Ok(gradient(&[3.0]))).is_err(), "shapes differ");
        assert!(status(&equal, Ok(gradient(&[f32::NAN, 4.0]))).is_err(), "not finite");
        assert!(judge(&equal, Ok(gradient(&[0.0])), &gradient(&[0.0])).is_err(), "nothing was computed");
        // Quantities are compared by their names.
        let with_loss = |mut of: Vec<Quantity>, at: usize| {
            of.insert(at, Quantity { name: "loss".into(), tensors: vec![Tensor::from_slice(&[1.0_f32])] });
            of
        };
        let found = judge(&equal, Ok(with_loss(gradient(&[3.0]), 0)), &with_loss(gradient(&[3.0]), 1)).unwrap();
        assert_eq!(found.status, Status::Ok);
        assert!(judge(&equal, Ok(with_loss(gradient(&[3.0]), 0)), &gradient(&[3.0])).is_err());
    }
}
