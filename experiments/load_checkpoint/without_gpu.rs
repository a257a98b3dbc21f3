//! Can a file from a GPU be loaded on a machine without one?

use super::*;

cell! { Moved { model: ModelName, by: By, saved: Saved, reader: Reader, map: Map } }

pub fn grid() -> Grid<Moved> {
    let raised = |map| value(RAISED).of(move |c: &Moved| c.map == map);
    Grid::new("a file from a GPU, without one", in_python)
        .compare::<Map>()
        .quick_and_full(Moved::cross("mlp-2x64", By::Pytorch, Saved::OnDevice, Reader::Load, [Map::Cpu, Map::Nothing]))
        .passes(CHECK)
        .on(&[Platform::Cpu])
        .check(|c| match c.map {
            // PyTorch's own words where tensors of a GPU are to go back to one that is not there.
            Map::Nothing => raises("Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False"),
            Map::Cpu | Map::ToDevice => equal(0.0),
        })
        .claim(
            Claim::new(
                "load-device",
                "4",
                "a checkpoint goes back to the device that it was saved on unless it is mapped to another, and can run it out of memory",
            )
            .on(&[Platform::Python, Platform::Gpu, Platform::Dry])
            // An error tells where tensors want to go. Where they land, and that the device runs out, takes a device.
            .rule(raised(Map::Nothing).confirm(at_least(1.0)).refute(at_most(0.0)).informational())
            .rule(raised(Map::Cpu).confirm(at_most(0.0)).refute(at_least(1.0)).informational())
            .changed("29 November 2026: no rule; what landed was counted as 0 always, because cuda:0 was compared with cuda."),
        )
        .no_plots()
}
