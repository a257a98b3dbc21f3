//! The words of an experiment's page: text that an editor wrote, with today's figures in it, each with the bound within which its sentence is true.
//! One whose condition new figures break stays, and says that it wants an editor; one whose figures are not among the results is left out.
//!
//! ```text
//! works where saved activations fill the memory
//!
//! Checkpointing every block takes {rehearsed checkpoint-every memory: at most -20 %} of the peak of models of full size.
//!
//! - It costs {cpu time model=gpt policy=every-block: +5 % to +60 %} time. {? claim checkpoint-memory: confirmed}
//!
//! | what | how much |
//! |---|---|
//! | its peak | {dry requested_peak policy=sqrt: at most -20 %} |
//!
//! ![depth]
//! ```
//!
//! The first line is the verdict for the reader. A figure is `dry METRIC SELECTION` or `cpu METRIC SELECTION` for ratios to the baseline over
//! the cells of a selection (`=METRIC` for the figures themselves), `rehearsed TECHNIQUE memory` or `... time`, with a model or over all, and
//! after the colon its bound: `at most X`, `at least X` or `X to Y`. `?` before it says that it is a condition alone, and `claim ID` that a
//! verdict is one. `![NAME]` or `![NAME: TITLE]` places a picture, `![rehearsed TECHNIQUE ...]` the table of rehearsals.

use super::ladder::Ladder;
use super::markup::Markdown;
use super::plots::PictureLink;
use super::recorded::Recorded;
use base::units::{change, quantity, range};
use record::judge::Verdict;
use record::protocol::{Metric, PlainCell, PlainGrid, Platform, selects};
use record::rules::Bound;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What may begin the first line: the four verdicts for a reader. Evidence about the lab itself begins with `shows`.
const STANDINGS: [&str; 4] = ["works", "does not", "not known yet", "shows"];

/// A page's words, ready for a template.
#[derive(Debug, Default, Serialize)]
pub struct PageWords {
    /// Empty where no editor has written the page.
    pub standing: String,
    pub blocks: Vec<WordsBlock>,
    /// How many sentences need results that are not there.
    pub left_out: usize,
    /// The plots that the words place, with the titles of their pictures; none where no editor has written the page, which shows all.
    #[serde(skip)]
    pub placed: Option<Vec<(String, String)>>,
}

#[derive(Debug, Default, Serialize)]
pub struct WordsBlock {
    pub kind: &'static str,
    /// The plot that a picture draws.
    pub name: String,
    pub text: String,
    /// Which figures break the sentence's condition.
    pub wants: Vec<String>,
    pub code: Markdown,
    pub pictures: Vec<PictureLink>,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// A figure as it is written, and how it breaks its bound where it does.
type SlotText = (String, Option<String>);

/// The words of an experiment's page, as an editor left them: in the project that has the results, or that the reporter stands in.
/// None where neither has the experiment.
pub fn page_of(results: &Path, name: &str) -> String {
    let projects: Vec<PathBuf> = results.parent().map(Path::to_path_buf).into_iter().chain([PathBuf::new()]).collect();
    let folders = projects.iter().flat_map(|project| PAGES.map(|folder| project.join(folder)));
    let files = folders.flat_map(|folder| [folder.join(name).join("page.md"), folder.join(format!("{name}.md"))]);
    files.filter_map(|file| std::fs::read_to_string(file).ok()).next().unwrap_or_default()
}

/// Beside an experiment, or beside records that no experiment makes.
const PAGES: [&str; 2] = ["experiments", "records"];

impl PageWords {
    /// The words of an experiment's page, with the figures of these runs.
    pub fn of(text: &str, runs: &[Recorded], ladder: Option<&Ladder>) -> PageWords {
        let read = Reader { runs, ladder, unfounded: Vec::new() }.page(text);
        read.unwrap_or_else(|mistake| PageWords { blocks: vec![mistaken(vec![mistake])], ..PageWords::default() })
    }

    /// Puts the pictures where the words place them, and gives those that they do not.
    pub fn place(&mut self, pictures: Vec<(String, PictureLink)>) -> Vec<PictureLink> {
        let mut others = Vec::new();
        for (name, link) in pictures {
            match self.blocks.iter_mut().find(|block| block.kind == "picture" && block.name == name) {
                Some(block) => block.pictures.push(link),
                None => others.push(link),
            }
        }
        others
    }
}

fn block(kind: &'static str, text: &str) -> WordsBlock {
    WordsBlock { kind, text: text.to_string(), ..WordsBlock::default() }
}

fn mistaken(wants: Vec<String>) -> WordsBlock {
    WordsBlock { wants, ..block("text", "") }
}

/// Reads a page, and puts figures into its words.
struct Reader<'a> {
    runs: &'a [Recorded],
    ladder: Option<&'a Ladder>,
    /// Figures and pictures of which the page speaks, and the experiment has none.
    unfounded: Vec<String>,
}

impl Reader<'_> {
    /// Fails with the place that says nothing.
    fn page(&mut self, text: &str) -> Result<PageWords, String> {
        let mut lines = text.lines().map(str::trim_end).peekable();
        while lines.next_if(|line| line.is_empty()).is_some() {}
        // What an author left of an editor's page has lines of code and a list, and no verdict.
        let standing = lines.next_if(|line| !line.starts_with(['`', '-'])).unwrap_or_default().to_string();
        if !standing.is_empty() && !STANDINGS.iter().any(|known| standing.starts_with(known)) {
            return Err(format!("the page begins with '{standing}' and no verdict ({})", STANDINGS.join(", ")));
        }
        let mut words = PageWords { standing, ..PageWords::default() };
        let (mut placed, mut is_answer) = (Vec::new(), true);
        while let Some(line) = lines.next() {
            let read = if let Some(title) = line.strip_prefix("## ") {
                is_answer = false;
                Some(block("heading", title))
            } else if line.starts_with("```") {
                let code: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
                Some(WordsBlock { code: Markdown::code(&code.join("\n")), ..block("code", "") })
            } else if line.starts_with('|') {
                let more = std::iter::from_fn(|| lines.next_if(|next| next.starts_with('|')));
                let rows = std::iter::once(line).chain(more).filter(|row| !row.starts_with("|--"));
                let mut rows = rows.map(|row| self.cells(row)).collect::<Result<Vec<_>, _>>()?.into_iter();
                let head = rows.next().unwrap_or_default();
                Some(WordsBlock { head, rows: rows.collect(), ..block("table", "") })
            } else if let Some(shown) = line.strip_prefix("![").and_then(|rest| rest.strip_suffix(']')) {
                match shown.strip_prefix("rehearsed ") {
                    Some(techniques) => self.rehearsed(techniques),
                    None => Some(self.picture(shown)?),
                }
            } else if line.is_empty() {
                continue;
            } else {
                // A sentence goes on until something else begins.
                let mut whole = line.to_string();
                while let Some(more) = lines.next_if(|next| !next.is_empty() && !next.starts_with(['-', '#', '`', '!', '|'])) {
                    whole = format!("{whole} {}", more.trim_start());
                }
                let own = whole.strip_prefix("- ");
                self.sentence(if own.is_some() { "item" } else { "text" }, own.unwrap_or(&whole))?
            };
            let Some(read) = read else {
                words.left_out += 1;
                continue;
            };
            if is_answer && !read.wants.is_empty() && !words.standing.is_empty() {
                words.standing = "not known yet: new figures contradict what this page said".to_string();
            }
            if read.kind == "picture" {
                placed.push((read.name.clone(), if read.wants.is_empty() { read.text.clone() } else { String::new() }));
            }
            words.blocks.push(read);
        }
        if !self.unfounded.is_empty() {
            words.blocks.insert(0, mistaken(std::mem::take(&mut self.unfounded)));
        }
        words.placed = (!words.standing.is_empty()).then_some(placed);
        Ok(words)
    }

    /// What no machine has is a mistake: one may have been measured before the others.
    fn needs(&mut self, lacks: impl Fn(&Recorded) -> Option<String>) {
        let runs = self.runs.iter().filter(|run| !run.is_own || self.runs.len() == 1);
        let mut lacking = runs.map(lacks);
        if let Some(Some(what)) = lacking.next()
            && lacking.all(|other| other.as_ref() == Some(&what))
        {
            self.unfounded.push(format!("the page speaks of {what}, which is not there"));
        }
    }

    /// A title whose figures are missing or wrong leaves the caption.
    fn picture(&mut self, shown: &str) -> Result<WordsBlock, String> {
        let (name, title) = shown.split_once(": ").unwrap_or((shown, ""));
        let is_drawn = |run: &Recorded| run.protocol.plots.iter().any(|plot| plot.name == name);
        self.needs(|run| (!is_drawn(run)).then(|| format!("the picture '{name}'")));
        let said = self.sentence("picture", title)?.unwrap_or_else(|| block("picture", ""));
        Ok(WordsBlock { name: name.to_string(), ..said })
    }

    /// What rehearsals of full-size models give of these techniques.
    fn rehearsed(&self, techniques: &str) -> Option<WordsBlock> {
        let techniques: Vec<String> = techniques.split_whitespace().map(str::to_string).collect();
        let (head, rows) = self.ladder?.of_techniques(&techniques);
        (!rows.is_empty()).then(|| WordsBlock { head, rows, ..block("table", "") })
    }

    /// The cells of a table's row; a bar within a figure's selection divides none. A figure that is not there leaves its cell empty, and one beyond its
    /// bound says so in it.
    fn cells(&mut self, row: &str) -> Result<Vec<String>, String> {
        let mut depth = 0;
        let divides = |c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == '|' && depth == 0
        };
        let cells = row.trim().trim_matches('|').split(divides);
        let cell = |cell: &str| {
            let said = self.sentence("cell", cell.trim())?.unwrap_or_else(|| block("cell", "–"));
            let wants = said.wants.iter().map(|why| format!(" This cell wants an editor: {why}."));
            Ok(wants.fold(said.text, |text, why| text + &why))
        };
        cells.map(cell).collect()
    }

    /// A sentence with its figures; none where they are not there.
    fn sentence(&mut self, kind: &'static str, text: &str) -> Result<Option<WordsBlock>, String> {
        let (mut said, mut rest, mut is_whole) = (block(kind, ""), text, true);
        while let Some((before, after)) = rest.split_once('{') {
            let (inside, after) = after.split_once('}').ok_or_else(|| format!("'{after}' is not closed"))?;
            said.text += before;
            match self.figure(inside)? {
                Some((shown, broken)) => {
                    said.text += &shown;
                    said.wants.extend(broken);
                }
                None => is_whole = false,
            }
            rest = after;
        }
        said.text += rest;
        Ok(is_whole.then_some(said))
    }

    /// What stands between braces; none where there is no such figure. A condition has no text.
    fn figure(&mut self, inside: &str) -> Result<Option<SlotText>, String> {
        let is_none = || format!("'{{{inside}}}' is no figure with a bound");
        let (named, bounds) = inside.rsplit_once(": ").ok_or_else(is_none)?;
        let (named, is_silent) = named.strip_prefix('?').map_or((named, false), |named| (named, true));
        let words: Vec<&str> = named.split_whitespace().collect();
        let found = match words[..] {
            ["claim", id] if is_silent => {
                let has = |run: &Recorded| run.protocol.claims.iter().any(|claim| claim.id == id);
                self.needs(|run| (!has(run)).then(|| format!("the claim '{id}'")));
                judged(self.runs, id, bounds)
            }
            ["rehearsed", technique, what @ ("memory" | "time"), ref model @ ..] if model.len() < 2 => {
                let bound = bound(bounds, 1.0).ok_or_else(is_none)?;
                let ratios = self.ladder.map(|ladder| ladder.ratios(technique, what == "time", &model.concat()));
                ratios.and_then(|ratios| within(&ratios, bound, &size(bound)))
            }
            [on @ ("dry" | "cpu" | "gpu"), metric, ref of @ ..] => {
                let (name, of, is_absolute) = (metric.trim_start_matches('='), of.join(" "), metric.starts_with('='));
                let bound = bound(bounds, if is_absolute { 0.0 } else { 1.0 }).ok_or_else(is_none)?;
                self.needs(|run| {
                    let is_planned = || run.protocol.grids.iter().flat_map(PlainGrid::cells).any(|cell| selects(&of, &cell));
                    match run.protocol.metric(name) {
                        None => Some(format!("the metric '{name}'")),
                        Some(_) => (!is_planned()).then(|| format!("cells of '{of}'")),
                    }
                });
                let on = match on {
                    "dry" => Platform::Dry,
                    "cpu" => Platform::Cpu,
                    _ => Platform::Gpu,
                };
                self.measured(on, name, is_absolute, &of, bound)
            }
            _ => return Err(is_none()),
        };
        Ok(found.map(|(shown, broken)| (if is_silent { String::new() } else { shown }, broken)))
    }

    /// A metric over the cells of a selection, over their baselines' or as it is.
    fn measured(&self, on: Platform, metric: &str, is_absolute: bool, of: &str, bound: Bound) -> Option<SlotText> {
        let of_kind = |is_own: bool| self.runs.iter().filter(move |run| run.platform() == on && run.is_own == is_own);
        let taken = |is_own| -> Vec<f64> { of_kind(is_own).flat_map(|run| figures(run, metric, is_absolute, of)).collect() };
        let found = Some(taken(false)).filter(|found| !found.is_empty()).unwrap_or_else(|| taken(true));
        let unit = self.runs.iter().find_map(|run| run.protocol.metric(metric)).map_or("", Metric::shown_unit);
        let write = |low: f64, high: f64| range(quantity(low, unit), quantity(high, unit));
        if is_absolute { within(&found, bound, &write) } else { within(&found, bound, &size(bound)) }
    }
}

/// A bound; a per cent is added to `of`, which is 1 where it is a change.
fn bound(text: &str, of: f64) -> Option<Bound> {
    let number = |text: &str| -> Option<f64> {
        let text = text.trim();
        let (digits, scale) = match text.split_once(' ') {
            Some((digits, "%")) => return Some(of + digits.parse::<f64>().ok()? / 100.0),
            Some((digits, "GiB")) => (digits, 1024.0 * 1024.0 * 1024.0),
            Some((digits, "MiB")) => (digits, 1024.0 * 1024.0),
            _ => (text.trim_end_matches('x'), 1.0),
        };
        Some(digits.parse::<f64>().ok()? * scale)
    };
    if let Some(limit) = text.strip_prefix("at most ") {
        return number(limit).map(Bound::AtMost);
    }
    if let Some(limit) = text.strip_prefix("at least ") {
        return number(limit).map(Bound::AtLeast);
    }
    let (low, high) = text.split_once(" to ")?;
    Some(Bound::Within(number(low)?, number(high)?))
}

/// How changes are written: where the bound says that all save or that all cost, the sentence says which, and the figure has no sign. A bound
/// may leave some per cent on the other side, for a difference that nobody notices.
fn size(bound: Bound) -> impl Fn(f64, f64) -> String {
    let (saves, costs) = match bound {
        Bound::AtMost(most) => (most <= 1.1, false),
        Bound::AtLeast(least) => (false, least >= 0.9),
        Bound::Within(least, most) => (most <= 1.1, least >= 0.9),
        Bound::Outside(..) => (false, false),
    };
    // As they are written: a tenth of a per cent is none.
    move |low, high| match (saves && high < 1.005) || (costs && low >= 0.995) {
        true => change(low, high).replace(['−', '+'], ""),
        false => change(low, high),
    }
}

fn within(found: &[f64], bound: Bound, write: &dyn Fn(f64, f64) -> String) -> Option<SlotText> {
    let (low, high) = (found.iter().copied().reduce(f64::min)?, found.iter().copied().reduce(f64::max)?);
    let text = write(low, high);
    let bounds = match bound {
        _ if bound.holds(low) && bound.holds(high) => return Some((text, None)),
        Bound::AtMost(x) => format!("at most {}", write(x, x)),
        Bound::AtLeast(x) => format!("at least {}", write(x, x)),
        Bound::Within(low, high) | Bound::Outside(low, high) => write(low, high),
    };
    let why = format!("it was written for {bounds}, and the figures are {text}");
    Some((text, Some(why)))
}

/// The figures of a metric over the cells of a selection: over their baselines', or as they are.
fn figures(run: &Recorded, metric: &str, is_absolute: bool, of: &str) -> Vec<f64> {
    let Some(metric) = run.protocol.metric(metric) else { return Vec::new() };
    let names_who = of.contains(record::protocol::BY);
    let repeats = |cell: &PlainCell| run.grid_of(cell).is_none_or(|grid| grid.repeats(cell));
    let cells = run.all_cells().into_iter().filter(|cell| selects(of, cell) && (names_who || !repeats(cell)));
    let figure = |cell| match is_absolute {
        true => run.samples.value(&cell, metric.name),
        false => run.ratio(&cell, metric).map(|ratio| ratio.estimate),
    };
    cells.filter_map(figure).collect()
}

fn judged(runs: &[Recorded], id: &str, verdict: &str) -> Option<SlotText> {
    let of = |is_own: bool| -> Vec<(Platform, Verdict)> {
        let judged = runs.iter().filter(|run| run.is_own == is_own).flat_map(|run| &run.judgements);
        let says = judged.filter(|j| j.of.id == id && j.carries);
        says.filter(|j| !matches!(j.verdict, Verdict::NotMeasured | Verdict::Incomplete)).map(|j| (j.platform, j.verdict)).collect()
    };
    let found = Some(of(false)).filter(|found| !found.is_empty()).unwrap_or_else(|| of(true));
    let other = found.iter().find(|(_, found)| !verdict.split('|').any(|known| known == found.to_string()));
    let broken = other.map(|(platform, found)| {
        format!("the claim '{id}' was {verdict}, and is {found} on the {}", super::prose::platform(*platform))
    });
    (!found.is_empty()).then_some((String::new(), broken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_sentence_by_sentence() {
        let text = "works where it fits\n\nIt takes {dry requested_peak k=2|4 model=gpt: at most -20 %} less\nthan before.\n- Costs \
                    {rehearsed twice time: 0 % to +30 %}. {? claim less: confirmed}\n- So\nit is.\n\n## Lines\n```python\nf(x)\n\ng(x)\n```\n\
                    ![depth]\n![rehearsed twice thrice]\n| a | b |\n|---|---|\n| c | {dry =peak k=2|4: 1 to 2} |\n";
        let page = PageWords::of(text, &[], None);
        let kinds: Vec<&str> = page.blocks.iter().map(|block| block.kind).collect();
        assert_eq!((page.standing.as_str(), page.left_out), ("works where it fits", 3), "figures that are not there");
        assert_eq!(kinds, ["item", "heading", "code", "picture", "table"]);
        assert_eq!(page.blocks[0].text, "So it is.");
        assert_eq!(page.blocks[2].code, Markdown::code("f(x)\n\ng(x)"));
        let table = &page.blocks[4];
        assert_eq!(
            (table.head.join(" "), table.rows[0].join(" ")),
            ("a b".into(), "c –".into()),
            "a bar in a selection is no cell's end"
        );
    }

    #[test]
    fn a_figure_without_a_bound_is_a_mistake() {
        for wrong in [
            "It is so.",
            "works\n\nIt takes {dry peak k=2}.",
            "works\n\n{dry peak k=2: little}",
            "works\n\n{claim x: confirmed}",
            "works\n\n{",
        ] {
            assert_eq!(PageWords::of(wrong, &[], None).blocks[0].wants.len(), 1, "{wrong}");
        }
        assert_eq!(bound("20 % to 30 %", 0.0), Some(Bound::Within(0.2, 0.3)));
        assert_eq!(bound("at least 2 GiB", 0.0), Some(Bound::AtLeast(2147483648.0)));
    }
}
