//! What do the logits of a large vocabulary take?

use super::*;

// Peaks above what lived before, over the bytes of one copy of the logits in bf16.
const LOSS: Metric = Metric::counted("loss_copies", "peak of the loss / logits", "1");
const GRADIENT: Metric = Metric::counted("gradient_copies", "peak of its gradient / logits", "1");
const BOTH: Metric = Metric::counted("both_copies", "peak of both / logits", "1");

levels! { Softcap "what is done with the logits first": Tanh "30 tanh(logits / 30), as in Gemma 2", Nothing as "none" "" }

cell! { Logits { vocabulary: Vocabulary, width: Width, tokens: Tokens, dtype: Dtype, softcap: Softcap, by: By } }

pub fn grid() -> Grid<Logits> {
    let gemma = |c: &Logits| c.vocabulary == Vocabulary(256_000) && c.softcap == Softcap::Tanh;
    Grid::new("a large vocabulary", in_python)
        .compare::<Softcap>()
        .quick_and_full(Logits::cross(256_000, 2304, 2048, Dtype::Bf16, Softcap::ALL, By::Pytorch))
        .smoke(Logits::cross(512, 32, 64, Dtype::Bf16, Softcap::ALL, By::Pytorch))
        .passes(CHECK | COUNT)
        .on(CUDA)
        .metrics(&[LOSS, GRADIENT, BOTH])
        .check(|_| equal(2e-2)) // logits so small that the cap leaves them as they are, but for rounding to bf16
        .claim(
            Claim::published(
                "cce-baseline",
                "Wijmans et al., arXiv 2411.09009, table 1: the baseline",
                "Gemma 2 (2B), 8192 tokens in bf16, whose logits take 4000 MB: 24000 MB for the loss, 16000 MB for its gradient, 28000 MB \
                 for both",
            )
            .on(CUDA)
            .rule(value(LOSS).of(gemma).reproduces(24000.0 / 4000.0))
            .rule(value(GRADIENT).of(gemma).reproduces(16000.0 / 4000.0))
            .rule(value(BOTH).of(gemma).reproduces(28000.0 / 4000.0))
            .setup(
                "The same vocabulary and width; 2048 tokens, so that it fits 24 GiB, and therefore in copies of the logits: each tensor of \
                 the loss is as large as they are, or twice as large in fp32.",
            ),
        )
        .no_plots()
}
