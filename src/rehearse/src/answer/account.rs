//! What fills a card at the moment that decides: every byte of it in one row. The rows sum to what nvidia-smi would show; of a job that does not
//! fit, to the least memory on which it runs.

use super::facts::Facts;
use super::loss::Loss;
use super::place::{BEFORE_FORWARD, module_of};
use crate::capture::process::Frame;
use serde::{Deserialize, Serialize};
use sim::trace::{Bound, Category, MemoryBlock, Phase};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

sim::listed! {
    /// What memory of a card is.
    #[derive(Serialize, Deserialize, schemars::JsonSchema)]
    #[serde(rename_all = "snake_case")]
    Part {
        /// Logits, their copies in other types, and their gradients.
        Loss as "logits and loss",
        Activations as "activations",
        Weights as "weights",
        FrozenWeights as "frozen weights",
        /// Of an engine that generates for a training.
        EngineWeights as "engine's weights",
        /// Moving averages, deepcopies, and what autocast made of weights.
        WeightCopies as "copies of weights",
        Gradients as "gradients",
        OptimizerState as "optimizer state",
        KvCache as "KV cache",
        Outputs as "kept outputs",
        /// Gone before the phase ends, and workspaces of libraries.
        Temporaries as "temporaries",
        Data as "data",
        GraphPools as "pools of CUDA graphs",
        SizedByFree as "sized by free memory",
        Other as "other tensors",
        /// Reserved by PyTorch's allocator, and never allocated at once.
        Cached as "cached, unused",
        /// That PyTorch's allocator may not have, by a limit that the script sets.
        Withheld as "beyond its limit",
        /// Taken by others than PyTorch's allocator.
        Outside as "outside of PyTorch",
        /// Assumed.
        Context as "CUDA context",
        /// Beside the process that has most.
        OtherProcesses as "other processes",
    }
}

/// Bytes of a line that are one part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OfLine {
    /// `FILE:LINE`.
    pub line: String,
    pub bytes: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AccountRow {
    pub part: Part,
    pub bytes: i64,
    /// The lines with most of it.
    pub lines: Vec<OfLine>,
    /// Of weights, where several models have some: each by the variable that holds it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<OfModel>,
}

/// Bytes of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OfModel {
    pub model: String,
    pub bytes: i64,
}

/// What fills a card, the largest row first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Account {
    /// What the rows sum to.
    pub total: i64,
    pub rows: Vec<AccountRow>,
    /// When that is: a phase, and the step that it is of, or the forward pass.
    pub phase: String,
    pub step: u32,
    pub pass: i64,
    /// What runs then; in a backward pass the line of the forward pass.
    pub line: Option<Frame>,
}

const MOST_LINES: usize = 3;

/// Whether a weight is of an engine's model, beside those that are trained: by its name, or because none of the script's has it.
fn is_of_engine(facts: &Facts, block: &MemoryBlock) -> bool {
    let is_engines = || module_of(facts.trace, block).is_none_or(|name| OF_ENGINE.iter().any(|engine| name.starts_with(engine)));
    facts.trains && facts.trace.engine.is_some() && is_engines()
}

/// As models of engines are named (`labels.py`).
const OF_ENGINE: [&str; 2] = ["vLLM's ", "SGLang's "];

/// What a block is.
pub fn part_of(facts: &Facts, loss: &Loss, block: &MemoryBlock) -> Part {
    if loss.has(facts, block) {
        return Part::Loss;
    }
    match block.category {
        Category::SizedByFree if facts.serves => Part::KvCache,
        Category::SizedByFree => Part::SizedByFree,
        Category::Parameters | Category::Buffers if is_of_engine(facts, block) => Part::EngineWeights,
        Category::Parameters if block.bound == Bound::FrozenWeight => Part::FrozenWeights,
        Category::Parameters | Category::Buffers => Part::Weights,
        Category::WeightCopies | Category::AutocastCopies => Part::WeightCopies,
        Category::Gradients => Part::Gradients,
        Category::OptimizerState => Part::OptimizerState,
        Category::Activations => Part::Activations,
        Category::KeyValueCache => Part::KvCache,
        Category::Outputs => Part::Outputs,
        Category::Temporaries | Category::OptimizerTemporaries | Category::Workspaces => Part::Temporaries,
        Category::Data => Part::Data,
        Category::Other => Part::Other,
    }
}

impl Account {
    /// Of a process's own allocator: what is allocated when that is most, and what it reserves beyond it at most. Much that is cached when it
    /// reserves most was allocated before, and is no reason to reserve more. Pools of graphs are other memory: where there are some it is the moment
    /// at which most is reserved.
    pub fn of(facts: &Facts, loss: &Loss) -> Account {
        let most = facts.ran_out.unwrap_or(facts.fullest);
        let of_pools: i64 = super::bounds::pools(facts, most).values().sum();
        let moment = if of_pools > 0 { most } else { facts.moment };
        let mut held: BTreeMap<Part, BTreeMap<String, i64>> = BTreeMap::new();
        for block in facts.live(moment) {
            let line = facts.own_line(block).unwrap_or_default();
            *held.entry(part_of(facts, loss, block)).or_default().entry(line).or_default() += block.rounded;
        }
        let row = |(part, lines): (Part, BTreeMap<String, i64>)| {
            let bytes = lines.values().sum();
            let mut lines: Vec<OfLine> = lines.into_iter().map(|(line, bytes)| OfLine { line, bytes }).collect();
            lines.retain(|of| !of.line.is_empty());
            lines.sort_by_key(|of| Reverse(of.bytes));
            lines.truncate(MOST_LINES);
            AccountRow { part, bytes, lines, models: Vec::new() }
        };
        let mut account = Account { total: 0, rows: held.into_iter().map(row).collect(), ..Account::at(facts, moment) };
        account.total = account.sum();
        account.tell_models(facts, loss, moment);
        let in_use: i64 =
            facts.live(moment).filter(|block| matches!(block.bound, Bound::PrivatePool(_))).map(|block| block.rounded).sum();
        account.add(Part::GraphPools, (of_pools - in_use).max(0));
        account.fill(Part::Cached, facts.levels.get(most).map_or(0, |meter| meter.reserved));
        account
    }

    /// Whose the weights are, where forward passes of several models ran.
    fn tell_models(&mut self, facts: &Facts, loss: &Loss, moment: usize) {
        let trace = facts.trace;
        let roots: BTreeSet<&String> =
            facts.passes.iter().filter_map(|(at, _)| trace.modules.get(&trace.events[*at].module)).collect();
        let model_of = |block: &MemoryBlock| {
            let name = module_of(trace, block)?;
            let is_of =
                |root: &&&String| name.strip_prefix(root.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            roots.iter().filter(is_of).max_by_key(|root| root.len()).map(|root| (*root).clone())
        };
        let mut held: BTreeMap<(Part, String), i64> = BTreeMap::new();
        for block in facts.live(moment) {
            let part = part_of(facts, loss, block);
            if let (Part::Weights | Part::FrozenWeights, Some(model)) = (part, model_of(block)) {
                *held.entry((part, model)).or_default() += block.rounded;
            }
        }
        let is_one = held.keys().map(|(_, model)| model).collect::<BTreeSet<_>>().len() < 2;
        for ((part, model), bytes) in held.into_iter().filter(|_| !is_one) {
            self.rows
                .iter_mut()
                .filter(|row| row.part == part)
                .for_each(|row| row.models.push(OfModel { model: model.clone(), bytes }));
        }
        self.rows.iter_mut().for_each(|row| row.models.sort_by_key(|of| Reverse(of.bytes)));
    }

    /// An empty one of a moment.
    fn at(facts: &Facts, moment: usize) -> Account {
        let Some(event) = facts.events().get(moment) else {
            return Account { phase: Phase::Load.name().to_string(), ..Account::default() };
        };
        let is_before_forward = super::peak::is_before_forward(facts.events(), moment);
        let phase = if is_before_forward { BEFORE_FORWARD } else { super::passes::phase_name(event.phase, facts.trains) };
        let stack = if event.origin != 0 { event.origin } else { event.stack };
        Account {
            total: 0,
            rows: Vec::new(),
            phase: phase.to_string(),
            step: facts.step_of(event),
            pass: super::passes::pass_of(facts.events(), moment),
            line: facts.trace.own_line(stack).or_else(|| facts.trace.line(stack)).cloned(),
        }
    }

    fn sum(&self) -> i64 {
        self.rows.iter().map(|row| row.bytes).sum()
    }

    pub fn bytes(&self, part: Part) -> i64 {
        self.rows.iter().filter(|row| row.part == part).map(|row| row.bytes).sum()
    }

    /// What tensors have of it.
    pub fn tensors(&self) -> i64 {
        self.rows.iter().filter(|row| row.part < Part::Cached).map(|row| row.bytes).sum()
    }

    /// Adds bytes to a part.
    pub(super) fn add(&mut self, part: Part, bytes: i64) {
        match self.rows.iter_mut().find(|row| row.part == part) {
            _ if bytes == 0 => {}
            Some(row) => row.bytes += bytes,
            None => self.rows.push(AccountRow { part, bytes, lines: Vec::new(), models: Vec::new() }),
        }
        self.rows.retain(|row| row.bytes != 0);
        self.rows.sort_by_key(|row| Reverse(row.bytes));
        self.total = self.sum();
    }

    /// Has the rows sum to a total: a part is what they lack of it.
    pub(super) fn fill(&mut self, part: Part, total: i64) {
        self.add(part, total - self.sum());
    }

    /// The same on a card with so much memory: what is cached is given back where memory is short. What the process has not, others have.
    pub fn hold_to(&mut self, total: i64) {
        if self.bytes(Part::OtherProcesses) != 0 {
            self.add(Part::Cached, -(self.total - total).clamp(0, self.bytes(Part::Cached).max(0)));
            return self.fill(Part::OtherProcesses, total);
        }
        self.fill(Part::Cached, total);
    }

    /// Where the allocator may have a share of the card alone, the rest is not cached.
    pub(super) fn withhold(&mut self, share: f64) {
        let beyond = self.tensors() + self.bytes(Part::Cached) - (self.total as f64 * share) as i64;
        let withheld = beyond.clamp(0, self.bytes(Part::Cached).max(0));
        self.add(Part::Cached, -withheld);
        self.add(Part::Withheld, withheld);
    }
}
