//! Inference mode: what `torch.inference_mode()` is in Python. tch has `no_grad` only, which stays on after a panic. The safe wrapper of
//! `autograd.cpp`.
//!
//! Under `no_grad` operations record no graph; in inference mode their results have no version counter and no autograd state either, so
//! each operation is a little cheaper, and the results can never become part of a graph: autograd raises where one would be saved for a
//! backward pass, or is written to in place outside.

use super::{Message, checked};
use anyhow::Result;

type RawRegion = std::ffi::c_void;

unsafe extern "C" {
    fn vl_inference_enter(out: *mut *mut RawRegion) -> Message;
    fn vl_inference_leave(region: *mut RawRegion);
}

/// A region of this thread in which inference mode is on. The pointer keeps it on its thread.
struct InferenceRegion(*mut RawRegion);

impl Drop for InferenceRegion {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned, freed once, and cannot have left its thread.
        unsafe { vl_inference_leave(self.0) };
    }
}

/// Runs `body` in inference mode, in which gradients are off. It ends with `body`, also by a panic; what was set before comes back.
pub fn inference_mode<T>(body: impl FnOnce() -> T) -> Result<T> {
    let mut region = std::ptr::null_mut();
    // SAFETY: the function writes an owned pointer where it succeeds, and nothing where it fails.
    checked(unsafe { vl_inference_enter(&mut region) })?;
    let _region = InferenceRegion(region);
    Ok(body())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind, Tensor};

    fn leaf() -> Tensor {
        Tensor::ones([4, 4], (Kind::Float, Device::Cpu)).set_requires_grad(true)
    }

    fn records() -> bool {
        (leaf() * 2.0).requires_grad()
    }

    #[test]
    fn autograd_refuses_what_is_made_inside() {
        let weight = leaf();
        let product = inference_mode(|| weight.matmul(&weight)).unwrap();
        let saved = weight.f_matmul(&product).unwrap_err().to_string();
        assert!(saved.contains("Inference tensors cannot be saved for backward"), "{saved}");
        let mut written = inference_mode(|| weight.matmul(&weight)).unwrap();
        let written = written.f_add_(&weight).unwrap_err().to_string();
        assert!(written.contains("Inplace update to inference tensor outside InferenceMode"), "{written}");
        assert!(weight.f_matmul(&product.copy()).is_ok(), "a copy is an ordinary tensor");
    }

    #[test]
    fn it_is_this_threads_alone_and_ends_by_a_panic_too() {
        let both = inference_mode(|| (records(), std::thread::spawn(records).join().unwrap()));
        assert_eq!(both.unwrap(), (false, true));
        let panicked = std::panic::catch_unwind(|| inference_mode(|| panic!("on purpose")));
        assert!(panicked.is_err() && records());
    }
}
