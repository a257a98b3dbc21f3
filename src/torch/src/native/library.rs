//! Where a library that this program carries inside stands, so that the dynamic loader can open it.

use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::OnceLock;

/// A file without a name, which children inherit and which goes with the last process that has it open. So nothing is left behind, and a
/// folder for temporary files may forbid executing them.
#[derive(Debug)]
pub struct MemoryFile(File);

impl MemoryFile {
    /// # Errors
    /// The kernel gives no memory file, or memory runs out.
    pub fn new(name: &str, contents: &[u8]) -> std::io::Result<MemoryFile> {
        let mut file = File::from(memfd_create(name, MemfdFlags::empty())?);
        file.write_all(contents)?;
        Ok(MemoryFile(file))
    }

    /// The file of a place, made there when it is first asked for.
    pub fn once<'a>(place: &'a OnceLock<MemoryFile>, name: &str, contents: &[u8]) -> std::io::Result<&'a MemoryFile> {
        if let Some(file) = place.get() {
            return Ok(file);
        }
        let file = MemoryFile::new(name, contents)?;
        Ok(place.get_or_init(|| file))
    }

    /// Its path for this process, and for the children that it starts while the file is open.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}
