//! What a page for browsers needs to hold everything that it shows: how its policy names a script, and a picture as an address.

use anyhow::{Context, Result};
use base64ct::{Base64, Encoding};
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
    format!("sha256-{}", Base64::encode_string(&Sha256::digest(format!("\n{text}\n"))))
}

/// An address that is the picture itself.
pub fn picture_address(svg: &str) -> String {
    format!("data:image/svg+xml;base64,{}", Base64::encode_string(svg.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_and_addresses_are_those_of_a_browser() {
        // printf '\nalert(1)\n' | openssl dgst -sha256 -binary | base64
        assert_eq!(policy_hash("alert(1)"), "sha256-J8+4/wmqNoqVGih0Xof49bzVEIwR8aHhR5HvZK1wlzY=");
        assert_eq!(picture_address("<svg"), "data:image/svg+xml;base64,PHN2Zw==");
    }
}
