//! BERT with the layers of Hugging Face's `BertForSequenceClassification`: the encoder with its pooler, and a classifier of two labels
//! on the first token. Token types are all zero and no token is padding.

use super::attention::Heads;
use super::layers::{Affine, Linear, Start, dropout, embedding};
use super::{Block, Input, Parts};
use tch::nn::Path;
use tch::{Kind, Tensor};

const POSITIONS: i64 = 512;
const VOCABULARY: i64 = 30522;
const LABELS: i64 = 2;
const EPSILON: f64 = 1e-12;
const START: Start = Start::Normal(0.02);

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bert {
    pub layers: i64,
    pub width: i64,
    /// Of embeddings, the attention's weights, residual branches and the pooled vector.
    pub dropout: f64,
}

impl Bert {
    pub fn parts(self, path: &Path) -> Parts {
        let Bert { width, dropout, .. } = self;
        let stem = BertEmbeddings {
            tokens: embedding(&(path / "tokens"), VOCABULARY, width),
            positions: embedding(&(path / "positions"), POSITIONS, width),
            types: embedding(&(path / "types"), 2, width),
            type_ids: path.add("type_ids", Tensor::zeros([1, POSITIONS], (Kind::Int64, path.device())), false),
            norm: Affine::new(&(path / "norm"), width),
            dropout,
        };
        let layer = |i| -> Box<dyn Block> {
            let path = path / "block" / i;
            let linear = |name, inputs, outputs| Linear::new(&(&path / name), inputs, outputs, START);
            Box::new(Layer {
                query: linear("query", width, width),
                key: linear("key", width, width),
                value: linear("value", width, width),
                heads: Heads { heads: width / 64, causal: false, dropout },
                projection: linear("projection", width, width),
                attention_norm: Affine::new(&(&path / "attention_norm"), width),
                up: linear("up", width, 4 * width),
                down: linear("down", 4 * width, width),
                mlp_norm: Affine::new(&(&path / "mlp_norm"), width),
                dropout,
            })
        };
        let blocks = (0..self.layers).map(layer).collect();
        let head = BertClassifier {
            pooler: Linear::new(&(path / "pooler"), width, width, START),
            classifier: Linear::new(&(path / "classifier"), width, LABELS, START),
            dropout,
        };
        let input = Input::Tokens { vocabulary: VOCABULARY, sequence: POSITIONS, targets: 1 };
        Parts { stem: Box::new(stem), blocks, head: Box::new(head), input, classes: LABELS }
    }
}

#[derive(Debug)]
struct BertEmbeddings {
    tokens: Tensor,
    positions: Tensor,
    types: Tensor,
    /// Zeros `[1, positions]`.
    type_ids: Tensor,
    norm: Affine,
    dropout: f64,
}

impl Block for BertEmbeddings {
    /// Token numbers `[n, sequence]` to vectors `[n, sequence, width]`.
    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let sequence = x.size()[1];
        let ids = self.type_ids.narrow(1, 0, sequence).expand_as(x);
        let types = Tensor::embedding(&self.types, &ids, -1, false, false);
        let sum = Tensor::embedding(&self.tokens, x, -1, false, false) + types + self.positions.narrow(0, 0, sequence);
        dropout(self.norm.layer_norm(&sum, EPSILON), self.dropout, train)
    }
}

/// A post-norm transformer block.
#[derive(Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    heads: Heads,
    projection: Linear,
    attention_norm: Affine,
    up: Linear,
    down: Linear,
    mlp_norm: Affine,
    dropout: f64,
}

impl Layer {
    fn attend(&self, x: &Tensor, train: bool) -> Tensor {
        let (query, key, value) = (self.query.forward(x), self.key.forward(x), self.value.forward(x));
        self.projection.forward(&self.heads.attend(&query, &key, &value, train))
    }
}

impl Block for Layer {
    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let x = self.attention_norm.layer_norm(&(dropout(self.attend(x, train), self.dropout, train) + x), EPSILON);
        let branch = self.down.forward(&self.up.forward(&x).gelu("none"));
        self.mlp_norm.layer_norm(&(dropout(branch, self.dropout, train) + x), EPSILON)
    }
}

#[derive(Debug)]
struct BertClassifier {
    pooler: Linear,
    classifier: Linear,
    dropout: f64,
}

impl Block for BertClassifier {
    /// Vectors `[n, sequence, width]` to logits `[n, 2]`, from the first token.
    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let pooled = self.pooler.forward(&x.select(1, 0)).tanh();
        self.classifier.forward(&dropout(pooled, self.dropout, train))
    }
}
