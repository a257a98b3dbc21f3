//! ViT with the layers of torchvision's `VisionTransformer`: patches of 16 x 16, a class token, pre-norm blocks, and a linear classifier
//! on the class token.

use super::layers::{Affine, Linear, Start, normal};
use super::transformer::{Design, blocks};
use super::{Block, Input, Parts};
use tch::Tensor;
use tch::nn::{Init, Path};

/// Pixels along the side of an image, and of a patch.
const IMAGE: i64 = 224;
const PATCH: i64 = 16;
const CLASSES: i64 = 1000;
const EPSILON: f64 = 1e-6;
const START: Start = Start::Normal(0.02);

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Vit {
    pub layers: i64,
    pub width: i64,
}

impl Vit {
    pub fn parts(self, path: &Path) -> Parts {
        let width = self.width;
        let patches = path / "patches";
        // And the class token.
        let tokens = (IMAGE / PATCH) * (IMAGE / PATCH) + 1;
        let stem = Patches {
            weight: normal(&patches, "weight", &[width, 3, PATCH, PATCH], 0.02),
            bias: patches.var("bias", &[width], Init::Const(0.0)),
            class: path.var("class", &[1, 1, width], Init::Const(0.0)),
            positions: normal(path, "positions", &[1, tokens, width], 0.02),
        };
        let design = Design {
            layers: self.layers,
            width,
            heads: width / 64,
            causal: false,
            gelu: "none",
            epsilon: EPSILON,
            start: (START, START),
            dropout: 0.0,
        };
        let blocks = blocks(path, design);
        let head = VitClassifier {
            norm: Affine::new(&(path / "norm"), width),
            linear: Linear::new(&(path / "head"), width, CLASSES, START),
        };
        Parts { stem: Box::new(stem), blocks, head: Box::new(head), input: Input::Image(IMAGE), classes: CLASSES }
    }
}

#[derive(Debug)]
struct Patches {
    weight: Tensor,
    bias: Tensor,
    class: Tensor,
    positions: Tensor,
}

impl Block for Patches {
    /// Images `[n, 3, side, side]` to vectors `[n, patches + 1, width]`.
    fn forward(&self, x: &Tensor, _train: bool) -> Tensor {
        let patches = x.conv2d(&self.weight, Some(&self.bias), PATCH, 0, 1, 1).flatten(2, 3).transpose(1, 2);
        let class = self.class.expand([x.size()[0], -1, -1], false);
        Tensor::cat(&[class, patches], 1) + &self.positions
    }
}

#[derive(Debug)]
struct VitClassifier {
    norm: Affine,
    linear: Linear,
}

impl Block for VitClassifier {
    /// Vectors `[n, patches + 1, width]` to logits `[n, 1000]`, from the class token.
    fn forward(&self, x: &Tensor, _train: bool) -> Tensor {
        self.linear.forward(&self.norm.layer_norm(x, EPSILON).select(1, 0))
    }
}
