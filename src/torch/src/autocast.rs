//! Autocast for any device and data type. tch's own covers CUDA with fp16 only, and stays on after a panic.

use super::native::{self, AutocastBefore, AutocastDevice, NativeError, enter_autocast, leave_autocast};
use tch::{Device, Kind};

/// A region of this thread in which PyTorch's autocast is on for one type of device. The state before it comes back where it ends, also by a panic.
struct Region(AutocastBefore);

impl Drop for Region {
    fn drop(&mut self) {
        leave_autocast(&self.0);
    }
}

/// Runs `body` under autocast to `kind` (`BFloat16` or `Half`), or as it is where `kind` is `Float`.
///
/// # Errors
/// A device or kind that has no autocast.
pub fn autocast<T>(device: Device, kind: Kind, body: impl FnOnce() -> T) -> Result<T, NativeError> {
    let of = match device {
        Device::Cpu => AutocastDevice::Cpu,
        Device::Cuda(_) => AutocastDevice::Cuda,
        other => return Err(NativeError(format!("{other:?} has no autocast here"))),
    };
    let _region = if kind == Kind::Float { None } else { Some(Region(enter_autocast(of, kind)?)) };
    Ok(body())
}

/// Lets cuBLAS and cuDNN round the inputs of fp32 products and convolutions to TF32 (8 bits of exponent, 10 of mantissa), or not, from here
/// on in this process. A CPU does not know it.
///
/// # Errors
/// libtorch's message.
pub fn allow_tf32(allow: bool) -> Result<(), NativeError> {
    native::amp::allow_tf32(allow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Tensor;

    fn product_kind() -> Kind {
        let a = Tensor::ones([4, 4], (Kind::Float, Device::Cpu));
        a.matmul(&a).kind()
    }

    #[test]
    fn casts_inside_and_not_outside_nor_after_a_panic() {
        for kind in [Kind::BFloat16, Kind::Half, Kind::Float] {
            assert_eq!(autocast(Device::Cpu, kind, product_kind), Ok(kind));
            assert_eq!(product_kind(), Kind::Float);
        }
        let panicked = std::panic::catch_unwind(|| autocast(Device::Cpu, Kind::BFloat16, || panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(product_kind(), Kind::Float);
    }

    #[test]
    fn kinds_and_devices_without_autocast_are_refused() {
        assert!(autocast(Device::Cpu, Kind::Int64, || ()).is_err());
        assert!(autocast(Device::Mps, Kind::Half, || ()).is_err());
    }
}
