//! The words of an experiment's page with today's figures in them. A sentence whose condition new figures break stays, and says that it wants
//! an editor; one whose figures are not among the results is left out.

use super::ladder::Ladder;
use super::plots::PictureLink;
use super::recorded::Recorded;
use base::units::{change, quantity, range};
use record::judge::Verdict;
use record::protocol::{Metric, PageBlock, PageSlot, PageSpan, PageText, PlainCell, Platform, SlotSource, selects};
use record::rules::Bound;
use serde::Serialize;
use std::path::{Path, PathBuf};

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
    pub code: super::markup::Markdown,
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
        let mistaken = |wants| WordsBlock { kind: "text", wants, ..WordsBlock::default() };
        let page = match PageText::parse(text) {
            Ok(page) => page,
            Err(mistake) => return PageWords { blocks: vec![mistaken(vec![mistake])], ..PageWords::default() },
        };
        // A machine may have been measured before the others: what none of them has is a mistake.
        let of_each = runs.iter().filter(|run| !run.is_own || runs.len() == 1).map(|run| run.protocol.unfounded_words(&page));
        let in_all = |all: Vec<String>, of_one: Vec<String>| all.into_iter().filter(|word| of_one.contains(word)).collect();
        let unfounded = of_each.reduce(in_all).unwrap_or_default();
        let mut words = PageWords { standing: page.standing, ..PageWords::default() };
        if !unfounded.is_empty() {
            words.blocks.push(mistaken(unfounded));
        }
        let mut placed = Vec::new();
        let mut is_answer = true;
        for block in page.blocks {
            is_answer &= !matches!(block, PageBlock::Heading(_));
            let Some(block) = words_of(&block, runs, ladder) else {
                words.left_out += 1;
                continue;
            };
            if is_answer && !block.wants.is_empty() && !words.standing.is_empty() {
                words.standing = "not known yet: new figures contradict what this page said".to_string();
            }
            if block.kind == "picture" {
                placed.push((block.name.clone(), if block.wants.is_empty() { block.text.clone() } else { String::new() }));
            }
            words.blocks.push(block);
        }
        words.placed = (!words.standing.is_empty()).then_some(placed);
        words
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

/// A block with its figures; none where they are not there.
fn words_of(block: &PageBlock, runs: &[Recorded], ladder: Option<&Ladder>) -> Option<WordsBlock> {
    let of = |kind: &'static str, text: &str| WordsBlock { kind, text: text.to_string(), ..WordsBlock::default() };
    Some(match block {
        PageBlock::Heading(title) => of("heading", title),
        // A title whose figures are missing or wrong leaves the caption.
        PageBlock::Picture { name, title } => {
            let said = sentence("picture", title, runs, ladder).unwrap_or_else(|| of("picture", ""));
            WordsBlock { name: name.clone(), ..said }
        }
        PageBlock::Code(code) => WordsBlock { code: super::markup::Markdown::code(code), ..of("code", "") },
        PageBlock::Rehearsed(techniques) => {
            let (head, rows) = ladder?.of_techniques(techniques);
            (!rows.is_empty()).then(|| WordsBlock { head, rows, ..of("table", "") })?
        }
        PageBlock::Table(rows) => {
            // A figure that is not there leaves its cell empty, and one beyond its bound says so in it.
            let cell = |spans: &Vec<PageSpan>| {
                let said = sentence("cell", spans, runs, ladder).unwrap_or_else(|| of("cell", "–"));
                let wants = said.wants.iter().map(|why| format!(" This cell wants an editor: {why}."));
                wants.fold(said.text, |text, why| text + &why)
            };
            let mut rows = rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>());
            let head = rows.next().unwrap_or_default();
            WordsBlock { head, rows: rows.collect(), ..of("table", "") }
        }
        PageBlock::Sentence { item, spans } => sentence(if *item { "item" } else { "text" }, spans, runs, ladder)?,
    })
}

/// A sentence with its figures; none where they are not there.
fn sentence(kind: &'static str, spans: &[PageSpan], runs: &[Recorded], ladder: Option<&Ladder>) -> Option<WordsBlock> {
    let mut said = WordsBlock { kind, ..WordsBlock::default() };
    for span in spans {
        match span {
            PageSpan::Text(text) => said.text += text,
            PageSpan::Slot(slot) => {
                let (shown, broken) = figure(slot, runs, ladder)?;
                said.wants.extend(broken);
                if !slot.is_silent {
                    said.text += &shown;
                }
            }
        }
    }
    Some(said)
}

/// None where there is no such figure.
fn figure(slot: &PageSlot, runs: &[Recorded], ladder: Option<&Ladder>) -> Option<SlotText> {
    match &slot.source {
        SlotSource::Claim { id, verdict } => judged(runs, id, verdict),
        SlotSource::Rehearsed { technique, is_time, model, bound } => {
            within(&ladder?.ratios(technique, *is_time, model), *bound, &size(*bound))
        }
        SlotSource::Lab { on, metric, is_absolute, of, bound } => {
            let of_kind = |is_own: bool| runs.iter().filter(move |run| run.platform() == *on && run.is_own == is_own);
            let taken = |is_own| -> Vec<f64> { of_kind(is_own).flat_map(|run| figures(run, metric, *is_absolute, of)).collect() };
            let found = Some(taken(false)).filter(|found| !found.is_empty()).unwrap_or_else(|| taken(true));
            let unit = runs.iter().find_map(|run| run.protocol.metric(metric)).map_or("", Metric::shown_unit);
            let write = |low: f64, high: f64| range(quantity(low, unit), quantity(high, unit));
            if *is_absolute { within(&found, *bound, &write) } else { within(&found, *bound, &size(*bound)) }
        }
    }
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
