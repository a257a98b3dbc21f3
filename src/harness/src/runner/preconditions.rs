//! What cannot be measured on a device, and what nobody may believe: two counts that differ, and times that physics forbids.

use super::plan::Planned;
use crate::machine::DeviceChoice;
use base::units::Seconds;
use record::protocol::{LEAST_FLOPS, Pass, PlainProtocol, Platform, TIME};
use record::results::{PassRecord, Status};
use torch::DEVICE_USED;

/// Why a pass is not run on a device at all; none where it is.
pub fn beyond_device(choice: DeviceChoice, pass: Pass) -> Option<&'static str> {
    match (choice, pass) {
        (DeviceChoice::Dry(_), Pass::Check) => Some("a simulated GPU computes nothing, so there is nothing to compare"),
        (DeviceChoice::Dry(_), Pass::Time) => Some("a simulated GPU computes nothing, so it has no time"),
        _ => None,
    }
}

/// Why a pass over a cell is not run on a device; none where it is.
pub fn impossible(choice: DeviceChoice, planned: &Planned, pass: Pass) -> Option<String> {
    let only_on = &planned.grid.only_on;
    if !only_on.is_empty() && !only_on.contains(&choice.platform()) {
        let names: Vec<String> = only_on.iter().map(Platform::to_string).collect();
        return Some(format!("this is about what only these devices have: {}", names.join(", ")));
    }
    if planned.cell.is_reference() && !has_reference(choice, planned) {
        return Some("PyTorch in Python runs on no simulated GPU".to_string());
    }
    if planned.grid.is_shared() && matches!(choice, DeviceChoice::FakeCuda(_)) {
        return Some("without PyTorch in Python there is nothing to compare with".to_string());
    }
    beyond_device(choice, pass).map(str::to_string)
}

/// Whether PyTorch in Python runs a cell here: on a simulated GPU only what its grid says to be about such devices.
pub fn has_reference(choice: DeviceChoice, planned: &Planned) -> bool {
    planned.cell.is_reference()
        && match choice {
            DeviceChoice::Dry(_) => planned.grid.only_on.contains(&Platform::Dry),
            DeviceChoice::FakeCuda(_) => false,
            DeviceChoice::Cpu | DeviceChoice::Cuda(_) => true,
        }
}

/// What two memory passes say apart.
#[derive(Debug, PartialEq)]
pub struct Disagreement {
    pub reason: String,
    /// Of the first pass's figure; infinite where they counted different things.
    pub share: f64,
}

impl Disagreement {
    /// Counted memory is deterministic, and what is apart an error of the lab or of the technique. But on a real GPU threads of the driver
    /// and of autograd decide when a block is free again: there a hundredth is only reported.
    pub fn status(&self, choice: DeviceChoice) -> Status {
        const TOLERATED: f64 = 0.01;
        if matches!(choice, DeviceChoice::Cuda(_)) && self.share <= TOLERATED { Status::Ok } else { Status::Invalid }
    }
}

/// The first figure in which two memory passes over a cell are apart, of those that nothing else moves.
pub fn memory_disagreement(protocol: &PlainProtocol, first: &PassRecord, second: &PassRecord) -> Option<Disagreement> {
    let counted = |record: &PassRecord| -> Vec<(String, f64)> {
        let counted = record.samples.iter().filter(|s| s.metric != DEVICE_USED && !protocol.is_nondeterministic(&s.metric));
        counted.map(|s| (s.metric.clone(), s.value)).collect()
    };
    let (a, b) = (counted(first), counted(second));
    let Some((x, y)) = a.iter().zip(&b).find(|(x, y)| x != y) else {
        let reason = "two memory passes counted different things".to_string();
        return (a.len() != b.len()).then_some(Disagreement { reason, share: f64::INFINITY });
    };
    let share = if x.0 == y.0 { (y.1 / x.1 - 1.0).abs() } else { f64::INFINITY };
    Some(Disagreement { reason: format!("two memory passes differ: {} was {} and then {} bytes", x.0, x.1, y.1), share })
}

/// A time in which the device cannot have done the work.
pub fn faster_than_possible(record: &PassRecord, limit: f64) -> Option<String> {
    let flops = record.samples.iter().find(|s| s.metric == LEAST_FLOPS.name)?.value;
    let fastest = record.samples.iter().filter(|s| s.metric == TIME.name).map(|s| s.value).reduce(f64::min)?;
    let took = Seconds(fastest);
    let why = || format!("{flops:.3e} operations in {took} are more than the {limit:.3e}/s that this device is specified for");
    (flops / fastest > limit).then(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::protocol::{Metric, PlainCell, PlainPlot, PlotKind};
    use record::results::Sample;

    fn record(pass: Pass, figures: &[(&str, f64)]) -> PassRecord {
        let sample = |(metric, value): &(&str, f64)| {
            let (metric, unit, reason) = (metric.to_string(), "B".to_string(), String::new());
            Sample { metric, unit, value: *value, sample: 0, reason }
        };
        let not_run = PassRecord::not_run(&PlainCell::parse("k=1").unwrap(), pass, 1, Status::Ok, "");
        PassRecord { samples: figures.iter().map(sample).collect(), ..not_run }
    }

    #[test]
    fn memory_passes_must_agree_in_what_is_counted() {
        let temporaries = Metric::counted("temporaries", "temporaries", "B").nondeterministic();
        let area = PlotKind::Area { panels: vec![], layers: vec![temporaries], boundary: "phase".into(), phases: vec![] };
        let [name, caption, of] = [(); 3].map(|()| String::new());
        let plot = PlainPlot { name, caption, of, metric: "requested_peak".into(), kind: area, on_front: false };
        let metrics = vec![Metric::counted("free", "free", "B").nondeterministic()];
        let protocol = PlainProtocol { metrics, plots: vec![plot], ..PlainProtocol::default() };
        let counted = |peak, others| {
            record(Pass::Memory, &[("requested_peak", peak), ("device_used", others), ("temporaries", others), ("free", others)])
        };
        let difference = |second| memory_disagreement(&protocol, &counted(100.0, 5.0), &second);
        assert_eq!(difference(counted(100.0, 9.0)), None);
        let apart = |peak| difference(counted(peak, 5.0)).unwrap();
        assert!(apart(104.0).reason.contains("requested_peak was 100 and then 104"), "{:?}", apart(104.0));
        // A real GPU's is only reported where it is small; a simulated one has no threads of its own.
        let [gpu, dry] = [DeviceChoice::Cuda(0), DeviceChoice::dry()];
        assert_eq!(
            [apart(104.0).status(gpu), apart(100.5).status(gpu), apart(100.5).status(dry)],
            [Status::Invalid, Status::Ok, Status::Invalid]
        );
        assert!(difference(record(Pass::Memory, &[])).is_some());
    }

    #[test]
    fn a_time_that_physics_forbids_is_seen() {
        let timed = record(Pass::Time, &[("time", 1e-3), ("time", 1e-6), ("least_flops", 1e9)]);
        assert!(faster_than_possible(&timed, 67e12).unwrap().contains("1.000e9 operations in 1.00 µs"));
        assert_eq!(faster_than_possible(&timed, 2e15), None);
    }
}
