//! The tests that experiments have in their own files, as one program. An experiment's line in `experiments/Cargo.toml` says `test = false`, else its
//! tests are a program of their own.
#![allow(dead_code, reason = "an experiment's main, and what it alone calls")]

macro_rules! experiments {
    ($($name:ident $path:literal)*) => { $(#[path = $path] mod $name;)* };
}

experiments! {
    accumulation "../../experiments/accumulation/main.rs"
    adapters "../../experiments/adapters/main.rs"
    agreement "../../experiments/agreement/main.rs"
    allocator "../../experiments/allocator/main.rs"
    amp "../../experiments/amp/main.rs"
    as_written "../../experiments/as_written/main.rs"
    attention "../../experiments/attention/main.rs"
    backends "../../experiments/backends/main.rs"
    batch_loading "../../experiments/batch_loading.rs"
    bf16_weights "../../experiments/bf16_weights/main.rs"
    checkpointing "../../experiments/checkpointing/main.rs"
    combined "../../experiments/combined/main.rs"
    convolutions "../../experiments/convolutions/main.rs"
    ddp_buckets "../../experiments/ddp_buckets/main.rs"
    empty_cache "../../experiments/empty_cache/main.rs"
    free_tensors "../../experiments/free_tensors/main.rs"
    inplace "../../experiments/inplace/main.rs"
    leaks "../../experiments/leaks.rs"
    load_checkpoint "../../experiments/load_checkpoint/main.rs"
    loss "../../experiments/loss/main.rs"
    lr_warmup "../../experiments/lr_warmup/main.rs"
    memory_model "../../experiments/memory_model/main.rs"
    no_grad "../../experiments/no_grad.rs"
    num_workers "../../experiments/num_workers/main.rs"
    offloading "../../experiments/offloading/main.rs"
    optimizer_state "../../experiments/optimizer_state/main.rs"
    packing "../../experiments/packing/main.rs"
    pin_memory "../../experiments/pin_memory/main.rs"
    profiling "../../experiments/profiling/main.rs"
    published "../../experiments/published/main.rs"
    same_level "../../experiments/same_level.rs"
    step_timeline "../../experiments/step_timeline/main.rs"
    transfer_learning "../../experiments/transfer_learning/main.rs"
}

/// One that is left out here would have its tests run by nobody.
#[test]
fn every_experiment_has_its_tests_here() {
    let programs = include_str!("../../experiments/Cargo.toml").lines().filter(|line| line.contains("test = false"));
    let paths: Vec<&str> = programs.filter_map(|line| line.split('"').nth(3)).collect();
    let missing: Vec<&&str> =
        paths.iter().filter(|path| !include_str!("units.rs").contains(&format!("/experiments/{path}\""))).collect();
    assert!(paths.len() > 30 && missing.is_empty(), "tests/experiments/units.rs has no line for {missing:?}");
}
