//! Models to measure with, by name: `mlp-8x128` (depth x width), `resnet-4x16-gn` (blocks x channels, GroupNorm or BatchNorm),
//! `gpt-4x128` (layers x width). No timing and no technique: a model is a stem, a row of equal blocks, and a head.

mod gpt;
mod layers;
mod mlp;
mod resnet;

use anyhow::{Context, Result, bail};
use std::fmt;
use tch::nn::{Path, VarStore};
use tch::{Device, Kind, Reduction, Tensor};

/// The target that PyTorch's cross-entropy leaves out.
pub const IGNORED: i64 = -100;

/// A part of a model: a handle to parameters, and what is computed with them.
pub trait Block: Send + fmt::Debug {
    fn forward(&self, x: &Tensor, train: bool) -> Tensor;

    /// Another handle to the same parameters, for a closure that has to own what it uses.
    fn share(&self) -> Box<dyn Block>;
}

/// A classifier whose middle is a row of equal blocks.
#[derive(Debug)]
pub struct Model {
    /// Owns the parameters; optimizers are built on it.
    pub store: VarStore,
    pub stem: Box<dyn Block>,
    pub blocks: Vec<Box<dyn Block>>,
    pub head: Box<dyn Block>,
    input: Input,
    classes: i64,
}

/// Shape of one sample.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Input {
    Features(i64),
    Image(i64),
    Tokens(i64),
}

/// What the builders of the single kinds give back.
struct Parts {
    stem: Box<dyn Block>,
    blocks: Vec<Box<dyn Block>>,
    head: Box<dyn Block>,
    input: Input,
    classes: i64,
}

/// Samples and their targets.
#[derive(Debug)]
pub struct Batch {
    /// `[n, features]`, `[n, 3, side, side]` or, as int64, `[n, sequence]`.
    pub inputs: Tensor,
    /// Class of each row of the logits: `[n]` or `[n, sequence]`, int64.
    pub targets: Tensor,
}

impl Batch {
    /// Samples `start..start + length` as views.
    pub fn narrow(&self, start: i64, length: i64) -> Batch {
        Batch { inputs: self.inputs.narrow(0, start, length), targets: self.targets.narrow(0, start, length) }
    }
}

impl Model {
    /// Builds a model with parameters from libtorch's current random state.
    ///
    /// # Errors
    /// A name of no known form; the forms are listed.
    pub fn named(name: &str, device: Device) -> Result<Model> {
        Model::with_dropout(name, device, 0.0)
    }

    /// As [`Model::named`], with dropout after each residual branch of a GPT, or after each block of an MLP.
    ///
    /// # Errors
    /// As for [`Model::named`].
    pub fn with_dropout(name: &str, device: Device, dropout: f64) -> Result<Model> {
        let store = VarStore::new(device);
        let parts = build(&store.root(), name, dropout).with_context(|| {
            format!("'{name}' is no model; there are mlp-DEPTHxWIDTH, resnet-BLOCKSxCHANNELS-gn, resnet-BLOCKSxCHANNELS-bn and gpt-LAYERSxWIDTH")
        })?;
        let Parts { stem, blocks, head, input, classes } = parts;
        Ok(Model { store, stem, blocks, head, input, classes })
    }

    /// Logits `[rows, classes]` of a batch, with nothing done about memory.
    pub fn forward(&self, inputs: &Tensor, train: bool) -> Tensor {
        let mut x = self.stem.forward(inputs, train);
        for block in &self.blocks {
            x = block.forward(&x, train);
        }
        self.head.forward(&x, train)
    }

    /// Cross-entropy of logits against targets; targets equal to [`IGNORED`] count nowhere.
    pub fn loss(&self, logits: &Tensor, targets: &Tensor, reduction: Reduction) -> Tensor {
        logits.cross_entropy_loss::<Tensor>(&targets.reshape([-1]), None, reduction, IGNORED, 0.0)
    }

    /// A batch of `samples` made up from libtorch's current random state.
    pub fn batch(&self, samples: i64) -> Batch {
        let device = self.store.device();
        let float = (Kind::Float, device);
        let int = (Kind::Int64, device);
        match self.input {
            Input::Features(width) => {
                Batch { inputs: Tensor::randn([samples, width], float), targets: Tensor::randint(self.classes, [samples], int) }
            }
            Input::Image(side) => Batch {
                inputs: Tensor::randn([samples, 3, side, side], float),
                targets: Tensor::randint(self.classes, [samples], int),
            },
            Input::Tokens(sequence) => Batch {
                inputs: Tensor::randint(self.classes, [samples, sequence], int),
                targets: Tensor::randint(self.classes, [samples, sequence], int),
            },
        }
    }

    /// The least floating-point operations of one training step in fp32, 0 where cuDNN may use TF32: for each weight and row 2 forward and
    /// 2 for the weight's gradient. Gradients of inputs, biases, norms, attention and activation functions come on top; embeddings are
    /// looked up, not multiplied.
    pub fn least_training_flops(&self, samples: i64) -> f64 {
        let rows = match self.input {
            Input::Features(_) => samples,
            Input::Tokens(sequence) => samples * sequence,
            Input::Image(_) => return 0.0,
        };
        let variables = self.store.variables();
        let matrices =
            variables.iter().filter(|(name, t)| t.dim() == 2 && !name.starts_with("tokens") && !name.starts_with("positions"));
        let weights: usize = matrices.map(|(_, t)| t.numel()).sum();
        4.0 * weights as f64 * rows as f64
    }

    /// The trainable parameters, in a fixed order.
    pub fn parameters(&self) -> Vec<Tensor> {
        let mut named: Vec<(String, Tensor)> = self.store.variables().into_iter().filter(|(_, t)| t.requires_grad()).collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        named.into_iter().map(|(_, tensor)| tensor).collect()
    }

    /// The parameters' gradients, in the order of [`Model::parameters`]; a parameter without one has an undefined tensor.
    pub fn gradients(&self) -> Vec<Tensor> {
        self.parameters().iter().map(Tensor::grad).collect()
    }
}

fn build(path: &Path, name: &str, dropout: f64) -> Result<Parts> {
    let (kind, size) = name.split_once('-').context("no size")?;
    let (size, norm) = size.split_once('-').unwrap_or((size, ""));
    let (depth, width) = size.split_once('x').context("no width")?;
    let (depth, width): (i64, i64) = (depth.parse()?, width.parse()?);
    anyhow::ensure!((1..=4096).contains(&depth) && (1..=65536).contains(&width), "a size that no model has");
    Ok(match (kind, norm) {
        ("mlp", "") => mlp::parts(path, depth, width, dropout),
        ("resnet", "gn") => resnet::parts(path, depth, width, resnet::Norm::Group),
        ("resnet", "bn") => resnet::parts(path, depth, width, resnet::Norm::Batch),
        ("gpt", "") => gpt::parts(path, depth, width, dropout)?,
        _ => bail!("no such kind"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_trains() {
        for name in ["mlp-3x16", "resnet-2x8-gn", "resnet-2x8-bn", "gpt-2x32"] {
            tch::manual_seed(1);
            let model = Model::with_dropout(name, Device::Cpu, 0.1).unwrap();
            let batch = model.batch(4);
            let loss = model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean);
            let chance = (model.classes as f64).ln();
            assert!((loss.double_value(&[]) - chance).abs() < 1.5, "{name}: loss {loss:?} far from chance {chance}");
            loss.backward();
            for (parameter, gradient) in model.parameters().iter().zip(model.gradients()) {
                assert!(gradient.defined() && gradient.size() == parameter.size(), "{name}");
            }
        }
    }

    #[test]
    fn unknown_names_are_explained() {
        for name in ["", "mlp", "mlp-8", "mlp-0x8", "mlp-8x8-gn", "resnet-2x8", "gpt-2x33", "lstm-2x2", "mlp-ax2", "mlp-9999999x1"]
        {
            let error = Model::named(name, Device::Cpu).unwrap_err().to_string();
            assert!(error.contains("there are mlp-DEPTHxWIDTH"), "{error}");
        }
    }
}
