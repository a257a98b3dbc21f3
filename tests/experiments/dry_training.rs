//! Every model trains on the simulated GPU, and every byte of it is accounted for there too.

use models::training::{CheckpointPolicy, Configuration, OptimizerKind, Precision, Trainer};
use models::{Attention, Settings};
use std::process::Command;
use tch::{Kind, Tensor};
use torch::dry::{self, Dry};
use torch::{Backend, Checkpoint, Mark, Phase, Recorder, Stage};

/// Set in the process that is the dry one.
const INSIDE: &str = "VRAMLAB_TEST_IS_DRY";

/// A process is dry from its start, so a test runs again as its own child. Gives whether this is the child.
fn in_a_dry_process(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--nocapture"]).env(INSIDE, "1");
    dry::prepare(&mut child, 141 << 30).unwrap();
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    false
}

fn follow(configuration: &Configuration, dry: &Dry) -> anyhow::Result<Vec<Stage>> {
    let mut recorder = Recorder::begin(dry)?;
    let mut trainer = Trainer::load(configuration, dry.device())?;
    trainer.record(Mark::LOADED, &mut recorder)?;
    for _ in 0..2 {
        trainer.iterate(&mut |mark, trainer| trainer.record(mark, &mut recorder))?;
    }
    Ok(recorder.end().stages())
}

#[test]
fn every_model_in_every_precision() {
    if !in_a_dry_process("every_model_in_every_precision") {
        return;
    }
    let dry = Dry::open().unwrap();
    // Both threads multiply, so that cuBLAS's workspaces are there before anything is followed.
    let x = Tensor::ones([32, 32], (Kind::Float, dry.device())).set_requires_grad(true);
    let segment = |x: &[Tensor]| Ok(vec![x[0].linear(&x[0], Some(&x[0].get(0)))]);
    Checkpoint { preserve_random: false }.run(&[&x], segment).unwrap().remove(0).sum(Kind::Float).backward();
    for (model, parameters) in [
        ("mlp", 8_407_050),
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("bert-base", 109_483_778),
        ("bert-large", 335_143_938),
        ("vit-l16", 304_326_632),
    ] {
        let attends = !model.starts_with("resnet") && model != "mlp";
        for (precision, _) in Precision::ALL {
            for (attention, checkpoint, accumulate) in
                [(Attention::Fused, CheckpointPolicy::None, 1), (Attention::Explicit, CheckpointPolicy::Sqrt, 2)]
            {
                let attention = if attends { attention } else { Attention::Fused };
                let configuration = Configuration {
                    settings: Settings { attention, ..Settings::default() },
                    optimizer: OptimizerKind::AdamW,
                    precision: *precision,
                    checkpoint,
                    accumulate,
                    ..Configuration::new(model, 4)
                };
                let stages = follow(&configuration, &dry).unwrap_or_else(|e| panic!("{configuration:?}: {e:#}"));
                for stage in &stages {
                    assert_eq!(stage.at_end.total(), stage.live, "{configuration:?}: {stage:?}");
                    assert_eq!(stage.at_peak.total(), stage.peak, "{configuration:?}: {stage:?}");
                    // The gradient scaler's scale and its count of steps.
                    let scaler = if *precision == Precision::AmpFp16 { 8 } else { 0 };
                    assert_eq!(stage.at_end.temporaries, scaler, "{configuration:?}: {stage:?}");
                    if stage.phase == Phase::Optimizer {
                        let end = &stage.at_end;
                        assert_eq!((end.gradients, end.optimizer_state), (4 * parameters, 8 * parameters), "{configuration:?}");
                    }
                }
            }
        }
    }
}
