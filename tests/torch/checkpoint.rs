//! Checkpointing keeps gradients, replays randomness and autocast, and really saves the bytes; each property is broken once on purpose.

use anyhow::anyhow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tch::{Device, Kind, Tensor};
use torch::{self, Checkpoint, autocast, checkpoint};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// The meter and the random state are the process's, so the tests of this file take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    torch::use_cpu_meter(true);
    tch::manual_seed(7);
    turn
}

fn leaf(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, FLOAT).set_requires_grad(true)
}

fn same(a: &Tensor, b: &Tensor) -> bool {
    a.defined() && b.defined() && a.equal(b)
}

/// Runs `body` plain and checkpointed from one random state on fresh leaves, and gives the gradients of both.
fn both_ways(leaves: usize, body: fn(&[Tensor]) -> Tensor, options: Checkpoint) -> (Vec<Tensor>, Vec<Tensor>) {
    let run = |checkpointed: bool| {
        tch::manual_seed(3);
        let leaves: Vec<Tensor> = (0..leaves).map(|_| leaf(&[8, 8])).collect();
        let output = if checkpointed {
            let inputs: Vec<&Tensor> = leaves.iter().collect();
            options.run(&inputs, move |x| Ok(vec![body(x)])).unwrap().remove(0)
        } else {
            body(&leaves)
        };
        // Other numbers are drawn between forward and backward, as by later layers.
        let _ = Tensor::rand([100], FLOAT);
        output.square().sum(Kind::Float).backward();
        leaves.iter().map(Tensor::grad).collect::<Vec<_>>()
    };
    (run(false), run(true))
}

#[test]
fn gradients_are_bit_identical() {
    let _turn = alone();
    let (plain, checkpointed) = both_ways(2, |x| x[0].matmul(&x[1]).gelu("none").tanh(), Checkpoint::default());
    assert!(plain.iter().zip(&checkpointed).all(|(a, b)| same(a, b)));
}

#[test]
fn dropout_replays_and_without_preserving_it_would_not() {
    let _turn = alone();
    let body = |x: &[Tensor]| x[0].matmul(&x[1]).dropout(0.5, true);
    let (plain, checkpointed) = both_ways(2, body, Checkpoint::default());
    assert!(same(&plain[0], &checkpointed[0]) && same(&plain[1], &checkpointed[1]));
    let (plain, checkpointed) = both_ways(2, body, Checkpoint { preserve_random: false });
    assert!(!same(&plain[0], &checkpointed[0]), "the test would not see a lost random state");
}

#[test]
fn the_stream_of_random_numbers_goes_on_as_if_nothing_had_been_replayed() {
    let _turn = alone();
    let next_after = |checkpointed: bool| {
        tch::manual_seed(5);
        let x = leaf(&[4, 4]);
        let body = |x: &[Tensor]| Ok(vec![x[0].dropout(0.5, true)]);
        let y = if checkpointed { checkpoint(&[&x], body).unwrap().remove(0) } else { x.dropout(0.5, true) };
        y.sum(Kind::Float).backward();
        Tensor::rand([4], FLOAT)
    };
    assert!(same(&next_after(false), &next_after(true)));
}

/// The kinds that autocast gave the segment are recorded at both runs; the backward pass runs outside the region.
#[test]
fn autocast_is_replayed() {
    let _turn = alone();
    let (w, x) = (leaf(&[8, 8]), leaf(&[8, 8]));
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let (weight, seen) = (w.shallow_clone(), kinds.clone());
    let output = autocast(Device::Cpu, Kind::BFloat16, || {
        checkpoint(&[&x], move |x| {
            let y = x[0].matmul(&weight);
            seen.lock().map_err(|_| anyhow!("poisoned"))?.push(y.kind());
            Ok(vec![y])
        })
        .unwrap()
        .remove(0)
    })
    .unwrap();
    output.to_kind(Kind::Float).sum(Kind::Float).backward();
    assert_eq!(*kinds.lock().unwrap(), [Kind::BFloat16, Kind::BFloat16]);
    let expected = autocast(Device::Cpu, Kind::BFloat16, || {
        let (w, x) = (w.detach().set_requires_grad(true), x.detach().set_requires_grad(true));
        x.matmul(&w).to_kind(Kind::Float).sum(Kind::Float).backward();
        w.grad()
    })
    .unwrap();
    assert!(same(&w.grad(), &expected));
}

/// The cast of a weight that the segment's forward makes without a gradient must not be found by a later use of that weight: libtorch
/// has kept such casts in autocast's cache in the past.
#[test]
fn a_weight_used_inside_and_outside_a_segment_under_autocast_keeps_both_gradients() {
    let _turn = alone();
    let gradient = |checkpointed: bool| {
        tch::manual_seed(11);
        let (w, x) = (leaf(&[8, 8]), leaf(&[8, 8]));
        let weight = w.shallow_clone();
        autocast(Device::Cpu, Kind::BFloat16, || {
            let body = move |x: &[Tensor]| Ok(vec![x[0].matmul(&weight)]);
            let y = if checkpointed { checkpoint(&[&x], body).unwrap().remove(0) } else { x.matmul(&w) };
            let z = y.matmul(&w);
            z.to_kind(Kind::Float).sum(Kind::Float).backward();
        })
        .unwrap();
        w.grad()
    };
    let (plain, checkpointed) = (gradient(false), gradient(true));
    let error = (&plain - &checkpointed).norm().double_value(&[]) / plain.norm().double_value(&[]);
    assert!(error < 1e-2, "relative error {error}: one of the two gradients was lost");
}

#[test]
fn several_inputs_and_outputs_of_any_kind() {
    let _turn = alone();
    let (a, b) = (leaf(&[4, 4]), leaf(&[4, 4]));
    let index = Tensor::from_slice(&[2i64, 0]);
    let body = |x: &[Tensor]| Ok(vec![&x[0] * &x[1], x[0].index_select(0, &x[2]), x[2].shallow_clone(), x[1].sin()]);
    let out = checkpoint(&[&a, &b, &index], body).unwrap();
    assert_eq!(out.len(), 4);
    assert!(out[0].requires_grad() && !out[2].requires_grad(), "an integer output has no gradient");
    assert!(same(&out[2], &index));
    // out[3] is left unused, so its gradient never arrives.
    (out[0].sum(Kind::Float) + out[1].sum(Kind::Float) * 3.0).backward();
    let expected = b.detach();
    for row in [2, 0] {
        let _ = expected.narrow(0, row, 1).g_add_scalar_(3.0);
    }
    assert!(same(&a.grad(), &expected) && same(&b.grad(), &a.detach()));
}

/// The spike's defect: where no input needs a gradient, the parameters inside lost theirs in silence.
#[test]
fn inputs_without_gradient_still_give_parameters_theirs() {
    let _turn = alone();
    let (w, x) = (leaf(&[4, 4]), Tensor::randn([4, 4], FLOAT));
    let weight = w.shallow_clone();
    let y = checkpoint(&[&x], move |x| Ok(vec![x[0].matmul(&weight)])).unwrap().remove(0);
    y.sum(Kind::Float).backward();
    assert!(same(&w.grad(), &x.transpose(0, 1).matmul(&Tensor::ones([4, 4], FLOAT))));
    assert!(!x.grad().defined());
}

#[test]
fn segments_nest() {
    let _turn = alone();
    let body = |x: &[Tensor]| {
        let inner = checkpoint(&[&x[0], &x[1]], |x| Ok(vec![x[0].matmul(&x[1]).tanh()])).unwrap().remove(0);
        inner.dropout(0.5, true).matmul(&x[0])
    };
    let (plain, checkpointed) = both_ways(2, body, Checkpoint::default());
    assert!(plain.iter().zip(&checkpointed).all(|(a, b)| same(a, b)));
}

#[test]
fn without_gradients_the_segment_just_runs_once() {
    let _turn = alone();
    let runs = Arc::new(AtomicUsize::new(0));
    let (counter, x) = (runs.clone(), leaf(&[4]));
    let y = tch::no_grad(|| {
        checkpoint(&[&x], move |x| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(vec![&x[0] * 2.0])
        })
    });
    assert!(!y.unwrap()[0].requires_grad());
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn errors_and_panics_of_the_segment_reach_the_caller_from_both_runs() {
    let _turn = alone();
    let x = leaf(&[4]);
    let error = checkpoint(&[&x], |_| Err(anyhow!("no such block"))).unwrap_err();
    assert!(error.0.contains("no such block"), "{error}");
    let error = checkpoint(&[&x], |x| Ok(vec![x[0].matmul(&Tensor::ones([3, 3], FLOAT))])).unwrap_err();
    assert!(error.0.contains("size mismatch") || error.0.contains("shape"), "{error}");
    let runs = AtomicUsize::new(0);
    let y = checkpoint(&[&x], move |x| {
        anyhow::ensure!(runs.fetch_add(1, Ordering::SeqCst) == 0, "the second run fails");
        Ok(vec![x[0].exp()])
    });
    let error = y.unwrap()[0].sum(Kind::Float).f_backward().unwrap_err().to_string();
    assert!(error.contains("the second run fails"), "{error}");
}

/// As PyTorch does: the second run would compute with other numbers.
#[test]
fn an_input_that_was_changed_between_the_runs_is_an_error() {
    let _turn = alone();
    let x = leaf(&[4]);
    let mut doubled = &x * 2.0;
    let y = checkpoint(&[&doubled], |x| Ok(vec![x[0].sin()])).unwrap().remove(0);
    let _ = doubled.g_mul_scalar_(3.0);
    let error = y.sum(Kind::Float).f_backward().unwrap_err().to_string();
    assert!(error.contains("modified by an inplace operation"), "{error}");
}

/// It would add to the gradients of the parameters inside, and give none for them.
#[test]
fn a_backward_pass_for_some_gradients_only_is_refused() {
    let _turn = alone();
    let (w, x) = (leaf(&[4, 4]), leaf(&[4, 4]));
    let weight = w.shallow_clone();
    let y = checkpoint(&[&x], move |x| Ok(vec![x[0].matmul(&weight)])).unwrap().remove(0);
    let error = Tensor::f_run_backward(&[y.sum(Kind::Float)], &[&x, &w], false, false).unwrap_err().to_string();
    assert!(error.contains("for the gradients of some tensors only"), "{error}");
    assert!(!w.grad().defined() && !x.grad().defined());
    // A whole pass afterwards, in the same thread, is none.
    let y = checkpoint(&[&x], |x| Ok(vec![x[0].sin()])).unwrap().remove(0);
    y.sum(Kind::Float).backward();
    assert!(same(&x.grad(), &x.detach().cos()));
}

/// As with PyTorch's use_reentrant=True.
#[test]
fn outputs_say_that_they_need_a_gradient_also_where_none_comes() {
    let _turn = alone();
    let x = leaf(&[4]);
    let out = checkpoint(&[&x], |x| Ok(vec![x[0].sin(), x[0].sin().detach()])).unwrap();
    assert!(out[0].requires_grad() && out[1].requires_grad());
    (out[0].sum(Kind::Float) + out[1].sum(Kind::Float)).backward();
    assert!(same(&x.grad(), &x.detach().cos()));
}

/// What the closure owns goes when the graph goes, whether or not a backward pass was run.
#[test]
fn an_output_dropped_early_frees_the_segment() {
    let _turn = alone();
    let owned = Arc::new(());
    for backward in [false, true] {
        let (held, x) = (owned.clone(), leaf(&[4]));
        let y = checkpoint(&[&x], move |x| {
            let _ = &held;
            Ok(vec![x[0].exp()])
        });
        let y = y.unwrap().remove(0);
        assert_eq!(Arc::strong_count(&owned), 2);
        if backward {
            y.sum(Kind::Float).backward();
        }
        drop(y);
        assert_eq!(Arc::strong_count(&owned), 1);
    }
}

/// Eight blocks of tanh on 1 MiB: the forward pass keeps eight results plain, and a segment's input checkpointed.
#[test]
fn the_bytes_are_really_saved() {
    let _turn = alone();
    const MIB: i64 = 1 << 20;
    let kept = |segments: usize| {
        let x = leaf(&[512, 512]);
        let before = torch::cpu_memory().live;
        let mut y = x.shallow_clone();
        if segments == 0 {
            for _ in 0..8 {
                y = y.tanh();
            }
        }
        for _ in 0..segments {
            let blocks = 8 / segments;
            let body = move |x: &[Tensor]| Ok(vec![(0..blocks).fold(x[0].shallow_clone(), |y, _| y.tanh())]);
            y = checkpoint(&[&y], body).unwrap().remove(0);
        }
        let bytes = torch::cpu_memory().live - before;
        y.sum(Kind::Float).backward();
        drop(y);
        assert_eq!(torch::cpu_memory().live - before, MIB, "only the gradient is left");
        bytes
    };
    let (plain, one, four) = (kept(0), kept(1), kept(4));
    assert_eq!(plain, 8 * MIB);
    // One saved state of the CPU's generator for each segment, as documented.
    assert!((MIB..MIB + 8192).contains(&one), "{one}");
    assert!((4 * MIB..4 * MIB + 4 * 8192).contains(&four), "{four}");
}
