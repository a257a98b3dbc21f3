//! Learning-rate warm-up: does a large batch under mixed precision need it?
//!
//! Guide 3 recommends warm-up for the combination of a large batch and mixed precision. What it should prevent is divergence, so a tiny
//! task that really converges is trained from many starts, at rates from those at which every start learns to those at which none
//! does, and the runs that learn nothing are counted. A run starts from its own parameters and sees the samples in its own order.
//!
//! All starts are trained at once, as one batched product for each layer. They share no number, so that one which overflows leaves the others
//! alone.

mod divergence;
mod networks;
mod same_task;
mod training;

use harness::lab::*;
use std::ops::Range;

levels! { Algorithm as "optimizer" "optimizer": Momentum "SGD with momentum 0.9", Adam "" }
number! { Batch "samples of a step, of 1024" }

/// Values decide everything here, and a simulated GPU has none.
const NOT_DRY: &[Platform] = &[Platform::Cpu, Platform::Gpu];

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("lr_warmup", "Learning-rate warm-up")
        .question(
            "Does warm-up keep a large batch under mixed precision from diverging, and is it the batch or the precision that needs it?",
        )
        .hypothesis(
            "A run diverges where the rate is too large for the curvature at its start, and a ramp lets it move to where curvature is less. \
             So warm-up should help near the largest rate that works, with any precision and any batch, and more with Adam, whose first \
             steps all have full length.",
        )
        .grid(divergence::grid())
        .grid(same_task::grid())
        .threat(
            "The task is tiny (20 features, 10 classes, three layers, 48 steps): it shows whether warm-up moves the largest rate that \
             works, not how a large model behaves over a long run.",
        )
        .threat("The ramp is linear, and the rate is constant after it, without decay.")
        .threat(
            "A run counts as diverged if its loss is not finite or stays above 90 % of what it was at the start; a run that would recover \
             later counts as diverged, too.",
        )
}
