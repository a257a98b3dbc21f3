//! The safe wrapper of `autograd.cpp`.

use super::{Message, NativeError, checked};
use tch::Tensor;
use torch_sys::C_tensor;

unsafe extern "C" {
    fn vl_backward_keeping_graph(tensor: *const C_tensor) -> Message;
    fn vl_backward_is_whole() -> i32;
}

/// Runs a backward pass from a tensor of one element, and keeps the graph for another one.
///
/// # Errors
/// libtorch's message.
pub fn backward_keeping_graph(tensor: &Tensor) -> Result<(), NativeError> {
    // SAFETY: the tensor outlives the call.
    checked(unsafe { vl_backward_keeping_graph(tensor.as_ptr()) })
}

/// Whether the backward pass that called on this thread gives every leaf its gradient, and was not asked for those of some tensors only.
/// True where there is none.
pub fn backward_is_whole() -> bool {
    // SAFETY: reads a flag of the thread.
    unsafe { vl_backward_is_whole() != 0 }
}
