//! The safe wrapper of `optimizers.cpp`: steps of fused and foreach optimizers over lists of tensors, and libtorch's own optimizers
//! with their state. See [`crate::optimizers`] for what to use.

use super::{Message, NativeError, checked};
use std::ffi::{CStr, c_char, c_void};
use tch::Tensor;
use torch_sys::C_tensor;

/// What a step computes, with PyTorch's default settings.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// SGD without momentum, which has no state.
    Sgd,
    /// SGD with momentum 0.9.
    Momentum,
    RmsProp,
    Adam,
    /// With weight decay 0.01, taken from the parameter.
    AdamW,
}

impl Algorithm {
    pub const BY_NAME: [(&str, Algorithm); 5] = [
        ("sgd", Algorithm::Sgd),
        ("momentum", Algorithm::Momentum),
        ("rmsprop", Algorithm::RmsProp),
        ("adam", Algorithm::Adam),
        ("adamw", Algorithm::AdamW),
    ];
}

/// Tensors as C++ reads them.
#[repr(C)]
#[derive(Clone, Copy)]
struct TensorSpan {
    tensors: *const *mut C_tensor,
    count: usize,
}

#[repr(C)]
struct RawLoop {
    _opaque: [u8; 0],
}

type TakeState = extern "C" fn(*mut c_void, *const c_char, *mut C_tensor);

unsafe extern "C" {
    fn vl_tensor_identity(tensor: *const C_tensor) -> *const c_void;
    fn vl_gradient_addresses(parameters: TensorSpan, addresses: *mut u64) -> Message;
    fn vl_zero_gradients(parameters: TensorSpan, to_none: i32) -> Message;
    fn vl_optimizer_step(
        algorithm: Algorithm,
        fused: i32,
        rate: f64,
        parameters: TensorSpan,
        gradients: TensorSpan,
        state: *const TensorSpan,
    ) -> Message;
    fn vl_loop_new(algorithm: Algorithm, rate: f64, parameters: TensorSpan, out: *mut *mut RawLoop) -> Message;
    fn vl_loop_step(optimizer: *mut RawLoop) -> Message;
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

/// Takes a step with PyTorch's fused kernel, or with one operation over all tensors after another. `state` has a list for each tensor that
/// the algorithm keeps: `momentum_buffer`; `step` and `square_avg`; `step`, `exp_avg` and `exp_avg_sq`.
///
/// # Errors
/// Lists that differ in length; libtorch's message.
pub fn step(
    algorithm: Algorithm,
    fused: bool,
    rate: f64,
    parameters: &[&Tensor],
    gradients: &[&Tensor],
    state: &[Vec<&Tensor>],
) -> Result<(), NativeError> {
    let lists = match algorithm {
        Algorithm::Sgd => 0,
        Algorithm::Momentum => 1,
        Algorithm::RmsProp => 2,
        Algorithm::Adam | Algorithm::AdamW => 3,
    };
    let long = |list: &[&Tensor]| list.len() == parameters.len();
    if !long(gradients) || state.len() != lists || !state.iter().all(|list| long(list)) {
        return Err(NativeError("lists of tensors that belong together differ in length".to_string()));
    }
    let [parameters, gradients] = [parameters, gradients].map(Pointers::of);
    let state: Vec<Pointers> = state.iter().map(|list| Pointers::of(list)).collect();
    let spans: Vec<TensorSpan> = state.iter().map(Pointers::span).collect();
    // SAFETY: all pointers are of live tensors, in lists as long and as many as C++ reads; what is written belongs to all handles of a
    // tensor.
    checked(unsafe { vl_optimizer_step(algorithm, fused.into(), rate, parameters.span(), gradients.span(), spans.as_ptr()) })
}

/// One of libtorch's own optimizers (`torch::optim`), as tch's are: a loop over the parameters.
#[derive(Debug)]
pub struct Loop(*mut RawLoop);

// SAFETY: the optimizer is ours alone, and holds tensors, which any thread may use.
unsafe impl Send for Loop {}

impl Loop {
    /// An optimizer without state.
    ///
    /// # Errors
    /// libtorch's message where it does not take the parameters.
    pub fn new(parameters: &[&Tensor], algorithm: Algorithm, rate: f64) -> Result<Loop, NativeError> {
        let mut raw = std::ptr::null_mut();
        let parameters = Pointers::of(parameters);
        // SAFETY: the pointers are of live tensors, of which libtorch takes handles of its own; an owned optimizer is written where
        // the function succeeds.
        checked(unsafe { vl_loop_new(algorithm, rate, parameters.span(), &mut raw) })?;
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

    /// The tensors of a parameter's state by PyTorch's names; nothing where it has none.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn state(&self, parameter: &Tensor) -> Result<Vec<(String, Tensor)>, NativeError> {
        let mut found: Vec<(String, Tensor)> = Vec::new();
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

extern "C" fn take_state(found: *mut c_void, name: *const c_char, tensor: *mut C_tensor) {
    // SAFETY: the name is a string constant; the tensor is a new handle that belongs to us; the vector is that of `Loop::state`.
    unsafe {
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        (*found.cast::<Vec<(String, Tensor)>>()).push((name, Tensor::from_ptr(tensor)));
    }
}
