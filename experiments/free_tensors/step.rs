//! Makes something, drops it, and looks at memory before and after.

use super::*;
use base::units::Bytes;
use harness::process;
use models::Model;
use std::any::Any;
use tch::nn::{Adam, OptimizerConfig};
use torch::{empty_cuda_cache, trim_heap};

const SMALL_TENSOR: i64 = 64 << 10;
/// Bytes of a tensor that has nothing to do with the drop. CUDA's allocator gives it a segment that it fills, so that it shares none with
/// what is dropped.
const BYSTANDER: i64 = 20 << 20;
/// The kernel batches its counts of resident pages, so that less than this is nothing.
const RESIDENT_NOISE: u64 = 256 << 10;

/// What is to be dropped.
type HeldTensors = Vec<Box<dyn Any>>;
/// Owns what outlives the drop, and gives what of it must be untouched.
type Survivor = Box<dyn Fn() -> Result<Vec<Tensor>>>;

pub fn step(cell: Dropping, bench: &Bench) -> Result<Step> {
    let bench = *bench;
    let bystander = bench.randn(&[BYSTANDER / 4]);
    let (mut held, mut survivor): (HeldTensors, Survivor) = (Vec::new(), surviving(Vec::new()));
    let step = Step::new(move |probe| {
        // What the last step left.
        held.clear();
        drop(std::mem::replace(&mut survivor, surviving(Vec::new())));
        empty_cache(bench.device)?;
        trim_heap();
        let (start, resident_start) = (probe.memory(), resident(probe)?);
        (held, survivor) = make(cell, &bench, &bystander)?;
        empty_cache(bench.device)?;
        let before = probe.memory();
        match cell.moment {
            Moment::Before => {}
            Moment::Dropped => held.clear(),
            Moment::EmptyCache => {
                held.clear();
                empty_cache(bench.device)?;
            }
            Moment::MallocTrim => {
                held.clear();
                trim_heap();
            }
        }
        if let (Some(start), Some(before), Some(now)) = (start, before, probe.memory()) {
            // A gradient that survives is no part of what is dropped.
            let kept = if cell.reference == Reference::Gradient { (before.allocated - start.allocated) / 2 } else { 0 };
            let size = (before.allocated - start.allocated - kept) as f64;
            probe.emit(ALLOCATED, now.allocated - start.allocated);
            probe.emit(FREED, (before.allocated - now.allocated) as f64 / size);
            if bench.device.is_cuda() {
                probe.emit(RESERVED, now.reserved - start.reserved);
                probe.emit(UNRESERVED, (before.reserved - now.reserved) as f64 / size);
                probe.emit(RETURNED, (before.used()? - now.used()?) as f64 / size);
            }
        }
        if let (Some(start), Some(now)) = (resident_start, resident(probe)?) {
            probe.emit(RESIDENT, now.saturating_sub(start).max(RESIDENT_NOISE));
        }
        probe.compare(SURVIVOR_ERROR, &survivor)
    });
    // The first run loads code and sizes the C library's pools; the second is what a program sees all its life.
    Ok(step.timing(Timing { warm_up_steps: 1, warm_up_seconds: 0.0, samples: 1, least_sample: 0.0 }))
}

fn empty_cache(device: Device) -> Result<()> {
    if device.is_cuda() {
        empty_cuda_cache()?;
    }
    Ok(())
}

/// Resident bytes, where they are what is measured.
fn resident(probe: &Probe) -> Result<Option<u64>> {
    if probe.is_timing() { process::resident().map(Some) } else { Ok(None) }
}

fn surviving(tensors: Vec<Tensor>) -> Survivor {
    Box::new(move || Ok(tensors.iter().map(Tensor::shallow_clone).collect()))
}

/// Makes what will be dropped, and what will survive it. Where nothing does, the bystander is looked at.
fn make(cell: Dropping, bench: &Bench, bystander: &Tensor) -> Result<(HeldTensors, Survivor)> {
    use Reference::*;
    tch::manual_seed(bench.seed);
    let bytes = || cell.size.0.parse::<Bytes>().map(|size| size.0 as i64).map_err(anyhow::Error::msg);
    let other = || Err(anyhow::anyhow!("nothing of {} survives as '{}'", cell.dropped.text(), cell.reference.text()));
    match cell.dropped {
        Dropped::Tensor => {
            let x = bench.randn(&[bytes()? / 4]);
            let survivor: Survivor = match cell.reference {
                Nothing => surviving(vec![bystander.shallow_clone()]),
                Clone => surviving(vec![x.shallow_clone()]),
                View => surviving(vec![x.narrow(0, 0, 1)]),
                Graph => {
                    let factor = Tensor::ones([1], (Kind::Float, bench.device)).set_requires_grad(true);
                    let result = (&factor * &x).sum(Kind::Float);
                    Box::new(move || Ok(Tensor::f_run_backward(&[&result], &[&factor], true, false)?))
                }
                Gradient => {
                    let x = x.set_requires_grad(true);
                    x.square().sum(Kind::Float).f_backward()?;
                    surviving(vec![x.grad()])
                }
                Few | Optimizer | Loss | Gradients | Row => return other(),
            };
            Ok((vec![Box::new(x)], survivor))
        }
        Dropped::SmallTensors => {
            let tensors: Vec<Tensor> = (0..bytes()? / SMALL_TENSOR).map(|_| bench.randn(&[SMALL_TENSOR / 4])).collect();
            let survivor: Survivor = match cell.reference {
                Nothing => surviving(vec![bystander.shallow_clone()]),
                Few => surviving(tensors.iter().step_by(32).map(Tensor::shallow_clone).collect()),
                Clone | View | Graph | Gradient | Optimizer | Loss | Gradients | Row => return other(),
            };
            Ok((vec![Box::new(tensors)], survivor))
        }
        Dropped::Model => {
            let model = Model::named(cell.size.0, bench.device)?;
            let mut optimizer = Adam::default().build(&model.store, 1e-4)?;
            let batch = model.batch(4);
            let loss = || model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean);
            for _ in 0..2 {
                optimizer.zero_grad();
                loss().f_backward()?;
                optimizer.step();
            }
            let first = model.parameters().into_iter().find(|p| p.dim() == 2).context("a model without a matrix")?;
            let survivor: Survivor = match cell.reference {
                Nothing => surviving(vec![bystander.shallow_clone()]),
                Optimizer => return Ok((vec![Box::new(model)], Box::new(move || Ok(optimizer.trainable_variables())))),
                Loss => surviving(vec![loss()]),
                Gradients => surviving(model.gradients()),
                Row => surviving(vec![first.detach().narrow(0, 0, 1)]),
                Clone | View | Graph | Gradient | Few => return other(),
            };
            Ok((vec![Box::new(model), Box::new(optimizer)], survivor))
        }
    }
}
