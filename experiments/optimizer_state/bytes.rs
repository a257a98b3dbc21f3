//! What does it keep, what does its step need, how long does that take, and how near is that to what the memory allows?

use super::*;

number! { Parameters "numbers to train" }
number! { Tensors "tensors of equal size that hold them" }

cell! { Bytes { model: ModelName, optimizer: Method, implementation: How, by: By } }
cell! { Time { parameters: Parameters, tensors: Tensors, optimizer: Method, implementation: How, by: By } }

const METRICS: &[Metric] = &[STATE, STATE_RATIO, STEP_PEAK, TEMPORARY_RATIO, CLAIMED, TRAFFIC];

pub fn grid() -> Grid<Bytes> {
    use {How::*, Method::*};
    const LARGE: [&str; 3] = ["resnet50", "gpt2", "vit-l16"];
    let vit = |c: &Bytes| c.model == ModelName("vit-l16") && c.optimizer == Adam;
    let adam = |how: How| move |c: &Bytes| matches!(c.optimizer, Adam | Adamw) && c.implementation == how;
    Grid::new("bytes", in_python)
        .compare::<How>()
        .quick(Bytes::cross("gpt-4x256", [Sgd, Momentum, Adam, Adamw], [Loop, Foreach, Fused], By::Pytorch))
        .quick(Bytes::cross("gpt-4x256", Rmsprop, [Loop, Foreach], By::Pytorch))
        .full(Bytes::cross(LARGE, [Sgd, Momentum, Adam, Adamw], [Loop, Foreach, Fused], By::Pytorch))
        .full(Bytes::cross(LARGE, Rmsprop, [Loop, Foreach], By::Pytorch))
        .smoke(Bytes::cross("mlp-2x32", Adam, [Loop, Foreach, Fused], By::Pytorch))
        .passes(CHECK | COUNT)
        .on(EVERYWHERE)
        .metrics(METRICS)
        .check(|c| relation(c.implementation))
        .claim(
            Claim::new("step-optimizer", "4", "an optimizer's state: Adam keeps twice the model, RMSProp once")
                .rule(agreement(STATE, CLAIMED, 0.95..=1.05, 1.0).at([Adam, Rmsprop])),
        )
        .claim(
            Claim::ours(
                "step-temporaries",
                "Adam's step needs temporaries as large as the model with foreach, PyTorch's default on a GPU, and next to none when fused",
            )
            .rule(value(TEMPORARY_RATIO).of(adam(Foreach)).confirm(at_least(0.90)).refute(at_most(0.50)))
            .rule(value(TEMPORARY_RATIO).of(adam(Fused)).confirm(at_most(0.05)).refute(at_least(0.50)))
            .changed("22 November 2026: made a claim when the figures had been seen; it was a picture before."),
        )
        .claim(
            Claim::published(
                "vit-l16-temporaries",
                "PyTorch tutorial, optimizer step fused into the backward pass",
                "ViT-L/16 with Adam: parameters 1.2 GB, state 2.4 GB, and in the step 1.2 GB of temporaries, for foreach only",
            )
            .on(CUDA)
            .rule(value(STATE).of(vit).reproduces(2.4e9))
            .rule(value(STEP_PEAK).of(move |c: &Bytes| vit(c) && c.implementation == Foreach).reproduces(1.2e9))
            // Next to nothing: a tenth of what foreach needs.
            .rule(value(STEP_PEAK).of(move |c: &Bytes| vit(c) && c.implementation != Foreach).holds(at_most(0.12e9)))
            .setup("The same model in fp32; here only the optimizer's step runs, with gradients in place."),
        )
        .no_plots()
}

pub fn time() -> Grid<Time> {
    use Method::*;
    let of = |parameters: i64, tensors: &[i64], optimizer, implementations| {
        Time::cross(parameters, tensors.iter().copied().map(Tensors).collect::<Vec<_>>(), optimizer, implementations, By::Pytorch)
    };
    Grid::new("time", in_python)
        .compare::<How>()
        .quick(of(4 << 20, &[8, 1024], Adamw, How::ALL))
        .full(Time::cross([1 << 20, 256 << 20], [8, 4096], Adamw, How::ALL, By::Pytorch))
        .full(Time::cross(256 << 20, 256, [Sgd, Momentum], How::ALL, By::Pytorch))
        .smoke(of(64 << 10, &[16], Adamw, &[How::Loop, How::Copy]))
        .on(EVERYWHERE)
        .metrics(METRICS)
        .check(|c| relation(c.implementation))
        .no_plots()
}

python_test! {
    /// The cells' own checks; then Adam, which forgets AdamW's weight decay, in its place, and a copy that updates. State is as many numbers for
    /// each parameter as the algorithm says, and a counter of 4 bytes for some of the tensors.
    the_checks_see_another_algorithm_and_state_is_what_the_algorithm_says: "optimizer_state", r#"
def of(method, how, model="model=mlp-2x32"):
    return f"{model} optimizer={method} implementation={how} by=pytorch"

def checks(*cells):
    print(*(check(optimizer_state.prepare, of(*cell), of(cell[0], "loop"), 2e-5) for cell in cells))

checks(("sgd", "fused"), ("momentum", "foreach"), ("rmsprop", "foreach"), ("adam", "fused"), ("adamw", "fused"))
copies = [of("adamw", how, "parameters=65536 tensors=16") for how in ("copy", "fused", "loop")]
print(*(check(optimizer_state.prepare, cell, copies[2], Missing={"at_least": 0.999}) for cell in copies[:2]))
for method, numbers in [("sgd", 0), ("momentum", 1), ("rmsprop", 1), ("adam", 2)]:
    ratio = memory(optimizer_state.prepare, of(method, "foreach"))["state_ratio"]
    assert numbers <= ratio < numbers + 0.01, (method, ratio)
adamw = optimizer_state.METHODS["adamw"]
optimizer_state.METHODS["adamw"] = lambda own, **how: adamw(own, **how) if how == {"foreach": False} else torch.optim.Adam(own, 1e-3, **how)
checks(("adamw", "fused"))
"#, "ok ok ok ok ok\nok invalid\ninvalid\n"
}
