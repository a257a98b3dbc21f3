//! Layers that the models share. Each is a handle to parameters of a `VarStore`.

use tch::nn::{Init, Path, init::DEFAULT_KAIMING_UNIFORM};
use tch::{Kind, Tensor};

/// How the weights of a matrix start; biases then start at zero, except with Kaiming's rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    /// Kaiming's uniform rule, for matrix and bias.
    Kaiming,
    /// Normal, with this standard deviation.
    Normal(f64),
}

#[derive(Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    pub fn new(path: &Path, inputs: i64, outputs: i64, start: Start) -> Linear {
        match start {
            Start::Kaiming => {
                let bound = 1.0 / (inputs as f64).sqrt();
                Linear {
                    weight: path.var("weight", &[outputs, inputs], DEFAULT_KAIMING_UNIFORM),
                    bias: path.var("bias", &[outputs], Init::Uniform { lo: -bound, up: bound }),
                }
            }
            Start::Normal(deviation) => Linear {
                weight: normal(path, "weight", &[outputs, inputs], deviation),
                bias: path.var("bias", &[outputs], Init::Const(0.0)),
            },
        }
    }

    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.linear(&self.weight, Some(&self.bias))
    }
}

/// Scale and shift of a normalisation over `channels`.
#[derive(Debug)]
pub struct Affine {
    pub weight: Tensor,
    pub bias: Tensor,
}

impl Affine {
    pub fn new(path: &Path, channels: i64) -> Affine {
        Affine { weight: path.var("weight", &[channels], Init::Const(1.0)), bias: path.var("bias", &[channels], Init::Const(0.0)) }
    }

    /// Layer norm over the last dimension; `epsilon` is added to the variance.
    pub fn layer_norm(&self, x: &Tensor, epsilon: f64) -> Tensor {
        x.layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), epsilon, true)
    }
}

/// A parameter that starts normal around zero. It is written once, where it will live: large models have no memory to spare.
pub fn normal(path: &Path, name: &str, shape: &[i64], deviation: f64) -> Tensor {
    let mut values = Tensor::empty(shape, (Kind::Float, path.device()));
    path.add(name, values.normal_(0.0, deviation), true)
}

/// A table of vectors, one for each token.
pub fn embedding(path: &Path, tokens: i64, width: i64) -> Tensor {
    normal(path, "weight", &[tokens, width], 0.02)
}

/// Dropout that makes no tensor where there is none to drop.
pub fn dropout(x: Tensor, probability: f64, train: bool) -> Tensor {
    if probability > 0.0 && train { x.dropout(probability, true) } else { x }
}

/// A buffer that is saved with the model and not trained.
pub fn buffer(path: &Path, name: &str, channels: i64, value: f64) -> Tensor {
    path.add(name, Tensor::full([channels], value, (Kind::Float, path.device())), false)
}
