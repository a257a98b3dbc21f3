//! PyTorch's own file format, written: tch reads it (`Tensor::loadz_multi`, `VarStore::load` of a `.pt`) and cannot write it.

use super::native::{self, NativeError};
use std::path::Path;
use tch::Tensor;

/// Writes named tensors as `torch.save` writes a `dict` of them; `torch.load` and `Tensor::loadz_multi` read the file. Each tensor is tagged
/// with the device that it is on, and goes back there where the reader is not told otherwise. While it is written, the file's contents
/// stand in memory once more.
///
/// # Errors
/// libtorch's message; the file cannot be written.
pub fn save_pickle(path: impl AsRef<Path>, tensors: &[(&str, &Tensor)]) -> Result<(), NativeError> {
    native::save_pickle(path.as_ref(), tensors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn tch_reads_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.pt");
        let tensors = [("layer.weight", Tensor::arange(6, (Kind::Float, Device::Cpu)).reshape([2, 3])), ("n", Tensor::from(3i64))];
        save_pickle(&path, &tensors.each_ref().map(|(name, tensor)| (*name, tensor))).unwrap();
        let mut read = Tensor::loadz_multi(&path).unwrap();
        read.sort_by(|a, b| a.0.cmp(&b.0));
        for ((name, tensor), (read_name, read)) in tensors.iter().zip(&read) {
            assert_eq!((*name, tensor), (read_name.as_str(), read));
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error() {
        let error = save_pickle("/nowhere/weights.pt", &[("x", &Tensor::from(1i64))]).unwrap_err().to_string();
        assert!(error.contains("/nowhere/weights.pt"), "{error}");
    }
}
