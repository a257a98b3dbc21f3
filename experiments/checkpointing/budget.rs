//! What fits a device whose memory is really exhausted?

use super::*;

cell! { Budget { device_memory: DeviceMemory, batch: Batch, depth: Depth, policy: Policy } }

const TINY: DeviceMemory = DeviceMemory("1MiB");

pub fn grid() -> Grid<Budget> {
    let policies = [Policy::Nothing, Policy::Sqrt];
    Grid::new("what fits?", step)
        .compare::<Policy>()
        .quick(Budget::cross("48MiB", 2048, [16, 32, 64, 128], policies))
        .full(Budget::cross("1GiB", 65536, [16, 32, 64, 128], policies))
        .smoke(Budget::cross(TINY, 256, 16, policies))
        .passes(COUNT)
        .no_plots()
}

fn step(cell: Budget, bench: &Bench) -> Result<Step> {
    depth::segmented(Model::named(&format!("mlp-{}x64", cell.depth.0), bench.device)?, cell.batch, cell.policy)
}
