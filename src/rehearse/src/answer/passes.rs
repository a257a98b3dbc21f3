//! Forward passes: what they are called, those that keep a graph that nobody uses, and what earlier ones left at the peak.

use super::place::LiveBytes;
use crate::capture::process::Trace;
use base::order::grouped;
use serde::Serialize;
use sim::trace::{Category, Event, Kind, MemoryBlock, PassFlags, Phase};
use std::collections::{BTreeMap, HashMap};

/// Whether a script trains: then what it does without gradients is evaluation, else inference. One that ended in its first forward pass does
/// where that had gradients and the module's own flag says so.
pub fn trains(events: &[Event]) -> bool {
    let mut passes = events.iter().filter(|event| event.kind == Kind::Pass).map(PassFlags::of);
    let goes_back = || events.iter().any(|event| matches!(event.phase, Phase::Backward | Phase::Optimizer));
    match (passes.next(), passes.next()) {
        (None, _) => true,
        (Some(only), None) if only.with_gradients && only.in_training => true,
        _ => goes_back(),
    }
}

pub fn phase_name(phase: Phase, trains: bool) -> &'static str {
    if phase == Phase::Evaluation && !trains { "inference" } else { phase.name() }
}

/// Steps that had ended where the script made no other and came to its end: what follows is none.
pub fn last_step(trace: &Trace) -> Option<u32> {
    let last = trace.events.last()?.step;
    let goes_back = trace.events.iter().rev().take_while(|event| event.step == last).any(|event| event.phase == Phase::Backward);
    (last > 0 && trace.ended && trace.exception.is_none() && !goes_back).then_some(last)
}

/// The step that an event is of: one that is no training follows the step that has ended. 0 of what belongs to none.
pub fn step_of(event: &Event, trains: bool, last_step: Option<u32>) -> u32 {
    match event.phase {
        Phase::Evaluation | Phase::Generation => event.step,
        _ if !trains || Some(event.step) == last_step => 0,
        _ => event.step + 1,
    }
}

/// Number of the forward pass in which, or after which, an event is; 0 before the first.
pub fn pass_of(events: &[Event], at: usize) -> i64 {
    events[..at].iter().rev().find(|event| event.kind == Kind::Pass).map_or(0, |event| event.bytes)
}

/// Forward passes that keep what a backward pass would need, and none follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct NeedlessGraphs {
    pub passes: usize,
    /// Of how many forward passes.
    pub of: usize,
    /// Activations that live at the peak, where it is in such a pass.
    pub bytes_at_peak: i64,
}

/// Passes of a training loop have a backward pass before the next optimizer step; one in which the module is set to evaluation, and before
/// whose successor nothing goes backward, is none. Of a script that never trains all are such.
pub fn needless_graphs(trace: &Trace, blocks: &[MemoryBlock], device: u16, moment: usize) -> Option<NeedlessGraphs> {
    let events = trace.events.as_slice();
    let trains = trains(events);
    let pass = |(at, event): (usize, &Event)| (event.kind == Kind::Pass).then(|| (at, PassFlags::of(event)));
    let passes: Vec<(usize, PassFlags)> = events.iter().enumerate().filter_map(pass).collect();
    let end_of = |n: usize| passes.get(n + 1).map_or(events.len(), |next| next.0);
    let is_needless = |n: &usize| {
        let (at, flags) = passes[*n];
        let followed = || events[at..end_of(*n)].iter().any(|event| event.phase == Phase::Backward);
        flags.with_gradients && (!trains || (!flags.in_training && !followed()))
    };
    let needless: Vec<usize> = (0..passes.len()).filter(is_needless).collect();
    if needless.is_empty() {
        return None;
    }
    let at_peak = needless.iter().any(|n| (passes[*n].0..end_of(*n)).contains(&moment));
    let is_activation =
        |block: &&MemoryBlock| block.device == device && block.category == Category::Activations && block.lives_after(moment);
    let bytes_at_peak = if at_peak { blocks.iter().filter(is_activation).map(|block| block.rounded).sum() } else { 0 };
    Some(NeedlessGraphs { passes: needless.len(), of: passes.len(), bytes_at_peak })
}

/// What lives at the peak and longer than the step that made it, after which no graph holds it; or was made in an earlier pass of a script
/// without steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Leftover {
    /// The line that made it.
    pub made: LiveBytes,
    /// The script's variable that held it when that was last looked at, and no graph but those that the variable keeps.
    pub variable: Option<String>,
    /// Whether it is a copy of weights, or of an optimizer's state.
    #[serde(skip)]
    pub is_copy: bool,
}

/// The lines of which most is left, where it is at least a hundredth of the peak.
pub fn leftovers(
    trace: &Trace,
    blocks: &[MemoryBlock],
    device: u16,
    moment: usize,
    name: impl Fn(&MemoryBlock) -> Option<String>,
) -> Vec<Leftover> {
    let events = trace.events.as_slice();
    let Some(at_peak) = events.get(moment) else { return Vec::new() };
    let trains = trains(events);
    let pass = events[..moment].iter().rposition(|event| event.kind == Kind::Pass).unwrap_or(0);
    let outlives = |block: &MemoryBlock| match trains {
        true => {
            let step = events[block.made()].step;
            let end = events.partition_point(|event| event.step <= step);
            step <= at_peak.step && end < events.len() && block.lives_after(end)
        }
        false => block.made() < pass,
    };
    let is_left = |block: &&MemoryBlock| {
        let comes_and_goes = matches!(
            block.category,
            Category::Activations
                | Category::Temporaries
                | Category::Outputs
                | Category::Data
                | Category::OptimizerTemporaries
                | Category::WeightCopies
        );
        let is_there = block.device == device && block.made() <= moment && block.lives_after(moment);
        is_there && comes_and_goes && events[block.made()].phase != Phase::Load && outlives(block)
    };
    let total: i64 =
        blocks.iter().filter(|block| block.device == device && block.lives_after(moment)).map(|block| block.rounded).sum();
    let left = |(name, blocks): (String, Vec<&MemoryBlock>)| {
        let bytes = blocks.iter().map(|block| block.rounded).sum();
        let has_graphs = |number: &u32| {
            trace
                .variables
                .get(number)
                .is_some_and(|variable| trace.keepers.iter().any(|of| of.has_graphs() && of.name == variable.name))
        };
        let of_graphs = || blocks.iter().map(|block| block.variable).find(has_graphs);
        let variable = holder(blocks.iter().copied(), bytes).or_else(of_graphs).and_then(|variable| trace.variables.get(&variable));
        let is_copy = blocks.iter().any(|block| block.category == Category::WeightCopies);
        let made = LiveBytes { name, bytes, blocks: blocks.len(), source: None };
        Leftover { made, variable: variable.map(|variable| variable.name.clone()), is_copy }
    };
    let by_line = grouped(blocks.iter().filter(is_left).filter_map(|block| Some((name(block)?, block))));
    let mut found: Vec<Leftover> = by_line.into_iter().map(left).filter(|line| line.made.bytes * 100 >= total).collect();
    found.sort_by(|a, b| b.made.bytes.cmp(&a.made.bytes).then_with(|| a.made.name.cmp(&b.made.name)));
    found
}

/// The variable that holds more than half of so many bytes.
pub fn holder<'a>(blocks: impl Iterator<Item = &'a MemoryBlock>, of: i64) -> Option<u32> {
    let mut held: BTreeMap<u32, i64> = BTreeMap::new();
    blocks.filter(|block| block.variable != 0).for_each(|block| *held.entry(block.variable).or_default() += block.rounded);
    held.into_iter().max_by_key(|(_, bytes)| *bytes).filter(|(_, bytes)| 2 * bytes > of).map(|(variable, _)| variable)
}

/// Names what autocast made of weights: a cast in the module of a parameter, of half its bytes, that outlives what made it. It keeps them until
/// its region is left, over several forward passes, too, but for those that no backward pass wants. Whether there is any of either kind.
pub fn name_autocast_copies(trace: &Trace, blocks: &mut [MemoryBlock]) -> bool {
    // A cast allocates by itself: no kernel of the GPU has begun then.
    let casts = |event: &Event| event.operator == 0;
    // By module, how many parameters of each size it has.
    let mut parameters: HashMap<(u16, &str, i64), usize> = HashMap::new();
    for block in blocks.iter().filter(|block| block.category == Category::Parameters) {
        if let Some((module, _)) = trace.tensors.get(&block.tensor).and_then(|name| name.rsplit_once('.')) {
            *parameters.entry((block.device, module, block.bytes)).or_default() += 1;
        }
    }
    let mut found = false;
    let is_made =
        |block: &&mut MemoryBlock| matches!(block.category, Category::Activations | Category::Temporaries | Category::Outputs);
    for block in blocks.iter_mut().filter(is_made) {
        let made = &trace.events[block.made()];
        let Some(module) = trace.modules.get(&made.module).filter(|_| casts(made)) else { continue };
        if parameters.contains_key(&(block.device, module.as_str(), 2 * block.bytes)) {
            found = true;
            if block.category != Category::Temporaries {
                block.category = Category::AutocastCopies;
            }
        }
    }
    found
}
