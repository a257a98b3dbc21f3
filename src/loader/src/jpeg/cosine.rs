//! Coefficients to samples: the inverse cosine transform, in libjpeg's 13-bit fixed point ('islow'), to the bit.

use torch::vectors::inverse_cosine;

/// Writes the eight by eight samples of a block. `last` is the place of its last coefficient, in the file's order.
#[inline]
pub fn inverse(block: &[i16; 64], last: usize, plane: &mut [u8], stride: usize) {
    let samples = match last {
        0 => [[(((i32::from(block[0]) + 4) >> 3) + 128).clamp(0, 255) as u8; 8]; 8],
        _ => inverse_cosine(block).unwrap_or_else(|| one_by_one(block)),
    };
    for (row, samples) in plane.chunks_mut(stride).zip(samples) {
        row[..8].copy_from_slice(&samples);
    }
}

/// Without vectors.
fn one_by_one(block: &[i16; 64]) -> [[u8; 8]; 8] {
    let mut between = [[0; 8]; 8];
    for x in 0..8 {
        let column = one_dimension(std::array::from_fn(|y| i32::from(block[8 * y + x])), 11);
        (0..8).for_each(|y| between[y][x] = column[y]);
    }
    between.map(|row| one_dimension(row, 18).map(saturated))
}

/// As 16-bit vectors do it.
fn saturated(value: i32) -> u8 {
    (value.clamp(-32768, 32767) + 128).clamp(0, 255) as u8
}

/// Eight values, each divided by a power of two at the end. Damaged files may overflow, which wraps.
fn one_dimension(x: [i32; 8], bits: u32) -> [i32; 8] {
    use std::num::Wrapping as W;
    let x = x.map(W);
    let z1 = (x[2] + x[6]) * W(4433);
    let (t2, t3) = (z1 - x[6] * W(15137), z1 + x[2] * W(6270));
    let (t0, t1) = ((x[0] + x[4]) << 13, (x[0] - x[4]) << 13);
    let even = [t0 + t3, t1 + t2, t1 - t2, t0 - t3];
    let (z3, z4) = (x[7] + x[3], x[5] + x[1]);
    let z5 = (z3 + z4) * W(9633);
    let (z1, z2) = ((x[7] + x[1]) * W(-7373), (x[5] + x[3]) * W(-20995));
    let (z3, z4) = (z5 - z3 * W(16069), z5 - z4 * W(3196));
    let odd = [x[1] * W(12299) + z1 + z4, x[3] * W(25172) + z2 + z3, x[5] * W(16819) + z2 + z4, x[7] * W(2446) + z1 + z3];
    std::array::from_fn(|i| {
        let sum = if i < 4 { even[i] + odd[i] } else { even[7 - i] - odd[7 - i] };
        (sum + W(1 << (bits - 1))).0 >> bits
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block() -> impl Strategy<Value = [i16; 64]> {
        let usual = proptest::collection::vec(-1024i16..1024, 64);
        let damaged = proptest::collection::vec(any::<i16>(), 64);
        prop_oneof![usual, damaged].prop_map(|values| values.try_into().unwrap_or([0; 64]))
    }

    proptest! {
        #[test]
        fn vectors_give_what_single_values_do(block in block()) {
            if let Some(samples) = inverse_cosine(&block) {
                prop_assert_eq!(samples, one_by_one(&block));
            }
        }

        #[test]
        fn a_block_of_one_coefficient_is_flat(first: i16) {
            let mut block = [0; 64];
            block[0] = first;
            let mut plane = [0; 64];
            inverse(&block, 0, &mut plane, 8);
            let expected = one_by_one(&block);
            prop_assert_eq!(&plane[..], expected.as_flattened());
        }
    }

    /// The definition, in floating point.
    #[test]
    fn it_is_the_inverse_cosine_transform() {
        use std::f64::consts::{FRAC_1_SQRT_2, PI};
        let block: [i16; 64] = std::array::from_fn(|i| (i as i16 * 37 % 101 - 50) / (1 + i as i16 / 8));
        let found = one_by_one(&block);
        for (y, x) in (0..64).map(|i| (i / 8, i % 8)) {
            let scale = |k: usize| if k == 0 { FRAC_1_SQRT_2 } else { 1.0 };
            let wave = |at: usize, k: usize| ((2 * at + 1) as f64 * k as f64 * PI / 16.0).cos();
            let term = |i: usize| scale(i / 8) * scale(i % 8) * f64::from(block[i]) * wave(y, i / 8) * wave(x, i % 8);
            let exact = (0..64).map(term).sum::<f64>() / 4.0 + 128.0;
            assert!((f64::from(found[y][x]) - exact.clamp(0.0, 255.0)).abs() < 1.0, "{x}, {y}: {exact}");
        }
    }
}
