//! A data loader: batches of a data set as tensors, loaded ahead by threads.
//!
//! - A [`Dataset`] writes single samples into memory that it is given: [`Images`] over an [`ImageFolder`], or a function
//!   ([`FnDataset`]).
//! - A [`Loader`] has workers fill whole batches of them in a ring of memory, and gives them out in order as tensors that share that
//!   memory. There is no tensor for a sample and no copy of a batch.
//! - Order and contents depend on the seed, the epoch and the data alone, not on the number of workers.

mod dataset;
mod decode;
mod images;
mod loader;
mod order;
mod pixels;
mod ring;
mod source;
mod textured;
mod transform;

pub use dataset::{Dataset, FnDataset, Subset};
pub use decode::{Undecodable, decode};
pub use images::{ImageScratch, Images};
pub use loader::{Config, Epoch, LoadedBatch, Loader};
pub use order::{SampleRandom, sample_random};
pub use pixels::{Area, Pixels};
pub use source::{Damage, ImageFolder, SampleSource};
pub use textured::{Textured, cache_folder};
pub use torch::batch_memory::Element;
pub use transform::{DEVIATION, MEAN, Resizing, Transform};
