//! The gradient scaler does what PyTorch's does: `tests/reference/grad_scaler.json` holds what that did, written by
//! `tests/reference/make/grad_scaler.py`.

use anyhow::Result;
use serde::Deserialize;
use tch::nn::{self, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor};
use torch::{GradScaler, ScalerState};

/// By parameter; none where it gets no gradient.
type Vectors = Vec<Option<Vec<String>>>;

#[derive(Deserialize)]
struct Reference {
    torch: String,
    rate: f64,
    scenarios: Vec<Scenario>,
    misuses: Vec<Misuse>,
}

#[derive(Deserialize)]
struct Scenario {
    name: String,
    settings: Settings,
    parameters: Vectors,
    clip: Option<f64>,
    /// Backward passes of an iteration, whose gradients add up.
    passes: usize,
    iterations: Vec<Iteration>,
}

#[derive(Deserialize)]
struct Settings {
    init_scale: Option<f64>,
    growth_factor: Option<f64>,
    backoff_factor: Option<f64>,
    growth_interval: Option<i64>,
}

#[derive(Deserialize)]
struct Iteration {
    vectors: Vectors,
    gradients: Vectors,
    parameters: Vectors,
    scale: f64,
}

#[derive(Deserialize)]
struct Misuse {
    calls: Vec<String>,
    message: String,
}

fn reference() -> Reference {
    let reference: Reference = serde_json::from_str(include_str!("../reference/grad_scaler.json")).unwrap();
    assert_eq!(reference.torch, "2.11.0");
    assert!(reference.scenarios.len() > 10 && reference.misuses.len() > 10);
    reference
}

fn vector(texts: &[String]) -> Tensor {
    Tensor::from_slice(&texts.iter().map(|text| text.parse::<f32>().unwrap()).collect::<Vec<_>>())
}

/// Parameters with plain SGD over them.
struct Trained {
    parameters: Vec<Tensor>,
    optimizer: nn::Optimizer,
}

impl Trained {
    fn new(start: &[Option<Vec<String>>], rate: f64) -> Trained {
        let store = VarStore::new(Device::Cpu);
        let add =
            |(i, texts): (usize, &Option<Vec<String>>)| store.root().add(&format!("p{i}"), vector(texts.as_ref().unwrap()), true);
        let parameters = start.iter().enumerate().map(add).collect();
        Trained { parameters, optimizer: nn::Sgd::default().build(&store, rate).unwrap() }
    }
}

fn same(found: &Tensor, texts: &[String], what: &str) {
    let (found, wanted) = (Vec::<f32>::try_from(found.detach()).unwrap(), Vec::<f32>::try_from(vector(texts)).unwrap());
    let equal = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-6 * b.abs();
    assert!(found.len() == wanted.len() && found.iter().zip(&wanted).all(equal), "{what}: {found:?}, PyTorch: {wanted:?}");
}

#[test]
fn every_scenario_goes_as_in_pytorch() {
    let reference = reference();
    reference.scenarios.iter().for_each(|scenario| scenario.play(reference.rate));
}

impl Scenario {
    fn play(&self, rate: f64) {
        let Scenario { name, settings, parameters, clip, passes, iterations } = self;
        let usual = ScalerState::default();
        let mut scaler = GradScaler::new(ScalerState {
            scale: settings.init_scale.unwrap_or(usual.scale),
            growth_factor: settings.growth_factor.unwrap_or(usual.growth_factor),
            backoff_factor: settings.backoff_factor.unwrap_or(usual.backoff_factor),
            growth_interval: settings.growth_interval.unwrap_or(usual.growth_interval),
        })
        .unwrap();
        let mut trained = Trained::new(parameters, rate);
        for (number, iteration) in iterations.iter().enumerate() {
            let place = format!("{name}, iteration {number}");
            trained.optimizer.zero_grad();
            for (parameter, texts) in trained.parameters.iter().zip(&iteration.vectors) {
                let Some(texts) = texts else { continue };
                for _ in 0..*passes {
                    scaler.scale(&(parameter * vector(texts)).sum(Kind::Float)).unwrap().backward();
                }
            }
            if let Some(most) = clip {
                scaler.unscale(&trained.optimizer).unwrap();
                trained.optimizer.clip_grad_norm(*most);
            }
            let finite = |p: &Tensor| !p.grad().defined() || p.grad().isfinite().all().int64_value(&[]) == 1;
            let finite = trained.parameters.iter().all(finite);
            assert_eq!(scaler.step(&mut trained.optimizer).unwrap(), finite, "{place}");
            for (i, parameter) in trained.parameters.iter().enumerate() {
                let gradient = &iteration.gradients[i];
                assert_eq!(parameter.grad().defined(), gradient.is_some(), "{place}, gradient {i}");
                if let Some(gradient) = gradient {
                    same(&parameter.grad(), gradient, &format!("{place}, gradient {i}"));
                }
                same(parameter, iteration.parameters[i].as_ref().unwrap(), &format!("{place}, parameter {i}"));
            }
            scaler.update().unwrap();
            // The scale is a float of 32 bits; JSON's reader is off by the last of 64.
            assert_eq!(scaler.get_scale().unwrap() as f32, iteration.scale as f32, "{place}");
        }
    }
}

#[test]
fn misuse_is_refused_in_pytorchs_words() {
    for Misuse { calls, message } in reference().misuses {
        let mut scaler = GradScaler::default();
        let mut trained = Trained::new(&[Some(vec!["1".into(), "2".into()])], 0.5);
        let another = Tensor::from_slice(&[1f32]).set_requires_grad(true);
        let mut call = |name: &str| -> Result<()> {
            match name {
                "scale" => Ok(scaler.scale(&trained.parameters[0].sum(Kind::Float))?.f_backward()?),
                "scale another" => Ok(scaler.scale(&another.sum(Kind::Float))?.f_backward()?),
                "scale only" => scaler.scale(&trained.parameters[0].sum(Kind::Float)).map(drop),
                "unscale" => scaler.unscale(&trained.optimizer),
                "step" => scaler.step(&mut trained.optimizer).map(drop),
                "update" => scaler.update(),
                "half gradient" => {
                    let store = VarStore::new(Device::Cpu);
                    let halves = store.root().add("halves", Tensor::ones([2], (Kind::Half, Device::Cpu)), true);
                    scaler.scale(&halves.sum(Kind::Half))?.f_backward()?;
                    scaler.unscale(&nn::Sgd::default().build(&store, 0.5)?)
                }
                other => panic!("no call '{other}'"),
            }
        };
        let (last, before) = calls.split_last().unwrap();
        for name in before {
            call(name).unwrap();
        }
        assert_eq!(call(last).unwrap_err().to_string(), message, "{calls:?}");
    }
    let settings = ScalerState { growth_factor: 1.0, ..ScalerState::default() };
    assert!(GradScaler::new(settings).unwrap_err().to_string().contains("growth factor"));
}

#[test]
fn a_disabled_scaler_changes_nothing() {
    let mut trained = Trained::new(&[Some(vec!["1".into(), "2".into()])], 0.5);
    let mut scaler = GradScaler::disabled();
    scaler.scale(&(&trained.parameters[0] * f64::INFINITY).sum(Kind::Float)).unwrap().backward();
    scaler.unscale(&trained.optimizer).unwrap();
    assert!(scaler.step(&mut trained.optimizer).unwrap(), "as PyTorch's, it does not look at gradients either");
    scaler.update().unwrap();
    same(&trained.parameters[0], &["-inf".into(), "-inf".into()], "the step is taken");
    assert_eq!(scaler.get_scale().unwrap(), 1.0);
}
