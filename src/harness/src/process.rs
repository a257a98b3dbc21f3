//! Memory of this process as the kernel counts it: heap, mapped files, libraries and all. An allocator's meter sees only what went
//! through it.

use anyhow::{Context, Result};
use std::path::Path;

/// Bytes of this process that stand in physical memory (resident set size), shared pages counted in full. The kernel
/// batches its counts, so that figures can be some pages off for each thread.
pub fn resident() -> Result<u64> {
    field(Path::new("/proc/self/status"), "VmRSS")
}

/// A line `Name:   123 kB` in bytes.
pub(crate) fn field(path: &Path, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let value =
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(value.with_context(|| format!("{} has no line '{name}'", path.display()))? * 1024)
}
