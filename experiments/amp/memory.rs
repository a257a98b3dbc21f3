//! How much memory does it save, and of what?

use super::*;

const PARAMETERS: Metric = Metric::counted("parameters", "parameters", "B");
const STATE: Metric = Metric::counted("optimizer_state", "optimizer state", "B");
/// Copies of parameters in half precision, which autocast makes once in each forward pass. The backward pass needs most of them, so they are
/// among the saved activations.
const CASTS: Metric = Metric::counted("casts", "cast cache", "B");
/// What the peak has beyond parameters, optimizer state, data and saved activations.
const OTHERS: Metric = Metric::counted("others", "gradients and temporaries at the peak", "B");

levels! { Optimizer "optimizer, with PyTorch's defaults": Adamw "" }

cell! { Memory { model: ModelName, batch: Batch, optimizer: Optimizer, precision: Computed, by: By } }

pub fn grid() -> Grid<Memory> {
    use Computed::*;
    let (two, three) = (&[Fp32, AmpBf16], &[Fp32, AmpBf16, AmpFp16]);
    let half = |rule: Rule<Memory>| rule.of(|c| c.precision.is_half());
    let stays = |metric| half(ratio(metric)).confirm(within(1.0..=1.0)).refute(at_most(0.99));
    let of = |models: &[&'static str], batches: &[i64], precisions: &[Computed]| {
        let (models, batches): (Vec<_>, Vec<_>) =
            (models.iter().map(|m| ModelName(m)).collect(), batches.iter().map(|b| Batch(*b)).collect());
        Memory::cross(models, batches, Optimizer::Adamw, precisions, By::Pytorch)
    };
    Grid::new("memory", in_python)
        .compare::<Computed>()
        .quick(of(&["mlp-8x256"], &[64, 1024], two))
        .quick(of(&["gpt-4x128"], &[2, 32], two))
        .full(of(&["mlp-8x1024"], &[1024, 16384], three))
        .full(of(&["gpt2"], &[1, 4, 16], three))
        .full(of(&["bert-large", "vit-l16"], &[8], three))
        .full(of(&["resnet50"], &[32, 128], three))
        .smoke(of(&["mlp-2x32"], &[64], two).passes(CHECK | COUNT))
        .passes(CHECK | COUNT)
        .on(EVERYWHERE)
        .metrics(&[PEAK, PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, CASTS, OTHERS])
        .check(|_| rounded())
        .claim(
            Claim::new("amp-forward-half", "4", "half precision halves the memory of the forward pass")
                .on(CUDA)
                .rule(half(ratio(ACTIVATIONS)).confirm(within(0.45..=0.60)).refute(at_least(0.60))),
        )
        .claim(
            Claim::new("amp-memory-half", "3", "mixed precision saves nearly half of the memory")
                .on(CUDA)
                .rule(half(ratio(PEAK)).holds(at_most(0.60))),
        )
        .claim(
            Claim::new("amp-weights-fp32", "4", "weights and gradients stay in fp32")
                .rule(stays(PARAMETERS))
                .rule(stays(GRADIENTS)),
        )
        .plot(bars(ACTIVATIONS).caption("What the forward pass keeps, against fp32"))
}

python_test! {
    /// The cells' own check, then with half of the batch; and what can be worked out by hand: each parameter is cast once.
    the_check_sees_half_a_batch_and_bytes_are_what_can_be_worked_out_by_hand: "amp", r#"
of = "model=mlp-2x32 batch=64 optimizer=adamw by=pytorch precision="
print(check(amp.Memory, of + "amp-bf16", of + "fp32", 5e-2), check(amp.Memory, of.replace("64", "32") + "amp-bf16", of + "fp32", 5e-2))
found, parameters = memory(amp.Memory, of + "amp-bf16"), 2 * (32 * 32 + 32) + 32 * 10 + 10
print(*(found[metric] == bytes * parameters for metric, bytes in [("parameters", 4), ("gradients", 4), ("casts", 2), ("optimizer_state", 8 + 24 / parameters)]))
"#, "ok invalid\nTrue True True True\n"
}
