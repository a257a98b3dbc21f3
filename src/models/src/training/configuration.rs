//! What is trained: a model, its data and the techniques applied to it, each with a name that is read and written.

use crate::{Model, Settings};
use anyhow::{Result, ensure};
use std::fmt;
use tch::Kind;
use torch::optimizers::{Algorithm, Implementation};

/// An option with named values.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident: $($(#[$variant_doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $type {
            /// Every value, with its name.
            pub const ALL: &[($type, &str)] = &[$(($type::$variant, $name)),+];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.pad(match self {
                    $($type::$variant => $name,)+
                })
            }
        }
    };
}

named! {
    /// Optimizers with PyTorch's default settings: libtorch's loop over the parameters, or foreach (PyTorch's default on a GPU) or fused
    /// where it makes a difference in bytes.
    OptimizerKind:
    /// No state.
    Sgd = "sgd",
    /// SGD with momentum 0.9: one number for each parameter.
    Momentum = "momentum",
    /// One number for each parameter.
    RmsProp = "rmsprop",
    /// Two numbers for each parameter.
    Adam = "adam",
    /// Two numbers for each parameter.
    AdamW = "adamw",
    /// As Adam, but temporaries of its step are as large as the model.
    AdamForeach = "adam-foreach",
    /// As Adam, without temporaries.
    AdamFused = "adam-fused",
    /// As AdamW, but temporaries of its step are as large as the model.
    AdamWForeach = "adamw-foreach",
    /// As AdamW, without temporaries.
    AdamWFused = "adamw-fused",
}

named! {
    /// In which numbers the forward pass computes. Parameters, gradients and optimizer state are fp32 in each.
    Precision:
    Fp32 = "fp32",
    /// Autocast to bfloat16.
    AmpBf16 = "amp-bf16",
    /// Autocast to fp16, with the loss scaled by a `GradScaler`.
    AmpFp16 = "amp-fp16",
}

named! {
    /// Which blocks are recomputed in the backward pass. The stem and the head never are.
    CheckpointPolicy:
    None = "none",
    /// Each block is a segment.
    EveryBlock = "every-block",
    /// Segments of as many blocks as the square root of their number, rounded up.
    Sqrt = "sqrt",
}

impl OptimizerKind {
    /// Numbers of state for each parameter.
    pub fn state_numbers(self) -> usize {
        match self {
            OptimizerKind::Sgd => 0,
            OptimizerKind::Momentum | OptimizerKind::RmsProp => 1,
            _ => 2,
        }
    }

    /// What a step computes, and how.
    pub fn algorithm(self) -> (Algorithm, Implementation) {
        match self {
            OptimizerKind::Sgd => (Algorithm::Sgd, Implementation::Loop),
            OptimizerKind::Momentum => (Algorithm::Momentum, Implementation::Loop),
            OptimizerKind::RmsProp => (Algorithm::RmsProp, Implementation::Loop),
            OptimizerKind::Adam => (Algorithm::Adam, Implementation::Loop),
            OptimizerKind::AdamW => (Algorithm::AdamW, Implementation::Loop),
            OptimizerKind::AdamForeach => (Algorithm::Adam, Implementation::Foreach),
            OptimizerKind::AdamFused => (Algorithm::Adam, Implementation::Fused),
            OptimizerKind::AdamWForeach => (Algorithm::AdamW, Implementation::Foreach),
            OptimizerKind::AdamWFused => (Algorithm::AdamW, Implementation::Fused),
        }
    }
}

impl Precision {
    /// What autocast casts to; `Float` where there is none.
    pub fn kind(self) -> Kind {
        match self {
            Precision::Fp32 => Kind::Float,
            Precision::AmpBf16 => Kind::BFloat16,
            Precision::AmpFp16 => Kind::Half,
        }
    }
}

impl CheckpointPolicy {
    /// Blocks in a segment of a model of so many blocks; none where nothing is checkpointed.
    pub fn segment(self, blocks: usize) -> Option<usize> {
        match self {
            CheckpointPolicy::None => None,
            CheckpointPolicy::EveryBlock => Some(1),
            CheckpointPolicy::Sqrt => Some((blocks as f64).sqrt().ceil().max(1.0) as usize),
        }
    }
}

/// Everything that a training step depends on but the device.
#[derive(Debug, Clone, PartialEq)]
pub struct Configuration {
    /// Name of a model; see [`crate`].
    pub model: String,
    /// Samples of one step; with accumulation those of all its micro-batches together.
    pub batch: i64,
    /// Sequence length, image size, attention, dropout.
    pub settings: Settings,
    pub optimizer: OptimizerKind,
    pub precision: Precision,
    pub checkpoint: CheckpointPolicy,
    /// Micro-batches that one step accumulates.
    pub accumulate: i64,
}

impl Configuration {
    /// A plain step: SGD in fp32, nothing checkpointed or accumulated.
    pub fn new(model: impl Into<String>, batch: i64) -> Configuration {
        Configuration {
            model: model.into(),
            batch,
            settings: Settings::default(),
            optimizer: OptimizerKind::Sgd,
            precision: Precision::Fp32,
            checkpoint: CheckpointPolicy::None,
            accumulate: 1,
        }
    }

    /// Says whether this can be trained, given memory enough, without building anything.
    ///
    /// # Errors
    /// An unknown model; a setting that it does not take; micro-batches that do not divide the batch; a size beyond all bounds.
    pub fn validate(&self) -> Result<()> {
        Model::check(&self.model, &self.settings, self.batch)?;
        let (batch, accumulate) = (self.batch, self.accumulate);
        ensure!(accumulate >= 1, "a step accumulates at least one micro-batch, not {accumulate}");
        ensure!(batch % accumulate == 0, "{accumulate} micro-batches do not divide a batch of {batch} samples into equal parts");
        Ok(())
    }

    /// Samples of one forward pass.
    pub fn micro_batch(&self) -> i64 {
        self.batch / self.accumulate.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_the_blocks() {
        assert_eq!(CheckpointPolicy::None.segment(12), None);
        assert_eq!(CheckpointPolicy::EveryBlock.segment(12), Some(1));
        assert_eq!([1, 12, 16, 17].map(|n| CheckpointPolicy::Sqrt.segment(n)), [Some(1), Some(4), Some(4), Some(5)]);
    }

    #[test]
    fn what_cannot_be_trained_is_refused() {
        let refused = |change: fn(&mut Configuration)| {
            let mut configuration = Configuration::new("gpt2", 8);
            change(&mut configuration);
            configuration.validate().unwrap_err().to_string()
        };
        assert!(refused(|c| c.accumulate = 3).contains("3 micro-batches do not divide a batch of 8 samples"));
        assert!(refused(|c| c.accumulate = 0).contains("at least one micro-batch"));
        assert!(refused(|c| c.batch = i64::MAX).contains("63 bits"));
        assert!(refused(|c| c.model = "gpt3".into()).contains("did you mean gpt2?"));
        Configuration { accumulate: 4, ..Configuration::new("gpt2", 8) }.validate().unwrap();
    }
}
