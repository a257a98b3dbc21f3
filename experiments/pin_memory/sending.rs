//! What does it cost to send a tensor as a training loop does? Memory on the device is taken anew each time.

use super::*;

number! { Tensors "tensors that are sent one after the other" }

cell! { Sending { bytes: Bytes, tensors: Tensors, recipe: Recipe } }

pub const SENT: [Recipe; 5] = [Recipe::Pageable, Recipe::PageableNonblocking, Recipe::PinInline, Recipe::Staged, Recipe::Pinned];

pub fn grid() -> Grid<Sending> {
    Grid::new("sending a tensor", step)
        .compare::<Recipe>()
        .full(Sending::cross([1 << 20, 16 << 20, 256 << 20], 1, SENT))
        // The tutorial's own case: a thousand tensors of a thousand numbers.
        .full(Sending::cross(4000, 1000, SENT))
        .quick(Sending::cross(16 << 20, 1, [Recipe::Pageable, Recipe::PinInline]))
        .quick(Sending::cross(4000, 1000, [Recipe::Pageable, Recipe::PageableNonblocking, Recipe::PinInline]))
        .passes(CHECK | ROUNDS)
        .on(&[Platform::Gpu])
        .metrics(&[BANDWIDTH, LINK_SHARE, TIME, VALUES_ERROR])
        .check(|_| equal(1e-6)) // copies are exact
        .claim(
            Claim::published(
                "pin-nonblocking",
                "PyTorch's pin_memory tutorial",
                "x.pin_memory().to(device, non_blocking) takes up to 2x the time of x.to(device)",
            )
            .rule(ratio(TIME).at(Recipe::PinInline).confirm(within(1.02..=2.2)).refute(at_most(1.0)))
            .setup("The tutorial's machine is not named; 'up to' is read as slower at every size and 2.2x at most."),
        )
        .no_plots()
}

/// The recipe with what it keeps between steps.
enum Way {
    /// And whether the call waits.
    Pageable(bool),
    PinInline,
    Staged(Tensor),
    Pinned(Tensor),
}

pub fn step(cell: Sending, bench: &Bench) -> Result<Step> {
    let host = data(cell.bytes)?;
    let mut way = match cell.recipe {
        Recipe::Pageable => Way::Pageable(false),
        Recipe::PageableNonblocking => Way::Pageable(true),
        Recipe::PinInline => Way::PinInline,
        Recipe::Staged => Way::Staged(Memory::Pinned.buffer(cell.bytes.elements())?),
        Recipe::Pinned => Way::Pinned(pin(&host)?),
        Recipe::PinnedNonblocking | Recipe::Prefetched => bail!("only epochs are sent so"),
    };
    let device = bench.device;
    let step = Step::new(move |probe| {
        let send = |host: &Tensor, non_blocking| host.f_to_device_(device, Kind::Float, non_blocking, true);
        let mut one = || -> Result<Tensor> {
            Ok(match &mut way {
                Way::Pageable(non_blocking) => send(&host, *non_blocking)?,
                Way::PinInline => send(&pin(&host)?, true)?,
                Way::Staged(buffer) => {
                    copy(buffer, &host, false)?;
                    let sent = send(buffer, true)?;
                    // The buffer is filled again by the next step.
                    Stream::current(device)?.event()?.synchronize()?;
                    sent
                }
                Way::Pinned(buffer) => send(buffer, false)?,
            })
        };
        // All stay on the device, as the parts of a batch do.
        let mut all = (0..cell.tensors.0).map(|_| one()).collect::<Result<Vec<_>>>()?;
        let sent = all.pop().context("no tensor is sent")?;
        probe.compare(VALUES_ERROR, || Ok(vec![sent.f_to(Device::Cpu)?]))
    });
    Ok(step.link_bytes(cell.bytes.0 * cell.tensors.0))
}
