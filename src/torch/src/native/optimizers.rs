//! The safe wrapper of `optimizers.cpp`: steps of fused and foreach optimizers over lists of tensors, and libtorch's own optimizers
//! with their state. See [`crate::optimizers`] for what to use.

use super::{Message, NativeError, checked};
use std::ffi::{CStr, c_char, c_void};
use tch::Tensor;
use torch_sys::C_tensor;

/// Tensors as C++ reads them. The functions here check that lists which belong together are equally long.
#[repr(C)]
#[derive(Clone, Copy)]
struct TensorSpan {
    tensors: *const *mut C_tensor,
    count: usize,
}

/// Settings of Adam; of AdamW where weight decay is decoupled.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AdamSettings {
    pub rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    pub decoupled: i32,
    pub amsgrad: i32,
    pub maximize: i32,
}

/// Settings of SGD.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SgdSettings {
    pub rate: f64,
    pub momentum: f64,
    pub dampening: f64,
    pub weight_decay: f64,
    pub nesterov: i32,
    pub maximize: i32,
}

/// Settings of RMSProp.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RmsPropSettings {
    pub rate: f64,
    pub alpha: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    pub momentum: f64,
    pub centered: i32,
    pub maximize: i32,
}

#[repr(C)]
struct RawAdamLists {
    parameters: TensorSpan,
    gradients: TensorSpan,
    exp_avgs: TensorSpan,
    exp_avg_sqs: TensorSpan,
    max_exp_avg_sqs: TensorSpan,
    steps: TensorSpan,
}

#[repr(C)]
struct RawRmsPropLists {
    parameters: TensorSpan,
    gradients: TensorSpan,
    square_avgs: TensorSpan,
    gradient_avgs: TensorSpan,
    momentum_buffers: TensorSpan,
    steps: TensorSpan,
}

#[repr(C)]
struct RawLoop {
    _opaque: [u8; 0],
}

type TakeState = extern "C" fn(*mut c_void, *const c_char, *mut C_tensor, i64);

unsafe extern "C" {
    fn vl_tensor_identity(tensor: *const C_tensor) -> *const c_void;
    fn vl_gradient_addresses(parameters: TensorSpan, addresses: *mut u64) -> Message;
    fn vl_zero_gradients(parameters: TensorSpan, to_none: i32) -> Message;
    fn vl_fused_adam(
        lists: *const RawAdamLists,
        settings: *const AdamSettings,
        gradient_scale: *const C_tensor,
        found_inf: *const C_tensor,
    ) -> Message;
    fn vl_fused_sgd(
        parameters: TensorSpan,
        gradients: TensorSpan,
        momentum_buffers: TensorSpan,
        settings: *const SgdSettings,
        first_step: i32,
        gradient_scale: *const C_tensor,
        found_inf: *const C_tensor,
    ) -> Message;
    fn vl_foreach_adam(lists: *const RawAdamLists, settings: *const AdamSettings) -> Message;
    fn vl_foreach_sgd(
        parameters: TensorSpan,
        gradients: TensorSpan,
        momentum_buffers: TensorSpan,
        settings: *const SgdSettings,
    ) -> Message;
    fn vl_foreach_rmsprop(lists: *const RawRmsPropLists, settings: *const RmsPropSettings) -> Message;
    fn vl_loop_sgd(parameters: TensorSpan, settings: *const SgdSettings, out: *mut *mut RawLoop) -> Message;
    fn vl_loop_rmsprop(parameters: TensorSpan, settings: *const RmsPropSettings, out: *mut *mut RawLoop) -> Message;
    fn vl_loop_adam(parameters: TensorSpan, settings: *const AdamSettings, out: *mut *mut RawLoop) -> Message;
    fn vl_loop_step(optimizer: *mut RawLoop) -> Message;
    fn vl_loop_set_rate(optimizer: *mut RawLoop, rate: f64) -> Message;
    fn vl_loop_state(optimizer: *const RawLoop, parameter: *const C_tensor, taker: *mut c_void, take: TakeState) -> Message;
    fn vl_loop_free(optimizer: *mut RawLoop);
}

/// Pointers to tensors that live as long as the list is borrowed.
struct Pointers(Vec<*mut C_tensor>);

impl Pointers {
    fn of(tensors: &[&Tensor]) -> Pointers {
        Pointers(tensors.iter().map(|tensor| tensor.as_ptr().cast_mut()).collect())
    }

    fn span(&self) -> TensorSpan {
        TensorSpan { tensors: self.0.as_ptr(), count: self.0.len() }
    }
}

fn pointer(tensor: Option<&Tensor>) -> *const C_tensor {
    tensor.map_or(std::ptr::null(), Tensor::as_ptr)
}

fn same_length(lists: &[&[&Tensor]]) -> Result<(), NativeError> {
    let length = lists.first().map_or(0, |list| list.len());
    if lists.iter().all(|list| list.len() == length) {
        return Ok(());
    }
    Err(NativeError("lists of tensors that belong together differ in length".to_string()))
}

/// The same for two handles of one tensor, and for no two tensors that live. An empty tensor has no address of its own.
pub fn tensor_identity(tensor: &Tensor) -> usize {
    // SAFETY: the tensor is alive; the pointer that comes back is a number to us.
    unsafe { vl_tensor_identity(tensor.as_ptr()) as usize }
}

/// The address of each parameter's gradient; 0 where there is none, or one without memory of its own, as a sparse one.
///
/// # Errors
/// libtorch's message.
pub fn gradient_addresses(parameters: &[&Tensor]) -> Result<Vec<u64>, NativeError> {
    let parameters = Pointers::of(parameters);
    let mut addresses = vec![0; parameters.0.len()];
    // SAFETY: the pointers are of live tensors, and there is room for an address of each.
    checked(unsafe { vl_gradient_addresses(parameters.span(), addresses.as_mut_ptr()) })?;
    Ok(addresses)
}

/// Frees the gradients of parameters, or fills them with zeros.
///
/// # Errors
/// libtorch's message.
pub fn zero_gradients(parameters: &[&Tensor], to_none: bool) -> Result<(), NativeError> {
    let parameters = Pointers::of(parameters);
    // SAFETY: the pointers are of live tensors. A gradient is part of what all handles of a tensor share, so that changing it needs
    // no exclusive handle.
    checked(unsafe { vl_zero_gradients(parameters.span(), to_none.into()) })
}

/// What tells a fused kernel of a gradient scaler, as tensors of one float: the scale by which gradients are still multiplied, and
/// whether one of them overflowed (1) and the step is not to be taken.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scaling<'a> {
    pub gradient_scale: Option<&'a Tensor>,
    pub found_inf: Option<&'a Tensor>,
}

/// Parameters of one device and kind, their gradients and Adam's state, in one order. The maxima are empty where there is no
/// amsgrad.
#[derive(Debug, Clone, Default)]
pub struct AdamLists<'a> {
    pub parameters: Vec<&'a Tensor>,
    pub gradients: Vec<&'a Tensor>,
    pub exp_avgs: Vec<&'a Tensor>,
    pub exp_avg_sqs: Vec<&'a Tensor>,
    pub max_exp_avg_sqs: Vec<&'a Tensor>,
    /// Steps so far: one float each, on the parameters' device for the fused kernel, on the CPU for foreach.
    pub steps: Vec<&'a Tensor>,
}

impl AdamLists<'_> {
    fn with<T>(&self, amsgrad: bool, run: impl FnOnce(&RawAdamLists) -> T) -> Result<T, NativeError> {
        same_length(&[&self.parameters, &self.gradients, &self.exp_avgs, &self.exp_avg_sqs, &self.steps])?;
        if amsgrad {
            same_length(&[&self.parameters, &self.max_exp_avg_sqs])?;
        }
        let lists = [&self.parameters, &self.gradients, &self.exp_avgs, &self.exp_avg_sqs, &self.max_exp_avg_sqs, &self.steps]
            .map(|l| Pointers::of(l));
        let [parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps] = lists.each_ref().map(Pointers::span);
        Ok(run(&RawAdamLists { parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps }))
    }
}

/// Counts a step of each parameter, then updates moments and parameters with `_fused_adam_` or `_fused_adamw_`.
///
/// # Errors
/// libtorch's message.
pub fn fused_adam(lists: &AdamLists, settings: &AdamSettings, scaling: Scaling) -> Result<(), NativeError> {
    let (scale, found) = (pointer(scaling.gradient_scale), pointer(scaling.found_inf));
    // SAFETY: all pointers are of live tensors, in lists as long as they say; what is written belongs to all handles of a tensor.
    checked(lists.with(settings.amsgrad != 0, |raw| unsafe { vl_fused_adam(raw, settings, scale, found) })?)
}

/// Updates momentum buffers and parameters with `_fused_sgd_`. The buffers are empty where there is no momentum; on the first step
/// of all of them they are written and not read.
///
/// # Errors
/// libtorch's message.
pub fn fused_sgd(
    [parameters, gradients, momentum_buffers]: [&[&Tensor]; 3],
    settings: &SgdSettings,
    first_step: bool,
    scaling: Scaling,
) -> Result<(), NativeError> {
    same_length(&[parameters, gradients, if settings.momentum == 0.0 { parameters } else { momentum_buffers }])?;
    let [parameters, gradients, buffers] = [parameters, gradients, momentum_buffers].map(Pointers::of);
    let (scale, found) = (pointer(scaling.gradient_scale), pointer(scaling.found_inf));
    // SAFETY: as for `fused_adam`.
    checked(unsafe { vl_fused_sgd(parameters.span(), gradients.span(), buffers.span(), settings, first_step.into(), scale, found) })
}

/// Counts a step of each parameter, then updates moments and parameters, one operation over all tensors after another.
///
/// # Errors
/// libtorch's message.
pub fn foreach_adam(lists: &AdamLists, settings: &AdamSettings) -> Result<(), NativeError> {
    // SAFETY: as for `fused_adam`.
    checked(lists.with(settings.amsgrad != 0, |raw| unsafe { vl_foreach_adam(raw, settings) })?)
}

/// Updates momentum buffers and parameters, one operation over all tensors after another. A buffer that is an undefined tensor is
/// made, as a copy of the gradient. As PyTorch's, it adds Nesterov's momentum to the gradients themselves.
///
/// # Errors
/// libtorch's message.
pub fn foreach_sgd(
    parameters: &[&Tensor],
    gradients: &[&Tensor],
    momentum_buffers: &mut [&mut Tensor],
    settings: &SgdSettings,
) -> Result<(), NativeError> {
    if settings.momentum != 0.0 && momentum_buffers.len() != parameters.len() {
        return Err(NativeError("lists of tensors that belong together differ in length".to_string()));
    }
    same_length(&[parameters, gradients])?;
    let [parameters, gradients] = [parameters, gradients].map(Pointers::of);
    let buffers = Pointers(momentum_buffers.iter_mut().map(|buffer| buffer.as_mut_ptr()).collect());
    // SAFETY: as for `fused_adam`; the buffers' handles may be assigned to, and are borrowed exclusively.
    checked(unsafe { vl_foreach_sgd(parameters.span(), gradients.span(), buffers.span(), settings) })
}

/// Parameters of one device and kind, their gradients and RMSProp's state, in one order. Averages of the gradient are empty where
/// it is not centred, momentum buffers where there is no momentum.
#[derive(Debug, Clone, Default)]
pub struct RmsPropLists<'a> {
    pub parameters: Vec<&'a Tensor>,
    pub gradients: Vec<&'a Tensor>,
    pub square_avgs: Vec<&'a Tensor>,
    pub gradient_avgs: Vec<&'a Tensor>,
    pub momentum_buffers: Vec<&'a Tensor>,
    /// Steps so far: one float each, on the CPU.
    pub steps: Vec<&'a Tensor>,
}

/// Counts a step of each parameter, then updates its averages and itself, one operation over all tensors after another.
///
/// # Errors
/// libtorch's message.
pub fn foreach_rmsprop(lists: &RmsPropLists, settings: &RmsPropSettings) -> Result<(), NativeError> {
    let RmsPropLists { parameters, gradients, square_avgs, gradient_avgs, momentum_buffers, steps } = lists;
    let wanted = |list, wanted: bool| if wanted { list } else { parameters };
    same_length(&[
        parameters,
        gradients,
        square_avgs,
        wanted(gradient_avgs, settings.centered != 0),
        wanted(momentum_buffers, settings.momentum > 0.0),
        steps,
    ])?;
    let lists = [parameters, gradients, square_avgs, gradient_avgs, momentum_buffers, steps].map(|l| Pointers::of(l));
    let [parameters, gradients, square_avgs, gradient_avgs, momentum_buffers, steps] = lists.each_ref().map(Pointers::span);
    let raw = RawRmsPropLists { parameters, gradients, square_avgs, gradient_avgs, momentum_buffers, steps };
    // SAFETY: as for `fused_adam`.
    checked(unsafe { vl_foreach_rmsprop(&raw, settings) })
}

/// Which of libtorch's optimizers, and its settings.
#[derive(Debug, Clone, Copy)]
pub enum LoopSettings {
    Sgd(SgdSettings),
    RmsProp(RmsPropSettings),
    Adam(AdamSettings),
}

/// One of libtorch's own optimizers (`torch::optim`), as tch's are: a loop over the parameters.
#[derive(Debug)]
pub struct Loop(*mut RawLoop);

// SAFETY: the optimizer is ours alone, and holds tensors, which any thread may use.
unsafe impl Send for Loop {}

/// What a parameter's state has under one name.
#[derive(Debug)]
pub enum LoopState {
    Tensor(Tensor),
    Steps(i64),
}

impl Loop {
    /// An optimizer without state.
    ///
    /// # Errors
    /// libtorch's message where it does not take the settings or the parameters.
    pub fn new(parameters: &[&Tensor], settings: &LoopSettings) -> Result<Loop, NativeError> {
        let mut raw = std::ptr::null_mut();
        let parameters = Pointers::of(parameters);
        // SAFETY: the pointers are of live tensors, of which libtorch takes handles of its own; an owned optimizer is written where
        // the function succeeds.
        checked(unsafe {
            match settings {
                LoopSettings::Sgd(settings) => vl_loop_sgd(parameters.span(), settings, &mut raw),
                LoopSettings::RmsProp(settings) => vl_loop_rmsprop(parameters.span(), settings, &mut raw),
                LoopSettings::Adam(settings) => vl_loop_adam(parameters.span(), settings, &mut raw),
            }
        })?;
        Ok(Loop(raw))
    }

    /// Takes a step with the gradients that the parameters have.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn step(&mut self) -> Result<(), NativeError> {
        // SAFETY: the pointer is owned and alive.
        checked(unsafe { vl_loop_step(self.0) })
    }

    /// Sets the learning rate of all parameters.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn set_rate(&mut self, rate: f64) -> Result<(), NativeError> {
        // SAFETY: the pointer is owned and alive.
        checked(unsafe { vl_loop_set_rate(self.0, rate) })
    }

    /// The state of a parameter by PyTorch's names; nothing where it has none.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn state(&self, parameter: &Tensor) -> Result<Vec<(String, LoopState)>, NativeError> {
        let mut found: Vec<(String, LoopState)> = Vec::new();
        // SAFETY: the pointers are alive; `take_state` only runs during the call, while `found` is borrowed by nothing else.
        checked(unsafe { vl_loop_state(self.0, parameter.as_ptr(), (&raw mut found).cast(), take_state) })?;
        Ok(found)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned and freed once.
        unsafe { vl_loop_free(self.0) };
    }
}

extern "C" fn take_state(found: *mut c_void, name: *const c_char, tensor: *mut C_tensor, steps: i64) {
    // SAFETY: the name is a string constant; the tensor is null or a new handle that belongs to us; the vector is that of
    // `Loop::state`.
    unsafe {
        let state = if tensor.is_null() { LoopState::Steps(steps) } else { LoopState::Tensor(Tensor::from_ptr(tensor)) };
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        (*found.cast::<Vec<(String, LoopState)>>()).push((name, state));
    }
}
