//! The flags that say what is trained, the same for every command.

use clap::Args;
use models::{Attention, Settings};

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
