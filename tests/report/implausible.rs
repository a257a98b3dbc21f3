//! Figures that no run takes: `check` says of each that it cannot be.

use std::fs;
use std::path::Path;

const MACHINE: &str = "intel-xeon-2c";
const EXPERIMENT: &str = "accumulation";

/// What `check` says of an experiment whose rows are changed so.
fn problems(change: &dyn Fn(Vec<String>) -> Vec<String>) -> Vec<String> {
    let (root, committed) = (tempfile::tempdir().unwrap(), super::project::committed().join("records"));
    let experiment = Path::new("measured").join(MACHINE).join(EXPERIMENT);
    super::project::copy_tree(&committed.join(&experiment), &root.path().join(&experiment), |_| false);
    super::project::copy_tree(&committed.join("protocols"), &root.path().join("protocols"), |_| false);
    let rows = root.path().join(&experiment).join("samples.csv");
    let changed = change(fs::read_to_string(&rows).unwrap().lines().map(str::to_string).collect());
    fs::write(&rows, changed.join("\n") + "\n").unwrap();
    report::check(&root.path().join("measured").join(MACHINE)).unwrap()
}

/// The value of the first row of a metric, or of all, times a number.
fn times(rows: Vec<String>, metric: &str, by: f64, all: bool) -> Vec<String> {
    let mut left = if all { usize::MAX } else { 1 };
    let changed = rows.into_iter().map(|row| {
        let mut fields: Vec<String> = row.split(',').map(str::to_string).collect();
        if fields[3] != metric || left == 0 {
            return row;
        }
        left -= 1;
        fields[5] = (fields[5].parse::<f64>().unwrap() * by).to_string();
        fields.join(",")
    });
    changed.collect()
}

#[test]
fn results_in_other_units_and_rows_that_are_doubled_or_missing_are_found() {
    assert_eq!(problems(&|rows| rows), Vec::<String>::new());
    let at = |rows: &[String], metric: &str| rows.iter().position(|row| row.split(',').nth(3) == Some(metric)).unwrap();
    type Change<'a> = &'a dyn Fn(Vec<String>) -> Vec<String>;
    let cases: [(&str, Change); 8] = [
        ("which no allocator gives", &|rows| times(rows, "requested_peak", 0.1, true)),
        ("B above its 'requested_peak'", &|rows| times(rows, "activations", 1000.0, false)),
        ("of 'time'", &|rows| times(rows, "time", 1000.0, true)),
        ("of 'time'", &|rows| times(rows, "time", 1000.0, false)),
        ("with which its check fails", &|rows| {
            let row = at(&rows, "gradient_error");
            let text = rows[row].replace(rows[row].split(',').nth(5).unwrap(), "0.9");
            rows.into_iter().enumerate().map(|(n, other)| if n == row { text.clone() } else { other }).collect()
        }),
        ("rows that stand twice", &|mut rows| {
            let row = at(&rows, "time");
            rows.insert(row, rows[row].clone());
            rows
        }),
        ("rows that stand twice", &|mut rows| {
            let row = at(&rows, "requested_peak");
            rows.insert(row, rows[row].clone());
            rows
        }),
        ("rows that are missing", &|mut rows| {
            rows.remove(at(&rows, "time") + 1);
            rows
        }),
    ];
    for (number, (says, change)) in cases.into_iter().enumerate() {
        let found = problems(change);
        assert!(found.iter().any(|problem| problem.contains(says)), "{number}: {says}: {found:?}");
    }
}
