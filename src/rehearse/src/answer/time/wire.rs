//! What ranks of a job take to move something between them.
//!
//! In a machine: `collectives.csv`, what NCCL 2.27 and 2.29 took on A100, H100 and B200 with NVSwitch and on a pair of L40S over PCIe, in microseconds by
//! bytes of the whole and ranks, as [AIConfigurator](https://github.com/ai-dynamo/aiconfigurator) measured it (half precision, systems/data at 095f58a5).
//! Between sizes, and between numbers of ranks, it is interpolated by logarithms; beyond them bytes over the largest one's rate. A bus of another
//! generation takes that of the nearest, its rate by the ratio of the specifications.
//!
//! Over machines: NCCL's own model of its algorithms and protocols (`src/graph/tuning.cc` at 01afd20a, of the time of A100), which it chooses by, with the
//! specification of the network for each GPU (`sim::cards`): latency by steps within and between machines, and bytes over what the members of a
//! machine have of its network together.

use crate::capture::work::{Move, Work};
use sim::cards::Card;
use std::sync::OnceLock;

/// A bus between the cards of a machine.
#[derive(Debug, Clone, Copy)]
pub struct Wires {
    bus: &'static str,
    pub title: &'static str,
    /// Its rate beside that of the table.
    share: f64,
    /// Bytes a second between machines, of each GPU.
    network: f64,
}

/// Of a group and an operation the times at the table's sizes, in microseconds.
type Row = (&'static str, &'static str, f64, Vec<f64>);

fn table() -> &'static (Vec<f64>, Vec<Row>) {
    static TABLE: OnceLock<(Vec<f64>, Vec<Row>)> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut lines = include_str!("collectives.csv").lines().map(|line| line.split(',').collect::<Vec<_>>());
        let numbers = |fields: &[&'static str]| fields.iter().filter_map(|field| field.parse().ok()).collect::<Vec<f64>>();
        let sizes = lines.next().map(|head| numbers(&head[3..])).unwrap_or_default();
        let row = |fields: Vec<&'static str>| Some((fields[0], fields[1], fields[2].parse().ok()?, numbers(&fields[3..])));
        (sizes, lines.filter_map(row).collect())
    })
}

/// Between two numbers by logarithms.
fn between(at: f64, (a, of_a): (f64, f64), (b, of_b): (f64, f64)) -> f64 {
    let share = if a == b { 0.0 } else { (at / a).ln() / (b / a).ln() };
    of_a * (of_b / of_a).powf(share.clamp(0.0, 1.0))
}

/// NCCL's latencies in microseconds, of a step by LL, LL128 and Simple: what each begins with, over NVLink, over PCIe, over a network; and the share of the
/// bus that a protocol reaches.
struct Algorithm {
    base: [f64; 3],
    near: [[f64; 3]; 2],
    far: [f64; 3],
    share: [f64; 3],
}

const RING: Algorithm =
    Algorithm { base: [3.6, 10.0, 8.4], near: [[0.47, 1.9, 3.4], [1.0, 2.5, 5.7]], far: [2.7, 4.0, 9.6], share: [0.25, 0.92, 1.0] };
const TREE: Algorithm = Algorithm {
    base: [4.4, 4.4, 0.0],
    near: [[0.52, 1.2, 28.0], [1.0, 1.9, 28.0]],
    far: [5.0, 8.5, 50.0],
    share: [0.9 / 3.8, 0.9 * 0.915, 0.9],
};
/// A ring of Simple waits so many times as long in an all-reduce over machines.
const PLATEAU: f64 = 1.9;

impl Wires {
    pub fn of(card: &Card) -> Wires {
        let (network, speed) = (card.network(), card.speed);
        let (bus, title, of_table) = match (card.nvlink(), card.capability.0) {
            (Some(_), ..=8) => ("nvlink3", "NVLink", 300e9),
            (Some(_), 9) => ("nvlink4", "NVLink", 450e9),
            (Some(_), _) => ("nvlink5", "NVLink", 900e9),
            (None, _) => ("pcie4", "PCIe", 25e9),
        };
        let own = card.nvlink().or(speed.map(|speed| speed.host_bandwidth)).unwrap_or(of_table);
        Wires { bus, title, share: own / of_table, network }
    }

    /// What a collective takes, in seconds.
    pub fn seconds(&self, work: &Work) -> f64 {
        let what = Move::of(work.m.into()).unwrap_or_default();
        let ranks = f64::from(work.n.max(2));
        if is_near(work) { self.near(what, ranks, work.bytes) } else { self.far(what, ranks, f64::from(work.k), work.bytes) }
    }

    /// Within a machine.
    fn near(&self, what: Move, ranks: f64, bytes: f64) -> f64 {
        // Each of two sends the other half.
        let (what, ranks, bytes) = match what {
            Move::Send | Move::Receive => ("all_to_all", 2.0, 2.0 * bytes),
            Move::Broadcast => ("all_gather", ranks, bytes),
            what => (what.name(), ranks, bytes),
        };
        let (sizes, rows) = table();
        let rows: Vec<&Row> = rows.iter().filter(|(bus, of, ..)| *bus == self.bus && *of == what).collect();
        let at_size = |times: &[f64]| {
            let above = sizes.iter().position(|size| *size >= bytes).unwrap_or(sizes.len() - 1).max(1);
            let of_table = between(bytes, (sizes[above - 1], times[above - 1]), (sizes[above], times[above]));
            let of_table = of_table * (bytes / sizes[sizes.len() - 1]).max(1.0);
            // What the least takes is no matter of the rate.
            times[0] + (of_table - times[0]).max(0.0) / self.share
        };
        let least = rows.iter().rev().find(|row| row.2 <= ranks).or(rows.first());
        let most = rows.iter().find(|row| row.2 >= ranks).or(rows.last());
        let (Some(least), Some(most)) = (least, most) else { return 0.0 };
        let of_table = between(ranks, (least.2, at_size(&least.3)), (most.2, at_size(&most.3)));
        // Of a pair alone there is a record of PCIe: a ring of more moves (n - 1) / n of the whole for its half.
        let longer = if most.2 < ranks { 2.0 * (ranks - 1.0) / ranks } else { 1.0 };
        of_table * longer * 1e-6
    }

    /// Over machines.
    fn far(&self, what: Move, ranks: f64, nodes: f64, bytes: f64) -> f64 {
        let local = (ranks / nodes).max(1.0);
        let hardware = usize::from(self.title != "NVLink");
        let ring = |steps: f64, far_steps: f64, plateau: f64| {
            // All that a machine's members have of the network together.
            let bus = self.network * local;
            let of_protocol = |protocol: usize| {
                let near = RING.near[hardware][protocol] * if protocol == 0 { 1.8 } else { 1.0 };
                let latency = RING.base[protocol] + (steps - far_steps) * near + far_steps * RING.far[protocol];
                let latency = latency * if protocol == 2 && bytes >= ranks / 16.0 * 65536.0 { plateau } else { 1.0 };
                latency * 1e-6 + bytes * steps / ranks / (bus * RING.share[protocol])
            };
            (0..3).map(of_protocol).fold(f64::INFINITY, f64::min)
        };
        let tree = || {
            let bus = self.network * local;
            let of_protocol = |protocol: usize| {
                let near = TREE.near[hardware][protocol] * if protocol == 0 { 1.8 } else { 1.0 };
                let latency = TREE.base[protocol] + 2.0 * ((local - 1.0) * near + nodes.log2().floor() * TREE.far[protocol]);
                latency * 1e-6 + bytes * 2.0 / (bus * TREE.share[protocol])
            };
            (0..3).map(of_protocol).fold(f64::INFINITY, f64::min)
        };
        match what {
            Move::AllReduce => ring(2.0 * (ranks - 1.0), 2.0 * (nodes - 1.0), PLATEAU).min(tree()),
            Move::AllGather | Move::ReduceScatter => ring(ranks - 1.0, nodes - 1.0, 1.0),
            Move::Broadcast => ring(ranks, nodes, 1.0),
            Move::Send | Move::Receive => (RING.base[2] + RING.far[2]) * 1e-6 + bytes / self.network,
            // Each rank has its own share of the network, and sends to each of the others.
            Move::AllToAll => (RING.base[2] + RING.far[2]) * 1e-6 + bytes * (ranks - local) / ranks / self.network,
        }
    }
}

/// Whether it stays in a machine.
pub fn is_near(work: &Work) -> bool {
    work.k <= 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::work::WorkKind;

    fn seconds(card: &str, what: Move, ranks: u32, nodes: u32, bytes: f64) -> f64 {
        let work = Work { kind: WorkKind::Collective, m: what as u32, n: ranks, k: nodes, bytes, ..Work::default() };
        Wires::of(&card.parse().unwrap()).seconds(&work)
    }

    #[test]
    fn what_was_measured_is_said_and_more_takes_longer() {
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
        assert!(near(seconds("h100", Move::AllReduce, 8, 1, 536_870_912.0), 2111e-6));
        assert!(near(seconds("a100-80g", Move::ReduceScatter, 4, 1, 8_388_608.0), 66.87e-6));
        // Twice as many as were measured at most.
        assert!(near(seconds("h100", Move::AllGather, 8, 1, 2.0 * 536_870_912.0), 2.0 * 1400e-6));
        for card in ["v100", "a100-80g", "h100", "b200", "rtx-4090", "l40s"] {
            for what in Move::ALL {
                let of = |ranks, nodes, bytes| seconds(card, *what, ranks, nodes, bytes);
                for (ranks, nodes) in [(2, 1), (3, 1), (8, 1), (16, 2), (64, 8), (8, 8)] {
                    let times: Vec<f64> = (10..34).map(|power| of(ranks, nodes, 2f64.powi(power))).collect();
                    assert!(times.iter().all(|time| (1e-6..100.0).contains(time)), "{card} {what:?}: {times:?}");
                    assert!(times.windows(4).all(|two| two[3] > 0.8 * two[0]) && times[23] > 10.0 * times[0], "{card} {what:?}");
                }
                // A network is slower than NVLink.
                assert!(of(8, 8, 1e8) >= of(8, 1, 1e8) || card == "rtx-4090" || card == "l40s", "{card} {what:?}");
            }
        }
    }

    #[test]
    fn a_network_moves_what_its_machine_has() {
        // 3,200 Gb/s for eight GPUs on p5, 400 on p4d: one GPU of each machine has an eighth of that.
        let of = |card, ranks, nodes| seconds(card, Move::AllReduce, ranks, nodes, 8e9);
        let [p5, p4d] = ["p5.48xlarge", "p4d.24xlarge"].map(|card| of(card, 16, 2));
        assert!((7.0..9.0).contains(&(p4d / p5)), "{p4d} and {p5}");
        assert!((0.030..0.045).contains(&p5), "8 GB by 400 GB/s, each twice but for a sixteenth: {p5}");
        assert!((7.0..9.0).contains(&(of("p5.48xlarge", 2, 2) / p5 * 15.0 / 8.0)), "{}", of("p5.48xlarge", 2, 2));
    }
}
