//! Autocast for any device and data type: tch's own covers CUDA with fp16 only, and stays on after a panic.

use super::{Message, checked};
use anyhow::{Result, bail};
use tch::{Device, Kind};

unsafe extern "C" {
    fn vl_autocast_enter(device: i32, dtype: i8, old_enabled: *mut i32, old_dtype: *mut i8) -> Message;
    fn vl_autocast_leave(device: i32, old_enabled: i32, old_dtype: i8) -> Message;
}

/// A region of this thread in which autocast is on for one type of device, with what was set there before; that comes back where it ends,
/// also by a panic.
struct AutocastRegion {
    device: i32,
    enabled: i32,
    dtype: i8,
}

impl Drop for AutocastRegion {
    fn drop(&mut self) {
        // SAFETY: no pointers. Leaving can only fail on an unknown device type, which `autocast` excludes.
        let _ = checked(unsafe { vl_autocast_leave(self.device, self.enabled, self.dtype) });
    }
}

/// Runs `body` under autocast to `kind` (`BFloat16` or `Half`), or as it is where `kind` is `Float`. The cache of casts is emptied where the
/// outermost region ends.
///
/// # Errors
/// A device or kind that has no autocast.
pub fn autocast<T>(device: Device, kind: Kind, body: impl FnOnce() -> T) -> Result<T> {
    let device = match device {
        Device::Cpu => 0,
        Device::Cuda(_) => 1,
        other => bail!("{other:?} has no autocast here"),
    };
    // c10::ScalarType's numbers, which are stable: serialised models hold them.
    let dtype = match kind {
        Kind::Float => return Ok(body()),
        Kind::Half => 5,
        Kind::BFloat16 => 15,
        other => bail!("autocast casts to Half or BFloat16, not to {other:?}"),
    };
    let (mut enabled, mut before) = (0, 0);
    // SAFETY: writes the two values that it is given pointers to.
    checked(unsafe { vl_autocast_enter(device, dtype, &mut enabled, &mut before) })?;
    let _region = AutocastRegion { device, enabled, dtype: before };
    Ok(body())
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
            assert_eq!(autocast(Device::Cpu, kind, product_kind).unwrap(), kind);
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
