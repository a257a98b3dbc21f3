//! What a server has for keys and values, and beside it.

use super::facts::Facts;
use crate::capture::process::Frame;
use sim::trace::{Bound, Category, MemoryBlock};

/// What a process has when its pool is there.
#[derive(Debug, Clone, Default)]
pub struct Pool {
    /// As asked for, and as the allocator gave.
    pub asked: i64,
    pub bytes: i64,
    pub lines: Vec<Frame>,
    pub weights: i64,
    /// The most beside weights, pool and graphs, at any time: a pool is made of what that leaves.
    pub activations: i64,
    pub graphs: i64,
}

/// The pool of a server; none of what is none.
pub fn pool(facts: &Facts) -> Option<Pool> {
    let of_engine = facts.trace.engine.as_ref().is_some_and(|engine| engine.kv_cache > 0);
    let is_pool = |block: &MemoryBlock| match of_engine {
        true => block.category == Category::KeyValueCache,
        false => facts.serves && block.bound == Bound::SizedByFree,
    };
    let made = facts.blocks().filter(|block| is_pool(block)).map(MemoryBlock::made).min()?;
    let weights = |block: &MemoryBlock| {
        matches!(block.category, Category::Parameters | Category::Buffers | Category::WeightCopies) && !is_pool(block)
    };
    let of_graph = |block: &MemoryBlock| matches!(block.bound, Bound::PrivatePool(_)) && !is_pool(block);
    let sum = |moment: usize, is_such: &dyn Fn(&MemoryBlock) -> bool| {
        facts.live(moment).filter(|block| is_such(block)).map(|block| block.rounded).sum::<i64>()
    };
    let end = facts.ran_out.unwrap_or(facts.fullest).max(made);
    let before = (0..made).max_by_key(|at| facts.levels[*at].allocated)?;
    let others = |moment| sum(moment, &|block| !is_pool(block) && !weights(block) && !of_graph(block));
    let mut lines: Vec<Frame> = Vec::new();
    for block in facts.blocks().filter(|block| is_pool(block)) {
        let stack = facts.made(block).stack;
        let line = facts.trace.own_line(stack).or_else(|| facts.trace.line(stack));
        lines.extend(line.filter(|line| !lines.contains(line)).cloned());
    }
    Some(Pool {
        asked: facts.live(end).filter(|block| is_pool(block)).map(|block| block.bytes).sum(),
        bytes: sum(end, &is_pool),
        lines,
        weights: sum(end, &weights),
        activations: others(before).max(others(end)).max(others(facts.moment)),
        graphs: super::bounds::pools(facts, end).values().sum(),
    })
}
