//! What do a head and its loss need, by vocabulary and number of tokens?

use super::*;

/// Bytes of the head's step over the number of logits: its gradients are among them.
const PER_LOGIT: Metric = Metric::counted("per_logit", "bytes of the step for each logit", "B");

number! { Width "features of a token" }
number! { Vocabulary "words of the vocabulary" }

cell! { Head { width: Width, vocabulary: Vocabulary, tokens: Tokens, dtype: Dtype, how: How, by: By } }

pub fn grid() -> Grid<Head> {
    use Dtype::{Bf16, Fp32};
    use How::{Chunked, Fused, Plain};
    let exact = [Plain, Chunked, Fused];
    let saves = |how| ratio(STEP_PEAK).of(move |c: &Head| c.how == how).confirm(at_most(0.50)).refute(at_least(0.90));
    // A CPU's bf16 products are emulated on many machines.
    let price = |how, limit| ratio(TIME).of(move |c: &Head| c.how == how && c.dtype == Fp32).holds(at_most(limit)).informational();
    let published = |how| value(STEP_PEAK).of(move |c: &Head| c.vocabulary == Vocabulary(256_000) && c.how == how);
    Grid::new("head and loss", in_python)
        .compare::<How>()
        // As many words for each feature as a Llama of 1B has.
        .quick(Head::cross(64, 4096, 512, Bf16, How::ALL, By::Pytorch).passes(CHECK | COUNT))
        .quick(Head::cross(64, 4096, 512, Fp32, exact, By::Pytorch))
        // GPT-2, as it is and padded to a multiple of 64; a Llama 3 of 1B; Gemma 2 of 2B; a Llama 2's vocabulary.
        .full(Head::cross(768, [50_257, 50_304], [1024, 8192], Bf16, How::ALL, By::Pytorch))
        .full(Head::cross(2048, 128_256, [1024, 2048, 4096, 8192], Bf16, How::ALL, By::Pytorch))
        .full(Head::cross(2304, 256_000, 8192, Bf16, How::ALL, By::Pytorch))
        .full(Head::cross(2048, 32_000, 8192, Bf16, How::ALL, By::Pytorch))
        .smoke(Head::cross(16, 1000, 600, Fp32, exact, By::Pytorch))
        .on(EVERYWHERE)
        .metrics(&[PER_LOGIT])
        // The same sums in another order; bf16 keeps eight bits of each gradient, and adds up the chunks' in it.
        .check(|c| equal(if c.dtype == Fp32 { 1e-5 } else { 2e-2 }))
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours("loss-fused", "a fused head and loss take the logits out of memory")
                .rule(saves(Fused))
                .rule(price(Fused, 1.5))
                .changed(LEAST_WAS_SET),
        )
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours("loss-chunked", "a loss in chunks over tokens needs half of a plain one's memory")
                .rule(saves(Chunked))
                .rule(price(Chunked, 1.25)),
        )
        .claim(
            Claim::published(
                "cut-your-losses",
                "Wijmans et al., arXiv 2411.09009, table 1",
                "Gemma 2 (2B), 8,192 tokens, loss and gradient on an A100 with 80 GB: plain 28,000 MB, their kernel 1,164 MB",
            )
            .on(CUDA)
            .rule(published(Plain).reproduces(28_000.0 * MIB))
            .rule(published(Fused).reproduces(1_164.0 * MIB))
            .setup(
                "Shapes are theirs, in bf16; 1 MB there is 1 MiB. Their logits are soft-capped, ours are not. A chunk's gradient of the \
                 weights is a tensor beside the sum here (1,125 MiB more); their kernel adds it in place.",
            ),
        )
        .plot(
            lines(STEP_PEAK)
                .named("tokens")
                .caption("Bytes of head and loss by tokens of a step, 128,256 words in the vocabulary")
                .of(|c: &Head| c.vocabulary == Vocabulary(128_256))
                .over::<Tokens>()
                .by::<How>(),
        )
}

const MIB: f64 = (1 << 20) as f64;
