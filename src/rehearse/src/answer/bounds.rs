//! What binds each block: whether others can have its memory, and what would make it smaller ([`Bound`]).

use super::facts::Facts;
use crate::capture::process::{Frame, Trace};
use sim::trace::{Bound, Category, Event, Kind, Label, MemoryBlock, Phase};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Adds to what the events alone say: what is sized by free memory, garbage, gradients that no coming step takes.
pub fn bind(trace: &Trace, blocks: &mut [MemoryBlock]) {
    // Of several threads steps and backward passes come in any order.
    let untaken = if trace.trains_in_threads { Vec::new() } else { untaken(trace, blocks) };
    let garbage = garbage(&trace.events, blocks);
    for at in garbage {
        blocks[at].bound = Bound::Garbage;
    }
    for at in untaken {
        blocks[at].bound = Bound::UntakenGradient;
    }
    let Some((since, lines)) = &trace.sized_by_free else { return };
    for block in blocks.iter_mut().filter(|block| block.made() > *since) {
        let stack = trace.events[block.made()].stack;
        let line: Option<&Frame> = trace.own_line(stack).or_else(|| trace.line(stack));
        if line.is_some_and(|line| lines.contains(line)) {
            (block.bound, block.category) = (Bound::SizedByFree, Category::SizedByFree);
        }
    }
}

/// What CUDA graphs' memory pools have reserved at a moment, by number. A pool with weights or a cache is an engine's that sleeps.
pub fn pools(facts: &Facts, moment: usize) -> BTreeMap<u32, i64> {
    let (mut now, mut segments) = (0, BTreeMap::new());
    let mut pools: BTreeMap<u32, i64> = BTreeMap::new();
    let of_device = |event: &&Event| event.device == facts.device;
    for event in facts.events().iter().take(moment + 1).filter(of_device) {
        match event.kind {
            Kind::Pool if event.rounded == 0 => now = event.bytes as u32,
            Kind::SegmentAlloc | Kind::SegmentMap if now != 0 => {
                segments.insert(event.address, (event.address + event.bytes.unsigned_abs(), now));
                *pools.entry(now).or_default() += event.bytes;
            }
            Kind::SegmentFree | Kind::SegmentUnmap => {
                if let Some((_, pool)) = segments.remove(&event.address) {
                    *pools.entry(pool).or_default() -= event.bytes;
                }
            }
            _ => {}
        }
    }
    let is_kept = |block: &&MemoryBlock| matches!(block.category, Category::Parameters | Category::KeyValueCache);
    for block in facts.live(moment).filter(is_kept) {
        let address = block.address;
        if let Some((_, pool)) =
            segments.range(..=address).next_back().filter(|(begin, (end, _))| (**begin..*end).contains(&address))
        {
            pools.remove(&pool.1);
        }
    }
    pools
}

/// Places of blocks that nothing but a circle of references held when their line had made another in a later round (a step, or a forward pass), and
/// that Python's garbage collector freed.
fn garbage(events: &[Event], blocks: &[MemoryBlock]) -> Vec<usize> {
    let mut rounds = Vec::with_capacity(events.len());
    let mut passes = 0;
    for event in events {
        passes += usize::from(event.kind == Kind::Pass);
        rounds.push((event.step, passes));
    }
    let is_collected = |block: &MemoryBlock| block.freed().is_some_and(|freed| events[freed].origin == 1);
    let place = |block: &MemoryBlock| (events[block.made()].stack, block.bytes);
    // By stack and size, the last that was made.
    let last: HashMap<(u32, i64), usize> = blocks.iter().map(|block| (place(block), block.made())).collect();
    let is_garbage = |block: &MemoryBlock| is_collected(block) && rounds[last[&place(block)]] > rounds[block.made()];
    (0..blocks.len()).filter(|at| is_garbage(&blocks[*at])).collect()
}

/// Places of parameters' gradients that a backward pass made and the optimizer steps before the next backward pass did not take.
fn untaken(trace: &Trace, blocks: &[MemoryBlock]) -> Vec<usize> {
    let events = trace.events.as_slice();
    // By address the block that lives there; as events come.
    let mut made = blocks.iter().enumerate().peekable();
    let mut live: HashMap<u64, usize> = HashMap::new();
    // Gradients of this round of backward passes and steps; those that have a name, which a step takes that begins before they are freed; those that a
    // step has taken, ever, and before its round was over.
    let (mut of_round, mut untaken): (Vec<usize>, Vec<usize>) = Default::default();
    let (mut named, mut taken): (HashSet<usize>, HashSet<usize>) = Default::default();
    let (mut has_stepped, mut phase) = (false, Phase::Load);
    for (at, event) in events.iter().enumerate() {
        if event.kind == Kind::Alloc && made.peek().is_some_and(|(_, block)| block.made() == at) {
            let Some((place, block)) = made.next() else { break };
            live.insert(event.address, place);
            if event.phase == Phase::Backward && block.category == Category::Gradients {
                of_round.push(place);
            }
        }
        if event.kind == Kind::Label
            && Label::of(event.bytes) == Some(Label::Gradient)
            && let Some(place) = live.get(&event.address)
        {
            named.insert(*place);
        }
        if event.kind == Kind::FreeRequested
            && let Some(place) = live.get(&event.address)
        {
            named.remove(place);
        }
        if event.kind == Kind::Mark && event.phase != phase {
            // The next round's backward pass.
            if event.phase == Phase::Backward && std::mem::take(&mut has_stepped) {
                untaken.extend(of_round.drain(..).filter(|place| !taken.contains(place)));
            }
            if event.phase == Phase::Optimizer {
                has_stepped = true;
                taken.extend(named.drain());
            }
            phase = event.phase;
        }
    }
    if has_stepped {
        untaken.extend(of_round.drain(..).filter(|place| !taken.contains(place)));
    }
    // Of parameters: those were named later, when a step took them or the script ended.
    untaken.retain(|place| blocks[*place].tensor != 0);
    untaken
}
