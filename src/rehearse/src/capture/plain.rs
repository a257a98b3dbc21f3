//! Text of a script's as a terminal may have it.

/// A name or message of a script's as it is shown: on one line, and no sequence that a terminal obeys.
pub fn on_one_line(text: &str) -> String {
    // Beside control characters those that turn the direction of a text.
    let is_plain =
        |c: char| !c.is_control() && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
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
