//! What is trained: a model, its data and the techniques applied to it, each with a name that is read and written.

use crate::{Attention, Model, Settings, choose};
use anyhow::{Result, ensure};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use tch::Kind;
use torch::optimizers::{Algorithm, Implementation};

/// An option with named values: reads and writes the names, and knows them all.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident, $what:literal, $($(#[$variant_doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $type {
            /// Every value, with its name.
            pub const ALL: &[($type, &str)] = &[$(($type::$variant, $name)),+];

            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                choose($what, text, $type::ALL)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

named! {
    /// Optimizers with PyTorch's default settings: libtorch's loop over the parameters, or foreach (PyTorch's default on a GPU) or fused
    /// where it makes a difference in bytes.
    OptimizerKind, "optimizer",
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
    Precision, "precision",
    Fp32 = "fp32",
    /// Autocast to bfloat16.
    AmpBf16 = "amp-bf16",
    /// Autocast to fp16, with the loss scaled by a `GradScaler`.
    AmpFp16 = "amp-fp16",
}

named! {
    /// Which blocks are recomputed in the backward pass. The stem and the head never are.
    CheckpointPolicy, "checkpoint policy",
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
            OptimizerKind::Sgd => (Algorithm::sgd(), Implementation::Loop),
            OptimizerKind::Momentum => (Algorithm::momentum(0.9), Implementation::Loop),
            OptimizerKind::RmsProp => (Algorithm::rmsprop(), Implementation::Loop),
            OptimizerKind::Adam => (Algorithm::adam(), Implementation::Loop),
            OptimizerKind::AdamW => (Algorithm::adamw(), Implementation::Loop),
            OptimizerKind::AdamForeach => (Algorithm::adam(), Implementation::Foreach),
            OptimizerKind::AdamFused => (Algorithm::adam(), Implementation::Fused),
            OptimizerKind::AdamWForeach => (Algorithm::adamw(), Implementation::Foreach),
            OptimizerKind::AdamWFused => (Algorithm::adamw(), Implementation::Fused),
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

/// `model=gpt2 batch=8 optimizer=adamw ...`: options at their default are left out.
impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let plain = Configuration::new("", 1);
        write!(f, "model={} batch={}", self.model, self.batch)?;
        let Settings { sequence, image, attention, dropout } = self.settings;
        for (name, value) in [("seq", sequence), ("image", image)] {
            if let Some(value) = value {
                write!(f, " {name}={value}")?;
            }
        }
        if attention != Attention::default() {
            write!(f, " attention={attention}")?;
        }
        if let Some(dropout) = dropout {
            write!(f, " dropout={dropout}")?;
        }
        write!(f, " optimizer={}", self.optimizer)?;
        if self.precision != plain.precision {
            write!(f, " precision={}", self.precision)?;
        }
        if self.checkpoint != plain.checkpoint {
            write!(f, " checkpoint={}", self.checkpoint)?;
        }
        if self.accumulate != plain.accumulate {
            write!(f, " accumulate={}", self.accumulate)?;
        }
        Ok(())
    }
}

impl Serialize for Configuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("model", &self.model)?;
        map.serialize_entry("batch", &self.batch)?;
        map.serialize_entry("seq", &self.settings.sequence)?;
        map.serialize_entry("image", &self.settings.image)?;
        map.serialize_entry("attention", &self.settings.attention.to_string())?;
        map.serialize_entry("dropout", &self.settings.dropout)?;
        map.serialize_entry("optimizer", &self.optimizer)?;
        map.serialize_entry("precision", &self.precision)?;
        map.serialize_entry("checkpoint", &self.checkpoint)?;
        map.serialize_entry("accumulate", &self.accumulate)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_written() {
        assert_eq!("adamw".parse(), Ok(OptimizerKind::AdamW));
        assert_eq!(Precision::AmpBf16.to_string(), "amp-bf16");
        assert_eq!("every-block".parse(), Ok(CheckpointPolicy::EveryBlock));
        let error = "adamm".parse::<OptimizerKind>().unwrap_err();
        assert_eq!(
            error,
            "'adamm' is no optimizer; did you mean adam? there are sgd, momentum, rmsprop, adam, adamw, \
             adam-foreach, adam-fused, adamw-foreach, adamw-fused"
        );
        assert!("fp16".parse::<Precision>().unwrap_err().contains("amp-fp16"));
    }

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

    #[test]
    fn a_configuration_is_one_line() {
        let settings = Settings { sequence: Some(128), attention: Attention::Explicit, ..Settings::default() };
        let configuration = Configuration { settings, accumulate: 2, ..Configuration::new("gpt2", 8) };
        assert_eq!(configuration.to_string(), "model=gpt2 batch=8 seq=128 attention=explicit optimizer=sgd accumulate=2");
    }
}
