//! How fast is each operation in each type?

use super::*;
use harness::machine::specification;

const SHARE: Metric = Metric::timed("share", "share of the specified peak", "1");

levels! {
    Operation "what is computed":
    Copy "one tensor into another, bytes counted once read and once written",
    Product "of two square matrices",
    Convolution "3 x 3 over 64 channels of 56 x 56, forward",
    Attention "the fused kernel, 64 numbers to a head, forward",
}

cell! { ByType { operation: Operation, size: Size, dtype: Dtype } }

pub fn grid() -> Grid<ByType> {
    use Operation::*;
    let two = [Dtype::Fp32, Dtype::Bf16];
    Grid::new("by type", step)
        .compare::<Dtype>()
        .quick(ByType::cross(Copy, 64, two))
        .quick(ByType::cross(Product, 512, two))
        .quick(ByType::cross(Convolution, 8, two))
        .quick(ByType::cross(Attention, 512, two))
        .full(ByType::cross(Copy, 1024, Dtype::ALL))
        .full(ByType::cross(Product, [1024, 8192], Dtype::ALL))
        .full(ByType::cross(Convolution, 512, Dtype::ALL))
        .full(ByType::cross(Attention, 4096, Dtype::ALL))
        .smoke(ByType::cross(Product, 128, two))
        .passes(CHECK | ROUNDS)
        .metrics(&[TIME, COMPUTED, BANDWIDTH, SHARE])
        .check(|c| match c.dtype {
            Dtype::Fp32 => equal(1e-4),
            Dtype::Bf16 => equal(2e-2), // eight bits of mantissa
            Dtype::Fp16 => equal(1e-2),
        })
        .claim(
            Claim::ours("backends", "the same operation takes a twentieth less time, or less still, in a type of 16 bits")
                .rule(ratio(TIME).of(|c: &ByType| c.dtype != Dtype::Fp32).holds(at_most(0.95))),
        )
        .plot(
            bars(TIME)
                .named("types")
                .caption("Time of an operation against fp32's, on the same device")
                .by::<Operation>()
                .by::<Size>(),
        )
}

fn step(cell: ByType, bench: &Bench) -> Result<Step> {
    let ByType { operation, size: Size(size), dtype } = cell;
    let kind = match dtype {
        Dtype::Fp32 => Kind::Float,
        Dtype::Bf16 => Kind::BFloat16,
        Dtype::Fp16 => Kind::Half,
    };
    let (device, work) = (bench.device, operation.work(size, kind));
    let random = |shape: &Vec<i64>| Tensor::randn(shape.as_slice(), (Kind::Float, Device::Cpu)).to_device(device).to_kind(kind);
    let inputs = || operation.shapes(size).iter().map(random).collect::<Vec<Tensor>>();
    // On a GPU so many that none of them still lies in its L2 cache when its turn comes.
    let bytes: i64 =
        operation.shapes(size).iter().map(|shape| shape.iter().product::<i64>() * kind.elt_size_in_bytes() as i64).sum();
    let sets = if device.is_cuda() { (BEYOND_L2 / bytes).clamp(1, 256) } else { 1 };
    let (mut sets, mut turn): (Vec<Vec<Tensor>>, usize) = ((0..sets).map(|_| inputs()).collect(), 0);
    let known = specification(device);
    let rate = known.map(|known| if kind == Kind::Float { known.single } else { known.half });
    let (metric, peak) = match operation {
        Operation::Copy => (BANDWIDTH, known.map(|known| known.bandwidth)),
        Operation::Product | Operation::Attention => (COMPUTED, rate),
        Operation::Convolution => (COMPUTED, rate.filter(|_| kind != Kind::Float)),
    };
    let step = Step::new(move |probe| {
        let result = no_grad(|| operation.compute(&mut sets[turn]))?;
        turn = (turn + 1) % sets.len();
        probe.compare(RESULT_ERROR, || Ok(vec![result.to_kind(Kind::Float)]))
    });
    let is_exact = operation == Operation::Product && kind == Kind::Float;
    let step = step.least_flops(if is_exact { work } else { 0.0 }).rate(metric, work);
    Ok(peak.into_iter().fold(step, |step, peak| step.rate(SHARE, work / peak)))
}

/// Several times the L2 cache of any GPU.
const BEYOND_L2: i64 = 256 << 20;

const CHANNELS: i64 = 64;
const SIDE: i64 = 56;
/// Sequences, heads and numbers to a head.
const ATTENTION: [i64; 3] = [4, 8, 64];

impl Operation {
    fn shapes(self, size: i64) -> Vec<Vec<i64>> {
        let [sequences, heads, width] = ATTENTION;
        match self {
            Operation::Copy => vec![vec![size << 18]; 2],
            Operation::Product => vec![vec![size, size]; 2],
            Operation::Convolution => vec![vec![size, CHANNELS, SIDE, SIDE], vec![CHANNELS, CHANNELS, 3, 3]],
            Operation::Attention => vec![vec![sequences, heads, size, width]; 3],
        }
    }

    /// Bytes of a copy, floating-point operations of the others.
    fn work(self, size: i64, kind: Kind) -> f64 {
        match self {
            Operation::Copy => 2.0 * ((size << 18) * kind.elt_size_in_bytes() as i64) as f64,
            Operation::Product => 2.0 * (size as f64).powi(3),
            Operation::Convolution => 2.0 * (size * SIDE * SIDE * CHANNELS * CHANNELS * 9) as f64,
            Operation::Attention => 4.0 * (size * size * ATTENTION.iter().product::<i64>()) as f64,
        }
    }

    fn compute(self, inputs: &mut [Tensor]) -> Result<Tensor> {
        Ok(match (self, inputs) {
            (Operation::Copy, [source, target]) => {
                target.f_copy_(source)?;
                target.shallow_clone()
            }
            (Operation::Product, [a, b]) => a.f_matmul(b)?,
            (Operation::Convolution, [images, weight]) => images.f_conv2d(weight, None::<&Tensor>, 1, 1, 1, 1)?,
            (Operation::Attention, [q, k, v]) => {
                Tensor::f_scaled_dot_product_attention(q, k, v, None::<&Tensor>, 0.0, false, None::<f64>, false)?
            }
            (_, inputs) => bail!("{self:?} of {} tensors", inputs.len()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_a_wrong_result_in_every_operation() {
        for (operation, size) in
            [(Operation::Copy, 1), (Operation::Product, 128), (Operation::Convolution, 2), (Operation::Attention, 128)]
        {
            let cell = ByType { operation, size: Size(size), dtype: Dtype::Bf16 };
            check(&protocol(), cell).holds();
            let halved = |bench: &Bench| Ok(step(cell, bench)?.altered(|result| result * 0.5));
            broken(&protocol(), cell, halved).sees("result: expected equal");
        }
    }
}
