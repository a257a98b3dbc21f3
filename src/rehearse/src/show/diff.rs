//! `vramlab diff A B`: where the bytes went between two peaks, line by line. The rows sum to the difference.

use crate::answer::BlockGroup;
use crate::capture::plain::on_one_line;
use crate::capture::process::INSTALLED;
use crate::explore::ci::FigureRow;
use crate::explore::versions::Figure;
use crate::explore::versions::bisect::FirstBad;
use crate::words::bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What became of a line's blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Blocks where there were none.
    New,
    Gone,
    /// The same blocks, each of more or fewer bytes.
    Larger,
    Smaller,
    MoreBlocks,
    FewerBlocks,
    /// Made before as well, and freed then before the peak.
    LivesLonger,
    FreedEarlier,
    /// An operator that copies, at a line that made no block of its own.
    CopyForView,
    /// Scratch memory of a library, as cuBLAS's.
    Workspace,
    /// What the allocator gives beyond what was asked for.
    #[default]
    Rounding,
}

impl Change {
    /// As JSON names it, in words.
    fn words(&self) -> String {
        serde_json::to_value(self).ok().and_then(|name| Some(name.as_str()?.replace('_', " "))).unwrap_or_default()
    }
}

/// A line of the script, or of a library that is not PyTorch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct DiffRow {
    /// Of what was asked for, after less before.
    pub bytes: i64,
    pub change: Change,
    /// Where it is now, or was where it is gone.
    pub line: String,
    pub function: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    pub module: String,
    pub category: String,
    pub operator: String,
    /// Blocks and their bytes, before and after.
    pub before: (usize, i64),
    pub after: (usize, i64),
    /// Where the blocks were freed that live longer, or are freed now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed: Option<String>,
}

/// What `vramlab bisect` writes: the first that grew, and how it differs from the last that had not.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Bisected<'a> {
    #[serde(flatten)]
    pub found: &'a FirstBad,
    pub difference: PeakDiff,
}

/// The difference of what two peaks hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct PeakDiff {
    /// Allocated bytes at the peaks.
    pub before: i64,
    pub after: i64,
    /// All four that two answers are compared by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<FigureRow>,
    /// The largest change first, the allocator's rounding among them: they sum to the difference.
    pub rows: Vec<DiffRow>,
    pub categories: Vec<(String, i64)>,
    /// Of two servers what the KV cache has more or less, then what the engine takes off before it; and bytes of a token.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<(String, i64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<(i64, i64)>,
    pub modules: Vec<(String, i64)>,
    pub operators: Vec<(String, i64)>,
}

/// Names of files without the folder that a package or a clone lies in, which is another one on another machine.
pub fn without_folder(line: &str) -> &str {
    // A kept answer has them without what lies before.
    let package = INSTALLED.iter().find_map(|folder| line.split_once(folder.trim_start_matches('/')));
    package.map_or_else(|| line.rsplit('/').next().unwrap_or(line), |(_, package)| package)
}

/// A line is known by its file, its function and what is written there: its number changes with every line above it.
type Key = (String, String, String);

fn by_line(groups: &[BlockGroup]) -> BTreeMap<Key, Vec<&BlockGroup>> {
    let mut lines: BTreeMap<Key, Vec<&BlockGroup>> = BTreeMap::new();
    for group in groups {
        let name = without_folder(&group.line);
        let (file, number) = name.rsplit_once(':').unwrap_or((name, ""));
        let written = group.source.clone().unwrap_or_else(|| number.to_string());
        lines.entry((file.to_string(), group.function.clone(), written)).or_default().push(group);
    }
    lines
}

/// What a group's blocks at the peak asked for.
pub fn requested(group: &BlockGroup) -> i64 {
    group.bytes * i64::try_from(group.blocks).unwrap_or(i64::MAX)
}

fn sum_of(groups: &[&BlockGroup]) -> (usize, i64) {
    groups.iter().fold((0, 0), |sum, group| (sum.0 + group.blocks, sum.1 + requested(group)))
}

/// Compares what two peaks hold.
pub fn diff(before: &[BlockGroup], after: &[BlockGroup]) -> PeakDiff {
    let (old, mut new) = (by_line(before), by_line(after));
    let mut pairs: Vec<(Vec<&BlockGroup>, Vec<&BlockGroup>)> = Vec::new();
    let mut rewritten: Vec<(Key, Vec<&BlockGroup>)> = Vec::new();
    for (key, groups) in old {
        match new.remove(&key) {
            Some(now) => pairs.push((groups, now)),
            None => rewritten.push((key, groups)),
        }
    }
    for (key, groups) in rewritten {
        // The same text in another file; else a line that was rewritten, at its number in the same function.
        let at = |groups: &[&BlockGroup]| groups.first().map(|group| without_folder(&group.line).to_string());
        let moved = new.keys().find(|other| (&other.1, &other.2) == (&key.1, &key.2));
        let rewritten = || new.iter().find(|(other, now)| (&other.0, &other.1) == (&key.0, &key.1) && at(now) == at(&groups));
        let same = moved.or_else(|| rewritten().map(|(other, _)| other)).cloned();
        let now = same.and_then(|other| new.remove(&other)).unwrap_or_default();
        pairs.push((groups, now));
    }
    pairs.extend(new.into_values().map(|now| (Vec::new(), now)));
    let mut rows: Vec<DiffRow> = without_moved(&pairs)
        .iter()
        .filter_map(|(was, now)| row(&was.iter().collect::<Vec<_>>(), &now.iter().collect::<Vec<_>>()))
        .collect();
    let allocated = |groups: &[BlockGroup]| groups.iter().map(|group| group.allocated).sum::<i64>();
    let rounding = |groups: &[BlockGroup]| groups.iter().map(|group| group.allocated - requested(group)).sum::<i64>();
    let (was, is) = (rounding(before), rounding(after));
    if was != is {
        let line = "the allocator".to_string();
        rows.push(DiffRow { bytes: is - was, line, before: (0, was), after: (0, is), ..DiffRow::default() });
    }
    rows.sort_by(|a, b| b.bytes.abs().cmp(&a.bytes.abs()).then_with(|| a.line.cmp(&b.line)));
    let changes = |name: fn(&BlockGroup) -> &str| {
        let mut of: BTreeMap<&str, i64> = BTreeMap::new();
        before.iter().for_each(|group| *of.entry(name(group)).or_default() -= group.allocated);
        after.iter().for_each(|group| *of.entry(name(group)).or_default() += group.allocated);
        let mut of: Vec<(String, i64)> =
            of.into_iter().filter(|(_, bytes)| *bytes != 0).map(|(name, b)| (name.to_string(), b)).collect();
        of.sort_by_key(|(_, bytes)| -bytes.abs());
        of
    };
    PeakDiff {
        before: allocated(before),
        after: allocated(after),
        figures: Vec::new(),
        parts: Vec::new(),
        token: None,
        rows,
        categories: changes(|group| &group.category),
        modules: changes(|group| &group.module),
        operators: changes(|group| &group.operator),
    }
}

/// Groups that blocks may move between, from line to line of a function, without a change that anybody sees.
type Kind<'a> = (i64, &'a str, &'a str, &'a str, &'a str);

fn kind(group: &BlockGroup) -> Kind<'_> {
    (group.bytes, &group.operator, &group.module, &group.category, &group.function)
}

/// Takes away blocks that stand at another line now and are otherwise the same, as after a formatter: such rows would cancel.
fn without_moved(pairs: &[(Vec<&BlockGroup>, Vec<&BlockGroup>)]) -> Vec<(Vec<BlockGroup>, Vec<BlockGroup>)> {
    let own = |groups: &[&BlockGroup]| groups.iter().map(|group| (*group).clone()).collect::<Vec<BlockGroup>>();
    let mut left: Vec<(Vec<BlockGroup>, Vec<BlockGroup>)> = pairs.iter().map(|(was, now)| (own(was), own(now))).collect();
    // By kind the lines that have more of it than before, and those that have fewer.
    let mut changed: BTreeMap<Kind, [Vec<(usize, usize)>; 2]> = BTreeMap::new();
    for (at, (was, now)) in pairs.iter().enumerate() {
        let mut of: BTreeMap<Kind, [usize; 2]> = BTreeMap::new();
        was.iter().for_each(|group| of.entry(kind(group)).or_default()[0] += group.blocks);
        now.iter().for_each(|group| of.entry(kind(group)).or_default()[1] += group.blocks);
        for (kind, [was, now]) in of.into_iter().filter(|(_, [was, now])| was != now) {
            changed.entry(kind).or_default()[usize::from(now > was)].push((at, now.abs_diff(was)));
        }
    }
    for (kind, [gone, came]) in changed {
        let most = [&gone, &came].map(|places| places.iter().map(|(_, blocks)| blocks).sum::<usize>());
        for (side, places) in [gone, came].into_iter().enumerate() {
            let mut moved = most[0].min(most[1]);
            for (at, blocks) in places {
                let groups = if side == 0 { &mut left[at].0 } else { &mut left[at].1 };
                let mut here = blocks.min(moved);
                moved -= here;
                for group in groups.iter_mut().filter(|group| self::kind(group) == kind) {
                    let taken = group.blocks.min(here);
                    group.blocks -= taken;
                    here -= taken;
                }
            }
        }
    }
    left
}

fn row(was: &[&BlockGroup], now: &[&BlockGroup]) -> Option<DiffRow> {
    let (before, after) = (sum_of(was), sum_of(now));
    if before.1 == after.1 {
        return None;
    }
    // What changed most the way that the line did speaks for it: a category, and of that an operator.
    let grows = after.1 > before.1;
    let most = |all: &[&BlockGroup], name: fn(&BlockGroup) -> &str| -> Option<String> {
        let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
        for (sign, groups) in [(-1, was), (1, now)] {
            let of = groups.iter().filter(|group| all.iter().any(|one| std::ptr::eq(*one, **group)));
            of.for_each(|group| *sums.entry(name(group)).or_default() += sign * requested(group));
        }
        sums.into_iter().max_by_key(|(_, bytes)| if grows { *bytes } else { -bytes }).map(|(name, _)| name.to_string())
    };
    let all = [was, now].concat();
    let category = most(&all, |group| &group.category)?;
    let of_category: Vec<&BlockGroup> = all.into_iter().filter(|group| group.category == category).collect();
    let operator = most(&of_category, |group| &group.operator)?;
    let group = of_category.into_iter().filter(|group| group.operator == operator).max_by_key(|group| requested(group))?;
    let (change, freed) = change(was, now, before, after);
    let place = now.first().or(was.first())?;
    Some(DiffRow {
        bytes: after.1 - before.1,
        change,
        line: place.line.clone(),
        function: place.function.clone(),
        source: place.source.clone(),
        module: group.module.clone(),
        category,
        operator,
        before,
        after,
        freed,
    })
}

fn change(was: &[&BlockGroup], now: &[&BlockGroup], before: (usize, i64), after: (usize, i64)) -> (Change, Option<String>) {
    let all = |groups: &[&BlockGroup]| groups.iter().filter(|group| group.blocks > 0).all(|group| group.category == "workspaces");
    let made = |groups: &[&BlockGroup]| groups.iter().map(|group| group.made).sum::<usize>();
    let freed = |groups: &[&BlockGroup]| groups.iter().find_map(|group| group.freed.clone());
    let copies = ["aten::clone", "aten::contiguous", "aten::copy_", "aten::_to_copy", "aten::to"];
    let is_copy = now.iter().filter(|group| group.blocks > 0).all(|group| copies.contains(&group.operator.as_str()));
    if all(was) && all(now) {
        return (Change::Workspace, None);
    }
    let longer = after.1 > before.1 && made(was) >= after.0 && before.0 < after.0 && freed(was).is_some();
    let earlier = after.1 < before.1 && made(now) >= before.0 && after.0 < before.0 && freed(now).is_some();
    let change = match (before.0, after.0) {
        _ if longer => return (Change::LivesLonger, freed(was)),
        _ if earlier => return (Change::FreedEarlier, freed(now)),
        (0, _) if is_copy && made(was) == 0 => Change::CopyForView,
        (0, _) => Change::New,
        (_, 0) => Change::Gone,
        // The word has the sign of the bytes: of more blocks that are smaller together the sizes speak.
        (old, new) if new > old && after.1 > before.1 => Change::MoreBlocks,
        (old, new) if new < old && after.1 < before.1 => Change::FewerBlocks,
        _ if after.1 > before.1 => Change::Larger,
        _ => Change::Smaller,
    };
    (change, None)
}

pub fn signed(change: i64) -> String {
    format!("{}{}", if change < 0 { "-" } else { "+" }, bytes(change))
}

fn per_cent(before: i64, after: i64) -> String {
    if before <= 0 { String::new() } else { format!(" ({:+.1} %)", (after - before) as f64 / before as f64 * 100.0) }
}

/// Rows that are printed; the others are summed up.
const LISTED: usize = 12;

impl PeakDiff {
    /// The line that grew most, and by how much.
    pub fn most(&self) -> Option<(String, i64)> {
        let row = self.rows.iter().filter(|row| row.bytes > 0).max_by_key(|row| row.bytes)?;
        Some((row.line.clone(), row.bytes))
    }

    /// Of two servers; of others nothing.
    fn served(&self) -> Option<String> {
        let [(cache, change), others @ ..] = &self.parts[..] else { return None };
        let others: Vec<String> = others.iter().map(|(what, bytes)| format!("{} {what}", signed(*bytes))).collect();
        let others = if others.is_empty() { String::new() } else { format!(": {}", others.join(", ")) };
        let token = self.token.filter(|(was, is)| was != is);
        let token = token
            .map_or(String::new(), |(was, is)| format!("    a token takes {} -> {}{}\n", bytes(was), bytes(is), per_cent(was, is)));
        Some(format!("    {cache} {}{others}\n{token}", signed(*change)))
    }

    /// As text, indented by two.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let (before, after) = (bytes(self.before), bytes(self.after));
        let change = self.after - self.before;
        let others = self.figures.iter().filter(|row| row.figure != Figure::Allocated && row.differs());
        let others: String = others.map(|row| row.line() + "\n").collect();
        if self.rows.is_empty() {
            return format!("  Both peaks hold the same: {before}, line by line.\n{others}");
        }
        let _ = writeln!(text, "  {before} -> {after}: {}{}\n{others}", signed(change), per_cent(self.before, self.after));
        text += &self.served().map_or(String::new(), |served| format!("  server\n{served}\n"));
        // What the bytes are for is first: where the peak moved, lines are of two moments.
        let tables = [("by category", &self.categories), ("by module", &self.modules), ("by operator", &self.operators)];
        for (at, (title, rows)) in tables.into_iter().enumerate() {
            let _ = writeln!(text, "{}  {title}", if at == 0 { "" } else { "\n" });
            for (name, bytes) in rows.iter().take(6) {
                let _ =
                    writeln!(text, "    {:>11}  {}", signed(*bytes), on_one_line(if name.is_empty() { "elsewhere" } else { name }));
            }
            if at == 0 {
                text += &format!("\n  by line\n{}", self.listed(LISTED));
            }
        }
        text
    }

    /// What changed most by category, in a line, and so many rows; of servers, whose pools fill the card, what is taken off them.
    pub fn brief(&self, most: usize) -> String {
        if let Some(served) = self.served() {
            return served;
        }
        let changed = self.categories.iter().take(4).map(|(name, bytes)| format!("{} {name}", signed(*bytes)));
        format!("    {}\n{}", changed.collect::<Vec<String>>().join(", "), self.listed(most))
    }

    /// The rows, but so many at most; and their sum.
    pub fn listed(&self, most: usize) -> String {
        let (mut text, change) = (String::new(), self.after - self.before);
        let width = self.rows.iter().take(most).map(|row| without_folder(&row.line).len()).max().unwrap_or(0);
        for row in self.rows.iter().take(most) {
            let source = on_one_line(row.source.as_deref().unwrap_or(&row.function));
            let (bytes, change, line) = (signed(row.bytes), row.change.words(), on_one_line(without_folder(&row.line)));
            let told = format!("    {bytes:>11}  {change:<13}  {line:<width$}  {source:.72}");
            let _ = writeln!(text, "{}", told.trim_end());
            let about = row.about();
            if !about.is_empty() {
                let _ = writeln!(text, "    {:>11}  {:<13}  {}", "", "", on_one_line(&about));
            }
        }
        let others: i64 = self.rows.iter().skip(most).map(|row| row.bytes).sum();
        if self.rows.len() > most {
            let _ = writeln!(text, "    {:>11}  {} further lines", signed(others), self.rows.len() - most);
        }
        let _ = writeln!(text, "    {:>11}  sum", signed(change));
        text
    }
}

impl DiffRow {
    /// What the blocks are, and how they changed.
    fn about(&self) -> String {
        if self.change == Change::Rounding {
            return String::new();
        }
        let blocks = |(count, size): (usize, i64)| match count {
            0 => "none".to_string(),
            1 => format!("1 block of {}", bytes(size)),
            many => format!("{many} blocks of {} together", bytes(size)),
        };
        let mut parts = vec![format!("{} -> {}", blocks(self.before), blocks(self.after)), self.category.clone()];
        parts.extend([&self.operator, &self.module].into_iter().filter(|part| !part.is_empty() && *part != "elsewhere").cloned());
        if let Some(freed) = &self.freed {
            let when = if self.change == Change::LivesLonger { "freed before in" } else { "freed now in" };
            let (phase, line) = freed.split_once(", ").unwrap_or((freed, ""));
            let line = if line.is_empty() { String::new() } else { format!(", {}", without_folder(line)) };
            parts.push(format!("{when} {phase}{line}"));
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(line: &str, source: &str, operator: &str, bytes: i64, blocks: usize) -> BlockGroup {
        BlockGroup {
            line: format!("/a/{line}"),
            function: "forward".to_string(),
            source: Some(source.to_string()),
            module: "Net".to_string(),
            category: "activations".to_string(),
            operator: operator.to_string(),
            bytes,
            blocks,
            allocated: (bytes + 511) / 512 * 512 * blocks as i64,
            made: blocks,
            freed: None,
        }
    }

    #[test]
    fn rows_sum_to_the_difference_and_say_what_became_of_a_line() {
        let freed = BlockGroup {
            blocks: 0,
            allocated: 0,
            made: 4,
            freed: Some("backward, /a/t.py:9".to_string()),
            ..group("t.py:5", "e", "aten::add", 800, 4)
        };
        let before = [
            group("t.py:1", "a", "aten::mm", 1000, 2),
            group("t.py:2", "b", "aten::mm", 512, 1),
            group("t.py:3", "c", "aten::mm", 64, 3),
            freed,
        ];
        let after = [
            // Moved by two lines.
            group("t.py:3", "a", "aten::mm", 2000, 2),
            group("t.py:4", "b", "aten::mm", 600, 1),
            group("t.py:8", "d", "aten::clone", 4096, 1),
            group("t.py:7", "e", "aten::add", 800, 4),
        ];
        let found = diff(&before, &after);
        assert_eq!(found.rows.iter().map(|row| row.bytes).sum::<i64>(), found.after - found.before);
        assert_eq!(
            found.after - found.before,
            after.iter().map(|g| g.allocated).sum::<i64>() - before.iter().map(|g| g.allocated).sum::<i64>()
        );
        let of = |source: &str| found.rows.iter().find(|row| row.source.as_deref() == Some(source)).map(|row| row.change.clone());
        let became = [Change::Larger, Change::Larger, Change::Gone, Change::CopyForView, Change::LivesLonger];
        assert_eq!(["a", "b", "c", "d", "e"].map(of), became.map(Some));
        let text = found.text();
        assert!(text.contains("freed before in backward, t.py:9") && text.contains("rounding"), "{text}");
        let signs =
            found.rows.iter().filter(|row| matches!(row.change, Change::MoreBlocks | Change::Larger)).all(|row| row.bytes > 0);
        assert!(signs, "{:?}", found.rows);
        // Another place for the same text's blocks, as a formatter makes it.
        let formatted = [group("t.py:1", "a", "aten::mm", 1000, 2), group("t.py:9", "b_2,", "aten::mm", 512, 1)];
        let rows = diff(&before[..2], &formatted).rows;
        assert!(rows.is_empty(), "{rows:?}");
        // One line that became three, of which one holds a block more than before.
        let line = [group("t.py:1", "f(g(x), g(x), g(x))", "aten::mm", 1000, 6)];
        let lines = [2, 2, 3].map(|blocks| group(&format!("t.py:{blocks}"), &format!("g(x), {blocks}"), "aten::mm", 1000, blocks));
        let rows = diff(&line, &lines).rows;
        assert!(rows.iter().map(|row| row.bytes).eq([1000, 24]), "{rows:?}");
        assert!(diff(&after, &after).text().contains("hold the same"));
        for rows in [&found.categories, &found.modules, &found.operators] {
            assert_eq!(rows.iter().map(|(_, bytes)| bytes).sum::<i64>(), found.after - found.before);
        }
    }
}
