//! Claims, published figures and pictures beside the grid that answers them, and the rules by which they are judged.

use super::levels::{Cell, Has, Level};
use record::protocol::{self, Bound, Metric, Pass, Pick, Platform, REPRODUCES};
use std::ops::RangeInclusive;

/// Which cells of a grid something is about; none of it says all.
pub(super) type Predicate<C> = Option<Box<dyn Fn(&C) -> bool>>;

pub(super) fn chosen<C: Cell>(predicate: &Predicate<C>, cells: &[C]) -> Vec<protocol::Cell> {
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
    read: Read,
    of: Predicate<C>,
    over: Predicate<C>,
    confirm: Option<Bound>,
    refute: Option<Bound>,
    decides: bool,
}

#[derive(Debug, Clone)]
enum Read {
    Ratio { metric: Metric, scope: Option<(Metric, Metric, f64)> },
    Value { metric: Metric },
    Growth { metric: Metric, along: Option<String> },
    Trend { metric: Metric, along: Option<String> },
    Picked { metric: Metric, pick: Pick },
    Agreement { metric: Metric, reference: Metric, within: Bound, share: f64 },
    FalseAlarms { metric: Metric, at_most: f64 },
    Frequency { metric: Metric, attempts: Metric, least: f64 },
}

fn rule<C>(read: Read) -> Rule<C> {
    Rule { read, of: None, over: None, confirm: None, refute: None, decides: true }
}

/// The metric of each cell over that of its baseline: exact for bytes, an interval for times.
pub fn ratio<C>(metric: Metric) -> Rule<C> {
    rule(Read::Ratio { metric, scope: None })
}

/// The metric of each cell as it is.
pub fn value<C>(metric: Metric) -> Rule<C> {
    rule(Read::Value { metric })
}

/// Growth exponent of the metric along a number, between its two largest levels; [`Rule::along`] says which.
pub fn growth<C>(metric: Metric) -> Rule<C> {
    rule(Read::Growth { metric, along: None })
}

/// Whether the metric's ratio to its baseline grows along a number: Spearman's rank correlation; [`Rule::along`] says which.
pub fn trend<C>(metric: Metric) -> Rule<C> {
    rule(Read::Trend { metric, along: None })
}

/// Of the cells that differ in the compared factor alone, the one with the lowest metric, over the highest of those of [`Rule::over`].
pub fn lowest<C>(metric: Metric) -> Rule<C> {
    rule(Read::Picked { metric, pick: Pick::Lowest })
}

/// Of the cells that differ in the compared factor alone, the one with the highest metric, over the highest of those of [`Rule::over`].
pub fn highest<C>(metric: Metric) -> Rule<C> {
    rule(Read::Picked { metric, pick: Pick::Highest })
}

/// Whether one metric predicts another: their ratio lies in the range in at least this share of the cells.
pub fn agreement<C>(metric: Metric, reference: Metric, range: RangeInclusive<f64>, share: f64) -> Rule<C> {
    rule(Read::Agreement { metric, reference, within: within(range), share })
}

/// How often levels that are one thing under several names would be called different, in resamplings of as many rounds as the profile takes.
pub fn false_alarms<C>(metric: Metric, at_most: f64) -> Rule<C> {
    rule(Read::FalseAlarms { metric, at_most })
}

/// The share of `attempts` that `metric` counts, over the baseline's: an interval, because both are counts of chance. Judged only where the
/// baseline's share is at least `least`.
pub fn frequency<C>(metric: Metric, attempts: Metric, least: f64) -> Rule<C> {
    rule(Read::Frequency { metric, attempts, least })
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
    pub fn beside(self) -> Self {
        Rule { decides: false, ..self }
    }

    /// Judge only where, in the baseline, `part` is at least this share of `whole`.
    pub fn scope(mut self, part: Metric, whole: Metric, at_least: f64) -> Self {
        if let Read::Ratio { scope, .. } = &mut self.read {
            *scope = Some((part, whole, at_least));
        }
        self
    }

    /// The number along which a growth or a trend is told.
    pub fn along<L: Level>(mut self) -> Self
    where
        C: Has<L>,
    {
        if let Read::Growth { along, .. } | Read::Trend { along, .. } = &mut self.read {
            *along = Some(L::factor());
        }
        self
    }

    pub(super) fn erase(&self, cells: &[C]) -> Judged {
        Judged {
            read: self.read.clone(),
            of: chosen(&self.of, cells),
            over: chosen(&self.over, cells),
            confirm: self.confirm,
            refute: self.refute,
            decides: self.decides,
        }
    }
}

/// A rule over cells that are known.
#[derive(Debug, Clone)]
pub(super) struct Judged {
    read: Read,
    of: Vec<protocol::Cell>,
    over: Vec<protocol::Cell>,
    confirm: Option<Bound>,
    refute: Option<Bound>,
    decides: bool,
}

impl Judged {
    pub fn metrics(&self) -> Vec<Metric> {
        match &self.read {
            Read::Ratio { metric, scope: Some((part, whole, _)) } => vec![*metric, *part, *whole],
            Read::Ratio { metric, .. } | Read::Value { metric } | Read::Growth { metric, .. } | Read::Trend { metric, .. } => {
                vec![*metric]
            }
            Read::Picked { metric, .. } | Read::FalseAlarms { metric, .. } => vec![*metric],
            Read::Agreement { metric, reference, .. } => vec![*metric, *reference],
            Read::Frequency { metric, attempts, .. } => vec![*metric, *attempts],
        }
    }

    /// The rule as plain data; `select` writes a set of cells down.
    ///
    /// # Errors
    /// Says what the rule lacks.
    pub fn plain(self, select: &mut impl FnMut(&[protocol::Cell]) -> String) -> Result<protocol::Rule, String> {
        if self.of.is_empty() {
            return Err("is about no cell that is planned".to_string());
        }
        let of = select(&self.of);
        let bounds = self.confirm.zip(self.refute).ok_or("does not say what confirms and what refutes it");
        let along = |along: Option<String>| along.ok_or("does not say along which number");
        let decides = self.decides;
        let plain = match self.read {
            Read::Ratio { metric, scope } => {
                let (confirm, refute) = bounds?;
                let share = |(part, whole, at_least): (Metric, Metric, f64)| protocol::Share {
                    part: part.name.into(),
                    whole: whole.name.into(),
                    at_least,
                };
                protocol::Rule::Ratio { metric: metric.name.into(), of, confirm, refute, scope: scope.map(share) }
            }
            Read::Value { metric } => {
                let (confirm, refute) = bounds?;
                protocol::Rule::Value { metric: metric.name.into(), of, confirm, refute }
            }
            Read::Growth { metric, along: factor } => {
                let (confirm, refute) = bounds?;
                protocol::Rule::Exponent { metric: metric.name.into(), along: along(factor)?, of, confirm, refute }
            }
            Read::Trend { metric, along: factor } => {
                let (confirm, refute) = bounds?;
                protocol::Rule::Trend { metric: metric.name.into(), along: along(factor)?, of, confirm, refute }
            }
            Read::Picked { metric, pick } => {
                let (confirm, refute) = bounds?;
                if self.over.is_empty() {
                    return Err("picks over no cell that is planned".to_string());
                }
                protocol::Rule::Picked { metric: metric.name.into(), pick, of, over: select(&self.over), confirm, refute }
            }
            Read::Agreement { metric, reference, within, share } => {
                protocol::Rule::Agreement { metric: metric.name.into(), reference: reference.name.into(), of, within, share }
            }
            Read::FalseAlarms { metric, at_most } => protocol::Rule::FalseAlarms { metric: metric.name.into(), of, at_most },
            Read::Frequency { metric, attempts, least } => {
                let (confirm, refute) = bounds?;
                protocol::Rule::Frequency { metric: metric.name.into(), attempts: attempts.name.into(), of, confirm, refute, least }
            }
        };
        Ok(if decides { plain } else { protocol::Rule::Beside(Box::new(plain)) })
    }
}

/// What a guide says, in our words, and what its verdicts mean for the reader. In their texts `{effect}` and `{where}` stand for the
/// measured effect and for the conditions under which the claim holds.
pub type Claim<C> = Stated<ClaimText, Rule<C>>;

/// What somebody says, and what judges it.
#[derive(Debug)]
pub struct Stated<T, R> {
    pub(super) told: T,
    pub(super) rules: Vec<R>,
    pub(super) changed: Option<&'static str>,
    /// The rules without what was changed after a look.
    pub(super) before: Vec<R>,
}

impl<T> Stated<T, Judged> {
    /// Its rules, those before a change among them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Judged> {
        self.rules.iter().chain(&self.before)
    }
}

impl<T: Clone, C: Cell> Stated<T, Rule<C>> {
    fn of(told: T) -> Self {
        Stated { told, rules: Vec::new(), changed: None, before: Vec::new() }
    }

    /// What judges it. A claim needs all to hold; of a published figure each reproduces a part, and without any, nothing that is measured
    /// here can be compared.
    pub fn rule(mut self, rule: Rule<C>) -> Self {
        self.rules.push(rule);
        self
    }

    /// What was changed after a look at figures: when, what and why. [`Stated::before`] says how it was judged without the change.
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

    pub(super) fn erase(&self, cells: &[C]) -> Stated<T, Judged> {
        let erased = |rules: &[Rule<C>]| rules.iter().map(|rule| rule.erase(cells)).collect();
        Stated { told: self.told.clone(), rules: erased(&self.rules), changed: self.changed, before: erased(&self.before) }
    }
}

/// What of a claim does not depend on cells.
#[derive(Debug, Clone)]
pub struct ClaimText {
    pub(super) id: &'static str,
    pub(super) from: &'static str,
    pub(super) text: &'static str,
    pub(super) on: Option<Vec<Platform>>,
    pub(super) meaning: protocol::Meaning,
}

impl<C: Cell> Claim<C> {
    /// `from` names the guides that make the claim, by number.
    pub fn new(id: &'static str, from: &'static str, text: &'static str) -> Self {
        let meaning = protocol::Meaning {
            confirmed: "It holds: {effect}.".into(),
            refuted: "It does not hold: {effect}.".into(),
            depends: "It holds only where {where}.".into(),
            inconclusive: "What was measured ({effect}) is too close to the thresholds for a verdict.".into(),
        };
        Stated::of(ClaimText { id, from, text, on: None, meaning })
    }

    /// Whose figures may carry a verdict; else those of CPUs and GPUs and, where bytes are counted, the simulated GPU's.
    pub fn on(mut self, platforms: &[Platform]) -> Self {
        self.told.on = Some(platforms.to_vec());
        self
    }

    /// Why nothing judges it.
    pub fn not_measured(mut self, why: &'static str) -> Self {
        self.told.meaning.inconclusive = why.into();
        self.on(&[])
    }

    pub fn confirmed(mut self, text: &'static str) -> Self {
        self.told.meaning.confirmed = text.into();
        self
    }

    pub fn refuted(mut self, text: &'static str) -> Self {
        self.told.meaning.refuted = text.into();
        self
    }

    pub fn depends(mut self, text: &'static str) -> Self {
        self.told.meaning.depends = text.into();
        self
    }

    pub fn inconclusive(mut self, text: &'static str) -> Self {
        self.told.meaning.inconclusive = text.into();
        self
    }
}

/// Platforms whose figures a rule's parts can be judged by.
pub(super) fn usual_platforms(parts: &[Judged]) -> Vec<Platform> {
    let counts = parts.iter().flat_map(Judged::metrics).any(|metric| metric.pass == Pass::Memory);
    let platforms = [Platform::Cpu, Platform::Gpu].into_iter();
    platforms.chain(counts.then_some(Platform::Dry)).collect()
}

/// A figure that someone published, and what reproduces it here.
pub type Published<C> = Stated<PublishedText, Rule<C>>;

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
        Stated::of(PublishedText { id, source, figure, on: vec![Platform::Gpu], setup: "" })
    }

    /// Whose figures may be put against it; else a GPU's.
    pub fn on(mut self, platforms: &[Platform]) -> Self {
        self.told.on = platforms.to_vec();
        self
    }

    /// In what the cells here differ from the source's setup; without a rule, why nothing can be compared.
    pub fn setup(mut self, setup: &'static str) -> Self {
        self.told.setup = setup;
        self
    }
}
