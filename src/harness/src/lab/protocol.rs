//! A protocol: one experiment, from its question to its threats, and how it becomes the plain data that results keep.

use super::claims::{ClaimDef, Statement};
use super::grid::{AnyGrid, Grid, GridTexts};
use super::levels::{Cell, FactorText, Level, Many};
use super::selection::written;
use crate::measure::{Bench, Step};
use anyhow::{Context, Result};
use base::order::{distinct, grouped};
use record::protocol::{
    self, Factor, Metric, Pass, PlainCell, PlainGrid, PlainPlot, PlainProtocol, Platform, ShownEffect, SubjectKind,
};
use record::rules::PlainRule;
use std::any::Any;

/// One experiment.
pub struct Protocol {
    /// What it becomes, but for what its grids say.
    plain: PlainProtocol,
    grids: Vec<Box<dyn AnyGrid>>,
}

impl Protocol {
    /// `name` is that of the experiment's file or folder, and of its results.
    pub fn new(name: &str, title: &str) -> Protocol {
        let plain = PlainProtocol { name: name.into(), revision: 1, title: title.into(), ..PlainProtocol::default() };
        Protocol { plain, grids: Vec::new() }
    }

    /// Declares that what a cell measures, or how, has changed so often, counted from 1: results of another revision are figures of something
    /// else. A new cell, claim or word needs none.
    pub fn revision(mut self, revision: u32) -> Protocol {
        self.plain.revision = revision;
        self
    }

    pub fn question(mut self, question: &str) -> Protocol {
        self.plain.question = question.into();
        self
    }

    /// What is expected and why, written down before measuring.
    pub fn hypothesis(mut self, hypothesis: &str) -> Protocol {
        self.plain.hypothesis = hypothesis.into();
        self
    }

    pub fn grid<C: Cell>(mut self, grid: Grid<C>) -> Protocol {
        self.grids.push(Box::new(grid));
        self
    }

    /// What its page is for, where it is no technique.
    pub fn kind(mut self, kind: SubjectKind) -> Protocol {
        self.plain.subject.kind = kind;
        self
    }

    /// An effect that stands for the technique on the front page.
    pub fn shows(mut self, shown: Shown) -> Protocol {
        self.plain.subject.shown.push(shown.0);
        self
    }

    /// A threat to validity.
    pub fn threat(mut self, threat: &str) -> Protocol {
        self.plain.threats.push(threat.into());
        self
    }

    /// The grid that these cells belong to: that which plans this one, or else the first of this kind.
    pub(super) fn grid_of<C: Cell>(&self, cell: &C) -> Option<&Grid<C>> {
        let grids = || self.grids.iter().filter_map(|grid| (grid.as_ref() as &dyn Any).downcast_ref::<Grid<C>>());
        grids().find(|grid| grid.plans(cell)).or_else(|| grids().next())
    }

    /// Sets up a planned cell.
    pub fn prepare(&self, cell: &PlainCell, bench: &Bench) -> Result<Step> {
        let step = self.grids.iter().find_map(|grid| grid.step_of(cell, bench));
        step.with_context(|| format!("no cell '{cell}' is planned"))?
    }

    /// The protocol as plain data, or everything that is wrong with it.
    pub fn plain(&self) -> Result<PlainProtocol, Vec<String>> {
        let mut all: Vec<PlainCell> = self.grids.iter().flat_map(|grid| grid.plain_cells()).collect();
        all.sort();
        all.dedup();
        let select = |cells: &[PlainCell]| written(cells, &all);
        let mut said = GridTexts::default();
        self.grids.iter().for_each(|grid| grid.say(&select, &mut said));
        let factors = factors(said.factors, &said.grids, &mut said.mistakes);
        let GridTexts { grids, checks, claims: mut stated, mut mistakes, .. } = said;
        for (id, part) in said.answers {
            match stated.iter_mut().find(|claim| claim.stated.id == id) {
                Some(claim) => claim.rules.push(part),
                None => mistakes.push(format!("a rule answers '{id}', which no grid claims")),
            }
        }
        // The first label that a metric is given counts.
        let metrics = grouped(said.metrics.into_iter().map(|metric| (Metric { label: "", ..metric }, metric)));
        let metrics: Vec<Metric> = metrics.into_iter().map(|(_, same)| same[0]).collect();
        let is_counted = |name: &str| metrics.iter().any(|metric| metric.name == name && metric.pass == Pass::Memory);
        let (mut claims, mut published) = (Vec::new(), Vec::new());
        for ClaimDef { stated, rules, changed, before } in stated {
            let Statement { id, from, text, mut judged_on, about_the_lab, is_published, setup } = stated;
            if is_published {
                if judged_on.is_empty() {
                    judged_on.push(Platform::Gpu);
                }
                let rule = (!rules.is_empty()).then(|| whole(rules, changed, before));
                published.push(protocol::Published { id, source: from, figure: text, judged_on, rule, setup });
                continue;
            }
            if rules.is_empty() {
                mistakes.push(format!("nothing judges the claim '{id}': give it a rule"));
            }
            if judged_on.is_empty() {
                let counts = rules.iter().flat_map(PlainRule::metrics).any(is_counted);
                judged_on = [Platform::Cpu, Platform::Gpu].into_iter().chain(counts.then_some(Platform::Dry)).collect();
            }
            claims.push(protocol::Claim { id, from, text, judged_on, rule: whole(rules, changed, before), about_the_lab });
        }
        let plots = grouped(said.plots).into_iter();
        let plots = plots.map(|(drawn, cells)| PlainPlot { of: select(&cells.concat()), ..drawn }).collect();
        let plain = PlainProtocol { factors, grids, metrics, checks, claims, published, plots, ..self.plain.clone() };
        mistakes.extend(plain.mistakes());
        if mistakes.is_empty() { Ok(plain) } else { Err(mistakes) }
    }

    pub fn name(&self) -> &str {
        &self.plain.name
    }
}

/// The factors of all grids, each once.
fn factors(said: Vec<FactorText>, grids: &[PlainGrid], mistakes: &mut Vec<String>) -> Vec<Factor> {
    let found = distinct(said);
    let plans = |name: &str, level: &String| grids.iter().any(|grid| grid.levels_of(name).contains(level));
    for (position, factor) in found.iter().enumerate() {
        if found[..position].iter().any(|other| other.name == factor.name) {
            mistakes.push(format!("two types of level are both spelt '{}' and say different things", factor.name));
        }
        mistakes.extend(factor.mistake());
        let unplanned = factor.options.iter().filter(|level| !factor.is_known && !plans(&factor.name, level));
        mistakes.extend(unplanned.map(|level| format!("no grid has the level '{level}' of '{}'", factor.name)));
    }
    let factor = |FactorText { name, meaning, levels, .. }| Factor { name, meaning: String::from(meaning), levels };
    found.into_iter().map(factor).collect()
}

/// An effect that stands for a technique: `Shown::new("Accumulate 4 micro-batches").at(K(4)).memory(PEAK)`.
pub struct Shown(ShownEffect);

impl Shown {
    /// `label` says what one does.
    pub fn new(label: &str) -> Shown {
        Shown(ShownEffect { label: label.into(), ..ShownEffect::default() })
    }

    /// The cells that have this level, or one of these levels.
    pub fn at<L: Level>(mut self, levels: impl Many<L>) -> Shown {
        let texts: Vec<String> = levels.many().iter().map(Level::text).collect();
        let term = format!("{}={}", L::factor(), texts.join("|"));
        self.0.of = if self.0.of.is_empty() { term } else { format!("{} {term}", self.0.of) };
        self
    }

    /// The metric of bytes whose ratio to the baseline is shown.
    pub fn memory(mut self, metric: Metric) -> Shown {
        self.0.memory = Some(metric.name.into());
        self
    }

    /// The metric of time whose ratio to the baseline is shown.
    pub fn time(mut self, metric: Metric) -> Shown {
        self.0.time = Some(metric.name.into());
        self
    }
}

/// All rules as one, with what was changed of it, if anything was.
fn whole(rules: Vec<PlainRule>, changed: Option<&str>, before: Vec<PlainRule>) -> PlainRule {
    let joined = |mut rules: Vec<PlainRule>| if rules.len() == 1 { rules.remove(0) } else { PlainRule::All(rules) };
    let Some(what) = changed else { return joined(rules) };
    let before = (!before.is_empty()).then(|| Box::new(joined(before)));
    PlainRule::Changed { what: what.into(), before, now: Box::new(joined(rules)) }
}
