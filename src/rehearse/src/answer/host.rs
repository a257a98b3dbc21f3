//! What a job takes of the host's memory: the script's processes and their workers, what is pinned, and what workers hand over.

use crate::capture::host::HostFigures;
use crate::capture::process::Trace;
use base::units::{Bytes, counted};
use serde::Serialize;
use std::collections::HashMap;

/// The host's memory that a job takes, at least, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct HostMemory {
    pub at_least: u64,
    /// Page-locked, as PyTorch's allocator rounds it up and keeps it.
    pub pinned: u64,
    pub workers: u32,
    /// Of workers alone.
    pub of_workers: u64,
    /// Batches that workers have ready, in /dev/shm.
    pub shared_memory: u64,
    /// What the host has; 0 where that is not known.
    pub host: u64,
}

/// Less than this that nobody wrote to are stacks of threads and the allocators' reserves.
const LEAST_UNTOUCHED: u64 = 256 << 20;

/// Shares of the host's memory above which a job, or what it pins, is warned of.
const MOST: f64 = 0.8;
const MOST_PINNED: f64 = 0.5;

/// As much of /dev/shm as nearly fills a container's.
const OF_CONTAINERS: u64 = 56 << 20;

impl HostMemory {
    /// None where no process has said what it has.
    pub fn of(traces: &[Trace], host: u64) -> Option<HostMemory> {
        let figures: Vec<HostFigures> = traces.iter().map(|trace| trace.host).filter(|host| host.resident > 0).collect();
        // Each has PyTorch's files mapped, once for all.
        let files = figures.iter().map(|of| of.file).max()?;
        let mut found = HostMemory { at_least: files, host, ..HostMemory::default() };
        for of in &figures {
            let untouched = if of.untouched >= LEAST_UNTOUCHED { of.untouched } else { 0 };
            found.at_least = found.at_least.saturating_add(of.resident.saturating_sub(of.file)).saturating_add(untouched);
            found.pinned = found.pinned.saturating_add(of.pinned);
        }
        let mut workers: HashMap<u32, u64> = HashMap::new();
        let mut largest: HashMap<(u32, &str), u64> = HashMap::new();
        for fetch in traces.iter().flat_map(|trace| &trace.fetches) {
            if fetch.worker != fetch.owner {
                let private = workers.entry(fetch.worker).or_default();
                *private = fetch.private.max(*private);
            }
            let most = largest.entry((fetch.owner, &fetch.loads)).or_default();
            *most = fetch.bytes.max(*most);
        }
        for trace in traces {
            for loader in trace.loaders.iter().filter(|loader| loader.workers > 0) {
                let batch = largest.get(&(trace.process.id, loader.name.as_str())).copied().unwrap_or(0);
                let ready = batch.saturating_mul(u64::from(loader.workers) * u64::from(loader.prefetched));
                found.shared_memory = found.shared_memory.saturating_add(ready);
            }
        }
        found.workers = workers.len() as u32;
        found.of_workers = workers.into_values().fold(0, u64::saturating_add);
        found.at_least = found.at_least.saturating_add(found.of_workers).saturating_add(found.shared_memory);
        Some(found)
    }

    /// What a headline adds: where it is more than a host should give.
    pub fn warning(&self) -> Option<String> {
        let host = self.host as f64;
        let (what, took) = match () {
            () if self.host == 0 => return None,
            () if self.at_least as f64 > host * MOST => ("takes", self.at_least),
            () if self.pins_too_much(self.pinned) => ("pins", self.pinned),
            () => return None,
        };
        let (took, host) = (Bytes(took), Bytes(self.host));
        Some(format!("But it {what} {took} of the host's RAM, which has {host} (--host-memory says what the target has)."))
    }

    /// Where it is known what the host has.
    pub fn pins_too_much(&self, pinned: u64) -> bool {
        self.host > 0 && pinned as f64 > self.host as f64 * MOST_PINNED
    }

    pub fn said(&self) -> String {
        let mut parts = Vec::new();
        if self.pinned > 0 {
            parts.push(format!("{} pinned (PyTorch rounds each tensor up to a power of two)", Bytes(self.pinned)));
        }
        if self.workers > 0 {
            parts.push(format!("{} with {}", counted(self.workers as usize, "worker"), Bytes(self.of_workers)));
        }
        if self.shared_memory > 0 {
            let too_small = ", where a container has 64 MiB unless it is told (--shm-size)";
            let too_small = if self.shared_memory >= OF_CONTAINERS { too_small } else { "" };
            parts.push(format!("{} in /dev/shm{too_small}", Bytes(self.shared_memory)));
        }
        let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
        format!("Host RAM at least {}{parts}.", Bytes(self.at_least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pins_more_than_half_of_a_known_host_is_warned_of() {
        let of = |host, pinned| HostMemory { host, pinned, ..HostMemory::default() };
        assert_eq!([(8, 4), (8, 5), (0, 5)].map(|(host, pinned)| of(host, pinned).warning().is_some()), [false, true, false]);
        // Of a job with another technique, on the same host.
        assert!(of(8, 0).pins_too_much(5));
    }
}
