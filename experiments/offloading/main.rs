//! Offloading: what the forward pass keeps, or the optimizer, waits in the host's memory.
//!
//! PyTorch's `save_on_cpu` copies every tensor that autograd saves to the host and back for the backward pass; an optimizer on the CPU keeps its
//! state and a copy of the parameters there. PyTorch in Python runs every cell (`experiments/offloading/step.py`).

use harness::lab::*;

const HOST: Metric = Metric::counted("host", "memory of the host", "B");
const MOVED: Metric = Metric::counted("moved", "copied between host and GPU in a step", "B");

levels! {
    Offloaded "what waits in the host's memory":
    Nothing "" => "everything on the GPU",
    Activations "all that autograd saves, pinned: save_on_cpu(pin_memory=True)" => "save_on_cpu",
    Pageable as "activations-pageable" "the same, not pinned" => "save_on_cpu, not pinned",
    EverySecondBlock as "activations-of-every-second-block" "what every second block saves, pinned" => "save_on_cpu for every second block",
    SecondStream as "activations-second-stream" "all that autograd saves, pinned, copied on a second stream: torchtune's OffloadActivations" => "offloading on a second stream",
    Optimizer "AdamW, with its state and a copy of the parameters, which the CPU updates" => "AdamW on the CPU",
}

cell! { Offloading { model: ModelName, batch: Batch, offloaded: Offloaded, by: By } }
cell! { Trained { model: ModelName, batch: Batch, offloaded: Offloaded, by: By } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("offloading", "Offload to the host")
        .question("What do activations or the optimizer in host memory save on the GPU, what do they take of the host, and is training the same?")
        .hypothesis(
            "`save_on_cpu` moves parameters that autograd saves, too, and copies what is saved twice twice: the host needs more than the GPU \
             loses. AdamW's state is half of what a model itself takes, and a step then moves gradients out and parameters in. Copies \
             change no number, and AdamW computes the same on a CPU up to rounding.",
        )
        .grid(memory())
        .grid(training())
        .shows(Shown::new("Offload activations (`save_on_cpu`)").at(Offloaded::Activations).memory(PEAK))
        .shows(Shown::new("Optimizer on the CPU").at(Offloaded::Optimizer).memory(PEAK))
        .threat("Nothing is timed: a simulated GPU has no PCI Express. `rehearse --what-if` predicts the time of its own form, which leaves parameters on the GPU.")
        .threat("AdamW steps through the parameters one by one (foreach=False) in every cell, so that no temporaries of its own make the peak.")
}

fn memory() -> Grid<Offloading> {
    use Offloaded::*;
    // Set on 23 November 2026, before any figure.
    Grid::new("full-size models", in_python)
        .compare::<Offloaded>()
        .quick_and_full(Offloading::cross(
            "gpt2",
            4,
            [Nothing, Activations, EverySecondBlock, SecondStream, Optimizer],
            By::Pytorch,
        ))
        .quick_and_full(Offloading::cross("vit-l16", 16, [Nothing, Activations, EverySecondBlock, SecondStream], By::Pytorch))
        .quick_and_full(Offloading::cross("resnet50", 32, [Nothing, Activations, Optimizer], By::Pytorch))
        .passes(COUNT)
        .on(CUDA)
        .metrics(&[HOST, MOVED])
        .claim(
            Claim::ours("offload-activations", "save_on_cpu over the forward pass leaves at most half of the peak")
                .on(BY_PYTHON)
                .rule(ratio(PEAK).at(Activations).confirm(at_most(0.5)).refute(at_least(0.7))),
        )
        .claim(
            Claim::new(
                "offload-optimizer",
                "torchao, CPUOffloadOptimizer",
                "an optimizer on the CPU takes its state off the GPU: at least a tenth of the peak",
            )
            .on(BY_PYTHON)
            .rule(ratio(PEAK).at(Optimizer).confirm(at_most(0.9)).refute(at_least(0.97))),
        )
        // Set on 25 November 2026, before any figure of a second stream.
        .claim(
            Claim::new(
                "offload-stream",
                "torchtune, OffloadActivations",
                "copies on a second stream leave at most a tenth more of the peak than save_on_cpu",
            )
            .on(BY_PYTHON)
            .rule(highest(PEAK).at(SecondStream).over_at(Activations).confirm(at_most(1.1)).refute(at_least(1.3))),
        )
        .claim(
            Claim::published(
                "torchtune-offloading",
                "torchtune, README.md, 'Optimization flags'",
                "Llama 3.2 3B on an A100: activation offloading takes 23.1 to 21.8 GiB, and 7,309 to 7,301 tokens a second",
            )
            .setup("The rest of its memory is the model's, which no cell here trains. docs/ecosystem.md has torchtune's own job, rehearsed at each step."),
        )
        .plot(
            bars(PEAK)
                .named("peak")
                .caption("Peak memory of the GPU with something offloaded, against everything on it")
                .by::<ModelName>(),
        )
        .plot(amounts(HOST).named("host").caption("Memory of the host that offloading takes").by::<ModelName>())
}

fn training() -> Grid<Trained> {
    use Offloaded::*;
    Grid::new("the same training", in_python)
        .compare::<Offloaded>()
        .always(Trained::cross("small-gpt", 2, Offloaded::ALL, By::Pytorch))
        .passes(CHECK)
        .on(&[Platform::Cpu, Platform::Gpu])
        .check(|cell| match cell.offloaded {
            Optimizer => equal(1e-6), // another device computes AdamW
            _ => equal(0.0),
        })
        .claim(
            Claim::ours("offload-same", "offloaded activations leave a training step's result as it is, to the bit")
                .on(&[Platform::Gpu, Platform::Python])
                .rule(value(PARAMETER_ERROR).of(|c: &Trained| !matches!(c.offloaded, Nothing | Optimizer)).holds(at_most(0.0))),
        )
        .no_plots()
}

python_test! {
    /// The check of each cell, then with a host that loses a bit of what it is given.
    the_check_sees_a_host_that_rounds_and_an_optimizer_that_does_nothing: "offloading", r#"
def checks():
    of = "model=small-gpt batch=2 by=pytorch offloaded="
    print(*(check(offloading.Training, of + what, of + "nothing", 1e-6 * (what == "optimizer")) for what in everything))

everything = ["activations", "activations-pageable", "activations-of-every-second-block", "activations-second-stream", "optimizer"]
checks()
rounded = lambda tensor: tensor.bfloat16().to(tensor.dtype) if tensor.is_floating_point() else tensor
saved = torch.autograd.graph.save_on_cpu.__init__
def lossy(self, *arguments, **more):
    saved(self, *arguments, **more)
    pack = self.pack_hook
    self.pack_hook = lambda tensor: pack(rounded(tensor))
torch.autograd.graph.save_on_cpu.__init__ = lossy
packed = offloading.OnSecondStream.pack
offloading.OnSecondStream.pack = lambda self, tensor: packed(self, rounded(tensor))
offloading.HostAdamW.step = lambda self: None
checks()
"#, "ok ok ok ok ok\ninvalid invalid invalid invalid invalid\n"
}
