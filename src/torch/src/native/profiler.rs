//! The safe wrapper of `profiler.cpp`; see [`crate::Profiler`] for what to use.

use super::{Message, NativeError, checked};
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[repr(C)]
struct RawOptions {
    shapes: i32,
    memory: i32,
    flops: i32,
    cuda: i32,
}

#[repr(C)]
struct RawProfilerEvent {
    name: *const c_char,
    shapes: *const c_char,
    start_ns: i64,
    duration_ns: i64,
    thread: u64,
    bytes: i64,
    flops: u64,
    activity: i32,
    device: i32,
}

#[repr(C)]
struct RawProfile {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawRange {
    _opaque: [u8; 0],
}

type TakeRange = extern "C" fn(*mut c_void, *const RawProfilerEvent, usize);

unsafe extern "C" {
    fn vl_profiler_begin(options: *const RawOptions) -> Message;
    fn vl_profiler_end(out: *mut *mut RawProfile) -> Message;
    fn vl_profile_free(profile: *mut RawProfile);
    fn vl_profile_events(profile: *const RawProfile, taker: *mut c_void, take: TakeRange);
    fn vl_profile_save(profile: *mut RawProfile, path: *const c_char) -> Message;
    fn vl_range_enter(name: *const c_char, out: *mut *mut RawRange) -> Message;
    fn vl_range_leave(range: *mut RawRange);
}

/// What is recorded besides the operations and their times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProfilerOptions {
    pub shapes: bool,
    pub memory: bool,
    pub flops: bool,
    /// Kernels and copies of CUDA devices, by CUPTI.
    pub cuda: bool,
}

/// One event as Kineto gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfilerEvent {
    pub name: String,
    pub shapes: String,
    /// Nanoseconds since 1970.
    pub start_ns: i64,
    pub duration_ns: i64,
    pub thread: u64,
    pub bytes: i64,
    pub flops: u64,
    /// libkineto's `ActivityType`.
    pub activity: i32,
    /// A CUDA device's number, or -1 for the CPU.
    pub device: i32,
}

/// A profiler that records. The pointer keeps it on its thread, whose state it changes.
#[derive(Debug)]
pub struct ProfilerSession(PhantomData<*const ()>);

impl ProfilerSession {
    /// # Errors
    /// Another one records; libtorch's message.
    pub fn begin(options: ProfilerOptions) -> Result<ProfilerSession, NativeError> {
        let ProfilerOptions { shapes, memory, flops, cuda } = options;
        let raw = RawOptions { shapes: shapes.into(), memory: memory.into(), flops: flops.into(), cuda: cuda.into() };
        // SAFETY: the options outlive the call.
        checked(unsafe { vl_profiler_begin(&raw) })?;
        Ok(ProfilerSession(PhantomData))
    }

    /// # Errors
    /// libtorch's message.
    pub fn end(self) -> Result<ProfilerResult, NativeError> {
        std::mem::forget(self);
        end()
    }
}

impl Drop for ProfilerSession {
    fn drop(&mut self) {
        // What it recorded is wanted no more, an error included.
        let _ = end();
    }
}

fn end() -> Result<ProfilerResult, NativeError> {
    let mut raw = std::ptr::null_mut();
    // SAFETY: the function writes an owned pointer where it succeeds, and nothing where it fails.
    checked(unsafe { vl_profiler_end(&mut raw) })?;
    Ok(ProfilerResult(raw))
}

/// What a session recorded.
pub struct ProfilerResult(*mut RawProfile);

impl ProfilerResult {
    pub fn events(&self) -> Vec<ProfilerEvent> {
        let mut taken: Vec<ProfilerEvent> = Vec::new();
        // SAFETY: the profile is alive; `push` only runs during the call, while `taken` is borrowed by nothing else.
        unsafe { vl_profile_events(self.0, (&raw mut taken).cast(), push) };
        taken
    }

    /// Writes the trace.
    ///
    /// # Errors
    /// It has been written before, the file cannot be written; libtorch's message.
    pub fn save(&mut self, path: &Path) -> Result<(), NativeError> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|e| NativeError(e.to_string()))?;
        // SAFETY: the profile is alive and borrowed exclusively; the path outlives the call.
        checked(unsafe { vl_profile_save(self.0, path.as_ptr()) })
    }
}

impl fmt::Debug for ProfilerResult {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ProfilerResult").finish_non_exhaustive()
    }
}

impl Drop for ProfilerResult {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned and freed once.
        unsafe { vl_profile_free(self.0) };
    }
}

extern "C" fn push(taken: *mut c_void, first: *const RawProfilerEvent, count: usize) {
    if count == 0 {
        return;
    }
    // SAFETY: the vector is that of `events`, and C++ gives `count` records.
    let (taken, records) = unsafe { (&mut *taken.cast::<Vec<ProfilerEvent>>(), std::slice::from_raw_parts(first, count)) };
    // SAFETY: C++ gives C strings that live as long as the profile.
    let text = |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    taken.extend(records.iter().map(|r| ProfilerEvent {
        name: text(r.name),
        shapes: text(r.shapes),
        start_ns: r.start_ns,
        duration_ns: r.duration_ns,
        thread: r.thread,
        bytes: r.bytes,
        flops: r.flops,
        activity: r.activity,
        device: r.device,
    }));
}

/// A named range of this thread.
#[derive(Debug)]
pub struct ProfilerRange(*mut RawRange, PhantomData<*const ()>);

impl ProfilerRange {
    /// # Errors
    /// A name with a zero byte; libtorch's message.
    pub fn enter(name: &str) -> Result<ProfilerRange, NativeError> {
        let name = CString::new(name).map_err(|e| NativeError(e.to_string()))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the function writes an owned pointer where it succeeds, and nothing where it fails; it copies the name.
        checked(unsafe { vl_range_enter(name.as_ptr(), &mut raw) })?;
        Ok(ProfilerRange(raw, PhantomData))
    }
}

impl Drop for ProfilerRange {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned, freed once, and cannot have left its thread.
        unsafe { vl_range_leave(self.0) };
    }
}
