//! What a server has for keys and values, and beside it.

use super::facts::Facts;
use crate::capture::process::Frame;
use serde::Serialize;
use sim::trace::{Bound, Category, Event, Kind, MemoryBlock};

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
    /// The most that others than PyTorch's allocator had, such as NCCL.
    pub outside: i64,
    pub sleep: Option<Sleep>,
}

/// Of an engine that sleeps: the most that is reserved while it does, and while it is awake after it first slept, and what runs at those moments.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Sleep {
    pub times: usize,
    pub asleep: i64,
    pub asleep_at: Option<Frame>,
    pub awake: i64,
    pub awake_at: Option<Frame>,
}

impl Sleep {
    fn of(facts: &Facts) -> Option<Sleep> {
        let levels = &facts.levels;
        let slept = |at: &usize| levels[*at].asleep > 0;
        let first = (0..levels.len()).find(slept)?;
        let here = |at: usize| levels[at].reserved - levels[at].given_back;
        // It falls asleep block by block, and empties the allocator's cache then.
        let is_more = |at: &usize| matches!(facts.events()[*at].kind, Kind::Alloc | Kind::SegmentAlloc | Kind::SegmentMap);
        let most =
            |is_such: &dyn Fn(&usize) -> bool| (first..levels.len()).filter(is_more).filter(is_such).max_by_key(|at| here(*at));
        let (asleep, awake) = (most(&slept), most(&|at| !slept(at)));
        let line = |at: Option<usize>| {
            let stack = facts.events().get(at?)?.stack;
            facts.trace.own_line(stack).or_else(|| facts.trace.line(stack)).cloned()
        };
        let times = (first..levels.len()).filter(|at| slept(at) && (*at == 0 || levels[at - 1].asleep == 0)).count();
        let bytes = |at: Option<usize>| at.map_or(0, here);
        Some(Sleep { times, asleep: bytes(asleep), asleep_at: line(asleep), awake: bytes(awake), awake_at: line(awake) })
    }
}

fn outside(facts: &Facts) -> i64 {
    let is_one = |event: &&Event| event.kind == Kind::Outside && event.rounded == 0 && event.device == facts.device;
    let mut now = 0;
    let levels = facts.events().iter().filter(is_one).map(|event| {
        now += event.bytes;
        now
    });
    levels.max().unwrap_or(0)
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
        outside: outside(facts),
        sleep: Sleep::of(facts),
    })
}
