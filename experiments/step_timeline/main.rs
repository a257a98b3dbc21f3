//! What lives in memory as a training step goes on: after load, forward, backward and step, and in the next iteration.
//!
//! Guide 4 describes it in five statements: the model; then model + activations; then model + gradients, twice the model; then also the
//! optimizer's moments; and from the second iteration on a peak of everything together. Each allocation is followed here by what it turns
//! out to be for, so each statement is put against the bytes it names. The batch itself, which the guide does not count, is left out
//! of every ratio and stands beside them. What the step leaves behind is judged by `optimizer_state`. PyTorch in Python runs every cell
//! (`experiments/step_timeline/step.py`).

use harness::lab::*;

const NEXT_PEAK: Metric = bytes("next_peak", "peak, later");
const LOADED: Metric = Metric::counted("loaded", "after load / model", "x");
const FORWARDED: Metric = Metric::counted("forwarded_saved", "after forward / (model + what autograd saves)", "x");
const BACKWARDED: Metric = Metric::counted("backwarded", "after backward / model", "x");
const PEAKED: Metric = Metric::counted("peaked", "later peak / sum of all four", "x");
/// In the order of the table.
const ALL: &[Metric] = &[
    bytes("model", "model"),
    bytes("data", "one batch"),
    ACTIVATIONS.labelled("activations"),
    GRADIENTS,
    bytes("optimizer_state", "optimizer state"),
    bytes("temporaries", "temporaries at the later peak"),
    bytes("after_load", "after load"),
    bytes("after_forward", "after forward"),
    bytes("after_backward", "after backward"),
    bytes("after_step", "after step"),
    bytes("first_peak", "peak, iteration 1"),
    NEXT_PEAK,
    LOADED,
    FORWARDED,
    BACKWARDED,
    PEAKED,
];
/// The curves of the picture, bottom to top: what stays lies below what comes and goes.
const LAYERS: [Metric; 6] = [
    curve("curve.parameters", "parameters"),
    curve("curve.optimizer_state", "optimizer state"),
    curve("curve.data", "data"),
    curve("curve.gradients", "gradients"),
    curve("curve.activations", "activations"),
    curve("curve.temporaries", "temporaries"),
];
/// Where a phase of the picture begins, by its position among the phases; one behind the last, where the step ends.
const BOUNDARY: Metric = Metric::counted("curve.phase", "phase", "1");

const fn bytes(name: &'static str, label: &'static str) -> Metric {
    Metric::counted(name, label, "B")
}

/// Threads that allocate at the same time do so in either order, which moves points of a curve and not its ends.
const fn curve(name: &'static str, label: &'static str) -> Metric {
    bytes(name, label).nondeterministic()
}

levels! { Optimizer "optimizer, with PyTorch's defaults": Sgd "", Momentum "SGD with momentum 0.9", Rmsprop "", Adam "", Adamw "" }
levels! {
    ZeroGrad "what happens to the last iteration's gradients":
    Dropped as "none" "dropped before the forward pass, PyTorch's default since 2.0",
    Zeroed as "zero" "kept, and filled with zeros: set_to_none=False",
}

cell! { Phases { model: ModelName, batch: Batch, optimizer: Optimizer, zero_grad: ZeroGrad, by: By } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("step_timeline", "Where memory goes in a training step")
        .question("What lives in memory after each phase of a training step, and what makes the peak?")
        .hypothesis(
            "After load, forward and the first backward pass lives what the guide says. The peak is the sum of everything only where \
             gradients are kept: a backward pass frees activations while it makes gradients, so where they were dropped both never live in \
             full at once.",
        )
        .grid(grid())
        .threat("Bytes are what tensors ask for. The allocator rounds them up and caches, and the CUDA context and libraries come on top.")
        .threat(
            "The loss is dropped when the backward pass is done. A Python loop that keeps `loss` and `output` until the next iteration \
             keeps their bytes, though not what the graph had saved.",
        )
        .threat("Products run before the recorded iterations, so what libraries allocate once, as cuBLAS's workspaces, is not in the figures.")
}

fn grid() -> Grid<Phases> {
    use Optimizer::*;
    let of = |model, batch: i64, optimizers: &[Optimizer]| Phases::cross(model, batch, optimizers, ZeroGrad::ALL, By::Pytorch);
    const OTHERS: &[Optimizer] = &[Sgd, Momentum, Rmsprop, Adam];
    let claim = |id, text, metric, low, high| Claim::new(id, "4", text).rule(value(metric).holds(within(low..=high)));
    Grid::new("by phase", in_python)
        .compare::<ZeroGrad>()
        .quick(of("mlp-8x128", 1024, &[Adamw]))
        .quick(of("mlp-8x128", 1024, OTHERS).passes(COUNT))
        .quick(of("resnet-4x16-bn", 8, &[Adamw]))
        .quick(of("resnet-4x16-bn", 8, OTHERS).passes(COUNT))
        .quick(of("gpt-4x128", 4, &[Adamw]))
        .quick(of("gpt-4x128", 4, OTHERS).passes(COUNT))
        .full(of("mlp-8x1024", 8192, Optimizer::ALL))
        .full(of("resnet50", 32, Optimizer::ALL))
        .full(of("gpt2", 4, Optimizer::ALL))
        .smoke(of("mlp-2x32", 64, &[Adamw]))
        .passes(CHECK | COUNT)
        .on(EVERYWHERE)
        .metrics(ALL)
        // The same kernels on the same numbers: what becomes of old gradients changes no result.
        .check(|_| equal(1e-6))
        .claim(claim("step-load", "after load there is the model", LOADED, 0.99, 1.01))
        .claim(claim("step-forward", "after forward there are the model and the activations", FORWARDED, 0.95, 1.05))
        .claim(claim("step-backward", "after backward there are the model and the gradients, twice the model", BACKWARDED, 1.95, 2.05))
        .claim(claim(
            "step-peak",
            "from the second iteration on, the peak is model + activations + gradients + moments",
            PEAKED,
            0.95,
            1.05,
        ))
        .plot(
            area(NEXT_PEAK, &LAYERS, BOUNDARY, &["forward", "backward", "step"])
                .named("phases")
                .on_front()
                .caption(
                    "Live bytes through the second iteration with AdamW, by what they are for; gradients dropped (none) or filled with \
                     zeros (zero)",
                )
                .of(|c: &Phases| c.optimizer == Adamw)
                .by::<ModelName>()
                .by::<ZeroGrad>(),
        )
}

python_test! {
    /// 2 blocks of linear 32 x 32 and GELU, a classifier of 10, a batch of 64, fp32, with AdamW, which counts each parameter's steps in a float:
    /// each figure from the layers alone. Then the cells' own check, with gradients that stay as they were, and with another optimizer.
    bytes_can_be_worked_out_by_hand_and_the_check_sees_old_gradients_and_another_optimizer: "step_timeline", r#"
of, drawn, curves = "model=mlp-2x32 batch=64 optimizer=adamw by=pytorch zero-grad=", [], step_timeline.curves
step_timeline.curves = lambda probe, stages: (drawn.append(stages), curves(probe, stages))
dropped, zeroed = (memory(step_timeline.Phases, of + zero_grad) for zero_grad in ("none", "zero"))
model, steps = 4 * (2 * (32 * 32 + 32) + 320 + 10), 4 * 6
# Of each block the linear layer's result and GELU's; the log-softmax and the sum of its weights; and the loss, which autograd does not keep.
activations, loss = 4 * (2 * 2 * 64 * 32 + 64 * 10 + 2), 4
for found in dropped, zeroed:
    assert (found["after_load"], found["activations"], found["after_forward"]) == (model, activations, model + activations), found
    assert (found["after_backward"], found["optimizer_state"]) == (2 * model, 2 * model + steps), found
    assert (found["loaded"], found["backwarded"]) == (1, 2), found
    assert found["forwarded_saved"] == found["after_forward"] / (found["after_forward"] - loss), found
# Gradients that are kept are there in the next forward pass, and those that are new come on top of them for a moment.
without, kept = (stages[2, "forward"][-1] for stages in drawn)
assert kept["gradients"] == model and without["gradients"] == 0 and step_timeline.total(kept) - step_timeline.total(without) == model
assert zeroed["next_peak"] > dropped["next_peak"]

def checked():
    print(check(step_timeline.Phases, of + "zero", of + "none", 1e-6))

checked()
zero_grad = torch.optim.AdamW.zero_grad
torch.optim.AdamW.zero_grad = lambda self, set_to_none: zero_grad(self, set_to_none) if set_to_none else None
checked()
torch.optim.AdamW.zero_grad = zero_grad
of = of.replace("adamw", "rmsprop")
print(check(step_timeline.Phases, of + "zero", of.replace("rmsprop", "adamw") + "none", 1e-6))
"#, "ok\ninvalid\ninvalid\n"
}

python_test! {
    /// No peak is lost, and each phase ends where the meter says.
    the_curves_of_a_step_keep_its_peak: "step_timeline", r#"
points, ends, curves = [], {}, step_timeline.curves

def draw(probe, stages):
    ends.update({phase: step_timeline.total(stages[2, phase][-1]) for phase in step_timeline.PHASES})
    curves(probe, stages)

step_timeline.curves = draw
lab.Probe.point = lambda self, metric, unit, position, value: points.append((metric.removeprefix("curve."), position, value))
found = memory(step_timeline.Phases, "model=mlp-2x32 batch=64 optimizer=adamw by=pytorch zero-grad=none")
begins = [position for layer, position, _ in points if layer == "phase"]
at = lambda position: sum({layer: value for layer, when, value in points if layer != "phase" and when <= position}.values())
assert len(begins) == 4 and begins[3] <= 186
assert max(map(at, range(begins[3]))) == found["next_peak"] + found["data"]
print([at(end - 1) == ends[phase] for end, phase in zip(begins[1:], step_timeline.PHASES)])
"#, "[True, True, True]\n"
}
