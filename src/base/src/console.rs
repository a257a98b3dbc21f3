//! Printing for a reader who may be gone: where an output is closed (`| head -1`), what is printed is dropped and the program goes on, and
//! where it cannot be written for another reason ([`status`]) the program fails in the end. The standard macros of these names panic, and
//! what would have come after, a file for instance, is lost.

use std::fmt::Arguments;
use std::io::{ErrorKind, Result, Write};
use std::sync::{Arc, OnceLock};

/// Why the standard output could not be written.
static LOST: OnceLock<String> = OnceLock::new();

fn write(mut to: impl Write, text: Arguments, more: &str) -> Result<()> {
    to.write_all(obeyed_by_none(&text.to_string()).as_bytes())?;
    to.write_all(more.as_bytes())?;
    to.flush()
}

/// Whether a terminal only shows it: beside control characters it obeys those that turn the direction of a text.
pub fn is_plain(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text in which neither a terminal nor GitHub's runner finds anything to obey: much of what is printed is a script's, or of a file that a stranger
/// has made. The runner reads `::error::` at a line's beginning and `##[error]` anywhere.
fn obeyed_by_none(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let begins = line.len() - line.trim_start().len();
        let line = match line[begins..].strip_prefix("::") {
            Some(rest) => format!("{}: :{rest}", &line[..begins]),
            None => line.to_string(),
        };
        for c in line.replace("##[", "# #[").chars() {
            if is_plain(c) || matches!(c, '\n' | '\t') { shown.push(c) } else { shown.extend(c.escape_default()) }
        }
    }
    shown
}

#[test]
fn what_is_printed_is_obeyed_by_no_terminal_and_no_runner() {
    assert_eq!(obeyed_by_none("a\x1b[2J\n  ::error::b\t##[error]c ::\r\n"), "a\\u{1b}[2J\n  : :error::b\t# #[error]c ::\\r\n");
}

/// To the standard output; `more` follows the text.
pub fn print(text: Arguments, more: &str) {
    if let Err(error) = write(std::io::stdout().lock(), text, more)
        && error.kind() != ErrorKind::BrokenPipe
    {
        LOST.get_or_init(|| error.to_string());
    }
}

/// To the standard error, of which nobody can be told that it is gone.
pub fn print_error(text: Arguments, more: &str) {
    write(std::io::stderr().lock(), text, more).ok();
}

/// A file beyond the limit of `ulimit -f` is an error of whoever writes it, and not this process's end without a word. Programs that it starts
/// have the signal as it was: a handler, unlike a signal that is ignored, is no child's.
pub fn outlive_limits() {
    // Where that fails, it is as before.
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).ok();
}

/// The exit status of a program that would have this one, once everything is printed.
pub fn status(status: u8) -> u8 {
    let Some(lost) = LOST.get() else { return status };
    print_error(format_args!("vramlab: writing to the standard output: {lost}"), "\n");
    status.max(1)
}

#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::console::print(format_args!($($text)*), "") };
}

#[macro_export]
macro_rules! println {
    () => { $crate::console::print(format_args!(""), "\n") };
    ($($text:tt)*) => { $crate::console::print(format_args!($($text)*), "\n") };
}

#[macro_export]
macro_rules! eprint {
    ($($text:tt)*) => { $crate::console::print_error(format_args!($($text)*), "") };
}

#[macro_export]
macro_rules! eprintln {
    () => { $crate::console::print_error(format_args!(""), "\n") };
    ($($text:tt)*) => { $crate::console::print_error(format_args!($($text)*), "\n") };
}
