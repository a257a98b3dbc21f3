//! Profiling tools: what each shows of time and memory, and what looking costs.
//!
//! Guide 3 writes a profiler into the training loop (`torch.profiler.profile(record_shapes=True)`) and says that one sees time and memory
//! by operation then; guide 2 names `memory_stats`. As guide 3 writes it, no memory is recorded: that needs `profile_memory`. Both guides
//! read `max_memory_allocated` as the peak of the GPU's memory, and leave out what is not in PyTorch's blocks. They are PyTorch's tools, so
//! PyTorch in Python runs every cell (`experiments/profiling/step.py`).

use harness::lab::*;

const WHOLE: Metric = TIME.labelled("time per step, with starting, stopping and writing");
const RECORDING: Metric = Metric::timed("recording", "time per step while it records", "s");
const TIME_TOLD: Metric = Metric::timed("time_told", "step time attributed to operators", "1").share();
const MEMORY_TOLD: Metric = Metric::counted("memory_told", "bytes attributed to operators", "1").share();
const EVENTS: Metric = Metric::timed("events", "profiler events per step", "1");
const FILE: Metric = Metric::timed("file_size", "trace file size per step", "B");
const HOST: Metric = Metric::timed("host_memory", "host memory of the first recording", "B");
const ALLOCATED_SHARE: Metric =
    Metric::counted("allocated_of_device", "max_memory_allocated, relative to memory in use on the device", "1").nondeterministic();
const RESERVED_SHARE: Metric =
    Metric::counted("reserved_of_device", "max_memory_reserved, relative to memory in use on the device", "1").nondeterministic();
/// Of the trace that guide 3's recipe leaves.
const TRACED_STEPS: Metric = Metric::counted("traced_steps", "steps in the recipe's trace", "1");
const TRACED_MEMORY: Metric = Metric::counted("traced_memory", "allocations and frees in the recipe's trace", "1");
/// Of all lines, the highest peak that pytorch_memlab tells.
const PEAK_TOLD: Metric = Metric::counted("peak_told", "peak by line, relative to the step's", "1");
/// By operation, or by line.
const OWN_TIME: Metric = Metric::timed("self_time", "self time", "s");
const ALLOCATED: Metric = Metric::counted("allocated", "allocated", "B");

levels! { Bound "what limits the step": Launch "many small operations", Compute "large products" }
levels! {
    Tool "tool":
    Nothing as "none" "no tool" => "no tool",
    ProfilerShapes "torch.profiler with record_shapes, as guide 3 sets it, around the steps" => "torch.profiler with record_shapes",
    Recipe "guide 3's recipe as it stands: schedule(wait=1, warmup=1, active=3), tensorboard_trace_handler, five steps" => "guide 3's recipe",
    ProfilerMemory "torch.profiler with profile_memory, too" => "torch.profiler with profile_memory",
    ProfilerFull "torch.profiler with with_flops and with_stack, too" => "torch.profiler with every option",
    Statistics "the allocator's statistics, read after each step" => "reading memory_stats",
    History "the history of CUDA's allocator, for memory_viz" => "the allocator's history",
    Memlab as "memlab" "pytorch_memlab's LineProfiler over the step, line by line",
}

cell! { Looked { bound: Bound, model: ModelName, batch: Batch, by: By, tool: Tool } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("profiling", "Profiling tools")
        .question(
            "What do the profiler, the allocator's history and its statistics show of a training step, and what does looking cost?",
        )
        .hypothesis(
            "The profiler notes each operation for about a microsecond, so it slows down steps of many small operations and not those of \
             large ones. As guide 3 writes it, it shows no memory at all; with profile_memory it shows every byte. Statistics show no \
             operation and cost next to nothing, and they miss what is not in PyTorch's blocks.",
        )
        .grid(grid())
        .shows(Shown::new("torch.profiler while it records").at([Tool::ProfilerShapes, Tool::ProfilerMemory, Tool::Recipe]).time(RECORDING))
        .threat(
            "Three steps are recorded at once, as guide 3's schedule does; stopping and writing are paid once for each recording, so \
             longer ones pay less for each step, and take more memory.",
        )
        .threat("While a recording runs, the time to note an operation counts as that of the operation around it.")
        .threat(
            "What was allocated is counted by CUDA's allocator; on a CPU nothing counts in Python, so there the bytes are those of the \
             tensors that operations returned.",
        )
        .threat("The device's use is what the driver says when the step is done: it includes the contexts of other processes.")
        .threat(
            "A process that is profiled for the first time pays for setting Kineto up; that is in the host memory, and not in any time.",
        )
}

fn grid() -> Grid<Looked> {
    use Tool::*;
    let small = |tools: &[Tool]| Looked::cross(Bound::Launch, "mlp-8x64", 32, By::Pytorch, tools);
    let large = |model: &'static str, batch: i64, tools: &[Tool]| Looked::cross(Bound::Compute, model, batch, By::Pytorch, tools);
    const ALL: [Tool; 7] = [Nothing, ProfilerShapes, ProfilerMemory, ProfilerFull, Statistics, History, Recipe];
    let profilers = |c: &Looked| matches!(c.tool, ProfilerShapes | ProfilerMemory | ProfilerFull);
    let operations = |metric: Metric, columns: &[Metric]| {
        let of = |c: &Looked| c.tool == ProfilerMemory;
        ranking(metric, "operation", columns, 10).of(of).by::<Bound>().by::<ModelName>().by::<Batch>()
    };
    Grid::new("tools", in_python)
        .compare::<Tool>()
        .quick(small(&[Nothing, ProfilerShapes, ProfilerMemory, Recipe]))
        .quick(large("mlp-8x256", 512, &[Nothing, ProfilerMemory]))
        .quick(large("mlp-8x4096", 4096, &[Nothing, Statistics]).on(&[Platform::Gpu]))
        .quick_and_full(Looked::cross(Bound::Launch, "mlp-8x64", 64, By::Pytorch, [Nothing, Memlab]).passes(COUNT).on(CUDA))
        .full(small(&ALL))
        .full(large("mlp-8x4096", 4096, &ALL))
        .smoke(Looked::cross(Bound::Launch, "mlp-2x32", 16, By::Pytorch, [Nothing, ProfilerMemory]))
        .on(&[Platform::Cpu, Platform::Gpu]) // the profiler does not run beside a simulated GPU
        .metrics(&[WHOLE, RECORDING, TIME_TOLD, MEMORY_TOLD, EVENTS, FILE, HOST, ALLOCATED_SHARE, RESERVED_SHARE])
        .check(|_| equal(1e-5)) // the same kernels on the same numbers: who looks changes nothing
        .judged_on(&[Platform::Python])
        .claim(
            Claim::new("profiler", "3", "profiling tools show time and memory by operation")
                .rule(value(MEMORY_TOLD).of(profilers).confirm(at_least(0.95)).refute(at_most(0.05)))
                .rule(value(TIME_TOLD).of(profilers).confirm(at_least(0.75)).refute(at_most(0.50))),
        )
        .claim(
            // Thresholds of 22 November 2026, before the first run.
            Claim::new("profiler-recipe", "3", "the recipe leaves a trace of three steps with time and memory by operation")
                .rule(value(TRACED_STEPS).at(Recipe).holds(within(3.0..=3.0)))
                .rule(value(TRACED_MEMORY).at(Recipe).confirm(at_least(1.0)).refute(at_most(0.0))),
        )
        .claim(
            // Thresholds of 22 November 2026, before the first run: as profiler's, and as peak-statistics'.
            Claim::new("memlab", "2", "pytorch_memlab shows what takes memory, line by line")
                .rule(value(MEMORY_TOLD).at(Memlab).confirm(at_least(0.95)).refute(at_most(0.05)))
                .rule(value(PEAK_TOLD).at(Memlab).confirm(within(0.99..=1.01)).refute(outside(0.90..=1.10))),
        )
        .claim(
            Claim::new("peak-statistics", "3", "max_memory_allocated is the peak GPU memory")
                .rule(value(ALLOCATED_SHARE).at(Statistics).confirm(at_least(0.95)).refute(at_most(0.90))),
        )
        .plot(bars(RECORDING).named("cost").caption("Time of a step while a tool records it, against no tool").by::<Bound>())
        .plot(operations(RECORDING, &[OWN_TIME, ALLOCATED]).named("top-time").caption("Operations with most time"))
        .plot(operations(MEMORY_TOLD, &[ALLOCATED, OWN_TIME]).named("top-memory").caption("Operations that allocate most"))
        .plot(
            ranking(MEMORY_TOLD, "line", &[ALLOCATED], 10)
                .named("lines")
                .caption("Lines that allocate most, by pytorch_memlab")
                .of(|c: &Looked| c.tool == Memlab)
                .by::<ModelName>(),
        )
}

python_test! {
    /// The check of each tool that a CPU has, then of a tool that runs a step more to see it.
    the_check_sees_a_tool_that_runs_a_step_more: "profiling", r#"
def checks():
    of = "bound=launch model=mlp-8x64 batch=32 by=pytorch tool="
    tools = ["profiler-shapes", "profiler-memory", "profiler-full", "recipe"]
    print(*(check(profiling.Looked, of + tool, of + "none", 1e-5) for tool in tools))

checks()
look = profiling.Looked.look
profiling.Looked.look = lambda self, folder, steps: look(self, folder, steps + (self.tool != "none"))
checks()
"#, "ok ok ok ok\ninvalid invalid invalid invalid\n"
}
