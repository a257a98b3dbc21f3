//! The optimizers do what PyTorch's do: against values that PyTorch computed, against each other, and in the odd cases.

use anyhow::Result;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::nn::{Init, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor};
use torch::optimizers::{Algorithm, Implementation, Optimizer, ZeroGrad, named_parameters};
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
}

/// Five steps of one of PyTorch's optimizers; see tests/reference/make/optimizers.py.
#[derive(Deserialize)]
struct Case {
    name: String,
    /// Type of the parameters and gradients.
    dtype: String,
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

fn implementations(algorithm: Algorithm) -> impl Iterator<Item = Implementation> {
    let fused = algorithm != Algorithm::RmsProp;
    Implementation::ALL.into_iter().filter(move |i| *i != Implementation::Fused || fused)
}

impl Case {
    /// Half-precision numbers are rounded at other places by each implementation, and five steps let the roundings add up.
    fn kind_and_tolerance(&self) -> (Kind, f64) {
        match self.dtype.as_str() {
            "float32" => (Kind::Float, 2e-6),
            "float64" => (Kind::Double, 1e-12),
            "bfloat16" => (Kind::BFloat16, 5e-2),
            "float16" => (Kind::Half, 1e-2),
            other => panic!("no type '{other}'"),
        }
    }

    fn run(&self, algorithm: Algorithm, implementation: Implementation) -> Result<Optimizer> {
        let (kind, _) = self.kind_and_tolerance();
        let typed = |(name, tensor): (String, Tensor)| (name, tensor.detach().to_kind(kind).set_requires_grad(true));
        let parameters = started().into_iter().map(typed).collect();
        let mut optimizer = Optimizer::over(parameters, algorithm, 0.05, implementation)?;
        for step in 0..5 {
            optimizer.zero_grad(if self.zeroed { ZeroGrad::ToZero } else { ZeroGrad::ToNone })?;
            for (i, (_, parameter)) in optimizer.parameters().enumerate() {
                if !WITHOUT_GRADIENT.contains(&(i, step)) {
                    give_gradient(parameter, &gradient(i, step).to_kind(kind));
                }
            }
            optimizer.step()?;
        }
        Ok(optimizer)
    }
}

#[test]
fn parameters_and_state_are_what_pytorch_computes() {
    let _turn = alone();
    let reference: Reference = serde_json::from_str(include_str!("../reference/optimizers.json")).unwrap();
    assert!(reference.torch.starts_with("2.11."), "the values are of PyTorch {}", reference.torch);
    assert_eq!(reference.cases.len(), 40);
    for case in &reference.cases {
        let (_, algorithm) = Algorithm::BY_NAME.into_iter().find(|(name, _)| *name == case.name).unwrap();
        let (_, tolerance) = case.kind_and_tolerance();
        for implementation in implementations(algorithm) {
            let what = format!("{} {implementation} {}{}", case.name, case.dtype, if case.zeroed { ", zeroed" } else { "" });
            let optimizer = case.run(algorithm, implementation).unwrap_or_else(|e| panic!("{what}: {e:#}"));
            let states = optimizer.state().unwrap();
            for ((name, parameter), (wanted, state)) in optimizer.parameters().zip(case.parameters.iter().zip(&case.states)) {
                let found = values(parameter);
                assert!(close(&found, wanted, tolerance), "{what}, {name}: {found:?} is not PyTorch's {wanted:?}");
                let kept = states.iter().find(|kept| kept.parameter == name).map(|kept| &kept.tensors[..]).unwrap_or_default();
                let counted = |key: &str| key != "step" || implementation != Implementation::Loop;
                let wanted: Vec<_> = state.iter().filter(|(key, _)| counted(key)).collect();
                assert_eq!(kept.len(), wanted.len(), "{what}, {name}: {kept:?}");
                for (key, wanted) in wanted {
                    let found = values(&kept.iter().find(|(own, _)| own == key).unwrap().1);
                    assert!(close(&found, wanted, tolerance), "{what}, {name}, {key}: {found:?} is not PyTorch's {wanted:?}");
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
    let mut own = Optimizer::new(&ours, Algorithm::AdamW, 1e-2, Implementation::Loop).unwrap();
    let mut tchs = tch::nn::AdamW::default().build(&theirs, 1e-2).unwrap();
    train(&ours, &mut || own.step().unwrap());
    train(&theirs, &mut || tchs.step());
    assert_eq!(own.parameters().map(|(name, _)| name).collect::<Vec<_>>(), ["weight", "bias"], "in the order of making");
    for (a, b) in ours.trainable_variables().iter().zip(theirs.trainable_variables()) {
        assert!(a.equal(&b));
    }
}

// ---- memory --------------------------------------------------------------------------------------------------------------------------------

#[test]
fn state_bytes_are_what_the_allocator_counts() {
    let _turn = alone();
    let meter = Cpu::new(None);
    let parameters: Vec<Tensor> =
        [100, 7, 33].map(|n| Tensor::ones([n], (Kind::Float, Device::Cpu)).set_requires_grad(true)).into_iter().collect();
    for (_, algorithm) in Algorithm::BY_NAME {
        for implementation in implementations(algorithm) {
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
                Algorithm::Sgd => 0,
                Algorithm::Momentum | Algorithm::RmsProp => 1,
                Algorithm::Adam | Algorithm::AdamW => 2,
            };
            let counts = !matches!(algorithm, Algorithm::Sgd | Algorithm::Momentum);
            let counters = if counts && implementation != Implementation::Loop { 3 } else { 0 };
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
    let mut optimizer = Optimizer::over(named, Algorithm::Sgd, 0.1, Implementation::Fused).unwrap();
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

#[test]
fn what_cannot_be_optimized_is_refused() {
    let _turn = alone();
    let error = |parameters: Vec<(String, Tensor)>, algorithm, rate, implementation| {
        Optimizer::over(parameters, algorithm, rate, implementation).unwrap_err().to_string()
    };
    let (sgd, fused) = (Algorithm::Sgd, Implementation::Fused);
    assert!(error(vec![], sgd, 0.1, fused).contains("empty parameter list"));
    assert!(error(vec![("n".into(), Tensor::ones([2], (Kind::Int64, Device::Cpu)))], sgd, 0.1, fused).contains("Int64"));
    let computed = started()[0].1.shallow_clone() * 2.0;
    assert!(error(vec![("c".into(), computed)], sgd, 0.1, fused).contains("no leaf"));
    assert!(error(started(), sgd, -0.1, fused).contains("learning rate is -0.1"));
    assert!(error(started(), Algorithm::RmsProp, 0.1, fused).contains("no fused implementation in PyTorch"));
    let twice = || started().into_iter().take(1).flat_map(|(name, p)| [(name.clone(), p.shallow_clone()), (name, p)]).collect();
    assert!(error(twice(), sgd, 0.1, fused).contains("has already"));
    let double = ("d".to_string(), Tensor::ones([2], (Kind::Double, Device::Cpu)));
    assert!(error(started().into_iter().chain([double]).collect(), sgd, 0.1, fused).contains("one kind"));
    let store = VarStore::new(Device::Cpu);
    assert!(Optimizer::new(&store, sgd, 0.1, fused).unwrap_err().to_string().contains("empty parameter list"));

    for implementation in Implementation::ALL {
        let table = Tensor::ones([4, 2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let dense = Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let named = vec![("dense".to_string(), dense.shallow_clone()), ("table".to_string(), table.shallow_clone())];
        let mut optimizer = Optimizer::over(named, Algorithm::Adam, 0.1, implementation).unwrap();
        give_gradient(&dense, &dense.ones_like());
        Tensor::embedding(&table, &Tensor::from_slice(&[1i64]), -1, false, true).sum(Kind::Float).backward();
        let error = optimizer.step().unwrap_err().to_string();
        assert!(error.contains("'table' has a sparse gradient"), "{implementation}: {error}");
        assert_eq!(values(&dense), [1.0, 1.0], "nothing was changed");
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
    let mut optimizer = Optimizer::new(&store, Algorithm::Adam, 0.1, Implementation::Fused).unwrap();
    let _ = body.set_requires_grad(false);
    (&body * &head).sum(Kind::Float).backward();
    optimizer.step().unwrap();
    assert_eq!(optimizer.state().unwrap().iter().map(|s| s.parameter.as_str()).collect::<Vec<_>>(), ["head.weight"]);
    assert_eq!((values(&body)[0], values(&head)[0] < 1.0), (1.0, true));
}
