//! What is claimed of values, bytes and times.

use super::bytes::*;
use super::*;

/// Compute-bound: kernels run most of the time.
const COMPUTE_BOUND: [&str; 6] = ["mlp-4x1024", "gpt-3x256", "resnet-2x32-gn", "mlp-8x4096", "gpt-12x768", "resnet-8x64-gn"];

/// The parts of a step that ours has.
fn has_loss(c: &Side) -> bool {
    c.by == By::Vramlab && c.technique != Technique::OptimizerStep
}

fn has_gradient(c: &Side) -> bool {
    has_loss(c) && c.technique != Technique::NoGrad
}

fn has_update(c: &Side) -> bool {
    c.by == By::Vramlab && c.technique != Technique::NoGrad
}

pub fn all(grid: Grid<Side>) -> Grid<Side> {
    let same_value = |metric: Metric, of: fn(&Side) -> bool| value(metric).of(of).holds(at_most(1e-6));
    let same_bytes = |metric: Metric, of: fn(&Side) -> bool| {
        ratio(metric).of(move |c: &Side| c.by == By::Vramlab && of(c)).holds(within(1.0..=1.0))
    };
    let time = |of: fn(&Side) -> bool, most: f64| ratio(TIME).of(move |c: &Side| c.by == By::Vramlab && of(c)).holds(at_most(most));
    let claim = |id: &'static str, text: &'static str| Claim::new(id, "", text).on(&[Platform::Cpu, Platform::Gpu]);
    grid.metrics(&[LOSS_ERROR, GRADIENT_ERROR, PARAMETER_ERROR, PEAK, LIVE_FORWARD, LIVE_BACKWARD, LIVE_STEP])
        .metrics(&[MATCHED_PEAK, MATCHED_FORWARD, MATCHED_BACKWARD, MATCHED_STEP])
        .metrics(&[COUNTERS, DENOMINATOR, NUMBER])
        .claim(
            claim("agree-values", "losses, gradients and updates are PyTorch's")
                .rule(same_value(LOSS_ERROR, has_loss))
                .rule(same_value(GRADIENT_ERROR, has_gradient))
                .rule(same_value(PARAMETER_ERROR, has_update)),
        )
        .claim(
            claim(
                "agree-bytes",
                "a step takes as many bytes as PyTorch's, to the byte, but for differences stated beforehand with their formulas",
            )
            .rule(same_bytes(MATCHED_PEAK, |_| true))
            .rule(same_bytes(MATCHED_FORWARD, has_loss))
            .rule(same_bytes(MATCHED_BACKWARD, has_gradient))
            .rule(same_bytes(MATCHED_STEP, has_update))
            .changed(
                "20 November 2026: differences were stated when comparing had shown them, each after it had been followed to its cause. \
                 Without them all bytes must be equal.",
            )
            .before(same_bytes(PEAK, |_| true))
            .before(same_bytes(LIVE_FORWARD, has_loss))
            .before(same_bytes(LIVE_BACKWARD, has_gradient))
            .before(same_bytes(LIVE_STEP, has_update)),
        )
        .claim(
            claim("as-fast-compute", "where a step is compute-bound, it takes as long as PyTorch's (1.03x at most)")
                .rule(time(|c| COMPUTE_BOUND.contains(&c.model.0), 1.03))
                .changed(
                    "20 November 2026: both sides keep what malloc frees. One model had been slower here, which came to page faults: glibc \
                     gave the end of the heap back in every step, more often in ours.",
                ),
        )
        .claim(
            claim("as-fast-launch", "where a step is overhead-bound, it takes three quarters of PyTorch's time at most")
                .rule(time(|c| c.model == ModelName("mlp-8x64") && c.optimizer == Optimizer::Adamw, 0.75))
                .changed("26 November 2026: AdamW steps in a loop on both sides; its fused kernel had run on both."),
        )
        .claim(
            claim("as-fast-optimizer", "an optimizer's step takes as long as PyTorch's (1.03x at most)")
                .rule(time(|c| c.technique == Technique::OptimizerStep, 1.03))
                .changed("26 November 2026: AdamW steps in a loop on both sides; its fused kernel had run on both."),
        )
}
