//! When do the buckets appear, and how large are they?

use super::*;

/// What a training run holds beyond the same run without DDP, over the bytes of its gradients.
const EXTRA: Metric = Metric::counted("extra", "extra memory, relative to the gradients", "1").ratio();
/// Bytes that live at the cell's moment.
const LIVE: Metric = Metric::counted("live", "live memory", "B");

levels! {
    Moment "when bytes are counted":
    Load "the model is there and DDP is built",
    FirstForward as "1-forward" "after the first forward pass",
    FirstBackward as "1-backward" "after the first backward pass",
    Rebuilt as "2-rebuilt" "gradients are dropped and buckets built anew, as the second forward pass begins",
    ThirdForward as "3-forward" "after the third forward pass",
    ThirdBackward as "3-backward" "after the third backward pass",
}

cell! { Moments { model: ModelName, batch: Batch, cap: Cap, moment: Moment, ddp: Way, by: By } }

pub fn grid() -> Grid<Moments> {
    use Moment::*;
    let by_default = |moment: Moment| move |c: &Moments| c.moment == moment && c.ddp == Way::Copies;
    let with_ddp = |moment: Moment| move |c: &Moments| c.moment == moment && matches!(c.ddp, Way::Copies | Way::Views);
    Grid::new("when the buckets appear", in_python)
        .compare::<Way>()
        .quick(Moments::cross("gpt-4x128", 4, 25, Moment::ALL, Way::ALL, By::Pytorch))
        .quick(Moments::cross("resnet-2x64-gn", 4, 25, [Load, ThirdBackward], Way::ALL, By::Pytorch))
        .quick(Moments::cross("mlp-16x512", 4, [1, 100], ThirdBackward, Way::ALL, By::Pytorch))
        .full(Moments::cross("gpt2", 4, 25, Moment::ALL, Way::ALL, By::Pytorch))
        .full(Moments::cross(["resnet50", "mlp-8x4096"], 32, 25, [Load, ThirdBackward], Way::ALL, By::Pytorch))
        .full(Moments::cross("mlp-8x4096", 32, [1, 100], ThirdBackward, Way::ALL, By::Pytorch))
        .smoke(Moments::cross("mlp-4x64", 8, 25, ThirdBackward, Way::ALL, By::Pytorch))
        .passes(COUNT)
        .on(EVERYWHERE)
        .metrics(&[EXTRA, LIVE])
        .claim(
            Claim::new("ddp-buckets", "4", "DDP takes a second model's size, at model load, for gradient buckets")
                .on(BY_PYTHON)
                // When: already at load, before there is any gradient. And for good: still there when the gradients are.
                .rule(one_copy(value(EXTRA).of(by_default(Load))))
                .rule(one_copy(value(EXTRA).of(by_default(ThirdBackward))))
                .changed("29 November 2026: PyTorch's default, copies, alone; gradient_as_bucket_view=True had been judged with it.")
                .before(one_copy(value(EXTRA).of(with_ddp(Load))))
                .before(one_copy(value(EXTRA).of(with_ddp(ThirdBackward)))),
        )
        .plot(
            bars(LIVE)
                .named("moments")
                .caption(
                    "Live memory against training without DDP: after loading, after the first forward and backward pass, when DDP has \
                     built its buckets anew in step 2, and after the passes of step 3",
                )
                .of(|c: &Moments| matches!(c.model.0, "gpt-4x128" | "gpt2") && c.cap == Cap(25))
                .by::<Moment>(),
        )
}
