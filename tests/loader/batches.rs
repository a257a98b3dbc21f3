//! What a user of the loader would notice: order, contents, errors, threads and memory.

use anyhow::{Result, bail};
use loader::*;
use proptest::prelude::*;
use rand::RngExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tch::Tensor;

/// Samples of three random numbers and their own index.
fn numbers(len: usize) -> impl Dataset<Element = f32> {
    FnDataset::new(len, &[4], |index, random: &mut SampleRandom, into: &mut [f32]| {
        into[0] = index as f32;
        into[1..].fill_with(|| random.random());
        Ok(index as i64 % 10)
    })
}

fn config(batch: usize, workers: usize) -> Config {
    Config { batch, workers, ..Config::default() }
}

/// Everything that an epoch gives: indices, labels and values of each batch.
type Given = Vec<(Vec<u32>, Vec<i64>, Vec<f32>)>;

fn given(batch: &LoadedBatch) -> (Vec<u32>, Vec<i64>, Vec<f32>) {
    let values = Vec::<f32>::try_from(batch.samples.flatten(0, -1)).unwrap();
    (batch.indices.clone(), Vec::<i64>::try_from(&batch.labels).unwrap(), values)
}

fn all<D: Dataset>(batches: Epoch<'_, D>) -> Given {
    batches.map(|batch| given(&batch.unwrap())).collect()
}

fn epoch(len: usize, config: Config, number: u64) -> Given {
    all(Loader::new(numbers(len), config).unwrap().epoch(number).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn order_and_contents_do_not_depend_on_workers_or_prefetch(
        len in 0usize..90, batch in 1usize..20, workers in 1usize..6, prefetch in 1usize..5,
        shuffle: bool, seed: u64, number in 0u64..3,
    ) {
        let base = Config { shuffle, seed, prefetch, ..config(batch, 0) };
        let alone = epoch(len, base, number);
        prop_assert_eq!(&alone, &epoch(len, Config { workers, ..base }, number));
        prop_assert_eq!(&alone, &epoch(len, Config { workers, persistent: false, ..base }, number));
        prop_assert_eq!(alone.len(), len.div_ceil(batch));
        let mut every: Vec<u32> = alone.iter().flat_map(|(indices, _, _)| indices.clone()).collect();
        every.sort_unstable();
        prop_assert_eq!(every, (0..len as u32).collect::<Vec<_>>());
    }
}

#[test]
fn random_numbers_differ_by_epoch_and_by_sample() {
    let mut loader = Loader::new(numbers(8), Config { shuffle: false, ..config(8, 2) }).unwrap();
    let first = all(loader.epoch(0).unwrap());
    let second = all(loader.epoch(1).unwrap());
    assert_eq!(first[0].0, second[0].0);
    let drawn = |given: &Given, row: usize| given[0].2[4 * row + 1];
    assert!((0..8).all(|row| drawn(&first, row) != drawn(&second, row)));
    assert!((1..8).all(|row| drawn(&first, row) != drawn(&first, 0)));
}

#[test]
fn batches_share_the_rings_memory_and_survive_the_loader() {
    let mut loader = Loader::new(numbers(400), Config { prefetch: 2, ..config(4, 2) }).unwrap();
    let mut addresses: Vec<usize> = loader.epoch(0).unwrap().map(|batch| batch.unwrap().samples.data_ptr() as usize).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert!(addresses.len() <= 3, "two batches ahead and one with the caller: {}", addresses.len());
    // One that is kept is not written over.
    let mut kept: Option<(Tensor, Vec<f32>)> = None;
    for batch in loader.epoch(1).unwrap() {
        let batch = batch.unwrap();
        if kept.is_none() {
            kept = Some((batch.samples.shallow_clone(), given(&batch).2));
        }
    }
    drop(loader);
    let (tensor, values) = kept.unwrap();
    assert_eq!(Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap(), values);
}

#[test]
fn workers_stay_within_prefetch_of_the_caller() {
    let started = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&started);
    let data = FnDataset::new(1000, &[1], move |_, _, into: &mut [f32]| {
        counting.fetch_add(1, Ordering::SeqCst);
        into[0] = 0.0;
        Ok(0)
    });
    let mut loader = Loader::new(data, Config { prefetch: 3, ..config(5, 4) }).unwrap();
    for (taken, batch) in loader.epoch(0).unwrap().take(20).enumerate() {
        batch.unwrap();
        std::thread::sleep(Duration::from_millis(2));
        let ahead = started.load(Ordering::SeqCst) - 5 * (taken + 1);
        assert!(ahead <= 15, "{ahead} samples ahead of the caller");
    }
}

/// A data set in which some samples fail.
fn broken(how: fn(usize) -> Result<i64>) -> impl Dataset<Element = f32> {
    FnDataset::new(40, &[2], move |index, _, into: &mut [f32]| {
        into.fill(index as f32);
        how(index)
    })
}

#[test]
fn a_bad_sample_stops_the_epoch_in_order() {
    let how = |index| if index % 13 == 12 { bail!("byte 7 is damaged") } else { Ok(index as i64) };
    for workers in [0, 1, 3] {
        let base = Config { shuffle: false, ..config(8, workers) };
        let mut loader = Loader::new(broken(how), base).unwrap();
        for _ in 0..2 {
            let mut batches = loader.epoch(0).unwrap();
            assert_eq!(batches.next().unwrap().unwrap().indices, [0, 1, 2, 3, 4, 5, 6, 7], "what comes before it is given");
            let error = format!("{:#}", batches.next().unwrap().unwrap_err());
            assert_eq!(error, "loading sample 12: byte 7 is damaged");
            assert!(batches.next().is_none());
        }
    }
}

#[test]
fn a_panicking_transform_ends_with_its_message_and_the_loader_goes_on() {
    let how = |index| if index == 21 { panic!("a transform that breaks") } else { Ok(0) };
    for workers in [0, 2] {
        let mut loader = Loader::new(broken(how), Config { shuffle: false, ..config(8, workers) }).unwrap();
        for _ in 0..2 {
            let found: Vec<Result<LoadedBatch>> = loader.epoch(0).unwrap().collect();
            let error = format!("{:#}", found[2].as_ref().unwrap_err());
            assert_eq!((found.len(), error.as_str()), (3, "loading sample 21 panicked: a transform that breaks"));
        }
    }
}

#[test]
fn files_that_vanish_or_are_cut_short_are_named() {
    let parent = tempfile::tempdir().unwrap();
    let folder = Textured { images: 12, classes: 3, sides: (48, 32) }.folder(parent.path()).unwrap();
    let images = Images::new(ImageFolder::open(&folder).unwrap(), Transform::training(16));
    let mut loader = Loader::new(images, Config { shuffle: false, ..config(4, 2) }).unwrap();
    let mut failing = || format!("{:#}", loader.epoch(0).unwrap().last().unwrap().unwrap_err());
    let cut = folder.join("class-02/00005.jpg");
    let bytes = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 40]).unwrap();
    let error = failing();
    let end = bytes.len() - 40;
    assert!(error.contains(&format!("{}, at byte {end}", cut.display())) && error.contains("cut short"), "{error}");
    let gone = folder.join("class-01/00004.jpg");
    std::fs::remove_file(&gone).unwrap();
    let error = failing();
    assert!(error.contains(&gone.display().to_string()) && error.contains("No such file"), "{error}");
}

#[test]
fn images_are_the_same_for_any_number_of_workers() {
    let parent = tempfile::tempdir().unwrap();
    let folder = Textured { images: 10, classes: 2, sides: (64, 48) }.folder(parent.path()).unwrap();
    let load = |workers| {
        let images = Images::new(ImageFolder::open(&folder).unwrap(), Transform::training(24));
        all(Loader::new(images, config(4, workers)).unwrap().epoch(1).unwrap())
    };
    let alone = load(0);
    assert_eq!(alone.len(), 3);
    assert!(alone == load(1) && alone == load(3));
}
