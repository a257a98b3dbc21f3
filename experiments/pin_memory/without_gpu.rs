//! What does pinning do without a GPU?

use super::*;

/// PyTorch's side gives it.
const WARNED: Metric = Metric::timed("warned", "warnings that pinning does nothing", "1");

levels! { Pinning "pin_memory": Off "" => "pin_memory=False", On "" => "pin_memory=True" }

cell! { WithoutGpu { by: By, pinning: Pinning } }

pub fn grid() -> Grid<WithoutGpu> {
    let pinning = |by| move |c: &WithoutGpu| c.by == by && c.pinning == Pinning::On;
    Grid::new("without a GPU", step)
        .compare::<Pinning>()
        .quick_and_full(WithoutGpu::cross(By::Pytorch, Pinning::ALL).passes(CHECK | ROUNDS))
        .always(WithoutGpu::cross(By::Vramlab, Pinning::ALL))
        .passes(CHECK)
        .on(&[Platform::Cpu])
        .metrics(&[VALUES_ERROR, WARNED, RAISED])
        .check(|c| match (c.by, c.pinning) {
            (By::Vramlab, Pinning::On) => raises("there is no CUDA device"),
            (By::Vramlab, Pinning::Off) | (By::Pytorch, _) => equal(1e-6),
        })
        .claim(
            Claim::new("pin-cpu-only", "5", "pinning gains nothing without a GPU")
                .on(&[Platform::Python])
                .rule(value(WARNED).of(pinning(By::Pytorch)).confirm(at_least(1.0)).refute(at_most(0.0)))
                .rule(ratio(TIME).of(pinning(By::Pytorch)).confirm(within(0.95..=1.05)).refute(at_most(0.95)))
                .changed("29 November 2026: of machines without a GPU alone; it had read cells of another grid on an H100, too."),
        )
        .claim(
            Claim::new("pin-refused", "", "this project's pinned memory is refused without a GPU, with the reason")
                .about_the_lab()
                .on(&[Platform::Cpu])
                .rule(value(RAISED).of(pinning(By::Vramlab)).confirm(at_least(1.0)).refute(at_most(0.0))),
        )
        .no_plots()
}

/// A batch of this project's, pinned or not.
fn step(cell: WithoutGpu, _: &Bench) -> Result<Step> {
    let memory = match (cell.by, cell.pinning) {
        (By::Pytorch, _) => bail!("the PyTorch reference runs this cell"),
        (By::Vramlab, Pinning::On) => Memory::Pinned,
        (By::Vramlab, Pinning::Off) => Memory::Pageable,
    };
    Ok(Step::new(move |probe| {
        let mut batch = memory.buffer(64)?;
        let _ = batch.f_fill_(1.0)?;
        probe.compare(VALUES_ERROR, || Ok(vec![batch]))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_memory_that_is_granted_without_a_gpu() {
        let cell = |pinning| WithoutGpu { by: By::Vramlab, pinning };
        for pinning in Pinning::ALL {
            check(&protocol(), cell(*pinning)).holds();
        }
        broken(&protocol(), cell(Pinning::On), |bench| step(cell(Pinning::Off), bench)).sees("none was raised");
    }
}
