//! Pixels agree with torchvision's: decoded, cropped, resized with antialias, flipped and normalised.
//!
//! The references in tests/pixels are made by tests/reference/make/pixels.py, whose crops are repeated here.

use loader::*;

const SIDE: usize = 32;
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

/// Levels of 0 to 255 by which a value may differ at most, and on average over an image: zune-jpeg rounds the inverse cosine transform and
/// interpolated chroma in its own way. A decoder that interpolates chroma otherwise, or a resize without antialias, is far outside.
const MOST: f32 = 4.0;
const MEAN: f32 = 0.5;

fn file(name: &str) -> Vec<u8> {
    std::fs::read(common::root().join("tests/pixels").join(name)).unwrap()
}

/// Largest and mean difference to torchvision's values of some of its parts, in levels of 0 to 255.
fn differences(name: &str, change: impl Fn(&mut (Area, bool))) -> (f32, f32) {
    let mut pixels = Pixels::default();
    let image = file(&format!("{name}.jpg"));
    decode(&image, &mut pixels).unwrap();
    let size = (pixels.width as u32, pixels.height as u32);
    let reference = file(&format!("{name}.bytes"));
    assert_eq!(reference.len(), CROPS.len() * 3 * SIDE * SIDE);
    let (mut resizing, mut most, mut sum) = (Resizing::default(), 0f32, 0f32);
    let mut into = vec![0f32; 3 * SIDE * SIDE];
    let transform = Transform::training(SIDE as u32);
    for (part, (area, mirrored)) in CROPS.into_iter().enumerate() {
        let mut drawn = (share(area, size), mirrored);
        change(&mut drawn);
        transform.apply(&pixels, drawn, &mut resizing, &mut into).unwrap();
        let expected = &reference[part * into.len()..(part + 1) * into.len()];
        for (at, (&value, level)) in into.iter().zip(expected).enumerate() {
            let channel = at / (SIDE * SIDE);
            let levels = ((value * DEVIATION[channel] + loader::MEAN[channel]) * 255.0 - f32::from(*level)).abs();
            most = most.max(levels);
            sum += levels;
        }
    }
    (most, sum / (CROPS.len() * into.len()) as f32)
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
        let (most, mean) = differences(name, |_| {});
        println!("{name}: at most {most:.2} levels, {mean:.3} on average");
        assert!(most <= MOST && mean <= MEAN, "{name}: at most {most:.2} levels, {mean:.3} on average");
    }
}

#[test]
fn what_is_done_wrong_is_seen() {
    let wrong = |change: fn(&mut (Area, bool))| {
        let (most, mean) = differences("base", change);
        most > MOST || mean > MEAN
    };
    assert!(wrong(|(_, mirrored)| *mirrored = !*mirrored));
    assert!(wrong(|(area, _)| area.width -= 1));
}
