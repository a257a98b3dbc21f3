//! A training that a tool looks at, and what the tool told.

use super::*;
use models::training::Trainer;
use std::fs;
use std::time::Instant;
use tch::Cuda;
use torch::profiler::{EventSource, Operation, Range};
use torch::{Backend, Mark, MemoryHistory, Phase, Profiled, Profiler, Profiling, Recorder, Recording};

/// Allocations and frees that a history keeps.
const ENTRIES: u64 = 1_000_000;

pub struct Looking {
    pub tool: Tool,
    pub trainer: Trainer,
    /// The device where its memory is not what is measured; a dry one has nothing else.
    pub backend: Option<Box<dyn Backend>>,
    /// Whether kernels are recorded.
    pub cuda: bool,
}

/// What a tool told of some steps.
#[derive(Default)]
pub struct LookTold {
    pub events: usize,
    /// Bytes of the allocations that it names an operation for; none where it knows no operations.
    pub bytes: Option<i64>,
    /// Seconds of operations' own; none where it takes no time.
    pub seconds: Option<f64>,
    pub operations: Vec<Operation>,
    pub file: Option<Written>,
}

/// A tool's file, as its user has it written.
pub enum Written {
    /// A trace that is still to be written without its path.
    Trace(Box<Profiled>),
    Bytes(Vec<u8>),
}

impl Written {
    pub fn into_kept(self) -> Result<Vec<u8>> {
        match self {
            Written::Trace(mut profile) => profile.trace(),
            Written::Bytes(bytes) => Ok(bytes),
        }
    }

    /// Writes it, as a user would; gives its bytes.
    pub fn write(self) -> Result<u64> {
        let folder = tempfile::tempdir().context("making a folder for a recording")?;
        let path = folder.path().join("recording");
        match self {
            Written::Trace(mut profile) => profile.save(&path)?,
            Written::Bytes(bytes) => fs::write(&path, bytes).context("writing a recording")?,
        }
        Ok(fs::metadata(&path).context("looking at a recording that was just written")?.len())
    }
}

impl Looking {
    /// Has the tool look at some steps; gives what it told, and the seconds until the last step was done, without the tool's start and end.
    pub fn look(&mut self, steps: usize, meter: Option<&dyn Backend>) -> Result<(LookTold, f64)> {
        let trainer = &mut self.trainer;
        let backend = meter.or(self.backend.as_deref()).context("a simulated GPU is looked at in the memory pass only")?;
        let device = backend.device();
        let timed = |body: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
            synchronise(device);
            let start = Instant::now();
            (0..steps).try_for_each(|_| body())?;
            synchronise(device);
            Ok(start.elapsed().as_secs_f64())
        };
        let plain = &mut |_: Mark, _: &Trainer| Ok(());
        let profiling = Profiling { shapes: true, cuda: self.cuda, ..Profiling::default() };
        let mut profiled = |profiling: Profiling| -> Result<(LookTold, f64)> {
            let profiler = Profiler::begin(profiling)?;
            let seconds = timed(&mut || in_phases(trainer))?;
            Ok((of_profile(profiler.end()?), seconds))
        };
        match self.tool {
            Tool::Nothing => Ok((LookTold::default(), timed(&mut || trainer.iterate(plain))?)),
            Tool::ProfilerShapes => profiled(profiling),
            Tool::ProfilerMemory => profiled(Profiling { memory: true, ..profiling }),
            Tool::ProfilerFull => profiled(Profiling { memory: true, flops: true, ..profiling }),
            Tool::Recipe | Tool::Memlab => bail!("PyTorch in Python has this tool"),
            Tool::Timeline => {
                let mut recorder = Recorder::begin(backend, Recording { meter: false, operations: true })?;
                trainer.record(Mark::LOADED, &mut recorder)?;
                let seconds = timed(&mut || trainer.iterate(&mut |mark, trainer| trainer.record(mark, &mut recorder)))?;
                let timeline = recorder.end();
                let bytes =
                    timeline.blocks.iter().filter(|block| timeline.operation(block).is_some()).map(|block| block.bytes).sum();
                Ok((LookTold { events: timeline.events.len(), bytes: Some(bytes), ..LookTold::default() }, seconds))
            }
            Tool::Statistics => {
                let mut reads = 0;
                let seconds = timed(&mut || {
                    trainer.iterate(plain)?;
                    reads += usize::from(backend.memory()?.requested_peak > 0);
                    Ok(())
                })?;
                Ok((LookTold { events: reads, ..LookTold::default() }, seconds))
            }
            Tool::History => {
                let history = MemoryHistory::begin(ENTRIES)?;
                let seconds = timed(&mut || trainer.iterate(plain))?;
                let folder = tempfile::tempdir().context("making a folder for a snapshot")?;
                let path = folder.path().join("snapshot.pickle");
                let kept = history.save(&path)?;
                let file = Some(Written::Bytes(fs::read(&path).context("reading a snapshot that was just written")?));
                let events = usize::try_from(kept.entries)?;
                Ok((LookTold { events, bytes: Some(kept.allocated), file, ..LookTold::default() }, seconds))
            }
        }
    }
}

/// Waits for a GPU. A simulated GPU has nothing to wait for, and nobody reads its clock.
fn synchronise(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}

/// One iteration, each phase in a range that the trace shows.
fn in_phases(trainer: &mut Trainer) -> Result<()> {
    let mut open = Some(Range::enter("forward")?);
    trainer.iterate(&mut |mark, _| {
        drop(open.take());
        open = match mark.phase {
            Phase::Forward => Some(Range::enter("backward")?),
            Phase::Backward => Some(Range::enter("step")?),
            Phase::Load | Phase::Optimizer => None,
        };
        Ok(())
    })
}

fn of_profile(profile: Profiled) -> LookTold {
    let operations = profile.by_self_time();
    let own: i64 = operations.iter().map(|operation| operation.self_ns).sum();
    LookTold {
        events: profile.events().iter().filter(|event| event.source != EventSource::Range).count() + profile.allocations().len(),
        bytes: Some(operations.iter().map(|operation| operation.allocated).sum()),
        seconds: Some(own as f64 / 1e9),
        operations: with_one_engine(operations),
        file: Some(Written::Trace(Box::new(profile))),
    }
}

/// What the autograd engine takes around the nodes that it runs, as one operation and not as one for each kind of node.
fn with_one_engine(operations: Vec<Operation>) -> Vec<Operation> {
    let (engine, mut others): (Vec<_>, Vec<_>) = operations.into_iter().partition(|o| o.name.starts_with("autograd::engine::"));
    let joined = engine.into_iter().reduce(|a, b| Operation {
        name: a.name,
        calls: a.calls + b.calls,
        self_ns: a.self_ns + b.self_ns,
        total_ns: a.total_ns + b.total_ns,
        allocated: a.allocated + b.allocated,
        freed: a.freed + b.freed,
    });
    others.extend(joined.map(|engine| Operation { name: "autograd engine".to_string(), ..engine }));
    // Times put them in another order every time.
    others.sort_by(|a, b| a.name.cmp(&b.name));
    others
}
