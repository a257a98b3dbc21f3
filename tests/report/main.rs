//! What a reader notices about a report: every claim, every machine, every failure, pictures that are whole, the same bytes twice.

mod fixture;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vramlab::report;

/// A report over all fixtures, in a folder that stays for who wants to look at it.
fn fixture_report(name: &str) -> (PathBuf, PathBuf) {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&root);
    let (results, out) = (root.join("results"), root.join("report"));
    fixture::write_all(&results);
    report::write(&results, &out).unwrap();
    (results, out)
}

/// Every file of a report with its contents.
fn files(out: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for dir in [out.to_path_buf(), out.join("plots")] {
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
            found.insert(path.strip_prefix(out).unwrap().to_path_buf(), std::fs::read(&path).unwrap());
        }
    }
    found
}

#[test]
fn it_can_be_looked_at() {
    fixture_report("look");
}
