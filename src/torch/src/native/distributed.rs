//! The safe wrapper of `distributed.cpp`: c10d's stores, process groups and reducer. See [`crate::distributed`] and
//! [`crate::ddp`] for what they mean.

use super::{Message, NativeError, checked};
use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tch::Tensor;
use torch_sys::C_tensor;

/// The library that makes NCCL process groups, to be opened in a process that has loaded CUDA's half of libtorch; empty where the program
/// was built without the headers that it needs.
pub const NCCL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nccl.so"));

#[repr(C)]
struct RawStore {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawGroup {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawReducer {
    _opaque: [u8; 0],
}

type TakeValue = extern "C" fn(*mut c_void, *const u8, usize);
type TakeBytes = extern "C" fn(*mut c_void, i64);

unsafe extern "C" {
    fn vl_store_open(
        host: *const c_char,
        port: u16,
        listen: i32,
        timeout_ms: i64,
        out: *mut *mut RawStore,
        out_port: *mut u16,
    ) -> Message;
    fn vl_store_prefixed(store: *const RawStore, prefix: *const c_char, out: *mut *mut RawStore) -> Message;
    fn vl_store_set(store: *const RawStore, key: *const c_char, value: *const u8, length: usize) -> Message;
    fn vl_store_get(store: *const RawStore, key: *const c_char, taker: *mut c_void, take: TakeValue) -> Message;
    fn vl_store_add(store: *const RawStore, key: *const c_char, amount: i64, out: *mut i64) -> Message;
    fn vl_store_free(store: *mut RawStore);
    fn vl_group_alone(rank: i32, size: i32, cuda: i32, out: *mut *mut RawGroup) -> Message;
    fn vl_group_gloo(
        store: *const RawStore,
        rank: i32,
        size: i32,
        host: *const c_char,
        timeout_ms: i64,
        out: *mut *mut RawGroup,
    ) -> Message;
    fn vl_group_nccl(
        library: *const c_char,
        store: *const RawStore,
        rank: i32,
        size: i32,
        device: i32,
        timeout_ms: i64,
        out: *mut *mut RawGroup,
    ) -> Message;
    fn vl_group_free(group: *mut RawGroup);
    fn vl_group_barrier(group: *const RawGroup) -> Message;
    fn vl_group_broadcast(group: *const RawGroup, tensors: *const *const C_tensor, count: usize, packed_bytes: i64) -> Message;
    fn vl_reducer_new(
        group: *const RawGroup,
        parameters: *const *const C_tensor,
        count: usize,
        cap: i64,
        first_cap: i64,
        gradient_as_bucket_view: i32,
        out: *mut *mut RawReducer,
    ) -> Message;
    fn vl_reducer_before_forward(reducer: *mut RawReducer) -> Message;
    fn vl_reducer_before_backward(reducer: *mut RawReducer, prepared: *mut i32) -> Message;
    fn vl_reducer_check_finished(reducer: *mut RawReducer) -> Message;
    fn vl_reducer_buckets(reducer: *const RawReducer, taker: *mut c_void, take: TakeBytes) -> Message;
    fn vl_drop_gradients(parameters: *const *const C_tensor, count: usize);
    fn vl_reducer_free(reducer: *mut RawReducer);
}

fn c_string(text: &str) -> Result<CString, NativeError> {
    CString::new(text).map_err(|_| NativeError(format!("{text:?} has a zero byte inside")))
}

fn pointers(tensors: &[Tensor]) -> Vec<*const C_tensor> {
    tensors.iter().map(|tensor| tensor.as_ptr()).collect()
}

/// A key-value store that processes find each other by.
#[derive(Debug)]
pub struct NativeStore(*mut RawStore);

impl NativeStore {
    /// Opens a TCP store, serving it where `listen` is set (port 0: one that is free), and says its port.
    ///
    /// # Errors
    /// The port is taken, nobody listens there in time, or the name of the host is not known: libtorch's message.
    pub fn open(host: &str, port: u16, listen: bool, timeout_ms: i64) -> Result<(NativeStore, u16), NativeError> {
        let (host, mut raw, mut found) = (c_string(host)?, std::ptr::null_mut(), 0);
        // SAFETY: the name outlives the call, which writes an owned store where it succeeds.
        checked(unsafe { vl_store_open(host.as_ptr(), port, listen.into(), timeout_ms, &mut raw, &mut found) })?;
        Ok((NativeStore(raw), found))
    }

    /// The same store, with `prefix/` before each key.
    ///
    /// # Errors
    /// The prefix has a zero byte inside.
    pub fn prefixed(&self, prefix: &str) -> Result<NativeStore, NativeError> {
        let (prefix, mut raw) = (c_string(prefix)?, std::ptr::null_mut());
        // SAFETY: store and prefix outlive the call, which writes an owned store that keeps the other alive.
        checked(unsafe { vl_store_prefixed(self.0, prefix.as_ptr(), &mut raw) })?;
        Ok(NativeStore(raw))
    }

    /// # Errors
    /// The store's server is gone.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), NativeError> {
        let key = c_string(key)?;
        // SAFETY: the store copies key and value.
        checked(unsafe { vl_store_set(self.0, key.as_ptr(), value.as_ptr(), value.len()) })
    }

    /// Waits for a key and gives its value.
    ///
    /// # Errors
    /// Nobody sets the key within the store's timeout; the store's server is gone.
    pub fn get(&self, key: &str) -> Result<Vec<u8>, NativeError> {
        let (key, mut value) = (c_string(key)?, Vec::<u8>::new());
        // SAFETY: `push_value` only runs during the call, while `value` is borrowed by nothing else.
        checked(unsafe { vl_store_get(self.0, key.as_ptr(), (&raw mut value).cast(), push_value) })?;
        Ok(value)
    }

    /// Adds to the number under a key, which begins at 0, and gives the sum; atomic.
    ///
    /// # Errors
    /// The store's server is gone.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64, NativeError> {
        let (key, mut sum) = (c_string(key)?, 0);
        // SAFETY: the function writes one value.
        checked(unsafe { vl_store_add(self.0, key.as_ptr(), amount, &mut sum) })?;
        Ok(sum)
    }
}

impl Drop for NativeStore {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned and freed once; what still uses the store holds a reference of its own.
        unsafe { vl_store_free(self.0) };
    }
}

extern "C" fn push_value(value: *mut c_void, bytes: *const u8, length: usize) {
    if length > 0 {
        // SAFETY: the vector is that of `NativeStore::get`, and C++ gives `length` bytes.
        unsafe { (*value.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(bytes, length)) };
    }
}

/// Processes that communicate, or one alone that takes part as if there were others.
#[derive(Debug)]
pub struct Group(*mut RawGroup);

impl Group {
    /// One process without communication.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn alone(rank: i32, size: i32, cuda: bool) -> Result<Group, NativeError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the function writes an owned group where it succeeds.
        checked(unsafe { vl_group_alone(rank, size, cuda.into(), &mut raw) })?;
        Ok(Group(raw))
    }

    /// PyTorch's Gloo process group, connected to all others.
    ///
    /// # Errors
    /// Not all processes come in time; no address of this machine can be told. libtorch's message.
    pub fn gloo(store: &NativeStore, rank: i32, size: i32, host: Option<&str>, timeout_ms: i64) -> Result<Group, NativeError> {
        let (host, mut raw) = (host.map(c_string).transpose()?, std::ptr::null_mut());
        let host = host.as_ref().map_or(std::ptr::null(), |host| host.as_ptr());
        // SAFETY: store and name outlive the call, which writes an owned group that keeps the store alive.
        checked(unsafe { vl_group_gloo(store.0, rank, size, host, timeout_ms, &mut raw) })?;
        Ok(Group(raw))
    }

    /// PyTorch's NCCL process group on a CUDA device, from a file that holds [`NCCL`].
    ///
    /// # Errors
    /// CUDA's half of libtorch is not loaded; the loader's or libtorch's message.
    pub fn nccl(
        library: &Path,
        store: &NativeStore,
        rank: i32,
        size: i32,
        device: i32,
        timeout_ms: i64,
    ) -> Result<Group, NativeError> {
        let library = CString::new(library.as_os_str().as_bytes()).map_err(|e| NativeError(e.to_string()))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: path and store outlive the call, which writes an owned group that keeps the store alive.
        checked(unsafe { vl_group_nccl(library.as_ptr(), store.0, rank, size, device, timeout_ms, &mut raw) })?;
        Ok(Group(raw))
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// A rank is gone or late.
    pub fn barrier(&self) -> Result<(), NativeError> {
        // SAFETY: no pointers but the group's own.
        checked(unsafe { vl_group_barrier(self.0) })
    }

    /// Gives tensors their values on rank 0, packed into messages of at most `packed_bytes`.
    ///
    /// # Errors
    /// A rank is gone or late; a tensor of another device than the group's.
    pub fn broadcast(&self, tensors: &[Tensor], packed_bytes: i64) -> Result<(), NativeError> {
        let pointers = pointers(tensors);
        // SAFETY: the tensors outlive the call, which waits for the end of the operation.
        checked(unsafe { vl_group_broadcast(self.0, pointers.as_ptr(), pointers.len(), packed_bytes) })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned and freed once; a reducer holds a reference of its own.
        unsafe { vl_group_free(self.0) };
    }
}

/// `c10d::Reducer`: it has hooks on the parameters' gradients until it is dropped.
#[derive(Debug)]
pub struct Reducer(*mut RawReducer);

impl Reducer {
    /// Builds the reducer of these parameters, with its first buckets.
    ///
    /// # Errors
    /// No parameter, or one that needs no gradient; memory runs out. libtorch's message.
    pub fn new(
        group: &Group,
        parameters: &[Tensor],
        (cap, first_cap): (i64, i64),
        gradient_as_bucket_view: bool,
    ) -> Result<Reducer, NativeError> {
        let (pointers, mut raw) = (pointers(parameters), std::ptr::null_mut());
        let view = gradient_as_bucket_view.into();
        // SAFETY: group and tensors outlive the call; the reducer that it writes holds references of its own.
        checked(unsafe { vl_reducer_new(group.0, pointers.as_ptr(), pointers.len(), cap, first_cap, view, &mut raw) })?;
        Ok(Reducer(raw))
    }

    /// What comes before a forward pass.
    ///
    /// # Errors
    /// The last backward pass left gradients unreduced.
    pub fn before_forward(&self) -> Result<(), NativeError> {
        // SAFETY: the reducer is alive.
        checked(unsafe { vl_reducer_before_forward(self.0) })
    }

    /// What comes between a forward pass and the backward pass that reduces; says whether there will be one, which there is not under
    /// `no_grad`.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn before_backward(&self) -> Result<bool, NativeError> {
        let mut prepared = 0;
        // SAFETY: the reducer is alive; the function writes one value.
        checked(unsafe { vl_reducer_before_backward(self.0, &mut prepared) })?;
        Ok(prepared != 0)
    }

    /// Says whether the last backward pass reduced every gradient.
    ///
    /// # Errors
    /// It did not.
    pub fn check_finished(&self) -> Result<(), NativeError> {
        // SAFETY: the reducer is alive.
        checked(unsafe { vl_reducer_check_finished(self.0) })
    }

    /// Bytes of each bucket, in the order in which they are reduced.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn buckets(&self) -> Result<Vec<i64>, NativeError> {
        let mut buckets: Vec<i64> = Vec::new();
        // SAFETY: `push_bytes` only runs during the call, while `buckets` is borrowed by nothing else.
        checked(unsafe { vl_reducer_buckets(self.0, (&raw mut buckets).cast(), push_bytes) })?;
        Ok(buckets)
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned and freed once; the destructor takes the hooks away.
        unsafe { vl_reducer_free(self.0) };
    }
}

/// Drops the gradients of parameters.
pub fn drop_gradients(parameters: &[Tensor]) {
    let pointers = pointers(parameters);
    // SAFETY: the tensors outlive the call; each lets go of a reference of its own.
    unsafe { vl_drop_gradients(pointers.as_ptr(), pointers.len()) };
}

extern "C" fn push_bytes(buckets: *mut c_void, bytes: i64) {
    // SAFETY: the vector is that of `Reducer::buckets`.
    unsafe { (*buckets.cast::<Vec<i64>>()).push(bytes) };
}
