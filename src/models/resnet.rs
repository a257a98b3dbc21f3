//! A small residual network on 32x32 images: a 3x3 stem, blocks of two 3x3 convolutions with a skip, global pooling, a classifier.

use super::layers::{Affine, Linear, buffer};
use super::{Block, Input, Parts};
use tch::nn::{Path, init::DEFAULT_KAIMING_NORMAL};
use tch::{Kind, Tensor};

const CLASSES: i64 = 10;
const SIDE: i64 = 32;
const GROUPS: i64 = 4;

/// How activations are normalised: over groups of channels of one sample, or over the batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Norm {
    Group,
    Batch,
}

#[derive(Debug)]
struct Normalise {
    affine: Affine,
    /// Running mean and variance of batch normalisation.
    running: Option<(Tensor, Tensor)>,
}

impl Normalise {
    fn new(path: &Path, channels: i64, norm: Norm) -> Normalise {
        let running = || (buffer(path, "running_mean", channels, 0.0), buffer(path, "running_var", channels, 1.0));
        Normalise { affine: Affine::new(path, channels), running: (norm == Norm::Batch).then(running) }
    }

    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let (weight, bias) = (Some(&self.affine.weight), Some(&self.affine.bias));
        match &self.running {
            None => x.group_norm(GROUPS, weight, bias, 1e-5, true),
            Some((mean, variance)) => x.batch_norm(weight, bias, Some(mean), Some(variance), train, 0.1, 1e-5, true),
        }
    }

    fn share(&self) -> Normalise {
        let running = self.running.as_ref().map(|(mean, variance)| (mean.shallow_clone(), variance.shallow_clone()));
        Normalise { affine: self.affine.share(), running }
    }
}

/// A 3x3 convolution that keeps the size, and its normalisation.
#[derive(Debug)]
struct Convolution {
    weight: Tensor,
    norm: Normalise,
}

impl Convolution {
    fn new(path: &Path, inputs: i64, outputs: i64, norm: Norm) -> Convolution {
        Convolution {
            weight: path.var("weight", &[outputs, inputs, 3, 3], DEFAULT_KAIMING_NORMAL),
            norm: Normalise::new(&(path / "norm"), outputs, norm),
        }
    }

    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        self.norm.forward(&x.conv2d(&self.weight, None::<&Tensor>, 1, 1, 1, 1), train)
    }

    fn share(&self) -> Convolution {
        Convolution { weight: self.weight.shallow_clone(), norm: self.norm.share() }
    }
}

#[derive(Debug)]
struct Stem(Convolution);

impl Block for Stem {
    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        self.0.forward(x, train).relu_()
    }

    fn share(&self) -> Box<dyn Block> {
        Box::new(Stem(self.0.share()))
    }
}

#[derive(Debug)]
struct Residual {
    first: Convolution,
    second: Convolution,
}

impl Block for Residual {
    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let mut branch = self.second.forward(&self.first.forward(x, train).relu_(), train);
        // The branch's output is nobody else's, so the sum and the activation may overwrite it, as torchvision's do.
        branch += x;
        branch.relu_()
    }

    fn share(&self) -> Box<dyn Block> {
        Box::new(Residual { first: self.first.share(), second: self.second.share() })
    }
}

#[derive(Debug)]
struct PooledClassifier(Linear);

impl Block for PooledClassifier {
    fn forward(&self, x: &Tensor, _train: bool) -> Tensor {
        self.0.forward(&x.mean_dim([2i64, 3].as_slice(), false, None::<Kind>))
    }

    fn share(&self) -> Box<dyn Block> {
        Box::new(PooledClassifier(self.0.share()))
    }
}

pub(super) fn parts(path: &Path, blocks: i64, channels: i64, norm: Norm) -> Parts {
    let residual = |i| -> Box<dyn Block> {
        let path = path / "block" / i;
        Box::new(Residual {
            first: Convolution::new(&(&path / "first"), channels, channels, norm),
            second: Convolution::new(&(&path / "second"), channels, channels, norm),
        })
    };
    Parts {
        stem: Box::new(Stem(Convolution::new(&(path / "stem"), 3, channels, norm))),
        blocks: (0..blocks).map(residual).collect(),
        head: Box::new(PooledClassifier(Linear::new(&(path / "head"), channels, CLASSES))),
        input: Input::Image(SIDE),
        classes: CLASSES,
    }
}
