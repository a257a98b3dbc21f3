//! What does a host read that does not wait for a copy to it?

use super::*;

levels! {
    Read "how a result is read back":
    Synchronised "`non_blocking` into pinned memory, then the stream is waited for",
    Unsynchronised "`non_blocking` into pinned memory, and read at once",
    Pageable "`non_blocking` into pageable memory, and read at once",
}

cell! { Reads { bytes: Bytes, read: Read } }

pub fn grid() -> Grid<Reads> {
    Grid::new("an unsynchronised read", step)
        .compare::<Read>()
        .quick_and_full(Reads::cross(64 << 20, Read::ALL))
        .passes(CHECK)
        .on(&[Platform::Gpu])
        .check(|c| match c.read {
            Read::Unsynchronised => missing(0.25),
            Read::Synchronised | Read::Pageable => equal(1e-6),
        })
        .claim(
            Claim::published(
                "pin-stale",
                "PyTorch's pin_memory tutorial",
                "an unsynchronised read of a non_blocking copy to the host gives stale data",
            )
            .rule(value(VALUES_ERROR).at(Read::Unsynchronised).confirm(at_least(0.25)).refute(at_most(0.0)))
            .setup("All values are stale where the error is 0.5: the host held ones, the device twos."),
        )
}

/// A result that is read back while the device is still busy with what comes before it.
pub fn step(cell: Reads, bench: &Bench) -> Result<Step> {
    let memory = match cell.read {
        Read::Synchronised | Read::Unsynchronised => Memory::Pinned,
        Read::Pageable => Memory::Pageable,
    };
    let mut host = memory.buffer(cell.bytes.elements())?;
    let _ = host.f_fill_(1.0)?;
    let device = Tensor::f_full([cell.bytes.elements()], 2.0, (Kind::Float, bench.device))?;
    let mut busy = Tensor::f_randn([4096, 4096], (Kind::Float, bench.device))?;
    Ok(Step::new(move |probe| {
        // Some 100 ms of work for the device come before the copy; reading the host's 64 MiB takes 10.
        for _ in 0..40 {
            busy = busy.f_matmul(&busy)?.f_tanh()?;
        }
        copy(&mut host, &device, true)?;
        let stream = Stream::current(device.device())?;
        if cell.read == Read::Synchronised {
            stream.synchronize()?;
        }
        let seen = host.f_detach_copy()?;
        stream.synchronize()?;
        probe.compare(VALUES_ERROR, || Ok(vec![seen]))
    }))
}
