//! GPT: token and position embeddings, pre-norm transformer blocks with causal attention, and a linear head. A small one of any size,
//! and GPT-2 with the layers of Hugging Face's `GPT2LMHeadModel`, its GELU computed by one kernel.

use super::layers::{Affine, Linear, Start, dropout, embedding};
use super::transformer::{Design, blocks};
use super::{Block, Input, Parts};
use tch::Tensor;
use tch::nn::Path;

/// Width of one head of a small GPT.
pub(super) const HEAD_WIDTH: i64 = 32;
const EPSILON: f64 = 1e-5;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gpt {
    pub design: Design,
    pub vocabulary: i64,
    /// Rows of the position table, and tokens of one sample.
    pub positions: i64,
    /// The head's matrix is the token table.
    pub tied: bool,
}

impl Gpt {
    /// A small GPT with an untied head and without dropout.
    pub fn small(layers: i64, width: i64) -> Gpt {
        Gpt {
            design: Design {
                layers,
                width,
                heads: width / HEAD_WIDTH,
                causal: true,
                gelu: "tanh",
                epsilon: EPSILON,
                start: (Start::Kaiming, Start::Kaiming),
                dropout: 0.0,
            },
            vocabulary: 256,
            positions: 64,
            tied: false,
        }
    }

    /// GPT-2 of one of its published sizes: 1024 positions, tied head, dropout of embeddings, attention and residual branches.
    pub fn published(layers: i64, width: i64, dropout: f64) -> Gpt {
        // GPT-2's own rule: what is added to the residual stream starts smaller the more often that is done.
        let branch = Start::Normal(0.02 / (2.0 * layers as f64).sqrt());
        let start = (Start::Normal(0.02), branch);
        let small = Gpt::small(layers, width).design;
        Gpt { design: Design { heads: width / 64, start, dropout, ..small }, vocabulary: 50257, positions: 1024, tied: true }
    }

    pub fn parts(self, path: &Path) -> Parts {
        let width = self.design.width;
        let tokens = embedding(&(path / "tokens"), self.vocabulary, width);
        let positions = embedding(&(path / "positions"), self.positions, width);
        let blocks = blocks(path, self.design);
        let norm = Affine::new(&(path / "norm"), width);
        let output = if self.tied {
            Output::Tied(tokens.shallow_clone())
        } else {
            Output::Own(Linear::new(&(path / "head"), width, self.vocabulary, Start::Kaiming))
        };
        Parts {
            stem: Box::new(GptEmbeddings { tokens, positions, dropout: self.design.dropout }),
            blocks,
            head: Box::new(GptHead { norm, output, vocabulary: self.vocabulary }),
            input: Input::Tokens { vocabulary: self.vocabulary, sequence: self.positions, targets: self.positions },
            classes: self.vocabulary,
        }
    }
}

#[derive(Debug)]
struct GptEmbeddings {
    tokens: Tensor,
    positions: Tensor,
    dropout: f64,
}

impl Block for GptEmbeddings {
    /// Token numbers `[n, sequence]` to vectors `[n, sequence, width]`.
    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let positions = self.positions.narrow(0, 0, x.size()[1]);
        dropout(Tensor::embedding(&self.tokens, x, -1, false, false) + positions, self.dropout, train)
    }
}

#[derive(Debug)]
enum Output {
    Own(Linear),
    Tied(Tensor),
}

#[derive(Debug)]
struct GptHead {
    norm: Affine,
    output: Output,
    vocabulary: i64,
}

impl Block for GptHead {
    /// Vectors `[n, sequence, width]` to logits `[n * sequence, vocabulary]`.
    fn forward(&self, x: &Tensor, _train: bool) -> Tensor {
        let x = self.norm.layer_norm(x, EPSILON);
        let logits = match &self.output {
            Output::Own(linear) => linear.forward(&x),
            Output::Tied(tokens) => x.linear(tokens, None::<&Tensor>),
        };
        logits.reshape([-1, self.vocabulary])
    }
}
