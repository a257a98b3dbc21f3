//! What do the logits of a large vocabulary take?

use super::*;

// Peaks above what lived before, over the bytes of one copy of the logits in bf16.
const LOSS: Metric = Metric::counted("loss_copies", "peak of the loss / logits", "1");
const GRADIENT: Metric = Metric::counted("gradient_copies", "peak of its gradient / logits", "1");
const BOTH: Metric = Metric::counted("both_copies", "peak of both / logits", "1");

levels! { Softcap "what is done with the logits first": Tanh "30 tanh(logits / 30), as in Gemma 2", Nothing as "none" "" }

cell! { Logits { vocabulary: Vocabulary, width: Width, tokens: Tokens, softcap: Softcap } }

pub fn grid() -> Grid<Logits> {
    let gemma = |c: &Logits| c.vocabulary == Vocabulary(256_000) && c.softcap == Softcap::Tanh;
    Grid::new("a large vocabulary", step)
        .compare::<Softcap>()
        .quick_and_full(Logits::cross(256_000, 2304, 2048, Softcap::ALL))
        .smoke(Logits::cross(512, 32, 64, Softcap::ALL))
        .passes(CHECK | COUNT)
        .on(DEVICES)
        .metrics(&[LOSS, GRADIENT, BOTH])
        .check(|_| equal(2e-2)) // logits so small that the cap leaves them as they are, but for rounding to bf16
        .published(
            Published::new(
                "cce-baseline",
                "Wijmans et al., arXiv 2411.09009, table 1: the baseline",
                "Gemma 2 (2B), 8192 tokens in bf16, whose logits take 4000 MB: 24000 MB for the loss, 16000 MB for its gradient, 28000 MB \
                 for both",
            )
            .on(DEVICES)
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

fn step(cell: Logits, bench: &Bench) -> Result<Step> {
    let small = |rows: i64| {
        let values = Tensor::randn([rows, cell.width.0], (Kind::BFloat16, bench.device)) * 0.05;
        values.set_requires_grad(true)
    };
    let (tokens, classes) = (small(cell.tokens.0), small(cell.vocabulary.0));
    let targets = Tensor::randint(cell.vocabulary.0, [cell.tokens.0], (Kind::Int64, bench.device));
    let copy = (2 * cell.tokens.0 * cell.vocabulary.0) as f64;
    Ok(Step::new(move |probe| {
        let peak = |probe: &Probe| probe.memory().map_or(0, |memory| memory.requested_peak);
        let rest = probe.at_rest();
        let loss = probe.forward(|| {
            let mut logits = tokens.f_matmul(&classes.tr())?;
            match cell.softcap {
                Softcap::Nothing => {}
                Softcap::Tanh => logits = (&logits / 30.0).tanh() * 30.0,
            }
            let loss = logits.to_kind(Kind::Float).f_cross_entropy_loss(&targets, None::<Tensor>, Reduction::Mean, -100, 0.0)?;
            Ok(loss)
        })?;
        let (of_loss, kept) = (peak(probe), probe.live());
        probe.reset_peaks();
        let gradients = Tensor::f_run_backward(&[&loss], &[&tokens, &classes], false, false)?;
        let of_gradient = peak(probe);
        probe.emit(LOSS, (of_loss - rest) as f64 / copy);
        probe.emit(GRADIENT, (of_gradient - kept) as f64 / copy);
        probe.emit(BOTH, (of_loss.max(of_gradient) - rest) as f64 / copy);
        probe.compare(GRADIENT_ERROR, || Ok(gradients))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    fn small(softcap: Softcap) -> Logits {
        Logits { vocabulary: Vocabulary(4096), width: Width(16), tokens: Tokens(64), softcap }
    }

    #[test]
    fn the_check_sees_a_class_that_is_left_out_and_another_loss() {
        let cell = small(Softcap::Nothing);
        check(&protocol(), cell).holds();
        broken(&protocol(), cell, |bench| step(with(cell, Vocabulary(4095)), bench)).sees("has shape [4095, 16] here");
        let summed = |bench: &Bench| Ok(step(cell, bench)?.altered(|gradient| gradient * 64.0));
        broken(&protocol(), cell, summed).sees("gradient: expected equal");
    }

    /// Of the loss: tanh's result, the capped logits, and in fp32 their copy and its logarithmic softmax. When the loss is there, the first
    /// and the last are left, and the gradient adds two in fp32.
    #[test]
    fn copies_are_those_that_autograd_keeps() {
        let found = count(&protocol(), small(Softcap::Tanh));
        for (metric, copies) in [(LOSS, 6.0), (GRADIENT, 4.0), (BOTH, 7.0)] {
            let ratio = found.figure(metric) / copies;
            assert!((1.0..1.01).contains(&ratio), "{}: {}", metric.name, found.figure(metric));
        }
    }
}
