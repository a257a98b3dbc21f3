//! Distributed data parallel training: the buckets that gradients are gathered in. How large are they, and when do they appear?
//!
//! Guide 4 says that DDP takes a second model's size, at model load, because a bucket on each GPU gathers the gradients of the others.
//! Here PyTorch's DistributedDataParallel trains in one process (`experiments/ddp_buckets/step.py`), so that its bytes are counted exactly: at
//! each moment of the first three iterations, training with it is put against the same training without it. `gradient_as_bucket_view`
//! makes gradients views of the buckets, and so should save one copy of them (pytorch#41954 reports it for RoBERTa-base and a ResNet).
//!
//! Several processes are rehearsed: `vramlab rehearse --gpus 2 -- torchrun --nproc-per-node 2 train.py`.

mod accumulated;
mod moments;
mod peaks;
mod price;

use harness::lab::*;

number! { Cap "largest bucket in MiB (bucket_cap_mb)" }
levels! {
    Way as "ddp" "how gradients are reduced":
    Nothing as "none" "not at all: training without DDP" => "no DDP",
    Copies "gradients are copied into buckets and back" => "DDP with copied gradients",
    Views "gradients are views of buckets (gradient_as_bucket_view)" => "gradient_as_bucket_view",
}
levels! {
    ZeroGrad "what zero_grad leaves":
    Nothing as "none" "no gradients (set_to_none, PyTorch's default since 2.0)",
    Zeros "gradients of zeros, as in 2020",
}

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("ddp_buckets", "Gradient buckets of DistributedDataParallel")
        .question(
            "How much memory do DDP's gradient buckets take, when do they appear, and what do gradient_as_bucket_view and no_sync give back?",
        )
        .hypothesis(
            "Buckets hold each gradient once, so they take the gradients' size whatever their cap is, from the moment DDP is built. As \
             views, gradients move into the buckets in the backward pass and the extra copy is gone; until then the buckets are there and \
             gradients are not, so a peak at the end of the forward pass stays where it is. Micro-batches under no_sync add to gradients that \
             are there anyway, and send nothing.",
        )
        .grid(moments::grid())
        .grid(peaks::grid())
        .grid(price::grid())
        .grid(accumulated::grid())
        .grid(accumulated::price())
        .shows(Shown::new("`gradient_as_bucket_view=True`").at(ZeroGrad::ALL).at(Way::Views).memory(PEAK))
        .threat(
            "Memory is that of one process without communication: what NCCL takes for itself on a GPU (channels, some hundred MB outside PyTorch's \
             allocator) is not in these figures, and the time of a single process is that of copying and dividing alone. Two \
             processes share this machine's cores and talk through its memory; a network is slower.",
        )
        .threat(
            "Building DDP sends the parameters to all ranks in packed messages of up to 250 MiB, which takes a copy of them for that \
             moment. Counted cells leave it out (init_sync=False): it is gone before the buckets are allocated.",
        )
        .threat("Every parameter gets a gradient in every iteration; find_unused_parameters and communication hooks take more.")
}

/// A value is one copy of the gradients, or it is not.
fn one_copy<C: Cell>(rule: Rule<C>) -> Rule<C> {
    rule.holds(within(0.95..=1.10))
}
