//! The safe wrapper of `witness.cpp`: a digest of what a step asks for.

use super::{Message, checked};
use anyhow::{Context, Result, bail};
use std::ffi::{CStr, CString, c_char, c_void};
use tch::Device;

type TakeWitness = extern "C" fn(*mut c_void, *const c_char, *const c_char);

unsafe extern "C" {
    fn vl_witness_begin(device: i32) -> Message;
    fn vl_witness_end(known: *const c_char, taker: *mut c_void, take: TakeWitness) -> Message;
}

/// The witness of `body`, as text, and what in it differs first from one of before; empty where nothing does. `known` may be empty.
///
/// # Errors
/// What the body fails with; a device whose allocations nobody can follow.
pub fn witness(device: Device, known: &str, body: impl FnOnce() -> Result<()>) -> Result<(String, String)> {
    let device = match device {
        Device::Cpu => -1,
        Device::Cuda(index) => i32::try_from(index)?,
        other => bail!("allocations on {other:?} cannot be followed"),
    };
    let known = CString::new(known).context("a witness has no zeros")?;
    // SAFETY: no pointers.
    checked(unsafe { vl_witness_begin(device) })?;
    let done = body();
    let mut taken = (String::new(), String::new());
    // SAFETY: `take` only runs during the call, while `taken` is borrowed by nothing else.
    checked(unsafe { vl_witness_end(known.as_ptr(), (&raw mut taken).cast(), take) })?;
    done.map(|()| taken)
}

extern "C" fn take(taken: *mut c_void, digest: *const c_char, difference: *const c_char) {
    // SAFETY: both are C strings that live during the call.
    let text = |pointer: *const c_char| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned();
    // SAFETY: the pair is that of `witness`.
    unsafe { *taken.cast::<(String, String)>() = (text(digest), text(difference)) };
}
