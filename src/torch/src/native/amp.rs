//! The safe wrapper of `amp.cpp`.

use super::{Message, checked};
use anyhow::Result;

unsafe extern "C" {
    fn vl_allow_tf32(products: i32, convolutions: i32) -> Message;
}

/// Lets cuBLAS and cuDNN round the inputs of fp32 products and convolutions to TF32 (8 bits of exponent, 10 of mantissa), or not, from here
/// on in this process. PyTorch's default is products without and convolutions with it. A CPU does not know it.
pub fn allow_tf32(products: bool, convolutions: bool) -> Result<()> {
    // SAFETY: no pointers.
    checked(unsafe { vl_allow_tf32(products.into(), convolutions.into()) })
}
