//! Memory of whole processes as the kernel counts it: heap, mapped files, libraries and all. An allocator's meter sees only what went
//! through it.

use anyhow::{Context, Result};
use std::path::Path;

/// Bytes of this process that stand in physical memory (resident set size), shared pages counted in full. The kernel
/// batches its counts, so that figures can be some pages off for each thread.
///
/// # Errors
/// There is no `/proc`.
pub fn resident() -> Result<u64> {
    field(Path::new("/proc/self/status"), "VmRSS")
}

/// Proportional set size of a process in bytes: a page that n processes share counts 1/n for each, so that the sizes of several processes
/// add up.
///
/// # Errors
/// There is no such process, or it is another user's.
pub fn proportional(pid: u32) -> Result<u64> {
    field(Path::new(&format!("/proc/{pid}/smaps_rollup")), "Pss")
}

/// Proportional set size of a process and of all that descend from it, in bytes. One that ends meanwhile counts nothing.
///
/// # Errors
/// There is no such process.
pub fn proportional_of_tree(root: u32) -> Result<u64> {
    let own = proportional(root)?;
    Ok(own + descendants(root)?.into_iter().filter_map(|pid| proportional(pid).ok()).sum::<u64>())
}

/// All processes that descend from one.
fn descendants(root: u32) -> Result<Vec<u32>> {
    let pids = std::fs::read_dir("/proc").context("reading /proc")?.flatten();
    let parents: Vec<(u32, u32)> =
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let of = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        at += 1;
    }
    found.remove(0);
    Ok(found)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; state and parent follow the last of them.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// A line `Name:   123 kB` in bytes.
fn field(path: &Path, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let value =
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(value.with_context(|| format!("{} has no line '{name}'", path.display()))? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_touched_is_resident() {
        // Other tests of this process take and give back gigabytes meanwhile, but not at every attempt.
        let is_seen = |_| {
            let before = resident().unwrap();
            let mut block = vec![0u8; 512 << 20];
            block.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            let with = resident().unwrap();
            drop(std::hint::black_box(block));
            let after = resident().unwrap();
            with >= before + 256 * MIB && after + 256 * MIB < with
        };
        assert!((0..10).any(is_seen));
    }

    #[test]
    fn a_child_counts_with_its_parent() {
        let own = proportional(std::process::id()).unwrap();
        assert!(own > MIB / 2);
        // A shell whose child holds 32 MiB: a grandchild of this process.
        let mut shell = Command::new("sh")
            .args(["-c", "head -c 33554432 /dev/zero | tail -c 33554432 | (read line; sleep 1) & read go; kill $!; wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let grown = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            proportional_of_tree(shell.id()).unwrap() > 30 * MIB
        });
        shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
        shell.wait().unwrap();
        assert!(grown, "tail keeps 32 MiB until its reader reads them");
        assert!(proportional(shell.id()).is_err());
    }
}
