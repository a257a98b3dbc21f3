//! Samples to pixels: chroma that was stored at half the size is interpolated as libjpeg does it ('fancy upsampling'), and colours become
//! red, green and blue, to the bit.

use torch::vectors::widest;

/// The nearer of two samples counts three times as much.
#[inline(always)]
pub fn sum(two: bool, near: u8, far: u8) -> u16 {
    if two { 3 * u16::from(near) + u16::from(far) } else { u16::from(near) }
}

/// Sums of the samples of two rows, or the samples of the first alone.
pub fn add_rows(two: bool, near: &[u8], far: &[u8], into: &mut [u16]) {
    widest(
        #[inline(always)]
        || {
            if two {
                into.iter_mut().zip(near).zip(far).for_each(|((into, near), far)| *into = sum(true, *near, *far));
            } else {
                into.iter_mut().zip(near).for_each(|(into, near)| *into = u16::from(*near));
            }
        },
    );
}

/// Two samples of each sum and its neighbours; the first and the last sum are neighbours alone.
pub fn double(two: bool, sums: &[u16], into: &mut [u8]) {
    widest(
        #[inline(always)]
        || if two { double_by(sums, into, (8, 7), 4) } else { double_by(sums, into, (1, 2), 2) },
    );
}

#[inline(always)]
fn double_by(sums: &[u16], into: &mut [u8], bias: (u16, u16), shift: u32) {
    let neighbours = sums.iter().zip(&sums[1..]).zip(&sums[2..]);
    for (pair, ((before, here), after)) in into.chunks_exact_mut(2).zip(neighbours) {
        pair[0] = ((3 * here + before + bias.0) >> shift) as u8;
        pair[1] = ((3 * here + after + bias.1) >> shift) as u8;
    }
}

/// A row between two, the upper or the lower one.
pub fn between(near: &[u8], far: &[u8], lower: bool, into: &mut [u8]) {
    let bias = if lower { 2 } else { 1 };
    for ((into, near), far) in into.iter_mut().zip(near).zip(far) {
        *into = ((sum(true, *near, *far) + bias) >> 2) as u8;
    }
}

/// Writes pixels of luma and chroma.
pub fn colour(luma: &[u8], blue: &[u8], red: &[u8], into: &mut [u8]) {
    widest(
        #[inline(always)]
        || {
            for (((pixel, y), cb), cr) in into.chunks_exact_mut(3).zip(luma).zip(blue).zip(red) {
                let (y, cb, cr) = (i32::from(*y), i32::from(*cb) - 128, i32::from(*cr) - 128);
                let byte = |value: i32| value.clamp(0, 255) as u8;
                pixel[0] = byte(y + ((91881 * cr + 32768) >> 16));
                pixel[1] = byte(y + ((-22554 * cb - 46802 * cr + 32768) >> 16));
                pixel[2] = byte(y + ((116130 * cb + 32768) >> 16));
            }
        },
    );
}

/// Writes grey pixels.
pub fn grey(luma: &[u8], into: &mut [u8]) {
    into.chunks_exact_mut(3).zip(luma).for_each(|(pixel, y)| pixel.fill(*y));
}
