//! The loader deals out samples as PyTorch's `DataLoader` does, and cuts random parts as torchvision does:
//! `tests/reference/loader.json`, written by `tests/reference/make/loader.py`.
//!
//! Without shuffling the order itself is the same. With it the order is another one for the same seed, since the generators differ; what is
//! held then are its properties (`tests/loader/batches.rs`): every sample once, another order in each epoch.

use anyhow::Result;
use loader::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    torch: String,
    orders: Vec<Order>,
    crops: Vec<Crops>,
}

#[derive(Deserialize)]
struct Order {
    length: usize,
    batch: usize,
    /// Indices by batch.
    batches: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
struct Crops {
    width: u32,
    height: u32,
    area: (f64, f64),
    aspect: (f64, f64),
    draws: usize,
    /// Of left, top, width, height and share of the image's area.
    mean: [f64; 5],
    deviation: [f64; 5],
}

fn reference() -> Reference {
    let reference: Reference = serde_json::from_str(include_str!("../reference/loader.json")).unwrap();
    assert_eq!(reference.torch, "2.11.0");
    assert!(reference.orders.len() > 10 && reference.crops.len() > 5);
    reference
}

#[test]
fn batches_are_those_of_pytorchs_loader() {
    for Order { length, batch, batches } in reference().orders {
        let data = FnDataset::new(length, &[1], |index, _: &mut SampleRandom, into: &mut [f32]| {
            into[0] = index as f32;
            Ok(0)
        });
        let mut loader = Loader::new(data, Config { batch, workers: 0, shuffle: false, ..Config::default() }).unwrap();
        let found: Result<Vec<_>> = loader.epoch(0).unwrap().map(|batch| Ok(batch?.indices)).collect();
        assert_eq!(found.unwrap(), batches, "{length} samples, batches of {batch}");
    }
}

#[test]
fn random_parts_are_distributed_as_torchvisions() {
    for Crops { width, height, area, aspect, draws, mean, deviation } in reference().crops {
        let transform = Transform { area, aspect, ..Transform::training(8) };
        let mut sum = [0.0; 5];
        for draw in 0..draws as u64 {
            let (Area { left, top, width: wide, height: high }, _) = transform.draw(width, height, &mut sample_random(1, 0, draw));
            let share = f64::from(wide) * f64::from(high) / (f64::from(width) * f64::from(height));
            for (sum, value) in sum.iter_mut().zip([left.into(), top.into(), wide.into(), high.into(), share]) {
                *sum += value;
            }
        }
        // Five standard errors of the difference of two means.
        let least = 5.0 * (2.0 / draws as f64).sqrt();
        for (at, name) in ["left", "top", "width", "height", "area"].into_iter().enumerate() {
            let (found, within) = (sum[at] / draws as f64, least * deviation[at] + 1e-9);
            assert!(
                (found - mean[at]).abs() <= within,
                "{width} x {height}, {name}: {found}, torchvision {} within {within}",
                mean[at]
            );
        }
    }
}
