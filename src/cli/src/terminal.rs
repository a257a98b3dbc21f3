//! What a terminal gets and a file does not: colour, and one line of progress that is written over.

use super::mcp::is_called_by_agent;
use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};
use base::{eprint, eprintln, print};
use rehearse::files;
use rehearse::show::is_head;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Columns of the terminal that the standard error is; none of a file.
pub fn columns() -> Option<usize> {
    rustix::termios::tcgetwinsize(std::io::stderr()).ok().map(|size| size.ws_col.into()).filter(|columns| *columns > 0)
}

/// Whether colours are wanted there: NO_COLOR is heard, and CLICOLOR.
fn is_coloured() -> bool {
    anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never
}

/// The verdict in colour, headings in bold, and bars.
pub fn styled(text: &str) -> String {
    if !is_coloured() {
        return text.to_string();
    }
    let colour = |colour: AnsiColor| colour.on_default();
    let line = |(at, line): (usize, &str)| {
        let style = match line {
            _ if at == 0 && line.starts_with("FITS") => colour(AnsiColor::Green).bold(),
            _ if at == 0 && line.starts_with("BARELY") => colour(AnsiColor::Yellow).bold(),
            _ if at == 0 => colour(AnsiColor::Red).bold(),
            _ if is_head(line) => Style::new().bold(),
            _ => Style::new(),
        };
        let bars = colour(AnsiColor::Cyan);
        let line = match line.find("#") {
            Some(begin) if line.starts_with("  ") && line.contains(" %  #") => {
                let end = begin + line[begin..].bytes().take_while(|byte| *byte == b'#').count();
                format!("{}{bars}{}{bars:#}{}", &line[..begin], &line[begin..end], &line[end..])
            }
            _ => line.to_string(),
        };
        format!("{style}{line}{style:#}\n")
    };
    text.lines().enumerate().map(line).collect()
}

/// Whether a line of progress stands in the last line of the terminal.
static STANDS: AtomicBool = AtomicBool::new(false);

/// What goes on, in a line of its own.
fn line(what: &str) {
    end_progress();
    eprintln!("vramlab: {what}");
}

/// What goes on while the script prints nothing: on a terminal the line before is written over, an agent gets each, and a file none.
fn rewritten(what: &str) {
    if is_called_by_agent() {
        line(what);
    } else if let Some(columns) = columns().filter(|_| std::io::stderr().is_terminal()) {
        let line: String = format!("vramlab: {what}").chars().take(columns.saturating_sub(1)).collect();
        eprint!("\r\x1b[2K{line}");
        STANDS.store(true, Ordering::Relaxed);
    }
}

/// Before anything else is printed.
pub fn end_progress() {
    if STANDS.swap(false, Ordering::Relaxed) {
        eprint!("\r\x1b[2K");
    }
}

/// Where a rehearsal's progress is printed: while the script is heard, too, in lines of its own.
pub fn progress(quiet: bool, is_silent: bool) -> fn(&str) {
    match (quiet, is_silent) {
        (true, _) => |_| {},
        (false, true) => rewritten,
        (false, false) => line,
    }
}

/// Writes to a file, or with `-` to the standard output.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("writing the answer")? + "\n";
    if path.as_os_str() == "-" {
        print!("{text}")
    } else {
        files::save(path, |out| Ok(out.write_all(text.as_bytes())?))?
    }
    Ok(())
}
