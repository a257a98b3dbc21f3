//! What do the parts of a step with Adam take?

use super::*;
use torch::attempt;
use torch::optimizers::{Algorithm, Implementation, Optimizer, ZeroGrad};

const PARAMETERS: Metric = Metric::counted("parameters", "parameters", "B");
const STATE: Metric = Metric::counted("optimizer_state", "optimizer state", "B");
/// What the step's peak lies above parameters, gradients, optimizer state and data.
const TEMPORARIES: Metric = Metric::counted("temporaries", "temporaries", "B");

levels! {
    Adam "how Adam steps through the parameters":
    Loop "one after the other, as libtorch does",
    Foreach "all at once, one operation after the other: PyTorch's default on CUDA",
    Fused "all at once in one kernel",
}

cell! { Parts { model: ModelName, batch: Batch, adam: Adam } }

pub fn grid() -> Grid<Parts> {
    let vit = |c: &Parts| c.model == ModelName("vit-l16");
    Grid::new("parts", step)
        .compare::<Adam>()
        .quick_and_full(Parts::cross("vit-l16", 1, Adam::ALL))
        .smoke(Parts::cross("mlp-2x32", 1, Adam::ALL))
        .passes(CHECK | COUNT)
        .on(DEVICES)
        .metrics(&[PARAMETERS, GRADIENTS, STATE, TEMPORARIES])
        .check(|_| equal(1e-3)) // the same parameters after a step
        .published(
            Published::new(
                "vit-l16-optimizer",
                "PyTorch tutorial 'How to save memory by fusing the optimizer step into the backward pass'",
                "ViT-L/16, Adam, batch 1: parameters 1.2 GB, gradients 1.2 GB, optimizer state 2.4 GB, temporaries 1.2 GB; about \
                 6 GB at the peak",
            )
            .on(DEVICES)
            .rule(value(PARAMETERS).of(vit).reproduces(1.2e9))
            .rule(value(GRADIENTS).of(vit).reproduces(1.2e9))
            .rule(value(STATE).of(vit).reproduces(2.4e9))
            .rule(value(TEMPORARIES).of(move |c: &Parts| vit(c) && c.adam == Adam::Foreach).reproduces(1.2e9))
            .rule(value(PEAK).of(move |c: &Parts| vit(c) && c.adam == Adam::Foreach).reproduces(6e9))
            .setup(
                "The same model and batch. The temporaries are those of PyTorch's default, which steps all parameters at once (foreach).",
            ),
        )
        .no_plots()
}

/// A model in training with Adam, whose bytes are told apart.
fn step(cell: Parts, bench: &Bench) -> Result<Step> {
    let implementation = match cell.adam {
        Adam::Loop => Implementation::Loop,
        Adam::Foreach => Implementation::Foreach,
        Adam::Fused => Implementation::Fused,
    };
    let model = Model::named(cell.model.0, bench.device)?;
    let batch = model.batch(cell.batch.0);
    let mut optimizer = Optimizer::new(&model.store, Algorithm::Adam, 1e-3, implementation)?;
    Ok(Step::new(move |probe| {
        optimizer.zero_grad(ZeroGrad::ToNone)?;
        probe.at_rest();
        let loss = attempt(|| Ok(model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean)))?;
        loss.f_backward()?;
        drop(loss);
        let before_step = probe.live();
        optimizer.step()?;
        let (parameters, gradients) = (bytes(&model.parameters()), bytes(&model.gradients()));
        let data = bytes(&[batch.inputs.shallow_clone(), batch.targets.shallow_clone()]);
        probe.emit(PARAMETERS, parameters);
        probe.emit(GRADIENTS, gradients);
        if let Some(memory) = probe.memory() {
            probe.emit(TEMPORARIES, memory.requested_peak - before_step);
        }
        probe.emit(STATE, before_step - parameters - gradients - data - probe.release_workspaces());
        probe.compare(PARAMETER_ERROR, || Ok(model.parameters().iter().map(Tensor::detach).collect()))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;
    use harness::measure;
    use torch::Backend;

    fn small(adam: Adam) -> Parts {
        Parts { model: ModelName("mlp-2x32"), batch: Batch(1), adam }
    }

    #[test]
    fn the_check_sees_a_step_too_many() {
        for adam in [Adam::Foreach, Adam::Fused] {
            check(&protocol(), small(adam)).holds();
        }
        let twice = |bench: &Bench| Ok(step(small(Adam::Foreach), bench)?.twice());
        broken(&protocol(), small(Adam::Foreach), twice).sees("parameter: expected equal");
    }

    #[test]
    fn what_cublas_keeps_is_no_optimizer_state() {
        let Some(dry) = dry("parts::tests::what_cublas_keeps_is_no_optimizer_state") else { return };
        let bench = Bench { device: dry.device(), platform: Platform::Dry, seed: 1 };
        let found = measure::memory(&mut step(small(Adam::Loop), &bench).unwrap(), &dry).unwrap();
        let figure = |name: &str| found.iter().find(|sample| sample.metric == name).map(|sample| sample.value);
        let parameters = 4.0 * f64::from((2 * 32 * 32 + 2 * 32) + (32 * 10 + 10));
        assert_eq!(figure(STATE.name), Some(2.0 * parameters));
        // 32 MiB for each of the two threads that multiply, on compute capability 9.0.
        assert!(figure("workspaces").unwrap() >= f64::from(2 * (32 << 20)), "{found:?}");
    }

    #[test]
    fn parts_are_what_can_be_worked_out_by_hand() {
        let counted = count(&protocol(), small(Adam::Loop));
        let parameters = 4.0 * f64::from((2 * 32 * 32 + 2 * 32) + (32 * 10 + 10));
        assert_eq!([PARAMETERS, GRADIENTS].map(|part| counted.figure(part)), [parameters; 2]);
        assert_eq!(counted.figure(STATE), 2.0 * parameters, "two numbers for each parameter");
    }
}
