//! The safe wrapper of `amp.cpp`; see [`crate::GradScaler`] for what to use.

use super::{Message, checked};
use anyhow::Result;
use tch::Tensor;
use torch_sys::C_tensor;

unsafe extern "C" {
    fn vl_amp_unscale(
        gradients: *const *mut C_tensor,
        count: usize,
        found_inf: *mut C_tensor,
        inverse_scale: *const C_tensor,
    ) -> Message;
    fn vl_allow_tf32(allow: i32) -> Message;
}

/// Multiplies gradients of one device and kind by `inverse_scale`, and sets `found_inf` to 1 where one of them is not finite; both are
/// tensors of one float. Nothing waits for the device.
pub fn unscale(gradients: &mut [Tensor], found_inf: &mut Tensor, inverse_scale: &Tensor) -> Result<()> {
    let pointers: Vec<*mut C_tensor> = gradients.iter_mut().map(Tensor::as_mut_ptr).collect();
    // SAFETY: the pointers are of live tensors that are borrowed exclusively, in a list as long as it says.
    checked(unsafe { vl_amp_unscale(pointers.as_ptr(), pointers.len(), found_inf.as_mut_ptr(), inverse_scale.as_ptr()) })
}

/// Lets cuBLAS and cuDNN round the inputs of fp32 products and convolutions to TF32 (8 bits of exponent, 10 of mantissa), or not, from here
/// on in this process. A CPU does not know it.
pub fn allow_tf32(allow: bool) -> Result<()> {
    // SAFETY: no pointers.
    checked(unsafe { vl_allow_tf32(allow.into()) })
}
