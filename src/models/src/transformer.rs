//! The pre-norm transformer block of GPT and ViT.

use super::Block;
use super::attention::Heads;
use super::layers::{Affine, Linear, Start, dropout};
use tch::Tensor;
use tch::nn::Path;

/// What the blocks of a model have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Design {
    pub layers: i64,
    pub width: i64,
    pub heads: i64,
    /// A token looks only at those before it.
    pub causal: bool,
    /// Kind of GELU: `tanh` or `none` (exact).
    pub gelu: &'static str,
    pub epsilon: f64,
    /// Start of the matrices, and of those that end a residual branch.
    pub start: (Start, Start),
    /// Of embeddings, the attention's weights and the end of each residual branch.
    pub dropout: f64,
}

#[derive(Debug)]
struct Transformer {
    attention_norm: Affine,
    qkv: Linear,
    heads: Heads,
    projection: Linear,
    mlp_norm: Affine,
    up: Linear,
    down: Linear,
    gelu: &'static str,
    epsilon: f64,
    dropout: f64,
}

impl Transformer {
    fn attend(&self, x: &Tensor, train: bool) -> Tensor {
        let qkv = self.qkv.forward(&self.attention_norm.layer_norm(x, self.epsilon)).chunk(3, -1);
        self.projection.forward(&self.heads.attend(&qkv[0], &qkv[1], &qkv[2], train))
    }
}

impl Block for Transformer {
    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let x = x + dropout(self.attend(x, train), self.dropout, train);
        let hidden = self.up.forward(&self.mlp_norm.layer_norm(&x, self.epsilon)).gelu(self.gelu);
        let branch = dropout(self.down.forward(&hidden), self.dropout, train);
        x + branch
    }
}

pub(super) fn blocks(path: &Path, design: Design) -> Vec<Box<dyn Block>> {
    let Design { width, start, .. } = design;
    let transformer = |i| -> Box<dyn Block> {
        let path = path / "block" / i;
        Box::new(Transformer {
            attention_norm: Affine::new(&(&path / "attention_norm"), width),
            qkv: Linear::new(&(&path / "qkv"), width, 3 * width, start.0),
            heads: Heads { heads: design.heads, causal: design.causal, dropout: design.dropout },
            projection: Linear::new(&(&path / "projection"), width, width, start.1),
            mlp_norm: Affine::new(&(&path / "mlp_norm"), width),
            up: Linear::new(&(&path / "up"), width, 4 * width, start.0),
            down: Linear::new(&(&path / "down"), 4 * width, width, start.1),
            gelu: design.gelu,
            epsilon: design.epsilon,
            dropout: design.dropout,
        })
    };
    (0..design.layers).map(transformer).collect()
}
