//! Printing for a reader who may be gone: where an output is closed (`| head -1`), what is printed is dropped and the program goes on, and
//! where it cannot be written for another reason ([`status`]) the program fails in the end. The standard macros of these names panic, and
//! what would have come after, a file for instance, is lost.

use std::fmt::Arguments;
use std::io::{ErrorKind, Result, Write};
use std::sync::{Arc, OnceLock};

/// Why the standard output could not be written.
static LOST: OnceLock<String> = OnceLock::new();

fn write(mut to: impl Write, text: Arguments, more: &str) -> Result<()> {
    to.write_fmt(text)?;
    to.write_all(more.as_bytes())?;
    to.flush()
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
