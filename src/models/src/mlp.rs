//! A multi-layer perceptron: `depth` blocks of linear and GELU of one width, and a linear classifier.

use super::layers::{Linear, Start};
use super::{Block, Input, Parts};
use tch::Tensor;
use tch::nn::Path;

const CLASSES: i64 = 10;

#[derive(Debug)]
struct Hidden(Linear);

impl Block for Hidden {
    fn forward(&self, x: &Tensor, _train: bool) -> Tensor {
        self.0.forward(x).gelu("none")
    }
}

#[derive(Debug)]
struct IdentityStem;

impl Block for IdentityStem {
    fn forward(&self, x: &Tensor, _train: bool) -> Tensor {
        x.shallow_clone()
    }
}

impl Block for Linear {
    fn forward(&self, x: &Tensor, _train: bool) -> Tensor {
        Linear::forward(self, x)
    }
}

pub(super) fn parts(path: &Path, depth: i64, width: i64) -> Parts {
    let hidden = |i| -> Box<dyn Block> { Box::new(Hidden(Linear::new(&(path / "block" / i), width, width, Start::Kaiming))) };
    Parts {
        stem: Box::new(IdentityStem),
        blocks: (0..depth).map(hidden).collect(),
        head: Box::new(Linear::new(&(path / "head"), width, CLASSES, Start::Kaiming)),
        input: Input::Features(width),
        classes: CLASSES,
    }
}
