//! Are batches the same with every number of workers? Random crops of two libraries cannot be compared.

use super::*;

cell! { SameBatches { images: Count, size: Size, workers: Workers } }

pub fn grid() -> Grid<SameBatches> {
    Grid::new("the same batches?", step)
        .compare::<Workers>()
        // Checks come before all that is timed, so these also make the images that both sides read.
        .quick(SameBatches::cross(128, Size::Photographs, [0, 1, 2, 4]))
        .full(SameBatches::cross(512, Size::Photographs, [0, 1, 2, 4]))
        .smoke(SameBatches::cross(96, Size::Thumbnails, [0, 2]).passes(CHECK | ROUNDS))
        .passes(CHECK)
        .on(&[Platform::Cpu, Platform::Gpu])
        .metrics(&[PIXELS_ERROR])
        .check(|_| equal(0.0))
        .no_plots()
}

fn step(cell: SameBatches, bench: &Bench) -> Result<Step> {
    loading(cell.images, cell.size, cell.workers, bench)
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_batches_that_depend_on_the_workers() {
        let cell = SameBatches { images: Count(96), size: Size::Thumbnails, workers: Workers(2) };
        check(&protocol(), cell).holds();
        let other_order = |bench: &Bench| step(cell, &Bench { seed: bench.seed + cell.workers.0, ..*bench });
        broken(&protocol(), cell, other_order).sees("pixels: expected equal");
    }
}
