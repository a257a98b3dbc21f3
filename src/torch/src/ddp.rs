//! Distributed data parallel training: PyTorch's own `c10d::Reducer`, driven as `torch.nn.parallel.DistributedDataParallel` drives it.
//!
//! Each rank trains a replica on its share of the data. While a backward pass runs, finished gradients are copied into flat buckets, and a
//! bucket that is full is averaged over all ranks while the rest is still computed. So when the backward pass is done, each parameter's
//! gradient is the mean over the ranks: with a mean loss over shares of one size, the gradient of the joined batch.
//!
//! # The memory of buckets
//! Buckets hold each gradient once, so they take as many bytes as all gradients together. They are allocated when a [`Ddp`] is built, as one
//! bucket of all gradients of one kind; after the first backward pass, at the beginning of the next forward pass, they are built anew in
//! the order in which gradients came, with at most [`DdpOptions::bucket_cap`] bytes each (one gradient more than that fills a bucket).
//! With [`DdpOptions::gradient_as_bucket_view`] gradients *are* views of the buckets from the first backward pass on, and take no memory of
//! their own. Gradients that still live at the rebuild keep the old buckets alive, in part of that forward pass, besides the new
//! ones: drop them before it, with [`Ddp::zero_grad`]. (An optimizer's `zero_grad` and `Tensor::zero_grad` detach gradients in place first,
//! which views refuse.)

use super::distributed::ProcessGroup;
use super::native::distributed::{self as native, Reducer};
use anyhow::{Context, Result, ensure};
use std::cell::Cell;
use tch::Tensor;
use tch::nn::VarStore;

/// Bytes of the first bucket to be reduced, and of all others, where no cap is given: PyTorch's defaults.
const DEFAULT_CAPS: (i64, i64) = (25 << 20, 1 << 20);

/// How gradients are gathered in buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DdpOptions {
    /// Bytes of a bucket, PyTorch's `bucket_cap_mb` x 1024 x 1024; none: 25 MiB, and 1 MiB for the first that is reduced.
    pub bucket_cap: Option<u64>,
    /// Gradients are views of their buckets, and not copies.
    pub gradient_as_bucket_view: bool,
}

/// A model whose gradients are averaged over the ranks of a process group in each backward pass.
///
/// Every parameter must get a gradient in each backward pass (PyTorch's `find_unused_parameters=False`): one that does not leaves its bucket
/// unreduced, and the next [`Ddp::forward`] fails with PyTorch's message.
#[derive(Debug)]
pub struct Ddp {
    reducer: Reducer,
    parameters: Vec<Tensor>,
    group: ProcessGroup,
    /// What is no parameter and goes with the model all the same, as the running statistics of batch norm.
    buffers: Vec<Tensor>,
    /// Whether the next forward pass begins with the buffers of rank 0: PyTorch's does where the one before was reduced.
    gives_buffers: Cell<bool>,
}

impl Ddp {
    /// Gives all ranks the parameters and buffers of rank 0, and builds the buckets.
    ///
    /// `parameters` are those that are trained, in the order in which the forward pass uses them: PyTorch takes `module.parameters()`,
    /// the order of their making. All ranks must give the same shapes and kinds in the same order.
    ///
    /// # Errors
    /// The ranks' models differ in shape, kind or layout, of which all ranks are told; a parameter that needs no gradient or lives on another
    /// device than the group; no parameter; a cap of 0; a rank is gone.
    pub fn new(parameters: &[Tensor], buffers: Vec<Tensor>, group: &ProcessGroup, options: DdpOptions) -> Result<Ddp> {
        ensure!(!parameters.is_empty(), "a model without parameters has no gradients to reduce");
        for (i, parameter) in parameters.iter().enumerate() {
            ensure!(parameter.requires_grad() && parameter.is_leaf(), "parameter {i} is none that is trained");
            let (device, groups) = (parameter.device(), group.device());
            ensure!(device == groups, "parameter {i} lives on {device:?}, and its group communicates on {groups:?}");
        }
        let caps = match options.bucket_cap {
            None => DEFAULT_CAPS,
            Some(bytes) => {
                let cap = i64::try_from(bytes).context("a bucket of more bytes than there are")?;
                ensure!(cap > 0, "a bucket of no bytes holds no gradient");
                (cap, cap)
            }
        };
        group.agree("the model", &shapes(parameters, &buffers))?;
        group.broadcast(&parameters.iter().chain(&buffers).map(Tensor::shallow_clone).collect::<Vec<_>>())?;
        let reducer =
            Reducer::new(group.native(), parameters, caps, options.gradient_as_bucket_view).context("building the reducer")?;
        let parameters = parameters.iter().map(Tensor::shallow_clone).collect();
        Ok(Ddp { reducer, parameters, group: group.clone(), buffers, gives_buffers: Cell::new(true) })
    }

    /// As [`Ddp::new`], with the variables of a store: those that need a gradient are parameters, the others buffers.
    ///
    /// # Errors
    /// As for [`Ddp::new`].
    pub fn of(store: &VarStore, group: &ProcessGroup, options: DdpOptions) -> Result<Ddp> {
        let mut buffers: Vec<(String, Tensor)> = store.variables().into_iter().filter(|(_, t)| !t.requires_grad()).collect();
        buffers.sort_by(|a, b| a.0.cmp(&b.0));
        let buffers = buffers.into_iter().map(|(_, tensor)| tensor).collect();
        Ddp::new(&store.trainable_variables(), buffers, group, options)
    }

    /// Runs a forward pass whose backward pass will average the gradients. Under `no_grad` it is like any forward pass.
    ///
    /// # Errors
    /// The last backward pass left a parameter without a gradient; a rank is gone; what `forward` fails with.
    pub fn forward<T>(&self, forward: impl FnOnce() -> Result<T>) -> Result<T> {
        self.reducer.before_forward().context("before a forward pass of distributed data parallel training")?;
        if self.gives_buffers.get() {
            self.group.broadcast(&self.buffers)?;
        }
        let output = forward()?;
        self.gives_buffers.set(self.reducer.before_backward()?);
        Ok(output)
    }

    /// Drops the gradients, as PyTorch's `zero_grad()` does. Views of buckets take no memory with them: it is the buckets'.
    pub fn zero_grad(&self) {
        native::drop_gradients(&self.parameters);
    }

    /// Says whether the last backward pass averaged every gradient. [`Ddp::forward`] asks the same before it begins.
    ///
    /// # Errors
    /// A parameter got no gradient.
    pub fn check_reduced(&self) -> Result<()> {
        Ok(self.reducer.check_finished()?)
    }

    /// Bytes of each bucket, in the order in which they are reduced.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn bucket_bytes(&self) -> Result<Vec<i64>> {
        Ok(self.reducer.buckets()?)
    }

    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }
}

/// What all ranks' models must have in common, a line for each tensor.
fn shapes(parameters: &[Tensor], buffers: &[Tensor]) -> String {
    let mut text = format!("{} parameters\n{} buffers\n", parameters.len(), buffers.len());
    for (what, tensors) in [("parameter", parameters), ("buffer", buffers)] {
        for (i, t) in tensors.iter().enumerate() {
            text += &format!("{what} {i} of {:?} {:?}, strides {:?}\n", t.kind(), t.size(), t.stride());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind, nn};

    const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

    /// Four matrices of 1, 2, 3 and 4 KiB, and the mean of the sums of their squares.
    fn matrices() -> Vec<Tensor> {
        (1..=4).map(|n| Tensor::ones([n, 256], FLOAT).set_requires_grad(true)).collect()
    }

    fn loss(parameters: &[Tensor]) -> Tensor {
        parameters.iter().map(|p| p.square().sum(Kind::Float)).fold(Tensor::zeros([], FLOAT), |a, b| a + b)
    }

    fn step(ddp: &Ddp, parameters: &[Tensor]) -> Result<()> {
        let loss = ddp.forward(|| Ok(loss(parameters)))?;
        loss.f_backward()?;
        Ok(())
    }

    fn alone(size: usize) -> ProcessGroup {
        ProcessGroup::alone(Device::Cpu, size).unwrap()
    }

    fn options(bucket_cap: u64, gradient_as_bucket_view: bool) -> DdpOptions {
        DdpOptions { bucket_cap: Some(bucket_cap), gradient_as_bucket_view }
    }

    fn first_gradient(parameters: &[Tensor]) -> f64 {
        parameters[0].grad().double_value(&[0, 0])
    }

    #[test]
    fn gradients_are_divided_by_the_number_of_ranks() {
        for view in [false, true] {
            for size in [1, 2, 5] {
                let parameters = matrices();
                let ddp = Ddp::new(&parameters, vec![], &alone(size), options(2048, view)).unwrap();
                for _ in 0..3 {
                    ddp.zero_grad();
                    step(&ddp, &parameters).unwrap();
                    let gradient = first_gradient(&parameters);
                    assert!((gradient - 2.0 / size as f64).abs() < 1e-6, "{size} ranks, view {view}: {gradient}");
                }
            }
        }
    }

    #[test]
    fn buckets_are_one_at_first_and_follow_the_caps_after_the_rebuild() {
        let parameters = matrices();
        let ddp = Ddp::new(&parameters, vec![], &alone(1), options(3 << 10, false)).unwrap();
        assert_eq!(ddp.bucket_bytes().unwrap(), [10 << 10], "one bucket of all gradients");
        step(&ddp, &parameters).unwrap();
        assert_eq!(ddp.bucket_bytes().unwrap(), [10 << 10], "it is rebuilt by the next forward pass");
        step(&ddp, &parameters).unwrap();
        // The last one that the loss added comes first in the backward pass; a bucket is full when it reaches the cap.
        assert_eq!(ddp.bucket_bytes().unwrap(), [4 << 10, 3 << 10, 3 << 10]);
        let ddp = Ddp::new(&parameters, vec![], &alone(1), DdpOptions::default()).unwrap();
        step(&ddp, &parameters).unwrap();
        step(&ddp, &parameters).unwrap();
        assert_eq!(ddp.bucket_bytes().unwrap(), [10 << 10], "far below the default caps");
    }

    #[test]
    fn gradients_are_views_of_buckets_where_asked() {
        for view in [false, true] {
            let parameters = matrices();
            let ddp = Ddp::new(&parameters, vec![], &alone(1), options(1 << 20, view)).unwrap();
            step(&ddp, &parameters).unwrap();
            let bytes: i64 = parameters.iter().map(|p| p.numel() as i64 * 4).sum();
            let address = |i: usize| parameters[i].grad().data_ptr() as i64;
            let in_a_row = (address(0) - address(3)).abs() < bytes && (address(1) - address(2)).abs() < bytes;
            let aliased = in_a_row && address(0) != address(1);
            if view {
                assert!(aliased, "views of one bucket lie in one block");
            }
            let before = first_gradient(&parameters);
            drop(ddp);
            assert_eq!(first_gradient(&parameters), before, "gradients outlive the buckets' owner");
        }
    }

    #[test]
    fn a_parameter_without_a_gradient_fails_at_the_next_forward_pass() {
        let parameters = matrices();
        let ddp = Ddp::new(&parameters, vec![], &alone(1), options(1 << 20, false)).unwrap();
        ddp.forward(|| Ok(loss(&parameters[1..]))).unwrap().backward();
        for error in [ddp.check_reduced().unwrap_err(), step(&ddp, &parameters).unwrap_err()] {
            assert!(format!("{error:#}").contains("did not receive grad"), "{error:#}");
        }
    }

    #[test]
    fn nothing_is_prepared_under_no_grad() {
        let parameters = matrices();
        let ddp = Ddp::new(&parameters, vec![], &alone(1), options(1 << 20, false)).unwrap();
        for _ in 0..3 {
            drop(tch::no_grad(|| ddp.forward(|| Ok(loss(&parameters)))).unwrap());
        }
        step(&ddp, &parameters).unwrap();
        ddp.check_reduced().unwrap();
    }

    #[test]
    fn what_cannot_be_reduced_is_refused() {
        let group = alone(1);
        let fail = |parameters: &[Tensor], options| format!("{:#}", Ddp::new(parameters, vec![], &group, options).unwrap_err());
        assert!(fail(&[], DdpOptions::default()).contains("without parameters"));
        assert!(fail(&[Tensor::ones([2], FLOAT)], DdpOptions::default()).contains("parameter 0 is none that is trained"));
        let result = Tensor::ones([2], FLOAT).set_requires_grad(true) * 2.0;
        assert!(fail(&[result], DdpOptions::default()).contains("parameter 0 is none that is trained"));
        assert!(fail(&matrices(), options(0, false)).contains("no bytes"));
        let elsewhere = ProcessGroup::alone(Device::Cuda(0), 1).unwrap();
        let error = Ddp::new(&matrices(), vec![], &elsewhere, DdpOptions::default()).unwrap_err();
        assert!(error.to_string().contains("lives on Cpu"), "{error}");
    }

    #[test]
    fn a_store_gives_parameters_in_the_order_of_their_making_and_the_rest_as_buffers() {
        let store = nn::VarStore::new(Device::Cpu);
        let root = store.root();
        let _last = nn::linear(&root / "z", 4, 4, Default::default());
        let _norm = nn::batch_norm1d(&root / "a", 4, Default::default());
        let ddp = Ddp::of(&store, &alone(1), DdpOptions::default()).unwrap();
        assert_eq!(ddp.bucket_bytes().unwrap(), [4 * (16 + 4 + 4 + 4)]);
        assert_eq!(ddp.buffers.len(), 2, "mean and variance");
    }
}
