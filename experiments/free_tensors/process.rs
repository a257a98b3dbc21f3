//! The memory of the process, where it is the C library that keeps what is dropped: one block that it maps by itself, and blocks that it
//! cuts out of its heap.

use super::*;

pub fn grid() -> Grid<Dropping> {
    const MOMENTS: [Moment; 3] = [Moment::Before, Moment::Dropped, Moment::MallocTrim];
    let of = |dropped: Dropped, references: &[Reference]| Dropping::cross(Watched::Process, dropped, "64MiB", references, MOMENTS);
    Grid::new("bytes of the process", step)
        .compare::<Moment>()
        .quick_and_full(of(Dropped::Tensor, &[Reference::Nothing]))
        .quick_and_full(of(Dropped::SmallTensors, &[Reference::Nothing, Reference::Few]))
        .passes(CHECK | ROUNDS)
        .on(&[Platform::Cpu])
        .check(|_| equal(1e-6))
        .metrics(&[RESIDENT])
        .no_plots()
}
