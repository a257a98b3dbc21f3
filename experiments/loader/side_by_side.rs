//! How fast, how soon, and in how much memory?

use super::*;

cell! { SideBySide { images: Count, size: Size, workers: Workers, by: By } }

pub fn grid() -> Grid<SideBySide> {
    const WORKERS: [i64; 4] = [0, 1, 2, 4];
    const SIDES: [By; 2] = [By::Pytorch, By::Vramlab];
    let ours = |c: &SideBySide| c.by == By::Vramlab;
    let ours_with_workers = |c: &SideBySide| c.by == By::Vramlab && c.workers.0 >= 2;
    Grid::new("side by side", step)
        .compare::<By>()
        .quick(SideBySide::cross(128, Size::Photographs, WORKERS, SIDES))
        .full(SideBySide::cross(512, Size::Photographs, WORKERS, SIDES))
        .passes(ROUNDS)
        .on(&[Platform::Cpu, Platform::Gpu])
        .metrics(&[RATE, FIRST, GAP, PROPORTIONAL])
        .claim(
            Claim::new("loader-rate", "", "this loader gives twice the images a second of PyTorch's with as many workers")
                .rule(ratio(RATE).of(ours).holds(at_least(2.0))),
        )
        .claim(
            Claim::new("loader-first", "", "its first batch comes 3x sooner at 2 workers or more")
                .rule(ratio(FIRST).of(ours_with_workers).holds(at_most(1.0 / 3.0))),
        )
        .claim(
            Claim::new("loader-memory", "", "it takes a quarter of the memory")
                .rule(ratio(PROPORTIONAL).of(ours_with_workers).holds(at_most(0.25))),
        )
        .no_plots()
}

fn step(cell: SideBySide, bench: &Bench) -> Result<Step> {
    match cell.by {
        By::Vramlab => loading(cell.images, cell.size, cell.workers, bench),
        By::Pytorch => bail!("the PyTorch reference runs this cell"),
    }
}
