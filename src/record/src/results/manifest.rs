//! What was run, where and how: `run.json`.

use super::rows::read_file;
use crate::protocol::{Method, PlainProtocol, Platform, Profile};
use crate::rounds::Rounds;
use anyhow::{Context, Result, bail};
use base::order::distinct;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Name of the file.
pub(super) const MANIFEST: &str = "run.json";

/// Prefix of the folders that the parts of a sweep write to, inside the experiment's folder.
pub const SHARD: &str = "shard-";

/// Version of both files' layout.
pub const SCHEMA: u32 = 2;

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
}

/// What was run, where and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub schema: u32,
    /// What was measured; with each row's cell and the identity it says what a figure is a figure of.
    #[serde(flatten)]
    pub method: Method,
    pub profile: Profile,
    pub identity: Identity,
    /// Every cell that this folder is to hold, as canonical text.
    pub planned: Vec<String>,
    /// The timed rounds, as they were set beforehand; unsaid in results of before they were kept.
    #[serde(default)]
    pub rounds: Rounds,
    /// Every command that measured into the folder, the first one first. Recorded, never compared.
    pub commands: Vec<Command>,
    /// The method's protocol, in its file of today: its claims and words may have changed since.
    #[serde(skip)]
    pub protocol: PlainProtocol,
}

/// A command that measured, what it was built from, and on what it ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// When it began, UTC: `2026-11-22T05:10:00Z`. Empty in results of before it was kept.
    #[serde(default)]
    pub began: String,
    pub argv: Vec<String>,
    pub git_revision: String,
    pub git_dirty: bool,
    /// Kernel, exact CPU, compilers, and the versions of what PyTorch in Python uses, under readable names.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

impl Manifest {
    /// Whether any of the commands was built from sources with local changes.
    pub fn is_dirty(&self) -> bool {
        self.commands.iter().any(|command| command.git_dirty)
    }

    /// The revisions that the figures were taken at, each once.
    pub fn revisions(&self) -> Vec<&str> {
        distinct(self.commands.iter().map(|command| command.git_revision.as_str()))
    }
}

pub(super) fn read(path: &Path) -> Result<Manifest> {
    let text = read_file(path)?;
    let value: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| format!("{} is not valid JSON", path.display()))?;
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
    if stored.method != now.method {
        found.push(format!("method: there {}, now {}", stored.method, now.method));
    }
    if stored.profile != now.profile {
        found.push(format!("profile: there {}, now {}", stored.profile, now.profile));
    }
    if stored.rounds != now.rounds {
        found.push(format!(
            "timed rounds: there {}, now {}; rounds that are added after a look at the figures make false positives likelier, so all \
             comparisons get as many as were set beforehand",
            stored.rounds, now.rounds
        ));
    }
    let compared =
        |identity: &Identity| serde_json::to_value(Identity { hardware: compared(&identity.hardware), ..identity.clone() });
    compare("", &compared(&stored.identity)?, &compared(&now.identity)?, &mut found);
    Ok(found)
}

/// What of the hardware decides figures: a container's share of the host's memory and the driver's patch level, which change from day to day,
/// do not.
fn compared(hardware: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let kept = hardware.iter().filter(|(name, _)| *name != "memory");
    let major = |version: &str| version.split('.').next().unwrap_or_default().to_string();
    kept.map(|(name, value)| (name.clone(), if name == "driver" { major(value) } else { value.clone() })).collect()
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
