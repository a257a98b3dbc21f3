//! Training on sequences of varying length, with calls of empty_cache in between.

use super::*;
use models::Model;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::nn::{Adam, OptimizerConfig};
use torch::{CudaMemory, OutsideMemory, attempt, cuda_memory, empty_cuda_cache, is_out_of_memory};

pub fn train(model: ModelName, batch: Batch, steps: Steps, neighbour: Neighbour, policy: Policy, bench: &Bench) -> Result<Step> {
    let device = bench.device;
    let model = Model::named(model.0, device)?;
    let batch = model.batch(batch.0);
    let longest = batch.inputs.size()[1];
    let mut random = ChaCha8Rng::seed_from_u64(bench.seed as u64);
    let lengths: Vec<i64> = (0..steps.0).map(|_| random.random_range(longest / 8..=longest)).collect();
    let mut optimizer = Adam::default().build(&model.store, 1e-4)?;
    let step = Step::new(move |probe| {
        probe.at_rest();
        let (mut cached, mut calls, mut refused, mut requests) = (0.0, 0, 0, 0);
        for (done, length) in (1..).zip(&lengths) {
            optimizer.zero_grad();
            let (inputs, targets) = (batch.inputs.narrow(1, 0, *length), batch.targets.narrow(1, 0, *length));
            let trained = attempt(|| {
                let loss = model.loss(&model.forward(&inputs, true), &targets, Reduction::Mean);
                loss.f_backward()?;
                optimizer.step();
                Ok(())
            });
            requests += 1;
            match trained {
                Err(e) if is_out_of_memory(&format!("{e:#}")) => refused += 1,
                other => other?,
            }
            let asked = match neighbour {
                Neighbour::Outside if done % 5 == 0 => {
                    let memory = of_allocator(device)?;
                    Some((memory.free + (memory.reserved - memory.allocated) / 2) as u64)
                }
                Neighbour::Outside | Neighbour::Nobody => None,
            };
            let empties = match policy {
                Policy::Never => false,
                Policy::EveryStep => true,
                Policy::EveryTenth => done % 10 == 0,
                Policy::AboveLimit => {
                    let memory = of_allocator(device)?;
                    memory.reserved > 2 * memory.allocated
                }
            };
            if empties {
                calls += 1;
                if device.is_cuda() {
                    empty_cuda_cache()?;
                }
            }
            if let Some(bytes) = asked {
                requests += 1;
                // What is granted is given back at once: the next step is to find the device as this one did.
                refused += usize::from(OutsideMemory::take(bytes).is_err());
            }
            if let Some(memory) = probe.memory() {
                cached += (memory.reserved - memory.allocated) as f64;
            }
        }
        probe.emit(CACHED, (cached / lengths.len() as f64).round());
        probe.emit(CALLS, calls);
        probe.emit(REFUSED, refused as f64 / requests as f64);
        probe.compare(PARAMETER_ERROR, || Ok(model.parameters().iter().map(Tensor::detach).collect()))
    });
    Ok(step.items(steps.0))
}

fn of_allocator(device: Device) -> Result<CudaMemory> {
    match device {
        Device::Cuda(index) => cuda_memory(i32::try_from(index)?),
        _ => bail!("only CUDA devices have a caching allocator"),
    }
}
