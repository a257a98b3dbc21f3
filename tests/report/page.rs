//! What a browser needs of the page: valid, whole, self-contained, the same text as the markdown.

use super::{fixture_report, text};
use scraper::{ElementRef, Html, Selector};
use std::collections::BTreeSet;
use std::path::Path;

fn read(out: &Path) -> (String, Html) {
    let text = std::fs::read_to_string(out.join("index.html")).unwrap();
    let page = Html::parse_document(&text);
    (text, page)
}

fn all<'a>(page: &'a Html, selector: &str) -> Vec<ElementRef<'a>> {
    let selector = Selector::parse(selector).unwrap();
    page.select(&selector).collect()
}

fn words(element: &ElementRef) -> String {
    element.text().collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_page_is_valid_and_its_links_resolve() {
    let (_, out) = fixture_report("page");
    let (_, page) = read(&out);
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
        let inside = target.strip_prefix('#').unwrap_or_else(|| panic!("a link out of the page: {target}"));
        assert!(ids.contains(inside), "{target} leads nowhere");
    }
    assert_eq!(all(&page, "h1").len(), 1);
    let contents: Vec<String> = all(&page, "nav a").iter().map(words).collect();
    let sections: Vec<String> = all(&page, "main h2").iter().map(words).collect();
    assert_eq!(contents, sections);
    assert!(contents.contains(&"Published figures".to_string()) && contents.contains(&"In-place operations".to_string()));
}

#[test]
fn the_page_needs_no_other_file() {
    let (_, out) = fixture_report("self-contained");
    let (text, page) = read(&out);
    for selector in ["img", "link", "script[src]", "iframe", "object", "image", "use"] {
        assert!(all(&page, selector).is_empty(), "{selector}");
    }
    let addresses = text.matches("http").count();
    assert_eq!(
        addresses,
        text.matches("xmlns=\"http://www.w3.org/2000/svg\"").count(),
        "an address beside the pictures' namespace"
    );
    assert!(!text.contains("url(") && !text.contains("@import"));
}

#[test]
fn every_picture_of_the_markdown_stands_in_the_page() {
    let (_, out) = fixture_report("inline");
    let (_, page) = read(&out);
    let drawn = std::fs::read_dir(out.join("plots")).unwrap().count();
    let pictures = all(&page, ".plot > svg[role=img][aria-label][viewBox]");
    assert!(drawn > 10);
    assert_eq!(pictures.len(), drawn);
    let labels: BTreeSet<&str> = pictures.iter().map(|picture| picture.attr("aria-label").unwrap()).collect();
    assert_eq!(labels.len(), drawn, "each says what it is a picture of, and of which machine");
    assert!(all(&page, "svg title").is_empty() && all(&page, "p > svg").is_empty());
}

#[test]
fn tables_are_those_of_the_markdown_and_scroll_in_their_box() {
    let (_, out) = fixture_report("boxes");
    let (_, page) = read(&out);
    let markdown = text(&out);
    let is_rule = |line: &&str| line.trim_start().starts_with("|---");
    assert_eq!(all(&page, "table").len(), markdown.lines().filter(is_rule).count());
    assert_eq!(all(&page, ".table > table > thead + tbody").len(), all(&page, "table").len());
    assert_eq!(all(&page, ".ledger").len(), 2, "the claims' and the published figures'");
    let claim = all(&page, ".ledger tbody tr").into_iter().find(|row| words(row).starts_with("accumulate-memory")).unwrap();
    let cell = claim.select(&Selector::parse("td:nth-child(4)").unwrap()).next().unwrap();
    assert_eq!(words(&cell), "nvidia-h200 (GPU) ✔ peak memory 0.32x to 0.37x");
    assert_eq!(cell.select(&Selector::parse(".yes").unwrap()).count(), 1);
}

/// A claim may have the name of an experiment, and two experiments the same headings.
#[test]
fn headings_and_claims_never_share_an_id() {
    let (_, out) = fixture_report("ids");
    let (_, page) = read(&out);
    assert_eq!(all(&page, "h3#what-came-out, h3#what-came-out-1, h3#what-came-out-2").len(), 3);
    assert_eq!(all(&page, "a#checkpoint-memory").len(), 1);
}

#[test]
fn dark_has_a_colour_for_all_ink_and_paper_of_the_pictures() {
    let (_, out) = fixture_report("dark");
    let (text, page) = read(&out);
    let (light, dark) = text.split_once("prefers-color-scheme: dark").unwrap();
    let dark = dark.split_once("* {").unwrap().0;
    for variable in light.split("--").skip(1).filter_map(|rest| rest.split_once(": #")).map(|(name, _)| name) {
        assert!(dark.contains(&format!("--{variable}: #")), "{variable} has no dark colour");
    }
    // What has no rule keeps its colour, and has to tell on dark and on light.
    let series = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "none"];
    for paint in ["fill", "stroke"] {
        let colors: BTreeSet<&str> =
            all(&page, &format!(".plot [{paint}]")).iter().filter_map(|element| element.attr(paint)).collect();
        for color in colors {
            let has_rule = text.contains(&format!(".plot [{paint}=\"{color}\"]"));
            assert!(has_rule || series.contains(&color), "{paint}={color} would not follow the page");
        }
    }
}
