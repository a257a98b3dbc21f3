//! How much memory do pinned batches take, on the host and on the device?

use super::*;
use harness::machine::total_memory;
use torch::transfer::host_memory;

/// Bytes that the device's tensors take for each byte that was sent.
const DEVICE_BYTES: Metric = Metric::counted("device_bytes", "device bytes for each byte sent", "1").ratio();
const LOCKED: Metric = Metric::counted("locked", "locked host memory", "B");
const LOCKED_FOR_EACH: Metric = Metric::counted("locked_for_each", "locked bytes for each byte of data", "1").ratio();
const LOCKED_SHARE: Metric = Metric::counted("locked_share", "locked share of the host's memory", "1").share();

/// The host of the simulated GPU, whatever machine that runs on.
const HOST: u64 = 16 << 30;

number! { Buffers "batches that are kept in locked memory" }

cell! { Held { bytes: Bytes, buffers: Buffers, memory: Memory } }

/// A batch of 64 images of 3 x 224 x 224 in fp32.
const IMAGES: i64 = 64 * 3 * 224 * 224 * 4;

pub fn grid() -> Grid<Held> {
    let pinned = |c: &Held| c.memory == Memory::Pinned;
    Grid::new("memory", step)
        .compare::<Memory>()
        .full(Held::cross([1 << 20, IMAGES, 1 << 30], 1, Memory::ALL))
        .full(Held::cross(IMAGES, [4, 16], Memory::ALL))
        // So much is locked nowhere but there.
        .full(Held::cross(1 << 30, 16, Memory::ALL).on(&[Platform::Dry]))
        .quick(Held::cross(IMAGES, [1, 4], Memory::ALL))
        .smoke(Held::cross(IMAGES, [1, 4], Memory::ALL))
        .passes(COUNT)
        .on(CUDA)
        .metrics(&[DEVICE_BYTES, LOCKED, LOCKED_FOR_EACH, LOCKED_SHARE])
        .claim(
            Claim::new("pin-no-copy", "1", "with pinned memory there is no copy from CPU to GPU, the GPU reads it directly")
                .on(CUDA)
                .rule(value(DEVICE_BYTES).of(pinned).confirm(at_most(0.5)).refute(at_least(0.98))),
        )
        // Whether a machine freezes is not provoked, which would endanger it, and so not judged: the locked share of its memory is shown.
        .no_plots()
}

/// Batches in host memory, of which one is sent.
pub fn step(cell: Held, bench: &Bench) -> Result<Step> {
    let buffers = (0..cell.buffers.0).map(|_| cell.memory.buffer(cell.bytes.elements())).collect::<Result<Vec<_>>>()?;
    // What is predicted does not depend on the machine that it is predicted on.
    let host = if bench.platform == Platform::Dry { Some(HOST) } else { total_memory() };
    let device = bench.device;
    Ok(Step::new(move |probe| {
        let before = probe.live();
        let sent = buffers[0].f_to_device_(device, Kind::Float, true, true)?;
        let bytes = sent.numel() as f64 * 4.0;
        let grown = probe.live() - before;
        probe.emit(DEVICE_BYTES, grown as f64 / bytes);
        let locked = host_memory()?.locked as f64;
        probe.emit(LOCKED, locked);
        probe.emit(LOCKED_FOR_EACH, locked / (bytes * buffers.len() as f64));
        if let Some(host) = host {
            probe.emit(LOCKED_SHARE, locked / host as f64);
        }
        Ok(())
    }))
}
