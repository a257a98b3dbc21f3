//! How much does training gain from workers?

use super::*;

levels! {
    Network as "model" "what is trained":
    Pooled "a linear layer on the image shrunk to 8 x 8: training waits for loading",
    Convolutions "three convolutions: loading waits for training",
    Resnet50 "ResNet-50",
}

cell! { Training { by: By, transform: Work, samples: Samples, model: Network, workers: Workers } }

pub fn grid() -> Grid<Training> {
    use Network::*;
    use Work::Heavy;
    const AT_ONCE: [Workers; 2] = [Workers::Nobody, Workers::PerCore];
    Grid::new("training", in_python)
        .compare::<Workers>()
        .quick(Training::cross(By::Pytorch, Heavy, 128, Pooled, AT_ONCE))
        .quick(Training::cross(By::Pytorch, Heavy, 32, Convolutions, AT_ONCE))
        .full(Training::cross(By::Pytorch, Heavy, 2048, [Pooled, Resnet50], AT_ONCE))
        .passes(CHECK | ROUNDS)
        .metrics(&[TIME, SAMPLES_ERROR])
        // Which samples an epoch is trained with. Random crops depend on the number of workers, and with them all else.
        .check(|_| equal(0.0))
        .claim(
            Claim::new("loading-total", "3", "without the loading bottleneck training takes much less time")
                .on(&[Platform::Python])
                .rule(ratio(TIME).at(Heavy).at(Workers::PerCore).confirm(at_most(1.0 / 1.2)).refute(at_least(1.0 / 1.02))),
        )
        .no_plots()
}
