//! Does a load fit a device with room for one and a half models, and a training step one with no room for one model more?

use super::*;

levels! { Kept as "state" "what becomes of the loaded state before a training step": Drop "it is dropped", Keep "it is kept" }

cell! { Loading { model: ModelName, by: By, saved: Saved, device_memory: DeviceMemory, reader: Reader, map: Map } }
cell! {
    Training { model: ModelName, by: By, saved: Saved, map: Map, device_memory: DeviceMemory, reader: Reader, state: Kept }
}

pub fn loading() -> Grid<Loading> {
    let of = |model, room: &'static str| {
        Loading::cross(model, By::Pytorch, Saved::OnDevice, room, &Reader::ALL[1..], [Map::Nothing, Map::Cpu])
    };
    Grid::new("does the load fit?", in_python)
        .compare::<Map>()
        .quick(of(SMALL, "96MiB"))
        .full(of(LARGE, "384MiB"))
        .passes(COUNT)
        .on(CUDA)
        .metrics(&[FITS, PEAK])
        .answers("load-device", value(FITS).at(Map::Nothing).confirm(at_most(0.0)).refute(at_least(1.0)))
        .no_plots()
}

pub fn training() -> Grid<Training> {
    let of = |model, room: &'static str| {
        Training::cross(model, By::Pytorch, Saved::Cpu, Map::ToDevice, room, Reader::Load, [Kept::Drop, Kept::Keep])
    };
    let fits = |state| value(FITS).of(move |c: &Training| c.state == state);
    Grid::new("does training fit afterwards?", in_python)
        .compare::<Kept>()
        .quick(of(SMALL, "325MiB"))
        .full(of(LARGE, "1300MiB"))
        .passes(COUNT)
        .on(EVERYWHERE)
        .metrics(&[FITS, PEAK])
        .answers("load-del", fits(Kept::Keep).confirm(at_most(0.0)).refute(at_least(1.0)).informational())
        .answers("load-del", fits(Kept::Drop).confirm(at_least(1.0)).refute(at_most(0.0)).informational())
        .no_plots()
}
