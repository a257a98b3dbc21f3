//! What a CUDA process takes of the card beside the tensors that a dry run sees.

use serde::Serialize;

/// Bytes that no dry run sees, with where the figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Term {
    pub name: &'static str,
    pub bytes: u64,
    pub source: &'static str,
    /// Whether it was seen on a GPU by this lab; else it is assumed.
    pub confirmed: bool,
}

/// Bytes of one cuBLAS workspace on compute capability 9.0.
const CUBLAS_WORKSPACE: u64 = 4096 * 8 * 1024;

/// Each term, for the card that the dry device assumes.
pub const TERMS: [Term; 4] = [
    Term {
        name: "CUDA context",
        bytes: 512 << 20,
        source: "order of size of a process with PyTorch's kernels on data-centre cards; assumed, not yet confirmed on a GPU",
        confirmed: false,
    },
    Term {
        name: "cuBLAS workspaces",
        bytes: 2 * CUBLAS_WORKSPACE,
        source: "PyTorch's CublasHandlePool.cpp: 32 MiB on compute capability 9.0 for each thread that multiplies, which are the caller's \
                 and autograd's; assumed, not yet confirmed on a GPU",
        confirmed: false,
    },
    Term {
        name: "cuBLASLt workspace",
        bytes: 0,
        source: "shares cuBLAS's, PyTorch's default (TORCH_CUBLASLT_UNIFIED_WORKSPACE); assumed, not yet confirmed on a GPU",
        confirmed: false,
    },
    Term {
        name: "cuDNN workspaces",
        bytes: 0,
        source: "differ by convolution and algorithm; counted as nothing until a GPU has told; assumed, not yet confirmed on a GPU",
        confirmed: false,
    },
];

/// The sum of all terms, in bytes: what [`crate::dry::prepare_beside`] is told to keep from the allocator.
pub fn taken() -> u64 {
    TERMS.iter().map(|term| term.bytes).sum()
}
