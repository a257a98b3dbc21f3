//! Words of our own where PyTorch and statistics have theirs: in no page, and in no source, whose comments become help texts and pages.

use std::path::{Path, PathBuf};

pub const JARGON: [&str; 16] = [
    "above rest",
    "dry device",
    "false alarm",
    "fill the time",
    "fills the time",
    "last_words",
    "minds no company",
    "of the fastest rate",
    "over the best single one",
    "patience",
    "pretend",
    "requests refused",
    "seen free",
    "shown and not judged",
    "told by operation",
    "twin",
];

/// Whether a text holds a word of the list, as a word or its beginning.
pub fn jargon(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase();
    let begins = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric());
    JARGON.into_iter().find(|word| text.match_indices(word).any(|(at, _)| begins(at)))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => sources(&path, found),
            Some("rs" | "py" | "cpp" | "h" | "md" | "j2" | "html" | "js") => found.push(path),
            _ => {}
        }
    }
}

#[test]
fn sources_and_documents_use_the_words_of_pytorch_and_statistics() {
    let root = common::root();
    let mut files: Vec<PathBuf> = ["README.md", "METHODOLOGY.md", "CONTRIBUTING.md", "justfile"].map(|name| root.join(name)).into();
    for folder in ["src", "experiments", "records", "python", "docs", "scripts", "benches", "tests"] {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 400, "{}", files.len());
    // The list itself, and a family of models: timm's twins.
    let lists = ["tests/report/words.rs", "docs/ecosystem.md"].map(|name| root.join(name));
    for file in files.into_iter().filter(|file| !lists.contains(file)) {
        for (number, line) in (1..).zip(std::fs::read_to_string(&file).unwrap().lines()) {
            assert_eq!(jargon(line), None, "{}:{number}: {line}", file.display());
        }
    }
}
