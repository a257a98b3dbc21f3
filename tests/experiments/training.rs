//! A training step computes the same whatever saves its memory, and every byte of it is accounted for.

use harness::measure::{distance, is_out_of_memory};
use models::training::{CheckpointPolicy, Configuration, OptimizerKind, Precision, Trainer};
use models::{Attention, Settings};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::{Device, Reduction, Tensor};
use torch::{self, Backend, Cpu, Mark, Phase, Recorder, Stage};

/// The meter, the limit and the random state are the process's, so the tests of this file take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    torch::use_cpu_meter(true);
    torch::limit_cpu_memory(None);
    tch::manual_seed(7);
    turn
}

fn mlp(batch: i64) -> Configuration {
    Configuration::new("mlp-4x64", batch)
}

/// Bytes by phase of some iterations.
fn account(configuration: &Configuration, iterations: u32) -> Vec<Stage> {
    let cpu = Cpu::new(None);
    let mut recorder = Recorder::begin(&cpu).unwrap();
    let mut trainer = Trainer::load(configuration, cpu.device()).unwrap();
    trainer.record(Mark::LOADED, &mut recorder).unwrap();
    for _ in 0..iterations {
        trainer.iterate(&mut |mark, trainer| trainer.record(mark, &mut recorder)).unwrap();
    }
    recorder.end().stages()
}

/// Gradients of the first iteration, from one seed for the parameters and one for what dropout drops.
fn gradients(configuration: &Configuration) -> Vec<Tensor> {
    tch::manual_seed(3);
    let mut trainer = Trainer::load(configuration, Device::Cpu).unwrap();
    tch::manual_seed(4);
    trainer.iterate(&mut |_, _| Ok(())).unwrap();
    trainer.model().gradients()
}

/// 4 blocks of linear 64 x 64 and GELU, a classifier of 10, a batch of 128, fp32: each figure from the layers alone.
#[test]
fn an_mlp_can_be_worked_out_by_hand() {
    let _turn = alone();
    let (n, width, classes) = (128, 64, 10);
    let parameters = 4 * (4 * (width * width + width) + width * classes + classes);
    // Inputs are fp32, targets int64.
    let data = 4 * n * width + 8 * n;
    // A block keeps its linear layer's result for GELU's backward, and GELU's result for the next layer's. The loss keeps the log-softmax,
    // the sum of its weights, and itself.
    let activations = 4 * (2 * 4 * n * width) + 4 * n * classes + 4 + 4;
    let stages = account(&Configuration { optimizer: OptimizerKind::Adam, ..mlp(n) }, 2);
    let of = |iteration, phase| stages.iter().find(|s| s.iteration == iteration && s.phase == phase).unwrap();
    let load = of(0, Phase::Load);
    assert_eq!((load.live, load.at_end.parameters, load.at_end.data), (parameters + data, parameters, data));
    for iteration in [1, 2] {
        let state = if iteration == 1 { 0 } else { 2 * parameters };
        let (forward, backward, step) =
            (of(iteration, Phase::Forward), of(iteration, Phase::Backward), of(iteration, Phase::Optimizer));
        assert_eq!(forward.at_end.activations, activations);
        assert_eq!(forward.live, parameters + data + state + activations);
        assert_eq!(backward.live, 2 * parameters + data + state);
        assert_eq!(step.live, 4 * parameters + data);
        assert_eq!(step.at_end.optimizer_state, 2 * parameters);
        // All activations, and the gradients of the loss's inputs, before the first of them is freed.
        assert!(backward.peak >= forward.live && backward.peak <= forward.live + 3 * 4 * n * width, "{backward:?}");
    }
}

#[test]
fn categories_add_up_to_what_lives_in_every_configuration() {
    let _turn = alone();
    let explicit = Settings { sequence: Some(16), attention: Attention::Explicit, dropout: Some(0.1), ..Settings::default() };
    let gpt = Configuration { settings: explicit, ..Configuration::new("gpt-3x32", 4) };
    let resnet =
        Configuration { settings: Settings { image: Some(32), ..Settings::default() }, ..Configuration::new("resnet18", 4) };
    for plain in [mlp(32), gpt, resnet] {
        for (precision, checkpoint, accumulate) in [
            (Precision::Fp32, CheckpointPolicy::None, 1),
            (Precision::AmpBf16, CheckpointPolicy::Sqrt, 2),
            (Precision::AmpFp16, CheckpointPolicy::EveryBlock, 4),
        ] {
            let configuration =
                Configuration { precision, checkpoint, accumulate, optimizer: OptimizerKind::AdamW, ..plain.clone() };
            let stages = account(&configuration, 2);
            let phases: Vec<(u32, Phase)> = stages.iter().map(|s| (s.iteration, s.phase)).collect();
            let iteration = |n| [(n, Phase::Forward), (n, Phase::Backward), (n, Phase::Optimizer)];
            assert_eq!(phases, [&[(0, Phase::Load)][..], &iteration(1), &iteration(2)].concat(), "{configuration:?}");
            for stage in &stages {
                assert_eq!(stage.at_end.total(), stage.live, "{configuration:?}: {stage:?}");
                assert_eq!(stage.at_peak.total(), stage.peak, "{configuration:?}: {stage:?}");
                assert!(stage.peak >= stage.live, "{configuration:?}: {stage:?}");
                let parts = stage.at_end.named().into_iter().chain(stage.at_peak.named());
                assert!(parts.into_iter().all(|(_, bytes)| bytes >= 0), "{configuration:?}: {stage:?}");
                // The gradient scaler's scale and its count of steps.
                let scaler = if configuration.precision == Precision::AmpFp16 { 8 } else { 0 };
                assert_eq!(stage.at_end.temporaries, scaler, "{configuration:?}: {stage:?}");
            }
        }
    }
}

/// The allocator's events and the meter are two sources of the same figures.
#[test]
fn events_tell_what_the_meter_tells() {
    let _turn = alone();
    let gpt =
        Configuration { settings: Settings { dropout: Some(0.1), ..Settings::default() }, ..Configuration::new("gpt-3x32", 4) };
    for plain in [mlp(64), gpt] {
        for (precision, checkpoint, accumulate) in
            [(Precision::Fp32, CheckpointPolicy::None, 1), (Precision::AmpFp16, CheckpointPolicy::Sqrt, 2)]
        {
            let configuration =
                Configuration { precision, checkpoint, accumulate, optimizer: OptimizerKind::Adam, ..plain.clone() };
            let cpu = Cpu::new(None);
            let base = cpu.memory().unwrap().requested;
            // Bytes at the end and at the peak of each phase of each micro-batch, by the meter.
            let mut metered: Vec<(u32, Phase, i64, i64)> = Vec::new();
            let mut meter = |mark: Mark| {
                let memory = cpu.memory().unwrap();
                metered.push((mark.iteration, mark.phase, memory.requested - base, memory.requested_peak - base));
                cpu.reset_peaks().unwrap();
            };
            cpu.reset_peaks().unwrap();
            let mut recorder = Recorder::begin(&cpu).unwrap();
            let mut trainer = Trainer::load(&configuration, cpu.device()).unwrap();
            trainer.record(Mark::LOADED, &mut recorder).unwrap();
            meter(Mark::LOADED);
            for _ in 0..2 {
                trainer
                    .iterate(&mut |mark, trainer| {
                        meter(mark);
                        trainer.record(mark, &mut recorder)
                    })
                    .unwrap();
            }
            let timeline = recorder.end();
            let stages = timeline.stages();
            assert_eq!(metered.len(), timeline.marks.len());
            for stage in &stages {
                let same = |m: &&(u32, Phase, i64, i64)| (m.0, m.1) == (stage.iteration, stage.phase);
                let (last, peak) = (metered.iter().rfind(same).unwrap(), metered.iter().filter(same).map(|m| m.3).max());
                assert_eq!((stage.live, Some(stage.peak)), (last.2, peak), "{configuration:?}: {stage:?}");
                assert!(stage.at_peak.named().iter().all(|(_, bytes)| *bytes >= 0), "{configuration:?}: {stage:?}");
            }
            let peak = timeline.peak().unwrap();
            assert_eq!(Some(peak.live.total()), metered.iter().map(|m| m.3).max());
            let held: i64 = timeline.living_after(peak.event).map(|made| made.bytes).sum();
            assert_eq!(held, peak.live.total());
        }
    }
}

#[test]
fn optimizers_keep_the_state_that_they_are_known_for() {
    let _turn = alone();
    for (optimizer, name) in OptimizerKind::ALL {
        let (optimizer, configuration) = (*optimizer, Configuration { optimizer: *optimizer, ..mlp(8) });
        let stages = account(&configuration, 3);
        let mut trainer = Trainer::load(&configuration, Device::Cpu).unwrap();
        trainer.iterate(&mut |_, _| Ok(())).unwrap();
        let told = trainer.optimizer().state_bytes(Device::Cpu).unwrap();
        // Foreach and fused count each parameter's steps in a float.
        let counters = if name.contains('-') { 4 * trainer.optimizer().parameters().count() as i64 } else { 0 };
        for step in stages.iter().filter(|s| s.phase == Phase::Optimizer) {
            let moments = optimizer.state_numbers() as i64 * step.at_end.parameters;
            assert_eq!((step.at_end.optimizer_state, told), (moments + counters, moments + counters), "{name}: {step:?}");
        }
    }
}

#[test]
fn what_saves_memory_gives_the_same_gradients() {
    let _turn = alone();
    let settings = |dropout| Settings { sequence: Some(12), dropout: Some(dropout), ..Settings::default() };
    let gpt = |dropout| Configuration { settings: settings(dropout), ..Configuration::new("gpt-5x64", 8) };
    // Dropout draws other numbers for other micro-batches; recomputation must draw the same.
    let dropped = gradients(&gpt(0.2));
    for checkpoint in [CheckpointPolicy::EveryBlock, CheckpointPolicy::Sqrt] {
        let found = gradients(&Configuration { checkpoint, ..gpt(0.2) });
        assert!(distance(&found, &dropped, 1.0).unwrap() < 1e-6, "{checkpoint}");
    }
    let plain = gradients(&gpt(0.0));
    assert!(distance(&dropped, &plain, 1.0).unwrap() > 1e-3, "the test would not see lost random numbers");
    for accumulate in [2, 8] {
        let found = gradients(&Configuration { accumulate, ..gpt(0.0) });
        assert!(distance(&found, &plain, 1.0).unwrap() < 1e-5, "accumulate={accumulate}");
    }
    for (precision, tolerance) in [(Precision::AmpBf16, 5e-2), (Precision::AmpFp16, 1e-2)] {
        let found = gradients(&Configuration { precision, ..gpt(0.0) });
        let error = distance(&found, &plain, 1.0).unwrap();
        assert!(error < tolerance && error > 1e-6, "{precision}: {error}");
        let all = Configuration { precision, checkpoint: CheckpointPolicy::Sqrt, accumulate: 4, ..gpt(0.0) };
        assert!(distance(&gradients(&all), &plain, 1.0).unwrap() < tolerance, "{precision} with the others");
    }
}

#[test]
fn what_saves_memory_saves_it() {
    let _turn = alone();
    let activations = |configuration: &Configuration| {
        let stages = account(configuration, 1);
        stages.iter().find(|s| s.phase == Phase::Forward).unwrap().at_end.activations
    };
    let plain = Configuration::new("mlp-16x64", 256);
    let all = activations(&plain);
    let checkpointed = activations(&Configuration { checkpoint: CheckpointPolicy::Sqrt, ..plain.clone() });
    assert!(checkpointed < all / 4, "{checkpointed} of {all}");
    // A step keeps one micro-batch's at a time.
    assert_eq!(activations(&Configuration { accumulate: 4, ..plain.clone() }), (all - 8) / 4 + 8);
    let attention = |attention| {
        let settings = Settings { sequence: Some(512), attention, ..Settings::default() };
        activations(&Configuration { settings, ..Configuration::new("gpt-2x64", 2) })
    };
    let explicit = attention(Attention::Explicit);
    assert!(attention(Attention::Fused) * 3 < explicit * 2);
    // Softmax's input of each of two layers, samples and heads.
    assert_eq!(attention(Attention::BeforeTorch1_11) - explicit, 2 * 2 * 2 * 512 * 512 * 4);
}

/// fp16 ends at 65504: a gradient beyond it must not reach the parameters.
#[test]
fn a_step_whose_gradients_overflow_is_skipped() {
    let _turn = alone();
    let configuration = Configuration { precision: Precision::AmpFp16, optimizer: OptimizerKind::Adam, ..mlp(8) };
    let mut trainer = Trainer::load(&configuration, Device::Cpu).unwrap();
    tch::no_grad(|| {
        let _ = trainer.batch().inputs.shallow_clone().fill_(1e30);
    });
    let before: Vec<Tensor> = trainer.model().parameters().iter().map(Tensor::copy).collect();
    trainer.iterate(&mut |_, _| Ok(())).unwrap();
    assert!(trainer.model().parameters().iter().zip(&before).all(|(now, before)| now.equal(before)));
}

#[test]
fn training_trains() {
    let _turn = alone();
    for optimizer in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
        let configuration = Configuration { optimizer, ..Configuration::new("mlp-2x64", 16) };
        let mut trainer = Trainer::load(&configuration, Device::Cpu).unwrap();
        let loss = |trainer: &Trainer| {
            let (model, batch) = (trainer.model(), trainer.batch());
            model.loss(&model.forward(&batch.inputs, false), &batch.targets, Reduction::Mean).double_value(&[])
        };
        let before = loss(&trainer);
        for _ in 0..50 {
            trainer.iterate(&mut |_, _| Ok(())).unwrap();
        }
        assert!(loss(&trainer) < before, "{optimizer}");
    }
}

#[test]
fn memory_that_runs_out_is_an_error_with_pytorchs_message() {
    let _turn = alone();
    let configuration = mlp(4096);
    let cpu = Cpu::new(Some(torch::cpu_memory().live as u64 + (4 << 20)));
    let mut trainer = Trainer::load(&configuration, cpu.device()).unwrap();
    let mut marks = Vec::new();
    let error = trainer.iterate(&mut |mark, _| {
        marks.push(mark);
        Ok(())
    });
    torch::limit_cpu_memory(None);
    assert!(is_out_of_memory(&format!("{:#}", error.unwrap_err())));
    assert!(marks.is_empty(), "forward never ended: {marks:?}");
    let error = Trainer::load(&Configuration { accumulate: 3, ..configuration }, Device::Cpu).unwrap_err();
    assert!(error.to_string().contains("do not divide"));
}
