//! Memory that grows while the script repeats something: blocks that each round makes and nothing frees.

use super::super::facts::Facts;
use super::super::passes::holder;
use super::super::place::LiveBytes;
use super::{Finding, FindingKind};
use crate::capture::process::{Retainer, Trace};
use crate::words::{bytes, short};
use base::units::counted;
use serde::Serialize;
use sim::trace::{Category, MemoryBlock};
use std::collections::{BTreeMap, HashMap};

/// What each round of what the script repeats leaves behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Growth {
    /// What it repeats: `step`, `generation`, `forward pass`, or a forward pass of one of several modules.
    pub round: String,
    /// How many rounds were seen.
    pub rounds: usize,
    /// Allocated bytes that stay, on average over the rounds before the last.
    pub bytes_per_round: i64,
    /// Whether the script was stopped while it grew; else it came to its end, and all of it is in the peak.
    pub goes_on: bool,
    /// Of each line of the script the bytes and blocks of all these rounds that live at the end, the most first.
    pub lines: Vec<LiveBytes>,
    /// Variables that hold tensors of several rounds.
    pub kept_by: Vec<Retainer>,
}

/// What a script repeats, and the events with which its rounds begin.
struct Rounds {
    name: String,
    count: usize,
    /// Of many rounds, of every so many together.
    begins: Vec<usize>,
}

impl Rounds {
    fn new(name: String, begins: &[usize]) -> Rounds {
        let together = begins.len().div_ceil(MOST_ROUNDS).max(1);
        Rounds { name, count: begins.len(), begins: begins.iter().copied().step_by(together).collect() }
    }

    /// Which round an event is of; none before the first.
    fn of(&self, event: usize) -> Option<usize> {
        self.begins.partition_point(|begin| *begin <= event).checked_sub(1)
    }
}

const MOST_ROUNDS: usize = 512;
/// A round of fewer bytes than this is of a counter or a running mean.
const LEAST_PER_ROUND: i64 = 4096;
/// Where a line's bytes are another block's each round (`torch.cat`), they must have grown as often in a row: by chance sizes do so once in
/// 5,040 times.
const LEAST_RISES: usize = 6;

/// What grew over the rounds of what the script repeats: optimizer steps, else generations, else forward passes of the module that has
/// fewest of them. What is made once (an optimizer's state, a cache) is not made again, and what the last round made is its own still.
pub fn growth(facts: &Facts) -> Option<Growth> {
    // What an engine makes as it warms up it makes once.
    if facts.trace.engine.is_some() {
        return None;
    }
    let stays = |block: &MemoryBlock| {
        // Autocast keeps one copy of each weight, however often its modules are called.
        let is_made_once = [Category::Parameters, Category::OptimizerState, Category::Workspaces, Category::AutocastCopies];
        !is_made_once.contains(&block.category) && block.category != Category::KeyValueCache
    };
    let blocks = || facts.blocks().filter(|block| stays(block));
    let mut lines: HashMap<u32, Option<String>> = HashMap::new();
    blocks().for_each(|block| _ = lines.entry(facts.stack_of(block)).or_insert_with(|| facts.own_line(block)));
    let line = |block: &MemoryBlock| lines[&facts.stack_of(block)].as_deref();
    let blocks: Vec<(&MemoryBlock, &str)> = blocks().filter_map(|block| Some((block, line(block)?))).collect();
    repeated(facts).iter().find_map(|rounds| grown(facts.trace, &blocks, rounds))
}

fn grown(trace: &Trace, blocks: &[(&MemoryBlock, &str)], rounds: &Rounds) -> Option<Growth> {
    let last = rounds.begins.len().checked_sub(1)?;
    // What a script that came to its end gave back then grew until its last round all the same.
    let end = if trace.stopped.is_some() { trace.events.len().checked_sub(1)? } else { rounds.begins[last] };
    // By line, the bytes and blocks of each round before the last that live at the end.
    let mut made: BTreeMap<&str, Vec<(i64, usize)>> = BTreeMap::new();
    // By line, the bytes that live when each round but the first begins.
    let mut living: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    let mut of_data = vec![0; last];
    // And what the last round made, as far as that is there where the script was stopped.
    let mut of_last: BTreeMap<&str, i64> = BTreeMap::new();
    for (block, line) in blocks {
        let Some(round) = rounds.of(block.made()) else { continue };
        if round == last {
            let is_there = trace.stopped.is_none() || block.is_live_after(end);
            *of_last.entry(line).or_default() += if is_there { block.rounded } else { 0 };
            continue;
        }
        if block.is_live_after(end) {
            let of_round = &mut made.entry(line).or_insert_with(|| vec![(0, 0); last])[round];
            *of_round = (of_round.0 + block.rounded, of_round.1 + 1);
        }
        let until = rounds.begins[round + 1..].partition_point(|begin| block.is_live_after(*begin));
        let at = living.entry(line).or_insert_with(|| vec![0; last]);
        at[round..round + until].iter_mut().for_each(|bytes| *bytes += block.rounded);
        if block.category == Category::Data {
            of_data[round..round + until].iter_mut().for_each(|bytes| *bytes += block.rounded);
        }
    }
    // Batches in the order of their lengths: each is replaced by a larger one, and so is what is made of it.
    let is_of_larger_batches = rises(&of_data);
    let mut lines: Vec<LiveBytes> = Vec::new();
    let mut per_round = 0;
    for (line, at) in living {
        let mut rounds_of = last;
        let (bytes, count) = match made.get_mut(line) {
            Some(of_rounds) if follows_rounds(of_rounds, at[0], of_last.get(line).copied().unwrap_or(0)) => {
                rounds_of -= 1;
                of_rounds.iter().fold((0, 0), |sum, round| (sum.0 + round.0, sum.1 + round.1))
            }
            Some(of_rounds) if accumulates(of_rounds) => {
                // Of the round before the end its gradients, and what its variables hold, may live until the next one has its own.
                let most = of_rounds[..last - 1].iter().fold((0, 0), |most, round| (most.0.max(round.0), most.1.max(round.1)));
                of_rounds[last - 1] = (of_rounds[last - 1].0.min(most.0), of_rounds[last - 1].1.min(most.1));
                // What was there when the first one began, as a buffer that is filled before the training, is none of its own.
                let later = of_rounds[1..].iter().fold((0, 0), |most, round| (most.0.max(round.0), most.1.max(round.1)));
                of_rounds[0] = (of_rounds[0].0.min(later.0), of_rounds[0].1.min(later.1));
                of_rounds.iter().fold((0, 0), |sum, round| (sum.0 + round.0, sum.1 + round.1))
            }
            _ if !is_of_larger_batches && rises(&at) => (at[last - 1] - at[0], 1),
            _ => continue,
        };
        per_round += bytes * i64::try_from(last).ok()? / i64::try_from(rounds_of).ok()?;
        lines.push(LiveBytes { name: line.to_string(), bytes, blocks: count, source: None });
    }
    lines.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    per_round /= i64::try_from(rounds.count - 1).ok()?;
    (per_round >= if rounds.name == "step" { 1 } else { LEAST_PER_ROUND }).then(|| Growth {
        round: rounds.name.clone(),
        rounds: rounds.count,
        bytes_per_round: per_round,
        goes_on: trace.stopped.is_some(),
        kept_by: kept_by(trace, blocks, &lines, end),
        lines,
    })
}

/// Whether blocks stay of every round, or of three and more of many: not of the first ones alone, as a cache that fills has them, nor of the last
/// ones alone, as what is made anew every so many rounds.
fn accumulates(of_rounds: &[(i64, usize)]) -> bool {
    let with: Vec<usize> = of_rounds.iter().enumerate().filter(|(_, round)| round.1 > 0).map(|(at, _)| at).collect();
    let rounds = of_rounds.len();
    match with[..] {
        [] | [_] => false,
        _ if with.len() == rounds => true,
        [first, .., last] => with.len() >= 3 && 3 * first <= rounds && 3 * last >= 2 * rounds,
    }
}

/// Whether blocks stay that each step leaves after it: these are of the next round, so that the first has none, nor is any there when the second begins;
/// each other has as much, and so has the last.
fn follows_rounds(of_rounds: &[(i64, usize)], when_second_begins: i64, of_last: i64) -> bool {
    let Some(((0, 0), [first, others @ ..])) = of_rounds.split_first() else { return false };
    let least = others.iter().map(|round| round.0).chain([of_last]).min().unwrap_or(0);
    first.0 > 0 && 2 * least >= first.0 && 2 * when_second_begins <= first.0
}

/// Over the last rounds, to more than there ever was: the graphs of an inner loop grow, too, until it begins again.
fn rises(at: &[i64]) -> bool {
    let Some((before, last)) = at.len().checked_sub(LEAST_RISES + 1).map(|from| at.split_at(from)) else { return false };
    last.windows(2).all(|pair| pair[1] > pair[0]) && before.iter().all(|bytes| *bytes < last[LEAST_RISES])
}

/// What the script repeats, what says most first.
fn repeated(facts: &Facts) -> Vec<Rounds> {
    let (trace, events) = (facts.trace, facts.events());
    let mut passes: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    facts.passes.iter().for_each(|(at, _)| passes.entry(events[*at].module).or_default().push(*at));
    let generations: Vec<usize> = facts.passes.iter().filter(|(_, flags)| flags.begins_generation).map(|(at, _)| *at).collect();
    let mut steps: Vec<usize> = (0..=facts.steps).map(|step| events.partition_point(|event| event.step < step)).collect();
    // What follows the last step is no step of its own.
    if steps.len() > 1 {
        steps.pop();
        return if steps.len() > 2 { vec![Rounds::new("step".to_string(), &steps)] } else { Vec::new() };
    }
    let several = passes.len() > 1;
    let of_module = |(module, begins): (u32, Vec<usize>)| match trace.modules.get(&module).filter(|_| several) {
        Some(module) => Rounds::new(format!("forward pass of {module}"), &begins),
        None => Rounds::new("forward pass".to_string(), &begins),
    };
    let mut rounds: Vec<Rounds> = passes.into_iter().map(of_module).collect();
    rounds.sort_by_key(|rounds| rounds.count);
    rounds.insert(0, Rounds::new("generation".to_string(), &generations));
    rounds.retain(|rounds| rounds.begins.len() > 2);
    rounds
}

/// The variables that hold what these lines made, and those that were found to hold graphs of several passes.
fn kept_by(trace: &Trace, blocks: &[(&MemoryBlock, &str)], lines: &[LiveBytes], end: usize) -> Vec<Retainer> {
    let holds = |line: &LiveBytes| {
        let of_line = || blocks.iter().filter(|(block, name)| *name == line.name && block.variable != 0);
        // A block that is replaced each round was looked at in an earlier one.
        if line.blocks == 1 {
            return of_line().next_back().and_then(|(block, _)| trace.variables.get(&block.variable));
        }
        let left = of_line().map(|(block, _)| *block).filter(|block| block.is_live_after(end));
        holder(left, line.bytes).and_then(|variable| trace.variables.get(&variable))
    };
    let all: i64 = lines.iter().map(|line| line.bytes).sum();
    let variables: Vec<&Retainer> = lines.iter().filter(|line| line.bytes * 20 >= all).filter_map(holds).collect();
    let is_of_lines = |keeper: &&Retainer| variables.iter().any(|variable| variable.name == keeper.name);
    let mut keepers: Vec<Retainer> =
        trace.keepers.iter().filter(|keeper| keeper.with_graphs || is_of_lines(keeper)).cloned().collect();
    for variable in variables {
        if keepers.iter().all(|keeper| keeper.name != variable.name) {
            keepers.push(variable.clone());
        }
    }
    keepers
}

pub fn find(growth: Option<&Growth>, cure: Option<String>, steps: u32) -> Option<Finding> {
    let growth = growth?;
    let more = if growth.goes_on && growth.round == "step" && steps < 6 { "; --steps 6 shows whether it goes on" } else { "" };
    let each = bytes(growth.bytes_per_round);
    let what = match growth.lines.iter().all(|line| line.blocks == 1) {
        true => format!("has in place of what the one before made a block that is {each} larger"),
        false => format!("leaves {each} behind that nothing frees"),
    };
    // Whether that matters at all.
    let whole = growth.bytes_per_round * 100_000;
    let in_all = if whole < 1 << 30 { format!(" ({} in 100,000)", bytes(whole)) } else { String::new() };
    let title = format!("Memory grows: each {} {what}{in_all}{more}.", growth.round);
    let rows = growth.lines.iter().take(ROWS).map(growth_at);
    Some(Finding { cure, ..Finding::new(FindingKind::Growth, title, rows)?.of(growth.bytes_per_round, None) })
}

const ROWS: usize = 6;

pub fn growth_at(line: &LiveBytes) -> String {
    format!("{}  {} in {}", short(&line.name), bytes(line.bytes), counted(line.blocks, "block"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_accumulates_is_of_all_the_time() {
        let of = |with: &[usize]| {
            let rounds: Vec<(i64, usize)> = (0..40).map(|round| (0, usize::from(with.contains(&round)))).collect();
            accumulates(&rounds)
        };
        assert!(of(&(0..40).collect::<Vec<_>>()) && of(&[0, 10, 20, 30]) && of(&[9, 19, 29, 39]));
        // What follows each step; what is fetched two steps ahead; what is made once.
        let follows = |when_second_begins, of_last| follows_rounds(&[(0, 0), (8, 1)], when_second_begins, of_last);
        assert!(follows(0, 8) && !follows(16, 8) && !follows(0, 0) && !follows_rounds(&[(8, 1), (8, 1)], 8, 8));
        // A cache that fills; an image that is made larger every ten rounds, and the one before it; the graphs of the last round of an outer loop.
        let rounds = |bytes: fn(i64) -> i64| (0..40).map(bytes).collect::<Vec<i64>>();
        assert!(rises(&rounds(|round| round)) && !rises(&rounds(|round| round % 8)) && !rises(&rounds(|round| 40 - round)));
        assert!(!of(&[0, 1, 2, 3]) && !of(&[20, 30, 39]) && !of(&(34..40).collect::<Vec<_>>()) && !of(&[39]));
    }
}
