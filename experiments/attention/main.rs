//! Attention: a matrix of all tokens by all tokens, or a kernel that never has it whole.
//!
//! `scaled_dot_product_attention` chooses among kernels (flash, memory-efficient, cuDNN, explicit) by card, type, head size and mask
//! (`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`). Explicit attention keeps scores of heads x tokens x tokens for the backward pass:
//! by Korthikanti et al. (arXiv 2205.05198) `5as²b` bytes of a layer in half precision.

mod kernels;
mod length;

use harness::lab::*;

/// Numbers of each head of most models.
const HEAD: i64 = 64;

number! { Tokens "tokens of a sequence" }
levels! {
    How "how attention is computed":
    Explicit "product, mask, softmax, product: each result is a tensor" => "explicit attention",
    Sdpa "scaled_dot_product_attention" => "scaled_dot_product_attention",
}

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("attention", "Attention kernels")
        .question(
            "Does attention's memory grow with the square of the sequence's length, does scaled_dot_product_attention make that linear, and \
             when does PyTorch fall back to the square?",
        )
        .hypothesis(
            "Explicit attention keeps softmax's output and, with dropout, its mask and what is left: 2 or 5 bytes for each head and pair of \
             tokens in half precision. Fused kernels recompute them from queries, keys and one number for each row. PyTorch takes one of \
             them in half precision wherever head size and mask allow it; in fp32 the memory-efficient one.",
        )
        .grid(length::grid())
        .grid(kernels::grid())
        .shows(
            Shown::new("`scaled_dot_product_attention`").at(How::Sdpa).memory(STEP_PEAK).time(TIME),
        )
        .threat("One layer's attention alone, one sequence. In a model projections and the MLP keep memory that is linear in tokens beside it.")
        .threat("The kernel is what PyTorch 2.11 chooses for the simulated card; another card or version may choose another.")
        .threat("On a CPU other kernels run than on a GPU, and explicit attention of fp32 keeps twice the bytes of half precision.")
}

/// Queries, keys and values `[1, heads, tokens, width]`.
struct AttentionInputs {
    q: Tensor,
    k: Tensor,
    v: Tensor,
}

impl AttentionInputs {
    fn new(bench: &Bench, heads: i64, tokens: i64, width: i64, dtype: Dtype) -> AttentionInputs {
        let kind = match dtype {
            Dtype::Fp32 => Kind::Float,
            Dtype::Bf16 => Kind::BFloat16,
            Dtype::Fp16 => Kind::Half,
        };
        let [q, k, v] = [(); 3].map(|()| bench.randn(&[1, heads, tokens, width]).to_kind(kind));
        AttentionInputs { q, k, v }
    }

    /// Leaves of a step of their own, whose gradients go with them.
    fn leaves(&self) -> AttentionInputs {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|t| t.detach().set_requires_grad(true));
        AttentionInputs { q, k, v }
    }

    /// What is attended to; `mask` is added to the scores, or says where a token may look.
    fn attend(&self, how: How, mask: Option<&Tensor>, is_causal: bool, dropout: f64) -> Result<Tensor> {
        let AttentionInputs { q, k, v } = self;
        if how == How::Sdpa {
            return Ok(Tensor::f_scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, None::<f64>, false)?);
        }
        let mut scores = q.f_matmul(&k.transpose(-2, -1))? * (1.0 / (*q.size().last().unwrap_or(&1) as f64).sqrt());
        scores = match mask {
            Some(mask) if mask.kind() == Kind::Bool => scores.masked_fill(&mask.logical_not(), f64::NEG_INFINITY),
            Some(mask) => scores + mask,
            None => scores,
        };
        scores = scores.softmax(-1, None::<Kind>);
        if dropout > 0.0 {
            scores = scores.dropout(dropout, true);
        }
        Ok(scores.f_matmul(v)?)
    }

    fn gradients(&self) -> Vec<Tensor> {
        [&self.q, &self.k, &self.v].into_iter().map(|t| t.grad().to_kind(Kind::Float)).collect()
    }
}

/// `[tokens, tokens]`: true where a token may look, at itself and those before it.
fn causal(tokens: i64, device: Device) -> Tensor {
    Tensor::ones([tokens, tokens], (Kind::Bool, device)).tril(0)
}

/// bf16 keeps eight bits of each score and of each weight.
fn rounded(dtype: Dtype) -> Relation {
    equal(if dtype == Dtype::Fp32 { 1e-4 } else { 3e-2 })
}
