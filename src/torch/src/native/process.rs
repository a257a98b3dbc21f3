//! Copies of this process, and its end.

use std::io::{Error, Result};

/// Which of the two processes goes on here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    Copy,
    /// The original, with the copy's id.
    Original(u32),
}

/// Goes on as two processes.
///
/// # Errors
/// This process has several threads, of which a copy would have one, and would wait for ever for what the others held; the system's own.
pub fn fork_process() -> Result<Forked> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(Error::other(format!("a process of {threads} threads cannot be copied")));
    }
    // SAFETY: there is one thread, so nothing in the copy is held by a thread that it does not have.
    match unsafe { libc::fork() } {
        0 => Ok(Forked::Copy),
        id => u32::try_from(id).map(Forked::Original).map_err(|_| Error::last_os_error()),
    }
}

/// Ends this process here and now. Nothing is torn down: libtorch would take longer to unregister its operators than most steps take.
/// Files that were not closed lose what is still buffered.
pub fn end_process(status: u8) -> ! {
    // SAFETY: does not return, so nothing can be used after it.
    unsafe { libc::_exit(status.into()) }
}
