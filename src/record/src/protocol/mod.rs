//! What an experiment is, as plain data: factors, cells, metrics, checks, claims and their rules.
//!
//! `harness::lab` makes a [`PlainProtocol`] of what an experiment says. It is stored once for each [`Method`], beside the results that were taken by
//! it, so that the reporter needs no list of experiments.

pub(crate) mod cells;
pub(crate) mod metrics;

pub use cells::{
    ALLOC_CONF, Axis, BY, DEVICE_MEMORY, DTYPE, Pass, PlainCell, PlainGrid, Platform, Profile, Select, THREADS, alternatives, axis,
    conditions, fixed_by, selects, shared_terms,
};
pub use metrics::{
    ACTIVATIONS, BANDWIDTH, COMPUTED, FigureStyle, GRADIENTS, LEAST_FLOPS, LINK_SHARE, Metric, PEAK, Role, STEP_PEAK, TIME, Text,
    intern,
};

use crate::rules::{PlainPart, PlainRule};
use serde::{Deserialize, Serialize};

/// One experiment: what is asked, what is varied, what is measured, and how each claim is judged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PlainProtocol {
    /// File name of the experiment and of its results.
    pub name: String,
    /// Counts how often what a cell measures, or how, has changed, from 1: figures of two revisions are figures of two things.
    pub revision: u32,
    pub title: String,
    /// What its page in the report says beside figures.
    #[serde(default)]
    pub subject: Subject,
    pub question: String,
    /// What is expected and why, written down before measuring.
    pub hypothesis: String,
    pub factors: Vec<Factor>,
    pub grids: Vec<PlainGrid>,
    pub metrics: Vec<Metric>,
    /// The relation to the baseline that each cell must show before anything of it is timed; the first that applies counts.
    pub checks: Vec<Check>,
    pub claims: Vec<Claim>,
    /// Figures of others that this experiment's figures are put against.
    #[serde(default)]
    pub published: Vec<Published>,
    pub plots: Vec<PlainPlot>,
    /// Threats to validity.
    pub threats: Vec<String>,
}

/// What a cell's figures are figures of: an experiment, and the declared revision of how it measures.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Method {
    pub experiment: String,
    pub revision: u32,
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}-{}", self.experiment, self.revision)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Factor {
    pub name: String,
    /// What is varied, in a few words; also the axis label of a plot.
    pub meaning: String,
    /// What single levels mean, where their names do not say it.
    pub levels: Vec<PlainLevel>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlainLevel {
    pub name: String,
    pub meaning: String,
    /// What one does who chooses it, as titles say it; empty where the name says that beside its factor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
}

/// What a reader learns of an experiment's subject beside its figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    pub kind: SubjectKind,
    /// The effects that stand for it on the front page.
    pub shown: Vec<ShownEffect>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubjectKind {
    /// Users ask for it: a page of its own.
    #[default]
    Technique,
    /// How far the lab itself can be trusted.
    SelfCheck,
    /// Figures of others, put beside ours.
    Published,
    /// Predictions, put beside real GPUs.
    RealGpus,
}

/// An effect that stands for a technique.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ShownEffect {
    /// What one does, as a row of a table names it.
    pub label: String,
    pub of: Select,
    /// The metrics whose ratio to the baseline is shown.
    pub memory: Option<String>,
    pub time: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    pub when: Select,
    pub expect: Relation,
}

/// How a cell's outcome relates to its baseline's. Errors are relative: |a - b| / |b| in the Euclidean norm over all values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    Equal {
        tolerance: f64,
    },
    /// So many times the baseline.
    Scaled {
        by: f64,
        tolerance: f64,
    },
    /// A wrong result that nothing reports: the relative error lies in this range. Nothing at all, which has an error of 1, is none.
    Differs {
        at_least: f64,
        at_most: f64,
    },
    /// A result of which this share or more is not there; it may be zero.
    Missing {
        at_least: f64,
    },
    /// The step fails with a message that contains this text.
    Raises {
        message: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub id: String,
    /// The guides that make it, by number.
    pub from: String,
    /// The claim in our words.
    pub text: String,
    pub judged_on: Vec<Platform>,
    pub rule: PlainRule,
    /// Whether the claim is about the lab itself, and not about what the experiment is about.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub about_the_lab: bool,
}

/// A figure that someone published, and what reproduces it here. It is judged as claims are, and never mixed with them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Published {
    pub id: String,
    pub source: String,
    /// The figure as its source gives it.
    pub figure: String,
    /// Whose figures may be put against it.
    pub judged_on: Vec<Platform>,
    /// What reproduces it (confirms) and what does not (refutes); none where nothing that is measured here can be compared with it.
    pub rule: Option<PlainRule>,
    /// In what the cells here differ from the source's setup; without a rule, why nothing can be compared.
    pub setup: String,
}

/// Cells that the quick profile times at most.
const MOST_TIMED: usize = 10;

/// Effects that are closer to none count as none: as far as two equal levels may lie apart.
pub const NOISE: f64 = 0.02;

/// How far from a published figure a figure is still its reproduction: a tenth of it either way.
pub const REPRODUCES: f64 = 0.10;

/// A picture that answers a question at a glance; one is drawn for each machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlainPlot {
    pub name: String,
    /// What the picture shows, as a sentence for its caption.
    pub caption: String,
    pub of: Select,
    pub metric: String,
    pub kind: PlotKind,
    /// Whether the picture of a simulated GPU stands on the front page, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_front: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlotKind {
    /// The metric over a numeric factor, both axes logarithmic; a line for each combination of the `series` factors.
    Lines { x: String, series: Vec<String> },
    /// The metric relative to its baseline as bars, with intervals where there are any; a cluster for each combination of the
    /// `clusters` factors, a bar for each level of the studied factor.
    Bars {
        clusters: Vec<String>,
        /// The metric itself in place of its ratio: what is left of a tensor, say, has no baseline that a reader would divide by.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        absolute: bool,
    },
    /// In place of a picture a table for each cell, named by the `rows` factors: what it is made of, the largest parts first, at most
    /// `most` of them and one row for the rest. The parts are details of the samples; each column's name is the prefix of its own, and
    /// the first column's figures rank them.
    Ranking { rows: Vec<String>, part: String, columns: Vec<Metric>, most: usize },
    /// Bytes stacked by what they are for, through the phases of a step: a panel for each cell, named by the `panels` factors (with
    /// several, the levels of the first share a row and its scale). The layers, the lowest first, are details of the samples: curves
    /// that are recorded at the points where they change. The metric `boundary` tells at which point each of the `phases` begins, and
    /// after the last where it ends.
    Area { panels: Vec<String>, layers: Vec<Metric>, boundary: String, phases: Vec<String> },
}

impl PlainProtocol {
    pub fn method(&self) -> Method {
        Method { experiment: self.name.clone(), revision: self.revision }
    }

    pub fn grids(&self, profile: Profile) -> impl Iterator<Item = &PlainGrid> {
        self.grids.iter().filter(move |grid| grid.profiles.contains(&profile))
    }

    /// The grid of a profile that plans this cell.
    pub fn grid_of(&self, profile: Profile, cell: &PlainCell) -> Option<&PlainGrid> {
        self.grids(profile).find(|grid| grid.contains(cell))
    }

    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// Whether two passes may count a metric differently. Layers of a picture are metrics that no table has.
    pub fn is_nondeterministic(&self, metric: &str) -> bool {
        let layers = self.plots.iter().flat_map(|plot| match &plot.kind {
            PlotKind::Area { layers, .. } => layers.as_slice(),
            _ => &[],
        });
        self.metrics.iter().chain(layers).any(|known| known.name == metric && known.nondeterministic)
    }

    /// A level as pictures name what others are put against: by its label, or as `k = 4`, and otherwise by its own name.
    pub fn doing(&self, factor: &str, level: &str) -> String {
        let known = self.factor(factor).and_then(|factor| factor.levels.iter().find(|known| known.name == level));
        match known.filter(|known| !known.label.is_empty()) {
            Some(known) => known.label.clone(),
            None if level.parse::<f64>().is_ok() => format!("{factor} = {level}"),
            None => level.to_string(),
        }
    }

    pub fn factor(&self, name: &str) -> Option<&Factor> {
        self.factors.iter().find(|factor| factor.name == name)
    }

    /// The relation that this cell must show to its baseline.
    pub fn check_of(&self, cell: &PlainCell) -> Option<&Relation> {
        self.checks.iter().find(|check| selects(&check.when, cell)).map(|check| &check.expect)
    }

    /// Rules of claims and published figures, each with the id of what it answers.
    fn judged(&self) -> impl Iterator<Item = (&str, &PlainRule)> {
        let claims = self.claims.iter().map(|claim| (claim.id.as_str(), &claim.rule));
        claims.chain(self.published.iter().filter_map(|p| Some((p.id.as_str(), p.rule.as_ref()?))))
    }

    /// What is wrong with the protocol itself: names that nothing defines or that two things have, cells planned twice, levels that cannot be
    /// written, selections of cells and levels that nobody plans, safeguards that guard nothing.
    pub fn mistakes(&self) -> Vec<String> {
        [self.doubled(), self.unplanned(), self.unmeasurable(), self.empty_safeguards()].concat()
    }

    /// Names that two things have.
    fn doubled(&self) -> Vec<String> {
        let doubled = |what: &str, names: Vec<&str>| -> Vec<String> {
            let is_second = |(position, name): &(usize, &&str)| names[..*position].contains(name);
            names.iter().enumerate().filter(is_second).map(|(_, name)| format!("two {what} are called '{name}'")).collect()
        };
        let claims = self.claims.iter().map(|claim| claim.id.as_str());
        [
            doubled("factors", self.factors.iter().map(|factor| factor.name.as_str()).collect()),
            doubled("metrics", self.metrics.iter().map(|metric| metric.name).collect()),
            doubled("claims or published figures", claims.chain(self.published.iter().map(|p| p.id.as_str())).collect()),
            doubled("pictures", self.plots.iter().map(|plot| plot.name.as_str()).collect()),
        ]
        .concat()
    }

    /// Selections of cells and levels that no grid has.
    fn unplanned(&self) -> Vec<String> {
        let has = |factor: &str, level: &str| self.grids.iter().any(|grid| grid.levels_of(factor).iter().any(|own| own == level));
        let mut found = Vec::new();
        let judged = self.judged().flat_map(|(id, rule)| {
            let parts = rule.parts().into_iter();
            parts.flat_map(move |PlainPart { rule, grid, .. }| rule.selections().map(move |select| (id, select, grid)))
        });
        let others = self.plots.iter().map(|plot| (plot.name.as_str(), plot.of.as_str()));
        let others = others.chain(self.checks.iter().map(|check| ("a check", check.when.as_str())));
        let others = others.chain(self.subject.shown.iter().map(|shown| (shown.label.as_str(), shown.of.as_str())));
        for (what, select, of) in judged.chain(others.map(|(what, select)| (what, select, None))) {
            let grids = || self.grids.iter().filter(|grid| of.is_none_or(|name| name == grid.name));
            if !grids().flat_map(PlainGrid::cells).any(|cell| selects(select, &cell)) {
                found.push(format!("{what} is about '{select}', and no such cell is planned"));
            }
            for (factor, levels) in select.split([',', ' ']).filter_map(|term| term.split_once('=')) {
                let unknown = levels.split('|').filter(|level| !has(factor, level));
                found.extend(unknown.map(|level| format!("{what} is about '{factor}={level}', and no grid has that level")));
            }
        }
        found
    }

    /// What cannot be measured or stated as it is planned.
    fn unmeasurable(&self) -> Vec<String> {
        let mut found = Vec::new();
        // On a GPU a pass takes seconds; it is on a CPU that people wait.
        let on_cpu = |grid: &&PlainGrid| grid.only_on.is_empty() || grid.only_on.contains(&Platform::Cpu);
        let timed =
            self.grids(Profile::Quick).filter(|grid| grid.passes.contains(&Pass::Time)).filter(on_cpu).flat_map(PlainGrid::cells);
        // A reference's cells stand beside ours and repeat them.
        let timed = timed.filter(|cell| !cell.is_reference()).count();
        if timed > MOST_TIMED {
            found.push(format!("profile quick times {timed} cells, more than {MOST_TIMED}: nobody waits so long"));
        }
        for grid in &self.grids {
            for axis in &grid.axes {
                if self.factor(&axis.factor).is_none() {
                    found.push(format!("grid '{}' varies '{}', which is no factor", grid.name, axis.factor));
                }
                if axis.levels.iter().any(|l| l.is_empty() || l.contains([' ', '=', '|', ','])) {
                    found.push(format!(
                        "grid '{}', factor '{}': a level is empty or has a reserved character",
                        grid.name, axis.factor
                    ));
                }
            }
            let levels = self.grids.iter().filter(|other| other.name == grid.name).flat_map(|other| other.levels_of(&grid.studied));
            if levels.collect::<std::collections::BTreeSet<_>>().len() < 2 {
                found.push(format!("grid '{}' studies '{}' and has fewer than two levels of it", grid.name, grid.studied));
            }
        }
        for profile in [Profile::Smoke, Profile::Quick, Profile::Full] {
            let mut cells: Vec<PlainCell> = self.grids(profile).flat_map(PlainGrid::cells).collect();
            if cells.is_empty() {
                found.push(format!("profile {profile} plans no cell"));
            }
            let checked = self.grids(profile).filter(|grid| grid.passes.contains(&Pass::Check)).flat_map(PlainGrid::cells);
            found.extend(checked.filter(|c| self.check_of(c).is_none()).map(|c| format!("no check applies to {c}")));
            let planned = cells.len();
            cells.sort();
            cells.dedup();
            if cells.len() < planned {
                found.push(format!("profile {profile} plans a cell twice"));
            }
        }
        let shown = self.subject.shown.iter().flat_map(|shown| shown.memory.iter().chain(&shown.time)).map(String::as_str);
        let named =
            self.judged().flat_map(|(_, rule)| rule.metrics()).chain(self.plots.iter().map(|p| p.metric.as_str())).chain(shown);
        found.extend(named.filter(|m| self.metric(m).is_none()).map(|m| format!("'{m}' is no metric of the protocol")));
        found
    }

    /// What looks like a safeguard and is none: checks that no pass runs, or that let a wrong outcome pass; rules that give what moves no
    /// interval.
    fn empty_safeguards(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (position, check) in self.checks.iter().enumerate() {
            let is_run = |grid: &PlainGrid| {
                let applies = |cell: &PlainCell| self.checks.iter().position(|other| selects(&other.when, cell)) == Some(position);
                // Against itself a baseline shows nothing, unless it is to fail; a check that must name baselines stands beside one that shows.
                let shows = |cell: &PlainCell| {
                    grid.baseline_of(cell) != *cell || matches!(self.check_of(cell), Some(Relation::Raises { .. }))
                };
                let cells = grid.cells();
                grid.passes.contains(&Pass::Check) && cells.iter().any(applies) && cells.iter().any(shows)
            };
            if !self.grids.iter().any(is_run) {
                found.push(format!("no pass runs the check of '{}': drop it, or give cells of it the pass", check.when));
            }
            if let Some(what) = check.expect.lets_pass() {
                found.push(format!("the check of '{}' lets {what} pass, so it checks nothing", check.when));
            }
        }
        for PlainPart { rule, .. } in self.claims.iter().flat_map(|claim| claim.rule.parts()) {
            let metric = rule.metrics()[0];
            if !rule.gives_intervals() && self.metric(metric).is_some_and(|metric| metric.pass == Pass::Time) {
                found.push(format!("'{metric}' moves from run to run, and this kind of rule gives it no interval"));
            }
        }
        found
    }
}

/// The largest relative error that may still be called equal: nothing at all has one of 1, the opposite one of 2.
const LARGEST_TOLERANCE: f64 = 0.5;

impl Relation {
    /// What wrong outcome the relation would let pass; none where it lets none.
    fn lets_pass(&self) -> Option<&'static str> {
        match self {
            // Zero has a relative error of 1.
            Relation::Equal { tolerance } if !(0.0..=LARGEST_TOLERANCE).contains(tolerance) => Some("an outcome that is far off"),
            Relation::Scaled { by, tolerance } if (1.0 - by).abs() / by.abs() <= *tolerance => {
                Some("a copy of the baseline's outcome")
            }
            Relation::Scaled { tolerance, .. } if !(0.0..=LARGEST_TOLERANCE).contains(tolerance) => {
                Some("an outcome that is far off")
            }
            Relation::Differs { at_least, .. } | Relation::Missing { at_least } if *at_least <= 0.0 => {
                Some("a copy of the baseline's outcome")
            }
            Relation::Missing { at_least } if *at_least > 1.0 => Some("no outcome at all"),
            Relation::Raises { message } if message.is_empty() => Some("any error"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Bound, RatioRule};

    fn grid() -> PlainGrid {
        PlainGrid {
            name: "memory".into(),
            profiles: vec![Profile::Smoke, Profile::Quick, Profile::Full],
            studied: "k".into(),
            axes: vec![axis("model", &["mlp", "gpt"]), axis("k", &["1", "4"])],
            passes: vec![Pass::Check],
            only_on: vec![],
        }
    }

    fn protocol() -> PlainProtocol {
        let factor = |name: &str| Factor { name: name.into(), meaning: String::new(), levels: vec![] };
        PlainProtocol {
            factors: vec![factor("model"), factor("k")],
            grids: vec![grid()],
            metrics: vec![PEAK, TIME],
            checks: vec![check("")],
            ..PlainProtocol::default()
        }
    }

    fn check(when: &str) -> Check {
        Check { when: when.into(), expect: Relation::Equal { tolerance: 1e-4 } }
    }

    fn rule(of: &str) -> PlainRule {
        let (confirm, refute) = (Bound::AtMost(0.6), Bound::AtLeast(0.9));
        RatioRule { metric: PEAK.name.into(), of: of.into(), confirm, refute, scope: None }.into()
    }

    fn claim(id: &str, of: &str) -> Claim {
        Claim { id: id.into(), from: String::new(), text: String::new(), judged_on: vec![], rule: rule(of), about_the_lab: false }
    }

    fn published(id: &str) -> Published {
        let [source, figure, setup] = [(); 3].map(|()| String::new());
        Published { id: id.into(), source, figure, judged_on: vec![], rule: None, setup }
    }

    #[test]
    fn cells_and_baselines() {
        let grid = grid();
        let cells = grid.cells();
        assert_eq!(
            cells.iter().map(PlainCell::to_string).collect::<Vec<_>>(),
            ["model=mlp k=1", "model=mlp k=4", "model=gpt k=1", "model=gpt k=4"]
        );
        assert_eq!(grid.baseline_of(&cells[3]), cells[2]);
        assert_eq!(cells[3].without(&["k"]), "model=gpt");
        assert!(grid.contains(&cells[1]) && !grid.contains(&cells[1].with("k", "8")));
        for cell in &cells {
            assert_eq!(PlainCell::parse(&cell.to_string()).as_ref(), Ok(cell));
        }
        assert!(PlainCell::parse("model").is_err() && PlainCell::parse("").is_err() && PlainCell::parse("a=1  b=2").is_err());
    }

    #[test]
    fn conditions_in_words() {
        assert_eq!(conditions("recipe=add reduction=sum|none"), "recipe = add and reduction = sum or none");
        assert_eq!(conditions("k=2|4|8"), "k = 2, 4 or 8");
        assert_eq!(conditions(""), "");
        assert_eq!(conditions("k=2 mode=a, k=4 mode=a"), "mode = a (2 configurations)");
    }

    #[test]
    fn a_name_that_two_things_have_is_a_mistake() {
        assert_eq!(protocol().mistakes(), Vec::<String>::new());
        let twice = |of: &str| format!("two {of}");
        let two_claims = PlainProtocol { claims: vec![claim("less", ""), claim("more", ""), claim("less", "k=4")], ..protocol() };
        assert_eq!(two_claims.mistakes(), [twice("claims or published figures are called 'less'")]);
        let two_published = PlainProtocol { published: vec![published("table"), published("table")], ..protocol() };
        assert_eq!(two_published.mistakes(), [twice("claims or published figures are called 'table'")]);
        let of_both = PlainProtocol { claims: vec![claim("less", "")], published: vec![published("less")], ..protocol() };
        assert_eq!(of_both.mistakes(), [twice("claims or published figures are called 'less'")]);
        let other_unit = Metric { unit: "1", ..PEAK };
        let two_metrics = PlainProtocol { metrics: vec![PEAK, TIME, other_unit], ..protocol() };
        assert_eq!(two_metrics.mistakes(), [twice("metrics are called 'requested_peak'")]);
        let mut two_factors = protocol();
        two_factors.factors.push(two_factors.factors[1].clone());
        assert_eq!(two_factors.mistakes(), [twice("factors are called 'k'")]);
    }

    #[test]
    fn a_selection_of_what_nobody_plans_is_a_mistake() {
        let claimed = |of: &str| PlainProtocol { claims: vec![claim("less", of)], ..protocol() }.mistakes();
        assert_eq!(claimed("model=mlp|gpt k=4"), Vec::<String>::new());
        assert_eq!(claimed("k=4|16"), ["less is about 'k=16', and no grid has that level"]);
        let found = claimed("depth=8");
        assert_eq!(
            found,
            ["less is about 'depth=8', and no such cell is planned", "less is about 'depth=8', and no grid has that level"]
        );
        let published = Published { rule: Some(rule("model=mlp k=16")), ..published("table") };
        assert_eq!(PlainProtocol { published: vec![published], ..protocol() }.mistakes().len(), 2);
        // Each level is planned somewhere, and never both together.
        let other = PlainGrid { axes: vec![axis("model", &["bert"]), axis("k", &["1", "8"])], ..grid() };
        let plot = PlainPlot {
            name: "p".into(),
            caption: String::new(),
            of: "model=bert k=4".into(),
            metric: TIME.name.into(),
            kind: PlotKind::Bars { clusters: vec![], absolute: false },
            on_front: false,
        };
        let apart = PlainProtocol { grids: vec![grid(), other], plots: vec![plot], ..protocol() };
        assert_eq!(apart.mistakes(), ["p is about 'model=bert k=4', and no such cell is planned"]);
    }

    #[test]
    fn checks_that_nothing_runs_and_that_check_nothing_are_mistakes() {
        let uncounted =
            PlainGrid { passes: vec![Pass::Memory], axes: vec![axis("model", &["bert"]), axis("k", &["1", "4"])], ..grid() };
        let found = |checks: Vec<Check>| PlainProtocol { grids: vec![grid(), uncounted.clone()], checks, ..protocol() }.mistakes();
        assert_eq!(found(vec![check("")]), Vec::<String>::new());
        assert_eq!(
            found(vec![check("k=1"), check("")]),
            Vec::<String>::new(),
            "one that names baselines stands beside one that shows"
        );
        for unrun in [vec![check("model=bert"), check("")], vec![check(""), check("k=4")]] {
            let found = found(unrun);
            assert!(found.len() == 1 && found[0].starts_with("no pass runs the check"), "{found:?}");
        }
        assert!(found(vec![]).iter().all(|mistake| mistake.starts_with("no check applies to ")) && found(vec![]).len() == 12);
        use Relation::{Differs, Equal, Missing, Raises, Scaled};
        for empty in [
            Equal { tolerance: 0.6 },
            Equal { tolerance: f64::NAN },
            Scaled { by: 1.0, tolerance: 1e-4 },
            Scaled { by: 4.0, tolerance: 0.8 },
            Differs { at_least: 0.0, at_most: 2.0 },
            Missing { at_least: 0.0 },
            Raises { message: String::new() },
        ] {
            assert!(empty.lets_pass().is_some(), "{empty:?}");
        }
        for sound in [
            Equal { tolerance: 0.0 },
            Scaled { by: 4.0, tolerance: 1e-4 },
            Differs { at_least: 1e-3, at_most: 2.0 },
            Missing { at_least: 0.25 },
            Raises { message: "CUDA".into() },
        ] {
            assert_eq!(sound.lets_pass(), None, "{sound:?}");
        }
    }
}
