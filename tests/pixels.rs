//! Pixels agree with torchvision's: decoded, cropped, resized with antialias, flipped and normalised.
//!
//! The references in tests/pixels are made by peers/pytorch/reference_pixels.py, whose crops are repeated here.
#![cfg(feature = "torch")]

use rand::SeedableRng;
use std::path::Path;
use vramlab::data::*;

const SIDE: usize = 32;
const CROPS: [(Area, bool); 6] = [
    (area(11, 7, 90, 80), false),
    (area(0, 0, 240, 176), false),
    (area(100, 60, 19, 23), true),
    (area(64, 32, 32, 32), false),
    (area(33, 50, 150, 41), true),
    (area(209, 150, 31, 26), false),
];

const fn area(left: u32, top: u32, width: u32, height: u32) -> Area {
    Area { left, top, width, height }
}

/// Levels of 0 to 255 by which a value may differ at most, and on average over an image. Baseline images are decoded to the bit as libjpeg
/// does, so only resizing may round differently.
const BASELINE: (f32, f32) = (1.0, 0.2);

/// As before, for kinds that zune-jpeg decodes: it rounds the inverse cosine transform and interpolated chroma differently. A decoder that
/// interpolates chroma in another way, or a resize without antialias, is far outside.
const OTHERS: (f32, f32) = (4.0, 0.5);

/// Largest and mean difference to torchvision's values, in levels of 0 to 255.
fn differences(name: &str, change: impl Fn(&mut Transform)) -> (f32, f32) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pixels");
    let file = std::fs::read(folder.join(format!("{name}.jpg"))).unwrap();
    let (mut decoder, mut pixels) = (Decoder::default(), Pixels::default());
    let reference = std::fs::read(folder.join(format!("{name}.f32"))).unwrap();
    let reference: Vec<f32> = reference.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(reference.len(), CROPS.len() * 3 * SIDE * SIDE);
    let (mut resizing, mut most, mut sum) = (Resizing::default(), 0f32, 0f32);
    let mut into = vec![0f32; 3 * SIDE * SIDE];
    for ((area, mirrored), expected) in CROPS.into_iter().zip(reference.chunks_exact(3 * SIDE * SIDE)) {
        let mut transform = Transform { crop: Crop::Fixed(area), flip: f64::from(mirrored), ..Transform::training(SIDE as u32) };
        change(&mut transform);
        let mut random = SampleRandom::seed_from_u64(0);
        let mut mirrored = false;
        let choose = |width, height| {
            let (area, mirror) = transform.draw(width, height, &mut random);
            mirrored = mirror;
            area
        };
        let area = decoder.decode(&file, choose, &mut pixels).unwrap();
        transform.apply(&pixels, (area, mirrored), &mut resizing, &mut into).unwrap();
        for (at, (a, b)) in into.iter().zip(expected).enumerate() {
            let levels = (a - b).abs() * 255.0 * Normalise::IMAGENET.deviation[at / (SIDE * SIDE)];
            most = most.max(levels);
            sum += levels;
        }
    }
    (most, sum / reference.len() as f32)
}

#[test]
fn pixels_are_torchvisions() {
    let kinds = [("base", BASELINE), ("444", BASELINE), ("422", BASELINE), ("grey", BASELINE), ("progressive", OTHERS)];
    for (name, tolerance) in kinds {
        let (most, mean) = differences(name, |_| {});
        println!("{name}: at most {most:.2} levels, {mean:.3} on average");
        assert!(most <= tolerance.0 + 0.01 && mean <= tolerance.1, "{name}: at most {most:.2} levels, {mean:.3} on average");
    }
}

#[test]
fn what_is_done_wrong_is_seen() {
    let wrong = |change: fn(&mut Transform)| {
        let (most, mean) = differences("base", change);
        most > OTHERS.0 || mean > OTHERS.1
    };
    assert!(wrong(|t| t.flip = 1.0 - t.flip));
    assert!(wrong(|t| t.normalise.mean = [0.5; 3]));
    assert!(wrong(|t| if let Crop::Fixed(area) = &mut t.crop {
        area.width -= 1;
    }));
}
