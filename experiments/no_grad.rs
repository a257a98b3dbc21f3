//! Inference without gradients: does `no_grad` keep no activations, and what does inference mode add to it?
//!
//! Guide 4 recommends `torch.no_grad()` for inference, since nothing of the forward pass is needed again. `eval()` alone does not do
//! it: every level here runs the model as `eval()` has it, so that outputs are comparable, and the baseline records all the same.

use harness::lab::*;
use models::Model;
use torch::inference_mode;

/// What of a forward pass lives when it is done, its input included, over the bytes of input and output.
const KEPT: Metric = Metric::counted("kept", "memory after forward, relative to input and output", "1").ratio();

levels! { Family as "model" "model": Mlp "", Gpt "", Resnet "" }
number! { Width "features or channels" }
number! { Depth "blocks" }
levels! { Mode "how the forward pass is run": Grad "recorded, as after eval() alone" => "recording for backward", NoGrad "under no_grad" => "no_grad", Inference "in inference mode" => "inference_mode" }

cell! { Forward { model: Family, width: Width, batch: Batch, depth: Depth, mode: Mode } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    use Family::*;
    let of = |model, width: i64, batch: i64, depths: &[i64]| Forward::cross(model, width, batch, depths, Mode::ALL);
    let by_depth = Grid::new("by depth", forward)
        .compare::<Mode>()
        .quick(of(Mlp, 256, 4096, &[2, 4]).passes(CHECK | COUNT))
        .quick(of(Mlp, 256, 4096, &[8]))
        .quick(of(Gpt, 128, 16, &[2, 8]).passes(CHECK | COUNT))
        .quick(of(Resnet, 16, 32, &[2, 8]).passes(CHECK | COUNT))
        .full(of(Mlp, 2048, 8192, &[8, 16, 32, 64]))
        .full(of(Gpt, 1024, 64, &[6, 12, 24, 48]))
        .full(of(Resnet, 64, 128, &[8, 16, 32, 64]))
        .smoke(Forward::cross(Mlp, 32, 256, 4, [Mode::Grad, Mode::NoGrad]))
        .metrics(&[KEPT])
        .check(|_| equal(1e-6)) // the same kernels on the same numbers
        .claim(
            Claim::new("no-grad", "4", "inference under no_grad keeps no activations")
                .rule(value(KEPT).at(Mode::NoGrad).holds(at_most(1.01)))
                .rule(growth(STEP_PEAK).along::<Depth>().at(Mode::NoGrad).confirm(at_most(0.1)).refute(at_least(0.5))),
        )
        .plot(
            lines(STEP_PEAK)
                .named("depth")
                .caption("Transient peak of a forward pass, by depth")
                .of(|c: &Forward| c.mode != Mode::Inference)
                .over::<Depth>()
                .by::<Family>()
                .by::<Mode>(),
        );
    // Where operations are short, what each one costs beside its kernel counts.
    let short = Grid::new("short operations", forward)
        .compare::<Mode>()
        .full(of(Mlp, 32, 32, &[64]))
        .metrics(&[KEPT])
        .check(|_| equal(1e-6))
        .answers("no-grad", value(KEPT).at(Mode::NoGrad).holds(at_most(1.01)).informational())
        .no_plots();
    Protocol::new("no_grad", "Inference without gradients")
        .question("Does inference under no_grad keep no activations, how does its peak grow with depth, and is inference mode better still?")
        .hypothesis(
            "A recorded forward pass keeps what each layer needs for its backward pass, so its memory grows with depth. Under no_grad \
             each intermediate result goes when the next is there: only input and output are left, and the peak is that of the largest \
             layer, whatever the depth. Inference mode needs the same memory and saves some microseconds for each operation.",
        )
        .grid(by_depth)
        .grid(short)
        .shows(Shown::new("`no_grad` for inference").at(Mode::NoGrad).memory(PEAK).time(TIME))
        .threat("Python's `for` loops keep the last output until the next is bound to its name; here the output goes when the step ends.")
        .threat(
            "Large tensors on the CPU are mapped afresh at each allocation, so a forward pass that frees early reuses memory that is warm: \
             there no_grad saves time for this reason, too.",
        )
}

fn forward(cell: Forward, bench: &Bench) -> Result<Step> {
    let norm = if cell.model == Family::Resnet { "-bn" } else { "" };
    let name = format!("{}-{}x{}{norm}", cell.model.text(), cell.depth.0, cell.width.0);
    let model = Model::named(&name, bench.device)?;
    let inputs = model.batch(cell.batch.0).inputs;
    Ok(Step::new(move |probe| {
        let rest = probe.at_rest();
        let output = probe.forward(|| {
            Ok(match cell.mode {
                Mode::Grad => model.forward(&inputs, false),
                Mode::NoGrad => no_grad(|| model.forward(&inputs, false)),
                Mode::Inference => inference_mode(|| model.forward(&inputs, false))?,
            })
        })?;
        let added = probe.live() - rest;
        probe.emit(KEPT, (added + bytes([&inputs])) as f64 / bytes([&inputs, &output]) as f64);
        probe.compare(OUTPUT_ERROR, || Ok(vec![output]))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    const SMALL: Forward = Forward { model: Family::Mlp, width: Width(32), batch: Batch(256), depth: Depth(4), mode: Mode::NoGrad };

    #[test]
    fn the_check_sees_layers_that_are_left_out() {
        for cell in Forward::cross([Family::Gpt, Family::Resnet], 32, 4, 2, Mode::ALL) {
            check(&protocol(), cell).holds();
        }
        // It would save memory, too.
        broken(&protocol(), SMALL, |bench| forward(with(SMALL, Depth(2)), bench)).sees("output: expected equal");
    }

    #[test]
    fn what_is_kept_can_be_worked_out_by_hand() {
        let kept = |mode| count(&protocol(), with(SMALL, mode)).figure(KEPT);
        assert_eq!((kept(Mode::NoGrad), kept(Mode::Inference)), (1.0, 1.0), "input and output and nothing else");
        // An input of 32 features, for each of 4 blocks what linear gives and what relu gives, and 10 logits.
        assert!(kept(Mode::Grad) > 3.0, "{}", kept(Mode::Grad));
    }
}
