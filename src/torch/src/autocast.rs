//! Autocast for any device and data type. tch's own covers CUDA with fp16 only, and stays on after a panic.

use super::native::{self, AutocastBefore, AutocastDevice, NativeError, enter_autocast, leave_autocast};
use std::marker::PhantomData;
use tch::{Device, Kind};

/// A region of this thread in which PyTorch's autocast is on, or off, for one type of device. It ends when the guard is dropped, also by
/// a panic; the state before it comes back. Regions nest, and must end in the reverse order of their beginning.
#[derive(Debug)]
pub struct Autocast {
    before: AutocastBefore,
    /// Autocast is a state of the thread, so the guard must not leave it.
    _thread: PhantomData<*const ()>,
}

impl Autocast {
    /// Turns autocast on for operations on `device`, casting to `kind` (`BFloat16` or `Half`).
    ///
    /// # Errors
    /// A device or kind that has no autocast.
    pub fn on(device: Device, kind: Kind) -> Result<Autocast, NativeError> {
        Autocast::enter(device, true, kind)
    }

    /// Turns autocast off inside an outer region.
    ///
    /// # Errors
    /// A device that has no autocast.
    pub fn off(device: Device) -> Result<Autocast, NativeError> {
        Autocast::enter(device, false, Kind::Float)
    }

    fn enter(device: Device, enabled: bool, kind: Kind) -> Result<Autocast, NativeError> {
        let device = match device {
            Device::Cpu => AutocastDevice::Cpu,
            Device::Cuda(_) => AutocastDevice::Cuda,
            other => return Err(NativeError(format!("{other:?} has no autocast here"))),
        };
        Ok(Autocast { before: enter_autocast(device, enabled, kind)?, _thread: PhantomData })
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        leave_autocast(&self.before);
    }
}

/// Runs `body` under autocast to `kind`, or as it is where `kind` is `Float`.
///
/// # Errors
/// See [`Autocast::on`].
pub fn autocast<T>(device: Device, kind: Kind, body: impl FnOnce() -> T) -> Result<T, NativeError> {
    let _region = if kind == Kind::Float { None } else { Some(Autocast::on(device, kind)?) };
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
        assert_eq!(autocast(Device::Cpu, Kind::BFloat16, product_kind), Ok(Kind::BFloat16));
        assert_eq!(autocast(Device::Cpu, Kind::Half, product_kind), Ok(Kind::Half));
        assert_eq!(autocast(Device::Cpu, Kind::Float, product_kind), Ok(Kind::Float));
        let outer = Autocast::on(Device::Cpu, Kind::BFloat16).unwrap();
        {
            let _inner = Autocast::off(Device::Cpu).unwrap();
            assert_eq!(product_kind(), Kind::Float);
        }
        assert_eq!(product_kind(), Kind::BFloat16);
        drop(outer);
        let panicked = std::panic::catch_unwind(|| autocast(Device::Cpu, Kind::BFloat16, || panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(product_kind(), Kind::Float);
    }

    #[test]
    fn kinds_without_autocast_are_refused() {
        assert!(Autocast::on(Device::Cpu, Kind::Int64).is_err());
        assert!(Autocast::on(Device::Mps, Kind::Half).is_err());
    }
}
