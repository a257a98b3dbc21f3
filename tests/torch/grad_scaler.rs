//! The gradient scaler does what PyTorch's does: `tests/reference/grad_scaler.json` holds what that did, written by
//! `peers/pytorch/reference_grad_scaler.py`.

use anyhow::Result;
use serde::Deserialize;
use std::cell::Cell;
use std::rc::Rc;
use tch::nn::{self, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor};
use torch::optimizers::{Algorithm, Implementation, Optimizer, ZeroGrad};
use torch::{GradScaler, Scalable, ScalerState};

/// By optimizer and parameter; none where a parameter gets no gradient.
type Vectors = Vec<Vec<Option<Vec<String>>>>;

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
    restored: Option<ScalerState>,
    parameters: Vectors,
    clip: Option<f64>,
    /// Backward passes of an iteration, whose gradients add up.
    passes: usize,
    fused: bool,
    /// Optimizers whose gradients are unscaled, and that take no step.
    only_unscaled: Vec<usize>,
    iterations: Vec<Iteration>,
    state: ScalerState,
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
    new_scale: Option<f64>,
    gradients: Vectors,
    parameters: Vectors,
    scale: f64,
    growth_tracker: i64,
}

#[derive(Deserialize)]
struct Misuse {
    calls: Vec<String>,
    message: String,
}

fn reference() -> Reference {
    let reference: Reference = serde_json::from_str(include_str!("../reference/grad_scaler.json")).unwrap();
    assert_eq!(reference.torch, "2.11.0");
    assert!(reference.scenarios.len() > 15 && reference.misuses.len() > 10);
    reference
}

fn vector(texts: &[String]) -> Tensor {
    Tensor::from_slice(&texts.iter().map(|text| text.parse::<f32>().unwrap()).collect::<Vec<_>>())
}

/// The optimizers that a scaler can be given.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    Tchs,
    Ours(Implementation),
}

enum Either {
    Tchs(nn::Optimizer),
    Ours(Optimizer),
}

/// Parameters with plain SGD over them.
struct Trained {
    parameters: Vec<Tensor>,
    optimizer: Either,
}

impl Trained {
    fn new(start: &[Option<Vec<String>>], rate: f64, kind: Of) -> Trained {
        let store = VarStore::new(Device::Cpu);
        let add =
            |(i, texts): (usize, &Option<Vec<String>>)| store.root().add(&format!("p{i}"), vector(texts.as_ref().unwrap()), true);
        let parameters = start.iter().enumerate().map(add).collect();
        let optimizer = match kind {
            Of::Tchs => Either::Tchs(nn::Sgd::default().build(&store, rate).unwrap()),
            Of::Ours(implementation) => Either::Ours(Optimizer::new(&store, Algorithm::sgd(), rate, implementation).unwrap()),
        };
        Trained { parameters, optimizer }
    }

    fn scalable(&mut self) -> &mut dyn Scalable {
        match &mut self.optimizer {
            Either::Tchs(optimizer) => optimizer,
            Either::Ours(optimizer) => optimizer,
        }
    }

    fn forget_gradients(&mut self) {
        match &mut self.optimizer {
            Either::Tchs(optimizer) => optimizer.zero_grad(),
            Either::Ours(optimizer) => optimizer.zero_grad(ZeroGrad::ToNone).unwrap(),
        }
    }

    /// `torch.nn.utils.clip_grad_norm_`, which tch has for its own optimizers.
    fn clip(&mut self, most: f64) {
        if let Either::Tchs(optimizer) = &self.optimizer {
            return optimizer.clip_grad_norm(most);
        }
        let mut gradients: Vec<Tensor> = self.parameters.iter().map(Tensor::grad).filter(Tensor::defined).collect();
        let norms: Vec<Tensor> = gradients.iter().map(Tensor::norm).collect();
        let factor = (most / (Tensor::stack(&norms, 0).norm() + 1e-6)).clamp_max(1.0);
        for gradient in &mut gradients {
            *gradient *= &factor;
        }
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
    for scenario in &reference.scenarios {
        // tch fills gradients with zeros, so with it no parameter is ever without one after its first.
        let some_are_missing = scenario.iterations.iter().flat_map(|i| &i.vectors).flatten().any(Option::is_none);
        let kinds: &[Of] = match scenario.fused {
            true => &[Of::Ours(Implementation::Fused)],
            false => &[Of::Ours(Implementation::Loop), Of::Ours(Implementation::Foreach), Of::Tchs],
        };
        for kind in kinds {
            if !(some_are_missing && *kind == Of::Tchs) {
                scenario.play(*kind, reference.rate);
            }
        }
    }
}

impl Scenario {
    fn play(&self, kind: Of, rate: f64) {
        let Scenario { name, settings, restored, parameters, clip, passes, fused, only_unscaled, iterations, state } = self;
        let usual = ScalerState::default();
        let mut scaler = GradScaler::new(ScalerState {
            scale: settings.init_scale.unwrap_or(usual.scale),
            growth_factor: settings.growth_factor.unwrap_or(usual.growth_factor),
            backoff_factor: settings.backoff_factor.unwrap_or(usual.backoff_factor),
            growth_interval: settings.growth_interval.unwrap_or(usual.growth_interval),
            growth_tracker: 0,
        })
        .unwrap();
        if let Some(saved) = restored {
            scaler.restore(*saved).unwrap();
        }
        let mut trained: Vec<Trained> = parameters.iter().map(|start| Trained::new(start, rate, kind)).collect();
        for (number, iteration) in iterations.iter().enumerate() {
            let place = format!("{name}, {kind:?}, iteration {number}");
            for (each, vectors) in trained.iter_mut().zip(&iteration.vectors) {
                each.forget_gradients();
                for (parameter, texts) in each.parameters.iter().zip(vectors) {
                    let Some(texts) = texts else { continue };
                    for _ in 0..*passes {
                        scaler.scale(&(parameter * vector(texts)).sum(Kind::Float)).unwrap().backward();
                    }
                }
            }
            for (which, each) in trained.iter_mut().enumerate() {
                if clip.is_some() || only_unscaled.contains(&which) {
                    scaler.unscale(each.scalable()).unwrap();
                }
                if let Some(most) = clip {
                    each.clip(*most);
                }
                if only_unscaled.contains(&which) {
                    continue;
                }
                let finite = |p: &Tensor| !p.grad().defined() || p.grad().isfinite().all().int64_value(&[]) == 1;
                let overflowed = !each.parameters.iter().all(finite);
                let taken = scaler.step(each.scalable()).unwrap();
                assert_eq!(taken, if *fused { None } else { Some(!overflowed) }, "{place}");
            }
            for (i, each) in trained.iter().enumerate() {
                for (j, parameter) in each.parameters.iter().enumerate() {
                    let what = |what: &str| format!("{place}, optimizer {i}, {what} {j}");
                    let gradient = &iteration.gradients[i][j];
                    assert_eq!(parameter.grad().defined(), gradient.is_some(), "{}", what("gradient"));
                    if let Some(gradient) = gradient {
                        same(&parameter.grad(), gradient, &what("gradient"));
                    }
                    same(parameter, iteration.parameters[i][j].as_ref().unwrap(), &what("parameter"));
                }
            }
            match iteration.new_scale {
                Some(scale) => scaler.update_to(scale).unwrap(),
                None => scaler.update().unwrap(),
            }
            // The scale is a float of 32 bits; JSON's reader is off by the last of 64.
            assert_eq!(scaler.get_scale().unwrap() as f32, iteration.scale as f32, "{place}");
            assert_eq!(scaler.state().unwrap().unwrap().growth_tracker, iteration.growth_tracker, "{place}");
        }
        let found = scaler.state().unwrap().unwrap();
        assert_eq!(found.scale as f32, state.scale as f32, "{name}");
        assert_eq!(ScalerState { scale: state.scale, ..found }, *state, "{name}");
    }
}

#[test]
fn misuse_is_refused_in_pytorchs_words() {
    for Misuse { calls, message } in reference().misuses {
        let mut scaler = GradScaler::default();
        let mut trained = Trained::new(&[Some(vec!["1".into(), "2".into()])], 0.5, Of::Tchs);
        let another = Tensor::from_slice(&[1f32]).set_requires_grad(true);
        let mut call = |name: &str| -> Result<()> {
            match name {
                "scale" => Ok(scaler.scale(&trained.parameters[0].sum(Kind::Float))?.f_backward()?),
                "scale another" => Ok(scaler.scale(&another.sum(Kind::Float))?.f_backward()?),
                "scale only" => scaler.scale(&trained.parameters[0].sum(Kind::Float)).map(drop),
                "unscale" => scaler.unscale(trained.scalable()),
                "step" => scaler.step(trained.scalable()).map(drop),
                "update" => scaler.update(),
                "half gradient" => {
                    let halves = Own::new(Tensor::ones([2], (Kind::Half, Device::Cpu)).set_requires_grad(true));
                    scaler.scale(&halves.parameter.sum(Kind::Half))?.f_backward()?;
                    scaler.unscale(&halves)
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
}

/// The scale, if the gradients still carry it, and the flag of overflow.
type Given = (Option<f64>, f64);

/// An optimizer of its own: plain steps of 1, and scaled ones that it notes.
struct Own {
    parameter: Tensor,
    scales_itself: bool,
    /// What the last scaled step was given.
    given: Rc<Cell<Option<Given>>>,
    steps: u32,
}

impl Own {
    fn new(parameter: Tensor) -> Own {
        Own { parameter, scales_itself: false, given: Rc::default(), steps: 0 }
    }
}

impl Scalable for Own {
    fn parameters(&self) -> Vec<Tensor> {
        vec![self.parameter.shallow_clone()]
    }

    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        Ok(())
    }

    fn scales_itself(&self) -> bool {
        self.scales_itself
    }

    fn step_scaled(&mut self, scale: Option<&Tensor>, found_inf: &Tensor) -> Result<()> {
        self.given.set(Some((scale.map(|scale| scale.double_value(&[])), found_inf.double_value(&[]))));
        Ok(())
    }
}

fn backward(scaler: &mut GradScaler, own: &Own, factor: f64) {
    let _ = own.parameter.grad().defined().then(|| own.parameter.grad().zero_());
    scaler.scale(&(&own.parameter * factor).sum(Kind::Float)).unwrap().backward();
}

/// As PyTorch does for its fused optimizers: gradients stay scaled, and the kernel gets the scale and the flag.
#[test]
fn an_optimizer_that_scales_itself_gets_scale_and_flag() {
    let parameter = Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let mut own = Own { scales_itself: true, ..Own::new(parameter) };
    let mut scaler = GradScaler::new(ScalerState { scale: 8.0, ..ScalerState::default() }).unwrap();
    backward(&mut scaler, &own, 3.0);
    assert_eq!(scaler.step(&mut own).unwrap(), None, "only the device knows");
    assert_eq!((own.given.take(), own.steps), (Some((Some(8.0), 0.0)), 0));
    assert_eq!(own.parameter.grad().double_value(&[0]), 24.0, "the kernel unscales, not the scaler");
    scaler.update().unwrap();

    backward(&mut scaler, &own, f64::INFINITY);
    scaler.step(&mut own).unwrap();
    assert_eq!(own.given.take(), Some((Some(8.0), 1.0)));
    scaler.update().unwrap();
    assert_eq!(scaler.get_scale().unwrap(), 4.0);

    // Unscaled for clipping: the kernel must not do it again.
    let _ = own.parameter.grad().zero_();
    backward(&mut scaler, &own, 3.0);
    scaler.unscale(&own).unwrap();
    assert_eq!(own.parameter.grad().double_value(&[0]), 3.0);
    scaler.step(&mut own).unwrap();
    assert_eq!(own.given.take(), Some((None, 0.0)));
}

/// A scaler knows an optimizer by its parameters, not by where it stands in memory.
#[test]
fn an_optimizer_may_move_between_calls() {
    let own = Own::new(Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true));
    let mut scaler = GradScaler::default();
    backward(&mut scaler, &own, 2.0);
    scaler.unscale(&own).unwrap();
    let mut moved = Box::new(own);
    assert!(scaler.unscale(&*moved).unwrap_err().to_string().contains("already been called"));
    scaler.step(&mut *moved).unwrap();
    assert_eq!(moved.parameter.grad().double_value(&[0]), 2.0, "divided once");
    assert_eq!(moved.steps, 1);
}

#[test]
fn a_disabled_scaler_changes_nothing() {
    let mut own = Own::new(Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true));
    let mut scaler = GradScaler::disabled();
    backward(&mut scaler, &own, f64::INFINITY);
    scaler.unscale(&own).unwrap();
    assert_eq!(scaler.step(&mut own).unwrap(), Some(true), "as PyTorch's, it does not look at gradients either");
    scaler.update().unwrap();
    scaler.update_to(4.0).unwrap();
    assert_eq!((own.steps, scaler.get_scale().unwrap(), scaler.state().unwrap()), (1, 1.0, None));
}

#[test]
fn a_saved_state_goes_on_where_it_was() {
    let own = Own::new(Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true));
    let run = |scaler: &mut GradScaler, iterations: usize| {
        for _ in 0..iterations {
            backward(scaler, &own, 1.0);
            scaler.unscale(&own).unwrap();
            scaler.update().unwrap();
        }
    };
    let settings = ScalerState { growth_interval: 5, ..ScalerState::default() };
    let mut scaler = GradScaler::new(settings).unwrap();
    run(&mut scaler, 3);
    let saved = serde_json::to_string(&scaler.state().unwrap()).unwrap();
    assert!(saved.contains("\"_growth_tracker\":3"), "PyTorch's names: {saved}");
    let mut other = GradScaler::default();
    run(&mut other, 1);
    other.restore(serde_json::from_str(&saved).unwrap()).unwrap();
    run(&mut other, 2);
    assert_eq!(other.get_scale().unwrap(), 131072.0);
    other.update_to(7.0).unwrap();
    assert_eq!(other.get_scale().unwrap(), 7.0);
    assert!(GradScaler::new(ScalerState { growth_factor: 1.0, ..settings }).unwrap_err().to_string().contains("growth factor"));
    assert!(other.restore(ScalerState { backoff_factor: 1.0, ..settings }).unwrap_err().to_string().contains("backoff factor"));
}

/// A fused optimizer gets scaled gradients and leaves a step out by itself; the parameters end where the loop's do.
#[test]
fn a_fused_optimizer_ends_where_the_loop_does() {
    let ends = [Implementation::Loop, Implementation::Fused].map(|implementation| {
        let store = VarStore::new(Device::Cpu);
        let parameter = store.root().add("p", Tensor::from_slice(&[1f32, 2.0]), true);
        let mut optimizer = Optimizer::new(&store, Algorithm::adamw(), 0.1, implementation).unwrap();
        let mut scaler = GradScaler::default();
        for factor in [3.0, f64::INFINITY, -0.5, 2.0] {
            optimizer.zero_grad(ZeroGrad::ToNone).unwrap();
            scaler.scale(&(&parameter * factor).sum(Kind::Float)).unwrap().backward();
            let taken = scaler.step(&mut optimizer).unwrap();
            let fused = implementation == Implementation::Fused;
            assert_eq!(taken, if fused { None } else { Some(factor.is_finite()) });
            scaler.update().unwrap();
        }
        assert_eq!(scaler.get_scale().unwrap(), 32768.0);
        Vec::<f32>::try_from(parameter.detach()).unwrap()
    });
    let close = ends[0].iter().zip(&ends[1]).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(close && ends[0][0] != 1.0, "{ends:?}");
}
