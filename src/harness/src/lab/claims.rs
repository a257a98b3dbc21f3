//! Claims, published figures and pictures beside the grid that answers them, and the rules by which they are judged.

use super::levels::{Cell, Has, Level, Many};
use super::selection::{NO_CELL, SelectCells};
use record::protocol::{Metric, NOISE, PEAK, PlainCell, Platform, REPRODUCES, Select, TIME};
use record::rules::{
    AgreementRule, Bound, ExponentRule, FalseAlarmsRule, FrequencyRule, Pick, PickedRule, PlainRule, RatioRule, RecordedFigure,
    RecordedRule, RulePart, Scope, TrendRule, ValueRule,
};
use std::ops::RangeInclusive;

/// Which cells of a grid something is about; none of it says all.
pub(super) type Predicate<C> = Option<Box<dyn Fn(&C) -> bool>>;

pub(super) fn chosen<C: Cell>(predicate: &Predicate<C>, cells: &[C]) -> Vec<PlainCell> {
    cells.iter().filter(|cell| predicate.as_ref().is_none_or(|holds| holds(cell))).map(Cell::plain).collect()
}

/// Of the cells that were said before those that this holds for, too.
fn both<C: Cell>(before: Predicate<C>, more: impl Fn(&C) -> bool + 'static) -> Predicate<C> {
    let joined: Box<dyn Fn(&C) -> bool> = match before {
        Some(before) => Box::new(move |cell: &C| before(cell) && more(cell)),
        None => Box::new(more),
    };
    Some(joined)
}

/// Whether a cell has one of these levels.
fn has<C: Has<L>, L: Level>(levels: impl Many<L>) -> impl Fn(&C) -> bool + 'static {
    let levels = levels.many();
    move |cell: &C| levels.contains(&cell.level())
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

/// What is said of a rule.
struct Terms {
    metric: String,
    of: Select,
    over: Select,
    along: String,
    confirm: Bound,
    refute: Bound,
    scope: Option<Scope>,
}

/// How figures become a verdict, over the cells of a grid.
pub struct Rule<C> {
    part: Box<dyn Fn(Terms) -> RulePart>,
    pub(super) metrics: Vec<Metric>,
    of: Predicate<C>,
    over: Predicate<C>,
    along: String,
    confirm: Option<Bound>,
    refute: Option<Bound>,
    scope: Option<Scope>,
    decides: bool,
}

fn rule<C, P: Into<RulePart>>(metrics: &[Metric], part: impl Fn(Terms) -> P + 'static) -> Rule<C> {
    let part = Box::new(move |terms: Terms| -> RulePart { part(terms).into() });
    let (metrics, along) = (metrics.to_vec(), String::new());
    Rule { part, metrics, of: None, over: None, along, confirm: None, refute: None, scope: None, decides: true }
}

/// The metric of each cell over that of its baseline: exact for bytes, an interval for times.
pub fn ratio<C>(metric: Metric) -> Rule<C> {
    rule(&[metric], |Terms { metric, of, confirm, refute, scope, .. }| RatioRule { metric, of, confirm, refute, scope })
}

/// The metric of each cell as it is.
pub fn value<C>(metric: Metric) -> Rule<C> {
    rule(&[metric], |Terms { metric, of, confirm, refute, .. }| ValueRule { metric, of, confirm, refute })
}

/// Growth exponent of the metric along a number, between its two largest levels; [`Rule::along`] says which.
pub fn growth<C>(metric: Metric) -> Rule<C> {
    rule(&[metric], |Terms { metric, along, of, confirm, refute, .. }| ExponentRule { metric, along, of, confirm, refute })
}

/// Whether the metric's ratio to its baseline grows along a number: Spearman's rank correlation; [`Rule::along`] says which.
pub fn trend<C>(metric: Metric) -> Rule<C> {
    trend_rule(metric, false)
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
    rule(&[metric], move |Terms { metric, of, over, confirm, refute, .. }| PickedRule { metric, pick, of, over, confirm, refute })
}

/// Whether what is saved against the baseline, in the metric's own unit, grows along a number; [`Rule::along`] says which.
pub fn saved_trend<C>(metric: Metric) -> Rule<C> {
    trend_rule(metric, true)
}

fn trend_rule<C>(metric: Metric, saved: bool) -> Rule<C> {
    rule(&[metric], move |Terms { metric, along, of, confirm, refute, .. }| TrendRule { metric, along, of, confirm, refute, saved })
}

/// What a technique of `--what-if` did to whole programs on this GPU, as `records/gpus` has it, over the program without it.
pub fn recorded<C>(technique: &'static str, figure: RecordedFigure) -> Rule<C> {
    let metric = if figure == RecordedFigure::Time { TIME } else { PEAK };
    rule(&[metric], move |Terms { confirm, refute, .. }| RecordedRule { technique: technique.into(), figure, confirm, refute })
}

/// Whether one metric predicts another: their ratio lies in the range in at least this share of the cells.
pub fn agreement<C>(metric: Metric, reference: Metric, range: RangeInclusive<f64>, share: f64) -> Rule<C> {
    let (other, within) = (reference.name, within(range));
    rule(&[metric, reference], move |Terms { metric, of, .. }| AgreementRule { metric, reference: other.into(), of, within, share })
}

/// How often levels that are one thing under several names would be called different, in resamplings of as many rounds as the profile takes.
pub fn false_alarms<C>(metric: Metric, at_most: f64) -> Rule<C> {
    rule(&[metric], move |Terms { metric, of, .. }| FalseAlarmsRule { metric, of, at_most })
}

/// The share of `attempts` that `metric` counts, over the baseline's: an interval, because both are counts of chance. Judged only where the
/// baseline's share is at least `least`.
pub fn frequency<C>(metric: Metric, attempts: Metric, least: f64) -> Rule<C> {
    let all = attempts.name;
    rule(&[metric, attempts], move |Terms { metric, of, confirm, refute, .. }| FrequencyRule {
        metric,
        attempts: all.into(),
        of,
        confirm,
        refute,
        least,
    })
}

impl<C: Cell> Rule<C> {
    /// Of the cells that are judged those that this holds for; all where nothing is said of them.
    pub fn of(self, of: impl Fn(&C) -> bool + 'static) -> Self {
        Rule { of: both(self.of, of), ..self }
    }

    /// Of the cells that are judged those that have this level, or one of these levels.
    pub fn at<L: Level>(self, levels: impl Many<L>) -> Self
    where
        C: Has<L>,
    {
        self.of(has::<C, L>(levels))
    }

    /// The cells that the picked one is put against.
    pub fn over(self, over: impl Fn(&C) -> bool + 'static) -> Self {
        Rule { over: both(self.over, over), ..self }
    }

    /// Of the cells that the picked one is put against those that have this level, or one of these levels.
    pub fn over_at<L: Level>(self, levels: impl Many<L>) -> Self
    where
        C: Has<L>,
    {
        self.over(has::<C, L>(levels))
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

    /// What somebody says who names no figure: less than the baseline, by more than two equal levels differ.
    pub fn less(self) -> Self {
        self.confirm(Bound::AtMost(1.0 - NOISE)).refute(Bound::AtLeast(1.0))
    }

    /// The same of what is more.
    pub fn more(self) -> Self {
        self.confirm(Bound::AtLeast(1.0 + NOISE)).refute(Bound::AtMost(1.0))
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
        self.metrics.extend([part, whole]);
        Rule { scope: Some(Scope { part: part.name.into(), whole: whole.name.into(), at_least }), ..self }
    }

    /// The number along which a growth or a trend is stated.
    pub fn along<L: Level>(self) -> Self
    where
        C: Has<L>,
    {
        Rule { along: L::factor(), ..self }
    }

    /// The rule as plain data, over the cells of its grid; or what it lacks.
    pub(super) fn plain(&self, cells: &[C], select: SelectCells) -> Result<PlainRule, &'static str> {
        let of = chosen(&self.of, cells);
        if of.is_empty() {
            return Err("is about no cell that is planned");
        }
        let over = self.over.as_ref().map_or(String::new(), |_| select(&chosen(&self.over, cells)));
        let unsaid = Bound::AtMost(f64::NAN);
        let (confirm, refute) = (self.confirm.unwrap_or(unsaid), self.refute.unwrap_or(unsaid));
        let (metric, along, scope) = (self.metrics[0].name.into(), self.along.clone(), self.scope.clone());
        let part = (self.part)(Terms { metric, of: select(&of), over, along, confirm, refute, scope });
        match &part {
            _ if part.bounds().is_some() && self.confirm.and(self.refute).is_none() => {
                Err("does not say what confirms and what refutes it")
            }
            RulePart::Exponent(_) | RulePart::Trend(_) if self.along.is_empty() => Err("does not say along which number"),
            RulePart::Picked(rule) if rule.over == NO_CELL => Err("picks over no cell that is planned"),
            _ if self.decides => Ok(PlainRule::Part(part)),
            _ => Ok(PlainRule::Informational(Box::new(PlainRule::Part(part)))),
        }
    }
}

/// What somebody says, in our words, or a figure that somebody published, as its source gives it.
#[derive(Debug, Clone, Default)]
pub(super) struct Statement {
    pub id: String,
    pub from: String,
    pub text: String,
    pub judged_on: Vec<Platform>,
    pub about_the_lab: bool,
    pub is_published: bool,
    pub setup: String,
}

/// What is stated, and what judges it.
pub struct ClaimDef<R> {
    pub(super) stated: Statement,
    pub(super) rules: Vec<R>,
    pub(super) changed: Option<&'static str>,
    /// The rules without what was changed after a look.
    pub(super) before: Vec<R>,
}

pub type Claim<C> = ClaimDef<Rule<C>>;

impl<C: Cell> Claim<C> {
    /// `from` names the guides that make the claim, by number.
    pub fn new(id: &str, from: &str, text: &str) -> Self {
        let stated = Statement { id: id.into(), from: from.into(), text: text.into(), ..Statement::default() };
        ClaimDef { stated, rules: Vec::new(), changed: None, before: Vec::new() }
    }

    /// A claim that this lab makes itself.
    pub fn ours(id: &str, text: &str) -> Self {
        Self::new(id, "this lab", text)
    }

    /// A figure that someone published, as its source gives it.
    pub fn published(id: &str, source: &str, figure: &str) -> Self {
        let claim = Self::new(id, source, figure);
        ClaimDef { stated: Statement { is_published: true, ..claim.stated }, ..claim }
    }

    /// Whose figures may carry a verdict; else those that [`Grid::judged_on`](super::Grid::judged_on) names, or, where it names none,
    /// GPUs' about a published figure, and about a claim those of CPUs and GPUs and, where bytes are counted, the simulated GPU's.
    pub fn on(mut self, platforms: &[Platform]) -> Self {
        self.stated.judged_on = platforms.to_vec();
        self
    }

    /// That the claim is about the lab itself, and not about what the experiment is about.
    pub fn about_the_lab(mut self) -> Self {
        self.stated.about_the_lab = true;
        self
    }

    /// In what the cells here differ from the setup of a published figure; without a rule, why nothing can be compared.
    pub fn setup(mut self, setup: &str) -> Self {
        self.stated.setup = setup.into();
        self
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
