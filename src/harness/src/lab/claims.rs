//! Claims, published figures and pictures beside the grid that answers them, and the rules by which they are judged.

use super::levels::{Cell, Has, Level};
use super::selection::{NO_CELL, Selecting};
use record::protocol::{self, Metric, PlainCell, Platform, REPRODUCES};
use record::rules::{
    AgreementRule, Bound, ExponentRule, FalseAlarmsRule, FrequencyRule, Pick, PickedRule, PlainRule, RatioRule, RulePart, Scope,
    TrendRule, ValueRule,
};
use std::ops::RangeInclusive;

/// Which cells of a grid something is about; none of it says all.
pub(super) type Predicate<C> = Option<Box<dyn Fn(&C) -> bool>>;

pub(super) fn chosen<C: Cell>(predicate: &Predicate<C>, cells: &[C]) -> Vec<PlainCell> {
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
    /// What it becomes, but for its selections and bounds.
    part: RulePart,
    pub(super) metrics: Vec<Metric>,
    of: Predicate<C>,
    over: Predicate<C>,
    confirm: Option<Bound>,
    refute: Option<Bound>,
    decides: bool,
}

/// In the place of a bound until the rule is whole.
const UNSAID: Bound = Bound::AtMost(f64::NAN);

fn rule<C>(metrics: &[Metric], part: impl Into<RulePart>) -> Rule<C> {
    Rule { part: part.into(), metrics: metrics.to_vec(), of: None, over: None, confirm: None, refute: None, decides: true }
}

/// The metric of each cell over that of its baseline: exact for bytes, an interval for times.
pub fn ratio<C>(metric: Metric) -> Rule<C> {
    let (name, of) = (metric.name.into(), String::new());
    rule(&[metric], RatioRule { metric: name, of, confirm: UNSAID, refute: UNSAID, scope: None })
}

/// The metric of each cell as it is.
pub fn value<C>(metric: Metric) -> Rule<C> {
    let (name, of) = (metric.name.into(), String::new());
    rule(&[metric], ValueRule { metric: name, of, confirm: UNSAID, refute: UNSAID })
}

/// Growth exponent of the metric along a number, between its two largest levels; [`Rule::along`] says which.
pub fn growth<C>(metric: Metric) -> Rule<C> {
    let (name, along, of) = (metric.name.into(), String::new(), String::new());
    rule(&[metric], ExponentRule { metric: name, along, of, confirm: UNSAID, refute: UNSAID })
}

/// Whether the metric's ratio to its baseline grows along a number: Spearman's rank correlation; [`Rule::along`] says which.
pub fn trend<C>(metric: Metric) -> Rule<C> {
    let (name, along, of) = (metric.name.into(), String::new(), String::new());
    rule(&[metric], TrendRule { metric: name, along, of, confirm: UNSAID, refute: UNSAID })
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
    let (name, of, over) = (metric.name.into(), String::new(), String::new());
    rule(&[metric], PickedRule { metric: name, pick, of, over, confirm: UNSAID, refute: UNSAID })
}

/// Whether one metric predicts another: their ratio lies in the range in at least this share of the cells.
pub fn agreement<C>(metric: Metric, reference: Metric, range: RangeInclusive<f64>, share: f64) -> Rule<C> {
    let (name, other, of) = (metric.name.into(), reference.name.into(), String::new());
    rule(&[metric, reference], AgreementRule { metric: name, reference: other, of, within: within(range), share })
}

/// How often levels that are one thing under several names would be called different, in resamplings of as many rounds as the profile takes.
pub fn false_alarms<C>(metric: Metric, at_most: f64) -> Rule<C> {
    rule(&[metric], FalseAlarmsRule { metric: metric.name.into(), of: String::new(), at_most })
}

/// The share of `attempts` that `metric` counts, over the baseline's: an interval, because both are counts of chance. Judged only where the
/// baseline's share is at least `least`.
pub fn frequency<C>(metric: Metric, attempts: Metric, least: f64) -> Rule<C> {
    let (name, all, of) = (metric.name.into(), attempts.name.into(), String::new());
    rule(&[metric, attempts], FrequencyRule { metric: name, attempts: all, of, confirm: UNSAID, refute: UNSAID, least })
}

/// The cells that a rule judges, as it has them.
fn selection(part: &mut RulePart) -> &mut String {
    match part {
        RulePart::Ratio(RatioRule { of, .. })
        | RulePart::Frequency(FrequencyRule { of, .. })
        | RulePart::Value(ValueRule { of, .. })
        | RulePart::Exponent(ExponentRule { of, .. })
        | RulePart::Picked(PickedRule { of, .. })
        | RulePart::Agreement(AgreementRule { of, .. })
        | RulePart::Trend(TrendRule { of, .. })
        | RulePart::FalseAlarms(FalseAlarmsRule { of, .. }) => of,
    }
}

/// What confirms and what refutes a rule, where these are bounds of each comparison.
fn bounds(part: &mut RulePart) -> Option<(&mut Bound, &mut Bound)> {
    match part {
        RulePart::Ratio(RatioRule { confirm, refute, .. })
        | RulePart::Frequency(FrequencyRule { confirm, refute, .. })
        | RulePart::Value(ValueRule { confirm, refute, .. })
        | RulePart::Exponent(ExponentRule { confirm, refute, .. })
        | RulePart::Picked(PickedRule { confirm, refute, .. })
        | RulePart::Trend(TrendRule { confirm, refute, .. }) => Some((confirm, refute)),
        RulePart::Agreement(_) | RulePart::FalseAlarms(_) => None,
    }
}

/// The number along which a rule tells a growth or a trend.
fn number_along(part: &mut RulePart) -> Option<&mut String> {
    match part {
        RulePart::Exponent(ExponentRule { along, .. }) | RulePart::Trend(TrendRule { along, .. }) => Some(along),
        _ => None,
    }
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
        Rule { confirm: Some(bound), ..self }
    }

    pub fn refute(self, bound: Bound) -> Self {
        Rule { refute: Some(bound), ..self }
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
        if let RulePart::Ratio(RatioRule { scope, .. }) = &mut self.part {
            *scope = Some(Scope { part: part.name.into(), whole: whole.name.into(), at_least });
        }
        self.metrics.extend([part, whole]);
        self
    }

    /// The number along which a growth or a trend is told.
    pub fn along<L: Level>(mut self) -> Self
    where
        C: Has<L>,
    {
        number_along(&mut self.part).into_iter().for_each(|along| *along = L::factor());
        self
    }

    /// The rule as plain data, over the cells of its grid.
    ///
    /// # Errors
    /// Says what the rule lacks.
    pub(super) fn plain(&self, cells: &[C], select: Selecting) -> Result<PlainRule, &'static str> {
        let mut part = self.part.clone();
        let of = chosen(&self.of, cells);
        if of.is_empty() {
            return Err("is about no cell that is planned");
        }
        *selection(&mut part) = select(&of);
        if let Some((confirm, refute)) = bounds(&mut part) {
            (*confirm, *refute) = self.confirm.zip(self.refute).ok_or("does not say what confirms and what refutes it")?;
        }
        if number_along(&mut part).is_some_and(|along| along.is_empty()) {
            return Err("does not say along which number");
        }
        if let RulePart::Picked(rule) = &mut part {
            rule.over = select(&chosen(&self.over, cells));
            if rule.over == NO_CELL {
                return Err("picks over no cell that is planned");
            }
        }
        let plain = PlainRule::Part(part);
        Ok(if self.decides { plain } else { PlainRule::Informational(Box::new(plain)) })
    }
}

/// What somebody says, and what judges it.
pub struct ClaimDef<T, R> {
    pub(super) stated: T,
    pub(super) rules: Vec<R>,
    pub(super) changed: Option<&'static str>,
    /// The rules without what was changed after a look.
    pub(super) before: Vec<R>,
}

impl<T, C: Cell> ClaimDef<T, Rule<C>> {
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
    pub fn changed(self, what: &'static str) -> Self {
        ClaimDef { changed: Some(what), ..self }
    }

    /// What judged it before it was changed; that verdict is given beside the other. Where no rule is given, no figure that is taken today
    /// can tell.
    pub fn before(mut self, rule: Rule<C>) -> Self {
        self.before.push(rule);
        self
    }

    /// The metrics that its rules read, those before a change among them.
    pub(super) fn metrics(&self) -> impl Iterator<Item = Metric> {
        self.rules.iter().chain(&self.before).flat_map(|rule| rule.metrics.iter().copied())
    }
}

/// What a guide says, in our words.
pub type Claim<C> = ClaimDef<protocol::Claim, Rule<C>>;

impl<C: Cell> Claim<C> {
    /// `from` names the guides that make the claim, by number.
    pub fn new(id: &str, from: &str, text: &str) -> Self {
        let (id, from, text) = (id.into(), from.into(), text.into());
        let rule = PlainRule::All(Vec::new());
        ClaimDef::of(protocol::Claim { id, from, text, judged_on: Vec::new(), rule, about_the_lab: false })
    }

    /// Whose figures may carry a verdict; else those of CPUs and GPUs and, where bytes are counted, the simulated GPU's.
    pub fn on(mut self, platforms: &[Platform]) -> Self {
        self.stated.judged_on = platforms.to_vec();
        self
    }

    /// That the claim is about the lab itself, and not about what the experiment is about.
    pub fn about_the_lab(mut self) -> Self {
        self.stated.about_the_lab = true;
        self
    }
}

/// A figure that someone published, and what reproduces it here.
pub type Published<C> = ClaimDef<protocol::Published, Rule<C>>;

impl<C: Cell> Published<C> {
    /// `figure` is the figure as its source gives it.
    pub fn new(id: &str, source: &str, figure: &str) -> Self {
        let (id, source, figure) = (id.into(), source.into(), figure.into());
        ClaimDef::of(protocol::Published { id, source, figure, judged_on: vec![Platform::Gpu], rule: None, setup: String::new() })
    }

    /// Whose figures may be put against it; else a GPU's.
    pub fn on(mut self, platforms: &[Platform]) -> Self {
        self.stated.judged_on = platforms.to_vec();
        self
    }

    /// In what the cells here differ from the source's setup; without a rule, why nothing can be compared.
    pub fn setup(mut self, setup: &str) -> Self {
        self.stated.setup = setup.into();
        self
    }
}
