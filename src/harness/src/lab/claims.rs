//! Claims, published figures and pictures beside the grid that answers them, and the rules by which they are judged.

use super::levels::{Cell, Has, Level};
use super::selection::NO_CELL;
use record::protocol::{self, Metric, Pass, Platform, REPRODUCES};
use record::rules::{
    self, AgreementRule, Bound, ExponentRule, FalseAlarmsRule, FrequencyRule, Pick, PickedRule, RatioRule, RulePart, Scope,
    TrendRule, ValueRule,
};
use std::ops::RangeInclusive;
use std::rc::Rc;

/// Which cells of a grid something is about; none of it says all.
pub(super) type Predicate<C> = Option<Box<dyn Fn(&C) -> bool>>;

pub(super) fn chosen<C: Cell>(predicate: &Predicate<C>, cells: &[C]) -> Vec<protocol::PlainCell> {
    cells.iter().filter(|cell| predicate.as_ref().is_none_or(|holds| holds(cell))).map(Cell::plain).collect()
}

pub fn at_most(limit: f64) -> Bound {
    Bound::AtMost(limit)
}

pub fn at_least(limit: f64) -> Bound {
    Bound::AtLeast(limit)
}

pub fn within(range: RangeInclusive<f64>) -> Bound {
    Bound::Within(*range.start(), *range.end())
}

/// Below the range or above it.
pub fn outside(range: RangeInclusive<f64>) -> Bound {
    Bound::Outside(*range.start(), *range.end())
}

/// How figures become a verdict, over the cells of a grid.
pub struct Rule<C> {
    kind: Kind,
    of: Predicate<C>,
    over: Predicate<C>,
    terms: Terms,
    decides: bool,
}

/// What is said of a rule, whatever its kind.
#[derive(Clone, Default)]
struct Terms {
    confirm: Option<Bound>,
    refute: Option<Bound>,
    scope: Option<(Metric, Metric, f64)>,
    along: Option<String>,
}

/// Makes a rule of one kind from what is said of it.
#[derive(Clone)]
struct Kind {
    metrics: Vec<Metric>,
    make: Rc<dyn Fn(Selected) -> Result<RulePart, &'static str>>,
}

/// The terms of a rule with its selections.
struct Selected {
    of: String,
    over: String,
    terms: Terms,
}

impl Selected {
    fn bounds(&self) -> Result<(Bound, Bound), &'static str> {
        self.terms.confirm.zip(self.terms.refute).ok_or("does not say what confirms and what refutes it")
    }

    fn along(&self) -> Result<String, &'static str> {
        self.terms.along.clone().ok_or("does not say along which number")
    }
}

fn rule<C>(metrics: &[Metric], make: impl Fn(Selected) -> Result<RulePart, &'static str> + 'static) -> Rule<C> {
    Rule {
        kind: Kind { metrics: metrics.to_vec(), make: Rc::new(make) },
        of: None,
        over: None,
        terms: Terms::default(),
        decides: true,
    }
}

/// The metric of each cell over that of its baseline: exact for bytes, an interval for times.
pub fn ratio<C>(metric: Metric) -> Rule<C> {
    rule(&[metric], move |said| {
        let (confirm, refute) = said.bounds()?;
        let scope =
            said.terms.scope.map(|(part, whole, at_least)| Scope { part: part.name.into(), whole: whole.name.into(), at_least });
        Ok(RatioRule { metric: metric.name.into(), of: said.of, confirm, refute, scope }.into())
    })
}

/// The metric of each cell as it is.
pub fn value<C>(metric: Metric) -> Rule<C> {
    rule(&[metric], move |said| {
        let (confirm, refute) = said.bounds()?;
        Ok(ValueRule { metric: metric.name.into(), of: said.of, confirm, refute }.into())
    })
}

/// Growth exponent of the metric along a number, between its two largest levels; [`Rule::along`] says which.
pub fn growth<C>(metric: Metric) -> Rule<C> {
    rule(&[metric], move |said| {
        let ((confirm, refute), along) = (said.bounds()?, said.along()?);
        Ok(ExponentRule { metric: metric.name.into(), along, of: said.of, confirm, refute }.into())
    })
}

/// Whether the metric's ratio to its baseline grows along a number: Spearman's rank correlation; [`Rule::along`] says which.
pub fn trend<C>(metric: Metric) -> Rule<C> {
    rule(&[metric], move |said| {
        let ((confirm, refute), along) = (said.bounds()?, said.along()?);
        Ok(TrendRule { metric: metric.name.into(), along, of: said.of, confirm, refute }.into())
    })
}

/// Of the cells that differ in the compared factor alone, the one with the lowest metric, over the highest of those of [`Rule::over`].
pub fn lowest<C>(metric: Metric) -> Rule<C> {
    picked(metric, Pick::Lowest)
}

/// Of the cells that differ in the compared factor alone, the one with the highest metric, over the highest of those of [`Rule::over`].
pub fn highest<C>(metric: Metric) -> Rule<C> {
    picked(metric, Pick::Highest)
}

fn picked<C>(metric: Metric, pick: Pick) -> Rule<C> {
    rule(&[metric], move |said| {
        let (confirm, refute) = said.bounds()?;
        if said.over == NO_CELL {
            return Err("picks over no cell that is planned");
        }
        Ok(PickedRule { metric: metric.name.into(), pick, of: said.of, over: said.over, confirm, refute }.into())
    })
}

/// Whether one metric predicts another: their ratio lies in the range in at least this share of the cells.
pub fn agreement<C>(metric: Metric, reference: Metric, range: RangeInclusive<f64>, share: f64) -> Rule<C> {
    let within = within(range);
    rule(&[metric, reference], move |said| {
        Ok(AgreementRule { metric: metric.name.into(), reference: reference.name.into(), of: said.of, within, share }.into())
    })
}

/// How often levels that are one thing under several names would be called different, in resamplings of as many rounds as the profile takes.
pub fn false_alarms<C>(metric: Metric, at_most: f64) -> Rule<C> {
    rule(&[metric], move |said| Ok(FalseAlarmsRule { metric: metric.name.into(), of: said.of, at_most }.into()))
}

/// The share of `attempts` that `metric` counts, over the baseline's: an interval, because both are counts of chance. Judged only where the
/// baseline's share is at least `least`.
pub fn frequency<C>(metric: Metric, attempts: Metric, least: f64) -> Rule<C> {
    rule(&[metric, attempts], move |said| {
        let (confirm, refute) = said.bounds()?;
        let (metric, attempts) = (metric.name.into(), attempts.name.into());
        Ok(FrequencyRule { metric, attempts, of: said.of, confirm, refute, least }.into())
    })
}

impl<C: Cell> Rule<C> {
    /// The cells that are judged; else all.
    pub fn of(self, of: impl Fn(&C) -> bool + 'static) -> Self {
        Rule { of: Some(Box::new(of)), ..self }
    }

    /// The cells that the picked one is put against.
    pub fn over(self, over: impl Fn(&C) -> bool + 'static) -> Self {
        Rule { over: Some(Box::new(over)), ..self }
    }

    pub fn confirm(self, bound: Bound) -> Self {
        Rule { terms: Terms { confirm: Some(bound), ..self.terms }, ..self }
    }

    pub fn refute(self, bound: Bound) -> Self {
        Rule { terms: Terms { refute: Some(bound), ..self.terms }, ..self }
    }

    /// Confirmed where the bound holds, refuted where it does not.
    pub fn holds(self, bound: Bound) -> Self {
        let opposite = match bound {
            Bound::AtMost(limit) => Bound::AtLeast(limit),
            Bound::AtLeast(limit) => Bound::AtMost(limit),
            Bound::Within(low, high) => Bound::Outside(low, high),
            Bound::Outside(low, high) => Bound::Within(low, high),
        };
        self.confirm(bound).refute(opposite)
    }

    /// Whether a published figure comes out: within a tenth of it either way.
    pub fn reproduces(self, figure: f64) -> Self {
        self.holds(within(figure * (1.0 - REPRODUCES)..=figure * (1.0 + REPRODUCES)))
    }

    /// A part that is judged where the device has what it is about, and that does not decide: on a device that lacks it the claim can be
    /// confirmed without it, as so many of its parts.
    pub fn informational(self) -> Self {
        Rule { decides: false, ..self }
    }

    /// Judge only where, in the baseline, `part` is at least this share of `whole`.
    pub fn scope(mut self, part: Metric, whole: Metric, at_least: f64) -> Self {
        self.terms.scope = Some((part, whole, at_least));
        self.kind.metrics.extend([part, whole]);
        self
    }

    /// The number along which a growth or a trend is told.
    pub fn along<L: Level>(mut self) -> Self
    where
        C: Has<L>,
    {
        self.terms.along = Some(L::factor());
        self
    }

    pub(super) fn erase(&self, cells: &[C]) -> UntypedRule {
        UntypedRule {
            kind: self.kind.clone(),
            of: chosen(&self.of, cells),
            over: chosen(&self.over, cells),
            terms: self.terms.clone(),
            decides: self.decides,
        }
    }
}

/// A rule over cells that are known.
#[derive(Clone)]
pub(super) struct UntypedRule {
    kind: Kind,
    of: Vec<protocol::PlainCell>,
    over: Vec<protocol::PlainCell>,
    terms: Terms,
    decides: bool,
}

impl UntypedRule {
    pub fn metrics(&self) -> &[Metric] {
        &self.kind.metrics
    }

    /// The rule as plain data; `select` writes a set of cells down.
    ///
    /// # Errors
    /// Says what the rule lacks.
    pub fn plain(self, select: &mut impl FnMut(&[protocol::PlainCell]) -> String) -> Result<rules::PlainRule, &'static str> {
        if self.of.is_empty() {
            return Err("is about no cell that is planned");
        }
        let said = Selected { of: select(&self.of), over: select(&self.over), terms: self.terms };
        let plain = rules::PlainRule::Part((self.kind.make)(said)?);
        Ok(if self.decides { plain } else { rules::PlainRule::Informational(Box::new(plain)) })
    }
}

/// What a guide says, in our words.
pub type Claim<C> = ClaimDef<ClaimText, Rule<C>>;

/// What somebody says, and what judges it.
#[derive(Debug)]
pub struct ClaimDef<T, R> {
    pub(super) stated: T,
    pub(super) rules: Vec<R>,
    pub(super) changed: Option<&'static str>,
    /// The rules without what was changed after a look.
    pub(super) before: Vec<R>,
}

impl<T> ClaimDef<T, UntypedRule> {
    /// Its rules, those before a change among them.
    pub(super) fn all(&self) -> impl Iterator<Item = &UntypedRule> {
        self.rules.iter().chain(&self.before)
    }
}

impl<T: Clone, C: Cell> ClaimDef<T, Rule<C>> {
    fn of(stated: T) -> Self {
        ClaimDef { stated, rules: Vec::new(), changed: None, before: Vec::new() }
    }

    /// What judges it. A claim needs all to hold; of a published figure each reproduces a part, and without any, nothing that is measured
    /// here can be compared.
    pub fn rule(mut self, rule: Rule<C>) -> Self {
        self.rules.push(rule);
        self
    }

    /// What was changed after a look at figures: when, what and why. [`ClaimDef::before`] says how it was judged without the change.
    pub fn changed(mut self, what: &'static str) -> Self {
        self.changed = Some(what);
        self
    }

    /// What judged it before it was changed; that verdict is given beside the other. Where no rule is given, no figure that is taken today
    /// can tell.
    pub fn before(mut self, rule: Rule<C>) -> Self {
        self.before.push(rule);
        self
    }

    pub(super) fn erase(&self, cells: &[C]) -> ClaimDef<T, UntypedRule> {
        let erased = |rules: &[Rule<C>]| rules.iter().map(|rule| rule.erase(cells)).collect();
        ClaimDef { stated: self.stated.clone(), rules: erased(&self.rules), changed: self.changed, before: erased(&self.before) }
    }
}

/// What of a claim does not depend on cells.
#[derive(Debug, Clone)]
pub struct ClaimText {
    pub(super) id: &'static str,
    pub(super) from: &'static str,
    pub(super) text: &'static str,
    pub(super) on: Option<Vec<Platform>>,
    pub(super) about_the_lab: bool,
}

impl<C: Cell> Claim<C> {
    /// `from` names the guides that make the claim, by number.
    pub fn new(id: &'static str, from: &'static str, text: &'static str) -> Self {
        ClaimDef::of(ClaimText { id, from, text, on: None, about_the_lab: false })
    }

    /// Whose figures may carry a verdict; else those of CPUs and GPUs and, where bytes are counted, the simulated GPU's.
    pub fn on(mut self, platforms: &[Platform]) -> Self {
        self.stated.on = Some(platforms.to_vec());
        self
    }

    /// That the claim is about the lab itself, and not about what the experiment is about.
    pub fn about_the_lab(mut self) -> Self {
        self.stated.about_the_lab = true;
        self
    }
}

/// Platforms whose figures a rule's parts can be judged by.
pub(super) fn usual_platforms(parts: &[UntypedRule]) -> Vec<Platform> {
    let counts = parts.iter().flat_map(UntypedRule::metrics).any(|metric| metric.pass == Pass::Memory);
    let platforms = [Platform::Cpu, Platform::Gpu].into_iter();
    platforms.chain(counts.then_some(Platform::Dry)).collect()
}

/// A figure that someone published, and what reproduces it here.
pub type Published<C> = ClaimDef<PublishedText, Rule<C>>;

#[derive(Debug, Clone)]
pub struct PublishedText {
    pub(super) id: &'static str,
    pub(super) source: &'static str,
    pub(super) figure: &'static str,
    pub(super) on: Vec<Platform>,
    pub(super) setup: &'static str,
}

impl<C: Cell> Published<C> {
    /// `figure` is the figure as its source gives it.
    pub fn new(id: &'static str, source: &'static str, figure: &'static str) -> Self {
        ClaimDef::of(PublishedText { id, source, figure, on: vec![Platform::Gpu], setup: "" })
    }

    /// Whose figures may be put against it; else a GPU's.
    pub fn on(mut self, platforms: &[Platform]) -> Self {
        self.stated.on = platforms.to_vec();
        self
    }

    /// In what the cells here differ from the source's setup; without a rule, why nothing can be compared.
    pub fn setup(mut self, setup: &'static str) -> Self {
        self.stated.setup = setup;
        self
    }
}
