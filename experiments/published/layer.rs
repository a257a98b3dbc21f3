//! What does a transformer layer save for the backward pass?

use super::*;
use models::{self, Settings};

const FORMULA: Metric = Metric::counted("formula", "the formula", "B");
/// Width of one head in the published GPTs.
const HEAD: i64 = 64;

number! { Sequence "tokens of a sample" }
levels! {
    Attention "how attention is computed":
    Explicit "product, softmax, dropout, product" => "explicit attention",
    Fused "libtorch's fused kernel" => "fused attention",
}

cell! { Layer { model: ModelName, batch: Batch, sequence: Sequence, attention: Attention } }

pub fn grid() -> Grid<Layer> {
    Grid::new("a layer", step)
        .compare::<Attention>()
        .quick_and_full(Layer::cross("gpt2-medium", 4, [128, 512, 1024], Attention::ALL))
        .smoke(Layer::cross("gpt-2x64", 2, 32, Attention::ALL))
        .passes(CHECK | COUNT)
        .on(DEVICES)
        .metrics(&[ACTIVATIONS, FORMULA])
        .check(|_| equal(1e-2)) // the same layers in fp16, without dropout
        .published(
            Published::new(
                "activation-bytes",
                "Korthikanti et al., arXiv 2205.05198",
                "a transformer layer saves s·b·h·(34 + 5·a·s/h) bytes in fp16, with explicit attention and byte masks of dropout",
            )
            .on(DEVICES)
            .rule(agreement(ACTIVATIONS, FORMULA, 0.9..=1.1, 1.0).of(|c: &Layer| c.attention == Attention::Explicit))
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

/// The blocks of a transformer in fp16, forward and backward.
fn step(cell: Layer, bench: &Bench) -> Result<Step> {
    let attention = match cell.attention {
        Attention::Explicit => models::Attention::Explicit,
        Attention::Fused => models::Attention::Fused,
    };
    let settings = Settings { sequence: Some(cell.sequence.0), attention, dropout: Some(0.1), ..Settings::default() };
    let model = Model::with(cell.model.0, &settings, bench.device)?;
    // One after the other in a fixed order, which the store's own cast has not: the allocator's figures depend on it.
    for mut parameter in model.parameters() {
        let half = parameter.to_kind(Kind::Half);
        parameter.set_data(&half);
    }
    let batch = model.batch(cell.batch.0);
    // What the stem gives to the first block: `[b, s, h]`.
    let inputs = no_grad(|| model.stem.forward(&batch.inputs, false)).set_requires_grad(true);
    let [b, s, h] = inputs.size()[..] else { bail!("a block of this model does not take vectors of tokens") };
    let (tokens, heads) = ((s * b * h) as f64, (h / HEAD) as f64);
    let formula = model.blocks.len() as f64 * tokens * (34.0 + 5.0 * heads * s as f64 / h as f64);
    Ok(Step::new(move |probe| {
        let forward = |train| model.blocks.iter().fold(inputs.shallow_clone(), |x, block| block.forward(&x, train));
        model.store.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
        probe.at_rest();
        // The first block's input is not counted and the last block's output is: together each block's input is counted once.
        let outputs = probe.forward(|| Ok(forward(true)))?;
        probe.emit(FORMULA, formula);
        outputs.f_mean(None::<Kind>)?.f_backward()?;
        probe.compare(OUTPUT_ERROR, || Ok(vec![no_grad(|| forward(false))]))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    fn small(attention: Attention) -> Layer {
        Layer { model: ModelName("gpt-2x64"), batch: Batch(2), sequence: Sequence(32), attention }
    }

    #[test]
    fn the_check_sees_a_lost_layer() {
        let cell = small(Attention::Fused);
        check(&protocol(), cell).holds();
        broken(&protocol(), cell, |bench| step(with(cell, ModelName("gpt-1x64")), bench)).sees("output: expected equal");
    }

    #[test]
    fn the_formula_is_that_of_two_layers_with_one_head() {
        let formula = count(&protocol(), small(Attention::Explicit)).figure(FORMULA);
        assert_eq!(formula, 2.0 * f64::from(32 * 2 * 64) * (34.0 + 5.0 * 32.0 / 64.0));
    }
}
