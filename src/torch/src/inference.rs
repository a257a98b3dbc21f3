//! Inference mode: what `torch.inference_mode()` is in Python. tch has `no_grad` only, which stays on after a panic.
//!
//! Under `no_grad` operations record no graph; in inference mode their results have no version counter and no autograd state either, so
//! each operation is a little cheaper, and the results can never become part of a graph: autograd raises where one would be saved for a
//! backward pass, or is written to in place outside.

pub use super::native::is_inference;

use super::native::{InferenceRegion, NativeError};

/// Runs `body` in inference mode, in which gradients are off. It ends with `body`, also by a panic; what was set before comes back.
///
/// # Errors
/// libtorch's message.
pub fn inference_mode<T>(body: impl FnOnce() -> T) -> Result<T, NativeError> {
    let _region = InferenceRegion::enter()?;
    Ok(body())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind, Tensor};

    const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

    fn leaf() -> Tensor {
        Tensor::ones([4, 4], FLOAT).set_requires_grad(true)
    }

    #[test]
    fn what_is_made_inside_is_an_inference_tensor_and_records_nothing() {
        let weight = leaf();
        let (product, view) = inference_mode(|| (weight.matmul(&weight), weight.narrow(0, 0, 1))).unwrap();
        assert!(is_inference(&product) && !product.requires_grad());
        assert!(!is_inference(&view), "a view of a tensor from outside");
        assert!(!is_inference(&weight.matmul(&weight)) && weight.matmul(&weight).requires_grad());
        let made_under_no_grad = tch::no_grad(|| weight.matmul(&weight));
        assert!(!is_inference(&made_under_no_grad) && !made_under_no_grad.requires_grad());
    }

    #[test]
    fn autograd_refuses_it_afterwards() {
        let weight = leaf();
        let product = inference_mode(|| weight.matmul(&weight)).unwrap();
        let saved = weight.f_matmul(&product).unwrap_err().to_string();
        assert!(saved.contains("Inference tensors cannot be saved for backward"), "{saved}");
        let mut written = inference_mode(|| weight.matmul(&weight)).unwrap();
        let written = written.f_add_(&weight).unwrap_err().to_string();
        assert!(written.contains("Inplace update to inference tensor outside InferenceMode"), "{written}");
        let clone = product.copy();
        assert!(!is_inference(&clone) && weight.f_matmul(&clone).is_ok(), "a copy is an ordinary tensor");
    }

    fn is_on() -> bool {
        is_inference(&Tensor::ones([1], FLOAT))
    }

    #[test]
    fn it_ends_by_a_panic_too() {
        let panicked = std::panic::catch_unwind(|| inference_mode(|| panic!("on purpose")));
        assert!(panicked.is_err() && !is_on());
        assert!((leaf() * 2.0).requires_grad(), "gradients are on again");
    }

    #[test]
    fn it_is_this_threads_alone() {
        let elsewhere = inference_mode(|| std::thread::spawn(is_on).join().unwrap());
        assert_eq!(elsewhere, Ok(false));
    }
}
