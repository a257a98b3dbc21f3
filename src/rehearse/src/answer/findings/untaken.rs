//! Gradients that no coming optimizer step takes: a discriminator's loss that goes back through the generator, an actor's through its critic.

use super::super::facts::Facts;
use super::{Finding, FindingKind};
use crate::capture::process::Frame;
use crate::words::{bytes, place_of};
use sim::trace::{Bound, Category, Kind, MemoryBlock, Phase};
use std::collections::HashSet;

/// Those are told that have more than this part of the peak.
const LEAST_PART: i64 = 50;

/// The script's own frames of a stack, outermost first.
fn chain<'a>(facts: &Facts<'a>, stack: u32) -> Vec<&'a Frame> {
    let mut frames: Vec<&Frame> = facts.trace.stack(stack).filter(|frame| !facts.trace.is_library(&frame.file)).collect();
    frames.reverse();
    frames
}

/// All beginnings of the chains of such blocks.
fn beginnings<'a>(facts: &Facts<'a>, blocks: &[&MemoryBlock]) -> HashSet<Vec<&'a Frame>> {
    let chains = blocks.iter().map(|block| chain(facts, facts.stack_of(block)));
    chains.flat_map(|chain| (1..=chain.len()).map(move |end| chain[..end].to_vec())).collect()
}

pub fn find(facts: &Facts) -> Option<Finding> {
    let events = facts.events();
    let first = facts.blocks().find(|block| block.bound == Bound::UntakenGradient)?;
    // The backward pass that made it.
    let begins = events[..first.made()].iter().rposition(|event| event.kind == Kind::Mark && event.phase == Phase::Backward)?;
    let ends = events[first.made()..].iter().position(|event| event.kind == Kind::Mark && event.phase != Phase::Backward);
    let ends = ends.map_or(events.len(), |at| first.made() + at);
    let made_there = |block: &&MemoryBlock| (begins..ends).contains(&block.made()) && block.category == Category::Gradients;
    let (untaken, taken): (Vec<&MemoryBlock>, Vec<&MemoryBlock>) =
        facts.blocks().filter(made_there).partition(|block| block.bound == Bound::UntakenGradient);
    let gradients: i64 = untaken.iter().map(|block| block.rounded).sum();
    if gradients * LEAST_PART < facts.most.allocated {
        return None;
    }
    // Lines of the forward pass that lead to the one and not to the other.
    let (of_untaken, of_taken) = (beginnings(facts, &untaken), beginnings(facts, &taken));
    let leads = |block: &&MemoryBlock, there: &HashSet<Vec<&Frame>>, not: &HashSet<Vec<&Frame>>| {
        let chain = chain(facts, facts.stack_of(block));
        let apart = (1..=chain.len()).find(|end| !not.contains(&chain[..*end]));
        apart.filter(|end| there.contains(&chain[..*end])).map(|end| (block.rounded, block.made(), chain[end - 1].clone()))
    };
    let kept: Vec<&MemoryBlock> = facts.live(begins).filter(|block| block.category == Category::Activations).collect();
    let theirs: Vec<_> = kept.iter().filter_map(|block| leads(block, &of_untaken, &of_taken)).collect();
    let others: Vec<_> = kept.iter().filter_map(|block| leads(block, &of_taken, &of_untaken)).collect();
    let begin_of = |leads: &[(i64, usize, Frame)]| leads.iter().map(|(_, made, _)| *made).min();
    let is_before = begin_of(&theirs).zip(begin_of(&others)).is_some_and(|(one, other)| one < other);
    let place = facts.trace.own_line(first_stack(facts, first)).or_else(|| facts.trace.line(first_stack(facts, first)))?;
    let at = place_of(place);
    let what = format!("{at} makes {} of gradients that its optimizer step does not take", bytes(gradients));
    let (more, remedy) = match theirs.first().filter(|_| is_before) {
        Some((_, _, line)) => {
            let activations = theirs.iter().map(|(bytes, ..)| bytes).sum();
            let line = place_of(line);
            (
                format!(", and {} of activations for them", bytes(activations)),
                format!(".detach() of what {line} gives, or torch.no_grad() around it, leaves both out."),
            )
        }
        None => {
            (String::new(), "requires_grad_(False) of that model before this pass, and True after it, leaves them out.".to_string())
        }
    };
    Some(Finding::new(FindingKind::UntakenGradients, format!("{what}{more}."), [remedy])?.of(gradients, Some(place)))
}

fn first_stack(facts: &Facts, block: &MemoryBlock) -> u32 {
    facts.made(block).stack
}
