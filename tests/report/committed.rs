//! The report that is committed, held against what its readers need: short, in plain words, of the results beside it.

use super::project::{committed, report};
use std::path::PathBuf;

fn folder() -> PathBuf {
    committed().join("report")
}

fn pages() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    for path in std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push((path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(pages.len() > 20);
    pages
}

/// What README says is what the committed report says, and that is what the committed results say.
#[test]
fn readme_and_report_show_the_committed_results() {
    let root = tempfile::tempdir().unwrap();
    super::project::copy_tree(committed(), root.path(), |path| *path == folder());
    report(root.path());
    let remedy = "is older than records/: run `just report` and stage what it wrote";
    for file in ["README.md", "METHODOLOGY.md", "docs/answer.svg"] {
        let [made, committed] = [root.path(), committed()].map(|project| std::fs::read(project.join(file)).unwrap());
        assert!(made == committed, "{file} {remedy}");
    }
    let (made, committed) = (super::files(&root.path().join("report")), super::files(&folder()));
    for path in made.keys().chain(committed.keys()) {
        assert!(made.get(path) == committed.get(path), "report/{} {remedy}", path.display());
    }
}

#[test]
fn every_page_is_short_before_what_is_folded() {
    for (name, text) in pages() {
        let open = text.lines().take_while(|line| !line.starts_with("<details>")).count();
        let most = match name.as_str() {
            "README.md" => 130,
            _ => 200,
        };
        assert!(open <= most, "{name} has {open} lines before the folded part");
    }
    let readme = std::fs::read_to_string(folder().with_file_name("README.md")).unwrap();
    assert!(readme.lines().count() <= 100, "README.md has {} lines", readme.lines().count());
}

#[test]
fn every_link_of_a_page_is_live() {
    for (name, text) in pages() {
        for target in text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)) {
            if target.starts_with("https://") {
                continue;
            }
            let file = target.split('#').next().unwrap();
            assert!(folder().join(file).is_file(), "{name} links {target}");
        }
        for source in text.split("src").skip(1).filter_map(|rest| Some(rest.split_once("=\"")?.1.split_once('"')?.0)) {
            assert!(folder().join(source).is_file(), "{name} shows {source}");
        }
    }
    // README and the documents, from where they stand.
    let root = common::root();
    let documents = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let documents = documents.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    for path in documents.chain(["README.md", "METHODOLOGY.md", "CONTRIBUTING.md"].map(|name| root.join(name))) {
        let text = std::fs::read_to_string(&path).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)) {
            let file = target.split('#').next().unwrap();
            let lives = target.contains("://") || file.is_empty() || path.with_file_name(file).exists();
            assert!(lives, "{} links {target}", path.display());
        }
    }
}

/// Words of our own where PyTorch and statistics have theirs, and what a sentence looks like whose figure is missing.
#[test]
fn no_page_has_jargon_or_a_broken_sentence() {
    let jargon = [
        "launching operations fills",
        "growth exponent",
        "(000)",
        "(001)",
        "(002)",
        "uide 00",
        "cell by cell",
        "; or ",
        "where in ",
    ];
    let broken = [
        "NaN",
        " inf ",
        "-inf",
        "infx",
        "inf %",
        "only where a;",
        "{effect}",
        "{where}",
        " 0 cells",
        ": skipped",
        "skipped (",
        "1x = 1 ",
        "unbounded",
        "unknown ",
        "No picture for",
        "  ,",
    ];
    for (name, text) in pages() {
        assert_eq!(super::words::jargon(&text), None, "{name}");
        // Lines of packages are quoted as they are written.
        let is_quoted = name == "versions.md";
        let text = text.split('`').step_by(if is_quoted { 2 } else { 1 }).collect::<Vec<&str>>().join("`");
        for word in jargon.iter().chain(&broken) {
            assert!(!text.contains(word), "{name} has '{word}': {:?}", text.lines().find(|line| line.contains(word)));
        }
    }
}

/// Every condition of every sentence is met by the committed results, and no figure of a sentence is missing: else the sentence wants an
/// editor before the results are committed.
#[test]
fn every_sentence_is_true_of_the_committed_results() {
    let mut edited = 0;
    for (name, text) in pages() {
        for wanted in ["wants an editor", "Left out: ", "new figures contradict"] {
            assert!(!text.contains(wanted), "{name}: {:?}", text.lines().find(|line| line.contains(wanted)));
        }
        edited += usize::from(
            ["\n**Works", "\n**Does not", "\n**Not known yet", "\n**Shows"].iter().any(|verdict| text.contains(verdict)),
        );
    }
    assert!(edited > 20, "{edited}");
}

/// Before the folded evidence no sentence is put together from names of levels: `peak memory (policy = sqrt) 0.19x`.
#[test]
fn no_prose_is_assembled_from_levels() {
    let mut sentences = 0;
    for (name, text) in pages() {
        let open = text.split("<details>").next().unwrap();
        let mut is_code = false;
        for line in open.lines() {
            is_code ^= line.starts_with("```");
            // Tables of figures name levels in their heads.
            if is_code || line.starts_with(['|', '<']) {
                continue;
            }
            let levels = line.split('`').step_by(2).any(|prose| prose.contains(" = "));
            assert!(!levels, "{name}: {line}");
            sentences += 1;
        }
    }
    assert!(sentences > 300, "{sentences}");
}

/// Each committed picture is whole, says for screen readers what it shows, names its axes' scales, and has a form for phones.
#[test]
fn every_picture_is_whole_and_says_what_it_shows() {
    let mut seen = 0;
    for path in std::fs::read_dir(folder().join("plots")).unwrap().map(|entry| entry.unwrap().path()) {
        super::assert_whole(&path);
        let svg = std::fs::read_to_string(&path).unwrap();
        let title = svg.split_once("<title>").and_then(|(_, rest)| Some(rest.split_once("</title>")?.0)).unwrap_or_default();
        assert!(title.len() > 20, "{}: the title says nothing: '{title}'", path.display());
        assert!(!title.contains("NaN") && !title.contains("inf ") && !title.contains("{"), "{}: {title}", path.display());
        let texts: Vec<String> = super::svg::texts(&svg).1.into_iter().map(|text| text.text).collect();
        assert!(!texts.iter().any(|text| text == "1x = 1"), "{}: 1x is 1", path.display());
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with("-narrow.svg") {
            assert!(path.with_file_name(name.replace(".svg", "-narrow.svg")).is_file(), "{name} has no form for phones");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

/// Nothing about nothing: a table has no rows of what was skipped altogether.
#[test]
fn tables_have_no_rows_without_a_figure() {
    let mut rows = 0;
    for path in std::fs::read_dir(folder().join("data")).unwrap().map(|entry| entry.unwrap().path()) {
        for line in std::fs::read_to_string(&path).unwrap().lines().skip(1) {
            assert!(!line.ends_with(",skipped"), "{}: {line}", path.display());
            rows += 1;
        }
    }
    assert!(rows > 500, "{rows}");
}

/// A sentence of a document whose claim nobody has would say 'not known yet' for good.
#[test]
fn advice_names_claims_that_experiments_make() {
    let protocols = std::fs::read_dir(committed().join("records/protocols")).unwrap();
    let made: Vec<String> = protocols.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
    for line in include_str!("../../src/report/src/others.csv").lines().skip(1) {
        let (_, claims) = line.rsplit_once(';').unwrap();
        for claim in claims.split_whitespace().map(|claim| claim.trim_start_matches('!')) {
            let id = format!("\"id\": \"{claim}\"");
            assert!(made.iter().any(|run| run.contains(&id)), "no experiment has the claim '{claim}': {line}");
        }
    }
}

/// The list of claims names each guide once, with its address where that is known.
#[test]
fn each_guide_is_named_once() {
    let guides = std::fs::read_to_string(folder().join("guides.md")).unwrap();
    for guide in [
        "PyTorch 메모리 최적화 기법",
        "PyTorch GPU 메모리 관리",
        "GPU 메모리·연산 효율 최적화 완전 가이드",
        "Pytorch에서 memory사용 Guide",
        "PyTorch Dataloader pin_memory설정",
    ] {
        assert_eq!(guides.matches(guide).count(), 1, "{guide}");
    }
    assert_eq!(guides.matches("https://colinch4.github.io/").count(), 1);
}
