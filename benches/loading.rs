//! Where a sample's time goes in the loader, and how many samples a second come out: `cargo bench --bench loading`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use loader::*;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

const IMAGES: usize = 128;

fn folder() -> ImageFolder {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let images = Textured { images: IMAGES, ..Textured::default() };
    ImageFolder::open(&images.folder(cache).expect("the images are made")).expect("the folder is read")
}

fn stages(c: &mut Criterion) {
    let source = folder();
    let mut files: Vec<Vec<u8>> = vec![Vec::new(); 32];
    let mut group = c.benchmark_group("one image");
    group.throughput(Throughput::Elements(files.len() as u64));
    group.bench_function("read", |b| {
        b.iter(|| {
            for (index, file) in files.iter_mut().enumerate() {
                source.read(index, file).expect("the file is there");
            }
        });
    });
    let (mut pixels, transform) = (Pixels::default(), Transform::training(224));
    group.bench_function("decode", |b| {
        b.iter(|| {
            for file in &files {
                decode(black_box(file), &mut pixels).expect("a JPEG");
            }
        });
    });
    let mut resizing = Resizing::default();
    let mut into = vec![0f32; 3 * 224 * 224];
    group.bench_function("crop, resize, flip, normalise", |b| {
        b.iter(|| {
            for index in 0..files.len() as u64 {
                let drawn = transform.draw(pixels.width as u32, pixels.height as u32, &mut sample_random(0, 0, index));
                transform.apply(&pixels, drawn, &mut resizing, &mut into).expect("the area is inside");
            }
        });
    });
}

fn loader(c: &mut Criterion) {
    let images = Arc::new(Images::new(folder(), Transform::training(224)));
    let mut group = c.benchmark_group("an epoch");
    group.sample_size(10).throughput(Throughput::Elements(IMAGES as u64));
    for workers in [0, 1, 2, 4] {
        let config = Config { batch: 64, workers, ..Config::default() };
        let mut loader: Loader<Images<ImageFolder>> = Loader::new(Arc::clone(&images), config).expect("the loader starts");
        group.bench_function(format!("{workers} workers"), |b| {
            b.iter(|| loader.epoch(0).expect("workers start").map(|batch| batch.expect("a batch").indices.len()).sum::<usize>());
        });
    }
}

criterion_group!(benches, stages, loader);
criterion_main!(benches);
