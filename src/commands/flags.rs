//! The flags that say what is trained, the same for every command.

use crate::models::{Attention, Settings};
use crate::training::{CheckpointPolicy, Configuration, OptimizerKind, Precision};
use anyhow::Result;
use clap::Args;

/// What is trained, but for the size of the batch.
#[derive(Debug, Clone, Args)]
pub struct ConfigurationFlags {
    /// mlp, resnet18, resnet50, gpt2, gpt2-medium, gpt2-large, gpt2-xl, bert-base, bert-large, vit-l16; or of any size mlp-DEPTHxWIDTH,
    /// resnet-BLOCKSxCHANNELS-gn or -bn, gpt-LAYERSxWIDTH
    #[arg(long, value_name = "NAME")]
    pub model: String,

    #[command(flatten)]
    pub settings: SettingsFlags,

    /// sgd, momentum, rmsprop, adam or adamw; Adam's two also -foreach (PyTorch's default on a GPU) and -fused
    #[arg(long, value_name = "NAME", default_value_t = OptimizerKind::AdamW)]
    pub optimizer: OptimizerKind,

    /// fp32, amp-bf16 or amp-fp16
    #[arg(long, value_name = "NAME", default_value_t = Precision::Fp32)]
    pub precision: Precision,

    /// What is recomputed in the backward pass: none, every-block, or sqrt for segments of sqrt(blocks) blocks
    #[arg(long, value_name = "POLICY", default_value_t = CheckpointPolicy::None)]
    pub checkpoint: CheckpointPolicy,

    /// Micro-batches of a step; they must divide the batch
    #[arg(long, value_name = "K", default_value_t = 1, allow_negative_numbers = true)]
    pub accumulate: i64,
}

impl ConfigurationFlags {
    /// The configuration with a batch of so many samples in each step.
    ///
    /// # Errors
    /// What [`Configuration::validate`] refuses.
    pub fn configuration(&self, batch: i64) -> Result<Configuration> {
        let configuration = Configuration {
            model: self.model.clone(),
            batch,
            settings: self.settings.settings(),
            optimizer: self.optimizer,
            precision: self.precision,
            checkpoint: self.checkpoint,
            accumulate: self.accumulate,
        };
        configuration.validate()?;
        Ok(configuration)
    }
}

/// What of a model can be set.
#[derive(Debug, Clone, Args)]
pub struct SettingsFlags {
    /// Tokens of one sample [default: as many as the model has positions]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seq: Option<i64>,

    /// Pixels along the side of an image [default: the model's, mostly 224]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub image: Option<i64>,

    /// How attention is computed: fused or explicit
    #[arg(long, value_name = "HOW", default_value_t = Attention::Fused)]
    pub attention: Attention,

    /// Probability that dropout drops an element [default: the model's, 0.1 in GPT-2 and BERT, else 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub dropout: Option<f64>,
}

impl SettingsFlags {
    pub fn settings(&self) -> Settings {
        Settings { sequence: self.seq, image: self.image, attention: self.attention, dropout: self.dropout }
    }
}
