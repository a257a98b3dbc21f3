//! The user's own results beside those that came with the project: one more column, and nothing is taken away.

use super::project::{committed, copy_tree, report};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A run that a time limit cut short: the first rows of each experiment of a machine, up to a pass that was closed.
fn cut(machine: &Path, own: &Path) {
    copy_tree(machine, own, |_| false);
    for experiment in fs::read_dir(own).unwrap().map(|entry| entry.unwrap().path()) {
        let samples = experiment.join("samples.csv");
        let text = fs::read_to_string(&samples).unwrap();
        let closed: Vec<usize> = text
            .match_indices('\n')
            .map(|(at, _)| at + 1)
            .filter(|end| text[..*end].trim_end().lines().next_back().is_some_and(|row| row.contains(",pass.")))
            .collect();
        if let Some(end) = closed.get(closed.len() * 3 / 5) {
            fs::write(&samples, &text[..*end]).unwrap();
        }
    }
}

fn name_of(machine: &str) -> &str {
    machine.rsplit_once('/').unwrap().1
}

/// The cells of a table's row.
fn cells(row: &str) -> Vec<String> {
    row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_string()).collect()
}

/// Whether all of these are among those, in this order.
fn are_among(some: &[String], all: &[String]) -> bool {
    let mut rest = all.iter();
    some.iter().all(|one| rest.any(|other| other == one || (one.starts_with("---") && other.starts_with("---"))))
}

#[test]
#[ignore = "long"]
fn own_results_take_nothing_away_and_stand_in_a_column_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    let project = root.path();
    copy_tree(committed(), project, |_| false);
    for machine in ["measured/intel-xeon-2c", "predicted/dry-24gib"] {
        cut(&project.join("records").join(machine), &project.join("results").join(name_of(machine)));
    }
    copy_tree(&project.join("records/protocols"), &project.join("results/protocols"), |_| false);
    report(project);
    let mut checked = 0;
    let pages = fs::read_dir(committed().join("report")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages: Vec<String> = pages.filter(|name| name.ends_with(".md")).map(|name| format!("report/{name}")).collect();
    for name in pages.iter().map(String::as_str).chain(["README.md", "METHODOLOGY.md"]) {
        let [before, after] = [committed(), project].map(|root| fs::read_to_string(root.join(name)).unwrap());
        let lines: BTreeSet<&str> = after.lines().collect();
        let rows: Vec<Vec<String>> = after.lines().filter(|line| line.starts_with('|')).map(cells).collect();
        for line in before.lines() {
            let is_kept = match line {
                "" => true,
                row if row.starts_with('|') => rows.iter().any(|found| are_among(&cells(row), found)),
                // What counts rows or names all machines says more.
                line if line.starts_with(['#', '<', '*']) || line.starts_with("- **") => lines.contains(line),
                _ => true,
            };
            assert!(is_kept, "{name} lost: {line}");
            checked += 1;
        }
    }
    assert!(checked > 3000, "{checked}");

    let front = fs::read_to_string(project.join("report/README.md")).unwrap();
    let title = "## What each saves, what it costs, and when: one page for each technique";
    let table: Vec<Vec<String>> = super::section(&front, title).lines().filter(|line| line.starts_with('|')).map(cells).collect();
    assert_eq!(table[0].iter().filter(|cell| cell.starts_with("yours")).count(), 1, "{:?}", table[0]);
    let at = table[0].iter().position(|cell| cell.starts_with("yours")).unwrap();
    let measured = |row: &&Vec<String>| row[at].contains(" %") || row[at] == "not measured";
    assert_eq!(table[2..].iter().filter(measured).count(), table.len() - 2, "{table:?}");
    assert!(table.iter().all(|row| row.iter().all(|cell| cell.matches("<br>").count() <= 1)), "{table:?}");
    // `7 of 12 measured`.
    let words: Vec<&str> = front.split_whitespace().map(|word| word.trim_matches([',', ';'])).collect();
    let says_how_many =
        |four: &[&str]| four[1] == "of" && four[3] == "measured" && [four[0], four[2]].iter().all(|n| n.parse::<u32>().is_ok());
    assert!(words.windows(4).any(says_how_many), "what is not measured in full says so");
    let readme = fs::read_to_string(project.join("README.md")).unwrap();
    let table = readme.split("<!-- results").nth(1).unwrap().split("<!-- end of results").next().unwrap();
    assert!(table.contains("yours: CPU (intel-xeon-2c-yours)"), "{table}");

    // What was cut contradicts nothing: each verdict is the same or not there yet.
    for machine in ["measured/intel-xeon-2c", "predicted/dry-24gib"] {
        let (came, own) = (project.join("records").join(machine), project.join("results").join(name_of(machine)));
        let vramlab = |arguments: &[&Path], command: &str| {
            let output = Command::new(env!("CARGO_BIN_EXE_vramlab")).arg(command).args(arguments).output().unwrap();
            (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
        };
        let (status, said) = vramlab(&[&came, &own], "diff");
        assert!(status == Some(0) && said.contains(" the same; different:\n  none\n"), "{said}");
        let incomplete = said.split_once("Not all measured yet").expect("some are not all measured").1;
        assert!(incomplete.lines().any(|line| line.contains(" measured, so far ")), "{incomplete}");
        let (status, said) = vramlab(&[&own], "check");
        assert!(status == Some(1) && said.contains("configurations are measured in full, '"), "{said}");
    }
}
