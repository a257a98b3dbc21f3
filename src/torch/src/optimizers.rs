//! Optimizers in PyTorch's three implementations, with access to their state.
//!
//! tch has libtorch's optimizers, which loop over the parameters, and cannot say what state they hold. Here are the same optimizers
//! ([`Implementation::Loop`] is libtorch's own code), and beside them what PyTorch in Python has: [`Implementation::Foreach`], its
//! default on CUDA, and [`Implementation::Fused`], kernels that take many tensors at once and need no temporaries. They run on CPU
//! and CUDA.
//!
//! What a step does is as in torch/optim of PyTorch 2.11: a parameter without a gradient is passed over, and its state begins with
//! its first gradient. Where PyTorch's own code goes wrong it is not followed: see [`Implementation::Fused`].
//!
//! ```no_run
//! use tch::{Device, Kind, Tensor, nn};
//! use torch::optimizers::{Algorithm, Implementation, Optimizer, ZeroGrad};
//!
//! let store = nn::VarStore::new(Device::Cpu);
//! let weight = store.root().zeros("weight", &[4]);
//! let mut optimizer = Optimizer::new(&store, Algorithm::adamw(), 1e-3, Implementation::Fused)?;
//! (&weight - 1.0).square().sum(Kind::Float).backward();
//! optimizer.step()?;
//! optimizer.zero_grad(ZeroGrad::ToNone)?;
//! assert_eq!(optimizer.state_bytes(Device::Cpu)?, 2 * 4 * 4 + 4);
//! # anyhow::Ok(())
//! ```

use super::native::NativeError;
use super::native::optimizers::{
    self as native, AdamLists, AdamSettings, Loop, LoopSettings, LoopState, RmsPropLists, RmsPropSettings, Scaling, SgdSettings,
};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{HashMap, HashSet};
use std::fmt;
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

/// How a step runs through the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Implementation {
    /// libtorch's own optimizers: one parameter after another, a kernel for each operation. Temporaries are as large as the largest
    /// parameter. They know no `maximize`.
    Loop,
    /// One operation after another, each a kernel over many parameters: PyTorch's default on CUDA. Temporaries are as large as all
    /// parameters together, but for SGD. Steps are counted on the CPU. With Nesterov's momentum the gradients themselves are
    /// changed, as in PyTorch.
    Foreach,
    /// One kernel over many parameters, without temporaries; there is none for RMSProp in PyTorch. Steps are counted on the device,
    /// and a [`GradScale`] can skip a step there. In PyTorch 2.11 momentum fails where a parameter gets its first gradient after
    /// others, and keeps uninitialised memory where the first step is skipped; here neither happens.
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

/// Stochastic gradient descent. The default is plain, without state.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sgd {
    pub momentum: f64,
    pub dampening: f64,
    pub weight_decay: f64,
    pub nesterov: bool,
    /// Ascend instead.
    pub maximize: bool,
}

/// RMSProp. The default is PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsProp {
    pub alpha: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    pub momentum: f64,
    pub centered: bool,
    /// Ascend instead.
    pub maximize: bool,
}

impl Default for RmsProp {
    fn default() -> Self {
        RmsProp { alpha: 0.99, epsilon: 1e-8, weight_decay: 0.0, momentum: 0.0, centered: false, maximize: false }
    }
}

/// Adam, or AdamW. The default is PyTorch's Adam.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    pub betas: (f64, f64),
    pub epsilon: f64,
    pub weight_decay: f64,
    pub amsgrad: bool,
    /// Ascend instead.
    pub maximize: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Adam { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0, amsgrad: false, maximize: false }
    }
}

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Algorithm {
    Sgd(Sgd),
    RmsProp(RmsProp),
    /// Weight decay is added to the gradient.
    Adam(Adam),
    /// Weight decay is taken from the parameter.
    AdamW(Adam),
}

/// Constructors with PyTorch's default settings.
impl Algorithm {
    /// SGD without momentum.
    pub fn sgd() -> Algorithm {
        Algorithm::Sgd(Sgd::default())
    }

    /// SGD with this momentum.
    pub fn momentum(momentum: f64) -> Algorithm {
        Algorithm::Sgd(Sgd { momentum, ..Sgd::default() })
    }

    pub fn rmsprop() -> Algorithm {
        Algorithm::RmsProp(RmsProp::default())
    }

    pub fn adam() -> Algorithm {
        Algorithm::Adam(Adam::default())
    }

    /// With weight decay 0.01.
    pub fn adamw() -> Algorithm {
        Algorithm::AdamW(Adam { weight_decay: 0.01, ..Adam::default() })
    }

    fn name(&self) -> &'static str {
        match self {
            Algorithm::Sgd(_) => "SGD",
            Algorithm::RmsProp(_) => "RMSProp",
            Algorithm::Adam(_) => "Adam",
            Algorithm::AdamW(_) => "AdamW",
        }
    }

    fn maximizes(&self) -> bool {
        match self {
            Algorithm::Sgd(sgd) => sgd.maximize,
            Algorithm::RmsProp(rmsprop) => rmsprop.maximize,
            Algorithm::Adam(adam) | Algorithm::AdamW(adam) => adam.maximize,
        }
    }

    /// Says whether the settings are ones that PyTorch takes, in an implementation that has them.
    fn validate(&self, implementation: Implementation) -> Result<()> {
        let positive = |what: &str, value: f64| {
            ensure!(value >= 0.0 && value.is_finite(), "{}: {what} is {value}, and must not be below 0", self.name());
            Ok(())
        };
        match self {
            Algorithm::Sgd(sgd) => {
                positive("momentum", sgd.momentum)?;
                positive("weight decay", sgd.weight_decay)?;
                let sound = !sgd.nesterov || (sgd.momentum > 0.0 && sgd.dampening == 0.0);
                ensure!(sound, "SGD: Nesterov momentum requires a momentum and zero dampening");
            }
            Algorithm::RmsProp(rmsprop) => {
                positive("alpha", rmsprop.alpha)?;
                positive("epsilon", rmsprop.epsilon)?;
                positive("momentum", rmsprop.momentum)?;
                positive("weight decay", rmsprop.weight_decay)?;
                let fused = implementation == Implementation::Fused;
                ensure!(!fused, "RMSProp has no fused implementation in PyTorch; take Implementation::Foreach or Loop");
            }
            Algorithm::Adam(adam) | Algorithm::AdamW(adam) => {
                for beta in [adam.betas.0, adam.betas.1] {
                    ensure!((0.0..1.0).contains(&beta), "{}: a beta is {beta}, and must be from 0 to below 1", self.name());
                }
                positive("epsilon", adam.epsilon)?;
                positive("weight decay", adam.weight_decay)?;
            }
        }
        let unknown = implementation == Implementation::Loop && self.maximizes();
        ensure!(!unknown, "{}: libtorch's loop cannot maximize; take Implementation::Foreach or Fused", self.name());
        Ok(())
    }

    fn settings(&self, rate: f64) -> LoopSettings {
        match *self {
            Algorithm::Sgd(Sgd { momentum, dampening, weight_decay, nesterov, maximize }) => LoopSettings::Sgd(SgdSettings {
                rate,
                momentum,
                dampening,
                weight_decay,
                nesterov: nesterov.into(),
                maximize: maximize.into(),
            }),
            Algorithm::RmsProp(RmsProp { alpha, epsilon, weight_decay, momentum, centered, maximize }) => {
                LoopSettings::RmsProp(RmsPropSettings {
                    rate,
                    alpha,
                    epsilon,
                    weight_decay,
                    momentum,
                    centered: centered.into(),
                    maximize: maximize.into(),
                })
            }
            Algorithm::Adam(adam) | Algorithm::AdamW(adam) => LoopSettings::Adam(AdamSettings {
                rate,
                beta1: adam.betas.0,
                beta2: adam.betas.1,
                epsilon: adam.epsilon,
                weight_decay: adam.weight_decay,
                decoupled: matches!(self, Algorithm::AdamW(_)).into(),
                amsgrad: adam.amsgrad.into(),
                maximize: adam.maximize.into(),
            }),
        }
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

/// What a gradient scaler tells a fused step: tensors of one float, on any device. The step then reads them on its device, and
/// nothing waits for it.
#[derive(Debug, Default)]
pub struct GradScale {
    /// The factor that the gradients still carry; the step divides them by it, and leaves them divided.
    pub grad_scale: Option<Tensor>,
    /// 1 where a gradient overflowed: then parameters, moments and the count of steps stay as they are. Otherwise 0.
    pub found_inf: Option<Tensor>,
}

/// Something that an optimizer keeps for a parameter.
#[derive(Debug)]
pub enum Kept {
    /// A handle to the optimizer's own tensor: writing to it changes the state.
    Tensor(Tensor),
    /// Steps so far, where they are counted without a tensor.
    Steps(i64),
}

/// An optimizer's state for one parameter.
#[derive(Debug)]
pub struct ParameterState {
    /// Name of the parameter.
    pub parameter: String,
    /// By PyTorch's names: `step`, `exp_avg`, `exp_avg_sq`, `max_exp_avg_sq`, `momentum_buffer`, `square_avg`, `grad_avg`.
    pub kept: Vec<(String, Kept)>,
}

impl ParameterState {
    /// The tensor under a name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.kept.iter().find_map(|(own, kept)| match kept {
            Kept::Tensor(tensor) if own == name => Some(tensor),
            _ => None,
        })
    }

    /// Steps that the parameter has taken; none where the algorithm does not count them. Waits for the device where they are
    /// counted there.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn steps(&self) -> Result<Option<i64>> {
        for (name, kept) in &self.kept {
            match kept {
                Kept::Steps(steps) => return Ok(Some(*steps)),
                Kept::Tensor(tensor) if name == "step" => return Ok(Some(tensor.f_double_value(&[])? as i64)),
                Kept::Tensor(_) => {}
            }
        }
        Ok(None)
    }
}

/// A parameter and what foreach and fused keep for it.
#[derive(Debug)]
struct StateSlot {
    name: String,
    parameter: Tensor,
    moments: Moments,
}

/// State of one parameter; an undefined tensor, or `None`, is one that is not there.
#[derive(Debug)]
enum Moments {
    None,
    Momentum(Tensor),
    RmsProp { step: Tensor, square_avg: Tensor, momentum_buffer: Option<Tensor>, grad_avg: Option<Tensor> },
    Adam { step: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, max_exp_avg_sq: Option<Tensor> },
}

/// Parameters with settings of their own.
#[derive(Debug)]
struct ParameterGroup {
    algorithm: Algorithm,
    rate: f64,
    slots: Vec<StateSlot>,
    /// libtorch's optimizer, where it is what steps.
    own: Option<Loop>,
}

/// An optimizer over named parameters.
#[derive(Debug)]
pub struct Optimizer {
    implementation: Implementation,
    groups: Vec<ParameterGroup>,
}

impl Optimizer {
    /// An optimizer over the trainable variables that a store has now, in the order in which they were made. Frozen ones get no
    /// gradients, and are passed over. State comes into being with the first step.
    ///
    /// # Errors
    /// A store without trainable variables; settings that PyTorch refuses or the implementation lacks.
    pub fn new(store: &VarStore, algorithm: Algorithm, rate: f64, implementation: Implementation) -> Result<Optimizer> {
        Optimizer::over(named_parameters(store), algorithm, rate, implementation)
    }

    /// An optimizer over parameters with names.
    ///
    /// # Errors
    /// No parameters; a parameter given twice, or one that a computation gave; kinds that optimizers do not take; settings that
    /// PyTorch refuses or the implementation lacks.
    pub fn over(
        parameters: Vec<(String, Tensor)>,
        algorithm: Algorithm,
        rate: f64,
        implementation: Implementation,
    ) -> Result<Optimizer> {
        ensure!(!parameters.is_empty(), "optimizer got an empty parameter list");
        let mut optimizer = Optimizer { implementation, groups: Vec::new() };
        optimizer.add_group(parameters, algorithm, rate)?;
        Ok(optimizer)
    }

    /// Adds parameters with settings of their own, and gives the number of their group; the first is 0.
    ///
    /// # Errors
    /// As for [`Optimizer::over`]; parameters that another group has.
    pub fn add_group(&mut self, parameters: Vec<(String, Tensor)>, algorithm: Algorithm, rate: f64) -> Result<usize> {
        algorithm.validate(self.implementation)?;
        check_rate(rate)?;
        let mut known: HashSet<usize> = self.slots().map(|slot| native::tensor_identity(&slot.parameter)).collect();
        for (name, parameter) in &parameters {
            ensure!(parameter.is_leaf(), "can't optimize '{name}': it is no leaf, a computation gave it");
            let real = matches!(parameter.kind(), Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16);
            ensure!(
                real,
                "can't optimize '{name}', a tensor of {:?}: parameters are real floating-point tensors",
                parameter.kind()
            );
            ensure!(known.insert(native::tensor_identity(parameter)), "'{name}' is a parameter that the optimizer has already");
        }
        let own = match self.implementation {
            Implementation::Loop => {
                let tensors: Vec<&Tensor> = parameters.iter().map(|(_, parameter)| parameter).collect();
                Some(Loop::new(&tensors, &algorithm.settings(rate))?)
            }
            Implementation::Foreach | Implementation::Fused => None,
        };
        let slots = parameters.into_iter().map(|(name, parameter)| StateSlot { name, parameter, moments: Moments::None }).collect();
        self.groups.push(ParameterGroup { algorithm, rate, slots, own });
        Ok(self.groups.len() - 1)
    }

    pub fn implementation(&self) -> Implementation {
        self.implementation
    }

    /// How many groups of parameters there are.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The learning rate of a group.
    ///
    /// # Errors
    /// There is no such group.
    pub fn learning_rate(&self, group: usize) -> Result<f64> {
        Ok(self.groups.get(group).with_context(|| no_group(group, self.groups.len()))?.rate)
    }

    /// Sets the learning rate of a group.
    ///
    /// # Errors
    /// There is no such group; a rate below 0.
    pub fn set_learning_rate_of(&mut self, group: usize, rate: f64) -> Result<()> {
        check_rate(rate)?;
        let count = self.groups.len();
        let group = self.groups.get_mut(group).with_context(|| no_group(group, count))?;
        group.rate = rate;
        if let Some(own) = &mut group.own {
            own.set_rate(rate)?;
        }
        Ok(())
    }

    /// The parameters with their names, group by group.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.slots().map(|slot| (slot.name.as_str(), &slot.parameter))
    }

    /// Frees or clears the gradients of all parameters.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn zero_grad(&mut self, how: ZeroGrad) -> Result<()> {
        let parameters: Vec<&Tensor> = self.slots().map(|slot| &slot.parameter).collect();
        Ok(native::zero_gradients(&parameters, how == ZeroGrad::ToNone)?)
    }

    /// Takes a step with the gradients that the parameters have.
    ///
    /// # Errors
    /// Sparse gradients, before anything is changed; libtorch's message, out of memory included.
    pub fn step(&mut self) -> Result<()> {
        self.step_scaled(&GradScale::default())
    }

    /// Takes a step with gradients that a scaler has multiplied, or takes none where it found an overflow.
    ///
    /// # Errors
    /// As for [`Optimizer::step`]; a scale for another implementation than the fused one, or one that is not a single float.
    pub fn step_scaled(&mut self, scale: &GradScale) -> Result<()> {
        for (what, tensor) in [("grad_scale", &scale.grad_scale), ("found_inf", &scale.found_inf)] {
            let Some(tensor) = tensor else { continue };
            ensure!(
                self.implementation == Implementation::Fused,
                "{what} is for fused optimizers; with Implementation::{:?}, unscale the gradients and decide about the step before it",
                self.implementation
            );
            let single = tensor.defined() && tensor.numel() == 1 && tensor.kind() == Kind::Float;
            ensure!(single, "{what} must be a tensor of one float");
        }
        let mut gradients = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let of_group: Vec<Tensor> = group.slots.iter().map(|slot| slot.parameter.f_grad()).collect::<Result<_, _>>()?;
            let sparse = of_group.iter().zip(&group.slots).find(|(gradient, _)| gradient.defined() && gradient.is_sparse());
            if let Some((_, slot)) = sparse {
                bail!("'{}' has a sparse gradient, which {} does not support here", slot.name, group.algorithm.name());
            }
            gradients.push(of_group);
        }
        let scaling = Scaling { gradient_scale: scale.grad_scale.as_ref(), found_inf: scale.found_inf.as_ref() };
        let implementation = self.implementation;
        for (group, gradients) in self.groups.iter_mut().zip(gradients) {
            match &mut group.own {
                Some(own) => own.step()?,
                None => group.step(&gradients, implementation, scaling)?,
            }
        }
        Ok(())
    }

    /// The state of each parameter that has any, in the order of the parameters.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn state(&self) -> Result<Vec<ParameterState>> {
        let mut states = Vec::new();
        for group in &self.groups {
            for slot in &group.slots {
                let kept = match &group.own {
                    Some(own) => own.state(&slot.parameter)?.into_iter().map(|(name, state)| (name, Kept::from(state))).collect(),
                    None => slot.moments.kept(),
                };
                if !kept.is_empty() {
                    states.push(ParameterState { parameter: slot.name.clone(), kept });
                }
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
        let bytes = |kept: &Kept| match kept {
            Kept::Tensor(tensor) if tensor.device() == device => (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64,
            _ => 0,
        };
        Ok(self.state()?.iter().flat_map(|state| &state.kept).map(|(_, kept)| bytes(kept)).sum())
    }

    fn slots(&self) -> impl Iterator<Item = &StateSlot> {
        self.groups.iter().flat_map(|group| &group.slots)
    }
}

impl From<LoopState> for Kept {
    fn from(state: LoopState) -> Kept {
        match state {
            LoopState::Tensor(tensor) => Kept::Tensor(tensor),
            LoopState::Steps(steps) => Kept::Steps(steps),
        }
    }
}

fn no_group(group: usize, count: usize) -> String {
    format!("there is no group {group} of parameters: the optimizer has {count}, counted from 0")
}

fn check_rate(rate: f64) -> Result<()> {
    ensure!(rate >= 0.0 && rate.is_finite(), "a learning rate is {rate}, and must not be below 0");
    Ok(())
}

/// The trainable variables of a store with their names, in the order in which they were made.
pub fn named_parameters(store: &VarStore) -> Vec<(String, Tensor)> {
    let mut names: HashMap<usize, String> =
        store.variables().into_iter().map(|(name, tensor)| (native::tensor_identity(&tensor), name)).collect();
    let named = |tensor: Tensor| (names.remove(&native::tensor_identity(&tensor)).unwrap_or_default(), tensor);
    store.trainable_variables().into_iter().map(named).collect()
}

impl Moments {
    fn kept(&self) -> Vec<(String, Kept)> {
        let tensors: Vec<(&str, Option<&Tensor>)> = match self {
            Moments::None => vec![],
            Moments::Momentum(buffer) => vec![("momentum_buffer", Some(buffer))],
            Moments::RmsProp { step, square_avg, momentum_buffer, grad_avg } => vec![
                ("step", Some(step)),
                ("square_avg", Some(square_avg)),
                ("momentum_buffer", momentum_buffer.as_ref()),
                ("grad_avg", grad_avg.as_ref()),
            ],
            Moments::Adam { step, exp_avg, exp_avg_sq, max_exp_avg_sq } => vec![
                ("step", Some(step)),
                ("exp_avg", Some(exp_avg)),
                ("exp_avg_sq", Some(exp_avg_sq)),
                ("max_exp_avg_sq", max_exp_avg_sq.as_ref()),
            ],
        };
        let there = |(name, tensor): (&'static str, Option<&Tensor>)| {
            tensor.filter(|tensor| tensor.defined()).map(|tensor| (name.to_string(), Kept::Tensor(tensor.shallow_clone())))
        };
        tensors.into_iter().filter_map(there).collect()
    }
}

/// Parameters that one call of a kernel may take: of one device and kind, and for fused momentum all at their first step or none.
#[derive(PartialEq)]
struct Together {
    device: Device,
    kind: Kind,
    first: bool,
}

impl ParameterGroup {
    fn step(&mut self, gradients: &[Tensor], implementation: Implementation, scaling: Scaling) -> Result<()> {
        let mut sets: Vec<(Together, Vec<usize>)> = Vec::new();
        for (i, (slot, gradient)) in self.slots.iter().zip(gradients).enumerate() {
            if !gradient.defined() {
                continue;
            }
            let first = implementation == Implementation::Fused && matches!(slot.moments, Moments::None);
            let key = Together { device: slot.parameter.device(), kind: slot.parameter.kind(), first };
            match sets.iter_mut().find(|(known, _)| *known == key) {
                Some((_, members)) => members.push(i),
                None => sets.push((key, vec![i])),
            }
        }
        let settings = self.algorithm.settings(self.rate);
        for (together, members) in sets {
            for &i in &members {
                self.slots[i].begin(&self.algorithm, implementation, &gradients[i])?;
            }
            let mut slots: Vec<(&mut StateSlot, &Tensor)> = Vec::with_capacity(members.len());
            let mut wanted = members.into_iter().peekable();
            for (i, slot) in self.slots.iter_mut().enumerate() {
                if wanted.next_if_eq(&i).is_some() {
                    slots.push((slot, &gradients[i]));
                }
            }
            let stepped = match &settings {
                LoopSettings::Sgd(settings) => step_sgd(&mut slots, settings, implementation, together.first, scaling),
                LoopSettings::RmsProp(settings) => step_rmsprop(&slots, settings),
                LoopSettings::Adam(settings) => step_adam(&slots, settings, implementation, scaling),
            };
            stepped?;
        }
        Ok(())
    }
}

impl StateSlot {
    /// Brings the state into being that the parameter's first step needs. Foreach makes its momentum buffer in the step.
    fn begin(&mut self, algorithm: &Algorithm, implementation: Implementation, gradient: &Tensor) -> Result<()> {
        if !matches!(self.moments, Moments::None) {
            return Ok(());
        }
        let parameter = &self.parameter;
        let fused = implementation == Implementation::Fused;
        let zeros = || parameter.f_detach()?.f_zeros_like();
        let zeros_if = |wanted: bool| if wanted { zeros().map(Some) } else { Ok(None) };
        // Where the kernel reads it: on the device, or on the CPU whose code computes the corrections.
        let step = || Tensor::f_zeros([0i64; 0], (Kind::Float, if fused { parameter.device() } else { Device::Cpu }));
        self.moments = match algorithm {
            Algorithm::Sgd(sgd) if sgd.momentum == 0.0 => Moments::None,
            Algorithm::Sgd(_) if fused => Moments::Momentum(gradient.f_detach()?.f_zeros_like()?),
            Algorithm::Sgd(_) => Moments::Momentum(Tensor::new()),
            Algorithm::RmsProp(rmsprop) => Moments::RmsProp {
                step: step()?,
                square_avg: zeros()?,
                momentum_buffer: zeros_if(rmsprop.momentum > 0.0)?,
                grad_avg: zeros_if(rmsprop.centered)?,
            },
            Algorithm::Adam(adam) | Algorithm::AdamW(adam) => {
                Moments::Adam { step: step()?, exp_avg: zeros()?, exp_avg_sq: zeros()?, max_exp_avg_sq: zeros_if(adam.amsgrad)? }
            }
        };
        Ok(())
    }
}

fn step_sgd(
    slots: &mut [(&mut StateSlot, &Tensor)],
    settings: &SgdSettings,
    implementation: Implementation,
    first: bool,
    scaling: Scaling,
) -> Result<(), NativeError> {
    let gradients: Vec<&Tensor> = slots.iter().map(|(_, gradient)| *gradient).collect();
    let (mut parameters, mut buffers) = (Vec::with_capacity(slots.len()), Vec::new());
    for (slot, _) in slots {
        let StateSlot { parameter, moments, .. } = &mut **slot;
        parameters.push(&*parameter);
        if let Moments::Momentum(buffer) = moments {
            buffers.push(buffer);
        }
    }
    if implementation == Implementation::Fused {
        let buffers: Vec<&Tensor> = buffers.into_iter().map(|buffer| &*buffer).collect();
        native::fused_sgd([&parameters, &gradients, &buffers], settings, first && settings.momentum != 0.0, scaling)
    } else {
        native::foreach_sgd(&parameters, &gradients, &mut buffers, settings)
    }
}

fn step_adam(
    slots: &[(&mut StateSlot, &Tensor)],
    settings: &AdamSettings,
    implementation: Implementation,
    scaling: Scaling,
) -> Result<(), NativeError> {
    let mut lists = AdamLists::default();
    for (slot, gradient) in slots {
        if let Moments::Adam { step, exp_avg, exp_avg_sq, max_exp_avg_sq } = &slot.moments {
            lists.parameters.push(&slot.parameter);
            lists.gradients.push(gradient);
            lists.exp_avgs.push(exp_avg);
            lists.exp_avg_sqs.push(exp_avg_sq);
            lists.max_exp_avg_sqs.extend(max_exp_avg_sq);
            lists.steps.push(step);
        }
    }
    if implementation == Implementation::Fused {
        native::fused_adam(&lists, settings, scaling)
    } else {
        native::foreach_adam(&lists, settings)
    }
}

fn step_rmsprop(slots: &[(&mut StateSlot, &Tensor)], settings: &RmsPropSettings) -> Result<(), NativeError> {
    let mut lists = RmsPropLists::default();
    for (slot, gradient) in slots {
        if let Moments::RmsProp { step, square_avg, momentum_buffer, grad_avg } = &slot.moments {
            lists.parameters.push(&slot.parameter);
            lists.gradients.push(gradient);
            lists.square_avgs.push(square_avg);
            lists.momentum_buffers.extend(momentum_buffer);
            lists.gradient_avgs.extend(grad_avg);
            lists.steps.push(step);
        }
    }
    native::foreach_rmsprop(&lists, settings)
}
