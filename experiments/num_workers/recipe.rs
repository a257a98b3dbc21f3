//! Guide 3's `DataLoader`, with all of its settings at once, against the plain one.

use super::*;

/// What a user waits for: several epochs, with the start of the workers in it.
const EPOCHS_RATE: Metric = Metric::timed("epochs_rate", "samples per second over three epochs, start included", "1");

levels! {
    Settings as "loader" "settings of the loader":
    Plain "DataLoader(dataset, batch_size=64, shuffle=True)",
    Guide "and num_workers=8, pin_memory=True, persistent_workers=True, prefetch_factor=4, as guide 3 writes it",
}

cell! { Recipe { by: By, samples: Samples, loader: Settings } }

pub fn grid() -> Grid<Recipe> {
    Grid::new("the guide's loader", in_python)
        .compare::<Settings>()
        .quick(Recipe::cross(By::Pytorch, 128, Settings::ALL))
        .full(Recipe::cross(By::Pytorch, 2048, Settings::ALL))
        .passes(CHECK | ROUNDS)
        .metrics(&[EPOCHS_RATE, PROPORTIONAL, SAMPLES_ERROR])
        .check(|_| equal(0.0))
        .claim(
            Claim::new("loading-recipe", "3", "the guide's loader settings together load faster than the plain loader")
                .on(&[Platform::Python])
                .rule(ratio(EPOCHS_RATE).at(Settings::Guide).more()),
        )
        .no_plots()
}
