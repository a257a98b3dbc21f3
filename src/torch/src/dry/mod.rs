//! The simulated GPU: CUDA that allocates and never computes, on a machine without a GPU.
//!
//! PyTorch's own CUDA code and caching allocator run over a simulated CUDA runtime and cuBLAS, so that tch code runs unchanged on
//! `Device::Cuda(0)`: results, temporaries inside operators, workspaces, the allocator's statistics, rounding, retries and out-of-memory
//! errors are PyTorch's own. No kernel runs and no memory is touched: a training step of a model of any size takes milliseconds. What it
//! gives is a prediction. cuDNN says itself what workspaces convolutions and attention take, and what it takes for
//! recurrent layers is worked out as cuDNN does. cuFFT and cuSPARSE are simulated and take nothing for themselves. The rest of cuDNN, cuSOLVER and MAGMA
//! are missing: their operators have kernels in `src/sim/native/kernels`, with a table of what is exact and what is assumed.
//!
//! The simulated runtime must stand before the real one, so it is preloaded when a process starts: [`prepare`] makes a command's process a
//! dry one, and there [`Dry::open`] opens the device. **A process is dry or real, never both.** Allocator settings are PyTorch's
//! (`PYTORCH_ALLOC_CONF` in the environment of the process).
//!
//! # What a dry run cannot see
//! - Values. `item()` gives 0, or 1 for integers; a copy to the CPU gives zeros; `found_inf` stays 0. An operation whose shape depends on
//!   values (`nonzero`, a boolean mask) is refused by name.
//! - Time.
//! - cuDNN's workspaces of batch norm, those of cuFFT, cuSPARSE and cuSOLVER, and the CUDA context, which a real process has
//!   beside its tensors.
//! - Of the card more than [`sim::cards`] tells: a size alone is a card of compute capability 9.0.
//!
//! # Where a dry run and a run that counts the CPU's bytes differ
//! In fp32 with one thread both ask for the same bytes after each phase and at each peak, for linear layers, GELU, LayerNorm, attention
//! written out, embeddings, cross-entropy, every optimizer, and accumulation. The known differences, each with a test:
//! - The step of momentum SGD (from the second on), Adam, AdamW and RMSProp: 12 bytes more at the CPU's peak, a factor of 8 bytes and its
//!   cast of 4, which CUDA's kernels take as arguments.
//! - Softmax's backward: CUDA holds gradient times result, one more tensor of the scores' size, while it runs.
//! - LayerNorm's backward with weight and bias: 2 x threads x width x 4 bytes more on the CPU while it runs.
//! - Dropout: the CPU keeps 4 bytes for each element, CUDA 1.
//! - Fused attention: the sums of softmax, 4 bytes for each row of each head, are rounded up to 32 rows by the memory-efficient kernel.
//! - The backward of an embedding with n > 3072 indices: CUDA sorts them, and takes what its sort does while it runs.
//! - cuBLAS's workspaces: one for each thread that multiplies, the caller's and autograd's, and 1 MiB for cuBLASLt, from the first product on.
//! - Convolution and batch norm are cuDNN's, autocast's lists are CUDA's, and no dry figure depends on the number of threads.
//!
//! For networks with convolution and batch norm the other side is PyTorch's own tracker of fake tensors (`tests/experiments/tracker.rs`): the same bytes
//! after each phase and at each peak for torchvision's ResNets, but for named terms.

use crate::native::dry as native;
use crate::{Backend, Memory, MemoryFile, caching_allocator};
use anyhow::{Context, Result, anyhow, bail, ensure};
use sim::cards::{self, Card};
use std::process::Command;
use std::sync::OnceLock;
use tch::Device;

pub use crate::native::dry::{CUDNN, NOT_BUILT, is_built};

/// Makes the process that `command` starts a dry one, with such a card. This program must live until then.
///
/// # Errors
/// This program was built with a libtorch without CUDA; the kernel gives no memory file.
pub fn prepare(command: &mut Command, card: impl Into<Card>) -> Result<()> {
    let card = card.into();
    ensure!(card.memory > 0, "a card without memory can hold nothing");
    ensure!(is_built(), NOT_BUILT);
    static FILES: [OnceLock<MemoryFile>; 4] = [const { OnceLock::new() }; 4];
    // The real compilers, which libtorch opens otherwise, do not work over the simulated runtime.
    let [old, new] = native::COMPILERS;
    let mut preload: Vec<String> = Vec::new();
    for (file, library) in FILES.iter().zip([native::RUNTIME, native::DRIVER, old, new]) {
        let file = MemoryFile::once(file, "vramlab-dry-library", library).context(KEEPING)?;
        preload.push(file.path().display().to_string());
    }
    preload.extend(std::env::var("LD_PRELOAD").ok().filter(|others| !others.is_empty()));
    command.env("LD_PRELOAD", preload.join(":")).env(cards::ENVIRONMENT, card.environment());
    // It hides real ones, from a process that measures on the CPU above all.
    command.env_remove("CUDA_VISIBLE_DEVICES");
    // Nothing of a simulated GPU should stay in the caches of a real one.
    command.env("USE_PYTORCH_KERNEL_CACHE", "0");
    Ok(())
}

/// As [`prepare`], for a command of Python, which then finds the kernels of [`Dry`] by `VRAMLAB_DRY_BACKEND`.
pub fn prepare_python(command: &mut Command, card: impl Into<Card>) -> Result<()> {
    static BACKEND: OnceLock<MemoryFile> = OnceLock::new();
    let backend = MemoryFile::once(&BACKEND, "vramlab-dry-backend", native::BACKEND).context(KEEPING)?;
    command.env("VRAMLAB_DRY_BACKEND", backend.path());
    prepare(command, card)
}

const KEEPING: &str = "keeping a library of the simulated GPU in memory";

/// The simulated GPU, `cuda:0` of this process. Its meter is that of a CUDA device; it has no clock.
#[derive(Debug)]
pub struct Dry(());

impl Dry {
    /// Opens the simulated GPU; before the first question about CUDA in the life of a process that [`prepare`] prepared.
    ///
    /// # Errors
    /// This process is none; libtorch has no CUDA half.
    pub fn open() -> Result<Dry> {
        ensure!(is_built(), NOT_BUILT);
        let backend = MemoryFile::new("vramlab-dry-backend", native::BACKEND).context(KEEPING)?;
        native::open(&backend.path()).map_err(|e| anyhow!("the simulated GPU cannot be opened: {e}"))?;
        Ok(Dry(()))
    }
}

impl Backend for Dry {
    fn device(&self) -> Device {
        Device::Cuda(0)
    }

    fn memory(&self) -> Result<Memory> {
        caching_allocator(0)
    }

    fn reset_peaks(&self) -> Result<()> {
        crate::reset_cuda_peaks(0)
    }

    fn clear_workspaces(&self) -> Result<()> {
        crate::clear_cuda_workspaces()
    }

    fn time(&self, _: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        bail!("a simulated GPU computes nothing, so nothing of it takes time")
    }
}
