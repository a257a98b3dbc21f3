//! What was run, where and how: `run.json`.

use crate::protocol::{Platform, Profile, Protocol};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Name of the file.
pub(super) const MANIFEST: &str = "run.json";

/// Version of both files' layout.
pub const SCHEMA: u32 = 1;

/// What must agree between two runs whose rows may stand in one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Readable name of the machine and of its results folder: `amd-epyc-2c`, `nvidia-h200`.
    pub machine: String,
    pub platform: Platform,
    /// CPU, cores, memory, GPU, driver, power limit, under readable names.
    pub hardware: BTreeMap<String, String>,
    pub libtorch: String,
    /// Thread count, TF32, cuDNN benchmark, allocator configuration.
    pub flags: BTreeMap<String, String>,
    /// Limit on the device's memory that the user set.
    pub memory_limit: Option<u64>,
    pub seed: u64,
    /// Hash of the sources that take figures (not of those that report them).
    pub sources: String,
}

/// What was run, where and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub schema: u32,
    pub profile: Profile,
    pub identity: Identity,
    /// Every cell that this folder is to hold, as canonical text.
    pub planned: Vec<String>,
    pub argv: Vec<String>,
    /// Recorded, never compared.
    pub git_revision: String,
    pub git_dirty: bool,
    pub protocol: Protocol,
}

pub(super) fn read(path: &Path) -> Result<Manifest> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let value: serde_json::Value = serde_json::from_str(&text).with_context(|| format!("{} is not valid JSON", path.display()))?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        Some(schema) if schema == u64::from(SCHEMA) => {}
        Some(other) => bail!(
            "{} has results of schema {other}, and this vramlab reads schema {SCHEMA}; read them with the version that wrote them, or move the folder away",
            path.display()
        ),
        None => bail!("{} names no schema: it is no manifest of a run", path.display()),
    }
    serde_json::from_value(value).with_context(|| format!("{} is no manifest of schema {SCHEMA}", path.display()))
}

/// What of two runs does not agree, as sentences; what is only recorded is left out.
pub(super) fn differences(stored: &Manifest, now: &Manifest) -> Result<Vec<String>> {
    let mut found = Vec::new();
    if stored.protocol.name != now.protocol.name {
        found.push(format!("experiment: there '{}', now '{}'", stored.protocol.name, now.protocol.name));
    } else if stored.protocol != now.protocol {
        found.push("protocol: its factors, grids, checks or claims were others".to_string());
    }
    if stored.profile != now.profile {
        found.push(format!("profile: there {}, now {}", stored.profile, now.profile));
    }
    compare("", &serde_json::to_value(&stored.identity)?, &serde_json::to_value(&now.identity)?, &mut found);
    Ok(found)
}

fn compare(name: &str, there: &serde_json::Value, now: &serde_json::Value, found: &mut Vec<String>) {
    use serde_json::Value::{Null, Object};
    match (there, now) {
        (Object(a), Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                compare(key, a.get(key).unwrap_or(&Null), b.get(key).unwrap_or(&Null), found);
            }
        }
        _ if there != now => found.push(format!("{}: there {there}, now {now}", name.replace('_', " "))),
        _ => {}
    }
}
