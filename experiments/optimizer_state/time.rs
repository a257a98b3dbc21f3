//! How long does its step take, and how near is that to what the memory allows?

use super::step::step_of;
use super::*;

number! { Parameters "numbers to train" }
number! { Tensors "tensors of equal size that hold them" }

cell! { Time { parameters: Parameters, tensors: Tensors, optimizer: Method, implementation: How } }

pub fn grid() -> Grid<Time> {
    use Method::*;
    Grid::new("time", step)
        .compare::<How>()
        .quick(Time::cross(4 << 20, [8, 1024], Adamw, How::ALL))
        .full(Time::cross([1 << 20, 256 << 20], [8, 4096], Adamw, How::ALL))
        .full(Time::cross(256 << 20, 256, [Sgd, Momentum], How::ALL))
        .smoke(Time::cross(64 << 10, 16, Adamw, [How::Loop, How::Copy]))
        .metrics(&[STATE, STATE_RATIO, STEP_PEAK, TEMPORARY_RATIO, CLAIMED, TRAFFIC])
        .check(|c| relation(c.implementation))
        .no_plots()
}

fn step(Time { parameters, tensors, optimizer, implementation }: Time, bench: &Bench) -> Result<Step> {
    let tensor = |i| {
        let values = bench.randn(&[parameters.0 / tensors.0]) * 0.02;
        (format!("tensor.{i}"), values.set_requires_grad(true))
    };
    step_of((0..tensors.0).map(tensor).collect(), parameters.0 * 4, optimizer, implementation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_a_copy_that_updates() {
        let implementation = How::Copy;
        let cell = Time { parameters: Parameters(64 << 10), tensors: Tensors(16), optimizer: Method::Adamw, implementation };
        check(&protocol(), cell).holds();
        broken(&protocol(), cell, |bench| step(with(cell, How::Fused), bench)).sees("99.9 % or more of it missing");
    }
}
