//! `vramlab diff A B` of two rehearsals.

use super::terminal::write_json;
use anyhow::Result;
use base::print;
use rehearse::check::Earlier;
use std::path::Path;

/// Prints where the difference of two peaks comes from, or writes it as JSON.
pub fn answers(a: &Path, b: &Path, json: Option<&Path>) -> Result<u8> {
    let (before, after) = (Earlier::read(a)?, Earlier::read(b)?);
    let difference = before.difference(&after)?;
    match json {
        Some(path) => write_json(path, &difference)?,
        None => print!("{}\n{}", before.heading(&after), difference.text()),
    }
    Ok(0)
}
