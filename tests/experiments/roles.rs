//! The `main` of a test program without Rust's harness, which starts itself again to play a role in a process of its own.

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use std::fmt::Display;
use std::process::ExitCode;
use torch::attempt;

/// What `just test-all` alone runs.
const LONG: [&str; 1] = ["every_experiment_runs"];

/// Plays the role that `--role ROLE ARGUMENT` names and prints its answer; else runs the tests as the harness would.
pub fn main<T: Display>(play: fn(&str, &str) -> Result<T>, tests: &[(&str, fn())]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, role, argument] = &arguments[..]
        && flag == "--role"
    {
        // Whoever started this one reads the error.
        std::panic::set_hook(Box::new(|_| {}));
        return match attempt(|| play(role, argument)) {
            Ok(answer) => {
                println!("{answer}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let trial = |(name, test): &(&str, fn())| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok(())
        })
        .with_ignored_flag(LONG.contains(name))
    };
    libtest_mimic::run(&Arguments::from_args(), tests.iter().map(trial).collect()).exit_code()
}
