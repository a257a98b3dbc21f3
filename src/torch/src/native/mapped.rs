//! Files in memory, as bytes and as tensors.

use super::batch_memory::vl_tensor_over;
use super::{NativeError, checked};
use memmap2::{Mmap, MmapMut, MmapOptions};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use tch::{Kind, Tensor};

/// Maps a whole file for reading. Only the pages that are read come into memory.
///
/// # Errors
/// The kernel's: no regular file, no address space.
pub fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: what others write to the file shows in the bytes, which carry no meaning that Rust relies on; a file that others cut short
    // meanwhile ends the process (SIGBUS), as it does every program that maps files.
    unsafe { Mmap::map(file) }
}

/// A CPU tensor whose memory is a part of a file, mapped by itself: pages are read when they are touched, and unmapped when the last
/// tensor over them goes. The mapping is private: what is written to the tensor stays in memory and does not reach the file.
///
/// # Errors
/// The part does not fit shape and kind, or is not aligned for it; a kind that has no number here; the kernel's and libtorch's.
pub fn tensor_over_file(file: &File, offset: u64, length: usize, shape: &[i64], kind: Kind) -> Result<Tensor, NativeError> {
    let fail = |why: String| Err(NativeError(why));
    let elements = shape.iter().try_fold(1usize, |n, size| n.checked_mul(usize::try_from(*size).ok()?));
    let width = kind.elt_size_in_bytes();
    if elements.and_then(|n| n.checked_mul(width)) != Some(length) || length == 0 {
        return fail(format!("{length} bytes are no tensor of shape {shape:?} and kind {kind:?}"));
    }
    if !offset.is_multiple_of(width as u64) {
        return fail(format!("offset {offset} is not aligned for elements of {width} bytes"));
    }
    let end = offset.checked_add(length as u64);
    let available = file.metadata().map_err(|e| NativeError(e.to_string()))?.len();
    if end.is_none_or(|end| end > available) {
        return fail(format!("the file has {available} bytes, and {length} from byte {offset} on are asked for"));
    }
    let dtype = scalar_type(kind)?;
    // SAFETY: as in `map_file`; a private mapping, so writes are this process's own.
    let map = unsafe { MmapOptions::new().offset(offset).len(length).map_copy(file) };
    let mut owner = Box::new(map.map_err(|e| NativeError(format!("mapping {length} bytes: {e}")))?);
    let data = owner.as_mut_ptr().cast();
    let mut tensor = std::ptr::null_mut();
    // SAFETY: the mapping has as many bytes as shape and kind need, aligned for it; its ownership passes to the tensor, which drops it
    // once through `drop_map`, also where the call fails. The function writes an owned tensor where it succeeds.
    unsafe {
        let owner = Box::into_raw(owner).cast();
        checked(vl_tensor_over(data, shape.as_ptr(), shape.len(), dtype, owner, drop_map, &mut tensor))?;
        Ok(Tensor::from_ptr(tensor))
    }
}

extern "C" fn drop_map(owner: *mut c_void) {
    // SAFETY: the pointer was made by `tensor_over_file` and is dropped once.
    drop(unsafe { Box::from_raw(owner.cast::<MmapMut>()) });
}

/// c10::ScalarType's numbers, which are stable: serialised models hold them.
fn scalar_type(kind: Kind) -> Result<i8, NativeError> {
    Ok(match kind {
        Kind::Uint8 => 0,
        Kind::Int8 => 1,
        Kind::Int16 => 2,
        Kind::Int => 3,
        Kind::Int64 => 4,
        Kind::Half => 5,
        Kind::Float => 6,
        Kind::Double => 7,
        Kind::Bool => 11,
        Kind::BFloat16 => 15,
        other => return Err(NativeError(format!("a tensor of kind {other:?} cannot be laid over a file"))),
    })
}
