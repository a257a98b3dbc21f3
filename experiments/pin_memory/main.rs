//! Pinned memory: page-locked host memory, which a GPU's copy engine reads by itself.
//!
//! Guide 1 says that with it there is no copy at all, guides 3 and 5 that transfers and training get faster, the more the larger the data,
//! for more (and locked) host memory, and that small data and a CPU gain nothing. PyTorch's tutorial on pin_memory adds that pinning a
//! tensor just to send it is slower than sending it, and that an unsynchronised read of a `non_blocking` copy gives old values.

mod copies;
mod epochs;
mod held;
mod loader;
mod reads;
mod sending;
mod without_gpu;

use harness::lab::*;
use torch::transfer::{Stream, copy, pinned};

const VALUES_ERROR: Metric = Metric::compared("values_error", "error of the values that were read");

levels! { Memory "host memory": Pageable "ordinary memory", Pinned "page-locked, allocated once and reused" }
number! { Bytes "bytes" }
levels! {
    Recipe "how a batch gets to the device":
    Pageable "`x.to(device)`",
    PageableNonblocking "`x.to(device, non_blocking)`",
    PinInline "`x.pin_memory().to(device, non_blocking)`",
    Staged "copied into a reused pinned buffer, then sent",
    Pinned "already lies in pinned memory, `to(device)`",
    PinnedNonblocking "in pinned memory, `to(device, non_blocking)`",
    Prefetched "pinned, and copied on a side stream under the step before",
}

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("pin_memory", "Pinned memory")
        .question("What does page-locked memory gain for copies and for training, by size, and what does it cost?")
        .hypothesis(
            "The copy engine reads locked pages at the link's speed; from pageable memory the driver first copies into locked pages of its \
             own, which costs about half of the bandwidth from some MiB on. Locking is slow, so it pays for buffers that are reused only. A \
             training gains where the link is its bottleneck.",
        )
        .grid(copies::grid())
        .grid(sending::grid())
        .grid(epochs::grid())
        .grid(loader::grid())
        .grid(held::grid())
        .grid(reads::grid())
        .grid(without_gpu::grid())
        .shows(Shown::new("Batches in pinned memory").at(Recipe::PinnedNonblocking).time(TIME))
        .threat(
            "Batches lie ready in their buffers: filling them is the loader's work and is left out, so that only the way to the device \
             differs.",
        )
        .threat("PyTorch's allocator of pinned memory keeps freed blocks, so pinning inline locks anew only when its cache has no block of that size.")
        .threat("On a machine of several sockets the bandwidth depends on which of them holds the buffer.")
}

impl Bytes {
    /// Numbers of fp32.
    fn elements(self) -> i64 {
        self.0 / 4
    }
}

impl Memory {
    /// A buffer in this memory.
    fn buffer(self, elements: i64) -> Result<Tensor> {
        Ok(match self {
            Memory::Pageable => Tensor::f_empty([elements], (Kind::Float, Device::Cpu))?,
            Memory::Pinned => pinned(&[elements], Kind::Float)?,
        })
    }
}

fn data(bytes: Bytes) -> Result<Tensor> {
    Ok(Tensor::f_randn([bytes.elements()], (Kind::Float, Device::Cpu))?)
}

/// A new pinned tensor with the same values, as `pin_memory()` gives.
fn pin(host: &Tensor) -> Result<Tensor> {
    let mut locked = pinned(&host.size(), host.kind())?;
    copy(&mut locked, host, false)?;
    Ok(locked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    fn runs_twice(what: impl std::fmt::Debug, step: Result<Step>) {
        let mut step = step.unwrap_or_else(|e| panic!("{what:?}: {e:#}"));
        for _ in 0..2 {
            step.run(&mut Probe::idle()).unwrap_or_else(|e| panic!("{what:?}: {e:#}"));
        }
    }

    /// Nothing is copied on a simulated GPU, but each step goes all the way: buffers, streams, events, training.
    #[test]
    fn every_step_runs_on_a_dry_device() {
        let Some(_dry) = dry(concat!(module_path!(), "::every_step_runs_on_a_dry_device")) else { return };
        let bench = Bench { device: Device::Cuda(0), platform: Platform::Dry, seed: 1 };
        for cell in copies::Copies::cross(copies::Direction::ALL, copies::Call::ALL, [4096, 16 << 20], Memory::ALL) {
            runs_twice(cell, copies::step(cell, &bench));
        }
        for cell in sending::Sending::cross([1 << 20, 16 << 20], [1, 3], sending::SENT) {
            runs_twice(cell, sending::step(cell, &bench));
        }
        for cell in epochs::Epochs::cross(epochs::Bound::SmallData, "mlp-1x3", 10, epochs::TRAINED) {
            runs_twice(cell, epochs::step(cell, &bench));
        }
        for cell in held::Held::cross(1 << 20, [1, 4], Memory::ALL) {
            runs_twice(cell, held::step(cell, &bench));
        }
        for cell in reads::Reads::cross(1 << 16, reads::Read::ALL) {
            runs_twice(cell, reads::step(cell, &bench));
        }
    }
}
