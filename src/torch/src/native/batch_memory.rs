//! The memory of a batch: filled by several threads at once, each in a part of its own, then a tensor without a copy.
//!
//! [`BatchBlock`] is memory that one owner has. [`BatchBlock::open`] makes it a [`Filling`], of which each [`BlockPart`] can be taken once, by any thread;
//! [`Filling::close`] gives the block back when no part is out any more. [`BatchBlock::into_tensor`] lends it to a tensor and says when the last
//! tensor over it is gone. Who may touch which bytes is thus held by types; the loader above needs no unsafe code.

use super::{Message, NativeError, checked};
use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tch::{Kind, Tensor};
use torch_sys::C_tensor;

unsafe extern "C" {
    fn vl_batch_memory_take(bytes: i64, data: *mut *mut c_void, owner: *mut *mut c_void) -> Message;
    fn vl_batch_memory_free(owner: *mut c_void);
    pub(super) fn vl_tensor_over(
        data: *mut c_void,
        shape: *const i64,
        dimensions: usize,
        kind: i8,
        keeper: *mut c_void,
        give_back: extern "C" fn(*mut c_void),
        out: *mut *mut C_tensor,
    ) -> Message;
}

/// An element type of batches. Every pattern of bits is a value of it, and zero is one.
pub trait Element: Copy + Default + Send + Sync + private::Sealed + 'static {
    const KIND: Kind;
    /// `c10::ScalarType`'s number, which is stable: serialised models hold it.
    #[doc(hidden)]
    const NUMBER: i8;
}

mod private {
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for i64 {}
    impl Sealed for f32 {}
}

impl Element for u8 {
    const KIND: Kind = Kind::Uint8;
    const NUMBER: i8 = 0;
}

impl Element for i64 {
    const KIND: Kind = Kind::Int64;
    const NUMBER: i8 = 4;
}

impl Element for f32 {
    const KIND: Kind = Kind::Float;
    const NUMBER: i8 = 6;
}

/// Memory for `count` parts of `len` elements each, with one owner.
pub struct BatchBlock<T: Element> {
    data: NonNull<T>,
    owner: NonNull<c_void>,
    count: usize,
    len: usize,
    /// Whether every byte was written once; until then a part is zeroed when it is taken, by the thread that will fill it.
    written: bool,
}

// SAFETY: the memory is owned and elements are plain values; libtorch's allocators may be called from any thread.
unsafe impl<T: Element> Send for BatchBlock<T> {}
// SAFETY: a shared block gives no access to its memory, except through parts, each of which is taken once.
unsafe impl<T: Element> Sync for BatchBlock<T> {}

impl<T: Element> fmt::Debug for BatchBlock<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Block of {} x {} {:?}", self.count, self.len, T::KIND)
    }
}

impl<T: Element> BatchBlock<T> {
    /// Takes memory. Its pages are touched when parts are.
    ///
    /// # Errors
    /// There is not so much; no part or no element.
    pub fn take(count: usize, len: usize) -> Result<BatchBlock<T>, NativeError> {
        let bytes = count.checked_mul(len).and_then(|n| n.checked_mul(size_of::<T>())).and_then(|n| i64::try_from(n).ok());
        let bytes = bytes.filter(|n| *n > 0);
        let bytes = bytes.ok_or_else(|| NativeError(format!("a batch cannot hold {count} samples of {len} elements")))?;
        let (mut data, mut owner) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the function writes both pointers where it succeeds, and nothing where it fails.
        checked(unsafe { vl_batch_memory_take(bytes, &mut data, &mut owner) })?;
        // libtorch's allocators align to 64 bytes.
        let (Some(data), Some(owner)) = (NonNull::new(data.cast::<T>()), NonNull::new(owner)) else {
            return Err(NativeError("libtorch gave no memory for a batch".into()));
        };
        Ok(BatchBlock { data, owner, count, len, written: false })
    }

    /// Makes the parts available to be filled.
    pub fn open(self) -> Filling<T> {
        let taken = (0..self.count).map(|_| AtomicBool::new(false)).collect();
        Filling { block: self, taken }
    }

    /// The elements of all parts. A block that was never filled is zero.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        if !self.written {
            // SAFETY: the block is ours alone, and this long.
            unsafe { self.data.as_ptr().write_bytes(0, self.count * self.len) };
            self.written = true;
        }
        // SAFETY: the block is ours alone, this long, and written.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.count * self.len) }
    }

    /// A tensor over the first `parts` parts, of shape `[parts, ...shape]`, without a copy.
    ///
    /// `give_back` gets the block when the last tensor that shares its memory is gone, on whichever thread that happens.
    ///
    /// # Errors
    /// A shape that is not `len` elements, more parts than there are; libtorch's message. The block is freed or given back.
    pub fn into_tensor(
        mut self,
        parts: usize,
        shape: &[i64],
        give_back: impl FnOnce(BatchBlock<T>) + Send + 'static,
    ) -> Result<Tensor, NativeError> {
        let elements = shape.iter().try_fold(1usize, |n, side| n.checked_mul(usize::try_from(*side).ok()?));
        if elements != Some(self.len) || parts > self.count {
            let what = format!("a tensor of {parts} x {shape:?} does not fit {self:?}");
            give_back(self);
            return Err(NativeError(what));
        }
        // Also zeroes a block that was never filled, so that a tensor never shows memory that nobody wrote.
        let data: *mut c_void = self.as_mut_slice().as_mut_ptr().cast();
        let full: Vec<i64> = [parts as i64].iter().chain(shape).copied().collect();
        let mut tensor = std::ptr::null_mut();
        let keeper: Box<BatchKeeper> = Box::new(Box::new(move || give_back(self)));
        let keeper = Box::into_raw(keeper).cast();
        // SAFETY: the block, and with it `data`, lives in the keeper until C++ calls `return_block`, which it does once.
        checked(unsafe { vl_tensor_over(data, full.as_ptr(), full.len(), T::NUMBER, keeper, return_block, &mut tensor) })?;
        // SAFETY: on success C++ wrote a new tensor that belongs to us.
        Ok(unsafe { Tensor::from_ptr(tensor) })
    }
}

impl<T: Element> Drop for BatchBlock<T> {
    fn drop(&mut self) {
        // SAFETY: the memory is owned and freed once.
        unsafe { vl_batch_memory_free(self.owner.as_ptr()) };
    }
}

type BatchKeeper = Box<dyn FnOnce() + Send>;

extern "C" fn return_block(keeper: *mut c_void) {
    // SAFETY: made by Box::into_raw in `into_tensor`; C++ calls this once.
    let keeper = unsafe { Box::from_raw(keeper.cast::<BatchKeeper>()) };
    // A panic must not cross into C++.
    let _ = catch_unwind(AssertUnwindSafe(keeper));
}

/// A block that is being filled.
#[derive(Debug)]
pub struct Filling<T: Element> {
    block: BatchBlock<T>,
    taken: Box<[AtomicBool]>,
}

impl<T: Element> Filling<T> {
    /// A part to write into; none where it was taken before or is not there.
    pub fn part(self: &Arc<Self>, index: usize) -> Option<BlockPart<T>> {
        if self.taken.get(index)?.swap(true, Ordering::AcqRel) {
            return None;
        }
        let len = self.block.len;
        // SAFETY: the part lies inside the block, and the flag says that nobody else has it or ever had it.
        let first = unsafe {
            let first = self.block.data.add(index * len);
            if !self.block.written {
                first.as_ptr().write_bytes(0, len);
            }
            first
        };
        Some(BlockPart { first, len, _filling: Arc::clone(self) })
    }

    /// The block, once all parts that were taken are dropped; else the filling again.
    ///
    /// # Errors
    /// Parts are still out.
    pub fn close(self: Arc<Self>) -> Result<BatchBlock<T>, Arc<Self>> {
        let Filling { mut block, mut taken } = Arc::try_unwrap(self)?;
        if !block.written {
            for index in (0..block.count).filter(|index| !*taken[*index].get_mut()) {
                // SAFETY: the block is ours alone again, and the part lies inside it.
                unsafe { block.data.add(index * block.len).as_ptr().write_bytes(0, block.len) };
            }
            block.written = true;
        }
        Ok(block)
    }
}

/// A part of a batch's memory that this owner alone can read and write.
#[derive(Debug)]
pub struct BlockPart<T: Element> {
    first: NonNull<T>,
    len: usize,
    /// Keeps the memory.
    _filling: Arc<Filling<T>>,
}

// SAFETY: a part is the only way to its memory, and elements are plain values.
unsafe impl<T: Element> Send for BlockPart<T> {}

impl<T: Element> Deref for BlockPart<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: written when it was taken or before, alive as long as the filling, and reachable through this part alone.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for BlockPart<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn parts_filled_by_threads_become_a_tensor_and_the_memory_comes_back() {
        let block = BatchBlock::<f32>::take(4, 3).unwrap();
        let address = block.data;
        let filling = Arc::new(block.open());
        std::thread::scope(|scope| {
            for index in 0..3 {
                let mut part = filling.part(index).unwrap();
                scope.spawn(move || part.fill(index as f32 + 1.0));
            }
        });
        assert!(filling.part(1).is_none() && filling.part(4).is_none(), "a part is given once");
        let block = filling.close().unwrap();
        let (sender, receiver) = channel();
        let tensor = block.into_tensor(4, &[3], move |block| sender.send(block).unwrap()).unwrap();
        let view = tensor.narrow(0, 1, 2);
        assert_eq!(Vec::<f32>::try_from(tensor.select(1, 0)).unwrap(), [1.0, 2.0, 3.0, 0.0], "what nobody took is zero");
        drop(tensor);
        assert!(receiver.try_recv().is_err(), "a view still shares the memory");
        drop(view);
        let mut block = receiver.try_recv().unwrap();
        assert_eq!(block.data, address);
        assert_eq!(block.as_mut_slice()[..4], [1.0, 1.0, 1.0, 2.0], "not zeroed again");
    }

    #[test]
    fn a_filling_with_parts_out_does_not_close() {
        let filling = Arc::new(BatchBlock::<u8>::take(2, 5).unwrap().open());
        let part = filling.part(0).unwrap();
        let filling = filling.close().unwrap_err();
        drop(part);
        assert!(filling.close().is_ok());
    }

    #[test]
    fn misfits_are_refused_and_the_block_is_given_back() {
        let (sender, receiver) = channel();
        let block = BatchBlock::<i64>::take(2, 6).unwrap();
        let refused = block.into_tensor(2, &[2, 2], move |block| sender.send(block).unwrap());
        assert!(refused.unwrap_err().0.contains("does not fit"));
        let block = receiver.try_recv().unwrap();
        assert!(block.into_tensor(3, &[6], drop).is_err());
        assert!(BatchBlock::<f32>::take(0, 6).is_err() && BatchBlock::<f32>::take(usize::MAX, 6).is_err());
    }
}
