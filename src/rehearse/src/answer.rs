//! What a trace means: blocks with what they are for, the peak and what fills it, and whether the card suffices.

use super::growth::{Growth, growth};
use super::replay::Needs;
use super::show::on_one_line;
use super::time::Prediction;
use super::trace::{Exception, Frame, LineNumber, Trace, Unreached, Varied};
use serde::{Deserialize, Serialize};
use sim::cards::Card;
use sim::trace::{Event, Kind, MemoryBlock, Phase, blocks};
use std::collections::HashMap;
use std::fs;
use std::ops::Range;

/// What the allocator's meters show of one card.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Meter {
    requested: i64,
    allocated: i64,
    reserved: i64,
}

/// The meters after each event.
fn meters(trace: &Trace, device: u16) -> impl Iterator<Item = Meter> {
    let mut meter = Meter::default();
    // By address: live blocks, and those that were given back but are not free for others yet.
    let (mut live, mut pending) = (HashMap::new(), HashMap::new());
    trace.events.iter().map(move |event| {
        match event.kind {
            _ if event.device != device => {}
            Kind::Alloc => {
                meter.requested += event.bytes;
                meter.allocated += event.rounded;
                live.insert(event.address, (event.bytes, event.rounded));
            }
            Kind::FreeRequested => {
                if let Some((bytes, rounded)) = live.remove(&event.address) {
                    meter.allocated -= rounded;
                    pending.insert(event.address, bytes);
                }
            }
            Kind::FreeCompleted => meter.requested -= pending.remove(&event.address).unwrap_or(0),
            Kind::SegmentAlloc | Kind::SegmentMap => meter.reserved += event.bytes,
            Kind::SegmentFree | Kind::SegmentUnmap => meter.reserved -= event.bytes,
            _ => {}
        }
        meter
    })
}

/// Whether the script can run on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RehearsalVerdict {
    Fits,
    /// By less than what is assumed of the CUDA context can be wrong by.
    BarelyFits,
    DoesNotFit,
    /// For another reason than memory.
    ScriptFailed,
    /// By `--timeout`, before enough was seen.
    TimedOut,
    /// By Ctrl-C, before enough was seen.
    Interrupted,
}

impl RehearsalVerdict {
    /// Whether it ran as long as was wanted.
    pub fn fits(self) -> bool {
        matches!(self, RehearsalVerdict::Fits | RehearsalVerdict::BarelyFits)
    }
}

/// How far the memory of a CUDA context, which is assumed, can be from what a card shows: others' records of one card differ by up to 90 MiB;
/// and the share of a peak that may be added by what only a GPU does.
const UNCERTAIN: (i64, f64) = (100 << 20, 0.02);

/// Whether what a script needs is so near to what a card has that it may not fit it in the end.
pub fn is_near(needs: i64, memory: i64) -> bool {
    memory - needs < UNCERTAIN.0 + (needs as f64 * UNCERTAIN.1) as i64
}

/// The card, as far as it decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SimulatedGpu {
    pub name: String,
    pub memory: i64,
    /// Bytes of it that a process takes beside PyTorch's allocator: the CUDA context; assumed.
    pub context: i64,
    pub count: u32,
}

/// The answer of a rehearsal. The figures are those of the process and card that need most.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    pub schema: u32,
    pub command: Vec<String>,
    pub gpu: SimulatedGpu,
    pub verdict: RehearsalVerdict,
    /// Where the PyTorch of the script has no code for the card: that it would fail there, and what to install.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_code: Option<String>,
    /// Optimizer steps that ended.
    pub steps: u32,
    pub peak_requested: i64,
    pub peak_allocated: i64,
    pub peak_reserved: i64,
    /// `peak_reserved` and the context: what nvidia-smi would show at most.
    pub peak_on_device: i64,
    /// What the card has left at its fullest; where it does not fit, negative by what it lacks of `needs_at_least`, as far as that is known.
    pub headroom: i64,
    /// The smallest memory of a GPU on which it runs, context included: what the allocator keeps cached is given back where memory is short.
    /// None where that was not asked for or could not be found, which the notes say.
    pub needs_at_least: Option<i64>,
    /// The card of `cards.csv` with the least memory that has it.
    pub smallest_card: Option<&'static str>,
    /// Seconds of `--timeout`, where that ended it.
    pub timed_out_after: Option<f64>,
    /// Of the process whose steps take longest; predicted.
    pub time: Option<Prediction>,
    /// Why there is none.
    pub time_missing: Option<String>,
    /// The worst first.
    pub processes: Vec<ProcessAnswer>,
    pub notes: Vec<String>,
}

impl Answer {
    /// Adds what PyTorch's allocator said of smaller cards than this one.
    pub fn complete(&mut self, needs: Needs, card: &Card) {
        let Some(worst) = self.processes.first_mut() else { return };
        worst.fragmentation.reserved_if_expandable = needs.expandable;
        if needs.least == 0 {
            return;
        }
        let least = needs.least + self.gpu.context;
        self.needs_at_least = Some(least);
        self.smallest_card = card.smallest_with(needs.least.unsigned_abs()).and_then(|card| card.name);
        match self.verdict {
            RehearsalVerdict::DoesNotFit => self.headroom = self.gpu.memory - least,
            RehearsalVerdict::Fits if is_near(least, self.gpu.memory) => self.verdict = RehearsalVerdict::BarelyFits,
            _ => {}
        }
    }

    /// Reads what is written in the lines that hold memory at the peak; of a file that is not there, nothing.
    pub fn quote(&mut self) {
        let mut files: HashMap<String, String> = HashMap::new();
        for held in self.processes.iter_mut().flat_map(|process| &mut process.peak.lines) {
            let Some((file, number)) = held.name.rsplit_once(':') else { continue };
            let text = files.entry(file.to_string()).or_insert_with(|| source(file).unwrap_or_default());
            let number: usize = number.parse().unwrap_or_default();
            held.source = text.lines().nth(number.wrapping_sub(1)).map(|line| line.trim().to_string());
        }
    }
}

/// The text of a source file. A code object can name any file: one that never ends, or that waits for a writer.
fn source(file: &str) -> Option<String> {
    const LARGEST: u64 = 16 << 20;
    let about = fs::metadata(file).ok()?;
    (about.is_file() && (1..=LARGEST).contains(&about.len()))
        .then(|| fs::read(file))
        .map(|bytes| Some(String::from_utf8_lossy(&bytes.ok()?).into_owned()))?
}

/// One process on one card.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessAnswer {
    pub process: u32,
    pub rank: Option<u32>,
    pub device: u16,
    pub torch: String,
    pub steps: u32,
    pub peak_requested: i64,
    pub peak_allocated: i64,
    pub peak_reserved: i64,
    pub peak: Peak,
    pub phases: Vec<PhaseRow>,
    pub fragmentation: Fragmentation,
    pub placeholders: Vec<PlaceholderValue>,
    pub uncounted: Vec<Uncounted>,
    pub out_of_memory: Option<OutOfMemory>,
    /// Where the script ran out of memory and went on. What those tries held is in no figure of this answer.
    pub caught: Vec<Caught>,
    /// What the script has and did not come to before it was stopped, and inputs whose sizes differed until then.
    pub unreached: Vec<Unreached>,
    pub varied: Vec<Varied>,
    /// What each step leaves behind, where memory grows from step to step.
    pub growth: Option<Growth>,
    pub exception: Option<Failure>,
    /// The event of the peak, and the events of tries that were caught.
    #[serde(skip)]
    pub moment: usize,
    #[serde(skip)]
    left_out: Vec<Range<usize>>,
}

impl ProcessAnswer {
    /// Whether an event is of a try that ran out of memory and was caught.
    pub fn is_left_out(&self, event: usize) -> bool {
        self.left_out.iter().any(|tried| tried.contains(&event))
    }
}

/// Out of memory, caught by the script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Caught {
    pub line: Option<Line>,
    pub times: usize,
    /// The most that the script then had and asked for.
    pub largest: i64,
}

/// The moment at which most bytes were allocated, or at which memory ran out.
#[derive(Debug, Clone, Serialize)]
pub struct Peak {
    pub step: u32,
    pub phase: &'static str,
    /// What ran then: the innermost line outside of PyTorch, and the script's own that led there, where that is another.
    pub line: Option<Line>,
    pub called_from: Option<Line>,
    /// In a backward pass: the line of the forward pass that is gone back through.
    pub forward_line: Option<Line>,
    pub module: Option<String>,
    pub operator: Option<String>,
    pub bytes: i64,
    pub categories: Vec<Held>,
    /// Modules of the same place in repeated blocks are one: `h.*.mlp`.
    pub modules: Vec<Held>,
    /// Lines outside of PyTorch, all of them.
    pub lines: Vec<Held>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Line {
    pub file: String,
    pub line: u32,
    pub function: String,
}

impl From<&Frame> for Line {
    fn from(frame: &Frame) -> Line {
        Line { file: frame.file.clone(), line: frame.line, function: frame.function.clone() }
    }
}

/// Bytes of blocks that live at the peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub name: String,
    pub bytes: i64,
    pub blocks: usize,
    /// Of a line: what is written there, by which a later version of the file knows it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PhaseRow {
    pub step: u32,
    pub phase: &'static str,
    /// Most allocated in it; allocated and reserved at its end.
    pub peak_allocated: i64,
    pub allocated: i64,
    pub reserved: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Fragmentation {
    /// Most reserved less most allocated: what the allocator's cache holds in pieces that nothing fitted into.
    pub reserved_beyond_allocated: i64,
    /// Most reserved with `expandable_segments:True`; none where that is set already, or was not asked for.
    pub reserved_if_expandable: Option<i64>,
}

/// A value that the script read and nobody computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlaceholderValue {
    pub operator: String,
    pub line: Option<Line>,
    pub times: usize,
    /// Where it decided a size, or is a count: elements that were taken, the least and the most, and the most that there could have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<PlaceholderSize>,
}

/// Elements of results whose shape hangs on values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PlaceholderSize {
    pub least: i64,
    pub most: i64,
    pub possible: i64,
}

/// An operator whose library takes memory of its own that nobody knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Uncounted {
    pub operator: String,
    pub library: String,
    pub line: Option<Line>,
}

#[derive(Debug, Clone, Serialize)]
pub struct OutOfMemory {
    pub tried: i64,
    pub free: i64,
    pub message: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Failure {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    pub line: Option<Line>,
}

/// When something was, in words.
pub fn moment(phase: &str, step: u32) -> String {
    match phase {
        "load" => "while loading".to_string(),
        "optimizer" => format!("in the optimizer's step {step}"),
        phase => format!("in the {phase} pass of step {step}"),
    }
}

/// How many modules are told, and how many lines on a page.
pub const TOLD: usize = 12;

/// What a process needs of each card that it used, the worst first. Of one that used none its exception.
pub fn process_answers(trace: &Trace, command_failed: bool) -> Vec<ProcessAnswer> {
    let blocks = blocks(&trace.events);
    let mut devices: Vec<u16> =
        trace.events.iter().filter(|e| matches!(e.kind, Kind::Alloc | Kind::OutOfMemory)).map(|e| e.device).collect();
    devices.sort_unstable();
    devices.dedup();
    if devices.is_empty() && trace.exception.is_some() {
        devices.push(0);
    }
    let mut answers: Vec<ProcessAnswer> =
        devices.into_iter().map(|device| on_device(trace, &blocks, device, command_failed)).collect();
    answers.sort_by_key(|answer| (answer.out_of_memory.is_none(), -answer.peak_reserved));
    answers
}

fn on_device(trace: &Trace, blocks: &[MemoryBlock], device: u16, command_failed: bool) -> ProcessAnswer {
    let events = trace.events.as_slice();
    let ran_out = ran_out(trace, device, command_failed);
    let tries: Vec<usize> = events
        .iter()
        .enumerate()
        .filter(|(at, event)| event.kind == Kind::OutOfMemory && event.device == device && Some(*at) != ran_out)
        .map(|(at, _)| at)
        .collect();
    // Of few scripts.
    let levels: Vec<i64> = if tries.is_empty() { Vec::new() } else { meters(trace, device).map(|meter| meter.allocated).collect() };
    let left_out = failed_tries(events, &levels, &tries, device);
    let counts = |at: usize| !left_out.iter().any(|tried| tried.contains(&at));
    let mut most = Meter { requested: 0, allocated: 0, reserved: 0 };
    let mut fullest = None;
    for (at, meter) in meters(trace, device).enumerate().filter(|(at, _)| counts(*at)) {
        if fullest.is_none() || meter.allocated > most.allocated {
            fullest = Some(at);
        }
        most.requested = most.requested.max(meter.requested);
        most.allocated = most.allocated.max(meter.allocated);
        most.reserved = most.reserved.max(meter.reserved);
    }
    let steps = events.last().map_or(0, |event| event.step);
    let own_line = |block: &MemoryBlock| {
        let made = &events[block.made()];
        let stack = if made.origin != 0 { made.origin } else { made.stack };
        let frame = trace.own_line(stack).or_else(|| trace.line(stack))?;
        Some(format!("{}:{}", frame.file, frame.line))
    };
    let moment = ran_out.or(fullest).unwrap_or(0);
    ProcessAnswer {
        process: trace.process.id,
        rank: trace.process.rank,
        device,
        torch: trace.process.torch.clone(),
        steps,
        peak_requested: most.requested,
        peak_allocated: most.allocated,
        peak_reserved: most.reserved,
        peak: peak(trace, blocks, device, moment),
        phases: phases(events, meters(trace, device), counts),
        fragmentation: Fragmentation { reserved_beyond_allocated: most.reserved - most.allocated, reserved_if_expandable: None },
        placeholders: placeholders(trace),
        uncounted: uncounted(trace),
        out_of_memory: ran_out.map(|at| OutOfMemory {
            tried: events[at].bytes,
            free: events[at].address.cast_signed(),
            message: trace.exception.as_ref().filter(|e| e.out_of_memory).map(|e| e.message.clone()),
        }),
        caught: caught(trace, &levels, &tries),
        unreached: trace.unreached.clone(),
        varied: trace.varied.clone(),
        growth: growth(trace, blocks, device, steps, own_line),
        exception: trace.exception.as_ref().map(failure),
        moment,
        left_out,
    }
}

/// The event at which memory ran out for good: the script's own end was that exception, or it did not end well and allocated nothing more.
fn ran_out(trace: &Trace, device: u16, command_failed: bool) -> Option<usize> {
    let events = trace.events.as_slice();
    let last = events.iter().rposition(|event| event.kind == Kind::OutOfMemory && event.device == device)?;
    let went_on = || events[last..].iter().any(|event| event.kind == Kind::Alloc);
    let ended_by_it = match &trace.exception {
        Some(exception) => exception.out_of_memory || !went_on(),
        None => trace.stopped.is_none() && command_failed && !went_on(),
    };
    ended_by_it.then_some(last)
}

/// What a try held that ran out of memory and was caught: the events in which more was allocated than when all of it was given back.
fn failed_tries(events: &[Event], levels: &[i64], tries: &[usize], device: u16) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (n, at) in tries.iter().copied().enumerate() {
        let end = tries.get(n + 1).copied().unwrap_or(events.len());
        let had = levels[at];
        // It is given back until much is asked for again; a script that does no more frees the rest when it ends.
        let (mut least, mut over) = (at, None);
        for next in at..end {
            if levels[next] > levels[least] + (had - levels[least]) / 8 + (1 << 20) {
                over = Some(least);
                break;
            }
            if levels[next] < levels[least] {
                least = next;
            }
        }
        let is_alloc = |event: &Event| event.kind == Kind::Alloc && event.device == device;
        let over = over.unwrap_or_else(|| match events[at..end].iter().position(is_alloc) {
            Some(next) => at + next - 1,
            None if end == events.len() => at,
            None => end - 1,
        });
        let level = levels[over];
        let begin = levels[..at].iter().rposition(|now| *now <= level).map_or(0, |before| before + 1);
        match found.last_mut() {
            Some(last) if last.end >= begin => *last = last.start.min(begin)..over + 1,
            _ => found.push(begin..over + 1),
        }
    }
    found
}

fn caught(trace: &Trace, levels: &[i64], tries: &[usize]) -> Vec<Caught> {
    let mut found: Vec<Caught> = Vec::new();
    for at in tries {
        let event = &trace.events[*at];
        let line = trace.own_line(event.stack).or_else(|| trace.line(event.stack)).map(Line::from);
        let largest = levels[*at].saturating_add(event.bytes);
        match found.iter_mut().find(|known| known.line == line) {
            Some(known) => (known.times, known.largest) = (known.times + 1, known.largest.max(largest)),
            None => found.push(Caught { line, times: 1, largest }),
        }
    }
    found
}

fn failure(exception: &Exception) -> Failure {
    let line = |(file, line, function): &(String, LineNumber, String)| Line {
        file: file.clone(),
        line: line.0,
        function: on_one_line(function),
    };
    let own = exception.frames.iter().rev().find(|(file, _, _)| !super::is_library(file)).or(exception.frames.last());
    Failure { kind: on_one_line(&exception.kind), message: exception.message.clone(), line: own.map(line) }
}

fn peak(trace: &Trace, blocks: &[MemoryBlock], device: u16, moment: usize) -> Peak {
    let events = trace.events.as_slice();
    let Some(event) = events.get(moment) else {
        return Peak {
            step: 0,
            phase: Phase::Load.name(),
            line: None,
            called_from: None,
            forward_line: None,
            module: None,
            operator: None,
            bytes: 0,
            categories: Vec::new(),
            modules: Vec::new(),
            lines: Vec::new(),
        };
    };
    let live: Vec<&MemoryBlock> = blocks.iter().filter(|block| block.device == device && block.lives_after(moment)).collect();
    let line = |stack: u32| trace.line(stack).map(Line::from);
    let by = |name: &dyn Fn(&MemoryBlock) -> Option<String>| {
        let mut held: HashMap<String, Held> = HashMap::new();
        for block in &live {
            let name = name(block).unwrap_or_else(|| "elsewhere".to_string());
            let entry = held.entry(name.clone()).or_insert(Held { name, bytes: 0, blocks: 0, source: None });
            entry.bytes += block.rounded;
            entry.blocks += 1;
        }
        let mut held: Vec<Held> = held.into_values().collect();
        held.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        held
    };
    let mut modules = by(&|block| module_of(trace, block).map(|name| alike(&name)));
    modules.truncate(TOLD);
    Peak {
        step: event.step + 1,
        phase: event.phase.name(),
        line: line(event.stack),
        called_from: trace.own_line(event.stack).map(Line::from),
        forward_line: line(event.origin),
        module: trace.modules.get(&event.module).cloned(),
        operator: trace.operators.get(&event.operator.into()).cloned(),
        bytes: live.iter().map(|block| block.rounded).sum(),
        categories: by(&|block| Some(block.category.name().to_string())),
        modules,
        lines: by(&|block| {
            let made = &events[block.made()];
            let frame = trace.line(if made.origin != 0 { made.origin } else { made.stack })?;
            Some(if frame.line > 0 { format!("{}:{}", frame.file, frame.line) } else { frame.file.clone() })
        }),
    }
}

/// The module that a block belongs to: that of its parameter, else the one at work when it was made.
pub fn module_of(trace: &Trace, block: &MemoryBlock) -> Option<String> {
    match trace.tensors.get(&block.tensor) {
        Some(tensor) => Some(tensor.rsplit_once('.').map_or(tensor.as_str(), |(module, _)| module).to_string()),
        None => trace.modules.get(&trace.events[block.made()].module).cloned(),
    }
}

/// A module's path with a star for each number: the same place in each of the repeated blocks.
pub fn alike(module: &str) -> String {
    let part = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".to_string() } else { part.to_string() };
    module.split('.').map(part).collect::<Vec<String>>().join(".")
}

fn phases(events: &[Event], mut meters: impl Iterator<Item = Meter>, counts: impl Fn(usize) -> bool) -> Vec<PhaseRow> {
    let mut rows: Vec<PhaseRow> = Vec::new();
    let mut at = 0;
    for stretch in events.chunk_by(|a, b| (a.phase, a.step) == (b.phase, b.step)) {
        // Between two phases, and after the last step, nothing happens that is one of its own.
        let (mut is_told, mut peak, mut last) = (false, 0, Meter::default());
        for (event, meter) in stretch.iter().zip(meters.by_ref()) {
            last = meter;
            if counts(at) {
                is_told |= matches!(event.kind, Kind::Alloc | Kind::OutOfMemory);
                peak = peak.max(meter.allocated);
            }
            at += 1;
        }
        if !is_told {
            continue;
        }
        let phase = stretch[0].phase;
        let step = if phase == Phase::Load { 0 } else { stretch[0].step + 1 };
        let ended =
            PhaseRow { step, phase: phase.name(), peak_allocated: peak, allocated: last.allocated, reserved: last.reserved };
        match rows.iter_mut().rfind(|row| row.phase == phase.name() && row.step == step) {
            Some(row) => *row = PhaseRow { peak_allocated: row.peak_allocated.max(peak), ..ended },
            None => rows.push(ended),
        }
    }
    rows
}

fn placeholders(trace: &Trace) -> Vec<PlaceholderValue> {
    let mut found: Vec<PlaceholderValue> = Vec::new();
    // Dynamo prints what it guards, Inductor keeps what it tunes with; no decision hangs on either.
    let beside = ["/torch/_dynamo/convert_frame.py", "/torch/_inductor/runtime/triton_heuristics.py"];
    let decides = |event: &&Event| !trace.stack(event.stack).any(|frame| beside.iter().any(|file| frame.file.ends_with(file)));
    for event in trace.events.iter().filter(|event| event.kind == Kind::Placeholder).filter(decides) {
        let line = trace.line(event.stack).map(Line::from);
        let operator = trace.operators.get(&event.operator.into()).cloned().unwrap_or_default();
        let (taken, possible) = (event.rounded, i64::try_from(event.address).unwrap_or(0));
        let size = (possible > 0).then_some(PlaceholderSize { least: taken, most: taken, possible });
        match found.iter_mut().find(|known| known.line == line && known.operator == operator) {
            Some(known) => {
                known.times += 1;
                known.size = known.size.zip(size).map(|(a, b)| PlaceholderSize {
                    least: a.least.min(b.least),
                    most: a.most.max(b.most),
                    possible: a.possible.max(b.possible),
                });
            }
            None => found.push(PlaceholderValue { operator, line, times: 1, size }),
        }
    }
    found
}

/// Such an operator allocates its results, at least.
fn uncounted(trace: &Trace) -> Vec<Uncounted> {
    let mut found: Vec<Uncounted> = Vec::new();
    for event in trace.events.iter().filter(|event| event.kind == Kind::Alloc) {
        let Some(library) = trace.uncounted.get(&event.operator.into()) else { continue };
        let operator = trace.operators.get(&event.operator.into()).cloned().unwrap_or_default();
        let row = Uncounted { operator, library: library.clone(), line: trace.line(event.stack).map(Line::from) };
        if !found.contains(&row) {
            found.push(row);
        }
    }
    found
}
