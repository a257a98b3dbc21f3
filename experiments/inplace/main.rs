//! In-place operations: do they cost memory, as guide 1 says, and is `relu(x).clone()` the better form?
//!
//! The guide fears in-place operations for what autograd may need; so the second grid writes in place to what the backward pass needs, once
//! so that autograd sees it and once behind its back, through `.data`.

mod autograd;
mod memory;

use harness::lab::*;

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("inplace", "In-place operations")
        .question("Do in-place operations use more memory, and is relu(x).clone() the better form?")
        .hypothesis(
            "The reverse: an in-place operation saves the result's memory, a clone costs one more tensor, and inside a network one more \
             for each layer, because the backward pass keeps both.",
        )
        .grid(memory::grid())
        .grid(autograd::grid())
        .shows(Shown::new("`relu_` in place").at(memory::Form::InPlace).memory(PEAK).time(TIME))
        .shows(Shown::new("`relu(x).clone()`").at(memory::Form::Clone).memory(PEAK).time(TIME))
        .threat(
            "In Python a name keeps its tensor until it is bound anew; here the intermediate result lives as long as the operation that \
             reads it, as inside an expression or a module.",
        )
        .threat("Compilers fuse pointwise chains and make the question moot; here every operation runs by itself.")
}
