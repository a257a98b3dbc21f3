//! Which device does the state come to? That needs a second device.

use super::*;
use process::{DROPPED, HELD, LANDED, LOAD_PEAK};

pub fn grid() -> Grid<Loaded> {
    use Map::{Cpu, Nothing, ToDevice};
    let of = |model| Loaded::cross(model, By::Pytorch, Saved::OnDevice, Map::ALL, Reader::ALL);
    let holds = |metric, map| value(metric).of(move |c: &Loaded| c.map == map && c.reader.holds_a_state());
    Grid::new("where the state lands", in_python)
        .compare::<Reader>()
        .quick(of(SMALL))
        .full(of(LARGE))
        .passes(CHECK | COUNT)
        .on(CUDA)
        .metrics(&[LOAD_PEAK, HELD, DROPPED, LANDED])
        .check(|_| equal(0.0))
        .answers("load-device", holds(LANDED, Nothing).confirm(at_least(0.99)).refute(at_most(0.01)))
        .answers("load-device", holds(LANDED, Cpu).confirm(at_most(0.01)).refute(at_least(0.99)))
        .answers("load-del", holds(HELD, ToDevice).confirm(at_least(1.90)).refute(at_most(1.10)).informational())
        .answers("load-del", holds(DROPPED, ToDevice).confirm(at_most(1.10)).refute(at_least(1.90)).informational())
        .no_plots()
}
