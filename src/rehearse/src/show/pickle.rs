//! A memory snapshot of PyTorch's form, which <https://pytorch.org/memory_viz> and `torch/cuda/_memory_viz.py` read.
//!
//! The form is that of `torch.cuda.memory._snapshot()` of PyTorch 2.11, pickled. The page reads a part of pickle's language only, and what is
//! written here keeps to that. As in PyTorch's own files a text or a stack that comes again is a reference to its first place.

use std::collections::HashMap;
use std::io::{self, Write};

#[derive(Debug, Default)]
pub struct Snapshot {
    pub segments: Vec<Segment>,
    /// One list for each device.
    pub device_traces: Vec<Vec<Action>>,
    /// Names and values, `PYTORCH_ALLOC_CONF` for instance.
    pub settings: Vec<(String, String)>,
    /// What `frames` of the others counts in.
    pub stacks: Vec<Vec<SnapshotFrame>>,
}

#[derive(Debug)]
pub struct Segment {
    pub device: i64,
    pub address: u64,
    pub bytes: i64,
    pub stream: u64,
    pub is_large: bool,
    pub is_expandable: bool,
    pub frames: usize,
    /// Without gaps, by address.
    pub blocks: Vec<SnapshotBlock>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    Allocated,
    /// Given back, and another stream may still use it.
    Pending,
    Inactive,
}

#[derive(Debug)]
pub struct SnapshotBlock {
    pub address: u64,
    pub bytes: i64,
    pub requested: i64,
    pub state: BlockState,
    pub frames: usize,
}

#[derive(Debug)]
pub struct Action {
    /// As PyTorch names it: `alloc`, `free_requested`, `segment_alloc`, `oom`, ...
    pub name: &'static str,
    /// For `oom` what the device had free.
    pub address: u64,
    pub bytes: i64,
    pub stream: u64,
    pub time: i64,
    pub frames: usize,
}

#[derive(Debug, Clone)]
pub struct SnapshotFrame {
    pub function: String,
    pub file: String,
    pub line: u32,
}

impl Snapshot {
    /// Writes the snapshot as a pickle.
    ///
    /// # Errors
    /// What `output` fails with.
    pub fn write(&self, output: &mut dyn Write) -> io::Result<()> {
        let mut pickle = Pickle { output, texts: HashMap::new(), stacks: HashMap::new(), kept: 0 };
        pickle.bytes(&[0x80, 2])?;
        pickle.dict(|p| {
            p.key("segments", |p| p.list(&self.segments, |p, segment| self.segment(p, segment)))?;
            p.key("device_traces", |p| p.list(&self.device_traces, |p, trace| p.list(trace, |p, action| self.action(p, action))))?;
            p.key("allocator_settings", |p| {
                p.dict(|p| self.settings.iter().try_for_each(|(name, value)| p.key(name, |p| p.text(value))))
            })?;
            p.key("external_annotations", |p| p.bytes(b"]"))
        })?;
        pickle.bytes(b".")
    }

    fn segment(&self, p: &mut Pickle, segment: &Segment) -> io::Result<()> {
        let sum = |of: fn(&SnapshotBlock) -> i64, states: &[BlockState]| {
            segment.blocks.iter().filter(|block| states.contains(&block.state)).map(of).sum::<i64>()
        };
        const ACTIVE: [BlockState; 2] = [BlockState::Allocated, BlockState::Pending];
        p.dict(|p| {
            p.key("device", |p| p.integer(segment.device))?;
            p.key("address", |p| p.integer(segment.address.cast_signed()))?;
            p.key("total_size", |p| p.integer(segment.bytes))?;
            p.key("allocated_size", |p| p.integer(sum(|block| block.bytes, &[BlockState::Allocated])))?;
            p.key("active_size", |p| p.integer(sum(|block| block.bytes, &ACTIVE)))?;
            p.key("requested_size", |p| p.integer(sum(|block| block.requested, &ACTIVE)))?;
            p.key("stream", |p| p.integer(segment.stream.cast_signed()))?;
            p.key("segment_type", |p| p.text(if segment.is_large { "large" } else { "small" }))?;
            // A pair of zeros: the pool that is none of a CUDA graph's.
            p.key("segment_pool_id", |p| p.bytes(&[b'K', 0, b'K', 0, 0x86]))?;
            p.key("is_expandable", |p| p.bytes(if segment.is_expandable { &[0x88] } else { &[0x89] }))?;
            p.key("frames", |p| self.frames(p, segment.frames))?;
            p.key("blocks", |p| {
                p.list(&segment.blocks, |p, block| {
                    let state = match block.state {
                        BlockState::Allocated => "active_allocated",
                        BlockState::Pending => "active_pending_free",
                        BlockState::Inactive => "inactive",
                    };
                    p.dict(|p| {
                        p.key("address", |p| p.integer(block.address.cast_signed()))?;
                        p.key("size", |p| p.integer(block.bytes))?;
                        p.key("requested_size", |p| p.integer(block.requested))?;
                        p.key("state", |p| p.text(state))?;
                        p.key("frames", |p| self.frames(p, block.frames))
                    })
                })
            })
        })
    }

    fn action(&self, p: &mut Pickle, action: &Action) -> io::Result<()> {
        p.dict(|p| {
            p.key("action", |p| p.text(action.name))?;
            let address = if action.name == "oom" { "device_free" } else { "addr" };
            p.key(address, |p| p.integer(action.address.cast_signed()))?;
            p.key("size", |p| p.integer(action.bytes))?;
            p.key("stream", |p| p.integer(action.stream.cast_signed()))?;
            p.key("time_us", |p| p.integer(action.time))?;
            p.key("frames", |p| self.frames(p, action.frames))
        })
    }

    fn frames(&self, p: &mut Pickle, number: usize) -> io::Result<()> {
        if let Some(kept) = p.stacks.get(&number) {
            return p.get(*kept);
        }
        p.list(self.stacks.get(number).map_or(&[], Vec::as_slice), |p, frame| {
            p.dict(|p| {
                p.key("name", |p| p.text(&frame.function))?;
                p.key("filename", |p| p.text(&frame.file))?;
                p.key("line", |p| p.integer(i64::from(frame.line)))
            })
        })?;
        let kept = p.put()?;
        p.stacks.insert(number, kept);
        Ok(())
    }
}

/// Writes the opcodes of pickle's protocol 2.
struct Pickle<'a> {
    output: &'a mut dyn Write,
    /// Where texts and stacks were kept.
    texts: HashMap<String, u32>,
    stacks: HashMap<usize, u32>,
    kept: u32,
}

/// Entries that are put into a list at once, as Python has it.
const BATCH: usize = 1000;

impl Pickle<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)
    }

    fn dict(&mut self, entries: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.bytes(b"}(")?;
        entries(self)?;
        self.bytes(b"u")
    }

    fn key(&mut self, name: &str, value: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.text(name)?;
        value(self)
    }

    fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T) -> io::Result<()>) -> io::Result<()> {
        self.bytes(b"]")?;
        for batch in items.chunks(BATCH) {
            self.bytes(b"(")?;
            batch.iter().try_for_each(|item| write(self, item))?;
            self.bytes(b"e")?;
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(kept) = self.texts.get(text) {
            return self.get(*kept);
        }
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        self.bytes(b"X")?;
        self.bytes(&length.to_le_bytes())?;
        self.bytes(text.as_bytes())?;
        let kept = self.put()?;
        self.texts.insert(text.to_string(), kept);
        Ok(())
    }

    /// Keeps what was written last.
    fn put(&mut self) -> io::Result<u32> {
        let number = self.kept;
        self.kept += 1;
        self.bytes(b"r")?;
        self.bytes(&number.to_le_bytes())?;
        Ok(number)
    }

    fn get(&mut self, number: u32) -> io::Result<()> {
        self.bytes(b"j")?;
        self.bytes(&number.to_le_bytes())
    }

    fn integer(&mut self, value: i64) -> io::Result<()> {
        match (u8::try_from(value), i32::try_from(value)) {
            (Ok(byte), _) => self.bytes(&[b'K', byte]),
            (_, Ok(word)) => {
                self.bytes(b"J")?;
                self.bytes(&word.to_le_bytes())
            }
            _ => {
                self.bytes(&[0x8a, 8])?;
                self.bytes(&value.to_le_bytes())
            }
        }
    }
}
