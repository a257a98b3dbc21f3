//! Does a load fit a device with room for one and a half models, and a training step one with no room for one model more?

use super::load::Load;
use super::*;
use harness::measure::is_out_of_memory;
use torch::attempt;

levels! { Kept as "state" "what becomes of the loaded state before a training step": Drop "it is dropped", Keep "it is kept" }

cell! { Loading { model: ModelName, by: By, saved: Saved, device_memory: DeviceMemory, reader: Reader, map: Map } }
cell! {
    Training { model: ModelName, by: By, saved: Saved, map: Map, device_memory: DeviceMemory, reader: Reader, state: Kept }
}

pub fn loading() -> Grid<Loading> {
    let of =
        |model, room: &'static str| Loading::cross(model, By::Vramlab, Saved::OnDevice, room, &OURS[1..], [Map::Nothing, Map::Cpu]);
    Grid::new("does the load fit?", load)
        .compare::<Map>()
        .quick(of(SMALL, "96MiB"))
        .full(of(LARGE, "384MiB"))
        .passes(COUNT)
        .on(&[Platform::Gpu, Platform::Dry])
        .metrics(&[FITS, PEAK])
        .answers("load-device", value(FITS).of(|c: &Loading| c.map == Map::Nothing).confirm(at_most(0.0)).refute(at_least(1.0)))
        .no_plots()
}

pub fn training() -> Grid<Training> {
    let of = |model, room: &'static str| {
        Training::cross(model, By::Vramlab, Saved::Cpu, Map::ToDevice, room, Reader::Ot, [Kept::Drop, Kept::Keep])
    };
    let fits = |state| value(FITS).of(move |c: &Training| c.state == state);
    Grid::new("does training fit afterwards?", train)
        .compare::<Kept>()
        .quick(of(SMALL, "325MiB"))
        .full(of(LARGE, "1300MiB"))
        .passes(COUNT)
        .metrics(&[FITS, PEAK])
        .answers("load-del", fits(Kept::Keep).confirm(at_most(0.0)).refute(at_least(1.0)).informational())
        .answers("load-del", fits(Kept::Drop).confirm(at_least(1.0)).refute(at_most(0.0)).informational())
        .no_plots()
}

fn load(cell: Loading, bench: &Bench) -> Result<Step> {
    let Loading { model, by, saved, reader, map, .. } = cell;
    let load = Load::new(Loaded { model, by, saved, map, reader }, bench, || Ok(()))?;
    Ok(fits(move || load.load().map(drop)))
}

fn train(cell: Training, bench: &Bench) -> Result<Step> {
    let Training { model, by, saved, reader, map, state, .. } = cell;
    let load = Load::new(Loaded { model, by, saved, map, reader }, bench, || Ok(()))?;
    Ok(fits(move || {
        let loaded = load.load()?;
        let _kept = match state {
            Kept::Drop => {
                drop(loaded);
                None
            }
            Kept::Keep => Some(loaded),
        };
        load.train()
    }))
}

/// Says whether the memory suffices.
fn fits(whole: impl Fn() -> Result<()> + 'static) -> Step {
    Step::new(move |probe| {
        probe.at_rest();
        let fits = match attempt(&whole) {
            Ok(()) => 1,
            Err(e) if is_out_of_memory(&format!("{e:#}")) => 0,
            Err(e) => return Err(e),
        };
        probe.emit(FITS, fits);
        Ok(())
    })
}
