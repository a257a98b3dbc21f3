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
