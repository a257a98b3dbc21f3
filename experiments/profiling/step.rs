//! One step looked at, against one counted; and recordings of some steps, timed.

use super::look::{Looking, Written};
use super::*;
use harness::process;
use models::training::{Configuration, Trainer};
use torch::dry::Dry;
use torch::{Backend, Cpu, Cuda, allocations};

/// Steps that are recorded at once in the time pass: guide 3's `active=3`.
const ACTIVE: usize = 3;
/// Recordings before the samples begin. The first of a process sets Kineto up.
const WARM_UP: usize = 2;

pub fn step(cell: Looked, bench: &Bench) -> Result<Step> {
    ensure!(cell.by == By::Vramlab, "the PyTorch reference runs this cell");
    let trainer = Trainer::load(&Configuration::new(cell.model.0, cell.batch.0), bench.device)?;
    let flops = ACTIVE as f64 * trainer.model().least_training_flops(cell.batch.0);
    // A day on a GPU is rehearsed on a simulated one, beside which the profiler does not run.
    let simulated = Dry::opened();
    let profiles = matches!(cell.tool, Tool::ProfilerShapes | Tool::ProfilerMemory | Tool::ProfilerFull);
    let tool = if profiles && simulated.is_some() { Tool::Nothing } else { cell.tool };
    let backend: Option<Box<dyn Backend>> = match (bench.platform, bench.device, simulated) {
        // Of a simulated GPU there is one meter, which the memory pass has.
        (Platform::Dry, ..) => None,
        (_, Device::Cuda(_), Some(simulated)) => Some(Box::new(simulated)),
        (_, Device::Cuda(index), None) => Some(Box::new(Cuda::new(i32::try_from(index)?)?)),
        // Without `Cpu::new`, which would lift a limit on the memory.
        _ => Some(Box::new(Cpu)),
    };
    let has_backend = backend.is_some();
    let mut looking = Looking { tool, trainer, backend, cuda: bench.platform == Platform::Gpu };
    let (mut recordings, mut host) = (0, 0);
    let step = Step::new(move |probe| {
        match probe.meter() {
            Some(backend) => count(&mut looking, cell, probe, backend)?,
            None if probe.is_timing() => {
                time(&mut looking, probe, recordings, &mut host)?;
                recordings += 1;
            }
            None if has_backend => drop(looking.look(1, None)?),
            None => looking.trainer.iterate(&mut |_, _| Ok(()))?,
        }
        probe.compare(GRADIENT_ERROR, || Ok(looking.trainer.model().gradients().iter().map(Tensor::detach).collect()))
    });
    // Warm-up is so many recordings, neither more nor less, and each is a sample of its own.
    let timing = Timing { warm_up_steps: WARM_UP, warm_up_seconds: 0.0, samples: 16, least_sample: 0.0 };
    Ok(step.items(ACTIVE as i64).least_flops(flops).timing(timing))
}

/// One step looked at, against one counted.
fn count(looking: &mut Looking, cell: Looked, probe: &mut Probe, backend: &dyn Backend) -> Result<()> {
    allocations::record(backend.device(), false)?;
    let iterated = looking.trainer.iterate(&mut |_, _| Ok(()));
    allocations::stop();
    let counted: i64 = allocations::take().iter().map(|event| event.change().max(0)).sum();
    iterated?;
    ensure!(counted > 0, "a step that allocates nothing has nothing to show");
    let (told, _) = looking.look(1, Some(backend))?;
    if let Some(bytes) = told.bytes {
        probe.emit(MEMORY_TOLD, bytes as f64 / counted as f64);
    }
    for operation in told.operations.iter().filter(|operation| operation.allocated > 0) {
        probe.emit(ALLOCATED.part(&operation.name), operation.allocated);
    }
    let kept = |what: &str| format!("{what}-{}-{}", cell.model.0, cell.tool.text());
    let keep = |probe: &Probe, file: Option<Written>, name: String| match file {
        Some(file) if probe.is_keeping() => probe.keep(&name, &file.into_kept()?),
        _ => Ok(()),
    };
    match cell.tool {
        Tool::Statistics => device_shares(probe, backend),
        Tool::ProfilerMemory => keep(probe, told.file, kept("trace") + ".json.gz"),
        Tool::History => keep(probe, told.file, kept("snapshot") + ".pickle"),
        Tool::Nothing | Tool::ProfilerShapes | Tool::Recipe | Tool::ProfilerFull | Tool::Timeline | Tool::Memlab => Ok(()),
    }
}

/// What the allocator's peaks are of the device's use. The allocator keeps what it has, so that the device's use after the step is that at
/// the step's peak.
fn device_shares(probe: &mut Probe, backend: &dyn Backend) -> Result<()> {
    let memory = backend.memory()?;
    let Ok(used) = memory.used() else { return Ok(()) };
    for (metric, statistic) in [(ALLOCATED_SHARE, "allocated_peak"), (RESERVED_SHARE, "reserved_peak")] {
        if let Some((_, bytes)) = memory.others.iter().find(|(name, _)| *name == statistic) {
            probe.emit(metric, *bytes as f64 / used as f64);
        }
    }
    Ok(())
}

/// One recording in the time pass, after so many others; `host` is the host memory that the first took.
fn time(looking: &mut Looking, probe: &mut Probe, recordings: usize, host: &mut u64) -> Result<()> {
    let before = if recordings == 0 {
        // The step's own memory is none of the tool's.
        looking.trainer.iterate(&mut |_, _| Ok(()))?;
        process::reset_peak_resident()?;
        process::resident()?
    } else {
        0
    };
    let (mut told, seconds) = looking.look(ACTIVE, None)?;
    let written = told.file.take().map(Written::write).transpose()?;
    if recordings == 0 {
        *host = process::peak_resident()?.saturating_sub(before);
    }
    let of_each = |total: f64| total / ACTIVE as f64;
    probe.emit(RECORDING, of_each(seconds));
    if recordings == WARM_UP {
        probe.emit(HOST, *host);
        if looking.tool != Tool::Nothing {
            probe.emit(EVENTS, of_each(told.events as f64));
        }
        if let Some(bytes) = written {
            probe.emit(FILE, of_each(bytes as f64));
        }
        if let Some(own) = told.seconds {
            probe.emit(TIME_TOLD, own / seconds);
        }
        for operation in &told.operations {
            probe.emit(OWN_TIME.part(&operation.name), of_each(operation.self_ns as f64 / 1e9));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;
    use harness::measure::memory_keeping;

    fn looked(tool: Tool) -> Looked {
        Looked { bound: Bound::Launch, model: ModelName("mlp-8x64"), batch: Batch(32), by: By::Vramlab, tool }
    }

    // One test, because a process has one profiler and its allocations are counted.
    #[test]
    fn a_tool_changes_nothing_and_tells_the_bytes_that_were_allocated() {
        for tool in Tool::ALL.iter().filter(|tool| !matches!(tool, Tool::History | Tool::Recipe | Tool::Memlab)) {
            check(&protocol(), looked(*tool)).holds();
        }
        // As a tool that runs the step a second time, to see its memory and then its time.
        let twice = |bench: &Bench| Ok(step(looked(Tool::ProfilerMemory), bench)?.twice());
        broken(&protocol(), looked(Tool::ProfilerMemory), twice).sees("gradient: expected equal");

        let files = tempfile::tempdir().unwrap();
        let told = |tool| {
            tch::manual_seed(1);
            let mut step = step(looked(tool), &BENCH).unwrap();
            let samples = memory_keeping(&mut step, &Cpu::new(None), Some(files.path())).unwrap();
            samples.iter().find(|sample| sample.metric == MEMORY_TOLD.name).map(|sample| sample.value)
        };
        assert_eq!([Tool::Nothing, Tool::Statistics, Tool::ProfilerShapes].map(told), [None, None, Some(0.0)]);
        assert_eq!(std::fs::read_dir(files.path()).unwrap().count(), 0, "only a trace with memory in it is kept");
        assert_eq!([Tool::ProfilerMemory, Tool::ProfilerFull, Tool::Timeline].map(told), [Some(1.0); 3]);
        let kept: Vec<_> = std::fs::read_dir(files.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(kept, ["trace-mlp-8x64-profiler-memory.json.gz"]);
        let compressed = std::fs::File::open(files.path().join(&kept[0])).unwrap();
        let text = std::io::read_to_string(flate2::read::GzDecoder::new(compressed)).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
        assert_eq!(["forward", "backward", "step"].map(named), [1, 1, 1], "one step, in its phases");
        assert!(named("aten::addmm") == 9 && named("[memory]") > 0);
        assert!(!text.contains("traceName") && !text.contains("/tmp"), "it tells no path of the machine");
    }
}
