//! `empty_cache`: does calling it now and then prevent fragmentation, and does it avoid running out of memory?
//!
//! Guide 3 recommends it. PyTorch's allocator gives its cache back by itself before it fails, so inside one process there should be
//! nothing to avoid; memory that the allocator does not manage (another process, another library) is another matter. Sequences of varying
//! length are what fragments a cache.

mod cache;
mod train;

use harness::lab::*;
use train::train;

/// What the allocator holds from the device and no tensor uses, after a training step and what the policy does then.
const CACHED: Metric = Metric::counted("cached", "unused reserved memory", "B");
const REFUSED: Metric = Metric::counted("refused", "allocations failing", "1").share();
const CALLS: Metric = Metric::counted("calls", "calls", "1");
const RESERVED: Metric = Metric::counted("reserved_peak", "peak reserved memory", "B");

number! { Steps "training steps, each with sequences of another length" }
levels! {
    Neighbour "who else wants memory of the device":
    Nobody as "none" "nobody",
    Outside "after each fifth step someone outside PyTorch asks for half of what is cached on top of what is free",
}
levels! {
    Policy "when empty_cache is called":
    Never "" => "never calling empty_cache",
    EveryStep "after every step" => "empty_cache at every step",
    EveryTenth as "every-10" "after every tenth step" => "empty_cache at every tenth step",
    AboveLimit "after a step where less than half of what is reserved is in use",
}

cell! { Tight { model: ModelName, batch: Batch, steps: Steps, neighbour: Neighbour, memory: DeviceMemory, policy: Policy } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    let tight = Grid::new("little memory", |c: Tight, bench| train(c.model, c.batch, c.steps, c.neighbour, c.policy, bench))
        .compare::<Policy>()
        .quick(Tight::cross("gpt-4x256", 32, 40, Neighbour::Nobody, ["136MiB", "150MiB"], Policy::ALL))
        .full(Tight::cross("gpt2", 4, 40, Neighbour::Nobody, ["5GiB", "6GiB"], Policy::ALL))
        .passes(COUNT)
        .on(CUDA)
        .no_plots();
    Protocol::new("empty_cache", "`empty_cache` and fragmentation")
        .question(
            "Does calling empty_cache now and then prevent fragmentation and avoid running out of memory, and what does it cost?",
        )
        .hypothesis(
            "It gives back what is cached and unused, so the device shows less memory in use. It avoids no failure of the process itself, \
             because the allocator empties its cache before it fails; it helps whoever else wants memory of the device. Each call costs \
             time, and the next step pays for allocating again.",
        )
        .grid(cache::grid())
        .grid(tight)
        .shows(Shown::new("`empty_cache` at every step").at(Neighbour::Nobody).at(Policy::EveryStep).memory(RESERVED))
        .threat(
            "The neighbour here is the same process asking the driver past PyTorch's allocator, at a moment between two steps; another \
             process may ask at any time.",
        )
        .threat("Which lengths come after one another decides how a cache fragments; the lengths are random and the same for every policy.")
        .threat("A prediction knows no price: what a call costs in time is measured on a GPU only.")
}
