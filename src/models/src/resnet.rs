//! Residual networks. A small one of any size: a 3x3 stem, blocks of two 3x3 convolutions with a skip, global pooling, a classifier. And
//! ResNet-50 with the layers of torchvision's, without its counters of batches (8 bytes for each normalisation).

use super::layers::{Affine, Linear, Start, buffer, normal};
use super::{Block, Input, Parts};
use tch::nn::{Path, init::DEFAULT_KAIMING_NORMAL};
use tch::{Kind, Tensor};

const SMALL_CLASSES: i64 = 10;
const SMALL_SIDE: i64 = 32;
const CLASSES: i64 = 1000;
/// Groups of channels that GroupNorm normalises together.
pub(super) const GROUPS: i64 = 4;

/// How activations are normalised: over groups of channels of one sample, or over the batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Norm {
    Group,
    Batch,
}

#[derive(Debug)]
struct NormLayer {
    affine: Affine,
    /// Running mean and variance of batch normalisation.
    running: Option<(Tensor, Tensor)>,
}

impl NormLayer {
    fn new(path: &Path, channels: i64, norm: Norm) -> NormLayer {
        let running = || (buffer(path, "running_mean", channels, 0.0), buffer(path, "running_var", channels, 1.0));
        NormLayer { affine: Affine::new(path, channels), running: (norm == Norm::Batch).then(running) }
    }

    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let (weight, bias) = (Some(&self.affine.weight), Some(&self.affine.bias));
        match &self.running {
            None => x.group_norm(GROUPS, weight, bias, 1e-5, true),
            Some((mean, variance)) => x.batch_norm(weight, bias, Some(mean), Some(variance), train, 0.1, 1e-5, true),
        }
    }
}

/// A convolution without bias, and its normalisation.
#[derive(Debug)]
struct Convolution {
    weight: Tensor,
    norm: NormLayer,
    stride: i64,
}

impl Convolution {
    /// A 3x3 convolution that keeps the size.
    fn small(path: &Path, inputs: i64, outputs: i64, norm: Norm) -> Convolution {
        Convolution {
            weight: path.var("weight", &[outputs, inputs, 3, 3], DEFAULT_KAIMING_NORMAL),
            norm: NormLayer::new(&(path / "norm"), outputs, norm),
            stride: 1,
        }
    }

    /// A convolution of `kernel` x `kernel` pixels with batch norm; `stride` divides the size.
    fn new(path: &Path, inputs: i64, outputs: i64, kernel: i64, stride: i64) -> Convolution {
        let deviation = (2.0 / (outputs * kernel * kernel) as f64).sqrt();
        Convolution {
            weight: normal(path, "weight", &[outputs, inputs, kernel, kernel], deviation),
            norm: NormLayer::new(&(path / "norm"), outputs, Norm::Batch),
            stride,
        }
    }

    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let padding = self.weight.size()[2] / 2;
        self.norm.forward(&x.conv2d(&self.weight, None::<&Tensor>, self.stride, padding, 1, 1), train)
    }
}

#[derive(Debug)]
struct Stem {
    convolution: Convolution,
    pool: bool,
}

impl Block for Stem {
    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let x = self.convolution.forward(x, train).relu_();
        if self.pool { x.max_pool2d(3, 2, 1, 1, false) } else { x }
    }
}

/// Convolutions with a skip around them.
#[derive(Debug)]
struct Residual {
    convolutions: Vec<Convolution>,
    /// Brings the skip to the branch's size.
    downsample: Option<Convolution>,
}

impl Block for Residual {
    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let mut branch = x.shallow_clone();
        for (i, convolution) in self.convolutions.iter().enumerate() {
            if i > 0 {
                branch = branch.relu_();
            }
            branch = convolution.forward(&branch, train);
        }
        // The branch's output is nobody else's, so the sum and the activation may overwrite it, as torchvision's do.
        branch += self.downsample.as_ref().map_or_else(|| x.shallow_clone(), |downsample| downsample.forward(x, train));
        branch.relu_()
    }
}

#[derive(Debug)]
struct PooledClassifier(Linear);

impl Block for PooledClassifier {
    fn forward(&self, x: &Tensor, _train: bool) -> Tensor {
        self.0.forward(&x.mean_dim([2i64, 3].as_slice(), false, None::<Kind>))
    }
}

/// A small network of `blocks` blocks of `channels` channels.
pub(super) fn small(path: &Path, blocks: i64, channels: i64, norm: Norm) -> Parts {
    let residual = |i| -> Box<dyn Block> {
        let path = path / "block" / i;
        Box::new(Residual {
            convolutions: vec![
                Convolution::small(&(&path / "first"), channels, channels, norm),
                Convolution::small(&(&path / "second"), channels, channels, norm),
            ],
            downsample: None,
        })
    };
    Parts {
        stem: Box::new(Stem { convolution: Convolution::small(&(path / "stem"), 3, channels, norm), pool: false }),
        blocks: (0..blocks).map(residual).collect(),
        head: Box::new(PooledClassifier(Linear::new(&(path / "head"), channels, SMALL_CLASSES, Start::Kaiming))),
        input: Input::Image(SMALL_SIDE),
        classes: SMALL_CLASSES,
    }
}

/// Four stages of bottlenecks.
pub(super) fn resnet50(path: &Path) -> Parts {
    let stem = Stem { convolution: Convolution::new(&(path / "stem"), 3, 64, 7, 2), pool: true };
    let mut blocks: Vec<Box<dyn Block>> = Vec::new();
    let mut inputs = 64;
    for (stage, count) in [3, 4, 6, 3].into_iter().enumerate() {
        let channels = 64 << stage;
        for i in 0..count {
            let stride = if stage > 0 && i == 0 { 2 } else { 1 };
            let path = path / "block" / blocks.len();
            let convolution =
                |name, inputs, outputs, kernel, stride| Convolution::new(&(&path / name), inputs, outputs, kernel, stride);
            let outputs = 4 * channels;
            let convolutions = vec![
                convolution("first", inputs, channels, 1, 1),
                convolution("second", channels, channels, 3, stride),
                convolution("third", channels, outputs, 1, 1),
            ];
            let needed = stride != 1 || inputs != outputs;
            let downsample = needed.then(|| convolution("downsample", inputs, outputs, 1, stride));
            blocks.push(Box::new(Residual { convolutions, downsample }));
            inputs = outputs;
        }
    }
    let head = PooledClassifier(Linear::new(&(path / "head"), inputs, CLASSES, Start::Kaiming));
    Parts { stem: Box::new(stem), blocks, head: Box::new(head), input: Input::Image(224), classes: CLASSES }
}
