//! Is it the same update?

use super::*;
use models::IGNORED;

levels! { Reduce as "reduction" "how the loss is reduced over its targets": Mean "", Sum "" }
levels! { Tail "last micro-batch": Even "as large as the others", Ragged "three samples short" }
levels! {
    Targets "targets that count":
    All "every target counts",
    Ignored "half of the first micro-batch's targets are ignored (-100), as padding is",
}
levels! {
    Recipe "how the micro-batches' losses are combined":
    Full "one batch, nothing to combine" => "full batch",
    Divide "each loss divided by k (guide 2)" => "losses divided by k",
    Add "each loss as it is (guide 1)" => "losses as they are",
    Weight "each sum of losses divided by the targets that count in the whole batch" => "losses weighted by targets",
}

cell! {
    Update { model: ModelName, optimizer: Optimizer, reduction: Reduce, tail: Tail, targets: Targets, k: K, recipe: Recipe }
}

/// Micro-batches of a step.
const PARTS: i64 = 4;
const BATCH_NORM: &str = "resnet-2x8-bn";

pub fn grid() -> Grid<Update> {
    Grid::new("the same update?", step)
        .compare::<Recipe>()
        .quick_and_full(Update::cross("mlp-4x32", Optimizer::Sgd, Reduce::ALL, Tail::ALL, Targets::ALL, PARTS, Recipe::ALL))
        .quick_and_full(Update::cross("mlp-4x32", Optimizer::Adam, Reduce::Mean, Tail::Even, Targets::All, PARTS, Recipe::ALL))
        .quick_and_full(Update::cross(
            ["resnet-2x8-gn", BATCH_NORM, "gpt-2x64"],
            Optimizer::Sgd,
            Reduce::Mean,
            Tail::Even,
            Targets::All,
            PARTS,
            [Recipe::Full, Recipe::Divide, Recipe::Add],
        ))
        .smoke(Update::cross("mlp-2x32", Optimizer::Sgd, Reduce::Mean, Tail::Ragged, Targets::All, PARTS, Recipe::ALL))
        .passes(CHECK)
        .check(|c| match (c.recipe, c.reduction, c.tail, c.targets) {
            // Each micro-batch is normalised by itself.
            (Recipe::Add, ..) if c.model == ModelName(BATCH_NORM) => differs(1.0..=10.0),
            (Recipe::Divide, ..) if c.model == ModelName(BATCH_NORM) => differs(1e-3..=2.0),
            (Recipe::Full | Recipe::Weight, ..) | (Recipe::Add, Reduce::Sum, ..) => equal(1e-4),
            (Recipe::Divide, Reduce::Sum, ..) => scaled(1.0 / PARTS as f64, 1e-4),
            (Recipe::Divide, Reduce::Mean, Tail::Even, Targets::All) => equal(1e-4),
            (Recipe::Add, Reduce::Mean, Tail::Even, Targets::All) => scaled(PARTS as f64, 1e-4),
            (Recipe::Divide, ..) => differs(1e-3..=1.0),
            (Recipe::Add, ..) => differs(1.0..=10.0),
        })
        .claim(
            Claim::new(
                "accumulate-normalise",
                "1 2",
                "adding k losses as they are (guide 1), or each divided by k (guide 2), gives the full batch's update",
            )
            .rule(value(GRADIENT_ERROR).at([Recipe::Divide, Recipe::Add]).holds(at_most(1e-4))),
        )
        .no_plots()
}

fn step(cell: Update, bench: &Bench) -> Result<Step> {
    const SAMPLES: i64 = 32;
    let model = Model::named(cell.model.0, bench.device)?;
    let mut batch = model.batch(SAMPLES);
    match cell.tail {
        Tail::Even => {}
        Tail::Ragged => batch = batch.narrow(0, SAMPLES - 3),
    }
    match cell.targets {
        Targets::All => {}
        Targets::Ignored => drop(batch.targets.narrow(0, 0, SAMPLES / 8).fill_(IGNORED)),
    }
    let count = || batch.targets.not_equal(IGNORED).sum(Kind::Int64).int64_value(&[]) as f64;
    let loss = match (cell.recipe, cell.reduction) {
        (Recipe::Weight, Reduce::Mean) => (Reduction::Sum, count()),
        (Recipe::Full | Recipe::Add, Reduce::Mean) => (Reduction::Mean, 1.0),
        (Recipe::Full | Recipe::Add | Recipe::Weight, Reduce::Sum) => (Reduction::Sum, 1.0),
        (Recipe::Divide, Reduce::Mean) => (Reduction::Mean, cell.k.0 as f64),
        (Recipe::Divide, Reduce::Sum) => (Reduction::Sum, cell.k.0 as f64),
    };
    let micro = if cell.recipe == Recipe::Full { SAMPLES } else { SAMPLES / cell.k.0 };
    accumulate(model, cell.optimizer, batch, micro, loss, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_a_wrong_recipe() {
        for cell in Update::cross("mlp-4x32", Optimizer::Sgd, Reduce::ALL, Tail::ALL, Targets::ALL, PARTS, Recipe::ALL) {
            check(&protocol(), cell).holds();
        }
        let cells = Update::cross("mlp-4x32", Optimizer::Sgd, Reduce::Mean, Tail::Even, Targets::All, PARTS, Recipe::Divide);
        broken(&protocol(), cells[0], |bench| step(with(cells[0], Recipe::Add), bench)).sees("gradient: expected equal");
    }
}
