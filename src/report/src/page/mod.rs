//! The report as one page for browsers: the markdown pages turned into HTML, one section each, with a search, filters, a glossary, tables
//! that sort, and links to each claim.
//!
//! The markdown is the only source. What it shows of results is escaped there already; here no HTML passes but what the report's own
//! templates write.

use super::markup::{attribute, slug};
use anyhow::Result;
use base::inline::{STYLE, document};
use minijinja::context;
use minijinja::value::Serde;
use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};
use serde::Serialize;
use std::collections::BTreeSet;

/// What stands for a verdict in the text, with its class in the style.
const SYMBOLS: [(char, &str); 4] = [('✔', "yes"), ('✘', "no"), ('◐', "mixed"), ('○', "shown")];

/// Words that a reader may look up, the longer before those that they contain.
const GLOSSARY: [(&str, &str); 12] = [
    ("transient peak", "Peak memory minus what lives between steps: parameters, optimizer state, data."),
    ("peak memory", "The most bytes that tensors asked for at one moment of a step (PyTorch's requested bytes)."),
    ("saved activations", "What the forward pass keeps for the backward pass."),
    ("micro-batch", "A part of a batch that goes through the model by itself; gradients of all parts are added up."),
    ("effective batch", "All samples that one optimizer step sees: micro-batch times accumulation steps."),
    (
        "simulated GPU",
        "PyTorch's own CUDA caching allocator without a GPU (--device dry): it predicts bytes, and computes nothing.",
    ),
    (
        "95 % CI",
        "95 % confidence interval over rounds; widened where a claim rests on several comparisons. n is the number of rounds.",
    ),
    ("compute-bound", "The device is busy with kernels for the whole step."),
    ("overhead-bound", "Launching kernels takes longer than running them."),
    ("reserved", "What PyTorch's allocator holds from the device, used or cached."),
    ("PyTorch reference", "The same step, written in Python with PyTorch."),
    ("informational", "Shown without a verdict: the claim is about another kind of device."),
];

/// HTML that the report's templates write.
const TAGS: [&str; 8] = ["details", "summary", "picture", "source", "img", "a", "/a", "br"];

/// A section of the page, and a line of its contents.
#[derive(Debug, Serialize)]
struct Section {
    id: String,
    title: String,
    body: String,
}

/// Makes the page of a report's markdown pages, by their file names.
///
/// # Errors
/// The page's template cannot be filled in.
pub fn page(pages: &[(String, String)], machines: &[String]) -> Result<String> {
    let ids: BTreeSet<String> = pages.iter().map(|(file, _)| id_of(file)).collect();
    let mut taken = ids.clone();
    taken.extend(["glossary", "search", "verdict", "machine", "technique", "found", "contents"].map(str::to_string));
    let mut sections = Vec::new();
    for (file, markdown) in pages {
        let mut writer =
            Writer { file, ids: &ids, taken: &mut taken, title: String::new(), explained: BTreeSet::new(), out: Vec::new() };
        let options = Options::ENABLE_TABLES;
        writer.all(&Parser::new_ext(markdown, options).collect::<Vec<Event>>());
        let mut body = String::new();
        html::push_html(&mut body, writer.out.drain(..));
        // The policy lets no style pass that stands in an attribute.
        let body = body.replace(" style=\"text-align: right\"", " class=\"number\"");
        sections.push(Section { id: id_of(file), title: writer.title, body });
    }
    let (style, script) = (STYLE.trim_end(), include_str!("page.js").trim_end());
    let title = sections.first().map_or("", |section| section.title.as_str());
    let values = context! { title, sections => Serde(&sections), machines => Serde(machines), glossary => Serde(&GLOSSARY) };
    document(include_str!("page.html"), style, script, values)
}

/// The id of the section that a page becomes; claims have names alike. The front page is the top.
fn id_of(file: &str) -> String {
    let name = file.trim_end_matches(".md");
    if name == "README" { "top".to_string() } else { format!("page-{}", slug(name)) }
}

struct Writer<'a, 't> {
    file: &'t str,
    ids: &'t BTreeSet<String>,
    taken: &'t mut BTreeSet<String>,
    title: String,
    /// Words of the glossary that this section has explained.
    explained: BTreeSet<&'static str>,
    out: Vec<Event<'a>>,
}

impl<'a> Writer<'a, '_> {
    fn all(&mut self, events: &[Event<'a>]) {
        let mut rest = events;
        // Neither in a heading nor in a link.
        let mut explains = true;
        while let [event, after @ ..] = rest {
            rest = after;
            match event {
                Event::Start(Tag::Heading { level, .. }) => {
                    self.heading(*level, until(rest, &TagEnd::Heading(*level)));
                    explains = false;
                }
                Event::Start(Tag::Link { dest_url, title, id, link_type }) => {
                    explains = false;
                    let dest_url = self.target(dest_url).into();
                    self.out.push(Event::Start(Tag::Link {
                        link_type: *link_type,
                        dest_url,
                        title: title.clone(),
                        id: id.clone(),
                    }));
                }
                Event::End(TagEnd::Heading(level)) => {
                    explains = true;
                    self.out.push(Event::End(TagEnd::Heading(lowered(*level))));
                }
                Event::End(TagEnd::Link) => {
                    explains = true;
                    self.out.push(event.clone());
                }
                Event::Html(text) | Event::InlineHtml(text) => self.own_html(text),
                // The bar of contents leads to the other pages already.
                Event::Start(Tag::Paragraph) if self.title.is_empty() => {
                    rest = &rest[(until(rest, &TagEnd::Paragraph).len() + 1).min(rest.len())..];
                }
                Event::Start(Tag::Table(_)) => {
                    self.html("<div class=\"table\">\n".to_string());
                    self.out.push(event.clone());
                }
                Event::End(TagEnd::Table) => {
                    self.out.push(event.clone());
                    self.html("</div>\n".to_string());
                }
                Event::Text(text) => self.text(&joined(text), explains),
                _ => self.out.push(event.clone()),
            }
        }
    }

    fn html(&mut self, text: String) {
        self.out.push(Event::InlineHtml(text.into()));
    }

    /// HTML of the templates; anything else is shown as text.
    fn own_html(&mut self, text: &CowStr<'a>) {
        let name = |tag: &str| tag.chars().take_while(|c| c.is_alphanumeric() || *c == '/').collect::<String>();
        let is_own = text.trim_start().starts_with("<!--")
            || text.split('<').skip(1).all(|tag| TAGS.contains(&name(tag).trim_start_matches('/')) || name(tag) == "/a");
        if text.trim_start().starts_with("<!--") {
            return;
        }
        match is_own {
            true => self.out.push(Event::InlineHtml(text.clone())),
            false => self.out.push(Event::Text(text.clone())),
        }
    }

    /// Opens a heading with an id of its own; the first one names the section.
    fn heading(&mut self, level: HeadingLevel, inside: &[Event<'a>]) {
        let title = text_of(inside);
        let id = match level {
            HeadingLevel::H1 => format!("{}-title", id_of(self.file)),
            _ => self.id_for(&title),
        };
        if level == HeadingLevel::H1 {
            self.title = title;
        }
        let level = lowered(level);
        self.out.push(Event::Start(Tag::Heading { level, id: Some(id.into()), classes: Vec::new(), attrs: Vec::new() }));
    }

    /// A link between pages becomes one within this page.
    fn target(&self, target: &str) -> String {
        let Some((file, place)) = target.split_once(".md") else { return target.to_string() };
        match place.strip_prefix('#') {
            Some(place) if self.ids.contains(&id_of(file)) => format!("#{}-{place}", id_of(file)),
            None if self.ids.contains(&id_of(file)) => format!("#{}", id_of(file)),
            _ => target.to_string(),
        }
    }

    /// The section's id and GitHub's for the heading, with a number where that is taken.
    fn id_for(&mut self, title: &str) -> String {
        let letters = title.to_lowercase().replace(' ', "-");
        let plain: String = letters.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let plain = format!("{}-{plain}", id_of(self.file));
        let mut id = plain.clone();
        for n in 1.. {
            if self.taken.insert(id.clone()) {
                break;
            }
            id = format!("{plain}-{n}");
        }
        id
    }

    /// Text, with the symbols of verdicts in their colours, and each word of the glossary explained once.
    fn text(&mut self, text: &str, explains: bool) {
        let word = GLOSSARY.iter().filter(|(word, _)| explains && !self.explained.contains(word));
        let word = word.filter_map(|(word, meaning)| Some((text.find(word)?, *word, *meaning))).min_by_key(|(at, ..)| *at);
        let symbol = text.char_indices().find_map(|(at, c)| Some((at, SYMBOLS.iter().find(|(symbol, _)| *symbol == c)?)));
        let at = match (word, symbol) {
            (Some((at, word, meaning)), symbol) if symbol.is_none_or(|(other, _)| at < other) => {
                self.explained.insert(word);
                self.out.push(Event::Text(text[..at].to_string().into()));
                self.html(format!("<abbr tabindex=\"0\" title=\"{}\">{word}</abbr>", attribute(meaning)));
                at + word.len()
            }
            (_, Some((at, (symbol, class)))) => {
                self.out.push(Event::Text(text[..at].to_string().into()));
                self.html(format!("<span class=\"{class}\">{symbol}</span>"));
                at + symbol.len_utf8()
            }
            _ => return self.out.push(Event::Text(text.to_string().into())),
        };
        self.text(&text[at..], explains);
    }
}

/// A number stays on a line with its unit.
fn joined(text: &str) -> String {
    [" %", " KiB", " MiB", " GiB", " ms"]
        .iter()
        .fold(text.to_string(), |text, unit| text.replace(unit, &unit.replace(' ', "\u{a0}")))
}

/// The level of a page's heading within the page of all.
fn lowered(level: HeadingLevel) -> HeadingLevel {
    match level {
        HeadingLevel::H1 => HeadingLevel::H2,
        HeadingLevel::H2 => HeadingLevel::H3,
        _ => HeadingLevel::H4,
    }
}

/// The events before the end of a tag that is open.
fn until<'e, 'a>(events: &'e [Event<'a>], end: &TagEnd) -> &'e [Event<'a>] {
    let at = events.iter().position(|event| matches!(event, Event::End(tag) if tag == end));
    &events[..at.unwrap_or(events.len())]
}

fn text_of(events: &[Event]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        Event::Text(text) | Event::Code(text) => Some(&**text),
        Event::SoftBreak => Some(" "),
        _ => None,
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_that_no_template_writes_is_shown_as_text() {
        let pages = [(
            "README.md".to_string(),
            "# Title\n\ntext <b onclick=x>bold</b> <img src=\"plots/a.svg\">\n\n<script>x</script>\n".to_string(),
        )];
        let page = page(&pages, &[]).unwrap();
        assert!(page.contains("&lt;b onclick=x&gt;") && !page.contains("<b onclick") && page.contains("<img src=\"plots/a.svg\">"));
        assert!(page.contains("&lt;script&gt;x"));
    }
}
