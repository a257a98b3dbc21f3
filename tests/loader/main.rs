//! The loader, beside PyTorch's.

mod batches;
mod decoding;
mod reference;
