//! JPEG files to pixels.
//!
//! zune-jpeg does it, in Rust with SIMD. libjpeg-turbo is faster: for 500 x 375 pixels of 46 kB with halved chroma 0.51 ms against 0.65 on one core
//! of an EPYC, 0.8 of the time (taken through torchvision's `decode_jpeg`). But its SIMD is assembled by nasm, which a machine with cargo and g++
//! does not have; what builds everywhere was kept.

use anyhow::{Result, anyhow, ensure};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// Pixels of an image: rows of red, green, blue bytes.
#[derive(Debug, Default)]
pub struct Pixels {
    pub width: usize,
    pub height: usize,
    /// At least `3 * width * height` bytes; what follows is left from an earlier, larger image.
    pub rgb: Vec<u8>,
}

/// Decodes a JPEG file into a buffer that is used again. Grey and CMYK images become RGB. A file that ends early is an error, not a picture
/// with a grey end, as browsers show it.
///
/// # Errors
/// Anything that is no whole JPEG image.
pub fn decode(file: &[u8], into: &mut Pixels) -> Result<()> {
    let options = DecoderOptions::default().set_strict_mode(true).jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    let failed = |e: zune_jpeg::errors::DecodeErrors| anyhow!("no whole JPEG image: {e:?}");
    decoder.decode_headers().map_err(failed)?;
    let (width, height) = decoder.dimensions().ok_or_else(|| anyhow!("no JPEG image: it has no size"))?;
    ensure!(width > 0 && height > 0, "a JPEG image of {width} x {height}");
    ensure!(ends_whole(file), "a JPEG image that was cut short: its end marker is missing");
    let bytes = 3 * width * height;
    if into.rgb.len() < bytes {
        into.rgb.resize(bytes, 0);
    }
    decoder.decode_into(&mut into.rgb[..bytes]).map_err(failed)?;
    (into.width, into.height) = (width, height);
    Ok(())
}

/// Whether the file has an end marker, perhaps with padding behind it.
fn ends_whole(file: &[u8]) -> bool {
    file.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    fn photo(name: &str) -> Vec<u8> {
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pixels").join(name)).unwrap()
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
