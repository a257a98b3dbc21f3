//! Attention that is written out: a product of queries and keys, a softmax, a product with the values. Its scores are as large as the square of a
//! length, and a backward pass keeps several of them.

use super::super::facts::Facts;
use super::super::process::ProcessAnswer;
use super::{Finding, FindingKind};
use crate::capture::process::Frame;
use crate::words::{bytes, place_of, share_of};
use serde::Serialize;
use sim::trace::{Event, MemoryBlock};
use std::collections::HashSet;

/// Scores of attention that the script writes out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct ExplicitAttention {
    /// What the scores, masks and probabilities have of the peak, in bytes.
    pub bytes: i64,
    /// The line of the softmax of which most is there.
    pub line: Frame,
}

/// So many allocations lie between the product and its softmax at most (scale, mask, another type), and after it the dropout's.
const BEFORE: usize = 10;
const AFTER: usize = 3;
/// Smaller scores are not worth a line.
const LEAST: i64 = 1 << 20;

/// None where scores have less than a tenth of the peak.
pub fn explicit_attention(facts: &Facts) -> Option<ExplicitAttention> {
    let (trace, events, moment) = (facts.trace, facts.events(), facts.moment);
    let peak = facts.bytes_at_peak(|_| true);
    // Of the card's blocks, in the order in which they were made.
    let made: Vec<&MemoryBlock> = facts.blocks().collect();
    let event = |at: usize| -> &Event { &events[made[at].made()] };
    let is = |at: usize, wanted: &[&str]| wanted.contains(&facts.operator(event(at)));
    // Scores may be in half of the bytes of the probabilities, or in twice as many; a mask has one byte for each.
    let is_alike = |bytes: i64, of: i64| [of, of / 2, of * 2].contains(&bytes);
    let is_of = |bytes: i64, of: i64| is_alike(bytes, of) || bytes == of / 4;
    let mut counted: HashSet<usize> = HashSet::new();
    let mut most: Option<(i64, Frame)> = None;
    for softmax in (0..made.len()).filter(|at| made[*at].bytes >= LEAST && is(*at, &["aten::_softmax"])) {
        let size = made[softmax].bytes;
        let product = |at: &usize| is_alike(made[*at].bytes, size) && is(*at, &["aten::bmm", "aten::baddbmm"]);
        let Some(from) = (softmax.saturating_sub(BEFORE)..softmax).rev().find(product) else { continue };
        let to = (softmax + AFTER + 1).min(made.len());
        let of_it = (from..to).filter(|at| is_of(made[*at].bytes, size) && made[*at].lives_after(moment) && counted.insert(*at));
        let bytes = of_it.map(|at| made[at].rounded).sum::<i64>();
        if bytes > most.as_ref().map_or(0, |(most, _)| *most)
            && let Some(line) = trace.line(event(softmax).stack)
        {
            most = Some((bytes, line.clone()));
        }
    }
    let (_, line) = most?;
    let bytes = counted.into_iter().map(|at| made[at].rounded).sum();
    (bytes * 10 >= peak).then_some(ExplicitAttention { bytes, line })
}

pub fn find(_: &Facts, answer: &ProcessAnswer) -> Option<Finding> {
    let attention = answer.explicit_attention.as_ref()?;
    let (scores, share) = (bytes(attention.bytes), share_of(attention.bytes, answer.peak.bytes));
    let at = place_of(&attention.line);
    let title = format!("Attention is written out: its scores are {scores} of the peak ({share}), with a softmax at {at}.");
    let remedy = "torch.nn.functional.scaled_dot_product_attention(q, k, v) in its place keeps none of them";
    Some(Finding::new(FindingKind::ExplicitAttention, title, [remedy.to_string()])?.of(attention.bytes, Some(&attention.line)))
}

/// Says why PyTorch's own function keeps scores, where that is what is written in the line.
pub fn add_source(answer: &mut ProcessAnswer) {
    let Some(attention) = &answer.explicit_attention else { return };
    let place = attention.line.place();
    let written = answer.peak.contents.iter().find(|group| group.line == place).and_then(|group| group.source.as_deref());
    let is_it = |finding: &&mut Finding| finding.kind == FindingKind::ExplicitAttention;
    if let (true, Some(finding)) =
        (written.is_some_and(|source| source.contains("scaled_dot_product_attention")), answer.findings.iter_mut().find(is_it))
    {
        finding.rows = vec![
            "PyTorch's scaled_dot_product_attention took the kernel that keeps them; others do not, which want bf16 or fp16 \
             (model and inputs, or autocast), heads that are not grouped in fp32, and a contiguous mask, or none"
                .to_string(),
        ];
    }
}
