//! CIFAR-10 in its binary version: records of one label byte and 3072 bytes of red, green and blue planes of 32 x 32.
//! <https://www.cs.toronto.edu/~kriz/cifar.html>

use super::dataset::Dataset;
use super::order::{SampleRandom, unit};
use super::source::{Damage, sorted};
use super::transform::Normalise;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const SIDE: usize = 32;
const PIXELS: usize = 3 * SIDE * SIDE;
const RECORD: usize = 1 + PIXELS;
const CLASSES: u8 = 10;

/// CIFAR-10 as normalised floats, `[3, 32, 32]` each.
#[derive(Debug)]
pub struct Cifar10 {
    files: Vec<(PathBuf, File, usize)>,
    len: usize,
    normalise: Normalise,
    augment: bool,
}

impl Cifar10 {
    /// Mean and deviation of the training set's pixels.
    pub const NORMALISE: Normalise = Normalise { mean: [0.4914, 0.4822, 0.4465], deviation: [0.2470, 0.2435, 0.2616] };

    /// Opens the training batches (`data_batch_*.bin`) of a folder. With `augment` images are shifted by up to 4 pixels, with black coming
    /// in, and mirrored half of the time.
    ///
    /// # Errors
    /// No such file; a file that is not made of whole records.
    pub fn training(folder: &Path, augment: bool) -> Result<Cifar10> {
        let names = sorted(folder)?.into_iter().filter(|(name, _)| name.starts_with("data_batch_") && name.ends_with(".bin"));
        let paths: Vec<PathBuf> = names.map(|(_, path)| path).collect();
        ensure!(!paths.is_empty(), "no data_batch_*.bin in {}; this is CIFAR-10's binary version", folder.display());
        Cifar10::open(&paths, augment)
    }

    /// Opens the test batch (`test_batch.bin`) of a folder.
    ///
    /// # Errors
    /// As for [`Cifar10::training`].
    pub fn test(folder: &Path) -> Result<Cifar10> {
        Cifar10::open(&[folder.join("test_batch.bin")], false)
    }

    fn open(paths: &[PathBuf], augment: bool) -> Result<Cifar10> {
        let (mut files, mut len) = (Vec::new(), 0);
        for path in paths {
            let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
            let bytes = file.metadata().with_context(|| format!("reading the size of {}", path.display()))?.len();
            let (records, rest) = (bytes / RECORD as u64, bytes % RECORD as u64);
            if rest != 0 || records == 0 {
                let what = format!(
                    "a record of {rest} bytes instead of {RECORD}: the file was cut short, or is not CIFAR-10's binary version"
                );
                bail!(Damage { file: path.clone(), offset: bytes - rest, what });
            }
            len += usize::try_from(records)?;
            files.push((path.clone(), file, len));
        }
        Ok(Cifar10 { files, len, normalise: Cifar10::NORMALISE, augment })
    }
}

impl Dataset for Cifar10 {
    type Element = f32;
    type Scratch = Vec<u8>;

    fn len(&self) -> usize {
        self.len
    }

    fn shape(&self) -> Vec<i64> {
        vec![3, SIDE as i64, SIDE as i64]
    }

    fn scratch(&self) -> Vec<u8> {
        vec![0; RECORD]
    }

    fn load(&self, index: usize, random: &mut SampleRandom, record: &mut Vec<u8>, into: &mut [f32]) -> Result<i64> {
        let number = self.files.partition_point(|(_, _, end)| *end <= index);
        let first = number.checked_sub(1).map_or(0, |before| self.files[before].2);
        let (path, file, _) = &self.files[number];
        let offset = ((index - first) * RECORD) as u64;
        file.read_exact_at(record, offset).with_context(|| format!("reading {}, at byte {offset}", path.display()))?;
        let label = record[0];
        if label >= CLASSES {
            bail!(Damage { file: path.clone(), offset, what: format!("label {label}, and there are {CLASSES} classes") });
        }
        let (mut down, mut right, mut mirrored) = (0, 0, false);
        if self.augment {
            let mut shift = || (unit(random) * 9.0) as isize - 4;
            (down, right) = (shift(), shift());
            mirrored = unit(random) < 0.5;
        }
        for (channel, plane) in into.chunks_exact_mut(SIDE * SIDE).enumerate() {
            let (scale, offset) = self.normalise.of_byte(channel);
            let source = &record[1 + channel * SIDE * SIDE..][..SIDE * SIDE];
            for (at, value) in plane.iter_mut().enumerate() {
                let (row, column) = (at / SIDE, at % SIDE);
                let column = if mirrored { SIDE - 1 - column } else { column };
                let from = row.checked_add_signed(down).zip(column.checked_add_signed(right));
                let from = from.filter(|(row, column)| *row < SIDE && *column < SIDE);
                let byte = from.map_or(0, |(row, column)| source[row * SIDE + column]);
                *value = f32::from(byte) * scale + offset;
            }
        }
        Ok(label.into())
    }

    fn grain(&self) -> usize {
        8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sample_random;
    use proptest::prelude::*;

    fn folder(records: &[(u8, u8)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (number, part) in records.chunks(2).enumerate() {
            let bytes: Vec<u8> = part.iter().flat_map(|(label, pixel)| [&[*label][..], &[*pixel; PIXELS]].concat()).collect();
            std::fs::write(folder.path().join(format!("data_batch_{}.bin", number + 1)), bytes).unwrap();
        }
        folder
    }

    fn load(data: &Cifar10, index: usize) -> Result<(i64, Vec<f32>)> {
        let mut into = vec![f32::NAN; PIXELS];
        let label = data.load(index, &mut sample_random(0, 0, index as u64), &mut data.scratch(), &mut into)?;
        Ok((label, into))
    }

    #[test]
    fn records_of_several_files_are_one_data_set() {
        let folder = folder(&[(3, 0), (9, 255), (0, 51)]);
        let data = Cifar10::training(folder.path(), false).unwrap();
        assert_eq!(data.len(), 3);
        let (label, pixels) = load(&data, 1).unwrap();
        assert_eq!(label, 9);
        assert!((pixels[0] - (1.0 - 0.4914) / 0.2470).abs() < 1e-5);
        assert!((load(&data, 2).unwrap().1[PIXELS - 1] - (0.2 - 0.4465) / 0.2616).abs() < 1e-5);
        let shifted = load(&Cifar10::training(folder.path(), true).unwrap(), 1).unwrap().1;
        assert!(shifted.iter().all(|value| value.is_finite()) && shifted != pixels);
    }

    #[test]
    fn a_label_that_is_no_class_is_named_with_its_place() {
        let folder = folder(&[(3, 0), (10, 0)]);
        let error = load(&Cifar10::training(folder.path(), false).unwrap(), 1).unwrap_err();
        let damage = error.downcast_ref::<Damage>().unwrap();
        assert_eq!((damage.offset, damage.what.as_str()), (3073, "label 10, and there are 10 classes"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_file_cut_short_is_refused(keep in 0usize..2 * RECORD) {
            let folder = folder(&[(1, 2), (3, 4)]);
            let path = folder.path().join("data_batch_1.bin");
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..keep]).unwrap();
            match Cifar10::training(folder.path(), false) {
                Ok(data) => prop_assert!(keep == RECORD && data.len() == 1),
                Err(error) => prop_assert_eq!(error.downcast_ref::<Damage>().unwrap().offset as usize, keep / RECORD * RECORD),
            }
        }
    }
}
