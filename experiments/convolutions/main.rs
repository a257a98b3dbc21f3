//! Settings of convolutional networks: `channels_last` and cuDNN's auto-tuner, in fp32 and under autocast.
//!
//! PyTorch's tuning guide advises both. A tensor in `channels_last` has the same shape, with the channels of a pixel side by side; cuDNN's kernels for
//! tensor cores, and oneDNN's on a CPU, read it so. The auto-tuner times cuDNN's algorithms for each new shape and keeps the fastest.
//! PyTorch in Python runs every cell (`experiments/convolutions/step.py`).

use harness::lab::*;

const RESERVED: Metric = Metric::counted("reserved_peak", "peak reserved memory", "B");

number! { Batch "images of a step" }
levels! {
    Setting "how convolutions are set up":
    Default "" => "PyTorch's defaults",
    ChannelsLast as "channels-last" "model and images in torch.channels_last" => "channels_last",
    Benchmark "torch.backends.cudnn.benchmark = True" => "cudnn.benchmark",
    Both "channels_last and cudnn.benchmark" => "channels_last and cudnn.benchmark",
}

cell! { Convolved { model: ModelName, batch: Batch, precision: Precision, setting: Setting, by: By } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("convolutions", "`channels_last` and `cudnn.benchmark`")
        .question("How much faster do channels_last and cudnn.benchmark make a convolutional network, and what do they do to its memory?")
        .hypothesis(
            "Kernels for tensor cores read channels last, so that under autocast the copies into that layout are spared; a CPU's kernels have layouts of \
             their own and gain less. Bytes stay as they are, but for the copies. The auto-tuner may choose an algorithm with a larger workspace.",
        )
        .grid(memory())
        .grid(training())
        .shows(Shown::new("`channels_last`").at(Precision::AmpBf16).at(Setting::ChannelsLast).memory(PEAK).time(TIME))
        .threat("cuDNN's own algorithms and workspaces are not simulated while it tunes: no cell of cudnn.benchmark is predicted, a GPU has to measure it.")
        .threat("A CPU has oneDNN, whose layouts and kernels are others than cuDNN's; what it gains says nothing of a GPU.")
}

fn memory() -> Grid<Convolved> {
    use Setting::{ChannelsLast, Default};
    // Set on 27 November 2026, before any figure.
    Grid::new("memory of a step", in_python)
        .compare::<Setting>()
        .quick_and_full(Convolved::cross(
            "resnet50",
            32,
            [Precision::Fp32, Precision::AmpBf16],
            [Default, ChannelsLast],
            By::Pytorch,
        ))
        .full(Convolved::cross("sd-unet", 1, [Precision::Fp32, Precision::AmpBf16], [Default, ChannelsLast], By::Pytorch))
        .passes(COUNT)
        .on(CUDA)
        .metrics(&[RESERVED])
        .claim(
            Claim::ours("channels-last-memory", "channels_last leaves a step's peak as it is, within a twentieth")
                .on(BY_PYTHON)
                .rule(ratio(PEAK).at(ChannelsLast).holds(within(0.95..=1.05))),
        )
        .no_plots()
}

fn training() -> Grid<Convolved> {
    use Precision::{AmpBf16, Fp32};
    use Setting::{Benchmark, Both, ChannelsLast, Default};
    Grid::new("the same training, and its time", in_python)
        .compare::<Setting>()
        .quick(Convolved::cross("resnet50", 2, Fp32, [Default, ChannelsLast], By::Pytorch).on(&[Platform::Cpu]))
        .quick(Convolved::cross("resnet-4x64-bn", 8, [Fp32, AmpBf16], [Default, ChannelsLast], By::Pytorch).on(&[Platform::Cpu]))
        .full(Convolved::cross("resnet50", 128, [Fp32, AmpBf16], Setting::ALL, By::Pytorch).on(&[Platform::Gpu]))
        .full(Convolved::cross("sd-unet", 4, AmpBf16, Setting::ALL, By::Pytorch).on(&[Platform::Gpu]))
        .smoke(Convolved::cross("resnet-1x16-bn", 4, Fp32, [Default, ChannelsLast], By::Pytorch))
        .passes(CHECK | ROUNDS)
        .on(&[Platform::Cpu, Platform::Gpu])
        .check(|cell| if cell.precision == Fp32 { equal(1e-3) } else { equal(5e-2) })
        .claim(
            Claim::new(
                "channels-last-faster",
                "PyTorch, Performance Tuning Guide",
                "channels_last with mixed precision makes convolutional networks faster on tensor cores: 0.95 of the time or less",
            )
            .on(&[Platform::Gpu])
            .rule(ratio(TIME).at(AmpBf16).at(ChannelsLast).confirm(at_most(0.95)).refute(at_least(1.0))),
        )
        .claim(
            Claim::ours(
                "channels-last-cpu",
                "on a CPU channels_last makes convolutional networks faster: 0.95 of the time or less",
            )
            .on(&[Platform::Python])
            .rule(ratio(TIME).at(ChannelsLast).confirm(at_most(0.95)).refute(at_least(1.0))),
        )
        .claim(
            Claim::new(
                "cudnn-benchmark",
                "PyTorch, Performance Tuning Guide",
                "cuDNN's auto-tuner makes convolutional networks faster: 0.98 of the time or less",
            )
            .on(&[Platform::Gpu])
            .rule(ratio(TIME).at(Benchmark).confirm(at_most(0.98)).refute(at_least(1.0))),
        )
        .claim(
            Claim::published(
                "channels-last-apex",
                "PyTorch, Channels Last Memory Format tutorial",
                "ResNet-50 with mixed precision on one GPU: more than 22 % faster in channels_last",
            )
            .rule(ratio(TIME).at(ModelName("resnet50")).at(AmpBf16).at([ChannelsLast, Both]).reproduces(1.0 / 1.22))
            .setup("Published for Apex's fp16 on a V100; here bfloat16 by torch.autocast."),
        )
        .no_plots()
}

python_test! {
    /// Each cell's check, what lies in which layout, and a network whose images lose a channel.
    both_layouts_give_the_same_gradients_and_the_check_sees_another_image: "convolutions", r#"
of = "model=resnet-1x16-bn batch=4 precision=fp32 by=pytorch setting="
def checks():
    print(*(check(convolutions.Training, of + setting, of + "default", 1e-4) for setting in ("channels-last", "benchmark", "both")))

checks()
step = lab._set_up(convolutions.Training, of + "both", lab.Bench(torch.device("cpu"), seed=1, threads=1))
last = lambda tensor: tensor.is_contiguous(memory_format=torch.channels_last)
print(last(step.batch[0]), all(last(p) for p in step.model.parameters() if p.dim() == 4), step.tunes)
laid_out = convolutions.laid_out
convolutions.laid_out = lambda model, batch: laid_out(model, [tensor * tensor.new_tensor([1, 1, 0]).view(3, 1, 1) if tensor.dim() == 4 else tensor for tensor in batch])
checks()
"#, "ok ok ok\nTrue True True\ninvalid ok invalid\n"
}
