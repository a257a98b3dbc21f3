//! Dropping tensors: what is given back to whom, when, and what a surviving reference keeps.
//!
//! Guide 2 says that `del` frees a tensor's GPU memory. It frees it for the next tensor: the allocator keeps what it has from the device
//! until `empty_cache`. And it frees nothing that somebody else still refers to: a clone of the handle, a view, a graph that saved it, an
//! optimizer.

mod device;
mod process;
mod step;
mod tensors;

use harness::lab::*;
use step::step;

const ALLOCATED: Metric = Metric::counted("allocated", "allocated memory", "B");
const RESERVED: Metric = Metric::counted("reserved", "reserved memory", "B");
const USED: Metric = Metric::counted("device_used", "memory in use on the device", "B").nondeterministic();
/// By how much each has fallen since the drop, over the bytes of what was dropped.
const FREED: Metric = Metric::counted("freed", "allocated memory returned, relative to the tensor", "1").ratio();
const UNRESERVED: Metric = Metric::counted("unreserved", "reserved memory returned, relative to the tensor", "1").ratio();
const RETURNED: Metric =
    Metric::counted("device_returned", "free by cudaMemGetInfo, relative to the tensor", "1").ratio().nondeterministic();
/// What the process has in memory above what it had before anything was made.
const RESIDENT: Metric = Metric::timed("resident_above", "resident memory above the start", "B");
const SURVIVOR_ERROR: Metric = Metric::compared("survivor_error", "error of what survives");

levels! {
    Watched "where memory is looked at":
    Tensors "the bytes that the allocator has given to tensors",
    Device "the bytes that the allocator has from the device, and what the device says",
    Process "the memory that the process has from the kernel",
}
levels! {
    Dropped "what is dropped":
    Tensor "one tensor",
    SmallTensors "tensors of 64 KiB, as many as make up the size",
    Model "a model with its gradients, and Adam with its state, after two training steps",
}
name! { Size "its size, or the model's name" }
levels! {
    Reference "what survives":
    Nothing as "none" "",
    Clone "another handle to the tensor, a second name for it",
    View "a view of one of its elements",
    Graph "a result whose graph saved it for the backward pass",
    Gradient "its gradient, as large as itself",
    Few "every 32nd of the tensors",
    Optimizer "the optimizer: only the model is dropped",
    Loss "the loss of a forward pass, kept with its graph",
    Gradients "the parameters' gradients",
    Row "a view of one row of one parameter",
}
levels! {
    Moment "when":
    Before "before the drop",
    Dropped "after it",
    EmptyCache "after empty_cache",
    MallocTrim "after the C library was told to give back what is unused (malloc_trim)",
}

cell! { Dropping { watched: Watched, dropped: Dropped, size: Size, reference: Reference, moment: Moment } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("free_tensors", "Dropping tensors")
        .question("Does dropping a tensor or a model free its memory, for whom, when, and what does a surviving reference keep?")
        .hypothesis(
            "The bytes of tensors fall by what is dropped, at once, if nobody else refers to it. What the allocator holds, and so what the \
             device shows, falls at empty_cache and not before, and only by segments that are empty. On the CPU the C library gives back \
             large blocks at once and keeps small ones.",
        )
        .grid(tensors::grid())
        .grid(device::grid())
        .grid(process::grid())
        .threat(
            "Before the drop the cache is emptied, so that the allocator holds what is alive and nothing else; in a training run it holds \
             more.",
        )
        .threat(
            "Rust drops at a known moment. In Python `del` takes one name away; a reference cycle or a traceback may keep the tensor until \
             the garbage collector comes.",
        )
        .threat("What the C library gives back depends on its version and on what stands at the end of its heap; the figures are glibc's.")
}
