//! A part of a JPEG image: what a random crop needs of it, and no more.
//!
//! Codes follow one another without marks, so those before the part must be read. But what lies outside of it is not transformed, interpolated
//! or coloured, and nothing behind its last row is read at all. Baseline images in one scan are decoded so, which nearly all photographs
//! are. Every sample is libjpeg-turbo's with its defaults, to the bit: what Pillow, and with it torchvision, gives.
//!
//! The format is ITU-T T.81's; `headers`, `huffman`, `cosine` and `colour` are its stages.

mod colour;
mod cosine;
mod headers;
mod huffman;

use super::pixels::Area;
use anyhow::{Result, ensure};
pub(super) use headers::Headers;
use huffman::{Bits, Code};
use std::ops::Range;

/// Memory and tables that are used from image to image.
#[derive(Debug)]
pub(super) struct PartDecoder {
    /// First coefficients', then the others', by number.
    codes: [[Code; 4]; 2],
    /// Samples of the units that hold the part; what follows is left from earlier images.
    planes: [Vec<u8>; 3],
    /// A row of chroma on its way to the image's width.
    sums: Vec<u16>,
    chroma: [Vec<u8>; 2],
    /// Bytes of the last file that were read.
    read: usize,
}

impl Default for PartDecoder {
    fn default() -> Self {
        let codes = || std::array::from_fn(|_| Code::default());
        PartDecoder { codes: [codes(), codes()], planes: Default::default(), sums: Vec::new(), chroma: Default::default(), read: 0 }
    }
}

/// The units that hold pixels and what is interpolated with them from beyond their edges.
fn units(first: u32, count: u32, whole: usize, unit: usize) -> Range<usize> {
    let (first, end) = (first as usize, first as usize + count as usize);
    first.saturating_sub(2) / unit..(end + 2).min(whole).div_ceil(unit)
}

/// Decodes the units of these columns and rows into planes; reads over those before them, and leaves those behind.
fn read_units(
    bits: &mut Bits,
    headers: &Headers,
    codes: &[[Code; 4]; 2],
    mut planes: [&mut Vec<u8>; 3],
    columns: &Range<usize>,
    rows: &Range<usize>,
) -> Result<()> {
    let components = headers.components();
    let units_across = headers.width.div_ceil(8 * components[0].across);
    let mut levels = [0i32; 3];
    let (mut until_restart, mut restarts) = (headers.restart, 0);
    for row in 0..rows.end {
        for column in 0..units_across {
            if row + 1 == rows.end && column == columns.end {
                break;
            }
            if headers.restart > 0 {
                if until_restart == 0 {
                    bits.restart(restarts)?;
                    (levels, until_restart, restarts) = ([0; 3], headers.restart, restarts + 1);
                }
                until_restart -= 1;
            }
            let kept = rows.contains(&row) && columns.contains(&column);
            for ((component, plane), level) in components.iter().zip(&mut planes).zip(&mut levels) {
                let (dc, ac) = (&codes[0][component.dc], &codes[1][component.ac]);
                let divisors = &headers.divisors[component.divisors];
                let stride = 8 * component.across * columns.len();
                for inside in 0..component.across * component.down {
                    *level = level.wrapping_add(bits.first(dc)?);
                    if !kept {
                        bits.skip_others(ac)?;
                        continue;
                    }
                    let mut block = [0i16; 64];
                    block[0] = (*level as i16).wrapping_mul(divisors[0] as i16);
                    let last = bits.others(ac, divisors, &mut block)?;
                    let x = (column - columns.start) * component.across + inside % component.across;
                    let y = (row - rows.start) * component.down + inside / component.across;
                    cosine::inverse(&block, last, &mut plane[8 * y * stride + 8 * x..], stride);
                }
            }
        }
        ensure!(!bits.is_past_end(), "the coded data ends early");
    }
    Ok(())
}

impl PartDecoder {
    /// Writes the pixels of a part that lies inside the image, `3 * width * height` bytes.
    ///
    /// # Errors
    /// Data that is damaged, or ends, in what has to be read for the part.
    pub fn decode(&mut self, file: &[u8], headers: &Headers, part: Area, into: &mut [u8]) -> Result<()> {
        let luma = headers.components()[0];
        let columns = units(part.left, part.width, headers.width, 8 * luma.across);
        let rows = units(part.top, part.height, headers.height, 8 * luma.down);
        self.samples(file, headers, &columns, &rows)?;
        self.pixels(headers, part, (8 * luma.across * columns.start, 8 * luma.down * rows.start), 8 * columns.len(), into);
        Ok(())
    }

    /// How far into the last file it was read; where decoding failed, about where.
    pub fn read(&self) -> usize {
        self.read
    }

    fn samples(&mut self, file: &[u8], headers: &Headers, columns: &Range<usize>, rows: &Range<usize>) -> Result<()> {
        let components = headers.components();
        let data = &file[headers.data..];
        let units_across = headers.width.div_ceil(8 * components[0].across);
        let blocks: usize = components.iter().map(|component| component.across * component.down).sum();
        // A block has two codes of a bit each at least: a small file cannot ask for much memory.
        self.read = headers.data;
        ensure!(units_across * (rows.end - 1) * blocks <= 4 * data.len(), "the coded data is too short for an image of this size");
        for component in components {
            for (codes, (tables, number)) in self.codes.iter_mut().zip(headers.codes.iter().zip([component.dc, component.ac])) {
                if let Some(table) = tables[number] {
                    codes[number].become_of(table)?;
                }
            }
        }
        for (component, plane) in components.iter().zip(&mut self.planes) {
            let bytes = 64 * component.across * columns.len() * component.down * rows.len();
            if plane.len() < bytes {
                plane.resize(bytes, 0);
            }
        }
        let mut bits = Bits::new(data);
        let read = read_units(&mut bits, headers, &self.codes, self.planes.each_mut(), columns, rows);
        self.read = headers.data + bits.at();
        read
    }

    /// Makes pixels of samples. Those at hand begin at pixel `origin` of the image, and a row of chroma has `stride` of them.
    fn pixels(&mut self, headers: &Headers, part: Area, origin: (usize, usize), stride: usize, into: &mut [u8]) {
        let luma = headers.components()[0];
        let (left, top, width) = (part.left as usize, part.top as usize, part.width as usize);
        let [plane, chroma @ ..] = &self.planes;
        // The part's samples of chroma, and the image's.
        let (from, to) = (left / luma.across, (left + width).div_ceil(luma.across));
        let (chroma_width, chroma_height) = (headers.width.div_ceil(luma.across), headers.height.div_ceil(luma.down));
        let chroma_origin = (origin.0 / luma.across, origin.1 / luma.down);
        let two = luma.down == 2;
        self.sums.resize(to - from + 2, 0);
        for (row, into) in (top..).zip(into.chunks_exact_mut(3 * width)) {
            let luma_row = &plane[(row - origin.1) * stride * luma.across + left - origin.0..][..width];
            if headers.components().len() == 1 {
                colour::grey(luma_row, into);
                continue;
            }
            let (near, lower) = (row / luma.down, row % luma.down == 1);
            let far = match (two, lower) {
                (false, _) => near,
                (true, true) => (near + 1).min(chroma_height - 1),
                (true, false) => near.saturating_sub(1),
            };
            for (grown, plane) in self.chroma.iter_mut().zip(chroma) {
                grown.resize(luma.across * (to - from), 0);
                let at = |row: usize, from: usize, to: usize| {
                    &plane[(row - chroma_origin.1) * stride..][from - chroma_origin.0..to - chroma_origin.0]
                };
                let (near_row, far_row) = (at(near, from, to), at(far, from, to));
                if luma.across == 1 {
                    if two {
                        colour::between(near_row, far_row, lower, grown);
                    } else {
                        grown.copy_from_slice(near_row);
                    }
                    continue;
                }
                let inner = to - from;
                colour::add_rows(two, near_row, far_row, &mut self.sums[1..=inner]);
                // At the image's edges a sample stands for the one beside it that is not there.
                let sum_at = |x: usize| colour::sum(two, at(near, x, x + 1)[0], at(far, x, x + 1)[0]);
                self.sums[0] = if from == 0 { self.sums[1] } else { sum_at(from - 1) };
                self.sums[inner + 1] = if to == chroma_width { self.sums[inner] } else { sum_at(to) };
                colour::double(two, &self.sums, grown);
            }
            let [blue, red] = self.chroma.each_ref().map(|grown| &grown[left % luma.across..][..width]);
            colour::colour(luma_row, blue, red, into);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
    use proptest::prelude::*;
    use zune_core::bytestream::ZCursor;
    use zune_jpeg::JpegDecoder;

    /// How an image is stored.
    #[derive(Debug, Clone, Copy)]
    struct Stored {
        width: u16,
        height: u16,
        sampling: SamplingFactor,
        grey: bool,
        optimised: bool,
        restart: u16,
        quality: u8,
    }

    fn stored() -> impl Strategy<Value = Stored> {
        use SamplingFactor::{F_1_1, F_1_2, F_2_1, F_2_2};
        let sampling = prop_oneof![Just(F_1_1), Just(F_2_1), Just(F_1_2), Just(F_2_2)];
        let how = (sampling, any::<bool>(), any::<bool>(), prop_oneof![Just(0u16), 1u16..9], 5u8..=100);
        (5u16..70, 5u16..70, how).prop_map(|(width, height, (sampling, grey, optimised, restart, quality))| Stored {
            width,
            height,
            sampling,
            grey,
            optimised,
            restart,
            quality,
        })
    }

    /// Slopes, an edge and noise.
    fn file(stored: Stored) -> Vec<u8> {
        let (width, height) = (u32::from(stored.width), u32::from(stored.height));
        let pixel = |i: u32| {
            let (x, y) = (i % width, i / width);
            let noise = (i.wrapping_mul(0x9e37_79b1) >> 27) as u8;
            [(3 * x) as u8 / 2 + noise, if x > y { 200 } else { 30 }, (2 * y) as u8 ^ noise]
        };
        let pixels: Vec<u8> =
            (0..width * height).flat_map(|i| pixel(i).into_iter().take(if stored.grey { 1 } else { 3 })).collect();
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, stored.quality);
        encoder.set_sampling_factor(stored.sampling);
        // With tables of its own, this encoder writes a scan for each plane, and it fails between restarts.
        encoder.set_optimized_huffman_tables(stored.optimised && stored.grey && stored.restart == 0);
        if stored.restart > 0 {
            encoder.set_restart_interval(stored.restart);
        }
        let colour = if stored.grey { ColorType::Luma } else { ColorType::Rgb };
        encoder.encode(&pixels, stored.width, stored.height, colour).unwrap();
        file
    }

    fn part_of(decoder: &mut PartDecoder, file: &[u8], part: Area) -> Result<Vec<u8>> {
        let headers = Headers::read(file).expect("a baseline image in one scan");
        let mut pixels = vec![0; 3 * part.width as usize * part.height as usize];
        decoder.decode(file, &headers, part, &mut pixels).map(|()| pixels)
    }

    fn whole(stored: Stored) -> Area {
        Area { left: 0, top: 0, width: stored.width.into(), height: stored.height.into() }
    }

    /// A part from four shares of the sides.
    fn part(stored: Stored, shares: (f64, f64, f64, f64)) -> Area {
        let side = |whole: u16, share: f64| 1 + (f64::from(whole - 1) * share) as u32;
        let (width, height) = (side(stored.width, shares.0), side(stored.height, shares.1));
        let first = |whole: u16, count: u32, share: f64| (f64::from(u32::from(whole) - count) * share).round() as u32;
        Area { left: first(stored.width, width, shares.2), top: first(stored.height, height, shares.3), width, height }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_part_is_what_the_whole_has_there(
            stored in stored(), shares in (0.0..1.0f64, 0.0..1.0f64, 0.0..1.0f64, 0.0..1.0f64), other in stored(),
        ) {
            let (file, part) = (file(stored), part(stored, shares));
            let mut decoder = PartDecoder::default();
            let all = part_of(&mut decoder, &file, whole(stored)).unwrap();
            // An image with other tables between them leaves nothing behind.
            part_of(&mut decoder, &super::tests::file(other), whole(other)).unwrap();
            let found = part_of(&mut decoder, &file, part).unwrap();
            for (row, found) in (part.top..).zip(found.chunks_exact(3 * part.width as usize)) {
                let start = 3 * (row as usize * usize::from(stored.width) + part.left as usize);
                prop_assert_eq!(found, &all[start..start + found.len()], "row {}", row);
            }
        }

        /// zune-jpeg rounds chroma that it interpolates otherwise; tests/loader/decoding.rs holds us to libjpeg.
        #[test]
        fn the_whole_is_nearly_what_another_decoder_gives(stored in stored()) {
            let file = file(stored);
            let found = part_of(&mut PartDecoder::default(), &file, whole(stored)).unwrap();
            let options = zune_core::options::DecoderOptions::default().jpeg_set_out_colorspace(zune_core::colorspace::ColorSpace::RGB);
            let other = JpegDecoder::new_with_options(ZCursor::new(&file), options).decode().unwrap();
            let apart: Vec<u8> = found.iter().zip(&other).map(|(a, b)| a.abs_diff(*b)).collect();
            let mean = apart.iter().map(|x| f64::from(*x)).sum::<f64>() / apart.len() as f64;
            prop_assert_eq!(found.len(), other.len());
            prop_assert!(mean < 1.0, "{} on average", mean);
        }

        #[test]
        fn damage_is_an_error_or_other_pixels(
            stored in stored(), at in 0.0..1.0f64, value: u8, cut in 0.0..1.0f64,
            shares in (0.0..1.0f64, 0.0..1.0f64, 0.0..1.0f64, 0.0..1.0f64),
        ) {
            let mut file = file(stored);
            let data = Headers::read(&file).unwrap().data;
            let place = (file.len() as f64 * at) as usize;
            file[place] = value;
            let mut decoder = PartDecoder::default();
            let mut pixels = Vec::new();
            if let Some(headers) = Headers::read(&file) {
                let part = part(Stored { width: headers.width as u16, height: headers.height as u16, ..stored }, shares);
                pixels.resize(3 * part.width as usize * part.height as usize, 0);
                let _ = decoder.decode(&file, &headers, part, &mut pixels);
            }
            // Cut short in its data, the whole is refused. Its end is two bytes of a marker, and at most one that only fills up.
            file[place] = super::tests::file(stored)[place];
            let most = (file.len() - data).saturating_sub(4);
            file.truncate(data + (most as f64 * cut) as usize);
            prop_assert!(part_of(&mut decoder, &file, whole(stored)).is_err());
        }
    }

    #[test]
    fn a_small_file_cannot_ask_for_much_memory() {
        let stored = Stored {
            width: 40,
            height: 40,
            sampling: SamplingFactor::F_2_2,
            grey: false,
            optimised: false,
            restart: 0,
            quality: 50,
        };
        let mut file = file(stored);
        let frame = file.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
        file[frame + 5..frame + 9].copy_from_slice(&[0x40, 0, 0x40, 0]);
        let headers = Headers::read(&file).unwrap();
        let mut decoder = PartDecoder::default();
        let all = Area { left: 0, top: 0, width: 1 << 14, height: 1 << 14 };
        let error = decoder.decode(&file, &headers, all, &mut []).unwrap_err().to_string();
        assert!(error.contains("too short") && decoder.planes.iter().all(Vec::is_empty), "{error}");
        file[frame + 5] = 0x41;
        assert!(Headers::read(&file).is_none());
    }
}
