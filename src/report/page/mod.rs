//! The report as one page for a browser: the markdown turned into HTML, with its pictures, style and script inside.
//!
//! The markdown is the only source. What is added is what a browser can do and GitHub cannot: a bar of contents, tables that sort
//! and that scroll inside their own box, pictures that follow the reader's light or dark.

use super::plots::Picture;
use anyhow::{Context, Result};
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};
use serde::Serialize;
use std::collections::BTreeSet;

/// What stands for a verdict in the text, with its class in the style.
const SYMBOLS: [(char, &str); 4] = [('✔', "yes"), ('✘', "no"), ('◐', "mixed"), ('○', "shown")];

/// The sections whose table has a column for each machine.
const LEDGERS: [&str; 2] = ["All claims", "Published figures"];

/// A line of the contents.
#[derive(Debug, Serialize)]
struct Section {
    id: String,
    title: String,
}

/// What the page's template fills in.
#[derive(Debug, Serialize)]
struct Page<'a> {
    title: &'a str,
    sections: &'a [Section],
    body: &'a str,
    style: &'a str,
    script: &'a str,
}

/// Makes the page of a report's markdown and the pictures that it shows.
///
/// # Errors
/// The markdown shows a picture that is not among them.
pub fn page(markdown: &str, pictures: &[Picture]) -> Result<String> {
    let events: Vec<Event> = Parser::new_ext(markdown, Options::ENABLE_TABLES).collect();
    let mut writer = Writer { pictures, taken: ids_in(&events), sections: Vec::new(), title: String::new(), out: Vec::new() };
    writer.all(&events)?;
    let mut body = String::new();
    html::push_html(&mut body, writer.out.drain(..));

    let mut templates = Environment::new();
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.add_template("page.html", include_str!("page.html")).context("parsing the page's template")?;
    let filled = templates.get_template("page.html")?.render(Serde(Page {
        title: &writer.title,
        sections: &writer.sections,
        body: body.trim_end(),
        style: include_str!("style.css").trim_end(),
        script: include_str!("tables.js").trim_end(),
    }));
    filled.map(|text| text.trim_end().to_string() + "\n").context("filling in the page's template")
}

/// The ids that the markdown itself sets; headings take others.
fn ids_in(events: &[Event]) -> BTreeSet<String> {
    let html = events.iter().filter_map(|event| match event {
        Event::Html(text) | Event::InlineHtml(text) => Some(text),
        _ => None,
    });
    html.flat_map(|text| text.split(" id=\"").skip(1)).filter_map(|rest| Some(rest.split_once('"')?.0.to_string())).collect()
}

struct Writer<'a> {
    pictures: &'a [Picture],
    taken: BTreeSet<String>,
    sections: Vec<Section>,
    title: String,
    out: Vec<Event<'a>>,
}

impl<'a> Writer<'a> {
    fn all(&mut self, events: &[Event<'a>]) -> Result<()> {
        let mut rest = events;
        while let [event, after @ ..] = rest {
            rest = after;
            match event {
                Event::Start(Tag::Heading { level, .. }) => self.heading(*level, until(rest, &TagEnd::Heading(*level))),
                Event::Start(Tag::HtmlBlock) => rest = self.html_block(rest)?,
                Event::Start(Tag::Image { dest_url, .. }) => {
                    let inside = until(rest, &TagEnd::Image);
                    let picture = self.picture(dest_url, &text_of(inside))?;
                    self.html(picture);
                    rest = &rest[inside.len() + 1..];
                }
                Event::Start(Tag::Table(_)) => {
                    let is_ledger = self.sections.last().is_some_and(|section| LEDGERS.contains(&section.title.as_str()));
                    self.html(format!("<div class=\"{}\">\n", if is_ledger { "table ledger" } else { "table" }));
                    self.out.push(event.clone());
                    if is_ledger {
                        let inside = until(rest, &TagEnd::Table);
                        self.ledger(inside);
                        rest = &rest[inside.len()..];
                    }
                }
                Event::End(TagEnd::Table) => {
                    self.out.push(event.clone());
                    self.html("</div>\n".to_string());
                }
                Event::Text(text) => self.text(text),
                _ => self.out.push(event.clone()),
            }
        }
        Ok(())
    }

    fn html(&mut self, text: String) {
        self.out.push(Event::InlineHtml(text.into()));
    }

    /// Opens a heading with an id of its own; the first of all gives the page its title.
    fn heading(&mut self, level: HeadingLevel, inside: &[Event<'a>]) {
        let title = text_of(inside);
        let id = self.id_for(&title);
        match level {
            HeadingLevel::H1 if self.title.is_empty() => self.title.clone_from(&title),
            HeadingLevel::H2 => self.sections.push(Section { id: id.clone(), title }),
            _ => {}
        }
        self.out.push(Event::Start(Tag::Heading { level, id: Some(id.into()), classes: Vec::new(), attrs: Vec::new() }));
    }

    /// The inside of a ledger. Each machine's cell begins with the machine, for narrow screens, which show a line as a block.
    fn ledger(&mut self, inside: &[Event<'a>]) {
        let (head, rows) = inside.split_at(until(inside, &TagEnd::TableHead).len());
        let heads: Vec<String> = head.split(|event| *event == Event::End(TagEnd::TableCell)).map(text_of).collect();
        self.out.extend_from_slice(head);
        let mut column = 0;
        for event in rows {
            match event {
                Event::Text(text) => self.text(text),
                _ => self.out.push(event.clone()),
            }
            match event {
                Event::Start(Tag::TableRow) => column = 0,
                Event::End(TagEnd::TableCell) => column += 1,
                Event::Start(Tag::TableCell) if column >= 2 => {
                    let machine = super::attribute(heads.get(column).map_or("", String::as_str));
                    self.html(format!("<span class=\"machine\">{machine}</span> "));
                }
                _ => {}
            }
        }
    }

    /// GitHub's rule for the id of a heading, with a number where it is taken.
    fn id_for(&mut self, title: &str) -> String {
        let letters = title.to_lowercase().replace(' ', "-");
        let plain: String = letters.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let mut id = plain.clone();
        for n in 1.. {
            if self.taken.insert(id.clone()) {
                break;
            }
            id = format!("{plain}-{n}");
        }
        id
    }

    /// A block of HTML as it is, but for a gallery, whose pictures stand one below the other. Returns what follows the block.
    fn html_block<'e>(&mut self, rest: &'e [Event<'a>]) -> Result<&'e [Event<'a>]> {
        let inside = until(rest, &TagEnd::HtmlBlock);
        let text = text_of(inside);
        if text.trim_start().starts_with("<table class=\"gallery\">") {
            for image in text.split("<img ").skip(1) {
                let attribute = |name: &str| Some(image.split_once(&format!("{name}=\""))?.1.split_once('"')?.0);
                let (file, alt) = attribute("src").zip(attribute("alt")).context("a picture of a gallery without src or alt")?;
                let picture = self.picture(file, &alt.replace("&quot;", "\"").replace("&lt;", "<").replace("&amp;", "&"))?;
                self.html(format!("<p>{picture}</p>\n"));
            }
        } else {
            self.html(text);
        }
        Ok(&rest[inside.len() + 1..])
    }

    /// A picture in its own box, which scrolls where the screen is narrower than its letters can be read.
    fn picture(&self, file: &str, alt: &str) -> Result<String> {
        let found = self.pictures.iter().find(|picture| file.strip_prefix("plots/") == Some(&picture.file));
        let svg = &found.with_context(|| format!("the report shows {file}, which was not drawn"))?.svg;
        let label = super::attribute(alt);
        // The label says what a title would, without a tooltip over the whole picture; opacity and font are the page's.
        let (head, rest) = svg
            .split_once("<title>")
            .and_then(|(head, rest)| Some((head, rest.split_once("</title>")?.1)))
            .with_context(|| format!("{file} has no title"))?;
        let head = head.trim_end().replacen("<svg ", &format!("<svg aria-label=\"{label}\" "), 1);
        let rest = rest.trim().replace(" opacity=\"1\"", "").replace(" font-family=\"sans-serif\"", "");
        Ok(format!("<span class=\"plot\">{head}{rest}</span>"))
    }

    /// Text, with the symbols of verdicts in their colours.
    fn text(&mut self, text: &CowStr<'a>) {
        let mut rest: &str = text;
        while let Some((at, (symbol, class))) =
            rest.char_indices().find_map(|(at, c)| Some((at, SYMBOLS.iter().find(|(symbol, _)| *symbol == c)?)))
        {
            self.out.push(Event::Text(rest[..at].to_string().into()));
            self.html(format!("<span class=\"{class}\">{symbol}</span>"));
            rest = &rest[at + symbol.len_utf8()..];
        }
        self.out.push(Event::Text(rest.to_string().into()));
    }
}

/// The events before the end of a tag that is open.
fn until<'e, 'a>(events: &'e [Event<'a>], end: &TagEnd) -> &'e [Event<'a>] {
    let at = events.iter().position(|event| matches!(event, Event::End(tag) if tag == end));
    &events[..at.unwrap_or(events.len())]
}

fn text_of(events: &[Event]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        Event::Text(text) | Event::Code(text) | Event::Html(text) => Some(&**text),
        Event::SoftBreak => Some(" "),
        _ => None,
    });
    texts.collect()
}
