//! Which cells are run, and in which order.

use super::options::{CellShard, Options};
use super::summary::Stage;
use anyhow::{Result, bail};
use base::order::{distinct, grouped};
use rand::{SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use record::protocol::{Claim, Pass, PlainCell, PlainGrid, PlainProtocol, Platform, Profile};
use record::rules::{PlainPart, PlainRule};
use std::collections::BTreeSet;

/// A cell, and where it belongs.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned<'p> {
    pub cell: PlainCell,
    pub baseline: PlainCell,
    pub grid: &'p PlainGrid,
    /// Whether its grid's studied level is counted here a second time, to see that counting it again gives the same: once for each level.
    pub twice: bool,
    /// Whether a verdict on a guide's claim needs it here.
    pub guided: bool,
}

/// The cells of a run, those that are worth most first.
#[derive(Debug, Clone)]
pub struct Plan<'p> {
    pub cells: Vec<Planned<'p>>,
}

impl<'p> Plan<'p> {
    /// Plans a profile's cells, less what the user left out. A cell brings its baseline along: without it, it answers nothing.
    ///
    /// # Errors
    /// Nothing is left to run.
    pub fn new(protocol: &'p PlainProtocol, profile: Profile, options: &Options) -> Result<Plan<'p>> {
        let planned = |grid: &'p PlainGrid, cell: PlainCell| Planned {
            baseline: grid.baseline_of(&cell),
            cell,
            grid,
            twice: false,
            guided: false,
        };
        let of_grid = |grid: &'p PlainGrid| grid.cells().into_iter().map(move |cell| planned(grid, cell));
        let mut all: Vec<Planned> = protocol.grids(profile).flat_map(of_grid).collect();
        all.sort_by_cached_key(|planned| distance_from_centre(planned.grid, &planned.cell));
        let mut all = most_telling_first(protocol, options.device().platform(), all);
        let mut levels = BTreeSet::new();
        for planned in &mut all {
            let studied = planned.cell.get(&planned.grid.studied).unwrap_or_default();
            planned.twice = levels.insert((planned.grid.name.clone(), studied.to_string(), planned.cell.is_reference()));
        }
        let wanted = |p: &&Planned| options.filter.as_ref().is_none_or(|filter| filter.is_match(&p.cell.to_string()));
        // In the first look of a run of all, nothing but what guides claim, where they claim anything.
        let is_first = options.within.as_ref().is_some_and(|within| within.look == Stage::Guided);
        let of_guides = is_first && all.iter().filter(wanted).any(|p| p.guided);
        all.retain(|p| !of_guides || p.guided);
        let baselines: Vec<PlainCell> = all.iter().filter(wanted).map(|p| p.baseline.clone()).collect();
        if baselines.is_empty() {
            let filter = options.filter.as_ref().map_or("", |f| f.as_str());
            bail!("no cell of {profile} matches '{filter}'; --list without --filter shows them all");
        }
        let mut cells: Vec<Planned> = all.iter().filter(|p| wanted(p) || baselines.contains(&p.cell)).cloned().collect();
        if let Some(CellShard { index, count }) = options.shard {
            let groups: BTreeSet<PlainCell> = cells.iter().map(|p| p.baseline.clone()).collect();
            // Cells that are compared with one another stay together.
            let share: Vec<PlainCell> = groups.into_iter().skip(index - 1).step_by(count).collect();
            cells.retain(|p| share.contains(&p.baseline));
            if cells.is_empty() {
                bail!("part {index} of {count} has no cells: there are fewer comparisons than parts");
            }
        }
        Ok(Plan { cells })
    }

    /// Cells that are timed side by side, a group for each comparison, the group that is worth most first.
    pub fn timed_groups(&self) -> Vec<Vec<Planned<'p>>> {
        let timed = self.cells.iter().filter(|p| p.grid.passes.contains(&Pass::Time));
        grouped(timed.map(|p| (&p.baseline, p.clone()))).into_iter().map(|(_, group)| group).collect()
    }
}

/// Puts cells into an order in which a run that ends early has answered most: what answers each part of each claim first, in a middle
/// place, then what answers each once more, and last what no claim is about. The cells come with the middle ones first.
fn most_telling_first<'p>(protocol: &PlainProtocol, here: Platform, cells: Vec<Planned<'p>>) -> Vec<Planned<'p>> {
    fn parts(rule: &PlainRule) -> Vec<(PlainPart<'_>, bool)> {
        [false, true].into_iter().flat_map(|references| rule.parts().into_iter().map(move |part| (part, references))).collect()
    }
    // A claim is judged by the experiment's own cells here, or by those of PyTorch in Python.
    let decides = |claim: &Claim, references: bool| claim.judged_on.contains(if references { &Platform::Python } else { &here });
    // All that guides claim comes before what the lab claims by itself.
    let of_guides = |claim: &&Claim| claim.from.starts_with(|first: char| first.is_ascii_digit());
    let (guided, own): (Vec<&Claim>, Vec<&Claim>) = protocol.claims.iter().partition(of_guides);
    let guided = guided.into_iter().flat_map(|claim| parts(&claim.rule).into_iter().map(move |part| (claim, part)));
    let (deciding, informing): (Vec<_>, Vec<_>) = guided.partition(|(claim, (_, side))| decides(claim, *side));
    let published = protocol.published.iter().filter_map(|p| p.rule.as_ref());
    let own = own.iter().map(|claim| &claim.rule).chain(published).flat_map(parts);
    let parts_of = |some: Vec<(&Claim, _)>| some.into_iter().map(|(_, part)| part).collect::<Vec<_>>();
    let [deciding, informing, own] = [parts_of(deciding), parts_of(informing), own.collect()].map(|parts| {
        let of_side = |references: bool| cells.iter().filter(move |p| p.cell.is_reference() == references);
        let questions: Vec<Vec<Vec<&Planned>>> = parts.into_iter().map(|(part, side)| answers(part, of_side(side))).collect();
        let most = questions.iter().map(Vec::len).max().unwrap_or(0);
        let turn = |turn: usize| questions.iter().filter_map(move |answers| answers.get(turn)).flatten().copied();
        (0..most).flat_map(turn).collect::<Vec<_>>()
    });
    // A comparison needs its baseline.
    let with_baselines = |some: Vec<&'_ Planned<'p>>| -> Vec<Planned<'p>> {
        let both = some.into_iter().flat_map(|one| cells.iter().filter(move |p| p.cell == one.baseline).chain([one]));
        distinct(both).into_iter().cloned().collect()
    };
    let needed = with_baselines(deciding);
    let others = with_baselines(informing.into_iter().chain(own).collect());
    let all = distinct(needed.iter().chain(&others).chain(&cells)).into_iter().cloned();
    all.map(|p| Planned { guided: needed.contains(&p), ..p }).collect()
}

/// The cells that a part of a claim is about, in the least sets that give a figure.
fn answers<'a, 'p>(part: PlainPart, cells: impl Iterator<Item = &'a Planned<'p>>) -> Vec<Vec<&'a Planned<'p>>>
where
    'p: 'a,
{
    let rule = part.rule;
    // Against itself a baseline says nothing.
    let says_nothing = |p: &Planned| rule.compares_with_baseline() && p.cell == p.baseline;
    let telling = cells.filter(|p| part.is_about(p.grid) && rule.reads(&p.cell) && !says_nothing(p));
    grouped(telling.map(|p| (rule.group(&p.cell, &p.baseline), p))).into_iter().map(|(_, cells)| cells).collect()
}

/// How far a cell is from its experiment's centre: baselines and middle levels answer most, so they run first.
fn distance_from_centre(grid: &PlainGrid, cell: &PlainCell) -> usize {
    let steps = cell.levels().iter().zip(&grid.axes).map(|((_, level), axis)| {
        let position = axis.levels.iter().position(|l| l == level).unwrap_or(0);
        let middle = axis.levels.len() / 2;
        if axis.factor == grid.studied && position == 0 { 0 } else { position.abs_diff(middle) }
    });
    steps.sum()
}

/// The order of one round: groups in an order of their own, and the levels of each directly after one another.
pub fn round_order<'p>(groups: &[Vec<Planned<'p>>], round: u32, seed: u32) -> Vec<Planned<'p>> {
    let mut random = ChaCha8Rng::seed_from_u64(u64::from(seed) << 32 | u64::from(round));
    let mut order: Vec<Vec<Planned>> = groups.to_vec();
    order.shuffle(&mut random);
    for group in &mut order {
        group.shuffle(&mut random);
    }
    order.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use record::protocol::{Claim, axis};
    use record::rules::{Bound, ExponentRule, RatioRule};

    fn protocol() -> PlainProtocol {
        PlainProtocol {
            name: "x".into(),
            grids: vec![PlainGrid {
                name: "g".into(),
                profiles: vec![Profile::Quick],
                studied: "k".into(),
                axes: vec![axis("depth", &["8", "16", "32"]), axis("k", &["1", "2", "4"])],
                passes: vec![Pass::Memory, Pass::Time],
                only_on: vec![],
            }],
            ..PlainProtocol::default()
        }
    }

    fn plan<'p>(protocol: &'p PlainProtocol, args: &[&str]) -> Result<Plan<'p>> {
        Plan::new(protocol, Profile::Quick, &Options::try_parse_from([&["x"], args].concat()).unwrap())
    }

    fn texts(cells: &[Planned]) -> Vec<String> {
        cells.iter().map(|p| p.cell.to_string()).collect()
    }

    #[test]
    fn baselines_and_middle_levels_come_first() {
        let order = texts(&plan(&protocol(), &[]).unwrap().cells);
        assert_eq!(order.len(), 9);
        assert_eq!(&order[..2], ["depth=16 k=1", "depth=16 k=2"]);
        assert!(order[8] != "depth=8 k=1");
    }

    #[test]
    fn guided_stage_takes_deciding_cells_and_baselines() {
        let (metric, confirm, refute) = ("m".to_string(), Bound::AtMost(0.6), Bound::AtLeast(0.9));
        let rule: PlainRule = RatioRule { metric, of: "k=4".into(), confirm, refute, scope: None }.into();
        let guided = Claim { from: "2.1".into(), judged_on: vec![Platform::Cpu], ..claim(rule.clone()) };
        let of_gpus = Claim { judged_on: vec![Platform::Gpu], ..guided.clone() };
        let cells = |claims: Vec<Claim>, look: &str| {
            let within = format!(r#"{{"summary":"","share":{{"before":0,"own":1,"after":0}},"look":"{look}"}}"#);
            let claimed = PlainProtocol { claims, ..protocol() };
            texts(&plan(&claimed, &["--device", "cpu", "--within", &within]).unwrap().cells)
        };
        let own = claim(rule);
        let first = cells(vec![own.clone(), guided.clone()], "Guided");
        assert!(first.len() == 6 && !first.iter().any(|cell| cell.ends_with("k=2")), "{first:?}");
        assert_eq!(cells(vec![own.clone(), guided], "First").len(), 9);
        assert_eq!(cells(vec![own, of_gpus], "Guided").len(), 9, "what is judged elsewhere decides nothing here: all of them");
    }

    #[test]
    fn each_claim_gets_an_answer_before_any_gets_a_second() {
        let (metric, confirm, refute) = (|| "m".to_string(), Bound::AtMost(0.6), Bound::AtLeast(0.9));
        let ratio = RatioRule { metric: metric(), of: "k=4".into(), confirm, refute, scope: None }.into();
        let growth = ExponentRule { metric: metric(), along: "depth".into(), of: "k=2".into(), confirm, refute }.into();
        let claimed = PlainProtocol { claims: [ratio, growth].map(claim).into(), ..protocol() };
        let plan = Plan::new(&claimed, Profile::Quick, &Options::try_parse_from(["x"]).unwrap()).unwrap();
        let order = texts(&plan.cells);
        assert_eq!(&order[..2], ["depth=16 k=1", "depth=16 k=4"], "the ratio in the middle");
        assert!(order[2..7].iter().filter(|cell| cell.ends_with("k=2")).count() == 3, "then all of the growth: {order:?}");
        assert!(order[7..].iter().filter(|cell| cell.ends_with("k=4")).count() == 2, "then the ratio elsewhere: {order:?}");
    }

    fn claim(rule: PlainRule) -> Claim {
        let [id, from, text] = [(); 3].map(|()| String::new());
        Claim { id, from, text, judged_on: vec![], rule, about_the_lab: false }
    }

    #[test]
    fn a_filtered_cell_brings_its_baseline() {
        assert_eq!(texts(&plan(&protocol(), &["--filter", "depth=32 k=4"]).unwrap().cells), ["depth=32 k=1", "depth=32 k=4"]);
        let error = plan(&protocol(), &["--filter", "k=77"]).unwrap_err().to_string();
        assert!(error.contains("k=77") && error.contains("--list"), "{error}");
    }

    #[test]
    fn levels_of_a_comparison_stay_side_by_side_in_changing_order() {
        let protocol = protocol();
        let groups = plan(&protocol, &[]).unwrap().timed_groups();
        assert_eq!(groups.len(), 3);
        let orders: Vec<Vec<String>> = (1..=6).map(|round| texts(&round_order(&groups, round, 1))).collect();
        for order in &orders {
            for triple in order.chunks(3) {
                let depth = |text: &String| text.split(' ').next().map(str::to_string);
                assert!(triple.iter().all(|t| depth(t) == depth(&triple[0])), "{order:?}");
            }
        }
        assert!(orders.iter().any(|order| order != &orders[0]));
        assert_eq!(orders[2], texts(&round_order(&groups, 3, 1)));
    }
}
