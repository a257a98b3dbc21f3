//! What do a head and its loss need, by vocabulary and number of tokens?

use super::*;

/// Bytes of the head's step over the number of logits: its gradients are among them.
const PER_LOGIT: Metric = Metric::counted("per_logit", "bytes of the step for each logit", "B");

number! { Width "features of a token" }
number! { Vocabulary "words of the vocabulary" }

cell! { Head { width: Width, vocabulary: Vocabulary, tokens: Tokens, dtype: Dtype, how: How } }

pub fn grid() -> Grid<Head> {
    use Dtype::{Bf16, Fp32};
    use How::{Chunked, Fused, Plain};
    let exact = [Plain, Chunked, Fused];
    let saves = |how| ratio(STEP_PEAK).of(move |c: &Head| c.how == how).confirm(at_most(0.50)).refute(at_least(0.90));
    // A CPU's bf16 products are emulated on many machines.
    let price = |how, limit| ratio(TIME).of(move |c: &Head| c.how == how && c.dtype == Fp32).holds(at_most(limit)).informational();
    let published = |how| value(STEP_PEAK).of(move |c: &Head| c.vocabulary == Vocabulary(256_000) && c.how == how);
    Grid::new("head and loss", step)
        .compare::<How>()
        // As many words for each feature as a Llama of 1B has.
        .quick(Head::cross(64, 4096, 512, Bf16, How::ALL).passes(CHECK | COUNT))
        .quick(Head::cross(64, 4096, 512, Fp32, exact))
        // GPT-2, as it is and padded to a multiple of 64; a Llama 3 of 1B; Gemma 2 of 2B; a Llama 2's vocabulary.
        .full(Head::cross(768, [50_257, 50_304], [1024, 8192], Bf16, How::ALL))
        .full(Head::cross(2048, 128_256, [1024, 2048, 4096, 8192], Bf16, How::ALL))
        .full(Head::cross(2304, 256_000, 8192, Bf16, How::ALL))
        .full(Head::cross(2048, 32_000, 8192, Bf16, How::ALL))
        .smoke(Head::cross(16, 1000, 600, Fp32, exact))
        .metrics(&[PER_LOGIT])
        // The same sums in another order; bf16 keeps eight bits of each gradient, and adds up the chunks' in it.
        .check(|c| equal(if c.dtype == Fp32 { 1e-5 } else { 2e-2 }))
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::new("loss-fused", "this lab", "a fused head and loss take the logits out of memory")
                .rule(saves(Fused))
                .rule(price(Fused, 1.5))
                .changed(LEAST_WAS_SET),
        )
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::new("loss-chunked", "this lab", "a loss in chunks over tokens needs half of a plain one's memory")
                .rule(saves(Chunked))
                .rule(price(Chunked, 1.25)),
        )
        .published(
            Published::new(
                "cut-your-losses",
                "Wijmans et al., arXiv 2411.09009, table 1",
                "Gemma 2 (2B), 8,192 tokens, loss and gradient on an A100 with 80 GB: plain 28,000 MB, their kernel 1,164 MB",
            )
            .on(&[Platform::Gpu, Platform::Dry])
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

/// A head without bias: logits `[tokens, vocabulary]` of `[1, tokens, width]`.
#[derive(Debug)]
struct OutputHead(Tensor);

impl Block for OutputHead {
    fn forward(&self, x: &Tensor, _train: bool) -> Tensor {
        x.squeeze_dim(0).linear(&self.0, None::<&Tensor>)
    }

    fn share(&self) -> Box<dyn Block> {
        Box::new(OutputHead(self.0.shallow_clone()))
    }
}

fn step(cell: Head, bench: &Bench) -> Result<Step> {
    with_loss(cell, bench, move |head, hidden, targets, chunk| loss(cell.how, head, hidden, targets, chunk))
}

fn with_loss(
    cell: Head,
    bench: &Bench,
    loss: impl Fn(&dyn Block, &Tensor, &Tensor, i64) -> Result<Tensor> + 'static,
) -> Result<Step> {
    let Head { width: Width(width), vocabulary: Vocabulary(vocabulary), tokens: Tokens(tokens), how, .. } = cell;
    let kind = match cell.dtype {
        Dtype::Fp32 => Kind::Float,
        Dtype::Bf16 => Kind::BFloat16,
        Dtype::Fp16 => Kind::Half,
    };
    let options = (Kind::Float, bench.device);
    let weights = Tensor::empty([vocabulary, width], options).normal_(0.0, 0.02).to_kind(kind);
    let hidden = bench.randn(&[1, tokens, width]).to_kind(kind);
    let targets = Tensor::randint(vocabulary, [tokens], (Kind::Int64, bench.device));
    let chunk = how.chunk(tokens, width, vocabulary);
    let flops = if kind == Kind::Float { 6.0 * (tokens * width * vocabulary) as f64 } else { 0.0 };
    let step = Step::new(move |probe| {
        // Leaves of this step: their gradients go with them.
        let [hidden, weights] = [&hidden, &weights].map(|t| t.detach().set_requires_grad(true));
        let rest = probe.at_rest();
        let loss = probe.forward(|| loss(&OutputHead(weights.shallow_clone()), &hidden, &targets, chunk))?;
        loss.f_backward()?;
        if let Some(memory) = probe.memory() {
            probe.emit(PER_LOGIT, (memory.requested_peak - rest) as f64 / (tokens * vocabulary) as f64);
        }
        probe.compare(GRADIENT_ERROR, || Ok(vec![hidden.grad(), weights.grad()]))?;
        probe.compare(LOSS_ERROR, || Ok(vec![loss]))
    });
    Ok(step.least_flops(flops))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    const SMALL: Head =
        Head { width: Width(16), vocabulary: Vocabulary(1000), tokens: Tokens(601), dtype: Dtype::Fp32, how: How::Fused };

    #[test]
    fn every_loss_is_the_plain_one_and_the_check_sees_a_mean_of_means() {
        // 601 tokens are no multiple of a chunk's: the last is shorter.
        for cell in Head::cross(16, 1000, 601, [Dtype::Fp32, Dtype::Bf16], How::ALL) {
            check(&protocol(), cell).holds();
        }
        // Tokens of a shorter chunk then weigh more.
        let means = |bench: &Bench| {
            with_loss(with(SMALL, How::Chunked), bench, |head, hidden, targets, chunk| {
                let parts = hidden.split(chunk, 1).into_iter().zip(targets.split(chunk, 0));
                let means: Result<Vec<Tensor>> = parts.map(|(x, y)| loss(How::Plain, head, &x, &y, chunk)).collect();
                Ok(Tensor::stack(&means?, 0).mean(Kind::Float))
            })
        };
        broken(&protocol(), with(SMALL, How::Chunked), means).sees("gradient: expected equal");
    }

    #[test]
    fn only_a_fused_head_keeps_no_logits() {
        let logits = 4.0 * 601.0 * 1000.0;
        let [plain, chunked, fused] =
            [How::Plain, How::Chunked, How::Fused].map(|how| count(&protocol(), with(SMALL, how)).figure(ACTIVATIONS));
        // A plain loss keeps log-softmax's output, a chunked one the logits themselves.
        assert!((logits..1.01 * logits).contains(&plain), "{plain}");
        assert!((logits..1.01 * logits).contains(&chunked), "{chunked}");
        assert!(fused < 0.01 * logits, "{fused}");
    }
}
