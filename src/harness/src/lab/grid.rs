//! A grid: the cells of one kind, what runs them, what each must show, and what they answer.

use super::claims::{Claim, ClaimDef, Rule, Statement};
use super::levels::{Cell, FactorText, Has, Level};
use super::metrics;
use super::plots::{Plot, bars};
use super::selection::{SelectCells, written};
use crate::measure::{Bench, Step};
use anyhow::Result;
use base::order::{distinct, grouped};
use record::protocol::{self, Axis, Metric, PEAK, Pass, PlainCell, PlainGrid, PlainPlot, Platform, Profile, Relation, TIME};
use record::rules::PlainRule;
use std::any::Any;
use std::collections::BTreeSet;
use std::ops::{BitOr, RangeInclusive};
use std::slice;

/// What is done with a cell: [`CHECK`], [`COUNT`] and [`ROUNDS`], joined with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passes(u8);

/// Compares the cell with its baseline.
pub const CHECK: Passes = Passes(1);
/// Counts bytes over one step.
pub const COUNT: Passes = Passes(2);
/// Takes times, in rounds.
pub const ROUNDS: Passes = Passes(4);

impl BitOr for Passes {
    type Output = Passes;

    fn bitor(self, other: Passes) -> Passes {
        Passes(self.0 | other.0)
    }
}

impl Passes {
    fn has(self, other: Passes) -> bool {
        self.0 & other.0 != 0
    }

    fn plain(self) -> Vec<Pass> {
        let all = [(CHECK, Pass::Check), (COUNT, Pass::Memory), (ROUNDS, Pass::Time)];
        all.into_iter().filter(|(own, _)| self.has(*own)).map(|(_, pass)| pass).collect()
    }
}

/// The outcome is the baseline's, within a relative error.
pub fn equal(tolerance: f64) -> Relation {
    Relation::Equal { tolerance }
}

/// The outcome is so many times the baseline's.
pub fn scaled(by: f64, tolerance: f64) -> Relation {
    Relation::Scaled { by, tolerance }
}

/// A wrong result that nothing reports: the relative error lies in this range. Zero is no such result; see [`missing`].
pub fn differs(by: RangeInclusive<f64>) -> Relation {
    Relation::Differs { at_least: *by.start(), at_most: *by.end() }
}

/// This share of the outcome, or more, is not there; it may be zero.
pub fn missing(at_least: f64) -> Relation {
    Relation::Missing { at_least }
}

/// The step fails with a message that contains this text.
pub fn raises(message: &'static str) -> Relation {
    Relation::Raises { message: message.into() }
}

/// Cells, with what is special about them.
#[derive(Debug, Clone)]
pub struct Chosen<C> {
    cells: Vec<C>,
    passes: Option<Passes>,
    on: Option<Vec<Platform>>,
}

impl<C: Cell> From<Vec<C>> for Chosen<C> {
    fn from(cells: Vec<C>) -> Self {
        Chosen { cells, passes: None, on: None }
    }
}

/// What can be said of some cells of a grid that does not hold for all.
pub trait Choose<C>: Into<Chosen<C>> {
    /// Other passes than the grid's.
    fn passes(self, passes: Passes) -> Chosen<C> {
        Chosen { passes: Some(passes), ..self.into() }
    }

    /// Only these devices have what these cells are about; on others they are skipped.
    fn on(self, platforms: &[Platform]) -> Chosen<C> {
        Chosen { on: Some(platforms.to_vec()), ..self.into() }
    }
}

impl<C, T: Into<Chosen<C>>> Choose<C> for T {}

struct CellGroup<C> {
    profiles: &'static [Profile],
    chosen: Chosen<C>,
}

/// How a cell becomes its baseline: with the compared level of another.
type Baseline<C> = fn(C, &C) -> C;

/// What sets a cell up.
type CellSetUp<C> = Box<dyn Fn(C, &Bench) -> Result<Step>>;

/// The relation that a cell must show.
type Check<C> = Box<dyn Fn(&C) -> Relation>;

pub struct Grid<C> {
    name: &'static str,
    set_up: CellSetUp<C>,
    compared: Option<(String, Baseline<C>)>,
    groups: Vec<CellGroup<C>>,
    passes: Passes,
    on: Vec<Platform>,
    check: Option<Check<C>>,
    metrics: Vec<Metric>,
    judged_on: Vec<Platform>,
    claims: Vec<Claim<C>>,
    answers: Vec<(&'static str, Rule<C>)>,
    plots: Option<Vec<Plot<C>>>,
}

impl<C: Cell> Grid<C> {
    /// Grids of one name are parts of one table. `set_up` builds the step of a cell; everything that is not measured happens there.
    pub fn new(name: &'static str, set_up: impl Fn(C, &Bench) -> Result<Step> + 'static) -> Self {
        Grid {
            name,
            set_up: Box::new(set_up),
            compared: None,
            groups: Vec::new(),
            passes: CHECK | COUNT | ROUNDS,
            on: Vec::new(),
            check: None,
            metrics: Vec::new(),
            judged_on: Vec::new(),
            claims: Vec::new(),
            answers: Vec::new(),
            plots: None,
        }
    }

    /// The factor whose levels are compared. The first of it among the cells that are given together is their baseline.
    pub fn compare<L: Level>(mut self) -> Self
    where
        C: Has<L>,
    {
        self.compared = Some((L::factor(), |cell, first| cell.with(first.level())));
        self
    }

    fn group(mut self, profiles: &'static [Profile], cells: impl Into<Chosen<C>>) -> Self {
        self.groups.push(CellGroup { profiles, chosen: cells.into() });
        self
    }

    /// Cells of the profile that is the default on a CPU: all combinations of some levels.
    pub fn quick(self, cells: impl Into<Chosen<C>>) -> Self {
        self.group(&[Profile::Quick], cells)
    }

    /// Cells of the profile that is the default on a GPU.
    pub fn full(self, cells: impl Into<Chosen<C>>) -> Self {
        self.group(&[Profile::Full], cells)
    }

    /// Cells that take seconds, for tests.
    pub fn smoke(self, cells: impl Into<Chosen<C>>) -> Self {
        self.group(&[Profile::Smoke], cells)
    }

    /// Cells of the quick and the full profile.
    pub fn quick_and_full(self, cells: impl Into<Chosen<C>>) -> Self {
        self.group(&[Profile::Quick, Profile::Full], cells)
    }

    /// Cells of every profile.
    pub fn always(self, cells: impl Into<Chosen<C>>) -> Self {
        self.group(&[Profile::Smoke, Profile::Quick, Profile::Full], cells)
    }

    /// What is done with each cell, where it is not everything.
    pub fn passes(self, passes: Passes) -> Self {
        Grid { passes, ..self }
    }

    /// Devices that have what the grid is about; on others its cells are skipped.
    pub fn on(self, platforms: &[Platform]) -> Self {
        Grid { on: platforms.to_vec(), ..self }
    }

    /// The relation to its baseline that a cell must show before anything of it is timed.
    pub fn check(self, check: impl Fn(&C) -> Relation + 'static) -> Self {
        Grid { check: Some(Box::new(check)), ..self }
    }

    /// Figures that the step gives beside the usual ones, in the order of the table's columns.
    pub fn metrics(mut self, metrics: &[Metric]) -> Self {
        self.metrics.extend_from_slice(metrics);
        self
    }

    /// Whose figures may carry a verdict about the claims that do not say so themselves.
    pub fn judged_on(self, platforms: &[Platform]) -> Self {
        Grid { judged_on: platforms.to_vec(), ..self }
    }

    /// A claim or a published figure; those of others come last.
    pub fn claim(mut self, claim: Claim<C>) -> Self {
        self.claims.push(claim);
        self.claims.sort_by_key(|claim| claim.stated.is_published);
        self
    }

    /// Another part of a claim or a published figure that stands with another grid of this protocol.
    pub fn answers(mut self, id: &'static str, rule: Rule<C>) -> Self {
        self.answers.push((id, rule));
        self
    }

    /// A picture. A grid without any has bars of its peak memory and of its time.
    pub fn plot(mut self, plot: Plot<C>) -> Self {
        self.plots.get_or_insert_default().push(plot);
        self
    }

    /// No picture at all.
    pub fn no_plots(self) -> Self {
        Grid { plots: Some(Vec::new()), ..self }
    }

    fn cells(&self) -> impl Iterator<Item = C> {
        self.groups.iter().flat_map(|group| group.chosen.cells.iter().copied())
    }

    pub(super) fn plans(&self, cell: &C) -> bool {
        self.cells().any(|planned| planned == *cell)
    }

    fn passes_of(&self, group: &CellGroup<C>) -> Passes {
        group.chosen.passes.unwrap_or(self.passes)
    }

    /// The cell that a cell is compared with, planned or not.
    pub fn baseline_of(&self, cell: &C) -> Option<C> {
        let (_, baseline) = self.compared.as_ref()?;
        let group = self.groups.iter().find(|group| group.chosen.cells.contains(cell)).or(self.groups.first())?;
        Some(baseline(*cell, group.chosen.cells.first()?))
    }

    pub fn relation_of(&self, cell: &C) -> Option<Relation> {
        self.check.as_ref().map(|check| check(cell))
    }

    /// Sets up a cell, planned or not.
    pub fn step(&self, cell: C, bench: &Bench) -> Result<Step> {
        (self.set_up)(cell, bench)
    }

    fn studied(&self) -> &str {
        self.compared.as_ref().map_or("", |(factor, _)| factor.as_str())
    }

    /// The metrics that tables show: the grid's own, those of its claims and pictures, and the usual ones.
    fn all_metrics(&self, passes: Passes) -> impl Iterator<Item = Metric> {
        let claimed = self.claims.iter().flat_map(ClaimDef::metrics);
        let answered = self.answers.iter().flat_map(|(_, rule)| rule.metrics.iter().copied());
        let plotted = self.plots.iter().flatten().map(|plot| plot.metric);
        let usual = [(CHECK, metrics::COMPARED), (COUNT, metrics::COUNTED), (ROUNDS, metrics::TIMED)];
        let usual = usual.into_iter().filter(move |(pass, _)| passes.has(*pass)).flat_map(|(_, metrics)| metrics.iter().copied());
        self.metrics.iter().copied().chain(claimed).chain(answered).chain(plotted).chain(usual)
    }

    /// The fewest factors that tell the comparisons of each profile apart: names of clusters and rows.
    fn distinguishing_factors(&self) -> Vec<String> {
        let mut kept: Vec<String> = C::factors().into_iter().map(|f| f.name).filter(|name| name != self.studied()).collect();
        let tells = |factors: &[String]| {
            [Profile::Smoke, Profile::Quick, Profile::Full].iter().all(|profile| {
                let groups = self.groups.iter().filter(|group| group.profiles.contains(profile));
                let cells: Vec<PlainCell> = groups.flat_map(|g| g.chosen.cells.iter().map(Cell::plain)).collect();
                let levels = |cell: &PlainCell| factors.iter().map(|f| cell.get(f).map(str::to_string)).collect::<Vec<_>>();
                let comparisons: BTreeSet<String> = cells.iter().map(|cell| cell.without(&[self.studied()])).collect();
                let named: BTreeSet<_> = cells.iter().map(levels).collect();
                named.len() == comparisons.len()
            })
        };
        for position in (0..kept.len()).rev() {
            let mut fewer = kept.clone();
            fewer.remove(position);
            if tells(&fewer) {
                kept = fewer;
            }
        }
        kept
    }

    /// `form = plain`, or each of several.
    fn baseline_text(&self) -> String {
        let first = |group: &CellGroup<C>| Some(group.chosen.cells.first()?.plain().get(self.studied())?.to_string());
        let levels: BTreeSet<String> = self.groups.iter().filter_map(first).collect();
        format!("{} = {}", self.studied(), levels.into_iter().collect::<Vec<_>>().join(" or "))
    }
}

/// What grids say, without their types.
#[derive(Default)]
pub(super) struct GridTexts {
    pub factors: Vec<FactorText>,
    pub grids: Vec<PlainGrid>,
    pub checks: Vec<protocol::Check>,
    pub metrics: Vec<Metric>,
    pub claims: Vec<ClaimDef<PlainRule>>,
    /// Parts of claims and published figures that may stand with another grid.
    pub answers: Vec<(&'static str, PlainRule)>,
    pub plots: Vec<(PlainPlot, Vec<PlainCell>)>,
    pub mistakes: Vec<String>,
}

/// What a protocol needs of a grid, whatever its cells are.
pub(super) trait AnyGrid: Any {
    fn plain_cells(&self) -> Vec<PlainCell>;
    /// Adds what the grid has to say; `select` writes a set of cells down.
    fn say(&self, select: SelectCells, said: &mut GridTexts);
    /// Sets up a planned cell; none where the grid plans no such cell.
    fn step_of(&self, cell: &PlainCell, bench: &Bench) -> Option<Result<Step>>;
}

impl<C: Cell> AnyGrid for Grid<C> {
    fn plain_cells(&self) -> Vec<PlainCell> {
        self.cells().map(|cell| cell.plain()).collect()
    }

    fn say(&self, select: SelectCells, said: &mut GridTexts) {
        let mut mistake = |what: &str| said.mistakes.push(format!("grid '{}' {what}", self.name));
        let cells: Vec<C> = self.cells().collect();
        if self.compared.is_none() {
            mistake("compares nothing: say .compare::<Factor>()");
        }
        let passes = self.groups.iter().map(|group| self.passes_of(group)).reduce(BitOr::bitor).unwrap_or(self.passes);
        match &self.check {
            None if passes.has(CHECK) => mistake("checks its cells against nothing: say .check(|cell| ...)"),
            Some(_) if !passes.has(CHECK) => mistake("has a check that no pass runs"),
            _ => {}
        }
        for group in &self.groups {
            match axes(&group.chosen.cells) {
                Some(axes) => said.grids.push(PlainGrid {
                    name: self.name.into(),
                    profiles: group.profiles.to_vec(),
                    studied: self.studied().into(),
                    axes,
                    passes: self.passes_of(group).plain(),
                    only_on: group.chosen.on.as_ref().unwrap_or(&self.on).clone(),
                }),
                None => mistake("has cells that are not all combinations of some levels: give them in several calls"),
            }
        }
        said.factors.extend(C::factors());
        let expected = grouped(cells.iter().filter_map(|cell| Some((self.relation_of(cell)?, cell.plain()))));
        said.checks.extend(expected.into_iter().map(|(expect, cells)| protocol::Check { when: select(&cells), expect }));
        said.metrics.extend(self.all_metrics(passes));
        let mut plain = |id: &str, rules: &[Rule<C>]| -> Vec<PlainRule> {
            let own: Vec<PlainCell> = cells.iter().map(Cell::plain).collect();
            let found = rules.iter().map(|rule| rule.plain(&cells, &|chosen| written(chosen, &own)));
            let found = found.map(|rule| rule.map(|rule| PlainRule::In { grid: self.name.into(), rule: Box::new(rule) }));
            found.filter_map(|rule| rule.map_err(|e| said.mistakes.push(format!("'{id}' {e}"))).ok()).collect()
        };
        for ClaimDef { stated, rules, changed, before } in &self.claims {
            let (rules, before) = (plain(&stated.id, rules), plain(&stated.id, before));
            let judged_on = if stated.judged_on.is_empty() { &self.judged_on } else { &stated.judged_on };
            let stated = Statement { judged_on: judged_on.clone(), ..stated.clone() };
            said.claims.push(ClaimDef { stated, rules, changed: *changed, before });
        }
        for (id, rule) in &self.answers {
            said.answers.extend(plain(id, slice::from_ref(rule)).into_iter().map(|rule| (*id, rule)));
        }
        let (distinguishing, baseline) = (self.distinguishing_factors(), self.baseline_text());
        let usual = [(COUNT, PEAK), (ROUNDS, TIME)].into_iter().filter(|(pass, _)| self.plots.is_none() && passes.has(*pass));
        let usual: Vec<Plot<C>> = usual.map(|(_, metric)| bars(metric)).collect();
        let plots = usual.iter().chain(self.plots.iter().flatten());
        said.plots.extend(plots.map(|plot| plot.plain(&cells, &distinguishing, &baseline)));
    }

    fn step_of(&self, cell: &PlainCell, bench: &Bench) -> Option<Result<Step>> {
        let typed = self.cells().find(|typed| typed.plain() == *cell)?;
        Some(self.step(typed, bench))
    }
}

/// The levels whose combinations are these cells, in their order; none where they are not all of them.
fn axes<C: Cell>(cells: &[C]) -> Option<Vec<Axis>> {
    let texts: Vec<Vec<String>> = cells.iter().map(Cell::texts).collect();
    let levels = |position: usize| distinct(texts.iter().map(|texts| texts[position].clone()));
    let axis = |(position, factor): (usize, FactorText)| Axis { factor: factor.name, levels: levels(position) };
    let axes = C::factors().into_iter().enumerate().map(axis).collect();
    let whole = PlainGrid { axes, ..PlainGrid::default() };
    whole.cells().into_iter().eq(cells.iter().map(Cell::plain)).then_some(whole.axes)
}
