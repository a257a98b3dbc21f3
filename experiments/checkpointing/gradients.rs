//! Are the gradients the same where recomputation is difficult?

use super::*;

levels! {
    Case "what the recomputation must get right":
    Dropout "random numbers: a GPT with dropout 0.1",
    Autocast "the autocast state: forward under bf16, backward outside",
    InputsOutputs "segments of three inputs (one of integers) and two outputs",
    NoGradientInput "a first segment whose input needs no gradient",
    Nested "segments inside segments",
}

cell! { Difficult { case: Case, policy: Policy } }

pub fn grid() -> Grid<Difficult> {
    Grid::new("the same gradients?", step)
        .compare::<Policy>()
        .quick_and_full(Difficult::cross(Case::ALL, [Policy::Nothing, Policy::EveryBlock, Policy::Sqrt]))
        .smoke(Difficult::cross(Case::Dropout, [Policy::Nothing, Policy::EveryBlock]))
        .passes(CHECK)
        .check(|_| equal(1e-6))
}

fn step(cell: Difficult, bench: &Bench) -> Result<Step> {
    let policy = cell.policy;
    let run = move |model: &Model, x| {
        let (blocks, length) = (&model.blocks, policy.segment(model.blocks.len()));
        match cell.case {
            Case::InputsOutputs => paired(blocks, x, length),
            Case::Dropout | Case::Autocast | Case::NoGradientInput => in_segments(blocks, x, length, false),
            Case::Nested => in_segments(blocks, x, length, true),
        }
    };
    run_by(cell.case, bench, run)
}

/// The case's step, with blocks that `blocks` runs.
fn run_by(case: Case, bench: &Bench, blocks: impl Fn(&Model, Tensor) -> Result<Tensor> + 'static) -> Result<Step> {
    let kind = if case == Case::Autocast { Kind::BFloat16 } else { Kind::Float };
    match case {
        Case::Dropout => training(Model::with_dropout("gpt-4x64", bench.device, 0.1)?, 4, kind, blocks),
        Case::Autocast | Case::InputsOutputs | Case::NoGradientInput | Case::Nested => {
            training(Model::named("mlp-9x64", bench.device)?, 32, kind, blocks)
        }
    }
}

/// Blocks that pass on two tensors and read a third, of integers.
fn paired(blocks: &[Box<dyn Block>], x: Tensor, length: Option<usize>) -> Result<Tensor> {
    let order = Tensor::arange(x.size()[1], (Kind::Int64, x.device())).flip([0]);
    let mut state = vec![x.shallow_clone(), x * 0.5];
    for blocks in blocks.chunks(length.unwrap_or(1)) {
        let own: Vec<Box<dyn Block>> = blocks.iter().map(|block| block.share()).collect();
        let body = move |x: &[Tensor]| {
            let (mut a, mut b) = (x[0].shallow_clone(), x[1].shallow_clone());
            for block in &own {
                (a, b) = (block.forward(&a, true) + b.index_select(1, &x[2]), &b * a.tanh());
            }
            Ok(vec![a, b])
        };
        let inputs = [&state[0], &state[1], &order];
        state = if length.is_some() { checkpoint(&inputs, body)? } else { body(&inputs.map(Tensor::shallow_clone))? };
    }
    Ok(&state[0] + &state[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use torch::{Autocast, Checkpoint};

    /// The case with each block run by `run`.
    fn each(case: Case, run: fn(&dyn Block, &Tensor) -> Result<Tensor>) -> impl Fn(&Bench) -> Result<Step> {
        move |bench| run_by(case, bench, move |model, x| model.blocks.iter().try_fold(x, |x, block| run(&**block, &x)))
    }

    fn own(block: &dyn Block) -> impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + use<> {
        let block = block.share();
        move |x: &[Tensor]| Ok(vec![block.forward(&x[0], true)])
    }

    #[test]
    fn the_check_sees_lost_randomness_lost_autocast_and_lost_gradients() {
        for cell in Difficult::cross(Case::ALL, [Policy::EveryBlock, Policy::Sqrt]) {
            check(&protocol(), cell).holds();
        }
        let sees = |case, run, words: &str| {
            let cell = Difficult { case, policy: Policy::EveryBlock };
            broken(&protocol(), cell, each(case, |block, x| Ok(checkpoint(&[x], own(block))?.remove(0)))).holds();
            broken(&protocol(), cell, each(case, run)).sees(words);
        };
        let forgets_random_state = |block: &dyn Block, x: &Tensor| -> Result<Tensor> {
            Ok(Checkpoint { preserve_random: false }.run(&[x], own(block))?.remove(0))
        };
        sees(Case::Dropout, forgets_random_state, "gradient: expected equal");
        let forgets_autocast = |block: &dyn Block, x: &Tensor| -> Result<Tensor> {
            let (segment, again) = (own(block), AtomicBool::new(false));
            let body = move |x: &[Tensor]| {
                let _off = if again.swap(true, Ordering::SeqCst) { Some(Autocast::off(Device::Cpu)?) } else { None };
                segment(x)
            };
            Ok(checkpoint(&[x], body)?.remove(0))
        };
        sees(Case::Autocast, forgets_autocast, "");
        // As the first attempt at checkpointing did: a segment whose input needs no gradient ends the graph.
        let drops_gradients = |block: &dyn Block, x: &Tensor| -> Result<Tensor> {
            Ok(if x.requires_grad() { block.forward(x, true) } else { no_grad(|| block.forward(x, true)) })
        };
        sees(Case::NoGradientInput, drops_gradients, "tensor 0 is missing on one side");
    }
}
