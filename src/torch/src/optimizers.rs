//! Optimizers in PyTorch's three implementations, with access to their state.
//!
//! tch has libtorch's optimizers, which loop over the parameters, and cannot say what state they hold. Here are the same optimizers
//! ([`Implementation::Loop`] is libtorch's own code), and beside them what PyTorch in Python has: [`Implementation::Foreach`], its
//! default on CUDA, and [`Implementation::Fused`], kernels that take many tensors at once and need no temporaries. They run on CPU
//! and CUDA, with PyTorch's default settings.
//!
//! What a step does is as in torch/optim of PyTorch 2.11: a parameter without a gradient is passed over, and its state begins with
//! its first gradient.
//!
//! ```no_run
//! use tch::{Device, Kind, Tensor, nn};
//! use torch::optimizers::{Algorithm, Implementation, Optimizer, ZeroGrad};
//!
//! let store = nn::VarStore::new(Device::Cpu);
//! let weight = store.root().zeros("weight", &[4]);
//! let mut optimizer = Optimizer::new(&store, Algorithm::AdamW, 1e-3, Implementation::Fused)?;
//! (&weight - 1.0).square().sum(Kind::Float).backward();
//! optimizer.step()?;
//! optimizer.zero_grad(ZeroGrad::ToNone)?;
//! assert_eq!(optimizer.state_bytes(Device::Cpu)?, 2 * 4 * 4 + 4);
//! # anyhow::Ok(())
//! ```

pub use super::native::optimizers::Algorithm;

use super::native::optimizers::{self as native, Loop};
use anyhow::{Result, bail, ensure};
use std::collections::{HashMap, HashSet};
use std::fmt;
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

/// How a step runs through the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Implementation {
    /// libtorch's own optimizers: one parameter after another, a kernel for each operation. Temporaries are as large as the largest
    /// parameter.
    Loop,
    /// One operation after another, each a kernel over many parameters: PyTorch's default on CUDA. Temporaries are as large as all
    /// parameters together, but for SGD. Steps are counted on the CPU.
    Foreach,
    /// One kernel over many parameters, without temporaries; there is none for RMSProp in PyTorch. Steps are counted on the device.
    Fused,
}

impl Implementation {
    pub const ALL: [Implementation; 3] = [Implementation::Loop, Implementation::Foreach, Implementation::Fused];

    /// PyTorch's choice where none is made.
    pub fn default_on(device: Device) -> Implementation {
        if device.is_cuda() { Implementation::Foreach } else { Implementation::Loop }
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Implementation::Loop => "loop",
            Implementation::Foreach => "foreach",
            Implementation::Fused => "fused",
        })
    }
}

/// What becomes of gradients before the next backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ZeroGrad {
    /// Their memory is freed, as PyTorch does where nothing is said. A parameter that gets none then is passed over by the next
    /// step.
    ToNone,
    /// They stay and are filled with zeros, which the next backward pass adds to.
    ToZero,
}

/// An optimizer's state for one parameter.
#[derive(Debug)]
pub struct ParameterState {
    /// Name of the parameter.
    pub parameter: String,
    /// By PyTorch's names, as `step`, `exp_avg` and `exp_avg_sq`, handles to the optimizer's own tensors. libtorch's loop counts its
    /// steps without a tensor.
    pub tensors: Vec<(String, Tensor)>,
}

/// A parameter and what foreach and fused keep for it; nothing before its first step.
#[derive(Debug)]
struct StateSlot {
    name: String,
    parameter: Tensor,
    state: Vec<Tensor>,
}

/// An optimizer over named parameters.
#[derive(Debug)]
pub struct Optimizer {
    algorithm: Algorithm,
    implementation: Implementation,
    rate: f64,
    slots: Vec<StateSlot>,
    /// libtorch's optimizer, where it is what steps.
    own: Option<Loop>,
}

impl Optimizer {
    /// An optimizer over the trainable variables that a store has now, in the order in which they were made. Frozen ones get no
    /// gradients, and are passed over. State comes into being with the first step.
    ///
    /// # Errors
    /// As for [`Optimizer::over`].
    pub fn new(store: &VarStore, algorithm: Algorithm, rate: f64, implementation: Implementation) -> Result<Optimizer> {
        Optimizer::over(named_parameters(store), algorithm, rate, implementation)
    }

    /// An optimizer over parameters of one kind and device, with names.
    ///
    /// # Errors
    /// No parameters; a parameter given twice, or one that a computation gave; kinds that optimizers do not take; a rate below 0; an
    /// implementation that PyTorch does not have.
    pub fn over(
        parameters: Vec<(String, Tensor)>,
        algorithm: Algorithm,
        rate: f64,
        implementation: Implementation,
    ) -> Result<Optimizer> {
        ensure!(!parameters.is_empty(), "optimizer got an empty parameter list");
        ensure!(rate >= 0.0 && rate.is_finite(), "a learning rate is {rate}, and must not be below 0");
        ensure!(
            (algorithm, implementation) != (Algorithm::RmsProp, Implementation::Fused),
            "RMSProp has no fused implementation in PyTorch; take Implementation::Foreach or Loop"
        );
        let alike = |(_, a): &(String, Tensor), (_, b): &(String, Tensor)| (a.kind(), a.device()) == (b.kind(), b.device());
        ensure!(parameters.iter().all(|p| alike(p, &parameters[0])), "an optimizer takes parameters of one kind on one device");
        let mut known: HashSet<usize> = HashSet::new();
        for (name, parameter) in &parameters {
            ensure!(parameter.is_leaf(), "can't optimize '{name}': it is no leaf, a computation gave it");
            let kind = parameter.kind();
            let real = matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16);
            ensure!(real, "can't optimize '{name}', a tensor of {kind:?}: parameters are real floating-point tensors");
            ensure!(known.insert(native::tensor_identity(parameter)), "'{name}' is a parameter that the optimizer has already");
        }
        let tensors: Vec<&Tensor> = parameters.iter().map(|(_, parameter)| parameter).collect();
        let own = (implementation == Implementation::Loop).then(|| Loop::new(&tensors, algorithm, rate)).transpose()?;
        let slots = parameters.into_iter().map(|(name, parameter)| StateSlot { name, parameter, state: Vec::new() }).collect();
        Ok(Optimizer { algorithm, implementation, rate, slots, own })
    }

    pub fn implementation(&self) -> Implementation {
        self.implementation
    }

    /// The parameters with their names.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.slots.iter().map(|slot| (slot.name.as_str(), &slot.parameter))
    }

    /// Frees or clears the gradients of all parameters.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn zero_grad(&mut self, how: ZeroGrad) -> Result<()> {
        let parameters: Vec<&Tensor> = self.slots.iter().map(|slot| &slot.parameter).collect();
        Ok(native::zero_gradients(&parameters, how == ZeroGrad::ToNone)?)
    }

    /// Takes a step with the gradients that the parameters have.
    ///
    /// # Errors
    /// Sparse gradients, before anything is changed; libtorch's message, out of memory included.
    pub fn step(&mut self) -> Result<()> {
        let mut gradients = Vec::with_capacity(self.slots.len());
        for slot in &self.slots {
            let gradient = slot.parameter.f_grad()?;
            if gradient.defined() && gradient.is_sparse() {
                bail!("'{}' has a sparse gradient, which {:?} does not support here", slot.name, self.algorithm);
            }
            gradients.push(gradient);
        }
        if let Some(own) = &mut self.own {
            return Ok(own.step()?);
        }
        let fused = self.implementation == Implementation::Fused;
        let (mut parameters, mut of_them) = (Vec::new(), Vec::new());
        let mut state: Vec<Vec<&Tensor>> = vec![Vec::new(); names(self.algorithm).len()];
        for (slot, gradient) in self.slots.iter_mut().zip(&gradients).filter(|(_, gradient)| gradient.defined()) {
            if slot.state.is_empty() {
                slot.state = begin(self.algorithm, &slot.parameter, fused)?;
            }
            parameters.push(&slot.parameter);
            of_them.push(gradient);
            state.iter_mut().zip(&slot.state).for_each(|(list, tensor)| list.push(tensor));
        }
        if parameters.is_empty() {
            return Ok(());
        }
        Ok(native::step(self.algorithm, fused, self.rate, &parameters, &of_them, &state)?)
    }

    /// The state of each parameter that has any, in the order of the parameters.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn state(&self) -> Result<Vec<ParameterState>> {
        let mut states = Vec::new();
        for slot in &self.slots {
            let tensors: Vec<(String, Tensor)> = match &self.own {
                Some(own) => own.state(&slot.parameter)?,
                None => {
                    let named = names(self.algorithm).iter().zip(&slot.state);
                    named.map(|(name, tensor)| (name.to_string(), tensor.shallow_clone())).collect()
                }
            };
            if !tensors.is_empty() {
                states.push(ParameterState { parameter: slot.name.clone(), tensors });
            }
        }
        Ok(states)
    }

    /// Bytes of all state tensors on a device. Foreach counts steps on the CPU, 4 bytes for each parameter, wherever the parameters
    /// are.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn state_bytes(&self, device: Device) -> Result<i64> {
        let states = self.state()?;
        let there = states.iter().flat_map(|state| &state.tensors).filter(|(_, tensor)| tensor.device() == device);
        Ok(there.map(|(_, tensor)| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64).sum())
    }
}

/// The trainable variables of a store with their names, in the order in which they were made.
pub fn named_parameters(store: &VarStore) -> Vec<(String, Tensor)> {
    let mut names: HashMap<usize, String> =
        store.variables().into_iter().map(|(name, tensor)| (native::tensor_identity(&tensor), name)).collect();
    let named = |tensor: Tensor| (names.remove(&native::tensor_identity(&tensor)).unwrap_or_default(), tensor);
    store.trainable_variables().into_iter().map(named).collect()
}

/// PyTorch's names of what foreach and fused keep for a parameter.
fn names(algorithm: Algorithm) -> &'static [&'static str] {
    match algorithm {
        Algorithm::Sgd => &[],
        Algorithm::Momentum => &["momentum_buffer"],
        Algorithm::RmsProp => &["step", "square_avg"],
        Algorithm::Adam | Algorithm::AdamW => &["step", "exp_avg", "exp_avg_sq"],
    }
}

/// The state that a parameter's first step needs: zeros. PyTorch begins momentum with a copy of the gradient, which zeros become in that
/// step. Steps are counted where the kernel reads them: on the device, or on the CPU, whose code computes foreach's corrections.
fn begin(algorithm: Algorithm, parameter: &Tensor, fused: bool) -> Result<Vec<Tensor>> {
    let zeros = |name: &&str| match *name {
        "step" => Tensor::f_zeros([0i64; 0], (Kind::Float, if fused { parameter.device() } else { Device::Cpu })),
        _ => parameter.f_detach()?.f_zeros_like(),
    };
    Ok(names(algorithm).iter().map(zeros).collect::<Result<_, _>>()?)
}
