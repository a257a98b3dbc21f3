//! The CPU's wide vectors, where it has them: which it has is known only when the program runs, and that takes `unsafe`.

/// Runs a function compiled for 256-bit vectors where the CPU has them. It gains where the body and all that it calls are inlined:
/// `#[inline(always)]` on both.
#[inline(always)]
pub fn widest<T>(body: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn wide<T>(body: impl FnOnce() -> T) -> T {
            body()
        }
        // SAFETY: the CPU has what the function is compiled for.
        return unsafe { wide(body) };
    }
    body()
}

/// The inverse cosine transform of a block of eight by eight coefficients, row by row, in libjpeg's 13-bit fixed point ('islow'), to the
/// bit: eight samples for each row, or none where the CPU lacks the vectors for it.
#[inline(always)]
pub fn inverse_cosine(block: &[i16; 64]) -> Option<[[u8; 8]; 8]> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has what the function is compiled for.
        return Some(unsafe { avx2::inverse_cosine(block) });
    }
    None
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    pub fn inverse_cosine(block: &[i16; 64]) -> [[u8; 8]; 8] {
        let row = |i: usize| {
            let row = &block[8 * i..8 * i + 8];
            // SAFETY: the slice has the 16 bytes that are read.
            _mm256_cvtepi16_epi32(unsafe { _mm_loadu_si128(row.as_ptr().cast()) })
        };
        let rows = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
        let rows = transpose(one_dimension::<18>(transpose(one_dimension::<11>(rows))));
        let level = _mm256_set1_epi16(128);
        // Rows a and b, saturated to 16 bits and raised to the middle: a's first four, b's, a's last four, b's.
        let pair = |a, b| _mm256_adds_epi16(_mm256_packs_epi32(a, b), level);
        let four = |a, b, c, d| {
            let bytes = _mm256_packus_epi16(pair(a, b), pair(c, d));
            // Brings the halves of each row together.
            _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
        };
        let (upper, lower) = (four(rows[0], rows[1], rows[2], rows[3]), four(rows[4], rows[5], rows[6], rows[7]));
        let mut samples = [[0; 8]; 8];
        for (four, samples) in [upper, lower].into_iter().zip(samples.chunks_exact_mut(4)) {
            samples[0] = _mm256_extract_epi64::<0>(four).to_le_bytes();
            samples[1] = _mm256_extract_epi64::<1>(four).to_le_bytes();
            samples[2] = _mm256_extract_epi64::<2>(four).to_le_bytes();
            samples[3] = _mm256_extract_epi64::<3>(four).to_le_bytes();
        }
        samples
    }

    /// One dimension for eight columns at once, each value divided by a power of two.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn one_dimension<const BITS: i32>(x: [__m256i; 8]) -> [__m256i; 8] {
        let (add, sub) = (|a, b| _mm256_add_epi32(a, b), |a, b| _mm256_sub_epi32(a, b));
        let times = |a, factor| _mm256_mullo_epi32(a, _mm256_set1_epi32(factor));
        let z1 = times(add(x[2], x[6]), 4433);
        let (t2, t3) = (sub(z1, times(x[6], 15137)), add(z1, times(x[2], 6270)));
        let (t0, t1) = (_mm256_slli_epi32::<13>(add(x[0], x[4])), _mm256_slli_epi32::<13>(sub(x[0], x[4])));
        let even = [add(t0, t3), add(t1, t2), sub(t1, t2), sub(t0, t3)];
        let (z3, z4) = (add(x[7], x[3]), add(x[5], x[1]));
        let z5 = times(add(z3, z4), 9633);
        let (z1, z2) = (times(add(x[7], x[1]), -7373), times(add(x[5], x[3]), -20995));
        let (z3, z4) = (sub(z5, times(z3, 16069)), sub(z5, times(z4, 3196)));
        let odd = [
            add(times(x[1], 12299), add(z1, z4)),
            add(times(x[3], 25172), add(z2, z3)),
            add(times(x[5], 16819), add(z2, z4)),
            add(times(x[7], 2446), add(z1, z3)),
        ];
        let half = _mm256_set1_epi32(1 << (BITS - 1));
        let sum = |i: usize| _mm256_srai_epi32::<BITS>(add(add(even[i], odd[i]), half));
        let difference = |i: usize| _mm256_srai_epi32::<BITS>(add(sub(even[i], odd[i]), half));
        [sum(0), sum(1), sum(2), sum(3), difference(3), difference(2), difference(1), difference(0)]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
        let (low, high) = (|a, b| _mm256_unpacklo_epi32(a, b), |a, b| _mm256_unpackhi_epi32(a, b));
        let (low2, high2) = (|a, b| _mm256_unpacklo_epi64(a, b), |a, b| _mm256_unpackhi_epi64(a, b));
        let a = [low(r[0], r[1]), low(r[2], r[3]), low(r[4], r[5]), low(r[6], r[7])];
        let b = [high(r[0], r[1]), high(r[2], r[3]), high(r[4], r[5]), high(r[6], r[7])];
        let (first, second) = ([low2(a[0], a[1]), low2(a[2], a[3])], [high2(a[0], a[1]), high2(a[2], a[3])]);
        let (third, fourth) = ([low2(b[0], b[1]), low2(b[2], b[3])], [high2(b[0], b[1]), high2(b[2], b[3])]);
        let left = |[upper, lower]: [__m256i; 2]| _mm256_permute2x128_si256::<0x20>(upper, lower);
        let right = |[upper, lower]: [__m256i; 2]| _mm256_permute2x128_si256::<0x31>(upper, lower);
        [left(first), left(second), left(third), left(fourth), right(first), right(second), right(third), right(fourth)]
    }
}
