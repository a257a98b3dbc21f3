//! `vramlab diff A B` of two rehearsals.

use anyhow::{Context, Result};
use rehearse::check::Earlier;
use std::fs;
use std::path::Path;

/// Prints where the difference of two peaks comes from, or writes it as JSON.
///
/// # Errors
/// One of them is no rehearsal, or one of an earlier version, which does not say what its peak holds.
pub fn answers(a: &Path, b: &Path, json: Option<&Path>) -> Result<u8> {
    let (before, after) = (Earlier::read(a)?, Earlier::read(b)?);
    let difference = before.difference(&after)?;
    let Some(json) = json else {
        print!("{}\n{}", before.heading(&after), difference.text());
        return Ok(0);
    };
    let text = format!("{}\n", serde_json::to_string_pretty(&difference)?);
    if json == Path::new("-") {
        print!("{text}");
    } else {
        fs::write(json, text).with_context(|| format!("writing {}", json.display()))?;
    }
    Ok(0)
}
