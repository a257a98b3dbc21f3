//! The file `work` of a process's folder (src/sim/native/python/work.h): what each operator of the first steps has for the GPU to do.
//!
//! Little-endian. A header of 64 bytes: `VLWORK03`, bytes of a record (88) as `u32`, zeros. Then records in the order of their launches; the
//! fields are those of [`Work`], in this order. A step is there when it has ended.

use anyhow::{Context, Result, ensure};
use sim::trace::{Phase, field};
use std::fs;
use std::path::Path;

sim::listed! {
    /// What an operator does, with its number in a record and its name in records of operators.
    #[derive(Default)]
    WorkKind {
        #[default]
        Pointwise = 0 as "pointwise",
        Matmul = 1 as "matmul",
        Attention = 2 as "attention",
        AttentionBackward = 3 as "attention_backward",
        Convolution = 4 as "convolution",
        Reduction = 5 as "reduction",
        Index = 6 as "index",
        Optimizer = 7 as "optimizer",
        /// Between host and device, or two devices.
        Copy = 8 as "copy",
        /// Recurrent layers of cuDNN.
        Recurrent = 9 as "recurrent",
        /// What torch.compile wrote for Triton.
        Compiled = 10 as "compiled",
        /// What ranks of a job move between each other.
        Collective = 11 as "collective",
        /// A stream waits for another one, as far as that had come when an event was recorded.
        Order = 12 as "order",
    }
}

sim::listed! {
    /// What a collective does, `m` of its record.
    #[derive(Default)]
    Move {
        #[default]
        AllReduce = 0 as "all_reduce",
        AllGather = 1 as "all_gather",
        ReduceScatter = 2 as "reduce_scatter",
        AllToAll = 3 as "all_to_all",
        /// From one rank to all, or of all to one.
        Broadcast = 4 as "broadcast",
        Send = 5 as "send",
        Receive = 6 as "receive",
    }
}

sim::listed! {
    #[derive(Default)]
    Precision {
        /// fp16 and bf16.
        #[default]
        Half = 0 as "half",
        Single = 1 as "single",
        Tf32 = 2 as "tf32",
        Double = 3 as "double",
    }
}

/// One operator's kernels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    pub kind: WorkKind,
    pub precision: Precision,
    pub phase: Phase,
    /// The host waits until it is done: bit 0 of the record's byte.
    pub synchronises: bool,
    /// It waited for the device before: bit 1.
    pub waited: bool,
    /// Of a convolution: its library takes its tensors to channels last first, and the result back: bit 2.
    pub changes_layout: bool,
    /// A CUDA graph's replay launched it, for which another record stands on the host: bit 3.
    pub of_graph: bool,
    /// Of a convolution: its tensors are channels last, bit 4; it is a transposed one, bit 5; it has three dimensions, bit 6.
    pub is_channels_last: bool,
    pub is_transposed: bool,
    pub is_volume: bool,
    /// A batch norm that computes statistics, or its backward pass: bit 7.
    pub of_batch: bool,
    pub device: u16,
    /// Of a product: what its leading dimensions can all be divided by, in elements, 8 at most; 0 of anything else.
    pub alignment: u16,
    /// Optimizer steps that had ended.
    pub step: u32,
    pub launches: u32,
    pub flops: f64,
    /// What must be read and written once.
    pub bytes: f64,
    /// Of a product; m is rows of the result. Of a convolution as a product. Of attention queries, keys, size of a head, and heads of all
    /// sequences; of a recurrent layer rows of a step, outputs of its gates, hidden size, and steps; m of a norm or softmax are its
    /// blocks of threads, and of a copy 1 where the host's memory is pinned; n of a copy from this device to another is that one's number plus 1.
    /// Of a collective its `Move`, ranks of the group, machines that they are on, and a number that the group has in each of them; `bytes` is
    /// what each rank has of the whole: the result of a gather, what is given to a scatter. Of an order m and n are the stream that is waited for, and
    /// k the records that there were when the event was recorded.
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub batch: u32,
    pub stream: u64,
    /// As an event of the trace has them.
    pub stack: u32,
    pub origin: u32,
    pub module: u32,
    pub operator: u32,
    /// Processor time of the launching thread since its last record, without the rehearsal's own.
    pub host_nanoseconds: u64,
    /// Of a convolution; of a recurrent layer its layers and directions; of a send or a receive the other's rank in the group, where `alignment` is
    /// this one's; of an order the device of the stream that is waited for.
    pub groups: u32,
    /// Of a convolution: elements of a filter in one channel; of sends and receives that go together the place among them.
    pub taps: u16,
    /// Bit 0: of the input's gradient, or of a backward pass at all; bit 1: of the weights' gradient. 0 is a forward pass.
    pub direction: u8,
    /// The first of a forward pass, and of one that begins a generation: bits 6 and 7 of that byte.
    pub begins_pass: bool,
    pub begins_generation: bool,
    pub stride: u8,
}

impl Default for Work {
    /// One launch of nothing, forward.
    fn default() -> Work {
        Work::read(&[0; RECORD]).map_or_else(|| unreachable!("zeros are a record"), |work| Work { launches: 1, ..work })
    }
}

fn queue(stream: u64, device: u32) -> u64 {
    if stream != 0 { stream } else { u64::MAX - u64::from(device) }
}

const MAGIC: &[u8] = b"VLWORK03";
const HEADER: usize = 64;
pub const RECORD: usize = 88;

impl Work {
    fn read(record: &[u8; RECORD]) -> Option<Work> {
        let (u16_at, u32_at) = (|at| u16::from_le_bytes(field(record, at)), |at| u32::from_le_bytes(field(record, at)));
        let (u64_at, f64_at) = (|at| u64::from_le_bytes(field(record, at)), |at| f64::from_le_bytes(field(record, at)));
        Some(Work {
            kind: WorkKind::of(record[0].into())?,
            precision: Precision::of(record[1].into())?,
            phase: Phase::of(record[2].into())?,
            synchronises: record[3] & 1 != 0,
            waited: record[3] & 2 != 0,
            changes_layout: record[3] & 4 != 0,
            of_graph: record[3] & 8 != 0,
            is_channels_last: record[3] & 16 != 0,
            is_transposed: record[3] & 32 != 0,
            is_volume: record[3] & 64 != 0,
            of_batch: record[3] & 128 != 0,
            device: u16_at(4),
            alignment: u16_at(6),
            step: u32_at(8),
            launches: u32_at(12),
            flops: f64_at(16),
            bytes: f64_at(24),
            m: u32_at(32),
            n: u32_at(36),
            k: u32_at(40),
            batch: u32_at(44),
            stream: u64_at(48),
            stack: u32_at(56),
            origin: u32_at(60),
            module: u32_at(64),
            operator: u32_at(68),
            host_nanoseconds: u64_at(72),
            groups: u32_at(80),
            taps: u16_at(84),
            direction: record[86] & 3,
            begins_pass: record[86] & 64 != 0,
            begins_generation: record[86] & 128 != 0,
            stride: record[87],
        })
    }

    /// A stream of its device, by one number: each device has one that is 0.
    pub fn queue(&self) -> u64 {
        queue(self.stream, u32::from(self.device))
    }

    /// Of an order the stream that is waited for.
    pub fn waits_for(&self) -> u64 {
        queue(u64::from(self.m) | u64::from(self.n) << 32, self.groups)
    }

    /// Whether it gives the card's own units something to do.
    pub fn is_of_card(&self) -> bool {
        !matches!(self.kind, WorkKind::Collective | WorkKind::Order)
    }

    /// What a process's folder holds of it; nothing where CUDA never came up.
    pub fn of_folder(folder: &Path) -> Result<Vec<Work>> {
        let path = folder.join("work");
        if !path.exists() {
            return Ok(Vec::new());
        }
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        // A process that was killed while it opened the file has written nothing.
        if bytes.len() < HEADER {
            return Ok(Vec::new());
        }
        let (magic, record) = (&bytes[..MAGIC.len()], u32::from_le_bytes(field(&bytes, 8)));
        ensure!(
            magic == MAGIC && record == RECORD as u32,
            "{} was written by another version of vramlab ({}, records of {record} bytes; this one reads {}, {RECORD} bytes), so that no \
             time can be predicted from it; rehearse the script again with this version",
            path.display(),
            String::from_utf8_lossy(magic),
            String::from_utf8_lossy(MAGIC),
        );
        Ok(Work::read_all(&bytes[HEADER..]))
    }

    /// Records without a header.
    pub fn read_all(bytes: &[u8]) -> Vec<Work> {
        let (records, _) = bytes.as_chunks::<RECORD>();
        records.iter().filter_map(Work::read).collect()
    }
}

#[cfg(test)]
impl Work {
    /// A product of two matrices in half precision.
    pub fn product(m: u32, n: u32, k: u32) -> Work {
        let [rows, columns, depth] = [m, n, k].map(f64::from);
        let (flops, bytes) = (2.0 * rows * columns * depth, 2.0 * (rows * depth + depth * columns + rows * columns));
        Work { kind: WorkKind::Matmul, alignment: 8, flops, bytes, m, n, k, ..Work::default() }
    }
}
