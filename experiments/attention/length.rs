//! How does its memory grow with the length, and is it what the formula says?

use super::*;

/// What Korthikanti et al. have explicit attention keep: softmax's output, and with dropout its mask and what it leaves, for each head and
/// pair of tokens; and the output for the projection that follows.
const FORMULA: Metric = Metric::counted("formula", "activations by the formula", "B");

number! { AttentionHeads as "heads" "heads" }
number! { Dropout: f64 "probability that a weight of attention is dropped" }

cell! { Length { heads: AttentionHeads, dropout: Dropout, dtype: Dtype, tokens: Tokens, how: How } }

pub fn grid() -> Grid<Length> {
    let grows = |how| growth(ACTIVATIONS).along::<Tokens>().of(move |c: &Length| c.how == how);
    let saving =
        |tokens| ratio(STEP_PEAK).of(move |c: &Length| c.how == How::Sdpa && c.tokens == Tokens(tokens) && c.dropout.0 == 0.0);
    Grid::new("by length", step)
        .compare::<How>()
        .quick(Length::cross(2, 0.0, Dtype::Fp32, [512, 2048], How::ALL).passes(CHECK | COUNT))
        .quick(Length::cross(2, 0.0, Dtype::Fp32, 1024, How::ALL))
        // GPT-2 124M, and a Llama of 1B.
        .full(Length::cross([12, 32], 0.0, Dtype::Bf16, [1024, 2048, 4096, 8192], How::ALL))
        // Dropout's masks are other random numbers in each kernel: results cannot be compared.
        .full(Length::cross(12, 0.1, Dtype::Bf16, [1024, 2048, 4096, 8192], How::ALL).passes(COUNT))
        .smoke(Length::cross(2, 0.0, Dtype::Fp32, 64, How::ALL))
        .metrics(&[ACTIVATIONS, FORMULA, STEP_PEAK])
        .check(|c| rounded(c.dtype))
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours(
                "attention-linear",
                "explicit attention keeps memory in the square of the length, scaled_dot_product_attention linearly",
            )
            .rule(grows(How::Explicit).confirm(within(1.9..=2.1)).refute(at_most(1.5)))
            .rule(grows(How::Sdpa).confirm(within(0.9..=1.1)).refute(at_least(1.5))),
        )
        .claim(
            Claim::published(
                "korthikanti-attention",
                "Korthikanti et al., arXiv 2205.05198, section 4.1",
                "attention's scores keep 5as²b bytes of a layer in half precision: softmax 2, dropout's mask 1, its output 2",
            )
            .on(CUDA)
            .rule(agreement(ACTIVATIONS, FORMULA, 0.95..=1.05, 1.0).at(How::Explicit))
            .setup("Without dropout softmax's 2 are left. The output of attention comes on top, as in their next term."),
        )
        .claim(
            Claim::published(
                "flash-attention-memory",
                "FlashAttention's README, memory",
                "10x memory savings at sequence length 2K, and 20x at 4K",
            )
            .on(CUDA)
            .rule(saving(2048).reproduces(0.1))
            .rule(saving(4096).reproduces(0.05))
            .setup("Theirs is read from a graph of forward and backward passes with dropout and masking on an A100; here without dropout, the transient peak of one step."),
        )
        .plot(
            lines(ACTIVATIONS)
                .named("length")
                .caption("What attention keeps for the backward pass by length; a line's slope is the exponent of its growth")
                .of(|c: &Length| c.heads.0 != 32)
                .over::<Tokens>()
                .by::<How>()
                .by::<Dropout>(),
        )
}

fn step(cell: Length, bench: &Bench) -> Result<Step> {
    attending(cell, bench, cell.how == How::Sdpa)
}

fn attending(cell: Length, bench: &Bench, is_causal: bool) -> Result<Step> {
    let Length { heads: AttentionHeads(heads), tokens: Tokens(tokens), how, dtype, .. } = cell;
    let dropout = cell.dropout.0;
    let all = AttentionInputs::new(bench, heads, tokens, HEAD, dtype);
    let mask = (how == How::Explicit).then(|| causal(tokens, bench.device));
    let pairs = (heads * tokens * tokens) as f64;
    let each = all.q.kind().elt_size_in_bytes() as f64;
    let kept = if dropout > 0.0 { 2.0 * each + 1.0 } else { each };
    let formula = kept * pairs + each * (heads * tokens * HEAD) as f64;
    Ok(Step::new(move |probe| {
        let all = all.leaves();
        probe.at_rest();
        let output = probe.forward(|| all.attend(how, mask.as_ref(), is_causal, dropout))?;
        probe.emit(FORMULA, formula);
        output.square().sum(Kind::Float).f_backward()?;
        probe.compare(GRADIENT_ERROR, || Ok(all.gradients()))?;
        probe.compare(OUTPUT_ERROR, || Ok(vec![output.to_kind(Kind::Float)]))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    const SMALL: Length =
        Length { heads: AttentionHeads(2), dropout: Dropout(0.0), dtype: Dtype::Fp32, tokens: Tokens(128), how: How::Explicit };

    #[test]
    fn the_check_sees_attention_that_looks_ahead() {
        let sdpa = with(SMALL, How::Sdpa);
        check(&protocol(), sdpa).holds();
        broken(&protocol(), sdpa, |bench| attending(sdpa, bench, false)).sees("gradient: expected equal");
    }

    #[test]
    fn explicit_attention_keeps_what_the_formula_says_and_the_kernel_a_number_for_each_row() {
        let bytes = count(&protocol(), SMALL);
        // The mask's opposite, which masked_fill keeps, is no part of the formula.
        assert_eq!(bytes.figure(ACTIVATIONS) - 128.0 * 128.0, bytes.figure(FORMULA));
        let rows = 2.0 * 128.0 * 4.0;
        assert_eq!(count(&protocol(), with(SMALL, How::Sdpa)).figure(ACTIVATIONS), rows * (HEAD as f64 + 1.0));
    }
}
