//! The blocks of a loss over many classes: logits, their copies in other types, and their gradients, whatever operator made them.
//!
//! They are found by their size. A cross-entropy reads as many numbers as there are rows times classes; the logits of these rows, what a cast makes of
//! them, and what a backward pass makes have as many, in four bytes or two. How many that is tells either an operator whose name says what it
//! computes (`log_softmax`, as PyTorch's and as a kernel of torch.compile's), or the last product of a forward pass, whose result is rows by
//! classes.

use super::facts::Facts;
use crate::capture::work::WorkKind;
use sim::trace::{Category, Kind, MemoryBlock, Phase};
use std::collections::HashSet;

/// Fewer numbers are no reason for anything.
const LEAST: i64 = 1 << 18;
/// Of so many classes a result is one of a loss over classes, and no hidden layer's.
const FEWEST_CLASSES: u32 = 4096;

/// How many numbers tensors of a loss have.
#[derive(Debug, Default)]
pub struct Loss {
    numbers: HashSet<i64>,
}

impl Loss {
    pub fn of(facts: &Facts) -> Loss {
        let named = |name: &str| ["log_softmax", "cross_entropy", "nll_loss"].iter().any(|word| name.contains(word));
        let operators: HashSet<u32> =
            facts.trace.operators.iter().filter(|(_, name)| named(name)).map(|(number, _)| *number).collect();
        let made = facts.events().iter().filter(|event| event.kind == Kind::Alloc && event.device == facts.device);
        let of_loss: HashSet<i64> =
            made.filter(|event| operators.contains(&event.operator.into())).map(|event| event.bytes).collect();
        let is_product = |kind: WorkKind| kind == WorkKind::Matmul;
        let products = facts.trace.work.iter().filter(|work| work.device == facts.device && is_product(work.kind));
        let results = products.filter(|work| work.phase == Phase::Forward && work.m.max(work.n) >= FEWEST_CLASSES);
        let sizes: HashSet<(i64, i64)> = results.map(|work| (i64::from(work.m), i64::from(work.n))).collect();
        let exact: HashSet<i64> = sizes.iter().map(|(rows, classes)| rows * classes).collect();
        let mut numbers = HashSet::new();
        for bytes in &of_loss {
            // In fp32, as PyTorch computes a loss under autocast, too; a model in 16 bits has its own type.
            let read = [bytes / 4, bytes / 2];
            // A result as large as what the loss reads is the logits; others of as many rows are a hidden layer's.
            if let Some(whole) = read.iter().find(|of| exact.contains(of)) {
                numbers.insert(*whole);
                continue;
            }
            for (rows, classes) in &sizes {
                let size = rows * classes;
                // Of a sentence's last row there is nothing to predict, and some losses take a few rows at a time.
                let is_its = |of: &&i64| **of >= LEAST && **of <= size && [rows, classes].iter().any(|each| **of % **each == 0);
                let read: Vec<i64> = read.iter().filter(is_its).copied().collect();
                numbers.extend((!read.is_empty()).then_some(size).into_iter().chain(read));
            }
        }
        // Where the product's sizes are not known, as of a convolution or of pieces of a batch: what the loss itself reads.
        if numbers.is_empty() {
            numbers = of_loss.iter().flat_map(|bytes| [bytes / 4, bytes / 2]).collect();
        }
        numbers.retain(|numbers| *numbers >= LEAST);
        Loss { numbers }
    }

    /// Whether a block has as many numbers, in four bytes or two.
    pub fn has(&self, facts: &Facts, block: &MemoryBlock) -> bool {
        let is_made = || {
            matches!(block.category, Category::Activations | Category::Temporaries)
                || (block.category == Category::Gradients && block.tensor == 0)
        };
        let is_as_large = || [4, 2].iter().any(|size| block.bytes % size == 0 && self.numbers.contains(&(block.bytes / size)));
        let phase = facts.made(block).phase;
        !self.numbers.is_empty()
            && is_made()
            && matches!(phase, Phase::Forward | Phase::Backward | Phase::Evaluation)
            && is_as_large()
    }
}
