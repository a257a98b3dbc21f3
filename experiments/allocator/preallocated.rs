//! Does a pass over the longest batch, before training, spare the cache its growth?

use super::*;

/// Calls of `cudaMalloc` while the run trains, what was taken before it left out.
const CALLS: Metric = Metric::counted("device_allocations", "segments taken from the device while training", "1");

levels! {
    First as "first-pass" "what passes before the first step":
    Nothing "" => "no preallocation",
    Longest "forward and backward over the longest batch, whose gradients are dropped" => "preallocation",
}

cell! { Begun { model: ModelName, batch: Batch, steps: Steps, first_pass: First, by: By } }
cell! { BegunTight { model: ModelName, batch: Batch, steps: Steps, memory: DeviceMemory, first_pass: First, by: By } }

pub fn grid() -> Grid<Begun> {
    // Set on 27 November 2026, before any figure.
    Grid::new("a pass over the longest batch", in_python)
        .compare::<First>()
        .quick(Begun::cross("gpt-4x256", 32, 40, First::ALL, By::Pytorch))
        .full(Begun::cross(["gpt2", "bert-base"], 4, 40, First::ALL, By::Pytorch))
        .smoke(Begun::cross("gpt-2x64", 8, 4, First::ALL, By::Pytorch))
        .passes(COUNT)
        .on(CUDA)
        .metrics(&[RESERVED, ALLOCATED, CALLS])
        .claim(
            Claim::new(
                "preallocation-calls",
                "PyTorch, Performance Tuning Guide",
                "after a pass over the longest batch, training seldom takes memory from the device: a fifth of the calls at most",
            )
            .on(BY_PYTHON)
            .rule(ratio(CALLS).at(First::Longest).confirm(at_most(0.2)).refute(at_least(0.5))),
        )
        .claim(
            Claim::new(
                "preallocation-reserved",
                "PyTorch, Performance Tuning Guide",
                "a pass over the longest batch avoids fragmentation: the reserved peak falls by a tenth or more",
            )
            .on(BY_PYTHON)
            .rule(ratio(RESERVED).at(First::Longest).confirm(at_most(0.9)).refute(at_least(0.98))),
        )
        .plot(
            amounts(RESERVED)
                .named("preallocated")
                .caption("Peak reserved memory over a run with varying lengths, with and without a pass over the longest batch before it")
                .by::<ModelName>(),
        )
}

pub fn tight() -> Grid<BegunTight> {
    Grid::new("a pass over the longest batch, in little memory", in_python)
        .compare::<First>()
        .quick(BegunTight::cross("gpt-4x256", 32, 30, "260MiB", First::ALL, By::Pytorch))
        // The longest batch itself fits from 6.2 GiB on. A trial in 5 and 6 GiB, where it does not, came before these were set.
        .full(BegunTight::cross("gpt2", 4, 30, ["6400MiB", "6500MiB", "6600MiB"], First::ALL, By::Pytorch))
        .passes(COUNT)
        .on(CUDA)
        .metrics(&[REFUSED])
        .claim(
            Claim::new(
                "preallocation-fits",
                "PyTorch, Performance Tuning Guide",
                "a pass over the longest batch avoids running out of memory: at most half as many steps fail",
            )
            .on(BY_PYTHON)
            .rule(value(REFUSED).at(First::Nothing).confirm(at_least(0.01)).refute(at_most(0.0)))
            .rule(highest(REFUSED).at(First::Longest).over_at(First::Nothing).confirm(at_most(0.5)).refute(at_least(1.0))),
        )
        .no_plots()
}

python_test! {
    /// On a CPU, whose steps are the same: what passes first leaves the parameters and the gradients as they are.
    a_pass_before_training_changes_nothing_of_it: "allocator", r#"
def ended(first):
    cell = f"model=gpt-2x64 batch=4 steps=4 by=pytorch first-pass={first}"
    run = lab._set_up(allocator.Run, cell, lab.Bench(torch.device("cpu"), seed=1, threads=1))
    run.run(lab.Probe())
    return [parameter.detach() for parameter in run.model.parameters()]

print(lab.distance(ended("longest"), ended("nothing")) == 0)
allocator.Run.pass_first = lambda self: self.train(self.longest)
print(lab.distance(ended("longest"), ended("nothing")) > 0)
"#, "True\nTrue\n"
}
