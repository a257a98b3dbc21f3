//! How fast are copies between buffers that are there already?

use super::*;

levels! { Direction "direction of the copy": ToDevice "", ToHost "" }
levels! {
    Call "copy call":
    Blocking "`copy_`: the calling thread waits for its end",
    NonBlocking "`copy_` with non_blocking",
}

cell! { Copies { direction: Direction, call: Call, bytes: Bytes, memory: Memory } }

const SIZES: [i64; 8] = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];

pub fn grid() -> Grid<Copies> {
    use {Call::*, Direction::*};
    let pinned = |rule: Rule<Copies>| rule.at(ToDevice).at(Memory::Pinned);
    let largest = |direction, bytes| {
        move |c: &Copies| *c == Copies { direction, call: NonBlocking, bytes: Bytes(bytes), memory: Memory::Pinned }
    };
    Grid::new("copies", step)
        .compare::<Memory>()
        .full(Copies::cross(ToDevice, Call::ALL, SIZES, Memory::ALL))
        .full(Copies::cross(ToHost, Call::ALL, [64 << 10, 1 << 20, 16 << 20, 256 << 20], Memory::ALL))
        .quick(Copies::cross(ToDevice, Blocking, [64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20], Memory::ALL))
        .smoke(Copies::cross(ToDevice, Blocking, 1 << 20, Memory::ALL))
        .passes(CHECK | ROUNDS)
        .on(&[Platform::Gpu])
        .metrics(&[BANDWIDTH, LINK_SHARE, TIME, VALUES_ERROR])
        .check(|_| equal(1e-6)) // copies are exact
        .claim(
            Claim::new("pin-faster", "3 5", "transfers from pinned memory are faster")
                .on(&[Platform::Gpu])
                .rule(pinned(ratio(BANDWIDTH)).of(|c| c.bytes.0 >= 1 << 20).more())
                .changed("29 November 2026: the guides say faster, and not how much; 1.20 times had been asked.")
                .before(pinned(ratio(BANDWIDTH)).of(|c| c.bytes.0 >= 1 << 20).confirm(at_least(1.20)).refute(at_most(1.02))),
        )
        .claim(
            Claim::new("pin-larger", "5", "the larger the data, the larger the gain from pinning")
                .on(&[Platform::Gpu])
                .rule(pinned(saved_trend(TIME)).along::<Bytes>().holds(at_least(0.8)))
                .rule(pinned(trend(BANDWIDTH)).along::<Bytes>().holds(at_least(0.8)).informational())
                .changed(
                    "29 November 2026: the guide speaks of time, so the time that is saved is judged, and the ratio stands beside it. The ratio \
                     levels off where the link is full.",
                )
                .before(pinned(trend(BANDWIDTH)).along::<Bytes>().holds(at_least(0.8))),
        )
        .claim(
            Claim::published("pin-h2d-gen5", "nvbandwidth logs", "55.4 GB/s from host to device over PCI Express generation 5 x16")
                .rule(value(BANDWIDTH).of(largest(ToDevice, 1 << 30)).reproduces(55.4e9))
                .setup("nvbandwidth copies without PyTorch. Comparable on a link of generation 5 with 16 lanes: see the share of the link."),
        )
        .claim(
            Claim::published("pin-d2h-gen5", "nvbandwidth logs", "55.2 GB/s from device to host over PCI Express generation 5 x16")
                .rule(value(BANDWIDTH).of(largest(ToHost, 256 << 20)).reproduces(55.2e9))
                .setup("As for the other direction."),
        )
        .plot(
            lines(BANDWIDTH)
                .caption("Bandwidth from host to device by the bytes of one copy")
                .of(|c: &Copies| c.direction == ToDevice)
                .over::<Bytes>()
                .by::<Memory>()
                .by::<Call>(),
        )
}

/// Several times the last cache of a host, in no more buffers than take a moment to lock.
const BEYOND_CACHES: i64 = 256 << 20;
const MOST_BUFFERS: i64 = 64;

pub fn step(cell: Copies, bench: &Bench) -> Result<Step> {
    // So many that the next one does not lie in the host's cache: a loader's batches do not either.
    let buffers = (BEYOND_CACHES / cell.bytes.0).clamp(1, MOST_BUFFERS);
    let values = data(cell.bytes)?;
    let filled = |_| -> Result<Tensor> {
        let mut buffer = cell.memory.buffer(cell.bytes.elements())?;
        copy(&mut buffer, &values, false)?;
        Ok(buffer)
    };
    let (mut hosts, mut turn) = ((0..buffers).map(filled).collect::<Result<Vec<_>>>()?, 0);
    let mut device = hosts[0].f_to(bench.device)?;
    // What is copied must change what was there, or a copy that does nothing would pass the check.
    match cell.direction {
        Direction::ToDevice => drop(device.f_zero_()?),
        Direction::ToHost => hosts.iter_mut().try_for_each(|host| host.f_zero_().map(drop))?,
    }
    let non_blocking = cell.call == Call::NonBlocking;
    let step = Step::new(move |probe| {
        turn = (turn + 1) % hosts.len();
        let host = &mut hosts[turn];
        match cell.direction {
            Direction::ToDevice => copy(&mut device, host, non_blocking)?,
            Direction::ToHost => copy(host, &device, non_blocking)?,
        }
        probe.compare(VALUES_ERROR, || {
            Stream::current(device.device())?.synchronize()?;
            Ok(vec![match cell.direction {
                Direction::ToDevice => device.f_to(Device::Cpu)?,
                Direction::ToHost => host.f_detach_copy()?,
            }])
        })
    });
    Ok(step.link_bytes(cell.bytes.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn copies_from_pinned_memory_need_a_gpu() {
        let (direction, call) = (Direction::ToDevice, Call::Blocking);
        let cell = Copies { direction, call, bytes: Bytes(1 << 20), memory: Memory::Pinned };
        check(&protocol(), cell).sees("CUDA devices have");
    }
}
