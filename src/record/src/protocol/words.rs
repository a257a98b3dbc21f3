//! The words of an experiment's page: text that an editor wrote, with figures in it, each with the bound within which its sentence is true.
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

use super::cells::{Platform, Select};
use crate::rules::Bound;

/// What may begin the first line: the four verdicts for a reader. Evidence about the lab itself begins with `shows`.
const STANDINGS: [&str; 4] = ["works", "does not", "not known yet", "shows"];

/// A page's words, read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PageText {
    /// Empty where no editor has written the page yet.
    pub standing: String,
    pub blocks: Vec<PageBlock>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum PageBlock {
    Heading(String),
    /// A sentence or a few, true or not together; `item` of a list.
    Sentence {
        item: bool,
        spans: Vec<PageSpan>,
    },
    Code(String),
    /// Rows of cells, the head first.
    Table(Vec<Vec<Vec<PageSpan>>>),
    /// A plot with the title of its picture; without one its caption is the title.
    Picture {
        name: String,
        title: Vec<PageSpan>,
    },
    /// What rehearsals of full-size models give of these techniques.
    Rehearsed(Vec<String>),
}

#[derive(Debug, Clone, PartialEq)]
pub enum PageSpan {
    Text(String),
    Slot(PageSlot),
}

/// A figure in a sentence, or a condition of it.
#[derive(Debug, Clone, PartialEq)]
pub struct PageSlot {
    pub source: SlotSource,
    /// Whether the sentence depends on it and does not say it.
    pub is_silent: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum SlotSource {
    /// The metric over its baseline's, or as it is, over the cells of a selection.
    Lab { on: Platform, metric: String, is_absolute: bool, of: Select, bound: Bound },
    /// The memory or the predicted time of a technique over the plain step's, on one model of full size or on all.
    Rehearsed { technique: String, is_time: bool, model: String, bound: Bound },
    /// The verdict on a claim, on every machine whose figures carry it.
    Claim { id: String, verdict: String },
}

impl PageText {
    /// Reads a page's words; fails with the place that says nothing.
    pub fn parse(text: &str) -> Result<PageText, String> {
        let mut lines = text.lines().map(str::trim_end).peekable();
        while lines.next_if(|line| line.is_empty()).is_some() {}
        // What an author left of an editor's page has lines of code and a list, and no verdict.
        let standing = lines.next_if(|line| !line.starts_with(['`', '-'])).unwrap_or_default().to_string();
        if !standing.is_empty() && !STANDINGS.iter().any(|known| standing.starts_with(known)) {
            return Err(format!("the page begins with '{standing}' and no verdict ({})", STANDINGS.join(", ")));
        }
        let mut blocks = Vec::new();
        while let Some(line) = lines.next() {
            if let Some(title) = line.strip_prefix("## ") {
                blocks.push(PageBlock::Heading(title.to_string()));
            } else if line.starts_with("```") {
                let code: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
                blocks.push(PageBlock::Code(code.join("\n")));
            } else if line.starts_with('|') {
                let rest = std::iter::from_fn(|| lines.next_if(|next| next.starts_with('|')));
                let rows = std::iter::once(line).chain(rest).filter(|row| !row.starts_with("|--"));
                blocks.push(PageBlock::Table(rows.map(cells).collect::<Result<_, _>>()?));
            } else if let Some(shown) = line.strip_prefix("![").and_then(|rest| rest.strip_suffix(']')) {
                blocks.push(match shown.strip_prefix("rehearsed ") {
                    Some(techniques) => PageBlock::Rehearsed(techniques.split_whitespace().map(str::to_string).collect()),
                    None => {
                        let (name, title) = shown.split_once(": ").unwrap_or((shown, ""));
                        PageBlock::Picture { name: name.to_string(), title: spans(title)? }
                    }
                });
            } else if !line.is_empty() {
                // A sentence goes on until something else begins.
                let mut whole = line.to_string();
                while let Some(more) = lines.next_if(|next| !next.is_empty() && !next.starts_with(['-', '#', '`', '!', '|'])) {
                    whole = format!("{whole} {}", more.trim_start());
                }
                let own = whole.strip_prefix("- ");
                blocks.push(PageBlock::Sentence { item: own.is_some(), spans: spans(own.unwrap_or(&whole))? });
            }
        }
        Ok(PageText { standing, blocks })
    }

    pub fn slots(&self) -> impl Iterator<Item = &PageSlot> {
        let spans = self.blocks.iter().flat_map(|block| -> Box<dyn Iterator<Item = &PageSpan>> {
            match block {
                PageBlock::Sentence { spans, .. } | PageBlock::Picture { title: spans, .. } => Box::new(spans.iter()),
                PageBlock::Table(rows) => Box::new(rows.iter().flatten().flatten()),
                _ => Box::new(std::iter::empty()),
            }
        });
        spans.filter_map(|span| if let PageSpan::Slot(slot) = span { Some(slot) } else { None })
    }
}

/// The cells of a table's row; a bar within a figure's selection divides none.
fn cells(row: &str) -> Result<Vec<Vec<PageSpan>>, String> {
    let mut depth = 0;
    let divides = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == '|' && depth == 0
    };
    row.trim().trim_matches('|').split(divides).map(|cell| spans(cell.trim())).collect()
}

fn spans(text: &str) -> Result<Vec<PageSpan>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, after) = after.split_once('}').ok_or_else(|| format!("'{after}' is not closed"))?;
        found.push(PageSpan::Text(before.to_string()));
        found.push(PageSpan::Slot(slot(inside).ok_or_else(|| format!("'{{{inside}}}' is no figure with a bound"))?));
        rest = after;
    }
    found.push(PageSpan::Text(rest.to_string()));
    Ok(found)
}

fn slot(text: &str) -> Option<PageSlot> {
    let (named, bounds) = text.rsplit_once(": ")?;
    let (named, is_silent) = named.strip_prefix('?').map_or((named, false), |named| (named, true));
    let words: Vec<&str> = named.split_whitespace().collect();
    let source = match words[..] {
        ["claim", id] if is_silent => SlotSource::Claim { id: id.to_string(), verdict: bounds.to_string() },
        ["rehearsed", technique, what @ ("memory" | "time"), ref model @ ..] if model.len() < 2 => SlotSource::Rehearsed {
            technique: technique.to_string(),
            is_time: what == "time",
            model: model.concat(),
            bound: bound(bounds, 1.0)?,
        },
        [on @ ("dry" | "cpu" | "gpu"), metric, ref of @ ..] => {
            let on = match on {
                "dry" => Platform::Dry,
                "cpu" => Platform::Cpu,
                _ => Platform::Gpu,
            };
            let is_absolute = metric.starts_with('=');
            let bound = bound(bounds, if is_absolute { 0.0 } else { 1.0 })?;
            SlotSource::Lab { on, metric: metric.trim_start_matches('=').to_string(), is_absolute, of: of.join(" "), bound }
        }
        _ => return None,
    };
    Some(PageSlot { source, is_silent })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_sentence_by_sentence() {
        let text = "works where it fits\n\nIt takes {dry requested_peak k=2|4 model=gpt: at most -20 %} less\nthan before.\n- Costs \
                    {rehearsed twice time: 0 % to +30 %}. {? claim less: confirmed}\n\n## Lines\n```python\nf(x)\n\ng(x)\n```\n\
                    ![depth]\n![rehearsed twice thrice]\n| a | b |\n|---|---|\n| c | {dry =peak k=2|4: 1 to 2} |\n";
        let page = PageText::parse(text).unwrap();
        assert_eq!((page.standing.as_str(), page.blocks.len(), page.slots().count()), ("works where it fits", 7, 4));
        let [first, second, third, _] = page.slots().cloned().collect::<Vec<_>>().try_into().unwrap();
        let (metric, of) = ("requested_peak".to_string(), "k=2|4 model=gpt".to_string());
        let lab = SlotSource::Lab { on: Platform::Dry, metric, is_absolute: false, of, bound: Bound::AtMost(0.8) };
        assert_eq!((first.source, first.is_silent), (lab, false));
        let (technique, bound) = ("twice".to_string(), Bound::Within(1.0, 1.3));
        assert_eq!(second.source, SlotSource::Rehearsed { technique, is_time: true, model: String::new(), bound });
        assert!(third.is_silent);
        assert_eq!(page.blocks[3], PageBlock::Code("f(x)\n\ng(x)".into()));
        assert_eq!(page.blocks[5], PageBlock::Rehearsed(vec!["twice".into(), "thrice".into()]));
        let PageBlock::Table(rows) = &page.blocks[6] else { panic!("{:?}", page.blocks[6]) };
        assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2], "a bar in a selection is no cell's end");
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
            assert!(PageText::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(bound("20 % to 30 %", 0.0), Some(Bound::Within(0.2, 0.3)));
        assert_eq!(bound("at least 2 GiB", 0.0), Some(Bound::AtLeast(2147483648.0)));
    }
}
