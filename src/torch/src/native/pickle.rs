//! The safe wrapper of `pickle.cpp`.

use super::{Message, NativeError, checked};
use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tch::Tensor;
use torch_sys::C_tensor;

unsafe extern "C" {
    fn vl_pickle_save(path: *const c_char, names: *const *const c_char, tensors: *const *const C_tensor, count: usize) -> Message;
}

/// Writes named tensors as a pickled dictionary; see [`crate::save_pickle`].
///
/// # Errors
/// A name or a path with a zero byte; libtorch's message; the system's.
pub fn save_pickle(path: &Path, tensors: &[(&str, &Tensor)]) -> Result<(), NativeError> {
    let zero = |e: std::ffi::NulError| NativeError(e.to_string());
    let path = CString::new(path.as_os_str().as_bytes()).map_err(zero)?;
    let names = tensors.iter().map(|(name, _)| CString::new(*name).map_err(zero)).collect::<Result<Vec<CString>, _>>()?;
    let name_pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let pointers: Vec<*const C_tensor> = tensors.iter().map(|(_, tensor)| tensor.as_ptr()).collect();
    // SAFETY: the strings and tensors outlive the call, and both lists have `count` entries.
    checked(unsafe { vl_pickle_save(path.as_ptr(), name_pointers.as_ptr(), pointers.as_ptr(), pointers.len()) })
}
