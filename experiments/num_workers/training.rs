//! How much does training gain from workers?

use super::*;
use models::Model;
use tch::nn::{self, Module, OptimizerConfig};

levels! {
    Network as "model" "what is trained":
    Pooled "a linear layer on the image shrunk to 8 x 8: training waits for loading",
    Convolutions "three convolutions: loading waits for training",
    Resnet50 "ResNet-50",
}

cell! { Training { transform: Work, samples: Samples, model: Network, workers: Workers } }

pub fn grid() -> Grid<Training> {
    use {Network::*, Work::*};
    const AT_ONCE: [Workers; 2] = [Workers::Nobody, Workers::PerCore];
    Grid::new("training", step)
        .compare::<Workers>()
        .quick(Training::cross(Heavy, 128, Pooled, AT_ONCE))
        .quick(Training::cross(Heavy, 32, Convolutions, AT_ONCE))
        .full(Training::cross(Heavy, 2048, [Pooled, Resnet50], AT_ONCE))
        .smoke(Training::cross(Small, 16, Pooled, AT_ONCE))
        .passes(CHECK | ROUNDS)
        // What the epoch changed, not the parameters, which so small a rate leaves nearly as they were. On a GPU sums of gradients come in
        // an order that changes.
        .check(|_| equal(1e-3))
        .claim(
            Claim::new("loading-total", "3", "without the loading bottleneck training takes much less time").rule(
                ratio(TIME)
                    .of(|c: &Training| c.transform == Heavy && c.workers == Workers::PerCore)
                    .confirm(at_most(1.0 / 1.2))
                    .refute(at_least(1.0 / 1.02)),
            ),
        )
        .no_plots()
}

/// Trains an epoch on the device, with loading as it comes.
fn step(cell: Training, bench: &Bench) -> Result<Step> {
    let images = images(cell.transform, cell.samples)?;
    let (store, net) = network(cell.model, bench.device)?;
    let mut optimizer = nn::Sgd::default().build(&store, 1e-3)?;
    let mut loader = Loader::<Images<ImageFolder>>::new(images, cell.workers.config())?;
    let before: Vec<Tensor> = store.trainable_variables().iter().map(|parameter| parameter.detach().copy()).collect();
    let (device, mut epoch) = (bench.device, 0);
    let step = Step::new(move |probe| {
        for batch in loader.epoch(epoch)? {
            let LoadedBatch { samples, labels, .. } = batch?;
            let (samples, labels) = (samples.to_device(device), labels.to_device(device));
            let loss = net(&samples).cross_entropy_loss::<Tensor>(&labels, None, Reduction::Mean, -100, 0.0);
            optimizer.zero_grad();
            loss.f_backward()?;
            optimizer.step();
        }
        epoch += 1;
        probe.compare(UPDATE_ERROR, || {
            Ok(store.trainable_variables().iter().zip(&before).map(|(now, before)| now.detach() - before).collect())
        })
    });
    // An epoch is long enough to be measured by itself.
    Ok(step.timing(Timing { warm_up_steps: 1, warm_up_seconds: 0.0, samples: 2, least_sample: 0.0 }))
}

const CLASSES: i64 = 8;

type Net = Box<dyn Fn(&Tensor) -> Tensor>;

fn network(network: Network, device: Device) -> Result<(nn::VarStore, Net)> {
    let store = nn::VarStore::new(device);
    match network {
        Network::Pooled => {
            let linear = nn::linear(store.root(), 3 * 8 * 8, CLASSES, nn::LinearConfig::default());
            Ok((store, Box::new(move |x| linear.forward(&x.adaptive_avg_pool2d([8, 8]).flatten(1, -1)))))
        }
        Network::Convolutions => {
            let layer = |from, to, side, stride| {
                let config = nn::ConvConfig { stride, padding: side / 2, ..nn::ConvConfig::default() };
                nn::conv2d(store.root(), from, to, side, config)
            };
            let layers = [layer(3, 32, 7, 4), layer(32, 64, 3, 1), layer(64, 128, 3, 2)];
            let linear = nn::linear(store.root(), 128, CLASSES, nn::LinearConfig::default());
            let net = move |x: &Tensor| {
                let x = layers.iter().fold(x.shallow_clone(), |x, layer| layer.forward(&x).relu());
                linear.forward(&x.mean_dim([2i64, 3].as_slice(), false, Kind::Float))
            };
            Ok((store, Box::new(net)))
        }
        Network::Resnet50 => {
            let Model { store, stem, blocks, head, .. } = Model::named("resnet50", device)?;
            let net = move |x: &Tensor| {
                let x = blocks.iter().fold(stem.forward(x, true), |x, block| block.forward(&x, true));
                head.forward(&x, true)
            };
            Ok((store, Box::new(net)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_samples_that_are_lost() {
        let (transform, model, workers) = (Work::Small, Network::Pooled, Workers::PerCore);
        let cell = Training { transform, samples: Samples(16), model, workers };
        check(&protocol(), cell).holds();
        broken(&protocol(), cell, |bench| step(with(cell, Samples(8)), bench)).sees("update: expected equal");
    }
}
