//! From a model's name to its layers.

use super::bert::Bert;
use super::gpt::{self, Gpt};
use super::resnet::{self, Norm};
use super::vit::Vit;
use super::{Parts, mlp};
use anyhow::{Result, bail, ensure};
use tch::nn::Path;

/// Names of the models whose sizes are given.
const NAMES: [&str; 7] = ["resnet50", "gpt2", "gpt2-medium", "gpt2-large", "bert-base", "bert-large", "vit-l16"];

/// A model that can be built: every size is one that it can have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Architecture {
    Mlp { depth: i64, width: i64, dropout: f64 },
    SmallResidual { blocks: i64, channels: i64, norm: Norm },
    ResNet50,
    Gpt(Gpt),
    Bert(Bert),
    Vit(Vit),
}

impl Architecture {
    /// `dropout` is wherever the model drops anything; that of the published model where none is given.
    pub fn named(name: &str, dropout: Option<f64>) -> Result<Architecture> {
        let given = Given { name, dropout };
        Ok(match name {
            "resnet50" => given.residual(Architecture::ResNet50)?,
            "gpt2" => given.gpt2(12, 768)?,
            "gpt2-medium" => given.gpt2(24, 1024)?,
            "gpt2-large" => given.gpt2(36, 1280)?,
            "bert-base" => given.bert(12, 768)?,
            "bert-large" => given.bert(24, 1024)?,
            "vit-l16" => Architecture::Vit(Vit { layers: 24, width: 1024, dropout: given.dropout(0.0)? }),
            _ => given.sized()?,
        })
    }

    pub fn parts(self, path: &Path) -> Parts {
        match self {
            Architecture::Mlp { depth, width, dropout } => mlp::parts(path, depth, width, dropout),
            Architecture::SmallResidual { blocks, channels, norm } => resnet::small(path, blocks, channels, norm),
            Architecture::ResNet50 => resnet::resnet50(path),
            Architecture::Gpt(gpt) => gpt.parts(path),
            Architecture::Bert(bert) => bert.parts(path),
            Architecture::Vit(vit) => vit.parts(path),
        }
    }
}

/// What the user gave.
struct Given<'a> {
    name: &'a str,
    dropout: Option<f64>,
}

impl Given<'_> {
    fn residual(&self, architecture: Architecture) -> Result<Architecture> {
        ensure!(self.dropout.unwrap_or(0.0) == 0.0, "{} has no dropout to set", self.name);
        Ok(architecture)
    }

    fn gpt2(&self, layers: i64, width: i64) -> Result<Architecture> {
        Ok(Architecture::Gpt(Gpt::published(layers, width, self.dropout(0.1)?)))
    }

    fn bert(&self, layers: i64, width: i64) -> Result<Architecture> {
        Ok(Architecture::Bert(Bert { layers, width, dropout: self.dropout(0.1)? }))
    }

    /// A model whose name says its size.
    fn sized(&self) -> Result<Architecture> {
        let Some((kind, depth, width, norm)) = size(self.name) else { bail!(self.unknown()) };
        Ok(match (kind, norm) {
            ("mlp", "") => Architecture::Mlp { depth, width, dropout: self.dropout(0.0)? },
            ("resnet", "gn" | "bn") => {
                let norm = if norm == "gn" { Norm::Group } else { Norm::Batch };
                let groups = resnet::GROUPS;
                ensure!(
                    norm == Norm::Batch || width % groups == 0,
                    "'{}' is no model: channels are a multiple of {groups} where they are normalised in groups",
                    self.name
                );
                self.residual(Architecture::SmallResidual { blocks: depth, channels: width, norm })?
            }
            ("gpt", "") => {
                let head = gpt::HEAD_WIDTH;
                ensure!(width % head == 0, "'{}' is no model: a GPT's width is a multiple of {head}", self.name);
                Architecture::Gpt(Gpt::small(depth, width, self.dropout(0.0)?))
            }
            _ => bail!(self.unknown()),
        })
    }

    fn unknown(&self) -> String {
        format!(
            "'{}' is no model; there are {}, and of any size mlp-DEPTHxWIDTH, resnet-BLOCKSxCHANNELS-gn, resnet-BLOCKSxCHANNELS-bn and gpt-LAYERSxWIDTH",
            self.name,
            NAMES.join(", ")
        )
    }

    fn dropout(&self, published: f64) -> Result<f64> {
        let dropout = self.dropout.unwrap_or(published);
        ensure!((0.0..1.0).contains(&dropout), "dropout is a probability from 0 up to, not including, 1, not {dropout}");
        Ok(dropout)
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
