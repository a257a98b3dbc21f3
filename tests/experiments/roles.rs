//! The `main` of a test program without a harness, which starts itself again to play a role in a process of its own.

use anyhow::Result;
use std::fmt::Display;
use std::process::ExitCode;
use torch::attempt;

/// Plays the role that `--role ROLE ARGUMENT` names and prints its answer; else runs the tests whose names contain one of the arguments, or
/// all of them, as the harness would.
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
    let filters: Vec<&String> = arguments[1..].iter().filter(|a| !a.starts_with('-')).collect();
    let chosen = tests.iter().filter(|(name, _)| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str())));
    let mut failed = 0;
    for (name, test) in chosen {
        let passed = std::panic::catch_unwind(test).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += u32::from(!passed);
    }
    ExitCode::from(u8::from(failed > 0))
}
