//! Forward passes: what they are called, those that keep a graph that nobody uses, and what earlier ones left at the peak.

use super::facts::Facts;
use super::place::LiveBytes;
use crate::capture::process::{Frame, Retainer, Trace, is_torch_or_stdlib};
use base::order::grouped;
use serde::Serialize;
use sim::trace::{Bound, Category, Event, Kind, Label, MemoryBlock, Phase};
use std::collections::{BTreeMap, HashMap, HashSet};

pub fn phase_name(phase: Phase, trains: bool) -> &'static str {
    if phase == Phase::Evaluation && !trains { "inference" } else { phase.name() }
}

impl Facts<'_> {
    /// The step that an event is of: one that is no training follows the step that has ended. 0 of what belongs to none.
    pub fn step_of(&self, event: &Event) -> u32 {
        match event.phase {
            Phase::Evaluation | Phase::Generation => event.step,
            _ if !self.trains || Some(event.step) == self.last_step => 0,
            _ => event.step + 1,
        }
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
    /// What they made that lives at the peak, whichever pass that is in.
    pub bytes_at_peak: i64,
    /// What calls the first of them.
    pub line: Option<Frame>,
}

/// Passes of a training loop have a backward pass before the next optimizer step; one in which the module is set to evaluation, and before
/// whose successor nothing goes backward, is none. But a module that is never set otherwise, as in a perceptual loss, may be gone back through
/// after others have run: then its backward pass frees what it kept. Of a script that never trains all are such.
fn needless_passes(facts: &Facts) -> Vec<usize> {
    let &Facts { trace, trains, ref passes, ref gone_back, .. } = facts;
    let events = facts.events();
    let events_of = |n: usize| &events[passes[n].0..passes.get(n + 1).map_or(events.len(), |next| next.0)];
    let trained: HashSet<u32> = passes.iter().filter(|(_, flags)| flags.in_training).map(|(at, _)| events[*at].module).collect();
    let pass_of = |block: &MemoryBlock| passes.partition_point(|(at, _)| *at <= block.made()).checked_sub(1);
    let is_backward = |at: usize| events[at].phase == Phase::Backward;
    // What is made between two passes, outside of modules, may be the next one's.
    let is_of_module = |made: &Event| made.phase == Phase::Forward && made.module != 0;
    let is_used = |block: &&MemoryBlock| is_of_module(&events[block.made()]) && block.freed().is_some_and(is_backward);
    let used: HashSet<usize> = facts.all_blocks.iter().filter(is_used).filter_map(pass_of).collect();
    let is_whole = !facts.makes_steps;
    let is_needless = |n: &usize| {
        let (at, flags) = passes[*n];
        let followed = || events_of(*n).iter().any(|event| event.phase == Phase::Backward);
        let is_evaluation = || match is_whole {
            true => !used.contains(n),
            false => trained.contains(&events[at].module) || !is_among(trace, events[at].module, gone_back),
        };
        // A backbone whose features are taken, which nobody set to evaluation either.
        let is_never_gone_back = || facts.steps > 0 && !used.contains(n) && !is_among(trace, events[at].module, gone_back);
        let is_no_training = || if flags.in_training { is_never_gone_back() } else { is_evaluation() };
        flags.with_gradients && (!trains || (!followed() && is_no_training()))
    };
    (0..passes.len()).filter(is_needless).collect()
}

/// What such passes made, by the event that made it.
pub fn of_needless_graphs(facts: &Facts) -> HashSet<usize> {
    let needless = needless_passes(facts);
    let pass_of = |block: &MemoryBlock| facts.passes.partition_point(|(at, _)| *at <= block.made()).checked_sub(1);
    let is_of_a_pass = |block: &MemoryBlock| matches!(block.category, Category::Activations | Category::Temporaries);
    // No graph has what is gone before the operator that made it is done, as a workspace.
    let is_workspace = |block: &MemoryBlock| {
        let operator = facts.made(block).operator;
        let made = |freed: usize| facts.events()[block.made()..freed].iter().filter(|event| event.kind == Kind::Alloc);
        let is_within = |freed: usize| made(freed).all(|event| event.operator == operator);
        operator != 0 && block.freed().is_some_and(is_within)
    };
    let is_theirs = |block: &MemoryBlock| {
        !is_workspace(block)
            && facts.made(block).phase == Phase::Forward
            && pass_of(block).is_some_and(|pass| needless.binary_search(&pass).is_ok())
    };
    facts.blocks().filter(|block| is_of_a_pass(block) && is_theirs(block)).map(MemoryBlock::made).collect()
}

pub fn needless_graphs(facts: &Facts) -> Option<NeedlessGraphs> {
    let (needless, made) = (needless_passes(facts), of_needless_graphs(facts));
    let (passes, first) = (&facts.passes, *needless.first()?);
    let events_of = |n: usize| &facts.events()[passes[n].0..passes.get(n + 1).map_or(facts.events().len(), |next| next.0)];
    let bytes_at_peak = facts.bytes_at_peak(|block| made.contains(&block.made()));
    // A part that is called by itself, as an embedding is, keeps next to nothing.
    if facts.trains && !facts.makes_steps && bytes_at_peak * 1000 < facts.bytes_at_peak(|_| true) {
        return None;
    }
    let line = events_of(first).iter().find_map(|event| outermost_call(facts.trace, event.stack));
    Some(NeedlessGraphs { passes: needless.len(), of: passes.len(), bytes_at_peak, line })
}

/// Bytes at the peak of parameters' gradients in a script that came to its end without an optimizer's step, where they are a fiftieth of it.
pub fn gradients_without_steps(facts: &Facts) -> Option<i64> {
    let bytes = facts.bytes_at_peak(|block| block.category == Category::Gradients && block.tensor != 0);
    let is_much = || bytes > 0 && bytes * 50 >= facts.bytes_at_peak(|_| true);
    (!facts.makes_steps && is_much()).then_some(bytes)
}

/// Whether a module, or a part of it, is among those.
fn is_among(trace: &Trace, module: u32, modules: &HashSet<u32>) -> bool {
    let Some(whole) = trace.modules.get(&module) else { return false };
    let is_part = |name: &String| name.strip_prefix(whole.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    modules.iter().filter_map(|part| trace.modules.get(part)).any(is_part)
}

/// The line that calls the outermost module.
fn outermost_call(trace: &Trace, stack: u32) -> Option<Frame> {
    let frames: Vec<&Frame> = trace.stack(stack).collect();
    let module = frames.iter().rposition(|frame| frame.file.ends_with("torch/nn/modules/module.py"))?;
    frames[module..].iter().find(|frame| !is_torch_or_stdlib(&frame.file)).copied().cloned()
}

/// What lives at the peak and longer than the step that made it, and that nobody needs any more; or was made in an earlier pass of a script without
/// steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Leftover {
    /// The line that made it.
    pub made: LiveBytes,
    /// The script's variable that held it when that was last looked at, and no graph but those that the variable keeps; or the `retain_graph=True` of a
    /// backward pass before a step.
    pub variable: Option<String>,
    /// Whether it is a copy of weights, or of an optimizer's state.
    #[serde(skip)]
    pub is_copy: bool,
    /// Whether a backward pass before a step was told to keep it.
    #[serde(skip)]
    pub is_retained: bool,
    /// Whether it is of the backward pass in which the peak is, which does not need it.
    #[serde(skip)]
    pub is_of_this_pass: bool,
}

/// The lines of which most is left, where it is at least a hundredth of the peak.
pub fn leftovers(facts: &Facts) -> Vec<Leftover> {
    let &Facts { trace, moment, trains, .. } = facts;
    let events = facts.events();
    let Some(at_peak) = events.get(moment) else { return Vec::new() };
    let mut passes = (0..moment).rev().filter(|at| events[*at].kind == Kind::Pass);
    let (pass, before) = (passes.next().unwrap_or(0), passes.next().unwrap_or(0));
    let is_done_with = done_with(facts);
    let outlives = |block: &MemoryBlock| match trains {
        true => {
            let step = events[block.made()].step;
            let end = events.partition_point(|event| event.step <= step);
            step <= at_peak.step && end < events.len() && block.is_live_after(end) && is_done_with(block)
        }
        // What a pass is given was made after the one before it began.
        false => block.made() < if block.category == Category::Data { before } else { pass },
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
        // A graph has it as long as it is replayed; of garbage another finding tells.
        let is_of_a_graph = matches!(block.bound, Bound::PrivatePool(_) | Bound::Garbage);
        comes_and_goes && !is_of_a_graph && events[block.made()].phase != Phase::Load && outlives(block)
    };
    let total = facts.bytes_at_peak(|_| true);
    // By line the variable that keeps what was made there with its graph, and with that what was made for it.
    let keeps_graphs = |number: &u32| {
        let variable = trace.variables.get(number);
        variable.is_some_and(|variable| trace.keepers.iter().any(|of| of.with_graphs && of.name == variable.name))
    };
    let kept = facts.live(moment).filter(|block| keeps_graphs(&block.variable));
    let keepers: HashMap<String, u32> = kept.filter_map(|block| Some((facts.own_line(block)?, block.variable))).collect();
    let left = |(name, blocks): (String, Vec<&MemoryBlock>)| {
        let bytes = blocks.iter().map(|block| block.rounded).sum();
        let number = holder(blocks.iter().copied(), bytes).or_else(|| keepers.get(&name).copied());
        let variable = number.and_then(|number| trace.variables.get(&number));
        let is_copy = blocks.iter().any(|block| block.category == Category::WeightCopies);
        let made = LiveBytes { name, bytes, blocks: blocks.len(), source: None };
        let is_of_this_step = blocks.iter().all(|block| events[block.made()].step == at_peak.step);
        let is_of_this_pass = at_peak.phase == Phase::Backward && is_of_this_step;
        let are_activations = blocks.iter().all(|block| block.category == Category::Activations);
        let retains = trace.keepers.iter().find(|of| of.retains_graphs() && are_activations && !is_of_this_step);
        let variable = variable.or(retains);
        let is_retained = variable.is_some_and(Retainer::retains_graphs);
        Leftover { made, variable: variable.map(|variable| variable.name.clone()), is_copy, is_retained, is_of_this_pass }
    };
    let by_line = grouped(facts.live(moment).filter(is_left).filter_map(|block| Some((facts.own_line(block)?, block))));
    let mut found: Vec<Leftover> = by_line.into_iter().map(left).filter(|line| line.made.bytes * 100 >= total).collect();
    found.sort_by(|a, b| b.made.bytes.cmp(&a.made.bytes).then_with(|| a.made.name.cmp(&b.made.name)));
    found
}

/// Whether nobody needs a block at the peak: it is of an earlier round, which ended with its backward pass, and was not kept for a later one; or
/// variables alone held it when the backward pass began in which the peak is. Passes that give gradients to the script, and none to parameters, end no
/// round.
fn done_with<'a>(facts: &Facts<'a>) -> impl Fn(&MemoryBlock) -> bool + use<'a> {
    let events = &facts.trace.events[..facts.moment];
    let is_backward = |event: &Event| event.phase == Phase::Backward;
    let is_look = |event: &Event| event.kind == Kind::Label && Label::of(event.bytes) == Some(Label::Droppable);
    // Each begins where variables are looked at, before it has events.
    let ends = |look: usize| {
        let begins = look + events[look..].iter().position(is_backward)?;
        Some(begins + events[begins..].iter().position(|event| !is_backward(event))?)
    };
    let looks: Vec<usize> = (0..events.len()).filter(|at| is_look(&events[*at]) && events[*at].address == 0).collect();
    let current = looks.last().copied().filter(|look| ends(*look).is_none());
    let is_looked_at = current.is_some_and(|look| events[look].module == 1);
    let round = looks.iter().rev().find_map(|look| ends(*look)).unwrap_or(0);
    // What was kept by earlier versions has no such looks.
    let knows_none = !facts.events().iter().any(is_look);
    let held: Vec<(usize, u64)> = (current.unwrap_or(events.len())..events.len())
        .filter(|at| is_look(&events[*at]))
        .map(|at| (at, events[at].address))
        .collect();
    move |block| {
        let within = block.address..block.address.saturating_add(block.rounded.unsigned_abs().max(1));
        let is_droppable = held.iter().any(|(at, address)| block.made() < *at && within.contains(address));
        knows_none || is_droppable || (block.made() < round && !(is_looked_at && block.variable != 0))
    }
}

/// The variable that holds more than half of so many bytes.
pub fn holder<'a>(blocks: impl Iterator<Item = &'a MemoryBlock>, of: i64) -> Option<u32> {
    let mut held: BTreeMap<u32, i64> = BTreeMap::new();
    blocks.filter(|block| block.variable != 0).for_each(|block| *held.entry(block.variable).or_default() += block.rounded);
    held.into_iter().max_by_key(|(_, bytes)| *bytes).filter(|(_, bytes)| 2 * bytes > of).map(|(variable, _)| variable)
}

/// Names what a backward pass with a graph of its own (`create_graph`) kept for the one that goes back through it, which frees it: no gradients.
pub fn name_graphs_of_backward_passes(trace: &Trace, blocks: &mut [MemoryBlock]) {
    let is_unnamed = |block: &&mut MemoryBlock| block.category == Category::Gradients && block.tensor == 0;
    for block in blocks.iter_mut().filter(is_unnamed) {
        let is_backward = |event: usize| trace.events[event].phase == Phase::Backward;
        if is_backward(block.made()) && block.freed().is_some_and(is_backward) {
            block.category = Category::Activations;
        }
    }
}

/// Names the buckets in which DDP sums gradients: it makes them where a model is wrapped, and once more, by the order of its first backward pass,
/// before the second forward pass.
pub fn name_buckets(trace: &Trace, blocks: &mut [MemoryBlock]) {
    let makes = |frame: &Frame| {
        frame.file.ends_with("torch/nn/parallel/distributed.py")
            && ["_ddp_init_helper", "_pre_forward"].contains(&frame.function.as_str())
    };
    let is_unnamed =
        |block: &&mut MemoryBlock| matches!(block.category, Category::Activations | Category::Other | Category::Temporaries);
    for block in blocks.iter_mut().filter(is_unnamed) {
        if trace.stack(trace.events[block.made()].stack).next().is_some_and(makes) {
            block.category = Category::Gradients;
        }
    }
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
