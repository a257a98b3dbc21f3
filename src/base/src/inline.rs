//! What a page for browsers needs to hold everything that it shows: how its policy names a script, and a picture as an address.

use anyhow::{Context, Result};
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value, context};
use sha2::{Digest, Sha256};

/// The style of all pages.
pub const STYLE: &str = include_str!("style.css");

/// A page of a template that extends `document.html`, whose policy lets nothing run but the page's own script, and no style pass but its
/// own. `values` are the template's, with the page's `title`.
///
/// # Errors
/// The template is malformed, or uses a value that is not there.
pub fn document(template: &'static str, style: &str, script: &str, values: Value) -> Result<String> {
    let mut templates = Environment::new();
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.set_auto_escape_callback(|_| AutoEscape::Html);
    templates.add_template("document.html", include_str!("document.html")).context("parsing the template of all pages")?;
    templates.add_template("page.html", template).context("parsing the page's template")?;
    let own = context! { style, script, style_hash => policy_hash(style), script_hash => policy_hash(script), ..values };
    let filled = templates.get_template("page.html")?.render(own);
    filled.map(|text| text.trim_end().to_string() + "\n").context("filling in the page's template")
}

/// How a content security policy names an inline script or style that may stay: its SHA-256 in base 64, as between the tags.
fn policy_hash(text: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(format!("\n{text}\n"))))
}

/// An address that is the picture itself.
pub fn picture_address(svg: &str) -> String {
    format!("data:image/svg+xml;base64,{}", base64(svg.as_bytes()))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut written = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let is_there = place <= three.len();
            written.push(if is_there { char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]) } else { '=' });
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_a_browser() {
        // printf '\nalert(1)\n' | openssl dgst -sha256 -binary | base64
        assert_eq!(policy_hash("alert(1)"), "sha256-J8+4/wmqNoqVGih0Xof49bzVEIwR8aHhR5HvZK1wlzY=");
    }

    #[test]
    fn pictures_are_addresses() {
        for (svg, end) in [("", ""), ("<", "PA=="), ("<s", "PHM="), ("<sv", "PHN2"), ("<svg", "PHN2Zw==")] {
            assert_eq!(picture_address(svg), format!("data:image/svg+xml;base64,{end}"));
        }
    }
}
