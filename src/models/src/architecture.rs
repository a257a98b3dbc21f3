//! From a model's name to its layers.

use super::bert::Bert;
use super::gpt::{self, Gpt};
use super::resnet::{self, Norm};
use super::vit::Vit;
use super::{Parts, mlp};
use anyhow::{Context, Result, bail, ensure};
use tch::nn::Path;

/// A model that can be built: every size is one that it can have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Architecture {
    Mlp { depth: i64, width: i64 },
    SmallResidual { blocks: i64, channels: i64, norm: Norm },
    ResNet50,
    Gpt(Gpt),
    Bert(Bert),
    Vit(Vit),
}

impl Architecture {
    /// `dropout` is that of the published models that drop anything.
    pub fn named(name: &str, dropout: f64) -> Result<Architecture> {
        let gpt2 = |layers, width| Architecture::Gpt(Gpt::published(layers, width, dropout));
        let bert = |layers, width| Architecture::Bert(Bert { layers, width, dropout });
        Ok(match name {
            "resnet50" => Architecture::ResNet50,
            "gpt2" => gpt2(12, 768),
            "gpt2-medium" => gpt2(24, 1024),
            "gpt2-large" => gpt2(36, 1280),
            "bert-base" => bert(12, 768),
            "bert-large" => bert(24, 1024),
            "vit-l16" => Architecture::Vit(Vit { layers: 24, width: 1024 }),
            _ => sized(name)?,
        })
    }

    pub fn parts(self, path: &Path) -> Parts {
        match self {
            Architecture::Mlp { depth, width } => mlp::parts(path, depth, width),
            Architecture::SmallResidual { blocks, channels, norm } => resnet::small(path, blocks, channels, norm),
            Architecture::ResNet50 => resnet::resnet50(path),
            Architecture::Gpt(gpt) => gpt.parts(path),
            Architecture::Bert(bert) => bert.parts(path),
            Architecture::Vit(vit) => vit.parts(path),
        }
    }
}

/// A model whose name says its size.
fn sized(name: &str) -> Result<Architecture> {
    let unknown = || {
        format!(
            "'{name}' is no model; there are resnet50, gpt2, gpt2-medium, gpt2-large, bert-base, bert-large, vit-l16, and of any size \
             mlp-DEPTHxWIDTH, resnet-BLOCKSxCHANNELS-gn, resnet-BLOCKSxCHANNELS-bn and gpt-LAYERSxWIDTH"
        )
    };
    let (kind, depth, width, norm) = size(name).with_context(unknown)?;
    let (head, groups) = (gpt::HEAD_WIDTH, resnet::GROUPS);
    Ok(match (kind, norm) {
        ("mlp", "") => Architecture::Mlp { depth, width },
        ("resnet", "gn") => {
            ensure!(width % groups == 0, "'{name}' is no model: channels that are normalised in groups are a multiple of {groups}");
            Architecture::SmallResidual { blocks: depth, channels: width, norm: Norm::Group }
        }
        ("resnet", "bn") => Architecture::SmallResidual { blocks: depth, channels: width, norm: Norm::Batch },
        ("gpt", "") => {
            ensure!(width % head == 0, "'{name}' is no model: a GPT's width is a multiple of {head}");
            Architecture::Gpt(Gpt::small(depth, width))
        }
        _ => bail!(unknown()),
    })
}

/// Kind, depth, width and norm of a name like `resnet-4x16-gn`.
fn size(name: &str) -> Option<(&str, i64, i64, &str)> {
    let (kind, size) = name.split_once('-')?;
    let (size, norm) = size.split_once('-').unwrap_or((size, ""));
    let (depth, width) = size.split_once('x')?;
    let (depth, width) = (depth.parse().ok()?, width.parse().ok()?);
    ((1..=4096).contains(&depth) && (1..=65536).contains(&width)).then_some((kind, depth, width, norm))
}
