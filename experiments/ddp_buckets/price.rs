//! Are the gradients the same, and what does it cost?

use super::*;

cell! { Price { model: ModelName, batch: Batch, cap: Cap, ddp: Way, by: By } }

pub fn grid() -> Grid<Price> {
    Grid::new("the same gradients, and the price", in_python)
        .compare::<Way>()
        .quick(Price::cross("gpt-4x128", 4, 25, Way::ALL, By::Pytorch))
        .quick(Price::cross("mlp-8x512", 4, [1, 100], Way::ALL, By::Pytorch).passes(CHECK))
        .full(Price::cross("gpt2", 4, [25, 1, 100], Way::ALL, By::Pytorch))
        .full(Price::cross(["resnet50", "mlp-8x4096"], 32, 25, Way::ALL, By::Pytorch))
        .smoke(Price::cross("mlp-4x64", 8, 25, [Way::Nothing, Way::Copies], By::Pytorch))
        .passes(CHECK | ROUNDS)
        .on(&[Platform::Cpu, Platform::Gpu])
        // Alone, every gradient is multiplied by 1 and copied. cuBLAS and cuDNN may still choose other kernels in another process.
        .check(|_| equal(1e-6))
        .no_plots()
}

python_test! {
    /// Each cell's check, what can be worked out by hand of its memory, and outputs that DDP halves.
    #[ignore = "long"]
    buckets_are_what_can_be_worked_out_by_hand_and_the_check_sees_other_gradients: "ddp_buckets", r#"
import gc
gc.freeze()

of = "model=mlp-4x64 batch=4 by=pytorch cap={} ddp={}"
def checks():
    print(*(check(ddp_buckets.prepare, of.format(cap, way), of.format(cap, "none"), 1e-6) for cap in (1, 100) for way in ("copies", "views")))

checks()
parameters = 4 * (4 * (64 * 64 + 64) + 64 * 10 + 10)
batch = 8 * 64 * 4 + 8 * 8
def live(moment, way):
    return memory(ddp_buckets.prepare, f"model=mlp-4x64 batch=8 by=pytorch cap=25 moment={moment} ddp={way}")
print(live("load", "none")["live"] == parameters + batch, live("load", "copies")["live"] == 2 * parameters + batch)
# A thread of DDP's may have the loss's four bytes for a moment longer.
print(*(round(live(moment, way)["extra"], 3) for moment in ("load", "1-backward", "2-rebuilt", "3-backward") for way in ("copies", "views")))
forward = ddp_buckets.DistributedDataParallel.forward
ddp_buckets.DistributedDataParallel.forward = lambda self, inputs: forward(self, inputs) / 2
checks()
"#, "ok ok ok ok\nTrue True\n1.0 1.0 1.0 0.0 1.0 1.0 1.0 0.0\ninvalid invalid invalid invalid\n"
}
