//! The memory trace: what an allocator did, event by event, and the blocks that it tells of.
//!
//! Two recorders write it, both with the record of `native/trace.h`: that of `vramlab rehearse` into a file of each process
//! (`native/python/recorder.cpp`), and that of the lab, which follows tch in its own process and hands its records over in memory
//! (`src/torch/src/native/allocations.cpp`). Answers, pages, snapshots, replays and experiments read what is made of them here.
//!
//! # Its form
//! Little-endian. A header of 64 bytes: `VLTRACE1`, bytes of a record (80) and process id as `u32`, zeros. Then records ([`Event`]) in the
//! order in which things happened, until the end of the file or one of kind 0.
//!
//! | offset | type | field | |
//! |---|---|---|---|
//! | 0 | u8 | kind | [`Kind`] |
//! | 1 | u8 | phase | [`Phase`] |
//! | 2 | u16 | device | |
//! | 4 | u32 | step | optimizer steps that had ended |
//! | 8 | u64 | address | of the block or segment |
//! | 16 | i64 | bytes | as asked for; of a label the [`Label`] |
//! | 24 | i64 | rounded | what the block has; 1 of memory that ran out where the operator dealt with that by itself, and of a completed free of what another stream might use |
//! | 32 | i64 | allocated | the allocator's meter before the event; a free has left it already |
//! | 40 | i64 | reserved | the same |
//! | 48 | u64 | stream | |
//! | 56 | u32 | stack | number of the Python stack that asked; in a backward pass where no Python runs, that of `backward()` |
//! | 60 | u32 | origin | in a backward pass: number of the stack of the forward pass that is gone back through; 0 where none; of a free 1 where Python's garbage collector made it |
//! | 64 | u32 | module | innermost module at work; of a label, number of the tensor's name |
//! | 68 | u32 | operator | |
//! | 72 | u64 | nanoseconds | since the trace began: the host's time, of which a GPU would take another |
//!
//! A block lives from `Alloc` to `FreeRequested`; its memory is free for others at `FreeCompleted`, which is later where another stream
//! uses it. A label speaks of the block that its address lies in, from when it was made; what a block is for often shows later.

use anyhow::{Context, Result, ensure};
use base::order::place_of;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

/// An enum whose variants have numbers in a file, names in an answer or in records, or both.
#[macro_export]
macro_rules! listed {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $variant:ident $(= $number:literal)? $(as $text:literal)?,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$what])* $variant $(= $number)?,)* }

        $crate::listed! { @of $name $($variant $(= $number)?,)* }
        $crate::listed! { @name $name $($variant $(as $text)?,)* }
    };
    (@of $name:ident $($variant:ident = $number:literal,)*) => {
        impl $name {
            /// None where this version knows of none with the number.
            pub fn of(number: i64) -> Option<$name> {
                match number {
                    $($number => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
    (@name $name:ident $($variant:ident as $text:literal,)*) => {
        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }

            pub fn named(name: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|one| one.name() == name)
            }
        }
    };
    (@$of:ident $name:ident $($variant:ident,)*) => {};
}

listed! {
    /// What a record tells.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Kind {
        Alloc = 1,
        FreeRequested = 2,
        FreeCompleted = 3,
        SegmentAlloc = 4,
        SegmentFree = 5,
        /// Pages of an expandable segment.
        SegmentMap = 6,
        SegmentUnmap = 7,
        /// `bytes` were asked for; `address` is what the card had free.
        OutOfMemory = 8,
        /// A phase or a step begins.
        Mark = 9,
        Label = 10,
        /// The script read a value that comes from numbers that nobody computed: `bytes` is 1 where it is made up, and 0 where it says that they
        /// are valid. Where it decided a size, `rounded` is the one that was taken, and `address` the largest that it could be.
        Placeholder = 11,
        /// The script is ended, or ends: `bytes` is 1 where enough steps were seen, and `OWN_STEP_FOLLOWS` where a step follows that is not its own.
        Ended = 12,
        /// Others than PyTorch's allocator took `bytes` at `address`, or gave them back (fewer than 0); `operator` is their library. Where `rounded`
        /// is not 0, they are pages of that allocator's: 1 while an engine sleeps, 2 for good.
        Outside = 13,
        /// A forward pass of an outermost module with parameters begins: `module` is that module, `bytes` the pass's number from 1 on, `rounded`
        /// what it is ([`PassFlags`]).
        Pass = 14,
        /// The device's next blocks are of the memory pool with the number `bytes` (0 is the ordinary one); or that pool is given up (`rounded` is
        /// 1): a CUDA graph's, for instance, with the graph.
        Pool = 15,
        /// The script asked what is free, `address` of `bytes`.
        Asked = 16,
    }
}

/// Of [`Kind::Ended`]: another step is made to count its operations, by what holds tensors for longer.
const OWN_STEP_FOLLOWS: i64 = 2;

listed! {
    /// What a script is at.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Phase {
        /// Before the first forward pass.
        Load = 0 as "load",
        /// A forward pass, the loss, the next batch: whatever is none of the others.
        Forward = 1 as "forward",
        Backward = 2 as "backward",
        Optimizer = 3 as "optimizer",
        /// A forward pass without gradients, and what the script does with its outputs: evaluation of a model in training, else inference.
        Evaluation = 4 as "evaluation",
        /// The same within a function `generate`.
        Generation = 5 as "generation",
    }
}

/// What a forward pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassFlags {
    pub with_gradients: bool,
    /// The module's own flag, that dropout and batch norm read.
    pub in_training: bool,
    /// The first of a generation: the whole prompt.
    pub begins_generation: bool,
}

impl PassFlags {
    pub fn of(event: &Event) -> PassFlags {
        let is = |flag: i64| event.rounded & flag != 0;
        PassFlags { with_gradients: is(1), in_training: is(2), begins_generation: is(4) }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

listed! {
    /// What somebody says that a block is for.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Label {
        Other = 0,
        Parameter = 1,
        Gradient = 2,
        OptimizerState = 3,
        Buffer = 4,
        /// Filled from the host.
        Data = 5,
        Workspace = 6,
        KeyValueCache = 7,
        /// A moving average of weights, a deepcopy.
        WeightCopy = 8,
        /// The name is of the script's variable that holds the block; what it is for stays as it was said. At address 0 the variables are looked at
        /// anew, and none holds what it is not said to hold.
        Variable = 9,
        /// A parameter that is not trained.
        Frozen = 10,
        /// As a backward pass begins the script's variables hold it and no graph does: dropped there, its memory would be free. At address 0 such
        /// a pass begins, and with the number 1 they are looked at.
        Droppable = 11,
    }
}

/// A record of a trace, as this module's head describes it, without what no answer asks for: a long script has millions of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    pub address: u64,
    pub bytes: i64,
    pub rounded: i64,
    pub step: u32,
    pub stack: u32,
    pub origin: u32,
    pub module: u32,
    pub operator: u16,
    /// A place among the streams that were read with it.
    pub stream: u16,
    pub device: u16,
    pub kind: Kind,
    pub phase: Phase,
}

const HEADER: usize = 64;
/// Bytes of a record.
pub const RECORD: usize = 80;

/// The bytes of a record from a place on.
pub fn field<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&record[at..at + N]);
    bytes
}

impl Event {
    /// None of what this version knows no kind or phase for. A stream is added to those that there are.
    pub fn read(record: &[u8; RECORD], streams: &mut Vec<u64>) -> Option<Event> {
        let (u64_at, u32_at) = (|at| u64::from_le_bytes(field(record, at)), |at| u32::from_le_bytes(field(record, at)));
        let i64_at = |at| i64::from_le_bytes(field(record, at));
        let stream = place_of(streams, u64_at(48));
        Some(Event {
            kind: Kind::of(record[0].into())?,
            phase: Phase::of(record[1].into())?,
            device: u16::from_le_bytes(field(record, 2)),
            step: u32_at(4),
            address: u64_at(8),
            bytes: i64_at(16),
            rounded: i64_at(24),
            stream: u16::try_from(stream).ok()?,
            stack: u32_at(56),
            origin: u32_at(60),
            module: u32_at(64),
            // Nobody has as many: its name would be missing.
            operator: u16::try_from(u32_at(68)).unwrap_or(0),
        })
    }

    /// Whether it is of sizes that there are; what memory ran out over, and a value that was read, can be anything, and what others than
    /// PyTorch's allocator give back is less than nothing.
    fn is_possible(&self) -> bool {
        const MOST_BYTES: i64 = 1 << 50;
        const MOST_STEPS: u32 = 1 << 28;
        let is_anything = matches!(self.kind, Kind::OutOfMemory | Kind::Placeholder);
        let least = if self.kind == Kind::Outside { -MOST_BYTES } else { 0 };
        self.step < MOST_STEPS
            && (is_anything || [self.bytes, self.rounded].iter().all(|bytes| (least..=MOST_BYTES).contains(bytes)))
    }

    /// What it adds to the bytes that the allocator's meter shows as requested: less than nothing where a block is free again.
    pub fn change(&self) -> i64 {
        match self.kind {
            Kind::Alloc => self.bytes,
            Kind::FreeCompleted => -self.bytes,
            _ => 0,
        }
    }
}

/// The events of a file, as far as they are the script's own. Streams are added to those that there are.
///
/// # Errors
/// The file cannot be read, or is none of this version's.
pub fn read(path: &Path, streams: &mut Vec<u64>) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    let file = File::open(path)?;
    // Its process was killed while it opened the file.
    if file.metadata()?.len() < HEADER as u64 {
        return Ok(events);
    }
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut header = [0; HEADER];
    let header = file.read_exact(&mut header).map(|()| header);
    ensure!(header.is_ok_and(|header| header.starts_with(b"VLTRACE1")), "it is no trace of this version");
    let mut record = [0; RECORD];
    let mut end = None;
    loop {
        match file.read_exact(&mut record) {
            Ok(()) if record[0] == 0 => break,
            Ok(()) => {
                let event = Event::read(&record, streams).filter(Event::is_possible);
                match event.with_context(|| format!("its record {} is damaged", events.len() + 1))? {
                    event if event.kind == Kind::Ended && event.bytes == OWN_STEP_FOLLOWS => break,
                    event if event.kind == Kind::Ended => end = end.or(Some(events.len())),
                    event => events.push(event),
                }
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(end) = end.filter(|end| *end < events.len()) {
        let end = end_of_script(&events, end);
        events.truncate(end);
    }
    ensure!(u32::try_from(events.len()).is_ok(), "it has more than four billion events; rehearse fewer steps");
    Ok(events)
}

/// Where the script's own events end, of which `end` are from before it was ended. What is torn down does not count; but what it does at its end
/// may take more than was ever taken before, or more than there is.
fn end_of_script(events: &[Event], end: usize) -> usize {
    let mut live: HashMap<u64, i64> = HashMap::new();
    // By device, what is allocated and was at most.
    let mut levels: HashMap<u16, (i64, i64)> = HashMap::new();
    let mut last = end;
    for (at, event) in events.iter().enumerate() {
        let (now, most) = levels.entry(event.device).or_default();
        match event.kind {
            Kind::Alloc => {
                *now = now.saturating_add(event.rounded);
                live.insert(event.address, event.rounded);
            }
            Kind::FreeRequested => *now = now.saturating_sub(live.remove(&event.address).unwrap_or(0)),
            _ => {}
        }
        let is_out_of_memory = event.kind == Kind::OutOfMemory && event.rounded == 0;
        if at >= end && (now > most || is_out_of_memory) {
            last = at + 1;
        }
        *most = (*most).max(*now);
    }
    last
}

listed! {
    /// What memory is for.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    Category {
        Parameters as "parameters",
        Gradients as "gradients",
        OptimizerState as "optimizer state",
        Buffers as "buffers",
        /// Keys and values of earlier tokens.
        KeyValueCache as "KV cache",
        /// Moving averages of weights and deepcopies of models.
        WeightCopies as "copies of weights",
        /// What autocast made of weights in a type of fewer bits, until it is left.
        AutocastCopies as "autocast's copies of weights",
        /// Batches and whatever else came from the host.
        Data as "data",
        /// Made in a forward pass and still there at its end; of a pass without gradients, what it makes on its way.
        Activations as "activations",
        /// Made in a forward pass without gradients, and still there in the next one.
        Outputs as "kept outputs",
        /// Gone again before the phase that made them ends.
        Temporaries as "temporaries",
        /// The same of an optimizer's step.
        OptimizerTemporaries as "optimizer's temporaries",
        Workspaces as "workspaces",
        /// Made as large as what the card has free allows.
        SizedByFree as "sized by free memory",
        Other as "other",
    }
}

/// What binds a block: whether others can have its memory, and what would make it smaller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Bound {
    #[default]
    Ordinary,
    /// The memory pool with that number: a CUDA graph's, or one that the script made.
    PrivatePool(u32),
    /// The script asked what is free, and made it as large as that allows.
    SizedByFree,
    /// A parameter that is not trained.
    FrozenWeight,
    /// A parameter's gradient that the coming optimizer step does not take.
    UntakenGradient,
    /// Nothing but itself holds it: Python's garbage collector frees it, whenever it comes.
    Garbage,
}

/// A piece of memory from its allocation to its end; moments are positions among the trace's events. A long script has millions of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBlock {
    pub address: u64,
    /// As asked for, and as the allocator gave.
    pub bytes: i64,
    pub rounded: i64,
    made: u32,
    freed: u32,
    completed: u32,
    /// Number of the tensor's name; 0 where it has none.
    pub tensor: u32,
    /// Number of the name of the script's variable that held it when that was last looked at; 0 where none did.
    pub variable: u32,
    pub bound: Bound,
    pub device: u16,
    pub category: Category,
}

/// A trace has fewer events.
const NEVER: u32 = u32::MAX;

fn position(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(NEVER)
}

impl MemoryBlock {
    fn new(made: &Event, at: usize, bound: Bound) -> MemoryBlock {
        let Event { address, bytes, rounded, device, .. } = *made;
        let (made, freed, completed, category) = (position(at), NEVER, NEVER, Category::Other);
        MemoryBlock { address, bytes, rounded, made, freed, completed, tensor: 0, variable: 0, bound, device, category }
    }

    pub fn made(&self) -> usize {
        self.made as usize
    }

    /// When it was given back.
    pub fn freed(&self) -> Option<usize> {
        (self.freed != NEVER).then_some(self.freed as usize)
    }

    /// When others could have it: later than [`MemoryBlock::freed`] where another stream used it.
    pub fn completed(&self) -> Option<usize> {
        (self.completed != NEVER).then_some(self.completed as usize)
    }

    pub fn is_live_after(&self, event: usize) -> bool {
        self.made() <= event && self.freed().is_none_or(|freed| freed > event)
    }
}

impl Label {
    /// Whether a block that was labelled `before` stays that.
    fn leaves(self, before: Label) -> bool {
        match self {
            // A parameter that is loaded from the host stays one.
            Label::Data => before != Label::Other,
            // Weights of which nothing else is known: they are no data, and stay what else they are.
            Label::Other => before != Label::Data,
            Label::WeightCopy => !matches!(before, Label::Other | Label::Data),
            _ => false,
        }
    }
}

/// The blocks of a trace, in the order in which they were made.
pub fn blocks(events: &[Event]) -> Vec<MemoryBlock> {
    let mut blocks: Vec<MemoryBlock> = Vec::new();
    let mut labels: Vec<(Label, u32)> = Vec::new();
    // By address, which says which card it is of: live, and given back but not yet free for others.
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    let mut pending: HashMap<u64, usize> = HashMap::new();
    let mut pools: HashMap<u16, Bound> = HashMap::new();
    for (at, event) in events.iter().enumerate() {
        let key = event.address;
        match event.kind {
            Kind::Alloc => {
                live.insert(key, blocks.len());
                labels.push((Label::Other, 0));
                blocks.push(MemoryBlock::new(event, at, pools.get(&event.device).copied().unwrap_or_default()));
            }
            Kind::Pool if event.rounded == 0 => {
                let bound = if event.bytes == 0 { Bound::Ordinary } else { Bound::PrivatePool(event.bytes as u32) };
                pools.insert(event.device, bound);
            }
            Kind::FreeRequested => {
                if let Some(block) = live.remove(&key) {
                    blocks[block].freed = position(at);
                    pending.insert(key, block);
                }
            }
            Kind::FreeCompleted => {
                if let Some(block) = pending.remove(&key) {
                    blocks[block].completed = position(at);
                }
            }
            Kind::Label if Label::of(event.bytes) == Some(Label::Droppable) => {}
            Kind::Label if key == 0 => live.values().for_each(|&block| blocks[block].variable = 0),
            Kind::Label => {
                if let Some((_, &block)) = live.range(..=key).next_back()
                    && event.address < blocks[block].address + blocks[block].rounded.unsigned_abs().max(1)
                {
                    let label = Label::of(event.bytes).unwrap_or(Label::Other);
                    if label == Label::Variable {
                        blocks[block].variable = event.module;
                        continue;
                    }
                    if !label.leaves(labels[block].0) {
                        labels[block] = (label, if event.module != 0 { event.module } else { labels[block].1 });
                    }
                }
            }
            _ => {}
        }
    }
    let at_kind = |kind: Kind| events.iter().enumerate().filter(move |(_, event)| event.kind == kind);
    let marks: Vec<(usize, Phase)> = at_kind(Kind::Mark).map(|(at, event)| (at, event.phase)).collect();
    let passes: Vec<(usize, bool)> = at_kind(Kind::Pass).map(|(at, event)| (at, PassFlags::of(event).with_gradients)).collect();
    for (block, (label, tensor)) in blocks.iter_mut().zip(labels) {
        block.tensor = tensor;
        block.category = category(block, label, &events[block.made()], &marks, &passes);
        if label == Label::Frozen {
            block.bound = Bound::FrozenWeight;
        }
    }
    widen_vendor_caches(&mut blocks, events);
    blocks
}

/// The last pass adds to a cache that nobody is given any more.
fn widen_vendor_caches(blocks: &mut [MemoryBlock], events: &[Event]) {
    let place = |block: &MemoryBlock| (events[block.made()].stack, events[block.made()].operator);
    let caches: HashSet<(u32, u16)> = blocks
        .iter()
        .filter(|block| block.category == Category::KeyValueCache)
        .map(place)
        .filter(|(stack, _)| *stack != 0)
        .collect();
    let is_made =
        |block: &MemoryBlock| matches!(block.category, Category::Activations | Category::Outputs) && caches.contains(&place(block));
    blocks.iter_mut().filter(|block| is_made(block)).for_each(|block| block.category = Category::KeyValueCache);
}

/// What a block is for: what was said of it, else the phase that made it and whether it outlived that.
fn category(block: &MemoryBlock, label: Label, made: &Event, marks: &[(usize, Phase)], passes: &[(usize, bool)]) -> Category {
    match label {
        Label::Parameter | Label::Frozen => return Category::Parameters,
        Label::Gradient => return Category::Gradients,
        Label::OptimizerState => return Category::OptimizerState,
        Label::Buffer => return Category::Buffers,
        Label::Workspace => return Category::Workspaces,
        Label::KeyValueCache => return Category::KeyValueCache,
        // What an operator of a training step made and happens to have a weight's shape is no copy of it.
        Label::WeightCopy if made.module == 0 && !matches!(made.phase, Phase::Backward | Phase::Optimizer) => {
            return Category::WeightCopies;
        }
        Label::Data if made.module == 0 => return Category::Data,
        Label::Data | Label::Other | Label::WeightCopy | Label::Variable | Label::Droppable => {}
    }
    let after = marks.partition_point(|(at, _)| *at <= block.made());
    let end = marks[after..].iter().find(|(_, phase)| *phase != made.phase).map(|(at, _)| *at);
    let outlives = |end: usize| block.freed().is_none_or(|freed| freed > end);
    let next_pass = passes.partition_point(|(pass, _)| *pass <= block.made());
    let kept = || passes.get(next_pass).is_some_and(|(next, _)| outlives(*next));
    // What a script does with outputs of a pass without gradients, where it never goes backward.
    let is_after_inference = || end.is_none() && next_pass > 0 && !passes[next_pass - 1].1;
    let either = |is: bool, one: Category, other: Category| if is { one } else { other };
    match made.phase {
        Phase::Forward if is_after_inference() => either(kept() || made.module == 0, Category::Outputs, Category::Activations),
        Phase::Load => either(end.is_some_and(|end| !outlives(end)), Category::Temporaries, Category::Other),
        // Without an end it is a pass that failed, or one without training.
        Phase::Forward => either(end.is_none_or(outlives), Category::Activations, Category::Temporaries),
        Phase::Backward => either(end.is_some_and(outlives), Category::Gradients, Category::Temporaries),
        Phase::Optimizer => either(end.is_some_and(outlives), Category::OptimizerState, Category::OptimizerTemporaries),
        Phase::Evaluation | Phase::Generation => either(kept(), Category::Outputs, Category::Activations),
    }
}
