//! Writes a set of cells down as a selection that a protocol holds.

use base::order::distinct;
use record::protocol::{PlainCell, selects};
use std::collections::BTreeSet;

/// How a set of cells is written down.
pub type SelectCells<'a> = &'a dyn Fn(&[PlainCell]) -> String;

/// The selection of no cell at all.
pub const NO_CELL: &str = "none";

/// The shortest selection that is these cells of all and no others: a conjunction of levels where there is one, else one for each cell.
pub fn written(cells: &[PlainCell], all: &[PlainCell]) -> String {
    // A cell may stand in several profiles.
    let cells_once: BTreeSet<&PlainCell> = cells.iter().collect();
    let is = |select: &str| all.iter().filter(|cell| selects(select, cell)).collect::<BTreeSet<_>>() == cells_once;
    let Some(first) = cells.first() else { return NO_CELL.to_string() };
    // The factors that all of them have, with the levels that they have of each.
    let terms: Vec<(bool, String)> = first
        .levels()
        .iter()
        .filter(|(factor, _)| cells.iter().all(|cell| cell.get(factor).is_some()))
        .map(|(factor, _)| {
            let levels = distinct(cells.iter().filter_map(|cell| cell.get(factor)));
            let kin = all.iter().filter(|cell| cell.levels().iter().map(|(f, _)| f).eq(first.levels().iter().map(|(f, _)| f)));
            let restricts = kin.filter_map(|cell| cell.get(factor)).any(|level| !levels.contains(&level));
            (restricts, format!("{factor}={}", levels.join("|")))
        })
        .collect();
    let join = |chosen: &[bool]| {
        let texts = terms.iter().zip(chosen).filter(|(_, chosen)| **chosen).map(|((_, text), _)| text.as_str());
        texts.collect::<Vec<_>>().join(" ")
    };
    // What restricts; where cells of another kind fit, too, with one more factor that those lack; and then without what is not needed.
    let mut chosen: Vec<bool> = terms.iter().map(|(restricts, _)| *restricts).collect();
    let but_for = |chosen: &[bool], position: usize| {
        let mut other = chosen.to_vec();
        other[position] = !other[position];
        other
    };
    if !is(&join(&chosen)) {
        let more = (0..chosen.len()).rev().filter(|position| !chosen[*position]).map(|position| but_for(&chosen, position));
        let one_more = more.filter(|more| is(&join(more))).min_by_key(|more| join(more).len());
        chosen = one_more.unwrap_or_else(|| vec![true; terms.len()]);
    }
    if !is(&join(&chosen)) {
        return cells.iter().map(PlainCell::to_string).collect::<Vec<_>>().join(", ");
    }
    for position in 0..chosen.len() {
        let fewer = but_for(&chosen, position);
        if chosen[position] && is(&join(&fewer)) {
            chosen = fewer;
        }
    }
    join(&chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_the_cells_and_no_others() {
        let all: Vec<PlainCell> =
            ["m=a k=1", "m=a k=4", "m=b k=1", "m=b k=4", "op=x k=4", "op=x k=8"].map(|c| PlainCell::parse(c).unwrap()).to_vec();
        let of = |texts: &[&str]| {
            let cells: Vec<PlainCell> = texts.iter().map(|text| PlainCell::parse(text).unwrap()).collect();
            let select = written(&cells, &all);
            let selected: Vec<PlainCell> = all.iter().filter(|cell| selects(&select, cell)).cloned().collect();
            assert_eq!(selected, cells, "{select}");
            select
        };
        assert_eq!(of(&["m=a k=1", "m=a k=4", "m=b k=1", "m=b k=4", "op=x k=4", "op=x k=8"]), "");
        assert_eq!(of(&["m=a k=4", "m=b k=4"]), "m=a|b k=4", "another kind has k = 4, too");
        assert_eq!(of(&["m=a k=1", "m=a k=4"]), "m=a");
        assert_eq!(of(&["m=a k=1", "m=b k=1"]), "k=1");
        assert_eq!(of(&["m=a k=1", "m=b k=4"]), "m=a k=1, m=b k=4");
        let twice = ["m=a k=1", "m=a k=4", "m=a k=1"].map(|c| PlainCell::parse(c).unwrap());
        assert_eq!(written(&twice, &all), "m=a", "one cell in two profiles is one cell");
        assert_eq!(of(&[]), "none");
    }
}
