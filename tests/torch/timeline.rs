//! A timeline knows each block by what it is for, whatever the step does with its tensors.

use anyhow::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::nn::{Linear, Module, Optimizer, OptimizerConfig, Sgd, VarStore};
use tch::{Device, Kind, Tensor, nn};
use torch::{Backend, Category, Cpu, Mark, Phase, Recorder, Stage, Timeline};

/// Recording belongs to the process, so the tests of this file take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const SAMPLES: i64 = 64;
const WIDTH: i64 = 128;
/// Bytes of one tensor of the layers' width, of a layer's parameters, and of the classes' scores.
const HIDDEN: i64 = 4 * SAMPLES * WIDTH;
const LAYER: i64 = 4 * (WIDTH * WIDTH + WIDTH);

/// Two linear layers with a ReLU in between, whose mean is the loss.
struct Net {
    store: VarStore,
    layers: [Linear; 2],
    optimizer: Optimizer,
    inputs: Tensor,
}

impl Net {
    fn load(momentum: f64) -> Net {
        let store = VarStore::new(Device::Cpu);
        let layers = ["first", "second"].map(|name| nn::linear(store.root() / name, WIDTH, WIDTH, Default::default()));
        let optimizer = Sgd { momentum, ..Sgd::default() }.build(&store, 1e-2).unwrap();
        Net { store, layers, optimizer, inputs: Tensor::randn([SAMPLES, WIDTH], (Kind::Float, Device::Cpu)) }
    }

    fn loss(&self) -> Tensor {
        self.layers[1].forward(&self.layers[0].forward(&self.inputs).relu()).mean(Kind::Float)
    }
}

/// Records iterations; what `keep` gives back of a loss lives on.
fn record(momentum: f64, iterations: u32, keep: fn(Tensor) -> Option<Tensor>) -> Timeline {
    let cpu = Cpu::new(None);
    let mut recorder = Recorder::begin(&cpu).unwrap();
    let mut net = Net::load(momentum);
    let mut kept = Vec::new();
    recorder.ended(Mark::LOADED, &net.store, &[&net.inputs]).unwrap();
    for iteration in 1..=iterations {
        let mut ended = |phase, net: &Net| recorder.ended(Mark { iteration, phase, micro_batch: 0 }, &net.store, &[&net.inputs]);
        net.optimizer.zero_grad();
        let loss = net.loss();
        ended(Phase::Forward, &net).unwrap();
        loss.backward();
        kept.extend(keep(loss));
        ended(Phase::Backward, &net).unwrap();
        net.optimizer.step();
        ended(Phase::Optimizer, &net).unwrap();
    }
    recorder.end()
}

fn stage(timeline: &Timeline, iteration: u32, phase: Phase) -> Stage {
    timeline.stages().into_iter().find(|s| (s.iteration, s.phase) == (iteration, phase)).unwrap()
}

#[test]
fn a_step_can_be_worked_out_by_hand() {
    let _turn = alone();
    let timeline = record(0.9, 2, |_| None);
    let load = stage(&timeline, 0, Phase::Load).at_end;
    assert_eq!((load.parameters, load.data, load.total()), (2 * LAYER, HIDDEN, 2 * LAYER + HIDDEN));
    // ReLU's result, which it and the second layer need; the second layer's result is gone but for the loss.
    let forward = stage(&timeline, 1, Phase::Forward).at_end;
    assert_eq!((forward.activations, forward.gradients, forward.optimizer_state), (HIDDEN + 4, 0, 0));
    let backward = stage(&timeline, 1, Phase::Backward).at_end;
    assert_eq!((backward.activations, backward.gradients, backward.temporaries), (0, 2 * LAYER, 0));
    let step = stage(&timeline, 1, Phase::Optimizer).at_end;
    assert_eq!((step.optimizer_state, step.gradients), (2 * LAYER, 2 * LAYER));
    // The gradients of the first iteration go before the second begins, so its forward pass has its peak where it begins.
    let second = stage(&timeline, 2, Phase::Forward);
    assert_eq!((second.at_peak, second.at_end.gradients), (step, 0));
    let blocks = |category| timeline.blocks.iter().filter(move |block| block.category == category);
    let named = |category| blocks(category).filter_map(|block| timeline.parameter(block));
    let mut gradients: Vec<&str> = named(Category::Gradients).collect();
    gradients.sort_unstable();
    assert_eq!(gradients.iter().filter(|name| **name == "first.weight").count(), 2, "one in each iteration: {gradients:?}");
    assert_eq!(named(Category::Parameters).count(), 4);
}

/// What lives after each event is the sum of what was made and not freed, and nothing is lost on the way to few points.
#[test]
fn moments_stages_and_outlines_agree() {
    let _turn = alone();
    let timeline = record(0.9, 2, |_| None);
    let moments: Vec<i64> = timeline.moments().map(|moment| moment.live.total()).collect();
    assert_eq!(moments.len(), timeline.events.len());
    for (event, total) in moments.iter().enumerate() {
        assert_eq!(timeline.living_after(event).map(|made| made.bytes).sum::<i64>(), *total);
    }
    let peak = timeline.peak().unwrap();
    assert_eq!(Some(&peak.live.total()), moments.iter().max());
    assert_eq!(moments.iter().position(|total| *total == peak.live.total()), Some(peak.event), "the first of equal ones");
    for stage in timeline.stages() {
        let events = timeline.events_of(stage.iteration, stage.phase).unwrap();
        for parts in [1, 3, 1000] {
            let outline = timeline.outline(events.clone(), parts);
            assert!(outline.len() <= parts + 2 && outline.len() >= 3);
            assert_eq!(outline.last(), Some(&stage.at_end));
            let highest = outline.iter().max_by_key(|live| live.total()).unwrap();
            assert_eq!(highest.total(), stage.peak, "{stage:?}");
        }
    }
    let at = timeline.events[peak.event];
    let stages = timeline.stages();
    let highest = stages.iter().map(|stage| stage.peak).max().unwrap();
    assert_eq!(stages.iter().find(|s| s.peak == highest).map(|s| (s.iteration, s.phase)), Some((at.step + 1, at.phase)));
}

#[test]
fn what_outlives_an_iteration_is_no_activation() {
    let _turn = alone();
    let timeline = record(0.0, 3, |loss| Some(loss.detach()));
    for (iteration, kept) in [(1, 0), (2, 1), (3, 2)] {
        let forward = stage(&timeline, iteration, Phase::Forward).at_end;
        // A loss that lives on is still an activation of the last iteration, of which nobody knows yet.
        let own = if iteration == 3 { 4 } else { 0 };
        assert_eq!((forward.activations, forward.temporaries), (HIDDEN + own, 4 * kept + 4 - own), "iteration {iteration}");
    }
    let held =
        timeline.living_after(timeline.events.len() - 1).filter(|block| timeline.events[block.made()].phase == Phase::Forward);
    assert_eq!(held.count(), 3);
}

#[test]
fn blocks_carry_the_operation_that_made_them() {
    let _turn = alone();
    let timeline = record(0.0, 1, |_| None);
    let end = timeline.events_of(1, Phase::Forward).unwrap().end - 1;
    let kept: Vec<_> = timeline.living_after(end).filter(|m| m.category == Category::Activations).collect();
    let mut operations: Vec<&str> = kept.iter().filter_map(|block| timeline.operation(block)).collect();
    operations.sort_unstable();
    assert_eq!(operations, ["aten::mean", "aten::relu"]);
}

#[test]
fn the_peak_is_the_meters_and_other_devices_are_not_heard() -> Result<()> {
    let _turn = alone();
    let cpu = Cpu::new(None);
    cpu.reset_peaks()?;
    let base = cpu.memory()?.requested;
    let plain = record(0.9, 2, |_| None);
    assert_eq!(cpu.memory()?.requested_peak - base, plain.peak().unwrap().live.total());
    // Other devices' allocators are not heard, and what a recording did not see begin it does not see end.
    let before = Tensor::zeros([1024], (Kind::Float, Device::Cpu));
    let recorder = Recorder::begin(&cpu)?;
    drop(before);
    assert_eq!(recorder.end(), Timeline::default());
    assert!(torch::allocations::record(Device::Mps).is_err());
    let error = torch::allocations::record(Device::Cuda(0)).unwrap_err();
    assert!(error.to_string().contains("allocator is not in this process"), "{error}");
    Ok(())
}
