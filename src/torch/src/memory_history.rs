//! The history of CUDA's caching allocator, and its snapshot for <https://pytorch.org/memory_viz>.

use super::native::memory_history;
use anyhow::{Context, Result, ensure};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The history belongs to the process.
static KEPT: AtomicBool = AtomicBool::new(false);

/// Has PyTorch's caching allocator, real or dry, keep every allocation and free with the operation in which it was made: what
/// `torch.cuda.memory._record_memory_history()` does for Python, whose stacks a program without Python does not have. Ends when it is
/// dropped.
/// ```no_run
/// use torch::{Cuda, MemoryHistory};
///
/// fn main() -> anyhow::Result<()> {
///     let _device = Cuda::new(0)?;
///     let history = MemoryHistory::begin(100_000)?;
///     // ... train ...
///     history.save("snapshot.pickle".as_ref())?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct MemoryHistory(PhantomData<*const ()>);

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptHistory {
    /// Allocations, frees, and what the allocator asked of the driver.
    pub entries: u64,
    /// Bytes that the allocations asked for.
    pub allocated: i64,
}

impl MemoryHistory {
    /// Begins to keep the last `entries` events of every CUDA device.
    ///
    /// # Errors
    /// No CUDA device, real or dry, is open in this process; a history is kept already.
    pub fn begin(entries: u64) -> Result<MemoryHistory> {
        ensure!(!KEPT.swap(true, Ordering::SeqCst), "a memory history is kept already, and a process has one: drop it first");
        memory_history::begin(entries).inspect_err(|_| KEPT.store(false, Ordering::SeqCst))?;
        Ok(MemoryHistory(PhantomData))
    }

    /// Writes what lives and what was kept so far as a pickled snapshot.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<KeptHistory> {
        let (entries, allocated) = memory_history::save(path).context("writing a memory snapshot")?;
        Ok(KeptHistory { entries, allocated })
    }
}

impl Drop for MemoryHistory {
    fn drop(&mut self) {
        memory_history::end();
        KEPT.store(false, Ordering::SeqCst);
    }
}
