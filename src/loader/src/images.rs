//! Images that are read, decoded and transformed straight into a batch.

use super::dataset::Dataset;
use super::decode::decode;
use super::order::SampleRandom;
use super::pixels::Pixels;
use super::source::{Damage, SampleSource};
use super::transform::{Resizing, Transform};
use anyhow::{Context, Result};

/// A source of JPEG images as a data set of normalised floats, `[3, size, size]` each.
#[derive(Debug)]
pub struct Images<S> {
    source: S,
    transform: Transform,
}

impl<S: SampleSource> Images<S> {
    pub fn new(source: S, transform: Transform) -> Images<S> {
        Images { source, transform }
    }

    pub fn source(&self) -> &S {
        &self.source
    }

    pub fn transform(&self) -> &Transform {
        &self.transform
    }
}

/// Buffers of one worker, as large as the largest image that it has seen.
#[derive(Debug, Default)]
pub struct ImageScratch {
    file: Vec<u8>,
    pixels: Pixels,
    resizing: Resizing,
}

impl<S: SampleSource> Dataset for Images<S> {
    type Element = f32;
    type Scratch = ImageScratch;

    fn len(&self) -> usize {
        self.source.len()
    }

    fn shape(&self) -> Vec<i64> {
        vec![3, self.transform.size.into(), self.transform.size.into()]
    }

    fn scratch(&self) -> ImageScratch {
        ImageScratch::default()
    }

    fn load(&self, index: usize, random: &mut SampleRandom, scratch: &mut ImageScratch, into: &mut [f32]) -> Result<i64> {
        let ImageScratch { file, pixels, resizing } = scratch;
        let label = self.source.read(index, file)?;
        decode(file, pixels).map_err(|e| Damage { file: self.source.path(index), offset: e.at, what: e.what })?;
        let drawn = self.transform.draw(u32::try_from(pixels.width)?, u32::try_from(pixels.height)?, random);
        self.transform.apply(pixels, drawn, resizing, into).with_context(|| self.source.path(index).display().to_string())?;
        Ok(label)
    }
}
