//! A small GPT: token and position embeddings, pre-norm transformer blocks with fused causal attention, and a linear head.

use super::layers::{Affine, Linear, dropout, embedding};
use super::{Block, Input, Parts};
use anyhow::{Result, ensure};
use tch::Tensor;
use tch::nn::Path;

const VOCABULARY: i64 = 256;
const SEQUENCE: i64 = 64;
const HEAD_WIDTH: i64 = 32;

#[derive(Debug)]
struct Embeddings {
    tokens: Tensor,
    positions: Tensor,
}

impl Block for Embeddings {
    /// Token numbers `[n, sequence]` to vectors `[n, sequence, width]`.
    fn forward(&self, x: &Tensor, _train: bool) -> Tensor {
        let positions = self.positions.narrow(0, 0, x.size()[1]);
        Tensor::embedding(&self.tokens, x, -1, false, false) + positions
    }

    fn share(&self) -> Box<dyn Block> {
        Box::new(Embeddings { tokens: self.tokens.shallow_clone(), positions: self.positions.shallow_clone() })
    }
}

#[derive(Debug)]
struct Transformer {
    attention_norm: Affine,
    qkv: Linear,
    projection: Linear,
    mlp_norm: Affine,
    up: Linear,
    down: Linear,
    heads: i64,
    dropout: f64,
}

impl Transformer {
    fn attend(&self, x: &Tensor) -> Tensor {
        let (n, sequence, width) = match x.size()[..] {
            [n, sequence, width] => (n, sequence, width),
            _ => (0, 0, 0),
        };
        let qkv = self.qkv.forward(&self.attention_norm.layer_norm(x)).chunk(3, -1);
        let by_head = |t: &Tensor| t.view([n, sequence, self.heads, width / self.heads]).transpose(1, 2);
        let (q, k, v) = (by_head(&qkv[0]), by_head(&qkv[1]), by_head(&qkv[2]));
        let attended = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, None::<f64>, false);
        self.projection.forward(&attended.transpose(1, 2).reshape([n, sequence, width]))
    }
}

impl Block for Transformer {
    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let x = x + dropout(self.attend(x), self.dropout, train);
        let hidden = self.up.forward(&self.mlp_norm.layer_norm(&x)).gelu("tanh");
        let branch = dropout(self.down.forward(&hidden), self.dropout, train);
        x + branch
    }

    fn share(&self) -> Box<dyn Block> {
        Box::new(Transformer {
            attention_norm: self.attention_norm.share(),
            qkv: self.qkv.share(),
            projection: self.projection.share(),
            mlp_norm: self.mlp_norm.share(),
            up: self.up.share(),
            down: self.down.share(),
            heads: self.heads,
            dropout: self.dropout,
        })
    }
}

#[derive(Debug)]
struct Head {
    norm: Affine,
    linear: Linear,
}

impl Block for Head {
    /// Vectors `[n, sequence, width]` to logits `[n * sequence, vocabulary]`.
    fn forward(&self, x: &Tensor, _train: bool) -> Tensor {
        self.linear.forward(&self.norm.layer_norm(x)).reshape([-1, VOCABULARY])
    }

    fn share(&self) -> Box<dyn Block> {
        Box::new(Head { norm: self.norm.share(), linear: self.linear.share() })
    }
}

pub(super) fn parts(path: &Path, layers: i64, width: i64, dropout: f64) -> Result<Parts> {
    ensure!(width % HEAD_WIDTH == 0, "a GPT's width is a multiple of {HEAD_WIDTH}");
    let transformer = |i| -> Box<dyn Block> {
        let path = path / "block" / i;
        Box::new(Transformer {
            attention_norm: Affine::new(&(&path / "attention_norm"), width),
            qkv: Linear::new(&(&path / "qkv"), width, 3 * width),
            projection: Linear::new(&(&path / "projection"), width, width),
            mlp_norm: Affine::new(&(&path / "mlp_norm"), width),
            up: Linear::new(&(&path / "up"), width, 4 * width),
            down: Linear::new(&(&path / "down"), 4 * width, width),
            heads: width / HEAD_WIDTH,
            dropout,
        })
    };
    Ok(Parts {
        stem: Box::new(Embeddings {
            tokens: embedding(&(path / "tokens"), VOCABULARY, width),
            positions: embedding(&(path / "positions"), SEQUENCE, width),
        }),
        blocks: (0..layers).map(transformer).collect(),
        head: Box::new(Head {
            norm: Affine::new(&(path / "norm"), width),
            linear: Linear::new(&(path / "head"), width, VOCABULARY),
        }),
        input: Input::Tokens(SEQUENCE),
        classes: VOCABULARY,
    })
}
