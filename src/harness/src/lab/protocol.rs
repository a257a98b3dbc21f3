//! A protocol: one experiment, from its question to its threats, and how it becomes the plain data that a `run.json` holds.

use super::claims::{ClaimDef, UntypedRule, usual_platforms};
use super::grid::{AnyGrid, Grid, UntypedGrid, distinct};
use super::levels::{Cell, FactorText};
use super::selection::written;
use crate::measure::{Bench, Step};
use anyhow::{Context, Result};
use record::protocol::{self, Factor, Metric, ShownEffect, Subject, SubjectKind};
use record::rules::PlainRule;

/// One experiment.
pub struct Protocol {
    name: &'static str,
    title: &'static str,
    question: &'static str,
    hypothesis: &'static str,
    grids: Vec<Box<dyn AnyGrid>>,
    threats: Vec<&'static str>,
    subject: Subject,
    rounds: Option<u32>,
}

impl Protocol {
    /// `name` is that of the experiment's file or folder, and of its results.
    pub fn new(name: &'static str, title: &'static str) -> Protocol {
        Protocol {
            name,
            title,
            question: "",
            hypothesis: "",
            grids: Vec::new(),
            threats: Vec::new(),
            subject: Subject::default(),
            rounds: None,
        }
    }

    pub fn question(self, question: &'static str) -> Protocol {
        Protocol { question, ..self }
    }

    /// What is expected and why, written down before measuring.
    pub fn hypothesis(self, hypothesis: &'static str) -> Protocol {
        Protocol { hypothesis, ..self }
    }

    pub fn grid<C: Cell>(mut self, grid: Grid<C>) -> Protocol {
        self.grids.push(Box::new(grid));
        self
    }

    /// Timed rounds that every comparison gets, where the profile's are too few for what is claimed: a number that was set before measuring.
    pub fn rounds(self, rounds: u32) -> Protocol {
        Protocol { rounds: Some(rounds), ..self }
    }

    pub(crate) fn own_rounds(&self) -> Option<u32> {
        self.rounds
    }

    /// What its page is for, where it is no technique.
    pub fn kind(mut self, kind: SubjectKind) -> Protocol {
        self.subject.kind = kind;
        self
    }

    /// An effect that stands for the technique on the front page.
    pub fn shows(mut self, shown: Shown) -> Protocol {
        self.subject.shown.push(shown.0);
        self
    }

    /// A threat to validity.
    pub fn threat(mut self, threat: &'static str) -> Protocol {
        self.threats.push(threat);
        self
    }

    /// The grid that these cells belong to: that which plans this one, or else the first of this kind.
    pub(super) fn grid_of<C: Cell>(&self, cell: &C) -> Option<&Grid<C>> {
        let grids = || self.grids.iter().filter_map(|grid| grid.as_any().downcast_ref::<Grid<C>>());
        grids().find(|grid| grid.plans(cell)).or_else(|| grids().next())
    }

    /// Sets up a planned cell.
    ///
    /// # Errors
    /// No grid plans the cell; what its setup fails with.
    pub fn prepare(&self, cell: &protocol::PlainCell, bench: &Bench) -> Result<Step> {
        let step = self.grids.iter().find_map(|grid| grid.step_of(cell, bench));
        step.with_context(|| format!("no cell '{cell}' is planned"))?
    }

    /// The protocol as plain data, or everything that is wrong with it.
    ///
    /// # Errors
    /// Each mistake.
    pub fn plain(&self) -> Result<protocol::PlainProtocol, Vec<String>> {
        let mut mistakes = Vec::new();
        let mut erased: Vec<UntypedGrid> = self.grids.iter().map(|grid| grid.erase()).collect();
        mistakes.extend(erased.iter_mut().flat_map(|grid| std::mem::take(&mut grid.mistakes)));
        let factors = self.factors(&erased, &mut mistakes);
        let grids: Vec<protocol::PlainGrid> = erased.iter_mut().flat_map(|grid| std::mem::take(&mut grid.grids)).collect();
        let mut all: Vec<protocol::PlainCell> = grids.iter().flat_map(protocol::PlainGrid::cells).collect();
        all.sort();
        all.dedup();
        let mut select = |cells: &[protocol::PlainCell]| written(cells, &all);
        let mut checks = Vec::new();
        let mut metrics = Vec::new();
        let (mut claims, mut published, mut plots, mut answers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for grid in erased {
            checks.extend(grid.checks.into_iter().map(|(expect, cells)| protocol::Check { when: select(&cells), expect }));
            metrics.extend(grid.metrics);
            claims.extend(grid.claims);
            published.extend(grid.published);
            answers.extend(grid.answers);
            for (drawn, cells) in grid.plots {
                match plots.iter_mut().find(|(known, _): &&mut (_, Vec<_>)| *known == drawn) {
                    Some((_, known)) => known.extend(cells),
                    None => plots.push((drawn, cells)),
                }
            }
        }
        for (id, part) in answers {
            let claim = claims.iter_mut().find(|claim| claim.stated.id == id).map(|claim| &mut claim.rules);
            let figure = published.iter_mut().find(|figure| figure.stated.id == id).map(|figure| &mut figure.rules);
            match claim.or(figure) {
                Some(rules) => rules.push(part),
                None => mistakes.push(format!("a rule answers '{id}', which no grid claims")),
            }
        }
        let mut whole = |id: &str, parts: Vec<UntypedRule>, mistakes: &mut Vec<String>| -> Vec<PlainRule> {
            let plain = parts.into_iter().map(|part| part.plain(&mut select));
            plain.filter_map(|rule| rule.map_err(|e| mistakes.push(format!("'{id}' {e}"))).ok()).collect()
        };
        let claims: Vec<protocol::Claim> = claims
            .into_iter()
            .map(|ClaimDef { stated, rules, changed: what, before }| {
                if rules.is_empty() {
                    mistakes.push(format!("nothing judges the claim '{}': give it a rule", stated.id));
                }
                let judged_on = stated.on.clone().unwrap_or_else(|| usual_platforms(&rules));
                let rule = joined(whole(stated.id, rules, &mut mistakes));
                let before = joined(whole(stated.id, before, &mut mistakes));
                let rule = changed(what, before, rule);
                let (id, from, text) = (stated.id.into(), stated.from.into(), stated.text.into());
                protocol::Claim { id, from, text, judged_on, rule, about_the_lab: stated.about_the_lab }
            })
            .collect();
        let published: Vec<protocol::Published> = published
            .into_iter()
            .map(|ClaimDef { stated, rules, changed: what, before }| {
                let rule = (!rules.is_empty()).then(|| joined(whole(stated.id, rules, &mut mistakes)));
                let before = joined(whole(stated.id, before, &mut mistakes));
                let rule = rule.map(|rule| changed(what, before, rule));
                let (id, source, figure, setup) =
                    (stated.id.into(), stated.source.into(), stated.figure.into(), stated.setup.into());
                protocol::Published { id, source, figure, judged_on: stated.on, rule, setup }
            })
            .collect();
        let plots: Vec<protocol::PlainPlot> = plots.into_iter().map(|(drawn, cells)| drawn.plain(select(&cells))).collect();
        let plain = protocol::PlainProtocol {
            name: self.name.into(),
            title: self.title.into(),
            subject: self.subject.clone(),
            question: self.question.into(),
            hypothesis: self.hypothesis.into(),
            factors,
            grids,
            metrics: distinct(metrics.into_iter()),
            checks,
            claims,
            published,
            plots,
            threats: self.threats.iter().map(|threat| (*threat).into()).collect(),
        };
        mistakes.extend(plain.mistakes());
        if mistakes.is_empty() { Ok(plain) } else { Err(mistakes) }
    }

    /// The factors of all grids, each once.
    fn factors(&self, grids: &[UntypedGrid], mistakes: &mut Vec<String>) -> Vec<Factor> {
        let mut found: Vec<FactorText> = Vec::new();
        for factor in grids.iter().flat_map(|grid| &grid.factors) {
            match found.iter().find(|known| known.name == factor.name) {
                Some(known) if known != factor => {
                    mistakes.push(format!("two types of level are both spelt '{}' and say different things", factor.name));
                }
                Some(_) => {}
                None => found.push(factor.clone()),
            }
        }
        let plans =
            |name: &str, level: &String| grids.iter().flat_map(|grid| &grid.grids).any(|grid| grid.levels_of(name).contains(level));
        for factor in &found {
            mistakes.extend(factor.mistake());
            let unplanned = factor.options.iter().filter(|level| !factor.is_known && !plans(&factor.name, level));
            mistakes.extend(unplanned.map(|level| format!("no grid has the level '{level}' of '{}'", factor.name)));
        }
        let factor = |FactorText { name, meaning, levels, .. }| Factor { name, meaning: String::from(meaning), levels };
        found.into_iter().map(factor).collect()
    }

    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// An effect that stands for a technique: `Shown::new("Accumulate 4 micro-batches", "Activations fill the memory").at(K(4)).memory(PEAK)`.
pub struct Shown(ShownEffect);

impl Shown {
    /// `label` says what one does, `advice` when.
    pub fn new(label: &str, advice: &str) -> Shown {
        Shown(ShownEffect { label: label.into(), advice: advice.into(), ..ShownEffect::default() })
    }

    /// The cells that have this level, or one of these levels.
    pub fn at<L: super::levels::Level>(mut self, levels: impl super::levels::Many<L>) -> Shown {
        let texts: Vec<String> = levels.many().iter().map(super::levels::Level::text).collect();
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

/// A rule with what was changed of it, if anything was.
fn changed(what: Option<&'static str>, before: PlainRule, now: PlainRule) -> PlainRule {
    let before = (!before.parts().is_empty()).then(|| Box::new(before));
    match what {
        Some(what) => PlainRule::Changed { what: what.into(), before, now: Box::new(now) },
        None => now,
    }
}

/// One rule, or all of several.
fn joined(mut rules: Vec<PlainRule>) -> PlainRule {
    if rules.len() == 1 { rules.remove(0) } else { PlainRule::All(rules) }
}
