//! What a parent and the child that runs a pass say to each other.

use record::protocol::{Pass, PlainCell, Relation};
use record::results::{Sample, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a child is to do; its one argument.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    pub cell: PlainCell,
    pub pass: Pass,
    /// Counts the passes of one kind over one cell, from 1.
    pub round: u32,
    pub device: String,
    pub threads: u32,
    pub seed: u32,
    pub memory_limit: Option<u64>,
    /// What a check compares the cell with.
    pub baseline: PlainCell,
    /// The relation to the baseline that a check must see.
    pub expected: Option<Relation>,
    /// What our side of the cell and its reference hand to each other, where both do the very same.
    pub exchange: Option<Exchange>,
    /// Write the cell's start for the reference, and nothing else.
    pub writes_for_other_side: bool,
    /// Load everything, say so, and begin when told.
    pub waits: bool,
    /// Figures of the whole process are taken: no copy of another runs the pass.
    pub anew: bool,
    /// What a PyTorch reference needs besides; none for a child of our own.
    pub reference: Option<ForReference>,
    /// In place of bytes the memory pass gives the step's witness, and what differs from this one, which may be empty.
    pub witness: Option<String>,
    /// Settings of the caching allocator that the cell asks for.
    pub alloc_conf: Option<String>,
    pub parent: u32,
}

/// Files by which our side of a cell and its PyTorch reference share tensors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exchange {
    /// What the cell begins with, by name: ours writes it, the reference reads it.
    pub start: PathBuf,
    /// What came out of the reference's step: the check of ours compares its own with it.
    pub outcome: PathBuf,
}

/// What a PyTorch reference needs that a child of our own has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForReference {
    /// The library that counts the CPU's tensors and reads settings, as we do.
    pub meter: PathBuf,
    /// Our settings, which must be the reference's, too.
    pub settings: BTreeMap<String, String>,
    /// File of the libtorch that both run on.
    pub libtorch: PathBuf,
}

/// A line from the child.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChildMessage {
    /// All is loaded, and the pass waits to be told to begin.
    Ready,
    Sample(Sample),
    End {
        status: Status,
        reason: String,
    },
}
