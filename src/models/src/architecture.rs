//! From a model's name and settings to its layers.

use super::bert::{self, Bert};
use super::gpt::{self, Gpt};
use super::resnet::{self, Norm, Residuals};
use super::vit::{self, Vit};
use super::{Attention, Parts, Settings, mlp, suggestion};
use anyhow::{Result, bail, ensure};
use tch::nn::Path;

/// Names of the models whose sizes are given.
const NAMES: [&str; 10] =
    ["mlp", "resnet18", "resnet50", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "bert-base", "bert-large", "vit-l16"];

/// Longest sequence of a GPT of free size, and longest side of an image.
const LONGEST: i64 = 1 << 16;

/// A model that can be built: every size is one that it can have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Architecture {
    Mlp { depth: i64, width: i64, dropout: f64 },
    SmallResidual { blocks: i64, channels: i64, side: i64, norm: Norm },
    Residual { sizes: Residuals, side: i64 },
    Gpt(Gpt),
    Bert(Bert),
    Vit(Vit),
}

impl Architecture {
    pub fn named(name: &str, settings: &Settings) -> Result<Architecture> {
        let given = Given { name, settings };
        Ok(match name {
            "mlp" => given.mlp(8, 1024)?,
            "resnet18" => given.residual(Residuals { stages: [2, 2, 2, 2], bottleneck: false })?,
            "resnet50" => given.residual(Residuals { stages: [3, 4, 6, 3], bottleneck: true })?,
            "gpt2" => given.gpt2(12, 768)?,
            "gpt2-medium" => given.gpt2(24, 1024)?,
            "gpt2-large" => given.gpt2(36, 1280)?,
            "gpt2-xl" => given.gpt2(48, 1600)?,
            "bert-base" => given.bert(12, 768)?,
            "bert-large" => given.bert(24, 1024)?,
            "vit-l16" => given.vit(24, 1024)?,
            _ => given.sized()?,
        })
    }

    pub fn parts(self, path: &Path) -> Parts {
        match self {
            Architecture::Mlp { depth, width, dropout } => mlp::parts(path, depth, width, dropout),
            Architecture::SmallResidual { blocks, channels, side, norm } => resnet::small(path, blocks, channels, side, norm),
            Architecture::Residual { sizes, side } => sizes.parts(path, side),
            Architecture::Gpt(gpt) => gpt.parts(path),
            Architecture::Bert(bert) => bert.parts(path),
            Architecture::Vit(vit) => vit.parts(path),
        }
    }

    /// Elements for one sample in the largest tensor of a training step; none where 63 bits do not hold them.
    pub fn widest(self) -> Option<i64> {
        let tokens = |sequence: i64, width: i64, heads: i64, vocabulary: i64| {
            let each = (4 * width).max(vocabulary).max(heads.checked_mul(sequence)?);
            sequence.checked_mul(each)
        };
        match self {
            Architecture::Mlp { width, .. } => Some(width),
            // The small network's blocks keep the image's size; a convolution may unfold 3x3 pixels for each.
            Architecture::SmallResidual { channels, side, .. } => side.checked_mul(side)?.checked_mul(9 * channels),
            // 64 channels at half the side, unfolded from 7x7 pixels of 3.
            Architecture::Residual { side, .. } => side.checked_mul(side)?.checked_mul(64),
            Architecture::Gpt(g) => tokens(g.sequence, g.design.width, g.design.heads, g.vocabulary),
            Architecture::Bert(b) => tokens(b.sequence, b.width, b.heads(), 0),
            Architecture::Vit(v) => tokens(v.sequence(), v.width, v.heads(), 0),
        }
    }
}

/// What the user gave.
struct Given<'a> {
    name: &'a str,
    settings: &'a Settings,
}

impl Given<'_> {
    fn mlp(&self, depth: i64, width: i64) -> Result<Architecture> {
        self.has_no_sequence()?;
        self.has_no_images()?;
        self.has_no_attention()?;
        Ok(Architecture::Mlp { depth, width, dropout: self.dropout(0.0)? })
    }

    fn residual(&self, sizes: Residuals) -> Result<Architecture> {
        // 32 pixels are halved five times.
        Ok(Architecture::Residual { sizes, side: self.residual_side(224, 32)? })
    }

    fn gpt2(&self, layers: i64, width: i64) -> Result<Architecture> {
        self.has_no_images()?;
        let sequence = self.sequence(1024, 1024)?;
        Ok(Architecture::Gpt(Gpt::published(layers, width, sequence, self.settings.attention, self.dropout(0.1)?)))
    }

    fn bert(&self, layers: i64, width: i64) -> Result<Architecture> {
        self.has_no_images()?;
        let sequence = self.sequence(bert::POSITIONS, bert::POSITIONS)?;
        let (attention, dropout) = (self.settings.attention, self.dropout(0.1)?);
        Ok(Architecture::Bert(Bert { layers, width, sequence, attention, dropout }))
    }

    fn vit(&self, layers: i64, width: i64) -> Result<Architecture> {
        self.has_no_sequence()?;
        let image = self.side(224, vit::PATCH)?;
        ensure!(image % vit::PATCH == 0, "an image of {} has a side that is a multiple of {}, not {image}", self.name, vit::PATCH);
        let (attention, dropout) = (self.settings.attention, self.dropout(0.0)?);
        Ok(Architecture::Vit(Vit { layers, width, image, attention, dropout }))
    }

    /// A model whose name says its size.
    fn sized(&self) -> Result<Architecture> {
        let Some((kind, depth, width, norm)) = size(self.name) else { bail!(self.unknown()) };
        Ok(match (kind, norm) {
            ("mlp", "") => self.mlp(depth, width)?,
            ("resnet", "gn" | "bn") => {
                let norm = if norm == "gn" { Norm::Group } else { Norm::Batch };
                let groups = resnet::GROUPS;
                ensure!(
                    norm == Norm::Batch || width % groups == 0,
                    "'{}' is no model: channels are a multiple of {groups} where they are normalised in groups",
                    self.name
                );
                Architecture::SmallResidual { blocks: depth, channels: width, side: self.residual_side(32, 4)?, norm }
            }
            ("gpt", "") => {
                self.has_no_images()?;
                let head = gpt::HEAD_WIDTH;
                ensure!(width % head == 0, "'{}' is no model: a GPT's width is a multiple of {head}", self.name);
                let (sequence, dropout) = (self.sequence(64, LONGEST)?, self.dropout(0.0)?);
                Architecture::Gpt(Gpt::small(depth, width, sequence, self.settings.attention, dropout))
            }
            _ => bail!(self.unknown()),
        })
    }

    fn unknown(&self) -> String {
        format!(
            "'{}' is no model;{} there are {}, and of any size mlp-DEPTHxWIDTH, resnet-BLOCKSxCHANNELS-gn, resnet-BLOCKSxCHANNELS-bn and gpt-LAYERSxWIDTH",
            self.name,
            suggestion(self.name, &NAMES),
            NAMES.join(", ")
        )
    }

    fn sequence(&self, published: i64, longest: i64) -> Result<i64> {
        let sequence = self.settings.sequence.unwrap_or(published);
        ensure!((1..=longest).contains(&sequence), "a sequence of {} has 1 to {longest} tokens, not {sequence}", self.name);
        Ok(sequence)
    }

    fn side(&self, published: i64, least: i64) -> Result<i64> {
        let side = self.settings.image.unwrap_or(published);
        ensure!(
            (least..=LONGEST).contains(&side),
            "an image of {} has {least} to {LONGEST} pixels along its side, not {side}",
            self.name
        );
        Ok(side)
    }

    fn residual_side(&self, published: i64, least: i64) -> Result<i64> {
        self.has_no_sequence()?;
        self.has_no_attention()?;
        ensure!(self.settings.dropout.unwrap_or(0.0) == 0.0, "{} has no dropout to set", self.name);
        self.side(published, least)
    }

    fn dropout(&self, published: f64) -> Result<f64> {
        let dropout = self.settings.dropout.unwrap_or(published);
        ensure!((0.0..1.0).contains(&dropout), "dropout is a probability from 0 up to, not including, 1, not {dropout}");
        Ok(dropout)
    }

    fn has_no_sequence(&self) -> Result<()> {
        ensure!(self.settings.sequence.is_none(), "{} has no sequence whose length could be set", self.name);
        Ok(())
    }

    fn has_no_images(&self) -> Result<()> {
        ensure!(self.settings.image.is_none(), "{} has no images whose size could be set", self.name);
        Ok(())
    }

    fn has_no_attention(&self) -> Result<()> {
        ensure!(self.settings.attention == Attention::default(), "{} has no attention to compute in another way", self.name);
        Ok(())
    }
}

/// Kind, depth, width and norm of a name like `resnet-4x16-gn`.
fn size(name: &str) -> Option<(&str, i64, i64, &str)> {
    let (kind, size) = name.split_once('-')?;
    let (size, norm) = size.split_once('-').unwrap_or((size, ""));
    let (depth, width) = size.split_once('x')?;
    let (depth, width) = (depth.parse().ok()?, width.parse().ok()?);
    ((1..=4096).contains(&depth) && (1..=65536).contains(&width)).then_some((kind, depth, width, norm))
}
