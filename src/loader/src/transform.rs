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

/// What becomes of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transform {
    pub crop: Crop,
    /// Side of the square that comes out.
    pub size: u32,
    /// How often the image is mirrored.
    pub flip: f64,
    pub normalise: Normalise,
}

/// Which part of an image is taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Crop {
    /// A random share of the area with a random aspect ratio, resized to the square; torchvision's `RandomResizedCrop`.
    RandomResized { area: (f64, f64), aspect: (f64, f64) },
    /// The square in the middle of the image whose shorter side was made `shorter` pixels, at least as many as the square has; torchvision's
    /// `Resize(shorter)` and `CenterCrop(size)`.
    Centre { shorter: u32 },
    /// Always this part, resized to the square.
    Fixed(Area),
}

/// What of an image becomes the square.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CropPart {
    /// This area, which is cut out and then resized.
    Cut(Area),
    /// A square in the image resized to a width and height of its own, from `left` and `top` there.
    Resized { width: u32, height: u32, left: u32, top: u32 },
}

/// Each channel, from 0 to 1, less its mean, over its deviation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalise {
    pub mean: [f32; 3],
    pub deviation: [f32; 3],
}

impl Normalise {
    /// The figures of ImageNet that everyone uses.
    pub const IMAGENET: Normalise = Normalise { mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] };

    /// Scale and shift that do it to a byte.
    pub(super) fn of_byte(&self, channel: usize) -> (f32, f32) {
        (1.0 / (255.0 * self.deviation[channel]), -self.mean[channel] / self.deviation[channel])
    }
}

impl Transform {
    /// Random resized crop with torchvision's defaults, random flip, ImageNet's normalisation.
    pub fn training(size: u32) -> Transform {
        let crop = Crop::RandomResized { area: (0.08, 1.0), aspect: (3.0 / 4.0, 4.0 / 3.0) };
        Transform { crop, size, flip: 0.5, normalise: Normalise::IMAGENET }
    }

    /// The square in the middle after the shorter side was made `shorter` pixels, no flip, ImageNet's normalisation.
    pub fn evaluation(shorter: u32, size: u32) -> Transform {
        Transform { crop: Crop::Centre { shorter }, size, flip: 0.0, normalise: Normalise::IMAGENET }
    }

    /// The part of an image of this size that is taken, and whether it is mirrored.
    pub fn draw(&self, width: u32, height: u32, random: &mut SampleRandom) -> (CropPart, bool) {
        let part = match self.crop {
            Crop::RandomResized { area, aspect } => CropPart::Cut(random_area(width, height, area, aspect, random)),
            Crop::Centre { shorter } => centre(width, height, shorter, self.size),
            Crop::Fixed(area) => CropPart::Cut(area),
        };
        (part, unit(random) < self.flip)
    }

    /// Writes the transformed image as `[3, size, size]`.
    ///
    /// # Errors
    /// A part that is not inside the image; memory of another size.
    pub fn apply(
        &self,
        pixels: &Pixels,
        (part, mirrored): (CropPart, bool),
        resizing: &mut Resizing,
        into: &mut [f32],
    ) -> Result<()> {
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
        let [(ra, rb), (ga, gb), (ba, bb)] = [0, 1, 2].map(|channel| self.normalise.of_byte(channel));
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

/// torchvision's `Resize(shorter)`, which cuts fractions of the longer side off, and `CenterCrop(side)`, which rounds halves to even.
fn centre(width: u32, height: u32, shorter: u32, side: u32) -> CropPart {
    let longer = |side: u32, of: u32| (f64::from(shorter) * f64::from(side) / f64::from(of)) as u32;
    let (wide, high) = if width <= height { (shorter, longer(height, width)) } else { (longer(width, height), shorter) };
    let middle = |room: u32| (f64::from(room.saturating_sub(side)) / 2.0).round_ties_even() as u32;
    CropPart::Resized { width: wide, height: high, left: middle(wide), top: middle(high) }
}

/// Where in an image, along one side of so many pixels, a square lies that is cut out of it once that side was resized: start and length.
fn square_along(from: u32, resized: u32, pixels: usize, side: u32) -> (f64, f64) {
    let scale = pixels as f64 / f64::from(resized);
    let start = f64::from(from) * scale;
    (start, (f64::from(side) * scale).min(pixels as f64 - start))
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
    /// The first half of [`Transform::apply`]: cuts a part out of an image and resizes it to a square, or resizes the image and cuts the
    /// square out; rows of red, green, blue bytes.
    ///
    /// # Errors
    /// A part that is not inside the image.
    pub fn resize(&mut self, pixels: &Pixels, part: CropPart, side: u32) -> Result<&[u8]> {
        let (width, height) = (u32::try_from(pixels.width)?, u32::try_from(pixels.height)?);
        let source = ImageRef::new(width, height, &pixels.rgb[..pixels.bytes()], PixelType::U8x3)?;
        let outside = || format!("{part:?} is not inside an image of {width} x {height}");
        self.out.resize(3 * side as usize * side as usize, 0);
        let mut out = Image::from_slice_u8(side, side, &mut self.out, PixelType::U8x3)?;
        match part {
            CropPart::Cut(Area { left, top, width, height }) => {
                let cut = CroppedImage::new(&source, left, top, width, height).with_context(outside)?;
                self.resizer.resize(&cut, &mut out, &self.options)?;
            }
            CropPart::Resized { width, height, left, top } => {
                ensure!(
                    left + side <= width && top + side <= height,
                    "a square of {side} pixels is not inside an image that was resized to {width} x {height}; let Crop::Centre make the \
                     shorter side at least as long"
                );
                // Only the pixels of the square are computed, from what they would be computed from in the whole.
                let (x, across) = square_along(left, width, pixels.width, side);
                let (y, down) = square_along(top, height, pixels.height, side);
                self.resizer.resize(&source, &mut out, &self.options.crop(x, y, across, down)).with_context(outside)?;
            }
        }
        Ok(&self.out)
    }
}
