//! Backends and types: copy, matrix product, convolution and attention on the device that is there, by type; and when moving to a GPU pays.
//!
//! Guide 2 moves model and data to the GPU to speed computation up, and falls back to the CPU without one; so does every program here,
//! whose device is the best that is there. Guide 3 says to compare backends. What is fast shows against what its maker specifies:
//! a rate far below the specified one is the size's fault, or the type's, more often than the device's.

mod moving;
mod types;

use harness::lab::*;

number! { Size "MiB copied as fp32, side of the matrices, images, or tokens of 4 sequences" }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("backends", "Types and backends")
        .question(
            "What does this device make of copying, products, convolution and attention in each type, and from which size on does moving to \
             a GPU pay?",
        )
        .hypothesis(
            "Copies reach most of the specified bandwidth, large products most of the specified rate; attention and convolution less. \
             Half-precision types pay where there are units for them. A GPU pays from a size on, and later where the data has to travel \
             each time.",
        )
        .grid(types::grid())
        .grid(moving::grid())
        .threat("Rates are taken with a clock of their own around each operation, which waits for the device each time; time per step is not.")
        .threat(
            "The specified rate of a type is that of dense tensor cores in the maker's data sheet, for fp32 that without them: convolutions \
             may use TF32 by PyTorch's default, so they have no share in fp32.",
        )
        .threat("No maker specifies a CPU's rate in a form that a program could look up; there the rates are shown without a share.")
}
