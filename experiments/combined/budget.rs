//! Which batch fits a 12 GiB GPU, and how fast?

use super::*;

cell! { Budget { device_memory: DeviceMemory, model: Net, batch: Batch, with: With } }

pub fn grid() -> Grid<Budget> {
    use With::*;
    Grid::new("what fits, and how fast?", step)
        .compare::<With>()
        .full(Budget::cross("12GiB", Net::Gpt2, [4, 8, 16, 32, 64], [Nothing, Amp, Checkpoint, Accumulate, AmpCheckpoint, All]))
        .passes(COUNT | ROUNDS)
        .metrics(&[PEAK, FORWARDS, TIME.labelled("time per sample")])
        .no_plots()
}

fn step(cell: Budget, bench: &Bench) -> Result<Step> {
    training(&cell.with.over(&plain(cell.model, cell.batch, OptimizerKind::AdamW), cell.model), bench.device)
}
