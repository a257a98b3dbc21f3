//! JPEG files to pixels, by [zune-jpeg](https://github.com/etemesi254/zune-image).

use super::pixels::Pixels;
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

/// Decodes an image with zune-jpeg. Grey and CMYK images become RGB. A file that ends early is an error, not a picture with a grey end, as
/// browsers show it.
///
/// # Errors
/// Anything that is no whole JPEG image.
pub fn decode(file: &[u8], into: &mut Pixels) -> Result<(), Undecodable> {
    let undecodable = |what: String| Undecodable { at: 0, what };
    if !file.starts_with(&[0xff, 0xd8]) {
        return Err(undecodable("no JPEG file, whatever its name says".to_string()));
    }
    let options = DecoderOptions::default().set_strict_mode(true).jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    let failed = |e: zune_jpeg::errors::DecodeErrors| undecodable(format!("no whole JPEG image: {e:?}"));
    decoder.decode_headers().map_err(failed)?;
    let size = decoder.dimensions().filter(|(width, height)| *width > 0 && *height > 0);
    let (width, height) = size.ok_or_else(|| undecodable("a JPEG image without a size".to_string()))?;
    ensure_end(file)?;
    decoder.decode_into(into.hold(width, height)).map_err(failed)
}

/// Refuses a file without an end marker; behind the marker there may be padding.
fn ensure_end(file: &[u8]) -> Result<(), Undecodable> {
    let ends = file.windows(2).rev().any(|pair| pair == [0xff, 0xd9]);
    let what = "a JPEG image that was cut short: its end marker is missing";
    if ends { Ok(()) } else { Err(Undecodable { at: file.len(), what: what.to_string() }) }
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
