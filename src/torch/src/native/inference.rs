//! The safe wrapper of `autograd.cpp`.

use super::{Message, NativeError, checked};
use std::marker::PhantomData;
use tch::Tensor;
use torch_sys::C_tensor;

#[repr(C)]
struct RawRegion {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn vl_inference_enter(out: *mut *mut RawRegion) -> Message;
    fn vl_inference_leave(region: *mut RawRegion);
    fn vl_is_inference_tensor(tensor: *const C_tensor) -> i32;
}

/// A region of this thread in which inference mode is on. The pointer keeps it on its thread.
#[derive(Debug)]
pub struct InferenceRegion(*mut RawRegion, PhantomData<*const ()>);

impl InferenceRegion {
    /// Begins a region.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn enter() -> Result<InferenceRegion, NativeError> {
        let mut region = std::ptr::null_mut();
        // SAFETY: the function writes an owned pointer where it succeeds, and nothing where it fails.
        checked(unsafe { vl_inference_enter(&mut region) })?;
        Ok(InferenceRegion(region, PhantomData))
    }
}

impl Drop for InferenceRegion {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned, freed once, and cannot have left its thread.
        unsafe { vl_inference_leave(self.0) };
    }
}

/// Whether a tensor was made in inference mode, and can therefore be no part of a graph. (Views made inside of a tensor from outside are
/// tensors from outside.)
pub fn is_inference(tensor: &Tensor) -> bool {
    // SAFETY: the tensor outlives the call.
    unsafe { vl_is_inference_tensor(tensor.as_ptr()) != 0 }
}
