//! Attention over heads, with libtorch's fused kernel or step by step.

use super::layers::dropout;
use std::fmt;
use std::str::FromStr;
use tch::nn::Path;
use tch::{Kind, Tensor};
use torch::kept_for_backward;

/// How attention is computed. All give the same values; they keep very different amounts of memory for the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attention {
    /// `scaled_dot_product_attention`: libtorch chooses the kernel. On a CPU, dropout inside attention makes it choose the explicit one.
    #[default]
    Fused,
    /// Matrix product, scale, mask, softmax, dropout, matrix product: each result is a tensor of its own.
    Explicit,
    /// As explicit, and softmax keeps its input, too, as it did in PyTorch before 1.11 (pytorch/pytorch#64000).
    BeforeTorch1_11,
}

impl Attention {
    /// Every setting, with its name.
    pub const ALL: [(Attention, &str); 3] = [
        (Attention::Fused, "fused"),
        (Attention::Explicit, "explicit"),
        (Attention::BeforeTorch1_11, "explicit-before-torch-1.11"),
    ];
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let name = Attention::ALL.iter().find(|(attention, _)| attention == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

impl FromStr for Attention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Attention::ALL.iter().find(|(_, name)| *name == text).map(|(attention, _)| *attention);
        named.ok_or_else(|| format!("'{text}' is no attention; there are {}", Attention::ALL.map(|(_, name)| name).join(", ")))
    }
}

/// The part of attention that has no parameters.
#[derive(Debug)]
pub(super) struct Heads {
    pub heads: i64,
    pub how: Attention,
    pub causal: bool,
    /// Of the attention's weights.
    pub dropout: f64,
    /// `[positions, positions]`, true where a token must not look; only explicit causal attention has one.
    pub mask: Option<Tensor>,
}

impl Heads {
    /// Attends with queries, keys and values `[n, sequence, width]`, which are split into heads; gives `[n, sequence, width]`.
    pub fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor, train: bool) -> Tensor {
        let (n, sequence, width) = match queries.size()[..] {
            [n, sequence, width] => (n, sequence, width),
            _ => (0, 0, 0),
        };
        let by_head = |t: &Tensor| t.view([n, sequence, self.heads, width / self.heads]).transpose(1, 2);
        let (q, k, v) = (by_head(queries), by_head(keys), by_head(values));
        let attended = match self.how {
            Attention::Fused => {
                let dropout = if train { self.dropout } else { 0.0 };
                Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, dropout, self.causal, None::<f64>, false)
            }
            Attention::Explicit | Attention::BeforeTorch1_11 => self.explicit(&q, &k, &v, train),
        };
        attended.transpose(1, 2).reshape([n, sequence, width])
    }

    /// By head: `[n, heads, sequence, width / heads]` each.
    fn explicit(&self, q: &Tensor, k: &Tensor, v: &Tensor, train: bool) -> Tensor {
        let size = q.size();
        let (sequence, width) = (size[2], size[3]);
        // Each assignment frees the result before, as rebinding a name does in Python.
        let mut scores = q.matmul(&k.transpose(-2, -1)) * (1.0 / (width as f64).sqrt());
        if let Some(mask) = &self.mask {
            scores = scores.masked_fill(&mask.narrow(0, 0, sequence).narrow(1, 0, sequence), f64::NEG_INFINITY);
        }
        if self.how == Attention::BeforeTorch1_11 {
            // Softmax's input is what autocast gives it, in fp32. A failure is a panic, as in tch's own functions.
            scores = kept_for_backward(&scores.to_kind(Kind::Float)).unwrap_or_else(|e| panic!("{e}"));
        }
        scores = scores.softmax(-1, None::<Kind>);
        dropout(scores, self.dropout, train).matmul(v)
    }

    pub fn share(&self) -> Heads {
        Heads { mask: self.mask.as_ref().map(Tensor::shallow_clone), ..*self }
    }
}

/// The mask of explicit causal attention, for all blocks of a model.
pub(super) fn causal_mask(path: &Path, how: Attention, positions: i64) -> Option<Tensor> {
    let mask = || Tensor::ones([positions, positions], (Kind::Bool, path.device())).triu(1);
    (how != Attention::Fused).then(|| path.add("mask", mask(), false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;
    use tch::nn::VarStore;

    #[test]
    fn explicit_attention_computes_what_the_fused_kernel_does() {
        let store = VarStore::new(Device::Cpu);
        let x: Vec<Tensor> = (0..3).map(|_| Tensor::randn([2, 17, 24], (Kind::Float, Device::Cpu))).collect();
        for causal in [false, true] {
            let attend = |how| {
                let mask = if causal { causal_mask(&store.root(), how, 32) } else { None };
                Heads { heads: 3, how, causal, dropout: 0.5, mask }.attend(&x[0], &x[1], &x[2], false)
            };
            let fused = attend(Attention::Fused);
            for how in [Attention::Explicit, Attention::BeforeTorch1_11] {
                let explicit = attend(how);
                assert!(explicit.allclose(&fused, 1e-5, 1e-5, false));
                assert_eq!(explicit.size(), [2, 17, 24]);
            }
        }
    }

    #[test]
    fn names_are_read_and_written() {
        for (attention, name) in Attention::ALL {
            assert_eq!((name.parse(), attention.to_string()), (Ok(attention), name.to_string()));
        }
        let error = "'flash' is no attention; there are fused, explicit, explicit-before-torch-1.11";
        assert_eq!("flash".parse::<Attention>(), Err(error.to_string()));
    }
}
