//! Micro-batches under DDP: what is sent between the processes, and what does it cost, where every backward pass reduces and where only the last does?

use super::*;

const MICRO_BATCHES: f64 = 4.0;
/// Bytes of the buckets that a step reduces, over the bytes of the gradients.
const SENT: Metric = Metric::counted("sent", "bytes reduced in a step, relative to the gradients", "1").ratio();

levels! {
    Reduced "which of a step's 4 micro-batches reduces the gradients":
    Every as "every" "each, as DDP does by default" => "every micro-batch reduces",
    Last "the last; the others run under no_sync()" => "no_sync",
}

cell! { Sent { model: ModelName, batch: Batch, cap: Cap, ddp: Way, reduced: Reduced, by: By } }
cell! { Waited { model: ModelName, batch: Batch, cap: Cap, ddp: Way, reduced: Reduced, processes: Processes, threads: Threads, by: By } }
number! { Processes "processes that train together on this machine, over Gloo" }

pub fn grid() -> Grid<Sent> {
    use Way::{Copies, Views};
    // Set on 27 November 2026, before any figure.
    Grid::new("accumulating, counted", in_python)
        .compare::<Reduced>()
        .quick(Sent::cross("gpt-4x128", 8, 25, [Copies, Views], Reduced::ALL, By::Pytorch))
        .full(Sent::cross("gpt2", 4, 25, [Copies, Views], Reduced::ALL, By::Pytorch))
        .full(Sent::cross(["resnet50", "mlp-8x4096"], 32, 25, [Copies, Views], Reduced::ALL, By::Pytorch))
        .smoke(Sent::cross("mlp-4x64", 8, 25, Copies, Reduced::ALL, By::Pytorch))
        .passes(COUNT)
        .on(EVERYWHERE)
        .metrics(&[PEAK, SENT])
        .claim(
            Claim::new(
                "no-sync-sent",
                "PyTorch, Performance Tuning Guide",
                "with gradient accumulation over N steps all-reduce is needed once: under no_sync 4 micro-batches send a quarter",
            )
            .on(BY_PYTHON)
            .rule(ratio(SENT).at(Reduced::Last).holds(within(0.95 / MICRO_BATCHES..=1.05 / MICRO_BATCHES))),
        )
        .claim(
            Claim::ours("no-sync-memory", "no_sync leaves DDP's peak as it is, within a fiftieth")
                .on(BY_PYTHON)
                .rule(ratio(PEAK).at(Reduced::Last).holds(within(0.98..=1.02))),
        )
        .no_plots()
}

pub fn price() -> Grid<Waited> {
    Grid::new("accumulating, several processes", in_python)
        .compare::<Reduced>()
        .quick(Waited::cross("mlp-8x512", 8, 25, Way::Copies, Reduced::ALL, 2, "1", By::Pytorch))
        .full(Waited::cross(["gpt-4x128", "mlp-8x512"], 8, 25, Way::Copies, Reduced::ALL, 2, "1", By::Pytorch))
        .smoke(Waited::cross("mlp-4x64", 8, 25, Way::Copies, Reduced::ALL, 2, "1", By::Pytorch))
        .passes(CHECK | ROUNDS)
        .on(&[Platform::Cpu])
        // Gradients are added in another order.
        .check(|_| equal(1e-5))
        .claim(
            Claim::new(
                "no-sync-faster",
                "Lightning, Speed Up Model Training",
                "blocking synchronisation while gradients accumulate improves training speed: a step of 4 micro-batches takes 0.95 of the time or less",
            )
            .on(BY_PYTHON)
            .rule(ratio(TIME).at(Reduced::Last).confirm(at_most(0.95)).refute(at_least(0.98))),
        )
        .no_plots()
}

python_test! {
    /// With two processes, whose batches differ; a check that does not see one which keeps its gradients to itself would be none.
    #[ignore = "long"]
    micro_batches_give_the_same_gradients_and_the_check_sees_a_process_that_never_reduces: "ddp_buckets", r#"
of = "model=mlp-4x64 batch=8 by=pytorch cap=25 ddp=copies reduced={}"
sent = lambda reduced: memory(ddp_buckets.prepare, of.format(reduced))["sent"]
print(sent("every"), sent("last"))

def checked():
    return check(ddp_buckets.prepare, of.format("last") + " processes=2 threads=1", of.format("every") + " processes=2 threads=1", 1e-5)

print(checked())
ddp_buckets.Together.reduces = lambda self, index: self.reduced == "every"
print(checked())
"#, "4.0 1.0\nok\ninvalid\n"
}
