//! Pixels agree with torchvision's: decoded, cropped, resized with antialias, flipped and normalised.
//!
//! The references in tests/pixels are made by peers/pytorch/reference_pixels.py, whose crops are repeated here.

use loader::*;
use rand::SeedableRng;
use std::ops::Range;

const SIDE: usize = 32;
const SHORTER: u32 = 37;
/// Of an image of the size of [`WHOLE`], and in these shares of one of another size.
const CROPS: [(Area, bool); 6] = [
    (area(11, 7, 90, 80), false),
    (area(0, 0, 240, 176), false),
    (area(100, 60, 19, 23), true),
    (area(64, 32, 32, 32), false),
    (area(33, 50, 150, 41), true),
    (area(209, 150, 31, 26), false),
];
const WHOLE: (u32, u32) = (246, 179);

const fn area(left: u32, top: u32, width: u32, height: u32) -> Area {
    Area { left, top, width, height }
}

fn share(area: Area, (width, height): (u32, u32)) -> Area {
    let (across, down) = (|x: u32| x * width / WHOLE.0, |y: u32| y * height / WHOLE.1);
    Area { left: across(area.left), top: down(area.top), width: across(area.width).max(1), height: down(area.height).max(1) }
}

/// Levels of 0 to 255 by which a value may differ at most, and on average over an image: zune-jpeg rounds the inverse cosine transform and interpolated chroma in its own way. A decoder that interpolates chroma otherwise, or a resize without antialias,
/// is far outside.
const MOST: f32 = 4.0;
const MEAN: f32 = 0.5;

fn file(name: &str) -> Vec<u8> {
    std::fs::read(common::root().join("tests/pixels").join(name)).unwrap()
}

/// Largest and mean difference to torchvision's values of some of its parts, in levels of 0 to 255.
fn differences(name: &str, parts: Range<usize>, change: impl Fn(&mut Transform)) -> (f32, f32) {
    let mut pixels = Pixels::default();
    let image = file(&format!("{name}.jpg"));
    decode(&image, &mut pixels).unwrap();
    let size = (pixels.width as u32, pixels.height as u32);
    let reference = file(&format!("{name}.bytes"));
    assert_eq!(reference.len(), (CROPS.len() + 1) * 3 * SIDE * SIDE);
    let (mut resizing, mut most, mut sum) = (Resizing::default(), 0f32, 0f32);
    let mut into = vec![0f32; 3 * SIDE * SIDE];
    for part in parts.clone() {
        let mut transform = match CROPS.get(part) {
            Some((area, mirrored)) => {
                let crop = Crop::Fixed(share(*area, size));
                Transform { crop, flip: f64::from(*mirrored), ..Transform::training(SIDE as u32) }
            }
            None => Transform::evaluation(SHORTER, SIDE as u32),
        };
        change(&mut transform);
        let drawn = transform.draw(size.0, size.1, &mut SampleRandom::seed_from_u64(0));
        transform.apply(&pixels, drawn, &mut resizing, &mut into).unwrap();
        let expected = &reference[part * into.len()..(part + 1) * into.len()];
        for (at, (value, level)) in into.iter().zip(expected).enumerate() {
            let Normalise { mean, deviation } = Normalise::IMAGENET;
            let channel = at / (SIDE * SIDE);
            let levels = ((value * deviation[channel] + mean[channel]) * 255.0 - f32::from(*level)).abs();
            most = most.max(levels);
            sum += levels;
        }
    }
    (most, sum / (parts.len() * into.len()) as f32)
}

const IMAGES: [&str; 15] = [
    "base",
    "444",
    "422",
    "411",
    "progressive",
    "progressive-444",
    "grey",
    "grey-progressive",
    "cmyk",
    "rgb",
    "restarts",
    "odd",
    "narrow",
    "tiny",
    // torchvision does not turn an image that a camera says is on its side, and neither do we.
    "rotated",
];

#[test]
fn pixels_are_torchvisions() {
    for name in IMAGES {
        for (what, parts) in [("parts", 0..CROPS.len()), ("the middle", CROPS.len()..CROPS.len() + 1)] {
            let (most, mean) = differences(name, parts, |_| {});
            println!("{what} of {name}: at most {most:.2} levels, {mean:.3} on average");
            assert!(most <= MOST && mean <= MEAN, "{what} of {name}: at most {most:.2} levels, {mean:.3} on average");
        }
    }
}

/// torchvision would put black around it.
#[test]
fn a_square_larger_than_the_resized_image_is_refused() {
    let mut pixels = Pixels::default();
    decode(&file("odd.jpg"), &mut pixels).unwrap();
    let transform = Transform::evaluation(31, 32);
    let drawn = transform.draw(pixels.width as u32, pixels.height as u32, &mut SampleRandom::seed_from_u64(0));
    let error = transform.apply(&pixels, drawn, &mut Resizing::default(), &mut [0.0; 3 * 32 * 32]).unwrap_err().to_string();
    assert!(error.contains("resized to 40 x 31") && error.contains("at least as long"), "{error}");
}

#[test]
fn what_is_done_wrong_is_seen() {
    let wrong = |change: fn(&mut Transform)| {
        let (most, mean) = differences("base", 0..CROPS.len(), change);
        most > MOST || mean > MEAN
    };
    assert!(wrong(|t| t.flip = 1.0 - t.flip));
    assert!(wrong(|t| t.normalise.mean = [0.5; 3]));
    assert!(wrong(|t| if let Crop::Fixed(area) = &mut t.crop {
        area.width -= 1;
    }));
    // The middle, half a pixel of the resized image aside.
    let (most, _) = differences("base", CROPS.len()..CROPS.len() + 1, |t| t.crop = Crop::Centre { shorter: SHORTER + 1 });
    assert!(most > MOST);
}
