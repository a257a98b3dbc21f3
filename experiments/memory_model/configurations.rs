//! How far off is the formula?

use super::*;

const FORMULA: Metric = Metric::counted("formula", "peak by the formula", "B");
/// Errors are relative to the measured peak: with their sign, negative where too little is predicted, and without.
const FORMULA_SIGNED: Metric = Metric::counted("formula_signed", "signed error of the formula", "1").share();
const FORMULA_ERROR: Metric = Metric::counted("formula_error", "error of the formula", "1").share().signed_by(FORMULA_SIGNED);
/// What of the peak the formula leaves out; gradients stand beside it, which it has no term for.
const MISSING: Metric = Metric::counted("missing", "left out by the formula", "B");
const FORMULA_WRONG: Metric = Metric::counted("formula_wrong", "sizes judged wrongly by the formula", "1");

levels! { Checkpoint "what is recomputed": Nothing as "none" "", Sqrt "segments of sqrt(blocks) blocks" }
number! { Accumulate "micro-batches of a step" }

cell! {
    Training {
        model: ModelName, batch: Batch, optimizer: Optimizer, precision: Precision, accumulate: Accumulate, checkpoint: Checkpoint, by: By
    }
}

pub fn grid() -> Grid<Training> {
    use Optimizer::{Adam, Adamw, Sgd};
    use Precision::{AmpBf16, Fp32};
    let large = |batch: i64| {
        let models = ["resnet50", "gpt2", "bert-base", "vit-l16"];
        Training::cross(models, batch, [Sgd, Adamw], [Fp32, AmpBf16], [1, 4], Checkpoint::ALL, By::Pytorch)
    };
    Grid::new("configurations", in_python)
        .compare::<Checkpoint>()
        .quick(Training::cross(["mlp-8x128", "mlp-4x512"], [16, 64], [Sgd, Adam], Fp32, [1, 4], Checkpoint::ALL, By::Pytorch))
        .quick(Training::cross(["gpt-4x128", "resnet-4x16-gn"], 16, [Sgd, Adam], Fp32, [1, 4], Checkpoint::ALL, By::Pytorch))
        .full(large(8))
        // One size of batch is enough to say it of the simulated GPU.
        .full(large(32).on(&[Platform::Cpu, Platform::Gpu]))
        .smoke(Training::cross("mlp-2x32", 16, Adam, Fp32, 1, Checkpoint::ALL, By::Pytorch))
        .passes(CHECK | COUNT)
        .on(EVERYWHERE)
        .metrics(&[PEAK, FORMULA, MISSING, GRADIENTS, FORMULA_SIGNED, FORMULA_WRONG])
        // The same kernels on the same numbers; on a GPU sums come in an order that changes.
        .check(|_| equal(1e-5))
        .claim(Claim::new("formula", "3", "M = P·D_param + B·A·D_act + O·D_opt predicts memory before the run").rule(agreement(
            FORMULA,
            PEAK,
            0.9..=1.1,
            0.9,
        )))
        .plot(of_each(bars(FORMULA_ERROR).named("formula").caption("The formula's error, relative to the measured peak")))
}

fn of_each(plot: Plot<Training>) -> Plot<Training> {
    plot.by::<ModelName>().by::<Batch>().by::<Optimizer>().by::<Accumulate>()
}

python_test! {
    /// The cells' own check, and with another batch. The formula counts parameters, state and activations. A prediction is wrong for the cards
    /// between it and the need: of half of the need those of 1/2, and of 2^(-3/4), 2^(-1/2) and 2^(-1/4) of it.
    the_check_sees_other_samples_and_the_formula_is_the_guides: "memory_model", r#"
of = "model=mlp-4x32 optimizer=adam precision=fp32 accumulate=4 by=pytorch batch={} checkpoint={}"
print(*(check(memory_model.prepare, of.format(batch, "sqrt"), of.format(16, "none"), 1e-5) for batch in (16, 12)))
print(memory_model.formula(1000, "sgd", 500), memory_model.formula(1000, "adam", 500))
print(*(17 * memory_model.wrong_calls(predicted, 100) for predicted in (100, 50, 200)))
"#, "ok invalid\n4500 12500\n0.0 4.0 4.0\n"
}
