//! What a process under rehearsal wrote: the form of a trace, and its reader.
//!
//! Each process that imports PyTorch has a folder with two files, and one of [`Work`] and one of [`Fetch`], complete at every moment of its life, so that one that is killed, hangs or
//! leaves by `os._exit` has written all that it saw. Another, `lost`, is made with them: where something could not be written, because the disk
//! is full for instance, it begins with the error's number, else with 0.
//!
//! # `events`
//! What the allocator did, in the form of [`sim::trace`]. It is there once CUDA came up.
//!
//! # `names`
//! JSON, an object to a line, whose `kind` and other names are those of [`TraceLine`]. Numbers begin at 1; 0 is none. A name stands before the
//! first event that has its number. A frame's line is -1 where Python knows none. A line that is not understood is left out, and said.
//!
//! The process's own line is the first. A `module` is the class of the outermost one and the path from there (`GPT.transformer.h.0`). Other
//! lines say that a group of so many ranks moved something on the GPU in a new way (`communicator`), what the lines of a file come from
//! that torch.compile wrote (`generated`), that a function of ours failed in the script's call, so often or more, and what is missing for it
//! (`left_out`), why there is nothing to rehearse (`refused`), that a process became a `rank` after it had begun, that Python came to its end
//! by itself (`ended`), packages that it imported (`imported`), samples and tokens of steps and of forward passes (`batches`, `pass_batches`;
//! 0 tokens where the input is no text), passes in which torch.compile worked (`compiling`), that several threads go backward (`threads`), and the operations of the step after the last that is recorded (`flops`). The rest is with the types.

use super::host::HostFigures;
use super::loading::{Fetch, ScriptLoader};
use super::plain::on_one_line;
pub use super::remarks::{
    BACKWARD_PASS, Communicator, Engine, Fill, Meters, Note, NoteKind, PlaceholderBranch, RealGpu, Retainer, SkippedCode,
    TechniqueOutcome,
};
use super::work::Work;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use sim::trace::{self, Event, Phase};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

/// A place in a Python file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Frame {
    pub file: String,
    /// 0 where Python knows none.
    pub line: u32,
    pub function: String,
}

impl Frame {
    /// `FILE:LINE`, by which rows are told apart.
    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }
}

/// The first line of `names`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Process {
    #[serde(rename = "process")]
    pub id: u32,
    pub parent: u32,
    pub arguments: Vec<String>,
    /// Python's own path.
    #[serde(default)]
    pub executable: String,
    pub python: String,
    pub torch: String,
    /// Versions of the packages that `vramlab versions` asks for.
    #[serde(default)]
    pub packages: BTreeMap<String, String>,
    pub cuda: Option<String>,
    pub rank: Option<u32>,
    #[serde(default)]
    pub version: u32,
    pub alloc_conf: Option<String>,
    /// Nanoseconds of a clock that all processes share, as all moments here.
    #[serde(default)]
    pub began: u64,
    /// Folders beside site-packages, as of PYTHONPATH, that packages were installed into.
    #[serde(default)]
    pub libraries: Vec<String>,
}

/// An exception that nobody caught.
#[derive(Debug, Clone, Deserialize)]
pub struct Exception {
    #[serde(rename = "exception")]
    pub kind: String,
    pub message: String,
    pub out_of_memory: bool,
    /// Outermost first.
    pub frames: Vec<(String, i64, String)>,
    pub at: u64,
    /// It ended a thread, and the process went on.
    pub of_thread: bool,
    /// It says that another process has gone, or that somebody ended this one.
    pub of_others: bool,
}

/// Of what Python gives, which can be negative or too large; 0 where it is no line of a file.
pub fn line_number(given: i64) -> u32 {
    u32::try_from(given).unwrap_or(0)
}

/// The line of a compiled file from which on this holds; the file, line and function of the script that it comes from; and the module.
type Origin = (u32, String, u32, String, String);

/// All that a process wrote.
#[derive(Debug, Default)]
pub struct Trace {
    pub process: Process,
    /// Name of the simulated card and how many there are, once CUDA came up.
    pub devices: Option<(String, u32)>,
    /// The number in the machine of each.
    pub cards: Vec<usize>,
    /// Of a job, ranks that have batches of their own; 0 where that is not known.
    pub replicas: u32,
    /// Ranks of the job that it joined; 0 where it joined none.
    pub ranks: u32,
    /// Of each group that would have a communicator of NCCL, by its number.
    pub communicators: BTreeMap<u64, Communicator>,
    pub engine: Option<Engine>,
    /// Of the script's own life: not what is torn down after it.
    pub events: Vec<Event>,
    /// The numbers of the streams that events have.
    pub streams: Vec<u64>,
    pub frames: HashMap<u32, Frame>,
    /// By file that torch.compile wrote.
    generated: HashMap<String, Vec<Origin>>,
    /// Of frames in such files, whose line is that of the script, the module below the compiled function's.
    compiled: HashMap<u32, String>,
    /// Numbers of frames, innermost first.
    pub stacks: HashMap<u32, Vec<u32>>,
    pub modules: HashMap<u32, String>,
    pub tensors: HashMap<u32, String>,
    pub variables: HashMap<u32, Retainer>,
    pub operators: HashMap<u32, String>,
    /// Of operators whose library takes memory that nobody knows, the library.
    pub uncounted: HashMap<u32, String>,
    pub notes: Vec<Note>,
    /// Why the trace is incomplete, where it is.
    pub lost: Option<std::io::Error>,
    pub exception: Option<Exception>,
    pub refused: Option<String>,
    /// Operators that the simulated GPU cannot run, with the stack.
    pub refused_operators: Vec<(String, u32)>,
    left_out: Vec<(String, u64, String)>,
    /// That this PyTorch has no code for the card, and what to do.
    pub no_code: Option<String>,
    /// Bytes of managed memory, the most at once.
    pub managed: u64,
    /// Steps after which it was stopped.
    pub stopped: Option<u32>,
    pub stopped_at: Option<u64>,
    pub ended: bool,
    pub techniques: Vec<TechniqueOutcome>,
    pub unreached: Vec<SkippedCode>,
    pub varied: Vec<PlaceholderBranch>,
    pub keepers: Vec<Retainer>,
    /// Samples and tokens of the first steps.
    pub batches: Vec<(u64, u64)>,
    pub pass_batches: Vec<(u64, u64)>,
    /// Whether more than one thread goes backward.
    pub trains_in_threads: bool,
    /// Trainings that were stopped one after the other, as a sweep has them; 0 of one alone.
    pub trainings: u32,
    /// Numbers of the forward passes in which torch.compile worked.
    compiling: Vec<usize>,
    /// Of the packages whose own ways a technique may switch on, those that were imported; none of a process that did not come to its end.
    pub imported: Option<Vec<String>>,
    pub loaders: Vec<ScriptLoader>,
    /// What was fetched for DataLoaders, by this process or workers that it forked.
    pub fetches: Vec<Fetch>,
    /// Floating-point operations of one step, where they were counted.
    pub flops: Option<u64>,
    /// Why attention keeps its scores there, by kernel that does not, and the stack.
    pub unfused: Vec<(Vec<String>, u32)>,
    /// By device, the share of its memory that the script lets PyTorch's allocator have.
    pub limits: HashMap<u16, f64>,
    /// Where it asks what is free, and the lines of what it then makes as large as that allows.
    pub sized_by_free: Option<(usize, Vec<Frame>)>,
    /// Of the host's memory; zeros of one that did not come to its end.
    pub host: HostFigures,
    pub gpu: Option<RealGpu>,
    pub meters: Option<Meters>,
    /// What operators of the first steps have for the GPU to do.
    pub work: Vec<Work>,
}

/// Of the form of `names`.
pub const VERSION: u32 = 1;

/// A line of `names`, by its kind.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum TraceLine {
    Process(Process),
    Device { device: String, devices: u32, cards: Option<Vec<usize>> },
    Communicator(Communicator),
    Engine { engine: Box<Engine> },
    Replicas { replicas: u32 },
    Frame { frame: u32, file: String, line: i64, function: String },
    Generated { generated: String, lines: Vec<Origin> },
    Stack { stack: u32, frames: Vec<u32> },
    Module { module: u32, name: String },
    Tensor { tensor: u32, name: String },
    Variable { variable: u32, name: String, file: String, function: String },
    Operator { operator: u32, name: String, uncounted: Option<String> },
    Note(Note),
    Exception(Exception),
    Refused { refused: String },
    NoCode { no_code: String },
    Managed { managed: u64 },
    RefusedOperator { refused_operator: String, stack: u32 },
    LeftOut { left_out: String, times: u64, why: String },
    Stopped { stopped: u32, at: u64 },
    Ended { ended: bool },
    Technique(TechniqueOutcome),
    Unreached(SkippedCode),
    Varied(PlaceholderBranch),
    Keeps(Retainer),
    Batches { batches: Vec<(u64, u64)> },
    PassBatches { pass_batches: Vec<(u64, u64)> },
    Compiling { compiling: Vec<usize> },
    Threads { threads: bool },
    Trainings { trainings: u32 },
    Imported { imported: Vec<String> },
    Loader(ScriptLoader),
    Flops { flops: u64 },
    Host { host: HostFigures },
    Gpu(RealGpu),
    Meters { meters: Meters },
    Rank { rank: u32, of: Option<u32> },
    Limit { limit: f64, device: u16 },
    Unfused { unfused: String, stack: u32 },
}

/// Between two launches a script's own Python takes a tenth of it; what compiles takes a hundred times as long.
const LONG_NANOSECONDS: u64 = 1_000_000;

impl Trace {
    /// Reads a process's folder, which may still be written to.
    ///
    /// # Errors
    /// A file cannot be read, or is none of this version's.
    pub fn read(folder: &Path) -> Result<Trace> {
        let mut trace = Trace::default();
        let names = fs::read(folder.join("names")).with_context(|| format!("reading {}/names", folder.display()))?;
        let mut odd = 0;
        // The last line may be half written.
        for line in String::from_utf8_lossy(&names).split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            match serde_json::from_str(line) {
                Ok(line) => trace.name(line),
                Err(_) => odd += 1,
            }
        }
        // The process's own line is written first, at once.
        let version = trace.process.version;
        ensure!(
            version == VERSION || trace.process.id == 0,
            "{} was written by another version of vramlab (form {version}; this one reads {VERSION}); rehearse the script again with this version",
            folder.display()
        );
        if odd > 0 {
            let missing = "names of lines or modules may be missing";
            let text = format!("{odd} of the process's own remarks could not be read: {missing}");
            trace.notes.push(Note::new(NoteKind::Unknown, text));
        }
        for (what, times, why) in &trace.left_out {
            let times = if *times > 1 { format!("{times} times or more") } else { "once".to_string() };
            let text = format!("left out: {what}, {times}, because it failed here: {}", on_one_line(why));
            trace.notes.push(Note::new(NoteKind::Unknown, text));
        }
        let lost = fs::read_to_string(folder.join("lost")).unwrap_or_default();
        let error = lost.split_whitespace().next().and_then(|number| number.parse().ok()).filter(|number| *number != 0);
        trace.lost = error.map(std::io::Error::from_raw_os_error);
        let events = folder.join("events");
        if trace.lost.is_none() && events.exists() {
            trace.events = trace::read(&events, &mut trace.streams).with_context(|| format!("reading {}", events.display()))?;
        }
        // Nobody raised anything, and it left with a status that says so and a moment. Of helpers, which used no GPU, that is nobody's matter.
        let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
        if let Some((status, at)) = status.trim().split_once(' ').filter(|_| trace.exception.is_none() && !trace.events.is_empty())
        {
            let (kind, message, frames) = ("SystemExit".to_string(), format!("status {status}"), Vec::new());
            let at = at.parse().unwrap_or(0);
            trace.exception =
                Some(Exception { kind, message, out_of_memory: false, frames, at, of_thread: false, of_others: false });
        }
        trace.work = Work::of_folder(folder)?;
        trace.find_compiled();
        trace.leave_out_compiling();
        trace.fetches = Fetch::of_folder(folder);
        Ok(trace)
    }

    fn name(&mut self, line: TraceLine) {
        match line {
            TraceLine::Process(process) => self.process = process,
            TraceLine::Device { device, devices, cards } => {
                (self.devices, self.cards) = (Some((device, devices)), cards.unwrap_or_default())
            }
            TraceLine::Communicator(communicator) => {
                let known = self.communicators.len() as u64;
                self.communicators.insert(if communicator.group == 0 { known } else { communicator.group }, communicator);
            }
            TraceLine::Engine { engine } => self.engine = Some(*engine),
            TraceLine::Replicas { replicas } => self.replicas = replicas,
            TraceLine::Frame { frame, file, line, function } => {
                let line = line_number(line);
                let from = self.generated.get(&file).and_then(|lines| lines[..lines.partition_point(|from| from.0 <= line)].last());
                let known = match from {
                    Some((_, file, line, function, module)) => {
                        self.compiled.insert(frame, on_one_line(module));
                        Frame { file: file.clone(), line: *line, function: on_one_line(function) }
                    }
                    None => Frame { file, line, function: on_one_line(&function) },
                };
                self.frames.insert(frame, known);
            }
            TraceLine::Generated { generated, lines } => drop(self.generated.insert(generated, lines)),
            TraceLine::Stack { stack, frames } => drop(self.stacks.insert(stack, frames)),
            TraceLine::Module { module, name } => drop(self.modules.insert(module, on_one_line(&name))),
            TraceLine::Tensor { tensor, name } => drop(self.tensors.insert(tensor, on_one_line(&name))),
            TraceLine::Variable { variable, name, file, function } => {
                self.variables.insert(variable, Retainer::variable(&name, file, &function));
            }
            TraceLine::Operator { operator, name, uncounted } => {
                self.uncounted.extend(uncounted.map(|library| (operator, library)));
                self.operators.insert(operator, on_one_line(&name));
            }
            TraceLine::Note(note) => {
                let note = Note::new(note.kind, on_one_line(&note.text));
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
            }
            // That of a thread is not the process's end, where it has another.
            TraceLine::Exception(exception) if exception.of_thread && self.exception.is_some() => {}
            TraceLine::Exception(exception) => self.exception = Some(exception),
            TraceLine::RefusedOperator { refused_operator, stack } => self.refused_operators.push((refused_operator, stack)),
            TraceLine::LeftOut { left_out, times, why } => {
                self.left_out.retain(|(known, ..)| *known != left_out);
                self.left_out.push((left_out, times, why));
            }
            TraceLine::Unfused { unfused, stack } => self.unfused.push((unfused.lines().map(on_one_line).collect(), stack)),
            TraceLine::Limit { limit, device } => drop(self.limits.insert(device, limit)),
            TraceLine::Rank { rank, of } => (self.process.rank, self.ranks) = (Some(rank), of.unwrap_or(0)),
            TraceLine::Refused { refused } => self.refused = Some(refused),
            TraceLine::NoCode { no_code } => self.no_code = Some(no_code),
            TraceLine::Managed { managed } => self.managed = managed,
            TraceLine::Stopped { stopped, at } => (self.stopped, self.stopped_at) = (Some(stopped), Some(at)),
            TraceLine::Ended { ended } => self.ended = ended,
            TraceLine::Technique(outcome) => {
                self.techniques.retain(|known| known.technique != outcome.technique);
                self.techniques.push(outcome);
            }
            TraceLine::Unreached(unreached) => self.unreached.push(unreached),
            TraceLine::Varied(varied) => self.varied.push(varied),
            TraceLine::Keeps(keeper) => self.keepers.push(keeper),
            TraceLine::Batches { batches } => self.batches = batches,
            TraceLine::PassBatches { pass_batches } => self.pass_batches = pass_batches,
            TraceLine::Threads { threads } => self.trains_in_threads = threads,
            TraceLine::Trainings { trainings } => self.trainings = trainings,
            TraceLine::Compiling { compiling } => self.compiling = compiling,
            TraceLine::Imported { imported } => self.imported = Some(imported),
            TraceLine::Loader(loader) => self.loaders.push(loader),
            TraceLine::Flops { flops } => self.flops = Some(flops),
            TraceLine::Host { host } => self.host.join(host),
            TraceLine::Gpu(gpu) => self.gpu = Some(gpu),
            TraceLine::Meters { meters } => self.meters = Some(meters),
        }
    }

    /// Takes the time of torch.compile out of the host's in the forward passes in which it worked: what is long there between two launches.
    fn leave_out_compiling(&mut self) {
        let passes = self.work.chunk_by_mut(|_, next| !next.begins_pass).filter(|pass| pass[0].begins_pass);
        let mut passes: Vec<&mut [Work]> = passes.collect();
        // One that launched nothing has no work.
        if passes.len() != self.pass_batches.len() {
            return;
        }
        for number in &self.compiling {
            let pass = number.checked_sub(1).and_then(|at| passes.get_mut(at)).into_iter().flat_map(|pass| pass.iter_mut());
            pass.filter(|work| work.host_nanoseconds > LONG_NANOSECONDS).for_each(|work| work.host_nanoseconds = 0);
        }
    }

    /// Whether code of torch.compile's allocated or launched anything.
    pub fn is_compiled(&self) -> bool {
        !self.compiled.is_empty()
    }

    /// Gives what compiled code allocated and launched to its modules, and in a backward pass to the lines of the forward pass that it was made from.
    fn find_compiled(&mut self) {
        // By number of a stack: the frame of compiled code in it, and in a backward pass the stacks without it and of it alone.
        let compiled: HashMap<u32, u32> = self
            .stacks
            .iter()
            .filter_map(|(stack, frames)| Some((*stack, *frames.iter().find(|frame| self.compiled.contains_key(*frame))?)))
            .collect();
        let mut parted: HashMap<u32, (u32, u32)> = HashMap::new();
        let mut modules: HashMap<(u32, u32), u32> = HashMap::new();
        // A damaged file has numbers up to the largest.
        let after = |last: Option<&u32>| last.map_or(1, |last| last.wrapping_add(1));
        let take = |next: &mut u32| {
            let taken = *next;
            *next = taken.wrapping_add(1);
            taken
        };
        let (mut next_stack, mut next_module) = (after(self.stacks.keys().max()), after(self.modules.keys().max()));
        let events = self.events.iter_mut().map(|event| (event.phase, &mut event.stack, &mut event.origin, &mut event.module));
        let works = self.work.iter_mut().map(|work| (work.phase, &mut work.stack, &mut work.origin, &mut work.module));
        for (phase, stack, origin, module) in events.chain(works) {
            let Some(&frame) = compiled.get(stack) else { continue };
            let path = &self.compiled[&frame];
            if !path.is_empty() {
                *module = *modules.entry((*module, frame)).or_insert_with(|| {
                    let above = self.modules.get(module).map_or_else(String::new, |name| format!("{name}."));
                    let new = take(&mut next_module);
                    self.modules.insert(new, format!("{above}{path}"));
                    new
                });
            }
            if phase == Phase::Backward {
                (*stack, *origin) = *parted.entry(*stack).or_insert_with(|| {
                    let others = self.stacks[stack].iter().copied().filter(|other| *other != frame).collect();
                    let (without, alone) = (take(&mut next_stack), take(&mut next_stack));
                    self.stacks.insert(without, others);
                    self.stacks.insert(alone, vec![frame]);
                    (without, alone)
                });
            }
        }
    }

    /// The frames of a stack, innermost first.
    pub fn stack(&self, number: u32) -> impl Iterator<Item = &Frame> {
        self.stacks.get(&number).into_iter().flatten().filter_map(|frame| self.frames.get(frame))
    }

    /// The innermost line of a stack that is neither PyTorch's nor the standard library's: where a library trains, the line of its model.
    pub fn line(&self, number: u32) -> Option<&Frame> {
        let others = || self.dynamic_line(number).or_else(|| self.stack(number).next());
        self.stack(number).find(|frame| !is_torch_or_stdlib(&frame.file)).or_else(others)
    }

    /// Of code that is in no file: of `python -c`, of functions that a launcher of sweeps sends to its workers.
    fn dynamic_line(&self, number: u32) -> Option<&Frame> {
        self.stack(number).find(|frame| ["<string>", "<stdin>", "<dynamic-code>"].contains(&frame.file.as_str()))
    }

    /// As [`is_library`], for packages that were installed into folders of this process's own, too.
    pub fn is_library(&self, file: &str) -> bool {
        is_library(file) || self.process.libraries.iter().any(|folder| Path::new(file).starts_with(folder))
    }

    /// Whether a file is a program that pip put beside Python: `tune`, `accelerate`.
    fn is_installed_program(&self, file: &str) -> bool {
        let folder = |file: &str| Path::new(file).parent().map(Path::to_path_buf);
        Path::new(file).extension().is_none()
            && (folder(file) == folder(&self.process.executable) || folder(file).is_some_and(|of| of.ends_with(".local/bin")))
    }

    /// The innermost line of the user's own, where that is another one.
    pub fn own_line(&self, number: u32) -> Option<&Frame> {
        let is_own = |frame: &&Frame| !self.is_library(&frame.file) && !self.is_installed_program(&frame.file);
        self.stack(number).find(is_own).or_else(|| self.dynamic_line(number)).filter(|own| Some(*own) != self.line(number))
    }
}

pub const INSTALLED: [&str; 2] = ["/site-packages/", "/dist-packages/"];

/// Whether a file is PyTorch's, Python's or ours, which everybody's lines go through.
pub fn is_torch_or_stdlib(file: &str) -> bool {
    match INSTALLED.iter().find_map(|folder| file.split_once(*folder)) {
        Some((_, package)) => package.starts_with("torch/"),
        None => is_library(file),
    }
}

/// Whether a file belongs to an installed package, to Python or to ourselves.
pub fn is_library(file: &str) -> bool {
    INSTALLED.iter().chain(&["/lib/python3", "/vramlab_rehearsal/", "/graphs/rehearsal-"]).any(|part| file.contains(part))
        || file.starts_with('<')
}

#[cfg(test)]
mod tests {
    use super::super::work::{Precision, WorkKind};
    use super::*;

    #[test]
    fn a_killed_process_has_nothing_to_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        let read = || Trace::read(folder.path()).map_err(|error| format!("{error:#}"));
        ["names", "events", "work"].into_iter().for_each(|name| write(name, b""));
        let killed = read().unwrap();
        assert_eq!((killed.events.len(), killed.work.len()), (0, 0));
        let work = |magic: &[u8], record: u32| [magic, &record.to_le_bytes()[..], &[0; 52 + 176][..]].concat();
        write("work", &work(b"VLWORK03", 88));
        assert_eq!(read().unwrap().work.len(), 2);
        let process = |version: &str| {
            format!(r#"{{"kind":"process","process":7,{version}"parent":1,"arguments":[],"python":"3","torch":"2"}}"#) + "\n"
        };
        for (name, bytes, why) in [
            ("work", work(b"VLWORK02", 80), "another version"),
            ("work", work(b"VLWORK03", 80), "rehearse the script again"),
            ("events", b"another format ".repeat(10), "it is no trace of this version"),
            ("names", process("").into_bytes(), "form 0; this one reads"),
            ("names", process(r#""version":0,"#).into_bytes(), "rehearse the script again"),
        ] {
            write(name, &bytes);
            let refused = read().unwrap_err();
            assert!(refused.contains(why), "{refused}");
            write(name, b"");
        }
    }

    #[test]
    fn a_process_that_was_killed_while_it_opened_a_file_has_nothing_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let process = r#"{"kind":"process","process":7,"version":1,"parent":1,"arguments":[],"python":"3","torch":"2"}"#;
        let work = [&b"VLWORK03"[..], &88u32.to_le_bytes(), &[0; 52]].concat();
        let whole = [("events", &b"VLTRACE1\x50\0\0\0\x07\0\0\0"[..]), ("names", process.as_bytes()), ("work", &work)];
        for (cut, bytes) in whole {
            for end in 0..=bytes.len() {
                ["names", "events", "work"].into_iter().for_each(|name| fs::write(folder.path().join(name), b"").unwrap());
                fs::write(folder.path().join(cut), &bytes[..end]).unwrap();
                let killed = Trace::read(folder.path()).map(|trace| (trace.events.len(), trace.work.len()));
                assert_eq!(killed.map_err(|error| format!("{error:#}")), Ok((0, 0)), "{cut} of {end} bytes");
            }
        }
    }

    /// The enumerators of an `enum class` in one of the simulated GPU's headers: without their k, in the case that Rust has.
    fn enumerators(header: &str, name: &str) -> Vec<(String, i64)> {
        let (_, text) = sim::SOURCES.iter().find(|(path, _)| *path == header).unwrap();
        let (_, body) = text.split_once(&format!("enum class {name} ")).unwrap();
        let body = body.split_once('{').unwrap().1.split_once('}').unwrap().0;
        let code: String = body.lines().map(|line| line.split("//").next().unwrap()).collect();
        let one = |text: &str| {
            let (name, number) = text.split_once('=')?;
            Some((name.trim().strip_prefix('k')?.to_string(), number.trim().parse().unwrap()))
        };
        code.split(',').filter_map(one).collect()
    }

    #[test]
    fn numbers_that_cross_languages_are_those_of_the_headers() {
        let same = |header: &str, name: &str, of: &dyn Fn(i64) -> Option<String>| {
            let all = enumerators(header, name);
            assert!(all.len() > 3, "{name}");
            // 0 ends the file: no record has it.
            for (known, number) in all.iter().filter(|(known, _)| known != "End") {
                assert_eq!(of(*number).as_ref(), Some(known), "{name} {number}");
            }
            let most = all.iter().map(|(_, number)| *number).max().unwrap();
            assert_eq!(of(most + 1), None, "{name} has more here than in {header}");
        };
        same("trace.h", "Kind", &|number| sim::trace::Kind::of(number).map(|kind| format!("{kind:?}")));
        same("trace.h", "Phase", &|number| Phase::of(number).map(|phase| format!("{phase:?}")));
        same("trace.h", "Label", &|number| sim::trace::Label::of(number).map(|label| format!("{label:?}")));
        same("python/work.h", "WorkKind", &|number| WorkKind::of(number).map(|kind| format!("{kind:?}")));
        same("python/work.h", "Precision", &|number| Precision::of(number).map(|precision| format!("{precision:?}")));
        // Python's, in the order of their numbers.
        for (text, begins, header) in [
            (include_str!("../../python/vramlab_rehearsal/device.py"), "FORWARD, ", "Phase"),
            (include_str!("../../python/vramlab_rehearsal/labels.py"), "OTHER, ", "Label"),
        ] {
            let line = text.lines().find(|line| line.starts_with(begins)).unwrap();
            let (names, numbers) = line.split_once(" = ").unwrap();
            for (name, number) in names.split(", ").zip(numbers.split(", ")) {
                let (known, _) = enumerators("trace.h", header).into_iter().find(|(_, each)| each.to_string() == number).unwrap();
                assert!(known.to_uppercase().ends_with(&name.replace('_', "")), "{name} is {known}");
            }
        }
    }
}
