//! The optimizers do what PyTorch's do: against values that PyTorch computed, against each other, and in the odd cases.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::nn::{Init, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor};
use torch::optimizers::{
    Adam, Algorithm, GradScale, Implementation, Kept, Optimizer, ParameterState, RmsProp, Sgd, ZeroGrad, named_parameters,
};
use torch::{Backend, Cpu};

/// The meter is the process's, so the tests of this file take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `(p * g).sum()` has the gradient g.
fn give_gradient(parameter: &Tensor, gradient: &Tensor) {
    (parameter * gradient).sum(parameter.kind()).backward();
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap()
}

fn close(a: &[f64], b: &[f64], tolerance: f64) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance * (1.0 + b.abs()))
}

// ---- PyTorch's own values ----------------------------------------------------------------------------------------------------------------

#[derive(Deserialize)]
struct Reference {
    torch: String,
    cases: Vec<Case>,
    settings: Vec<Setting>,
}

/// PyTorch's names and values of settings.
type Options = BTreeMap<String, serde_json::Value>;

/// Settings that PyTorch takes or refuses.
#[derive(Deserialize)]
struct Setting {
    algorithm: String,
    options: Options,
    refused: bool,
}

/// Five steps of one of PyTorch's optimizers; see peers/pytorch/reference_optimizers.py.
#[derive(Deserialize)]
struct Case {
    name: String,
    algorithm: String,
    options: Options,
    /// Type of the parameters and gradients.
    dtype: String,
    /// Groups of parameters with settings of their own; none where all are one group.
    groups: Vec<Grouped>,
    scaled: bool,
    /// Whether gradients are filled with zeros, and not freed.
    zeroed: bool,
    parameters: Vec<Vec<f64>>,
    states: Vec<BTreeMap<String, Vec<f64>>>,
}

const SHAPES: [&[i64]; 5] = [&[3, 4], &[5], &[], &[0], &[2]];
const WITHOUT_GRADIENT: [(usize, usize); 3] = [(4, 0), (4, 3), (1, 2)];

fn by_formula(shape: &[i64], formula: impl Fn(f64) -> f64) -> Tensor {
    let all: Vec<f64> = (0..shape.iter().product()).map(|k: i64| formula(k as f64)).collect();
    Tensor::from_slice(&all).to_kind(Kind::Float).reshape(shape)
}

fn gradient(i: usize, step: usize) -> Tensor {
    by_formula(SHAPES[i], |k| (1.0 + 0.7 * k + 1.3 * step as f64 + 2.1 * i as f64).sin())
}

fn started() -> Vec<(String, Tensor)> {
    let start = |i: usize| by_formula(SHAPES[i], |k| (0.3 + 1.1 * k + 2.3 * i as f64).cos()).set_requires_grad(true);
    (0..SHAPES.len()).map(|i| (format!("p{i}"), start(i))).collect()
}

#[derive(Deserialize)]
struct Grouped {
    /// Their numbers.
    parameters: Vec<usize>,
    #[serde(flatten)]
    options: Options,
}

fn number(options: &Options, name: &str, default: f64) -> f64 {
    options.get(name).map_or(default, |value| value.as_f64().unwrap())
}

fn flag(options: &Options, name: &str) -> bool {
    options.get(name).is_some_and(|value| value.as_bool().unwrap())
}

fn rate(options: &Options) -> f64 {
    number(options, "lr", 0.05)
}

fn algorithm(name: &str, options: &Options) -> Algorithm {
    let (number, flag) = (|name, default| number(options, name, default), |name| flag(options, name));
    let adam = |weight_decay| Adam {
        betas: match options.get("betas") {
            Some(betas) => (betas[0].as_f64().unwrap(), betas[1].as_f64().unwrap()),
            None => (0.9, 0.999),
        },
        epsilon: number("eps", 1e-8),
        weight_decay: number("weight_decay", weight_decay),
        amsgrad: flag("amsgrad"),
        maximize: flag("maximize"),
    };
    match name {
        "SGD" => Algorithm::Sgd(Sgd {
            momentum: number("momentum", 0.0),
            dampening: number("dampening", 0.0),
            weight_decay: number("weight_decay", 0.0),
            nesterov: flag("nesterov"),
            maximize: flag("maximize"),
        }),
        "RMSprop" => Algorithm::RmsProp(RmsProp {
            alpha: number("alpha", 0.99),
            epsilon: number("eps", 1e-8),
            weight_decay: number("weight_decay", 0.0),
            momentum: number("momentum", 0.0),
            centered: flag("centered"),
            maximize: flag("maximize"),
        }),
        "Adam" => Algorithm::Adam(adam(0.0)),
        "AdamW" => Algorithm::AdamW(adam(0.01)),
        other => panic!("no algorithm '{other}'"),
    }
}

impl Case {
    /// Whether PyTorch's C++ loop, or its kernels, have what the case asks for.
    fn runs_on(&self, implementation: Implementation) -> bool {
        match implementation {
            Implementation::Loop => !flag(&self.options, "maximize") && !self.scaled,
            Implementation::Foreach => !self.scaled,
            Implementation::Fused => self.algorithm != "RMSprop",
        }
    }

    fn kind(&self) -> Kind {
        match self.dtype.as_str() {
            "float32" => Kind::Float,
            "float64" => Kind::Double,
            "bfloat16" => Kind::BFloat16,
            "float16" => Kind::Half,
            other => panic!("no type '{other}'"),
        }
    }

    /// Half-precision numbers are rounded at other places by each implementation, and five steps let the roundings add up.
    fn tolerance(&self) -> f64 {
        match self.kind() {
            Kind::Double => 1e-12,
            Kind::BFloat16 => 5e-2,
            Kind::Half => 1e-2,
            _ => 2e-6,
        }
    }

    fn optimizer(&self, implementation: Implementation) -> Result<Optimizer> {
        let named = |(name, tensor): (String, Tensor)| (name, tensor.detach().to_kind(self.kind()).set_requires_grad(true));
        let mut parameters: BTreeMap<usize, (String, Tensor)> = started().into_iter().map(named).enumerate().collect();
        let whole = Grouped { parameters: (0..SHAPES.len()).collect(), options: Options::new() };
        let groups = if self.groups.is_empty() { std::slice::from_ref(&whole) } else { &self.groups };
        let mut optimizer: Option<Optimizer> = None;
        for group in groups {
            let own = group.parameters.iter().map(|i| parameters.remove(i).unwrap()).collect();
            let options = self.options.clone().into_iter().chain(group.options.clone()).collect();
            let (algorithm, rate) = (algorithm(&self.algorithm, &options), rate(&options));
            match &mut optimizer {
                Some(optimizer) => drop(optimizer.add_group(own, algorithm, rate)?),
                None => optimizer = Some(Optimizer::over(own, algorithm, rate, implementation)?),
            }
        }
        optimizer.context("no parameters")
    }

    fn run(&self, implementation: Implementation) -> Result<Optimizer> {
        let mut optimizer = self.optimizer(implementation)?;
        for step in 0..5 {
            optimizer.zero_grad(if self.zeroed { ZeroGrad::ToZero } else { ZeroGrad::ToNone })?;
            if step == 3 {
                optimizer.set_learning_rate_of(0, 0.02)?;
            }
            for (name, parameter) in optimizer.parameters() {
                let i = number_of(name);
                let gradient = gradient(i, step).to_kind(self.kind());
                if self.scaled {
                    give_gradient(parameter, &(gradient * 4.0));
                } else if !WITHOUT_GRADIENT.contains(&(i, step)) {
                    give_gradient(parameter, &gradient);
                }
            }
            let overflowed = f32::from(step == 0 || step == 2);
            let scale = if self.scaled {
                GradScale { grad_scale: Some(Tensor::from(4.0f32)), found_inf: Some(Tensor::from_slice(&[overflowed])) }
            } else {
                GradScale::default()
            };
            optimizer.step_scaled(&scale)?;
        }
        Ok(optimizer)
    }
}

/// 3 of `p3`.
fn number_of(name: &str) -> usize {
    name[1..].parse().unwrap()
}

/// ParameterState by name, as numbers.
fn state_of(states: &[ParameterState], parameter: &str) -> BTreeMap<String, Vec<f64>> {
    let Some(state) = states.iter().find(|state| state.parameter == parameter) else { return BTreeMap::new() };
    let number = |kept: &Kept| match kept {
        Kept::Tensor(tensor) => values(tensor),
        Kept::Steps(steps) => vec![*steps as f64],
    };
    state.kept.iter().map(|(name, kept)| (name.clone(), number(kept))).collect()
}

#[test]
fn parameters_and_state_are_what_pytorch_computes() {
    let _turn = alone();
    let reference: Reference = serde_json::from_str(include_str!("../reference/optimizers.json")).unwrap();
    assert!(reference.torch.starts_with("2.11."), "the values are of PyTorch {}", reference.torch);
    let mut compared = 0;
    for case in &reference.cases {
        for implementation in Implementation::ALL.into_iter().filter(|i| case.runs_on(*i)) {
            let what = format!("{} {implementation}{}", case.name, if case.scaled { ", scaled" } else { "" });
            let optimizer = case.run(implementation).unwrap_or_else(|e| panic!("{what}: {e:#}"));
            let states = optimizer.state().unwrap();
            let tolerance = case.tolerance();
            for (name, parameter) in optimizer.parameters() {
                let i = number_of(name);
                let (found, wanted) = (values(parameter), &case.parameters[i]);
                assert!(close(&found, wanted, tolerance), "{what}, {name}: {found:?} is not PyTorch's {wanted:?}");
                let (found, wanted) = (state_of(&states, name), &case.states[i]);
                assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>(), "{what}, {name}");
                for (key, wanted) in wanted {
                    assert!(
                        close(&found[key], wanted, tolerance),
                        "{what}, {name}, {key}: {:?} is not PyTorch's {wanted:?}",
                        found[key]
                    );
                }
            }
            compared += 1;
        }
    }
    assert!(compared >= 130, "only {compared} comparisons");
}

#[test]
fn settings_are_refused_where_pytorch_refuses_them() {
    let reference: Reference = serde_json::from_str(include_str!("../reference/optimizers.json")).unwrap();
    assert!(reference.settings.iter().filter(|setting| setting.refused).count() > 10);
    for Setting { algorithm: name, options, refused } in &reference.settings {
        for implementation in Implementation::ALL {
            if name == "RMSprop" && implementation == Implementation::Fused {
                continue;
            }
            let found = Optimizer::over(started(), algorithm(name, options), rate(options), implementation);
            assert_eq!(found.is_err(), *refused, "{name} {options:?} {implementation}: {found:?}");
        }
    }
}

// ---- against each other ------------------------------------------------------------------------------------------------------------------

fn algorithms() -> Vec<Algorithm> {
    let adam = Adam { weight_decay: 0.1, amsgrad: true, ..Adam::default() };
    vec![
        Algorithm::sgd(),
        Algorithm::momentum(0.9),
        Algorithm::Sgd(Sgd { momentum: 0.8, weight_decay: 0.1, nesterov: true, ..Sgd::default() }),
        Algorithm::rmsprop(),
        Algorithm::RmsProp(RmsProp { momentum: 0.5, centered: true, weight_decay: 0.1, ..RmsProp::default() }),
        Algorithm::adam(),
        Algorithm::adamw(),
        Algorithm::Adam(adam),
        Algorithm::AdamW(adam),
    ]
}

fn implementations(algorithm: &Algorithm) -> Vec<Implementation> {
    let fused = !matches!(algorithm, Algorithm::RmsProp(_));
    Implementation::ALL.into_iter().filter(|i| *i != Implementation::Fused || fused).collect()
}

#[test]
fn implementations_agree_in_every_kind_and_in_mixed_ones() {
    let _turn = alone();
    for algorithm in algorithms() {
        for (kinds, tolerance) in [
            (vec![Kind::Double], 1e-12),
            (vec![Kind::Float], 2e-5),
            (vec![Kind::BFloat16], 5e-2),
            (vec![Kind::Half], 1e-2),
            (vec![Kind::Float, Kind::Double, Kind::BFloat16], 5e-2),
        ] {
            let run = |implementation| {
                let parameter = |i: usize| {
                    let start = Tensor::arange(7 + i as i64, (Kind::Double, Device::Cpu)).cos() * 0.5;
                    (format!("p{i}"), start.to_kind(kinds[i % kinds.len()]).set_requires_grad(true))
                };
                let mut optimizer = Optimizer::over((0..6).map(parameter).collect(), algorithm, 0.01, implementation).unwrap();
                for step in 0..6 {
                    optimizer.zero_grad(if step % 2 == 0 { ZeroGrad::ToNone } else { ZeroGrad::ToZero }).unwrap();
                    for (i, (_, parameter)) in optimizer.parameters().enumerate() {
                        if (i + step) % 3 != 0 {
                            let shape = (Kind::Double, Device::Cpu);
                            let gradient = (Tensor::arange(parameter.numel() as i64, shape) + (step + i) as f64).sin();
                            give_gradient(parameter, &gradient.to_kind(parameter.kind()));
                        }
                    }
                    optimizer.step().unwrap();
                }
                optimizer.parameters().map(|(_, p)| values(p)).collect::<Vec<_>>()
            };
            let expected = run(Implementation::Loop);
            for implementation in implementations(&algorithm) {
                for (found, expected) in run(implementation).iter().zip(&expected) {
                    assert!(close(found, expected, tolerance), "{algorithm:?} {implementation} {kinds:?}: {found:?}, {expected:?}");
                }
            }
        }
    }
}

/// tch's optimizers are libtorch's, and so is the loop here: the same to the bit.
#[test]
fn the_loop_is_tchs_optimizer() {
    let _turn = alone();
    let store = || {
        tch::manual_seed(3);
        let store = VarStore::new(Device::Cpu);
        let _ = store.root().randn_standard("weight", &[8, 8]);
        let _ = store.root().var("bias", &[8], Init::Const(0.5));
        store
    };
    let (ours, theirs) = (store(), store());
    let train = |store: &VarStore, step: &mut dyn FnMut()| {
        for _ in 0..3 {
            store.trainable_variables().iter().for_each(|v| v.square().sum(Kind::Float).backward());
            step();
        }
    };
    let mut own = Optimizer::new(&ours, Algorithm::adamw(), 1e-2, Implementation::Loop).unwrap();
    let mut tchs = tch::nn::AdamW::default().build(&theirs, 1e-2).unwrap();
    train(&ours, &mut || own.step().unwrap());
    train(&theirs, &mut || tchs.step());
    assert_eq!(own.parameters().map(|(name, _)| name).collect::<Vec<_>>(), ["weight", "bias"], "in the order of making");
    for (a, b) in ours.trainable_variables().iter().zip(theirs.trainable_variables()) {
        assert!(a.equal(&b));
    }
    let states = own.state().unwrap();
    assert_eq!(states.iter().map(|s| s.steps().unwrap()).collect::<Vec<_>>(), [Some(3), Some(3)]);
    assert_eq!(states[0].tensor("exp_avg").unwrap().size(), [8, 8]);
}

// ---- memory --------------------------------------------------------------------------------------------------------------------------------

#[test]
fn state_bytes_are_what_the_allocator_counts() {
    let _turn = alone();
    let meter = Cpu::new(None);
    let parameters: Vec<Tensor> =
        [100, 7, 33].map(|n| Tensor::ones([n], (Kind::Float, Device::Cpu)).set_requires_grad(true)).into_iter().collect();
    for algorithm in algorithms() {
        for implementation in implementations(&algorithm) {
            parameters.iter().for_each(|p| give_gradient(p, &p.detach()));
            let named = parameters.iter().enumerate().map(|(i, p)| (i.to_string(), p.shallow_clone())).collect();
            let before = meter.memory().unwrap().requested;
            let mut optimizer = Optimizer::over(named, algorithm, 0.01, implementation).unwrap();
            assert_eq!(meter.memory().unwrap().requested, before, "state comes with the first step");
            assert_eq!(optimizer.state_bytes(Device::Cpu).unwrap(), 0);
            for _ in 0..2 {
                optimizer.step().unwrap();
                let counted = meter.memory().unwrap().requested - before;
                assert_eq!(optimizer.state_bytes(Device::Cpu).unwrap(), counted, "{algorithm:?} {implementation}");
            }
            let numbers = match algorithm {
                Algorithm::Sgd(sgd) => i64::from(sgd.momentum != 0.0),
                Algorithm::RmsProp(r) => 1 + i64::from(r.centered) + i64::from(r.momentum != 0.0),
                Algorithm::Adam(adam) | Algorithm::AdamW(adam) => 2 + i64::from(adam.amsgrad),
            };
            let counters = if implementation == Implementation::Loop || matches!(algorithm, Algorithm::Sgd(_)) { 0 } else { 3 };
            assert_eq!(
                optimizer.state_bytes(Device::Cpu).unwrap(),
                4 * (140 * numbers + counters),
                "{algorithm:?} {implementation}"
            );
            assert_eq!(optimizer.state_bytes(Device::Cuda(0)).unwrap(), 0);
            drop(optimizer);
            assert_eq!(meter.memory().unwrap().requested, before, "and goes with the optimizer");
        }
    }
}

#[test]
fn gradients_are_freed_or_filled_with_zeros() {
    let _turn = alone();
    let meter = Cpu::new(None);
    let named = started();
    let mut optimizer = Optimizer::over(named, Algorithm::sgd(), 0.1, Implementation::Fused).unwrap();
    let before = meter.memory().unwrap().requested;
    optimizer.parameters().enumerate().for_each(|(i, (_, p))| give_gradient(p, &gradient(i, 0)));
    let bytes = 4 * (12 + 5 + 1 + 2);
    assert_eq!(meter.memory().unwrap().requested - before, bytes);
    optimizer.zero_grad(ZeroGrad::ToZero).unwrap();
    assert!(optimizer.parameters().all(|(_, p)| p.grad().defined() && values(&p.grad()).iter().all(|g| *g == 0.0)));
    assert_eq!(meter.memory().unwrap().requested - before, bytes);
    optimizer.zero_grad(ZeroGrad::ToNone).unwrap();
    assert!(optimizer.parameters().all(|(_, p)| !p.grad().defined()));
    assert_eq!(meter.memory().unwrap().requested, before);
    optimizer.zero_grad(ZeroGrad::ToZero).unwrap();
    optimizer.step().unwrap();
    assert!(optimizer.state().unwrap().is_empty(), "nothing had a gradient");
}

// ---- a gradient scaler ---------------------------------------------------------------------------------------------------------------------

#[test]
fn an_overflow_leaves_everything_as_it_is() {
    let _turn = alone();
    for algorithm in algorithms().into_iter().filter(|a| !matches!(a, Algorithm::RmsProp(_))) {
        let mut optimizer = Optimizer::over(started(), algorithm, 0.1, Implementation::Fused).unwrap();
        let scale = |found: f32| GradScale { grad_scale: Some(Tensor::from(2.0f32)), found_inf: Some(Tensor::from(found)) };
        let seen = |optimizer: &Optimizer| {
            let states = optimizer.state().unwrap();
            let all: Vec<_> = optimizer.parameters().map(|(name, p)| (values(p), state_of(&states, name))).collect();
            all
        };
        for (step, overflows) in [true, false, true, false].into_iter().enumerate() {
            optimizer.zero_grad(ZeroGrad::ToNone).unwrap();
            optimizer.parameters().enumerate().for_each(|(i, (_, p))| give_gradient(p, &gradient(i, step)));
            let before = seen(&optimizer);
            optimizer.step_scaled(&scale(f32::from(overflows))).unwrap();
            let after = seen(&optimizer);
            if !overflows {
                assert_ne!(before, after, "{algorithm:?}");
            } else if step > 0 {
                assert_eq!(before, after, "{algorithm:?}");
            } else {
                // The state begins with the step that is skipped, at zero.
                assert!(before.iter().zip(&after).all(|(b, a)| b.0 == a.0), "{algorithm:?}");
                assert!(after.iter().flat_map(|a| a.1.values()).flatten().all(|v| *v == 0.0), "{algorithm:?}: {after:?}");
            }
        }
        for state in optimizer.state().unwrap() {
            assert!(matches!(state.steps().unwrap(), None | Some(2)), "{algorithm:?}: {state:?}");
        }
    }
}

/// Where the first step is skipped, what is left is a first step: momentum starts at the gradient.
#[test]
fn momentum_begins_well_after_a_skipped_step() {
    let _turn = alone();
    let run = |skipped: usize| {
        let mut optimizer = Optimizer::over(started(), Algorithm::momentum(0.9), 0.1, Implementation::Fused).unwrap();
        for step in 0..skipped + 2 {
            optimizer.zero_grad(ZeroGrad::ToNone).unwrap();
            optimizer.parameters().enumerate().for_each(|(i, (_, p))| give_gradient(p, &gradient(i, 7)));
            let found = Tensor::from(f32::from(step < skipped));
            optimizer.step_scaled(&GradScale { grad_scale: None, found_inf: Some(found) }).unwrap();
        }
        optimizer.parameters().map(|(_, p)| values(p)).collect::<Vec<_>>()
    };
    assert_eq!(run(0), run(2));
}

// ---- groups and what is refused ------------------------------------------------------------------------------------------------------------

#[test]
fn groups_have_settings_of_their_own() {
    let _turn = alone();
    for implementation in Implementation::ALL {
        let one = |name: &str| vec![(name.to_string(), Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true))];
        let mut optimizer = Optimizer::over(one("a"), Algorithm::sgd(), 0.1, implementation).unwrap();
        let second = optimizer.add_group(one("b"), Algorithm::momentum(0.5), 0.2).unwrap();
        assert_eq!((second, optimizer.groups()), (1, 2));
        let step = |optimizer: &mut Optimizer| {
            optimizer.zero_grad(ZeroGrad::ToNone).unwrap();
            optimizer.parameters().for_each(|(_, p)| give_gradient(p, &p.ones_like()));
            optimizer.step().unwrap();
            optimizer.parameters().map(|(_, p)| values(p)[0]).collect::<Vec<_>>()
        };
        assert!(close(&step(&mut optimizer), &[0.9, 0.8], 1e-6));
        optimizer.set_learning_rate_of(1, 1.0).unwrap();
        assert_eq!((optimizer.learning_rate(0).unwrap(), optimizer.learning_rate(1).unwrap()), (0.1, 1.0));
        assert!(close(&step(&mut optimizer), &[0.8, -0.7], 1e-6), "{implementation}: the buffer is 1.5");
        assert_eq!(optimizer.state().unwrap().iter().map(|s| s.parameter.as_str()).collect::<Vec<_>>(), ["b"]);
        let error = optimizer.set_learning_rate_of(2, 1.0).unwrap_err().to_string();
        assert!(error.contains("no group 2") && error.contains("has 2"), "{error}");
        let (_, a) = optimizer.parameters().next().unwrap();
        let again = vec![("again".to_string(), a.shallow_clone())];
        assert!(optimizer.add_group(again, Algorithm::sgd(), 0.1).unwrap_err().to_string().contains("has already"));
    }
}

#[test]
fn what_cannot_be_optimized_is_refused() {
    let _turn = alone();
    let error = |parameters: Vec<(String, Tensor)>, algorithm, rate, implementation| {
        Optimizer::over(parameters, algorithm, rate, implementation).unwrap_err().to_string()
    };
    let (sgd, fused) = (Algorithm::sgd(), Implementation::Fused);
    assert!(error(vec![], sgd, 0.1, fused).contains("empty parameter list"));
    assert!(error(vec![("n".into(), Tensor::ones([2], (Kind::Int64, Device::Cpu)))], sgd, 0.1, fused).contains("Int64"));
    let computed = started()[0].1.shallow_clone() * 2.0;
    assert!(error(vec![("c".into(), computed)], sgd, 0.1, fused).contains("no leaf"));
    assert!(error(started(), sgd, -0.1, fused).contains("learning rate is -0.1"));
    assert!(error(started(), Algorithm::rmsprop(), 0.1, fused).contains("no fused implementation in PyTorch"));
    let nesterov = Algorithm::Sgd(Sgd { nesterov: true, ..Sgd::default() });
    assert!(error(started(), nesterov, 0.1, fused).contains("requires a momentum"));
    let beta = Algorithm::Adam(Adam { betas: (0.9, 1.0), ..Adam::default() });
    assert!(error(started(), beta, 0.1, fused).contains("from 0 to below 1"));
    let maximize = Algorithm::Sgd(Sgd { maximize: true, ..Sgd::default() });
    assert!(error(started(), maximize, 0.1, Implementation::Loop).contains("cannot maximize"));
    let store = VarStore::new(Device::Cpu);
    assert!(Optimizer::new(&store, sgd, 0.1, fused).unwrap_err().to_string().contains("empty parameter list"));

    for implementation in Implementation::ALL {
        let table = Tensor::ones([4, 2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let dense = Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let named = vec![("dense".to_string(), dense.shallow_clone()), ("table".to_string(), table.shallow_clone())];
        let mut optimizer = Optimizer::over(named, Algorithm::adam(), 0.1, implementation).unwrap();
        give_gradient(&dense, &dense.ones_like());
        Tensor::embedding(&table, &Tensor::from_slice(&[1i64]), -1, false, true).sum(Kind::Float).backward();
        let error = optimizer.step().unwrap_err().to_string();
        assert!(error.contains("'table' has a sparse gradient"), "{implementation}: {error}");
        assert_eq!(values(&dense), [1.0, 1.0], "nothing was changed");
        if implementation != Implementation::Fused {
            let scale = GradScale { grad_scale: Some(Tensor::from(1.0f32)), found_inf: None };
            let error = optimizer.step_scaled(&scale).unwrap_err().to_string();
            assert!(error.contains("for fused optimizers"), "{error}");
        } else {
            let scale = GradScale { grad_scale: None, found_inf: Some(Tensor::from_slice(&[1.0f32, 0.0])) };
            assert!(optimizer.step_scaled(&scale).unwrap_err().to_string().contains("one float"));
        }
    }
}

#[test]
fn frozen_variables_keep_their_names_and_are_passed_over() {
    let _turn = alone();
    let store = VarStore::new(Device::Cpu);
    let root = store.root();
    let body = (&root / "body").var("weight", &[3], Init::Const(1.0));
    let head = (&root / "head").var("weight", &[3], Init::Const(1.0));
    let _buffer = root.add("buffer", Tensor::ones([3], (Kind::Float, Device::Cpu)), false);
    assert_eq!(named_parameters(&store).into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["body.weight", "head.weight"]);
    let mut optimizer = Optimizer::new(&store, Algorithm::adam(), 0.1, Implementation::Fused).unwrap();
    let _ = body.set_requires_grad(false);
    (&body * &head).sum(Kind::Float).backward();
    optimizer.step().unwrap();
    assert_eq!(optimizer.state().unwrap().iter().map(|s| s.parameter.as_str()).collect::<Vec<_>>(), ["head.weight"]);
    assert_eq!((values(&body)[0], values(&head)[0] < 1.0), (1.0, true));
}
