//! Which kernel does PyTorch take, and when does it compute the square?

use super::*;

/// PyTorch's own number (`at::SDPBackend`).
const KERNEL: Metric = Metric::counted("kernel", "kernel (0 explicit, 1 flash, 2 memory-efficient, 3 cuDNN)", "1");

levels! {
    Case "what is asked of it":
    Causal "is_causal, heads of 64",
    Bidirectional "no mask, heads of 64",
    BoolMask "a mask of tokens x tokens that says where to look",
    AddedMask "a mask of tokens x tokens that is added to the scores, as ALiBi's",
    LearnedBias "the same, and it needs a gradient, as T5's relative positions",
    Head80 as "head-80" "is_causal, heads of 80",
    Head256 as "head-256" "is_causal, heads of 256, as Gemma's",
    Head512 as "head-512" "is_causal, one head of 512, as the VAE of Stable Diffusion has",
    Head50 as "head-50" "is_causal, heads of 50, no multiple of 8",
}

cell! { Kernels { tokens: Tokens, case: Case, dtype: Dtype, how: How } }

pub fn grid() -> Grid<Kernels> {
    let fused = |dtype| value(KERNEL).of(move |c: &Kernels| c.how == How::Sdpa && c.dtype == dtype).holds(at_least(1.0));
    let saves = |c: &Kernels| c.how == How::Sdpa && c.case == Case::AddedMask;
    Grid::new("kernels", step)
        .compare::<How>()
        .quick(Kernels::cross(128, Case::ALL, Dtype::Fp32, How::ALL))
        .full(Kernels::cross(4096, Case::ALL, [Dtype::Fp32, Dtype::Bf16], How::ALL))
        .smoke(Kernels::cross(64, Case::Causal, Dtype::Fp32, How::ALL))
        .passes(CHECK | COUNT)
        .metrics(&[KERNEL, ACTIVATIONS, STEP_PEAK])
        .check(|c| rounded(c.dtype))
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours("attention-kernel", "PyTorch takes a fused kernel whatever mask, head size and type are")
                .on(CUDA)
                .rule(fused(Dtype::Bf16))
                .rule(fused(Dtype::Fp32)),
        )
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours("attention-mask", "a mask of its own does not cost attention its saving")
                .on(CUDA)
                .rule(ratio(STEP_PEAK).of(saves).confirm(at_most(0.25)).refute(at_least(0.75))),
        )
        .plot(
            bars(STEP_PEAK)
                .named("cases")
                .caption("Transient peak of forward and backward pass against explicit attention, by what is asked"),
        )
}

impl Case {
    /// Heads, and numbers of each.
    fn heads(self) -> (i64, i64) {
        match self {
            Case::Head80 => (8, 80),
            Case::Head256 => (8, 256),
            Case::Head512 => (1, 512),
            Case::Head50 => (8, 50),
            _ => (8, HEAD),
        }
    }

    fn mask(self, tokens: i64, like: &Tensor, how: How) -> Option<Tensor> {
        let bias = || Tensor::randn([tokens, tokens], (Kind::Float, like.device())).to_kind(like.kind());
        match self {
            Case::Bidirectional => None,
            Case::BoolMask => Some(causal(tokens, like.device())),
            Case::AddedMask => Some(bias()),
            Case::LearnedBias => Some(bias().set_requires_grad(true)),
            // The kernel has it from `is_causal`.
            _ => (how == How::Explicit).then(|| causal(tokens, like.device())),
        }
    }
}

fn step(cell: Kernels, bench: &Bench) -> Result<Step> {
    let Kernels { tokens: Tokens(tokens), case, dtype, how } = cell;
    let (heads, width) = case.heads();
    let all = AttentionInputs::new(bench, heads, tokens, width, dtype);
    let mask = case.mask(tokens, &all.q, how);
    let is_causal = how == How::Sdpa && mask.is_none() && case != Case::Bidirectional;
    Ok(Step::new(move |probe| {
        let all = all.leaves();
        // A bias that is learned is a leaf of this step, too.
        let mask = mask.as_ref().map(|mask| mask.detach().set_requires_grad(mask.requires_grad()));
        let mask = mask.as_ref();
        probe.at_rest();
        let output = probe.forward(|| all.attend(how, mask, is_causal, 0.0))?;
        output.square().sum(Kind::Float).f_backward()?;
        if how == How::Sdpa {
            let AttentionInputs { q, k, v } = &all;
            probe.emit(KERNEL, Tensor::f_internal_fused_sdp_choice(q, k, v, mask, 0.0, is_causal, None::<f64>, false)?);
        }
        probe.compare(GRADIENT_ERROR, || {
            let bias = mask.filter(|mask| mask.requires_grad()).map(|mask| mask.grad().to_kind(Kind::Float));
            Ok(all.gradients().into_iter().chain(bias).collect())
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn every_case_gives_explicit_attentions_gradients() {
        for cell in Kernels::cross(64, Case::ALL, Dtype::Fp32, How::Sdpa) {
            check(&protocol(), cell).holds();
        }
        let cell = Kernels { tokens: Tokens(64), case: Case::Causal, dtype: Dtype::Fp32, how: How::Sdpa };
        broken(&protocol(), cell, |bench| step(with(cell, Case::Bidirectional), bench)).sees("gradient: expected equal");
    }
}
