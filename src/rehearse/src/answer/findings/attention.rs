//! Attention that is written out: a product of queries and keys, a softmax, a product with the values. Its scores are as large as the square of a
//! length, and a backward pass keeps several of them.

use super::super::contents::BlockGroup;
use super::super::facts::Facts;
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
    /// Whether it is a call of PyTorch's own function, of which a kernel was taken that keeps scores.
    pub is_fused_call: bool,
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
    // Of the card's blocks, in the order in which they were made: when, bytes, what they have, and whether that is there; what was asked for when
    // memory ran out, too.
    let seen = |block: &MemoryBlock| (block.made(), block.bytes, block.rounded, block.is_live_after(moment));
    let mut made: Vec<(usize, i64, i64, bool)> = facts.blocks().map(seen).collect();
    if let Some(at) = facts.ran_out {
        made.truncate(made.partition_point(|(made, ..)| *made < at));
        made.push((at, events[at].bytes, events[at].bytes, true));
    }
    let event = |at: usize| -> &Event { &events[made[at].0] };
    let is = |at: usize, wanted: &[&str]| wanted.contains(&facts.operator(event(at)));
    // Scores may be in half of the bytes of the probabilities, or in twice as many; a mask has one byte for each.
    let is_alike = |bytes: i64, of: i64| [of, of / 2, of * 2].contains(&bytes);
    let is_of = |bytes: i64, of: i64| is_alike(bytes, of) || bytes == of / 4;
    let mut counted: HashSet<usize> = HashSet::new();
    let mut most: Option<(i64, Frame)> = None;
    for softmax in (0..made.len()).filter(|at| made[*at].1 >= LEAST && is(*at, &["aten::_softmax"])) {
        let size = made[softmax].1;
        let product = |at: &usize| is_alike(made[*at].1, size) && is(*at, &["aten::bmm", "aten::baddbmm"]);
        let Some(from) = (softmax.saturating_sub(BEFORE)..softmax).rev().find(product) else { continue };
        let to = (softmax + AFTER + 1).min(made.len());
        let of_it = (from..to).filter(|at| is_of(made[*at].1, size) && made[*at].3 && counted.insert(*at));
        let bytes = of_it.map(|at| made[at].2).sum::<i64>();
        if bytes > most.as_ref().map_or(0, |(most, _)| *most)
            && let Some(line) = trace.line(event(softmax).stack)
        {
            most = Some((bytes, line.clone()));
        }
    }
    // The first product of all may be what memory ran out at.
    let ran_out = facts.ran_out.and_then(|at| {
        let is_there = facts.trace.unfused.iter().any(|(_, stack)| trace.line(*stack) == trace.line(events[at].stack));
        is_there.then(|| trace.line(events[at].stack)).flatten().map(|line| (events[at].bytes, line.clone()))
    });
    let (first, line) = most.or(ran_out)?;
    let bytes = if counted.is_empty() { first } else { counted.into_iter().map(|at| made[at].2).sum() };
    (bytes * 10 >= peak).then(|| {
        let is_fused_call = reason(facts, &line).is_some();
        ExplicitAttention { bytes, line, is_fused_call }
    })
}

/// Why a call of PyTorch's own function in this line took the kernel that keeps scores.
fn reason<'a>(facts: &Facts<'a>, line: &Frame) -> Option<&'a Vec<String>> {
    facts.trace.unfused.iter().find(|(_, stack)| facts.trace.line(*stack) == Some(line)).map(|(why, _)| why)
}

pub fn find(facts: &Facts, attention: Option<&ExplicitAttention>, peak: i64) -> Option<Finding> {
    let attention = attention?;
    let scores = match facts.ran_out {
        None => {
            format!("its scores take {}, {} of all tensors", bytes(attention.bytes), share_of(attention.bytes, peak))
        }
        Some(_) => format!("its scores take {}, and memory runs out in them", bytes(attention.bytes)),
    };
    let at = place_of(&attention.line);
    let why = reason(facts, &attention.line);
    let title = match why {
        Some(_) => format!("scaled_dot_product_attention at {at} takes the kernel that keeps scores: {scores}."),
        None => format!("Attention is written by hand: {scores}, with a softmax at {at}."),
    };
    let remedy = "F.scaled_dot_product_attention(q, k, v) keeps none of them.";
    let rows = why.filter(|why| !why.is_empty()).cloned().unwrap_or_else(|| vec![remedy.to_string()]);
    // PyTorch's warnings go on with what it was given.
    let first = |row: &String| row.split(". ").next().unwrap_or(row).trim_end_matches('.').to_string();
    let cure = Some(rows.iter().map(first).collect::<Vec<String>>().join("; ") + ".");
    Some(Finding { cure, ..Finding::new(FindingKind::ExplicitAttention, title, rows)?.of(attention.bytes, Some(&attention.line)) })
}

/// Of captures that do not tell why PyTorch's own function keeps scores, where that is what is written in the line.
pub fn add_source(attention: &ExplicitAttention, contents: &[BlockGroup], findings: &mut [Finding]) {
    let place = attention.line.place();
    let written = contents.iter().find(|group| group.line == place).and_then(|group| group.source.as_deref());
    let is_it = |finding: &&mut Finding| finding.kind == FindingKind::ExplicitAttention;
    if let (true, Some(finding)) =
        (written.is_some_and(|source| source.contains("scaled_dot_product_attention")), findings.iter_mut().find(is_it))
        && !attention.is_fused_call
    {
        finding.cure = None;
        finding.rows = vec![
            "PyTorch's scaled_dot_product_attention took the kernel that keeps them; others do not, which want bf16 or fp16 \
             (model and inputs, or autocast), heads that are not grouped in fp32, and a contiguous mask, or none"
                .to_string(),
        ];
    }
}
