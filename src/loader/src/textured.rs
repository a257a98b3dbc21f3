//! Photographs' stand-in: JPEG files of the size and weight of photographs, made from nothing, the same on every machine.

use anyhow::{Context, Result, ensure};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The folder for data that can be made again: what `VRAMLAB_DATA` names, or `vramlab` in the user's cache. The PyTorch references look
/// there too.
pub fn cache_folder() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("VRAMLAB_DATA")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("vramlab")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/vramlab")))
        .unwrap_or_else(|| std::env::temp_dir().join("vramlab"))
}

/// A folder of made-up images in classes, as [`super::ImageFolder`] takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Textured {
    pub images: usize,
    pub classes: usize,
    /// Longer and shorter side, in pixels; a quarter of the images stand upright, and sides differ by up to a sixteenth.
    pub sides: (u32, u32),
}

impl Default for Textured {
    /// 512 images of some 500 x 375 pixels and 30 to 120 kB in 8 classes: 35 MB.
    fn default() -> Self {
        Textured { images: 512, classes: 8, sides: (500, 375) }
    }
}

/// Raised when the images of a seed change, so that old folders are not taken for new ones.
const VERSION: u32 = 1;

impl Textured {
    /// The folder below `parent` that holds these images; makes it where it is not there. It appears whole or not at all, also where several
    /// processes make it at once.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn folder(&self, parent: &Path) -> Result<PathBuf> {
        let (long, short) = self.sides;
        ensure!(self.images > 0 && (1..=self.images).contains(&self.classes) && short >= 16, "no images can be made for {self:?}");
        let folder = parent.join(format!("textured-v{VERSION}-{}x{long}x{short}-in-{}", self.images, self.classes));
        if folder.is_dir() {
            return Ok(folder);
        }
        let making = || format!("making {} images in {}", self.images, folder.display());
        std::fs::create_dir_all(parent).with_context(making)?;
        let aside = tempfile::Builder::new().prefix(".textured-").tempdir_in(parent).with_context(making)?;
        for class in 0..self.classes {
            std::fs::create_dir(aside.path().join(class_name(class))).with_context(making)?;
        }
        self.write(aside.path()).with_context(making)?;
        let aside = aside.keep();
        if let Err(e) = std::fs::rename(&aside, &folder) {
            // Another process may have been first; its images are the same.
            let _ = std::fs::remove_dir_all(&aside);
            ensure!(folder.is_dir(), "{}: {e}", making());
        }
        Ok(folder)
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let next = AtomicUsize::new(0);
        let write_some = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= self.images {
                    return anyhow::Ok(());
                }
                let path = folder.join(class_name(index % self.classes)).join(format!("{index:05}.jpg"));
                std::fs::write(&path, self.jpeg(index)?).with_context(|| path.display().to_string())?;
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..threads).map(|_| scope.spawn(write_some)).collect();
            writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// One image's file.
    fn jpeg(&self, index: usize) -> Result<Vec<u8>> {
        let seed = u32::try_from(index)?;
        let shrink = |side: u32, salt: u32| side - hash(seed, salt, 1) % (side / 16);
        let (long, short) = (shrink(self.sides.0, 11), shrink(self.sides.1, 12));
        let (width, height) = if hash(seed, 13, 1).is_multiple_of(4) { (short, long) } else { (long, short) };
        let pixels = texture(seed, width, height);
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, 90);
        // As cameras and most photographs on the net have it.
        encoder.set_sampling_factor(SamplingFactor::F_2_2);
        encoder.encode(&pixels, u16::try_from(width)?, u16::try_from(height)?, ColorType::Rgb)?;
        Ok(file)
    }
}

fn class_name(class: usize) -> String {
    format!("class-{class:02}")
}

/// A well mixed number of three.
fn hash(x: u32, y: u32, seed: u32) -> u32 {
    let mut h = x.wrapping_mul(0x9e37_79b1) ^ y.wrapping_mul(0x85eb_ca77) ^ seed.wrapping_mul(0xc2b2_ae3d);
    h = (h ^ (h >> 15)).wrapping_mul(0x2c1b_3c6d);
    h = (h ^ (h >> 12)).wrapping_mul(0x297a_2d39);
    h ^ (h >> 15)
}

/// Smooth noise: random heights at the corners of a grid of squares of `cell` pixels, with smooth slopes between. Whole numbers alone, so
/// that every machine makes the same.
struct Texture {
    cell: u32,
    seed: u32,
    amplitude: i32,
    /// Share of the next corner at each place inside a cell, of 256.
    slope: Vec<i32>,
}

impl Texture {
    fn new(cell: u32, seed: u32, amplitude: i32) -> Texture {
        let slope = (0..cell).map(|at| (at * 256 / cell) as i32).map(|t| t * t * (768 - 2 * t) / 65536).collect();
        Texture { cell, seed, amplitude, slope }
    }

    /// Adds a row, from -amplitude to amplitude, to `to`.
    fn add_row(&self, y: u32, to: &mut [i32]) {
        let down = self.slope[(y % self.cell) as usize];
        let corner = |x: u32| {
            let height = |y: u32| (hash(x, y, self.seed) & 255) as i32 - 128;
            let above = y / self.cell;
            height(above) * (256 - down) + height(above + 1) * down
        };
        let (mut left, mut right) = (corner(0), corner(1));
        for (number, cell) in (0u32..).zip(to.chunks_mut(self.cell as usize)) {
            if number > 0 {
                (left, right) = (right, corner(number + 1));
            }
            for (to, along) in cell.iter_mut().zip(&self.slope) {
                *to += (left / 256 * (256 - along) + right / 256 * along) / 256 * self.amplitude / 128;
            }
        }
    }
}

/// Hills, fine texture, grain and slowly changing colour; how rough it is differs between images, as it does between photographs.
fn texture(seed: u32, width: u32, height: u32) -> Vec<u8> {
    let rough = (hash(seed, 1, 2) % 256) as i32;
    let own = |salt: u32| hash(seed, salt, 3);
    let fine = |amplitude: i32| amplitude * (64 + rough) / 256;
    let light = [
        Texture::new(160, own(0), 120),
        Texture::new(61, own(1), 90),
        Texture::new(23, own(2), fine(70)),
        Texture::new(11, own(3), fine(60)),
        Texture::new(5, own(4), fine(60)),
        Texture::new(3, own(5), fine(60)),
    ];
    let colours = [6, 7, 8].map(|salt| Texture::new(97, own(salt), 80));
    let mut rgb = vec![0; 3 * (width * height) as usize];
    let mut grey = vec![0; width as usize];
    let mut channels = vec![vec![0; width as usize]; 3];
    for (y, row) in (0u32..).zip(rgb.chunks_exact_mut(3 * width as usize)) {
        grey.fill(128);
        light.iter().for_each(|noise| noise.add_row(y, &mut grey));
        for (channel, noise) in channels.iter_mut().zip(&colours) {
            channel.fill(0);
            noise.add_row(y, channel);
        }
        for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
            let grain = hash(x as u32, y, seed);
            for (c, value) in pixel.iter_mut().enumerate() {
                let grain = ((grain >> (5 * c)) & 31) as i32 - 16;
                *value = (grey[x] + channels[c][x] + grain * (32 + rough) / 256).clamp(0, 255) as u8;
            }
        }
    }
    rgb
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ImageFolder, Pixels, SampleSource, decode};

    #[test]
    fn images_are_the_same_each_time_and_weigh_what_photographs_do() {
        let default = Textured::default();
        let sizes: Vec<usize> = (0..12).map(|index| default.jpeg(index).unwrap().len()).collect();
        assert!(sizes.iter().all(|bytes| (30_000..=120_000).contains(bytes)), "{sizes:?}");
        assert_eq!(default.jpeg(3).unwrap(), default.jpeg(3).unwrap());
        let mut pixels = Pixels::default();
        decode(&default.jpeg(0).unwrap(), &mut pixels).unwrap();
        assert!(pixels.width.max(pixels.height) > 460 && pixels.width.min(pixels.height) > 340);
    }

    #[test]
    fn a_folder_is_made_once_and_whole() {
        let parent = tempfile::tempdir().unwrap();
        let small = Textured { images: 5, classes: 2, sides: (32, 24) };
        let folder = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..3).map(|_| scope.spawn(|| small.folder(parent.path()).unwrap())).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).reduce(|a, b| if a == b { a } else { panic!() }).unwrap()
        });
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1, "nothing is left aside");
        let images = ImageFolder::open(&folder).unwrap();
        assert_eq!((images.len(), images.classes()), (5, &["class-00".to_string(), "class-01".to_string()][..]));
        let mut file = Vec::new();
        let labels: Vec<i64> = (0..5).map(|index| images.read(index, &mut file).unwrap()).collect();
        assert_eq!(labels, [0, 0, 0, 1, 1]);
    }
}
