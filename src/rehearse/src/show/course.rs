//! What a process has of a card from event to event.

use crate::answer::ProcessAnswer;
use crate::capture::process::Trace;
use sim::trace::{Category, Event, Kind, MemoryBlock, Phase};
use std::collections::BTreeMap;
use std::ops::Range;

/// Events that a snapshot and a trace tell, the last ones, as PyTorch's own history with `max_entries`; a page has no such bound.
pub const MOST_EVENTS: usize = 200_000;

/// Who it is, for people: `rank 1, GPU 0`.
pub fn who(process: &ProcessAnswer) -> String {
    match process.rank {
        Some(rank) => format!("rank {rank} (process {}), GPU {}", process.process, process.device),
        None => format!("process {}, GPU {}", process.process, process.device),
    }
}

/// Bottom to top: what stays lies below what comes and goes.
pub const LAYERS: [(&str, &[Category]); 8] = [
    ("parameters and buffers", &[Category::Parameters, Category::Buffers, Category::WeightCopies]),
    ("optimizer state", &[Category::OptimizerState]),
    ("data", &[Category::Data]),
    ("gradients", &[Category::Gradients]),
    ("KV cache and kept outputs", &[Category::KeyValueCache, Category::Outputs]),
    ("activations", &[Category::Activations, Category::AutocastCopies]),
    ("temporaries", &[Category::Temporaries, Category::OptimizerTemporaries]),
    ("workspaces and other", &[Category::Workspaces, Category::Other]),
];

pub type Layers = [i64; LAYERS.len()];

pub fn layer(category: Category) -> usize {
    LAYERS.iter().position(|(_, categories)| categories.contains(&category)).unwrap_or(LAYERS.len() - 1)
}

/// Most parts of an axis; where there are more phases each part is a step, then several steps.
const PARTS: usize = 24;
/// Most moments that are kept of a part: of those between two the one with most bytes.
const MOMENTS: usize = 1000;

/// One process on one card.
pub struct View<'a> {
    pub trace: &'a Trace,
    pub process: &'a ProcessAnswer,
    /// All of the process, up to its end.
    pub events: &'a [Event],
    /// Those of the card, in the order in which they were made.
    pub blocks: Vec<MemoryBlock>,
    /// The phases of the events that are shown.
    parts: Vec<CoursePart>,
}

/// Bytes by layer after an event.
#[derive(Debug, Clone, Copy)]
pub struct CourseMoment {
    pub event: usize,
    pub layers: Layers,
}

impl CourseMoment {
    pub fn total(&self) -> i64 {
        self.layers.iter().sum()
    }
}

/// A part of the axis: a phase, a step, or several steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoursePart {
    /// `forward`; none of what several phases are.
    pub phase: Option<&'static str>,
    /// From 0; of `Load` there is none.
    steps: Option<(u32, u32)>,
    pub events: Range<usize>,
}

impl<'a> View<'a> {
    pub fn new(trace: &'a Trace, process: &'a ProcessAnswer) -> View<'a> {
        let events = trace.events.as_slice();
        let mut blocks = sim::trace::blocks(&trace.events);
        blocks.retain(|block| block.device == process.device);
        let ran_out = process.out_of_memory.as_ref().map(|_| process.moment);
        let moves_peak = |event: &Event| event.kind == Kind::Alloc || event.phase == Phase::Optimizer;
        let last = ran_out.or_else(|| events.iter().rposition(moves_peak));
        // What is worth a look: not the fall to nothing at the end.
        let shown = last.map_or(0, |last| last + 1);
        View { trace, process, events, blocks, parts: parts(&events[..shown]) }
    }

    /// Bytes by layer after each event.
    pub fn moments(&self) -> impl Iterator<Item = CourseMoment> {
        let mut changes: BTreeMap<usize, (usize, i64)> = BTreeMap::new();
        for block in &self.blocks {
            changes.insert(block.made(), (layer(block.category), block.rounded));
            if let Some(freed) = block.freed() {
                changes.insert(freed, (layer(block.category), -block.rounded));
            }
        }
        let mut layers = Layers::default();
        (0..self.events.len()).map(move |event| {
            if let Some((layer, bytes)) = changes.get(&event) {
                layers[*layer] += bytes;
            }
            CourseMoment { event, layers }
        })
    }

    /// `in backward of step 2`.
    pub fn place(&self, event: usize) -> String {
        let part = self.parts.get(self.parts.partition_point(|part| part.events.end <= event)).or(self.parts.last());
        part.map_or(String::new(), CoursePart::place)
    }

    /// What to draw, and the moment that each of its points is.
    pub fn course(&self) -> (chart::MemoryCurve, Vec<CourseMoment>) {
        let parts = coarse(self.parts.clone());
        let mut moments: Vec<CourseMoment> = Vec::new();
        let mut phases = Vec::new();
        let mut all = self.moments();
        for part in parts {
            let first = moments.len();
            let count = part.events.len();
            let mut bucket = None;
            for (n, moment) in all.by_ref().take(count).enumerate() {
                let own = n * MOMENTS.min(count) / count;
                match moments.last_mut() {
                    Some(last) if bucket == Some(own) && last.total() >= moment.total() => {}
                    Some(last) if bucket == Some(own) => *last = moment,
                    _ => moments.push(moment),
                }
                bucket = Some(own);
            }
            let (name, group) = match part.phase {
                Some(phase) => (phase.to_string(), part.steps()),
                None => (part.steps(), String::new()),
            };
            let place = part.place();
            phases.push(chart::PhaseBand { name, group, place, points: first..moments.len() });
        }
        let points = moments.iter().map(|moment| moment.layers.map(|bytes| bytes as f64).to_vec()).collect();
        (chart::MemoryCurve { points, phases }, moments)
    }

    /// Each phase of each step, in order; the step counts from 1, and is 0 where there is none.
    pub fn phases(&self) -> impl Iterator<Item = (u32, &CoursePart)> {
        self.parts.iter().map(|part| (part.steps.map_or(0, |(step, _)| step + 1), part))
    }
}

impl CoursePart {
    fn steps(&self) -> String {
        self.steps.map_or(String::new(), |(from, to)| match from == to {
            true => format!("step {}", from + 1),
            false => format!("steps {} to {}", from + 1, to + 1),
        })
    }

    fn place(&self) -> String {
        match (self.phase, self.steps) {
            (Some(phase), None) => format!("in {phase}"),
            (Some(phase), Some(_)) => format!("in {phase} of {}", self.steps()),
            (None, _) => format!("in {}", self.steps()),
        }
    }
}

/// What a script does after a backward pass and before the optimizer: unscaling and clipping gradients, for instance.
const BETWEEN: &str = "between";

fn parts(events: &[Event]) -> Vec<CoursePart> {
    let mut parts: Vec<CoursePart> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        let steps = (event.phase != Phase::Load).then_some((event.step, event.step));
        match parts.last_mut() {
            Some(last) if last.phase == Some(event.phase.name()) && last.steps == steps => last.events.end = at + 1,
            _ => parts.push(CoursePart { phase: Some(event.phase.name()), steps, events: at..at + 1 }),
        }
    }
    for n in 2..parts.len() {
        let is = |n: usize, phase: Phase| parts[n].phase == Some(phase.name());
        if is(n, Phase::Optimizer) && is(n - 1, Phase::Forward) && is(n - 2, Phase::Backward) {
            parts[n - 1].phase = Some(BETWEEN);
        }
    }
    let mut pieces: Vec<CoursePart> = Vec::new();
    for part in parts {
        let allocates = events[part.events.clone()].iter().any(|event| event.kind == Kind::Alloc);
        match pieces.last_mut() {
            // What only frees is the end of the backward pass.
            Some(last) if part.phase == Some(BETWEEN) && !allocates => last.events.end = part.events.end,
            _ => pieces.push(part),
        }
    }
    pieces
}

/// At most [`PARTS`] parts: the phases, else the steps, else as many steps together as it takes.
fn coarse(parts: Vec<CoursePart>) -> Vec<CoursePart> {
    if parts.len() <= PARTS {
        return parts;
    }
    let steps = parts.iter().filter_map(|part| part.steps).map(|(step, _)| step);
    let last = steps.max().unwrap_or(0) as usize;
    // One of the parts is for loading.
    let together = (last + 1).div_ceil(PARTS - 1) as u32;
    let mut merged: Vec<CoursePart> = Vec::new();
    for part in parts {
        match (merged.last_mut(), part.steps) {
            (Some(CoursePart { steps: Some((from, to)), events, .. }), Some((step, _))) if *from / together == step / together => {
                (*to, events.end) = (step.max(*to), part.events.end);
            }
            (_, None) => merged.push(part),
            _ => merged.push(CoursePart { phase: None, ..part }),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(steps: u32, micro_batches: usize) -> Vec<CoursePart> {
        let mut parts = vec![CoursePart { phase: Some("load"), steps: None, events: 0..10 }];
        let mut at = 10;
        for step in 0..steps {
            for phase in ["forward", "backward"].repeat(micro_batches).into_iter().chain(["optimizer"]) {
                parts.push(CoursePart { phase: Some(phase), steps: Some((step, step)), events: at..at + 5 });
                at += 5;
            }
        }
        parts
    }

    #[test]
    fn an_axis_has_phases_then_steps_then_several() {
        assert_eq!(coarse(parts(3, 1)), parts(3, 1));
        let by_step = coarse(parts(3, 40));
        assert_eq!(by_step.iter().map(|part| part.steps).collect::<Vec<_>>(), [None, Some((0, 0)), Some((1, 1)), Some((2, 2))]);
        for steps in [23, 24, 100, 12_345] {
            let all = parts(steps, 1);
            let merged = coarse(all.clone());
            assert!(merged.len() <= PARTS, "{steps}: {}", merged.len());
            assert_eq!(merged.last().unwrap().steps.unwrap().1, steps - 1);
            assert!(merged.windows(2).all(|pair| pair[0].events.end == pair[1].events.start), "no event is lost");
            assert_eq!(merged.last().unwrap().events.end, all.last().unwrap().events.end);
        }
    }
}
