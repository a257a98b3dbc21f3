//! Inference mode: what `torch.inference_mode()` is in Python. tch has `no_grad` only, which stays on after a panic.
//!
//! Under `no_grad` operations record no graph; in inference mode their results have no version counter and no autograd state either, so
//! each operation is a little cheaper, and the results can never become part of a graph: autograd raises where one would be saved for a
//! backward pass, or is written to in place outside.

use super::native::{InferenceRegion, NativeError, is_inference_tensor};
use tch::Tensor;

/// A region of this thread in which inference mode is on, or off inside an outer region. It ends when the guard is dropped, also by a
/// panic; what was set before comes back. Regions nest, and must end in the reverse order of their beginning.
#[derive(Debug)]
pub struct Inference {
    _region: InferenceRegion,
}

impl Inference {
    /// Turns inference mode on; with it gradients are off.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn on() -> Result<Inference, NativeError> {
        Ok(Inference { _region: InferenceRegion::enter(true)? })
    }

    /// Turns inference mode off inside an outer region; gradients are then on.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn off() -> Result<Inference, NativeError> {
        Ok(Inference { _region: InferenceRegion::enter(false)? })
    }
}

/// Runs `body` in inference mode.
///
/// # Errors
/// See [`Inference::on`].
pub fn inference_mode<T>(body: impl FnOnce() -> T) -> Result<T, NativeError> {
    let _region = Inference::on()?;
    Ok(body())
}

/// Whether a tensor was made in inference mode, and can therefore be no part of a graph. (Views made inside of a tensor from outside are
/// tensors from outside.)
pub fn is_inference(tensor: &Tensor) -> bool {
    is_inference_tensor(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

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
    fn regions_nest_and_end_by_a_panic_too() {
        let outer = Inference::on().unwrap();
        {
            let _inner = Inference::off().unwrap();
            assert!(!is_on() && (leaf() * 2.0).requires_grad());
        }
        assert!(is_on());
        drop(outer);
        assert!(!is_on());
        let panicked = std::panic::catch_unwind(|| inference_mode(|| panic!("on purpose")));
        assert!(panicked.is_err() && !is_on());
        assert!((leaf() * 2.0).requires_grad(), "gradients are on again");
    }

    #[test]
    fn it_is_this_threads_alone() {
        let _region = Inference::on().unwrap();
        assert!(!std::thread::spawn(is_on).join().unwrap());
    }
}
