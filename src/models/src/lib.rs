//! Models to measure with, by name. Published ones: `resnet50`, `gpt2`, `gpt2-medium`, `gpt2-large`, `bert-base`, `bert-large` and `vit-l16`. And
//! of any size: `mlp-8x128` (depth x width), `resnet-4x16-gn` (blocks x
//! channels, GroupNorm or BatchNorm), `gpt-4x128` (layers x width). No timing and no technique: a model is a stem, a row of blocks, and a
//! head.

mod architecture;
mod attention;
mod bert;
mod gpt;
mod layers;
mod mlp;
mod resnet;
mod transformer;
mod vit;

use anyhow::Result;
use architecture::Architecture;
use std::fmt;
use tch::nn::VarStore;
use tch::{Device, Kind, Reduction, Tensor};

/// The target that PyTorch's cross-entropy leaves out.
pub const IGNORED: i64 = -100;

/// A part of a model: a handle to parameters, and what is computed with them.
pub trait Block: Send + fmt::Debug {
    fn forward(&self, x: &Tensor, train: bool) -> Tensor;
}

/// A classifier whose middle is a row of blocks.
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
    /// Each token is one of `vocabulary`; there is one target for each of `targets` tokens.
    Tokens {
        vocabulary: i64,
        sequence: i64,
        targets: i64,
    },
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
    /// Class of each row of the logits: `[n]` or, where each token has one, `[n, sequence]`, int64.
    pub targets: Tensor,
}

impl Batch {
    /// Samples `start..start + length` as views.
    pub fn narrow(&self, start: i64, length: i64) -> Batch {
        Batch { inputs: self.inputs.narrow(0, start, length), targets: self.targets.narrow(0, start, length) }
    }
}

impl Model {
    /// Builds a model with parameters from libtorch's current random state. Each parameter is made on the device, where it will live.
    ///
    /// # Errors
    /// A name of no known form; the forms are given.
    pub fn named(name: &str, device: Device) -> Result<Model> {
        Ok(Model::built(Architecture::named(name, 0.1)?, device))
    }

    /// As [`Model::named`], but that GPT-2 and BERT drop nothing.
    pub fn without_dropout(name: &str, device: Device) -> Result<Model> {
        Ok(Model::built(Architecture::named(name, 0.0)?, device))
    }

    fn built(architecture: Architecture, device: Device) -> Model {
        let store = VarStore::new(device);
        let Parts { stem, blocks, head, input, classes } = architecture.parts(&store.root());
        Model { store, stem, blocks, head, input, classes }
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
        let (float, int) = ((Kind::Float, device), (Kind::Int64, device));
        let inputs = match self.input {
            Input::Features(width) => Tensor::randn([samples, width], float),
            Input::Image(side) => Tensor::randn([samples, 3, side, side], float),
            Input::Tokens { vocabulary, sequence, .. } => Tensor::randint(vocabulary, [samples, sequence], int),
        };
        let targets = match self.input {
            Input::Tokens { targets, .. } if targets > 1 => Tensor::randint(self.classes, [samples, targets], int),
            _ => Tensor::randint(self.classes, [samples], int),
        };
        Batch { inputs, targets }
    }

    /// The least floating-point operations of one training step in fp32, 0 where cuDNN may use TF32: for each weight and row 2 forward and
    /// 2 for the weight's gradient. Gradients of inputs, biases, norms, attention and activation functions come on top; embeddings are
    /// looked up, not multiplied, and what is not done for each row is left out.
    pub fn least_training_flops(&self, samples: i64) -> f64 {
        let rows = match self.input {
            Input::Features(_) => samples,
            Input::Tokens { sequence, .. } => samples * sequence,
            Input::Image(_) => return 0.0,
        };
        let variables = self.store.variables();
        let matrices = variables.iter().filter(|(name, t)| t.dim() == 2 && (name.starts_with("block") || name.starts_with("head")));
        let weights: usize = matrices.map(|(_, t)| t.numel()).sum();
        4.0 * weights as f64 * rows as f64
    }

    /// How many numbers there are in a row of the logits.
    pub fn classes(&self) -> i64 {
        self.classes
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// The random state is the process's, so tests that draw from it take turns.
    static RANDOM: Mutex<()> = Mutex::new(());

    /// One step's forward and backward pass, of few tokens: the loss is finite and every parameter has a gradient.
    fn trains(name: &str, model: &Model) {
        let mut batch = model.batch(2);
        for tokens in [&mut batch.inputs, &mut batch.targets].into_iter().filter(|t| t.kind() == Kind::Int64 && t.dim() == 2) {
            *tokens = tokens.narrow(1, 0, 8);
        }
        let loss = model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean);
        assert!(loss.double_value(&[]).is_finite(), "{name}");
        loss.backward();
        for (parameter, gradient) in model.parameters().iter().zip(model.gradients()) {
            assert!(gradient.defined() && gradient.size() == parameter.size(), "{name}");
        }
    }

    /// Counts of Hugging Face and torchvision. BERT's are those of the encoder with its pooler, and the classifier's of two labels.
    #[test]
    fn published_models_have_published_parameters() {
        let _turn = RANDOM.lock();
        for (name, published) in [
            ("resnet50", 25_557_032),
            ("gpt2", 124_439_808),
            ("gpt2-medium", 354_823_168),
            ("gpt2-large", 774_030_080),
            ("bert-base", 109_482_240 + 2 * 768 + 2),
            ("bert-large", 335_141_888 + 2 * 1024 + 2),
            ("vit-l16", 304_326_632),
        ] {
            // Tests have no memory for billions of parameters: equal blocks are counted once, and so often as the model has them.
            let cut = |blocks: i64| match Architecture::named(name, 0.1).unwrap() {
                Architecture::Gpt(mut g) => {
                    let layers = std::mem::replace(&mut g.design.layers, blocks);
                    (Architecture::Gpt(g), layers)
                }
                Architecture::Bert(b) => (Architecture::Bert(bert::Bert { layers: blocks, ..b }), b.layers),
                Architecture::Vit(v) => (Architecture::Vit(vit::Vit { layers: blocks, ..v }), v.layers),
                whole => (whole, 1),
            };
            let trained = |model: &Model| model.store.trainable_variables().iter().map(Tensor::numel).sum::<usize>() as i64;
            let count = |blocks| trained(&Model::built(cut(blocks).0, Device::Cpu));
            let (one, (_, layers)) = (count(1), cut(1));
            let block = if layers > 1 { count(2) - one } else { 0 };
            assert_eq!(one + (layers - 1) * block, published, "{name}");
            if ["resnet50", "gpt2", "bert-base", "vit-l16"].contains(&name) {
                trains(name, &Model::built(cut(1).0, Device::Cpu));
            }
        }
    }

    #[test]
    fn unknown_names_are_explained() {
        for name in ["", "mlp-8", "mlp-0x8", "mlp-8x8-gn", "resnet-2x8", "gpt-2x33", "lstm-2x2", "mlp-ax2", "mlp-9999999x1"] {
            let error = format!("{:#}", Model::named(name, Device::Cpu).unwrap_err());
            assert!(error.contains("mlp-DEPTHxWIDTH") || error.contains("multiple of 32"), "{name}: {error}");
        }
    }
}
