//! JPEG files to pixels.
//!
//! A training crop is on average half of an image, so what decides is what need not be decoded. [`Decoder`] decodes the wanted part of
//! baseline images by itself, to the bit as libjpeg-turbo does; zune-jpeg, in Rust with SIMD, does all other kinds, whole. `cargo bench
//! --bench loading` compares the two; METHODOLOGY.md says why not libjpeg-turbo.

use super::jpeg::{Headers, PartDecoder};
use super::pixels::{Area, Pixels};
use super::transform::CropPart;
use anyhow::{Context, Result, anyhow, ensure};
use std::fmt;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// What is wrong with a JPEG file, and about where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecodable {
    /// Byte of the file at which it was noticed; 0 where that is not known.
    pub at: usize,
    pub what: String,
}

impl fmt::Display for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Undecodable {}

/// Decodes JPEG files; its memory is used from one to the next.
#[derive(Debug, Default)]
pub struct Decoder {
    parts: PartDecoder,
}

impl Decoder {
    /// Decodes what a transform needs of an image: `draw` is [`Transform::draw`], given the image's width and height, and `side` the
    /// transform's size. Gives what was drawn.
    ///
    /// # Errors
    /// As for [`Decoder::decode`].
    ///
    /// [`Transform::draw`]: super::Transform::draw
    pub fn decode_for(
        &mut self,
        file: &[u8],
        draw: impl FnOnce(u32, u32) -> (CropPart, bool),
        side: u32,
        into: &mut Pixels,
    ) -> Result<(CropPart, bool)> {
        let mut drawn = None;
        let choose = |width, height| {
            let (part, mirrored) = draw(width, height);
            drawn = Some((part, mirrored));
            part.needs((width, height), side)
        };
        self.decode(file, choose, into)?;
        drawn.context("nothing was drawn")
    }

    /// Decodes the area of an image that `choose` wants, given the image's width and height. Grey and CMYK images become RGB. A file that
    /// ends early is an error, not a picture with a grey end, as browsers show it; damage behind the area's last row is not seen.
    ///
    /// # Errors
    /// Anything that is no whole JPEG image, as an [`Undecodable`]; an area that is not inside it.
    pub fn decode(&mut self, file: &[u8], choose: impl FnOnce(u32, u32) -> Area, into: &mut Pixels) -> Result<()> {
        let headers = Headers::read(file);
        let Some(headers) = headers else { return decode_whole(file, choose, into) };
        ensure_end(file, headers.data)?;
        let size = (headers.width, headers.height);
        let part = choose(headers.width as u32, headers.height as u32);
        ensure_inside(part, size)?;
        let decoded = self.parts.decode(file, &headers, part, into.hold(size, part));
        decoded.map_err(|e| Undecodable { at: self.parts.read(), what: format!("no whole JPEG image: {e:#}") })?;
        Ok(())
    }
}

/// Decodes an image of any kind with zune-jpeg, all of it.
fn decode_whole(file: &[u8], choose: impl FnOnce(u32, u32) -> Area, into: &mut Pixels) -> Result<()> {
    let what = "no JPEG file, whatever its name says";
    ensure!(file.starts_with(&[0xff, 0xd8]), Undecodable { at: 0, what: what.to_string() });
    let options = DecoderOptions::default().set_strict_mode(true).jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    let failed = |e: zune_jpeg::errors::DecodeErrors| Undecodable { at: 0, what: format!("no whole JPEG image: {e:?}") };
    decoder.decode_headers().map_err(failed)?;
    let (width, height) = decoder.dimensions().ok_or_else(|| anyhow!("no JPEG image: it has no size"))?;
    ensure!(width > 0 && height > 0, "a JPEG image of {width} x {height}");
    ensure_end(file, 0)?;
    let whole = Area { left: 0, top: 0, width: u32::try_from(width)?, height: u32::try_from(height)? };
    ensure_inside(choose(whole.width, whole.height), (width, height))?;
    decoder.decode_into(into.hold((width, height), whole)).map_err(failed)?;
    Ok(())
}

/// Decodes a whole image.
///
/// # Errors
/// Anything that is no whole JPEG image.
pub fn decode(file: &[u8], into: &mut Pixels) -> Result<()> {
    Decoder::default().decode(file, |width, height| Area { left: 0, top: 0, width, height }, into)
}

fn ensure_inside(part: Area, (width, height): (usize, usize)) -> Result<()> {
    let inside = |first: u32, count: u32, of: usize| count > 0 && first as usize + count as usize <= of;
    let is_inside = inside(part.left, part.width, width) && inside(part.top, part.height, height);
    ensure!(is_inside, "{part:?} is not inside an image of {width} x {height}");
    Ok(())
}

/// Refuses a file without an end marker behind this byte; behind the marker there may be padding.
fn ensure_end(file: &[u8], from: usize) -> Result<()> {
    let ends = file[from..].windows(2).rev().any(|pair| pair == [0xff, 0xd9]);
    let what = "a JPEG image that was cut short: its end marker is missing";
    ensure!(ends, Undecodable { at: file.len(), what: what.to_string() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn photo(name: &str) -> Vec<u8> {
        std::fs::read(common::root().join("tests/pixels").join(name)).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_file_cut_short_is_refused(keep in 0.0..1.0f64, progressive: bool) {
            let whole = photo(if progressive { "progressive.jpg" } else { "base.jpg" });
            let keep = (whole.len() as f64 * keep) as usize;
            prop_assert!(decode(&whole[..keep], &mut Pixels::default()).is_err());
        }

        #[test]
        fn a_changed_byte_gives_an_error_or_an_image_of_the_size_that_the_file_says(at in 0.0..1.0f64, value: u8) {
            let mut file = photo("base.jpg");
            let at = (file.len() as f64 * at) as usize;
            file[at] = value;
            let mut pixels = Pixels::default();
            if decode(&file, &mut pixels).is_ok() {
                prop_assert!(pixels.rgb.len() >= 3 * pixels.width * pixels.height && pixels.width > 0);
            }
        }

        #[test]
        fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let headed = [&[0xff, 0xd8, 0xff][..], &bytes].concat();
            prop_assert!(decode(&bytes, &mut Pixels::default()).is_err() && decode(&headed, &mut Pixels::default()).is_err());
        }
    }
}
