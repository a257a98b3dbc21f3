//! AdamW without weight decay, whose step is computed in fp32 and kept as a cell says.

use super::*;

const BETAS: (f64, f64) = (0.9, 0.999);
const EPSILON: f64 = 1e-8;

pub struct AdamW {
    /// Each with its first and second moment and, for Kahan's sum, what rounding left out: all of its own type.
    parameters: Vec<(Tensor, Tensor, Tensor, Option<Tensor>)>,
    how: How,
    rate: f64,
    steps: i32,
}

impl AdamW {
    pub fn new(parameters: Vec<Tensor>, how: How, rate: f64) -> AdamW {
        let lost = |p: &Tensor| (how == How::Kahan).then(|| p.zeros_like());
        let parameters = parameters.into_iter().map(|p| (p.zeros_like(), p.zeros_like(), lost(&p), p));
        AdamW { parameters: parameters.map(|(m, v, lost, p)| (p, m, v, lost)).collect(), how, rate, steps: 0 }
    }

    pub fn step(&mut self) {
        self.steps += 1;
        let corrected = |beta: f64| 1.0 - beta.powi(self.steps);
        let (first, second) = (corrected(BETAS.0), corrected(BETAS.1));
        let (how, rate) = (self.how, self.rate);
        no_grad(|| {
            for (parameter, m, v, lost) in &mut self.parameters {
                let gradient = parameter.grad();
                if !gradient.defined() {
                    continue;
                }
                let gradient = gradient.to_kind(Kind::Float);
                let mean = m.to_kind(Kind::Float) * BETAS.0 + &gradient * (1.0 - BETAS.0);
                let square = v.to_kind(Kind::Float) * BETAS.1 + gradient.square() * (1.0 - BETAS.1);
                m.copy_(&mean);
                v.copy_(&square);
                let change = mean / first / ((square / second).sqrt() + EPSILON) * -rate;
                keep(how, parameter, &change, lost.as_mut());
            }
        });
    }

    /// Bytes of moments and sums.
    pub fn state(&self) -> i64 {
        let of = |t: &Tensor| (t.numel() * t.kind().elt_size_in_bytes()) as i64;
        self.parameters.iter().map(|(_, m, v, lost)| of(m) + of(v) + lost.as_ref().map_or(0, of)).sum()
    }
}

/// Adds a change in fp32 to a parameter.
fn keep(how: How, parameter: &mut Tensor, change: &Tensor, lost: Option<&mut Tensor>) {
    let before = parameter.to_kind(Kind::Float);
    match (how, lost) {
        (How::Stochastic, _) => parameter.copy_(&stochastic(&(before + change))),
        (How::Kahan, Some(lost)) => {
            let whole = change + lost.to_kind(Kind::Float);
            parameter.copy_(&(&before + &whole));
            lost.copy_(&(whole - (parameter.to_kind(Kind::Float) - before)));
        }
        _ => parameter.copy_(&(before + change)),
    }
}

/// Rounds fp32 to numbers that bfloat16 has: 16 random bits are added below those that stay, and cut off with what was there.
fn stochastic(x: &Tensor) -> Tensor {
    let bits = x.view_dtype(Kind::Int);
    let random = bits.randint_like(1 << 16);
    (bits + random).bitwise_and(-(1i64 << 16)).view_dtype(Kind::Float)
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::alone;

    /// A parameter of 1 after 512 steps of 2^-11, of which bfloat16 rounds each away.
    fn after(how: How) -> f64 {
        tch::manual_seed(1);
        let mut parameter = Tensor::ones([4096], (Kind::BFloat16, Device::Cpu));
        let mut lost = (how == How::Kahan).then(|| parameter.zeros_like());
        let change = Tensor::full([4096], 0.5f64.powi(11), (Kind::Float, Device::Cpu));
        (0..512).for_each(|_| keep(how, &mut parameter, &change, lost.as_mut()));
        parameter.to_kind(Kind::Float).mean(Kind::Float).double_value(&[])
    }

    #[test]
    fn small_steps_are_lost_but_for_the_two_ways_that_keep_them() {
        let _turn = alone();
        assert_eq!(after(How::Bf16), 1.0);
        assert!((after(How::Kahan) - 1.25).abs() < 1e-2, "{}", after(How::Kahan));
        assert!((after(How::Stochastic) - 1.25).abs() < 1e-2, "{}", after(How::Stochastic));
    }

    #[test]
    fn a_step_in_fp32_is_libtorchs() {
        let _turn = alone();
        use tch::nn::OptimizerConfig;
        let store = tch::nn::VarStore::new(Device::Cpu);
        let theirs = store.root().randn_standard("x", &[64]);
        let ours = theirs.detach().copy().set_requires_grad(true);
        let mut reference = tch::nn::AdamW { wd: 0.0, ..Default::default() }.build(&store, 1e-2).expect("building AdamW");
        let mut tested = AdamW::new(vec![ours.shallow_clone()], How::Fp32, 1e-2);
        for _ in 0..5 {
            for x in [&theirs, &ours] {
                let mut gradient = x.grad();
                if gradient.defined() {
                    let _ = gradient.zero_();
                }
                x.pow_tensor_scalar(4).sum(Kind::Float).backward();
            }
            reference.step();
            tested.step();
        }
        assert!(theirs.allclose(&ours, 1e-5, 1e-6, false));
    }
}
