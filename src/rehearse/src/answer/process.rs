//! What one process needs of one card.

use super::account::Account;
use super::advice::{Cut, cuts};
use super::bounds;
use super::facts::Facts;
use super::findings::attention::{ExplicitAttention, explicit_attention};
use super::findings::growth::{Growth, growth};
use super::findings::placeholders::{PlaceholderValue, Uncounted, placeholders, uncounted};
use super::findings::{self as of, Finding};
use super::kv_pool::{Pool, pool};
use super::loss::Loss;
use super::out_of_memory::{Caught, OutOfMemory, caught};
use super::passes::{
    Leftover, NeedlessGraphs, gradients_without_steps, leftovers, name_autocast_copies, name_buckets,
    name_graphs_of_backward_passes, needless_graphs,
};
use super::peak::{Peak, peak};
use super::phases::{PhaseRow, phases};
use crate::capture::plain::on_one_line;
use crate::capture::process::{BACKWARD_PASS, Exception, Frame, PlaceholderBranch, SkippedCode, Trace, line_number};
use serde::Serialize;
use sim::trace::{Category, Event, Kind, MemoryBlock, blocks};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One process on one card.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct ProcessAnswer {
    pub process: u32,
    pub rank: Option<u32>,
    pub device: u16,
    pub torch: String,
    /// Versions of the packages that `vramlab versions` varies.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, String>,
    pub steps: u32,
    pub peak_requested: i64,
    pub peak_allocated: i64,
    pub peak_reserved: i64,
    pub peak: Peak,
    pub phases: Vec<PhaseRow>,
    pub fragmentation: Fragmentation,
    pub placeholders: Vec<PlaceholderValue>,
    pub uncounted: Vec<Uncounted>,
    pub out_of_memory: Option<OutOfMemory>,
    /// Where the script ran out of memory and went on. What those tries held is in no figure of this answer.
    pub caught: Vec<Caught>,
    /// What the script has and did not come to before it was stopped, and inputs whose sizes differed until then.
    pub unreached: Vec<SkippedCode>,
    pub varied: Vec<PlaceholderBranch>,
    /// What each step, or each forward pass of a script without steps, leaves behind.
    pub growth: Option<Growth>,
    /// What earlier steps or passes left at the peak.
    pub leftovers: Vec<Leftover>,
    pub needless_graphs: Option<NeedlessGraphs>,
    /// Bytes at the peak of parameters' gradients, where they are much of it and the script makes no optimizer step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gradients_without_steps: Option<i64>,
    /// Attention that is written out, where its scores are much of the peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explicit_attention: Option<ExplicitAttention>,
    /// The first line whose convolution PyTorch computes by itself, without cuDNN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_cudnn: Option<Frame>,
    /// Trainings that were stopped one after the other, as a sweep has them; none of one alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trainings: Option<u32>,
    pub exception: Option<Failure>,
    /// What a person should know beside the figures, in sentences.
    pub findings: Vec<Finding>,
    #[serde(skip)]
    pub checkpoint: Checkpoint,
    /// Whether it takes batches from a DataLoader.
    #[serde(skip)]
    pub has_loader: bool,
    /// What its allocator has when it has most, and what techniques would free of it.
    #[serde(skip)]
    pub account: Account,
    #[serde(skip)]
    pub cuts: Vec<Cut>,
    /// The share of the card that the script lets PyTorch's allocator have.
    #[serde(skip)]
    pub limit: Option<f64>,
    /// Of a server.
    #[serde(skip)]
    pub pool: Option<Pool>,
    /// The event of the peak, and the events of tries that were caught.
    #[serde(skip)]
    pub moment: usize,
    #[serde(skip)]
    left_out: Vec<Range<usize>>,
}

impl ProcessAnswer {
    /// Whether an event is of a try that ran out of memory and was caught.
    pub fn is_left_out(&self, event: usize) -> bool {
        self.left_out.iter().any(|tried| tried.contains(&event))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Fragmentation {
    /// Most reserved less most allocated: what the allocator's cache holds in pieces that nothing fitted into.
    pub reserved_beyond_allocated: i64,
    /// Most reserved with `expandable_segments:True` alone; none where that is set already, or was not asked for.
    pub reserved_if_expandable: Option<i64>,
    /// By how much less memory would do with them.
    #[serde(skip)]
    pub saved_if_expandable: Option<i64>,
}

/// Parameters, buffers and optimizer state, when there was most of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Checkpoint {
    pub bytes: u64,
    pub has_state: bool,
}

#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Failure {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    pub line: Option<Frame>,
    /// The package that raised it, where that is none of the script's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
}

/// What a process needs of each card that it used. Of one that used none its exception. `ends_by_it` where memory that ran out ended it, or the one that
/// gave it its work.
pub fn process_answers(trace: &Trace, ends_by_it: bool, command_failed: bool) -> Vec<ProcessAnswer> {
    let mut blocks = blocks(&trace.events);
    let casts_weights = name_autocast_copies(trace, &mut blocks);
    name_graphs_of_backward_passes(trace, &mut blocks);
    name_buckets(trace, &mut blocks);
    bounds::bind(trace, &mut blocks);
    let mut devices: BTreeSet<u16> =
        trace.events.iter().filter(|e| matches!(e.kind, Kind::Alloc | Kind::OutOfMemory)).map(|e| e.device).collect();
    if devices.is_empty() && trace.exception.is_some() {
        devices.insert(0);
    }
    let facts = |device| Facts::of(trace, &blocks, casts_weights, device, (ends_by_it, command_failed));
    devices.into_iter().map(|device| on_device(&facts(device))).collect()
}

fn on_device(facts: &Facts) -> ProcessAnswer {
    let Facts { trace, most, ran_out, .. } = *facts;
    let (ran_out, loss) = (ran_out.map(|at| &facts.events()[at]), Loss::of(facts));
    let mut answer = ProcessAnswer {
        process: trace.process.id,
        rank: trace.process.rank,
        device: facts.device,
        torch: trace.process.torch.clone(),
        packages: trace.process.packages.clone(),
        steps: facts.steps,
        peak_requested: most.requested,
        peak_allocated: most.allocated,
        peak_reserved: most.reserved,
        peak: peak(facts),
        phases: phases(facts),
        fragmentation: Fragmentation {
            reserved_beyond_allocated: most.reserved - most.allocated,
            reserved_if_expandable: None,
            saved_if_expandable: None,
        },
        placeholders: placeholders(trace),
        uncounted: uncounted(trace),
        out_of_memory: ran_out.map(|event| OutOfMemory {
            tried: event.bytes,
            free: event.address.cast_signed(),
            message: trace.exception.as_ref().filter(|e| e.out_of_memory).map(|e| e.message.clone()),
        }),
        caught: caught(facts),
        unreached: trace.unreached.clone(),
        varied: trace.varied.clone(),
        growth: growth(facts),
        leftovers: leftovers(facts),
        // A script that failed may have been about to go backward.
        needless_graphs: match &trace.exception {
            Some(exception) if !exception.out_of_memory => None,
            _ if trace.unreached.iter().any(|row| row.phase == BACKWARD_PASS) => None,
            _ => needless_graphs(facts),
        },
        gradients_without_steps: gradients_without_steps(facts),
        explicit_attention: explicit_attention(facts),
        without_cudnn: without_cudnn(facts),
        trainings: (trace.trainings > 1).then_some(trace.trainings),
        exception: trace.exception.as_ref().map(|exception| failure(trace, exception)),
        checkpoint: checkpoint(facts),
        has_loader: !trace.loaders.is_empty(),
        account: Account::of(facts, &loss),
        cuts: cuts(facts, &loss),
        limit: trace.limits.get(&facts.device).copied(),
        pool: pool(facts),
        moment: facts.moment,
        left_out: facts.left_out.clone(),
        findings: Vec::new(),
    };
    answer.findings = findings(facts, &answer);
    answer
}

/// In the order in which they are said.
fn findings(facts: &Facts, seen: &ProcessAnswer) -> Vec<Finding> {
    let (steps, growth) = (seen.steps, seen.growth.as_ref());
    let found = [
        of::caught::find(&seen.caught),
        of::unreached::find(&seen.unreached, steps),
        of::varied::find(&seen.varied, seen.has_loader),
        of::needless::find(seen.needless_graphs.as_ref()),
        of::gradients::find(seen.gradients_without_steps),
        of::untaken::find(facts),
        of::pools::find(facts),
        of::sized::find(facts),
        of::sized::limit(facts),
        of::garbage::find(facts),
        of::attention::find(facts, seen.explicit_attention.as_ref(), seen.peak.bytes),
        of::cudnn::find(seen.without_cudnn.as_ref()),
        of::cudnn::engines(facts, seen.peak_reserved),
        of::leftovers::find(&seen.leftovers, growth, steps),
        of::growth::find(growth, of::leftovers::cure(&seen.leftovers, growth), steps),
        of::kept_by::find(growth),
        of::placeholders::find(&seen.placeholders),
        of::uncounted::find(&seen.uncounted),
    ];
    found.into_iter().flatten().collect()
}

/// What is there between phases: within one, weights may be replaced.
fn checkpoint(facts: &Facts) -> Checkpoint {
    let events = facts.events();
    let is_saved =
        |block: &&MemoryBlock| matches!(block.category, Category::Parameters | Category::Buffers | Category::OptimizerState);
    let saved: Vec<&MemoryBlock> = facts.blocks().filter(is_saved).collect();
    let made = saved.iter().map(|block| (block.made(), block.rounded));
    let freed = saved.iter().filter_map(|block| Some((block.freed()?, -block.rounded)));
    let is_between = |(at, event): &(usize, &Event)| matches!(event.kind, Kind::Mark | Kind::Pass) || at + 1 == events.len();
    let between = events.iter().enumerate().filter(is_between).map(|(at, _)| (at, 0));
    let mut changes: Vec<(usize, i64)> = made.chain(freed).chain(between).collect();
    changes.sort_unstable_by_key(|(at, _)| *at);
    let levels = changes.iter().scan(0, |bytes, (_, change)| {
        *bytes += change;
        Some((*change == 0).then_some(*bytes))
    });
    let levels = levels.flatten();
    Checkpoint {
        bytes: levels.max().unwrap_or(0).unsigned_abs(),
        has_state: saved.iter().any(|block| block.category == Category::OptimizerState),
    }
}

fn without_cudnn(facts: &Facts) -> Option<Frame> {
    let trace = facts.trace;
    let slow: BTreeSet<u32> =
        trace.operators.iter().filter(|(_, name)| name.contains("slow_conv")).map(|(number, _)| *number).collect();
    let made = trace.events.iter().find(|event| event.device == facts.device && slow.contains(&event.operator.into()))?;
    trace.line(if made.origin != 0 { made.origin } else { made.stack }).cloned()
}

pub fn failure(trace: &Trace, exception: &Exception) -> Failure {
    let line = |(file, line, function): &(String, i64, String)| Frame {
        file: file.clone(),
        line: line_number(*line),
        function: on_one_line(function),
    };
    let own = exception.frames.iter().rev().find(|(file, _, _)| !trace.is_library(file)).or(exception.frames.last());
    let package = exception.frames.last().and_then(|(file, ..)| file.split("-packages/").nth(1)?.split('/').next());
    Failure {
        kind: on_one_line(&exception.kind),
        message: exception.message.clone(),
        line: own.map(line),
        package: package.map(|name| on_one_line(name.trim_end_matches(".py"))),
    }
}
