//! Where an image's time goes on one core, with 0 workers, after all other figures of the cell were taken.

use super::*;

pub const STAGE: Metric = Metric::timed("stage", "time of a stage", "s");

/// Does to single images what the loader does, with a clock between the stages.
pub fn emit(probe: &mut Probe, images: &Images<ImageFolder>, config: &Config) -> Result<()> {
    let (transform, source) = (images.transform(), images.source());
    let (mut file, mut pixels, mut resizing) = (Vec::new(), Pixels::default(), Resizing::default());
    let mut into = vec![0f32; 3 * 224 * 224];
    let [mut read, mut decode, mut resize, mut write] = [0.0; 4];
    let images = source.len().min(2 * config.batch);
    for index in 0..images {
        let mut random = sample_random(config.seed, 0, index as u64);
        let mut clock = Instant::now();
        let mut lap = |seconds: &mut f64| {
            *seconds += clock.elapsed().as_secs_f64();
            clock = Instant::now();
        };
        source.read(index, &mut file)?;
        lap(&mut read);
        loader::decode(&file, &mut pixels)?;
        let (part, mirrored) = transform.draw(pixels.width as u32, pixels.height as u32, &mut random);
        lap(&mut decode);
        let resized = resizing.resize(&pixels, part, transform.size)?;
        lap(&mut resize);
        transform.write(resized, mirrored, &mut into)?;
        lap(&mut write);
    }
    for (stage, seconds) in [("read", read), ("decode", decode), ("crop and resize", resize), ("flip and normalise", write)] {
        probe.emit(STAGE.part(stage), seconds / images as f64);
    }
    Ok(())
}
