//! From decoded pixels to normalised floats in the batch's memory: crop and resize in one pass, flip and normalise in another.
//!
//! Resizing is torchvision's with `antialias=True`: bilinear with the filter widened by the scale, in two passes of 8-bit fixed point, as
//! Pillow does it. Where a crop is made first and resized then, pixels outside of it are not seen. Decoded pixels and these together differ from
//! torchvision's by 4 levels of 255 at most (`tests/loader/decoding.rs`, for JPEG files of many kinds). An image's orientation in its EXIF data is
//! passed over, as torchvision passes over it.

use super::order::{SampleRandom, unit};
use super::pixels::{Area, Pixels};
use anyhow::{Context, Result, ensure};
use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use torch::vectors::widest;

/// Mean and deviation of each channel of ImageNet, from 0 to 1, by which everyone normalises.
pub const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
pub const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

/// What becomes of an image: a random part of it, resized to a square, mirrored or not, normalised by [`MEAN`] and [`DEVIATION`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transform {
    /// Least and largest share of the image's area and aspect ratio of the part, as torchvision's `RandomResizedCrop` has them.
    pub area: (f64, f64),
    pub aspect: (f64, f64),
    /// Side of the square that comes out.
    pub size: u32,
    /// How often the image is mirrored.
    pub flip: f64,
}

impl Transform {
    /// torchvision's defaults, and every second image mirrored.
    pub fn training(size: u32) -> Transform {
        Transform { area: (0.08, 1.0), aspect: (3.0 / 4.0, 4.0 / 3.0), size, flip: 0.5 }
    }

    /// The part of an image of this size that is taken, and whether it is mirrored.
    pub fn draw(&self, width: u32, height: u32, random: &mut SampleRandom) -> (Area, bool) {
        let part = random_area(width, height, self.area, self.aspect, random);
        (part, unit(random) < self.flip)
    }

    /// Writes the transformed image as `[3, size, size]`.
    ///
    /// # Errors
    /// A part that is not inside the image; memory of another size.
    pub fn apply(&self, pixels: &Pixels, (part, mirrored): (Area, bool), resizing: &mut Resizing, into: &mut [f32]) -> Result<()> {
        self.write(resizing.resize(pixels, part, self.size)?, mirrored, into)
    }

    /// The second half of [`Transform::apply`]: from an image that was cropped and resized to `size`, rows of red, green, blue bytes.
    ///
    /// # Errors
    /// An image or memory of another size.
    pub fn write(&self, resized: &[u8], mirrored: bool, into: &mut [f32]) -> Result<()> {
        let side = self.size as usize;
        ensure!(into.len() == 3 * side * side, "{} floats for an image of 3 x {side} x {side}", into.len());
        ensure!(resized.len() == into.len(), "{} bytes of an image of {side} x {side}", resized.len());
        widest(
            #[inline(always)]
            || self.write_rows(resized, mirrored, into),
        );
        Ok(())
    }

    #[inline(always)]
    fn write_rows(&self, resized: &[u8], mirrored: bool, into: &mut [f32]) {
        let side = self.size as usize;
        let (red, rest) = into.split_at_mut(side * side);
        let (green, blue) = rest.split_at_mut(side * side);
        // Scale and shift of a byte.
        let of = |channel: usize| (1.0 / (255.0 * DEVIATION[channel]), -MEAN[channel] / DEVIATION[channel]);
        let [(ra, rb), (ga, gb), (ba, bb)] = [0, 1, 2].map(of);
        let rows = red.chunks_exact_mut(side).zip(green.chunks_exact_mut(side)).zip(blue.chunks_exact_mut(side));
        for (((red, green), blue), row) in rows.zip(resized.chunks_exact(3 * side)) {
            let write = |((red, green), blue): ((&mut f32, &mut f32), &mut f32), pixel: &[u8]| {
                *red = f32::from(pixel[0]) * ra + rb;
                *green = f32::from(pixel[1]) * ga + gb;
                *blue = f32::from(pixel[2]) * ba + bb;
            };
            let to = red.iter_mut().zip(green.iter_mut()).zip(blue.iter_mut());
            if mirrored {
                to.zip(row.chunks_exact(3).rev()).for_each(|(to, pixel)| write(to, pixel));
            } else {
                to.zip(row.chunks_exact(3)).for_each(|(to, pixel)| write(to, pixel));
            }
        }
    }
}

/// `get_params` of torchvision's `RandomResizedCrop`: ten tries, then the largest part in the middle whose aspect ratio is allowed.
fn random_area(width: u32, height: u32, area: (f64, f64), aspect: (f64, f64), random: &mut SampleRandom) -> Area {
    let mut between = |low: f64, high: f64| low + (high - low) * unit(random);
    let (w, h) = (f64::from(width), f64::from(height));
    for _ in 0..10 {
        let target = w * h * between(area.0, area.1);
        let ratio = between(aspect.0.ln(), aspect.1.ln()).exp();
        let (wide, high) = ((target * ratio).sqrt().round() as u32, (target / ratio).sqrt().round() as u32);
        if (1..=width).contains(&wide) && (1..=height).contains(&high) {
            let place = |room: u32, x: f64| ((f64::from(room) + 1.0) * x) as u32;
            let (top, left) = (place(height - high, between(0.0, 1.0)), place(width - wide, between(0.0, 1.0)));
            return Area { left, top, width: wide, height: high };
        }
    }
    let (wide, high) = if w / h < aspect.0 {
        (width, ((w / aspect.0).round() as u32).clamp(1, height))
    } else if w / h > aspect.1 {
        (((h * aspect.1).round() as u32).clamp(1, width), height)
    } else {
        (width, height)
    };
    Area { left: (width - wide) / 2, top: (height - high) / 2, width: wide, height: high }
}

/// Buffers of one worker's resizing.
#[derive(Debug)]
pub struct Resizing {
    resizer: Resizer,
    options: ResizeOptions,
    /// Width and height times three bytes.
    out: Vec<u8>,
}

impl Default for Resizing {
    fn default() -> Self {
        // Convolution widens the filter when it makes an image smaller; that is what is called antialiasing.
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        Resizing { resizer: Resizer::new(), options, out: Vec::new() }
    }
}

impl Resizing {
    /// The first half of [`Transform::apply`]: cuts a part out of an image and resizes it to a square; rows of red, green, blue bytes.
    ///
    /// # Errors
    /// A part that is not inside the image.
    pub fn resize(&mut self, pixels: &Pixels, part: Area, side: u32) -> Result<&[u8]> {
        let (width, height) = (u32::try_from(pixels.width)?, u32::try_from(pixels.height)?);
        let source = ImageRef::new(width, height, &pixels.rgb[..pixels.bytes()], PixelType::U8x3)?;
        let outside = || format!("{part:?} is not inside an image of {width} x {height}");
        self.out.resize(3 * side as usize * side as usize, 0);
        let mut out = Image::from_slice_u8(side, side, &mut self.out, PixelType::U8x3)?;
        let Area { left, top, width, height } = part;
        let cut = CroppedImage::new(&source, left, top, width, height).with_context(outside)?;
        self.resizer.resize(&cut, &mut out, &self.options)?;
        Ok(&self.out)
    }
}
