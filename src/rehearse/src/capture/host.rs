//! What a process had of the host's memory.

use serde::Deserialize;
use std::fs;

/// What a process says of itself (`python/vramlab_rehearsal/hosting.py`), in bytes; the most of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct HostFigures {
    pub resident: u64,
    /// Of that, pages of files, which processes share.
    pub file: u64,
    /// May be written to and was not, more than when PyTorch was imported: a real GPU's copies fill it.
    pub untouched: u64,
    pub pinned: u64,
}

impl HostFigures {
    pub fn join(&mut self, other: HostFigures) {
        self.resident = self.resident.max(other.resident);
        self.file = self.file.max(other.file);
        self.untouched = self.untouched.max(other.untouched);
        self.pinned = self.pinned.max(other.pinned);
    }
}

/// Processes that this machine's kernel has ended so far for want of memory.
pub fn killed_for_memory() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
}

/// Bytes of memory by a line of this machine's, `MemTotal:` or `MemAvailable:`, or what its container may take; none where nobody says.
pub fn memory_of_this_machine(name: &str) -> Option<u64> {
    let of_file = |path| fs::read_to_string(path).unwrap_or_default();
    let kib = |line: &str| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
    let memory = of_file("/proc/meminfo").lines().find_map(kib).map(|kib| kib << 10);
    memory.into_iter().chain(of_file("/sys/fs/cgroup/memory.max").trim().parse::<u64>()).min()
}
