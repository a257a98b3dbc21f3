//! Images that are read, decoded and transformed straight into a batch.

use super::dataset::Dataset;
use super::decode::{Decoder, Undecodable};
use super::order::SampleRandom;
use super::pixels::Pixels;
use super::source::{Damage, Source};
use super::transform::{Resizing, Transform};
use anyhow::{Context, Result};

/// A source of JPEG images as a data set of normalised floats, `[3, size, size]` each.
#[derive(Debug)]
pub struct Images<S> {
    source: S,
    transform: Transform,
}

impl<S: Source> Images<S> {
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
    decoder: Decoder,
    pixels: Pixels,
    resizing: Resizing,
}

impl<S: Source> Dataset for Images<S> {
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
        let ImageScratch { file, decoder, pixels, resizing } = scratch;
        let label = self.source.read(index, file)?;
        let draw = |width, height| self.transform.draw(width, height, random);
        let drawn = decoder.decode_for(file, draw, self.transform.size, pixels).map_err(|e| {
            let offset = e.downcast_ref::<Undecodable>().map_or(0, |noticed| noticed.at);
            Damage { file: self.source.path(index), offset, what: format!("{e:#}") }
        })?;
        self.transform.apply(pixels, drawn, resizing, into).with_context(|| self.source.path(index).display().to_string())?;
        Ok(label)
    }
}
