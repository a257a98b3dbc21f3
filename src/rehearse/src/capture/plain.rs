//! Text of a script's as a terminal may have it.

use base::console::is_plain;

/// A name or message of a script's as it is shown: on one line, and no sequence that a terminal obeys.
pub fn on_one_line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if is_plain(c) {
            shown.push(c)
        } else {
            shown.extend(c.escape_default())
        }
        shown
    })
}

/// Of an exception's message.
pub fn first_line(message: &str) -> String {
    on_one_line(message.lines().next().unwrap_or_default())
}
