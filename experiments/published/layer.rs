//! What does a transformer layer save for the backward pass?

use super::*;

const FORMULA: Metric = Metric::counted("formula", "the formula", "B");

number! { Sequence "tokens of a sample" }
levels! {
    Attention "how attention is computed":
    Explicit "product, softmax, dropout, product" => "explicit attention",
    Fused "PyTorch's fused kernel" => "fused attention",
}

cell! { Layer { model: ModelName, batch: Batch, sequence: Sequence, attention: Attention, by: By } }

pub fn grid() -> Grid<Layer> {
    Grid::new("a layer", in_python)
        .compare::<Attention>()
        .quick_and_full(Layer::cross("gpt2-medium", 4, [128, 512, 1024], Attention::ALL, By::Pytorch))
        .smoke(Layer::cross("small-gpt", 2, 32, Attention::ALL, By::Pytorch))
        .passes(CHECK | COUNT)
        .on(CUDA)
        .metrics(&[ACTIVATIONS, FORMULA])
        .check(|_| equal(1e-2)) // the same layers in fp16, without dropout
        .claim(
            Claim::published(
                "activation-bytes",
                "Korthikanti et al., arXiv 2205.05198",
                "a transformer layer saves s·b·h·(34 + 5·a·s/h) bytes in fp16, with explicit attention and byte masks of dropout",
            )
            .on(CUDA)
            .rule(agreement(ACTIVATIONS, FORMULA, 0.9..=1.1, 1.0).at(Attention::Explicit))
            .setup(
                "Counted over the 24 layers of GPT-2 medium (h = 1024, a = 16, b = 4) at three lengths s. The formula leaves the norms' \
                 means and deviations out.",
            ),
        )
        .plot(
            lines(ACTIVATIONS)
                .named("layer")
                .caption("What 24 transformer layers save for the backward pass in fp16, by how attention is computed")
                .of(|c: &Layer| c.model == ModelName("gpt2-medium"))
                .over::<Sequence>()
                .by::<Attention>(),
        )
}
