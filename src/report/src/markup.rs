//! Text of pages. Results come from other people's machines: whatever is read from them is escaped, and only what the report itself writes
//! is markup.

use minijinja::Value;
use serde::{Serialize, Serializer};

/// A piece of a page in markdown, safe to stand anywhere in it. Plain strings that a template is given are escaped; these are not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Markdown(String);

impl Markdown {
    /// Text from anywhere, as text: no HTML, no link, no picture, no table cell, no heading. What stands between two backticks is code.
    pub fn text(text: &str) -> Markdown {
        Markdown(escaped(text))
    }

    /// A link to a place that the report writes or that its sources name; never one that results name.
    pub fn link(label: &str, target: &str) -> Markdown {
        Markdown(format!("[{}]({target})", escaped(label)))
    }

    /// Markup that the report's own sources wrote.
    pub fn trusted(markup: String) -> Markdown {
        Markdown(markup)
    }

    /// Lines of code, to stand between two fences: nothing ends the block, and no character is there that cannot be seen.
    pub fn code(text: &str) -> Markdown {
        let lines: Vec<String> = text.lines().map(|line| line.chars().filter(|c| !c.is_control()).collect()).collect();
        Markdown(lines.join("\n").replace("```", "` ` `"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for Markdown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Value::from(self).serialize(serializer)
    }
}

impl From<&Markdown> for Value {
    fn from(piece: &Markdown) -> Value {
        Value::from_safe_string(piece.0.clone())
    }
}

impl From<Markdown> for Value {
    fn from(piece: Markdown) -> Value {
        Value::from(&piece)
    }
}

/// See [`Markdown::text`].
fn escaped(text: &str) -> String {
    let line = one_line(text);
    let parts: Vec<&str> = line.split('`').collect();
    // An odd one out closes nothing.
    if parts.len().is_multiple_of(2) {
        return plain(&line);
    }
    let written = parts.iter().enumerate().map(|(n, part)| match n % 2 {
        // A bar would end a table's cell, also within code.
        1 if !part.trim().is_empty() && !part.contains('|') => format!("`{part}`"),
        1 => plain(&format!("`{part}`")),
        _ => plain(part),
    });
    written.collect()
}

/// On one line, without characters that cannot be seen and change what is.
fn one_line(text: &str) -> String {
    let is_shown =
        |c: &char| !c.is_control() && !matches!(c, '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}');
    let spaced: String = text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).filter(is_shown).collect();
    let (before, after) = (spaced.starts_with(' '), spaced.ends_with(' '));
    let words = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
    // Text may be a piece of a sentence.
    format!("{}{words}{}", if before { " " } else { "" }, if after && !words.is_empty() { " " } else { "" })
}

fn plain(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let at = |n: usize| characters.get(n).copied().unwrap_or(' ');
    let is_word = |n: Option<usize>| n.is_some_and(|n| at(n).is_alphanumeric());
    // Where a heading, a list, a quote or a rule could begin.
    let start = characters.iter().position(|c| *c != ' ').unwrap_or(0);
    let digits = start + characters[start..].iter().take_while(|c| c.is_ascii_digit()).count();
    let mut written = String::with_capacity(text.len());
    for (n, c) in characters.iter().enumerate() {
        let begins_a_block = match c {
            '#' | '+' | '-' | '=' => n == start && matches!(at(n + 1), ' ' | '#' | '-' | '='),
            '.' | ')' => n == digits && digits > start && at(n + 1) == ' ',
            _ => false,
        };
        match c {
            '&' => written.push_str("&amp;"),
            '<' => written.push_str("&lt;"),
            '>' => written.push_str("&gt;"),
            '|' => written.push_str("&#124;"),
            '$' => written.push_str("&#36;"),
            // Or GitHub would make links of addresses.
            ':' if at(n + 1) == '/' && at(n + 2) == '/' => written.push_str("&#58;"),
            '.' if n >= 3 && characters[n - 3..n].iter().all(|c| matches!(c, 'w' | 'W')) => written.push_str("&#46;"),
            '@' => written.push_str("&#64;"),
            '_' if is_word(n.checked_sub(1)) && is_word(Some(n + 1)) => written.push('_'),
            '\\' | '`' | '*' | '_' | '[' | ']' | '~' => {
                written.push('\\');
                written.push(*c);
            }
            c if begins_a_block => {
                written.push('\\');
                written.push(*c);
            }
            c => written.push(*c),
        }
    }
    written
}

/// A name as a part of a file name or an anchor: letters, digits, `-`, `_` and single dots.
pub fn slug(name: &str) -> String {
    let kept = name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' });
    let slug: String = kept.collect::<String>().split('.').filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
    if slug.is_empty() { "unnamed".to_string() } else { slug }
}

/// Text as the value of an attribute in HTML.
pub fn attribute(text: &str) -> String {
    one_line(text).replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulldown_cmark::{Event, Parser};

    #[test]
    fn text_reads_as_it_was() {
        let text = "Set `requires_grad = false`, a_b (x < 1 & y): 5 % * 3 - [1] 1.5.";
        let escaped = Markdown::text(text);
        let events = Parser::new(escaped.as_str()).map(|event| match event {
            Event::Text(text) | Event::Code(text) => text.to_string(),
            _ => String::new(),
        });
        assert_eq!(events.collect::<String>(), text.replace('`', ""));
        for (name, expected) in
            [("../../etc/pass wd", "-.-etc-pass-wd"), ("a\"b<c>", "a-b-c-"), ("..", "unnamed"), ("dry-24gib", "dry-24gib")]
        {
            assert_eq!(slug(name), expected);
        }
    }
}
