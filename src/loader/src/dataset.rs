//! What a loader loads: a data set writes single samples into memory that it is given.

use super::order::SampleRandom;
use anyhow::Result;
use std::sync::Arc;
use torch::batch_memory::Element;

/// Samples that can be loaded in any order by several threads.
pub trait Dataset: Send + Sync + 'static {
    /// What samples are made of.
    type Element: Element;

    /// Memory that one worker uses for all its samples: decoded pixels, file contents.
    type Scratch: Send;

    /// Number of samples.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shape of one sample.
    fn shape(&self) -> Vec<i64>;

    fn scratch(&self) -> Self::Scratch;

    /// Writes sample `index` straight into a batch's memory and gives its label. `into` has as many elements as the shape says, with
    /// leftovers of an earlier batch in them. What is random comes from `random` alone, so that a sample is the same whoever loads it.
    ///
    /// # Errors
    /// A sample that is damaged or has vanished, with its place.
    fn load(&self, index: usize, random: &mut SampleRandom, scratch: &mut Self::Scratch, into: &mut [Self::Element])
    -> Result<i64>;
}

/// Samples that a function writes.
pub struct FnDataset<T, F> {
    len: usize,
    shape: Vec<i64>,
    write: F,
    _element: std::marker::PhantomData<fn() -> T>,
}

impl<T, F> FnDataset<T, F>
where
    T: Element,
    F: Fn(usize, &mut SampleRandom, &mut [T]) -> Result<i64> + Send + Sync + 'static,
{
    /// `len` samples of a shape; `write(index, random, into)` writes one and gives its label.
    pub fn new(len: usize, shape: &[i64], write: F) -> Self {
        FnDataset { len, shape: shape.to_vec(), write, _element: std::marker::PhantomData }
    }
}

impl<T, F> Dataset for FnDataset<T, F>
where
    T: Element,
    F: Fn(usize, &mut SampleRandom, &mut [T]) -> Result<i64> + Send + Sync + 'static,
{
    type Element = T;
    type Scratch = ();

    fn len(&self) -> usize {
        self.len
    }

    fn shape(&self) -> Vec<i64> {
        self.shape.clone()
    }

    fn scratch(&self) {}

    fn load(&self, index: usize, random: &mut SampleRandom, (): &mut (), into: &mut [T]) -> Result<i64> {
        (self.write)(index, random, into)
    }
}

/// Some samples of a data set, in an order of their own: a part for validation, say.
#[derive(Debug)]
pub struct Subset<D> {
    data: Arc<D>,
    indices: Vec<u32>,
}

impl<D: Dataset> Subset<D> {
    /// The samples at these places.
    ///
    /// # Errors
    /// A place that the data set does not have.
    pub fn new(data: Arc<D>, indices: Vec<u32>) -> Result<Subset<D>> {
        let beyond = indices.iter().find(|index| **index as usize >= data.len());
        anyhow::ensure!(beyond.is_none(), "sample {} of a data set of {}", beyond.unwrap_or(&0), data.len());
        Ok(Subset { data, indices })
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Element = D::Element;
    type Scratch = D::Scratch;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn shape(&self) -> Vec<i64> {
        self.data.shape()
    }

    fn scratch(&self) -> D::Scratch {
        self.data.scratch()
    }

    fn load(&self, index: usize, random: &mut SampleRandom, scratch: &mut D::Scratch, into: &mut [D::Element]) -> Result<i64> {
        self.data.load(self.indices[index] as usize, random, scratch, into)
    }
}
