//! What a browser needs of the page: valid, light, every link live, the same text as the markdown.

use super::{files, fixture_report};
use scraper::{ElementRef, Html, Selector};
use std::collections::BTreeSet;
use std::path::Path;

pub fn read(out: &Path) -> (String, Html) {
    let text = std::fs::read_to_string(out.join("index.html")).unwrap();
    let page = Html::parse_document(&text);
    (text, page)
}

pub fn all<'a>(page: &'a Html, selector: &str) -> Vec<ElementRef<'a>> {
    let selector = Selector::parse(selector).unwrap();
    page.select(&selector).collect()
}

fn words(element: &ElementRef) -> String {
    element.text().collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Ids are unique, and each link leads to one of them or to a file of the report; what leads out of it is what its sources name.
pub fn assert_links_are_live(out: &Path) {
    let (_, page) = read(out);
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    let mut ids = BTreeSet::new();
    for element in all(&page, "[id]") {
        let id = element.attr("id").unwrap();
        assert!(ids.insert(id), "the id '{id}' is there twice");
    }
    let links = all(&page, "a[href]");
    assert!(links.len() > 10);
    for link in links {
        let target = link.attr("href").unwrap();
        let is_known = [
            "https://ui.perfetto.dev",
            "https://pytorch.org/memory_viz",
            "https://colinch4.github.io/",
            "https://github.com/huggingface/",
            "https://github.com/pytorch/",
        ];
        let lives = match target.strip_prefix('#') {
            Some(id) => ids.contains(id),
            None => is_known.iter().any(|known| target.starts_with(known)) || out.join(target).is_file(),
        };
        assert!(lives, "{target} leads nowhere");
    }
    for (element, attribute) in [("img", "src"), ("source", "srcset")] {
        for picture in all(&page, element) {
            assert!(out.join(picture.attr(attribute).unwrap()).is_file(), "{:?}", picture.attr(attribute));
        }
    }
}

#[test]
fn the_page_is_valid_and_its_links_are_live() {
    let (_, out) = fixture_report("page");
    assert_links_are_live(&out);
    let (text, page) = read(&out);
    let contents: Vec<String> = all(&page, "nav a").iter().map(words).collect();
    let sections: Vec<String> = all(&page, "main > section > h2:first-child").iter().map(words).collect();
    assert_eq!(contents, sections);
    assert!(contents.contains(&"Published figures".to_string()) && contents.contains(&"In-place operations".to_string()));
    assert!(!text.contains("url(") && !text.contains("@import") && all(&page, "script[src], link, iframe, object").is_empty());
}

#[test]
fn every_page_and_picture_of_the_markdown_stands_in_it_once() {
    let (_, out) = fixture_report("whole");
    let (_, page) = read(&out);
    let written = files(&out);
    let pages = written.keys().filter(|path| path.extension().is_some_and(|extension| extension == "md")).count();
    assert_eq!(all(&page, "main > section").len(), pages + 1, "the glossary comes on top");
    let drawn = written.keys().filter(|path| path.starts_with("plots")).count();
    let pictures = all(&page, "picture > source[media] + img[loading=lazy][alt]");
    assert_eq!(2 * pictures.len(), drawn, "each for a page and for a phone");
    let labels: BTreeSet<&str> = pictures.iter().map(|picture| picture.attr("alt").unwrap()).collect();
    assert_eq!(labels.len(), pictures.len(), "each says what it is a picture of, and of which machine");
    assert_eq!(all(&page, ".table > table > thead + tbody").len(), all(&page, "table").len());
    assert!(all(&page, "abbr[title]").iter().any(|word| words(word) == "peak memory"), "words are explained");
}

/// Each picture follows the reader's light or dark by itself.
#[test]
fn dark_has_a_colour_for_all_ink_and_paper_of_the_pictures() {
    let (_, out) = fixture_report("dark");
    let (text, _) = read(&out);
    let (light, dark) = text.split_once("prefers-color-scheme: dark").unwrap();
    let dark = dark.split_once("* {").unwrap().0;
    for variable in light.split("--").skip(1).filter_map(|rest| rest.split_once(": #")).map(|(name, _)| name) {
        assert!(dark.contains(&format!("--{variable}: #")), "{variable} has no dark colour");
    }
    // What has no rule keeps its colour, and has to tell on dark and on light.
    let series = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "none"];
    for (path, bytes) in files(&out).into_iter().filter(|(path, _)| path.starts_with("plots")) {
        let svg = String::from_utf8(bytes).unwrap();
        for paint in ["fill", "stroke"] {
            let colors: BTreeSet<&str> =
                svg.split(&format!(" {paint}=\"")).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0)).collect();
            for color in colors {
                let has_rule = svg.contains(&format!("[{paint}=\"{color}\"]"));
                assert!(has_rule || series.contains(&color), "{}: {paint}={color} would not follow the page", path.display());
            }
        }
    }
}
