//! Pinned memory: page-locked host memory, which a GPU's copy engine reads by itself.
//!
//! Guide 000 says that with it there is no copy at all, 002 and 004 that transfers and training get faster, the more the larger the data,
//! for more (and locked) host memory, and that small data and a CPU gain nothing. PyTorch's tutorial on pin_memory adds that pinning a
//! tensor just to send it is slower than sending it, and that an unsynchronised read of a `non_blocking` copy gives old values.
//!
//! Claims: pin-no-copy, pin-faster, pin-larger, pin-training, pin-small, pin-cpu-only, pin-host-memory, pin-freeze. Published figures:
//! pin-nonblocking, pin-h2d-gen5, pin-2x2.

use anyhow::{Context, Result, bail};
use std::process::ExitCode;
use std::sync::Arc;
use tch::nn::{Optimizer, OptimizerConfig, Sgd};
use tch::{Device, Kind, Reduction, Tensor};
use vramlab::machine::total_memory;
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::models::Model;
use vramlab::protocol::*;
use vramlab::torch::transfer::{Event, Next, Prefetcher, Ring, SideStream, Source, Stream, copy, host_memory, pinned};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

/// Bytes that the device's tensors take for each byte that was sent.
const DEVICE_BYTES: Metric =
    Metric { name: "device_bytes", label: "device bytes for each byte sent", unit: "1", pass: Pass::Memory };
const LOCKED: Metric = Metric { name: "locked", label: "locked host memory", unit: "B", pass: Pass::Memory };
const LOCKED_FOR_EACH: Metric =
    Metric { name: "locked_for_each", label: "locked bytes for each byte of data", unit: "1", pass: Pass::Memory };
const LOCKED_SHARE: Metric =
    Metric { name: "locked_share", label: "locked share of the machine's memory", unit: "1", pass: Pass::Memory };
const WARNED: Metric = Metric { name: "warned", label: "warnings that pinning does nothing", unit: "1", pass: Pass::Time };
const RAISED: Metric = Metric { name: "raised", label: "refused", unit: "1", pass: Pass::Check };
const HOST_ERROR: Metric =
    Metric { name: "values_error", label: "error of the values that were read", unit: "1", pass: Pass::Check };

pub const PROTOCOL: Protocol = Protocol {
    name: "pin_memory",
    title: "Pinned memory and asynchronous copies",
    question: "What does page-locked memory gain for copies and for training, by size, and what does it cost?",
    hypothesis: "The copy engine reads locked pages at the link's speed; from pageable memory the driver first copies into locked pages of \
                 its own, which costs about half of the bandwidth from some MiB on. Locking is slow, so it pays for buffers that are \
                 reused only. A training gains where the link is its bottleneck.",
    factors: &[
        Factor {
            name: "memory",
            meaning: "host memory",
            levels: &[
                Level { name: "pageable", meaning: "ordinary memory" },
                Level { name: "pinned", meaning: "page-locked, allocated once and reused" },
            ],
        },
        Factor { name: "direction", meaning: "direction of the copy", levels: &[] },
        Factor {
            name: "call",
            meaning: "copy call",
            levels: &[
                Level { name: "blocking", meaning: "`copy_`: the calling thread waits for its end" },
                Level { name: "non-blocking", meaning: "`copy_` with non_blocking" },
            ],
        },
        Factor { name: "bytes", meaning: "bytes", levels: &[] },
        Factor {
            name: "recipe",
            meaning: "how a batch gets to the device",
            levels: &[
                Level { name: "pageable", meaning: "`x.to(device)`" },
                Level { name: "pageable-nonblocking", meaning: "`x.to(device, non_blocking)`" },
                Level { name: "pin-inline", meaning: "`x.pin_memory().to(device, non_blocking)`" },
                Level { name: "staged", meaning: "copied into a reused pinned buffer, then sent" },
                Level { name: "pinned", meaning: "already lies in pinned memory, `to(device)`" },
                Level { name: "pinned-nonblocking", meaning: "in pinned memory, `to(device, non_blocking)`" },
                Level { name: "prefetched", meaning: "pinned, and copied on a side stream under the step before" },
            ],
        },
        Factor {
            name: "bound",
            meaning: "what limits the training",
            levels: &[
                Level { name: "transfer", meaning: "a batch takes longer to send than to train on" },
                Level { name: "even", meaning: "sending and training take about as long" },
                Level { name: "compute", meaning: "sending is a small part of the step" },
                Level { name: "small-data", meaning: "guide 004's own example: 100 samples of 3 numbers in batches of 10" },
            ],
        },
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples in a batch", levels: &[] },
        Factor { name: "buffers", meaning: "batches that are kept in locked memory", levels: &[] },
        Factor {
            name: "read",
            meaning: "how a result is read back",
            levels: &[
                Level { name: "synchronised", meaning: "`non_blocking` into pinned memory, then the stream is waited for" },
                Level { name: "unsynchronised", meaning: "`non_blocking` into pinned memory, and read at once" },
                Level { name: "pageable", meaning: "`non_blocking` into pageable memory, and read at once" },
            ],
        },
        Factor { name: "pinning", meaning: "pin_memory", levels: &[] },
        Factor {
            name: BY,
            meaning: "whose loader",
            levels: &[
                Level { name: "vramlab", meaning: "this project" },
                Level { name: "pytorch", meaning: "torch.utils.data.DataLoader" },
            ],
        },
    ],
    grids: &[
        copies(&[Profile::Full], &[TO_DEVICE, CALLS, axis("bytes", SIZES), MEMORY]),
        copies(&[Profile::Full], &[FROM_DEVICE, CALLS, axis("bytes", &["65536", "1048576", "16777216", "268435456"]), MEMORY]),
        copies(&[Profile::Quick], &[TO_DEVICE, axis("call", &["blocking"]), axis("bytes", &["1048576", "16777216"]), MEMORY]),
        copies(&[Profile::Smoke], &[TO_DEVICE, axis("call", &["blocking"]), axis("bytes", &["1048576"]), MEMORY]),
        sending(&[Profile::Full], &[axis("bytes", &["1048576", "16777216", "268435456"]), SENT]),
        sending(&[Profile::Quick], &[axis("bytes", &["16777216"]), axis("recipe", &["pageable", "pin-inline"])]),
        training(
            &[Profile::Full],
            &[axis("bound", &["transfer"]), axis("model", &["mlp-1x64"]), axis("batch", &["262144"]), TRAINED],
        ),
        training(&[Profile::Full], &[axis("bound", &["even"]), axis("model", &["mlp-1x1024"]), axis("batch", &["16384"]), TRAINED]),
        training(
            &[Profile::Full],
            &[axis("bound", &["compute"]), axis("model", &["mlp-8x4096"]), axis("batch", &["4096"]), TRAINED],
        ),
        training(
            &[Profile::Full, Profile::Quick],
            &[axis("bound", &["small-data"]), axis("model", &["mlp-1x3"]), axis("batch", &["10"]), SMALL],
        ),
        locked(&[Profile::Full], &[axis("bytes", &["1048576", IMAGES, "1073741824"]), axis("buffers", &["1"]), MEMORY]),
        locked(&[Profile::Full], &[axis("bytes", &[IMAGES]), axis("buffers", &["4", "16"]), MEMORY]),
        locked(&[Profile::Quick, Profile::Smoke], &[axis("bytes", &[IMAGES]), axis("buffers", &["1", "4"]), MEMORY]),
        Grid {
            name: "an unsynchronised read",
            profiles: &[Profile::Full, Profile::Quick],
            studied: "read",
            axes: &[axis("bytes", &["67108864"]), axis("read", &["synchronised", "unsynchronised", "pageable"])],
            passes: &[Pass::Check],
            only_on: &[Platform::Gpu],
        },
        without_gpu(&[Profile::Full, Profile::Quick], &[axis(BY, &["pytorch"]), PINNING], &[Pass::Check, Pass::Time]),
        without_gpu(&[Profile::Full, Profile::Quick, Profile::Smoke], &[axis(BY, &["vramlab"]), PINNING], &[Pass::Check]),
    ],
    metrics: &[BANDWIDTH, LINK_SHARE, TIME, DEVICE_BYTES, LOCKED, LOCKED_FOR_EACH, LOCKED_SHARE, HOST_ERROR, WARNED, RAISED],
    checks: &[
        Check { when: "by=vramlab pinning=on", expect: Relation::Raises { message: "there is no CUDA device" } },
        Check { when: "read=unsynchronised", expect: Relation::Differs { at_least: 0.25, at_most: 1.0 } },
        // Copies are exact; the same kernels train on the same numbers.
        Check { when: "", expect: Relation::Equal { tolerance: 1e-6 } },
    ],
    claims: &[
        Claim {
            id: "pin-no-copy",
            from: "000",
            text: "with pinned memory there is no copy from CPU to GPU, the GPU reads it directly",
            judged_on: &[Platform::Gpu],
            rule: Rule::Value {
                metric: DEVICE_BYTES.name,
                of: "memory=pinned",
                confirm: Bound::AtMost(0.5),
                refute: Bound::AtLeast(0.98),
            },
            meaning: Meaning {
                confirmed: "The device takes no memory of its own for what it is sent.",
                refuted: "There is a copy: after `.to(device)` the device holds {effect} bytes for each byte sent. What pinning saves is the \
                          driver's own copy on the host, not this one.",
                depends: "The device takes no memory of its own where {where}.",
                inconclusive: "The device takes {effect} bytes for each byte sent.",
            },
        },
        Claim {
            id: "pin-faster",
            from: "002 004",
            text: "transfers from pinned memory are faster",
            judged_on: &[Platform::Gpu],
            rule: Rule::Ratio {
                metric: BANDWIDTH.name,
                of: "direction=to-device bytes=1048576|4194304|16777216|67108864|268435456|1073741824 memory=pinned",
                confirm: Bound::AtLeast(1.20),
                refute: Bound::AtMost(1.02),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "Batches that a loader writes into pinned buffers that it reuses get to the GPU at {effect} of the bandwidth of \
                            pageable ones. Turn pinning on where batches are sent at every step.",
                refuted: "Pinned buffers are sent no faster here ({effect}); look whether the link or the host's memory is the limit.",
                depends: "It is faster where {where}.",
                inconclusive: "The difference ({effect}) is too small or too uneven here to promise it.",
            },
        },
        Claim {
            id: "pin-larger",
            from: "004",
            text: "the larger the data, the larger the gain from pinning",
            judged_on: &[Platform::Gpu],
            rule: Rule::Trend {
                metric: BANDWIDTH.name,
                along: "bytes",
                of: "direction=to-device memory=pinned",
                confirm: Bound::AtLeast(0.8),
                refute: Bound::AtMost(0.8),
            },
            meaning: Meaning {
                confirmed: "The gain grows with the size of what is sent: large batches profit most.",
                refuted: "The gain does not simply grow with size (rank correlation {effect}): it has its best sizes, which the plot shows.",
                depends: "The gain grows with size where {where}.",
                inconclusive: "Whether the gain grows with size cannot be told from these rounds (rank correlation {effect}).",
            },
        },
        Claim {
            id: "pin-training",
            from: "004",
            text: "training gets faster with pinned memory",
            judged_on: &[Platform::Gpu],
            rule: Rule::Ratio {
                metric: TIME.name,
                of: "bound=transfer|even|compute recipe=pinned-nonblocking",
                confirm: Bound::AtMost(1.0 / 1.05),
                refute: Bound::AtLeast(1.0 / 1.05),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "An epoch takes {effect} of its time without pinning.",
                refuted: "Copies are too small a part of these steps: an epoch takes {effect} of its time without pinning.",
                depends: "It pays where {where}: only a training that waits for the link gains from a faster link.",
                inconclusive: "The gain ({effect}) is about as large as the threshold.",
            },
        },
        Claim {
            id: "pin-small",
            from: "004",
            text: "there is no gain on small data",
            judged_on: &[Platform::Gpu],
            rule: Rule::Ratio {
                metric: TIME.name,
                of: "bound=small-data recipe=pinned-nonblocking",
                confirm: Bound::Within(0.95, 1.05),
                refute: Bound::AtMost(0.95),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "A small data set may be left in ordinary memory: {effect}.",
                refuted: "Even small data gains: {effect}; waiting for each copy costs more than the bytes do.",
                depends: "There is no gain where {where}.",
                inconclusive: "The epoch's time changes by {effect}, not clearly within 5 %.",
            },
        },
        Claim {
            id: "pin-cpu-only",
            from: "004",
            text: "pinning gains nothing without a GPU",
            judged_on: &[Platform::Python],
            rule: Rule::All(&[
                Rule::Value {
                    metric: WARNED.name,
                    of: "by=pytorch pinning=on",
                    confirm: Bound::AtLeast(1.0),
                    refute: Bound::AtMost(0.0),
                },
                Rule::Ratio {
                    metric: TIME.name,
                    of: "by=pytorch pinning=on",
                    confirm: Bound::Within(0.95, 1.05),
                    refute: Bound::AtMost(0.95),
                    scope: None,
                },
            ]),
            meaning: Meaning {
                confirmed: "PyTorch's DataLoader warns and does nothing: leave pin_memory off without a GPU.",
                refuted: "Something changes all the same: {effect}.",
                depends: "Nothing is gained where {where}.",
                inconclusive: "The loader warns; its time changes by {effect}, not clearly within 5 %.",
            },
        },
        Claim {
            id: "pin-refused",
            from: "",
            text: "this project's pinned memory is refused without a GPU, with the reason",
            judged_on: &[Platform::Cpu],
            rule: Rule::Value {
                metric: RAISED.name,
                of: "by=vramlab pinning=on",
                confirm: Bound::AtLeast(1.0),
                refute: Bound::AtMost(0.0),
            },
            meaning: Meaning {
                confirmed: "Asking for pinned memory without a GPU is an error that says so, not a silent copy.",
                refuted: "It is granted without a GPU.",
                depends: "It is refused where {where}.",
                inconclusive: "It is neither refused nor granted.",
            },
        },
        Claim {
            id: "pin-host-memory",
            from: "004",
            text: "pinning takes more host memory, and locks it",
            judged_on: &[Platform::Gpu],
            rule: Rule::Value {
                metric: LOCKED_FOR_EACH.name,
                of: "memory=pinned",
                confirm: Bound::AtLeast(1.0),
                refute: Bound::AtMost(0.99),
            },
            meaning: Meaning {
                confirmed: "Each byte of a pinned buffer locks {effect} bytes: PyTorch rounds each buffer up to a power of two. A batch just \
                            above one (64 images: 36.75 MiB take 64) wastes nearly half.",
                refuted: "Less is locked than the data takes: {effect}.",
                depends: "It locks more where {where}.",
                inconclusive: "{effect} bytes are locked for each byte of data.",
            },
        },
        Claim {
            id: "pin-freeze",
            from: "004",
            text: "with little memory, pinning can freeze the machine",
            judged_on: &[],
            // Nothing judges it: see its meaning.
            rule: Rule::All(&[]),
            meaning: Meaning {
                confirmed: "It froze.",
                refuted: "It did not freeze.",
                depends: "It froze where {where}.",
                inconclusive: "it is not provoked, because it would endanger the machine that it runs on. The table shows which share of \
                               memory a number of pinned batches locks: locked pages cannot be swapped out.",
            },
        },
    ],
    published: &[
        Published {
            id: "pin-nonblocking",
            source: "PyTorch's pin_memory tutorial",
            figure: "x.pin_memory().to(device, non_blocking) takes up to 2x the time of x.to(device)",
            judged_on: &[Platform::Gpu],
            rule: Some(Rule::Ratio {
                metric: TIME.name,
                of: "recipe=pin-inline bytes=1048576|16777216|268435456",
                confirm: Bound::Within(1.02, 2.2),
                refute: Bound::AtMost(1.0),
                scope: None,
            }),
            setup: "The tutorial's machine is not named; 'up to' is read as slower at every size and 2.2x at most.",
        },
        Published {
            id: "pin-stale",
            source: "PyTorch's pin_memory tutorial",
            figure: "an unsynchronised read of a non_blocking copy to the host gives stale data",
            judged_on: &[Platform::Gpu],
            rule: Some(Rule::Value {
                metric: HOST_ERROR.name,
                of: "read=unsynchronised",
                confirm: Bound::AtLeast(0.25),
                refute: Bound::AtMost(0.0),
            }),
            setup: "All values are stale where the error is 0.5: the host held ones, the device twos.",
        },
        Published {
            id: "pin-h2d-gen5",
            source: "nvbandwidth logs",
            figure: "55.4 GB/s from host to device over PCI Express generation 5 x16",
            judged_on: &[Platform::Gpu],
            rule: Some(published_value(&BANDWIDTH, "direction=to-device memory=pinned call=non-blocking bytes=1073741824", 55.4e9)),
            setup: "nvbandwidth copies without PyTorch. Comparable on a link of generation 5 with 16 lanes: see the share of the link.",
        },
        Published {
            id: "pin-d2h-gen5",
            source: "nvbandwidth logs",
            figure: "55.2 GB/s from device to host over PCI Express generation 5 x16",
            judged_on: &[Platform::Gpu],
            rule: Some(published_value(&BANDWIDTH, "direction=to-host memory=pinned call=non-blocking bytes=268435456", 55.2e9)),
            setup: "As for the other direction.",
        },
        Published {
            id: "pin-2x2",
            source: "ml-engineering, A100",
            figure: "pinned and non-blocking 0.459, pinned 0.522, non-blocking 0.658, neither 0.646: 0.71, 0.81 and 1.02 of neither",
            judged_on: &[Platform::Gpu],
            rule: Some(Rule::All(&[
                published_ratio(&TIME, "bound=transfer recipe=pinned-nonblocking", 0.711),
                published_ratio(&TIME, "bound=transfer recipe=pinned", 0.808),
                published_ratio(&TIME, "bound=transfer recipe=pageable-nonblocking", 1.019),
            ])),
            setup: "There a loader with workers fills the batches; here they lie ready, so the copy is a larger part of the step.",
        },
    ],
    plots: &[
        Plot {
            name: "bandwidth",
            caption: "Bandwidth from host to device by the bytes of one copy",
            of: "direction=to-device",
            metric: BANDWIDTH.name,
            kind: PlotKind::Lines { x: "bytes", series: &["memory", "call"] },
        },
        Plot {
            name: "sending",
            caption: "Time to send a tensor against `x.to(device)` from ordinary memory",
            of: "recipe=pageable|pin-inline|staged|pinned bytes=1048576|16777216|268435456",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["bytes"] },
        },
        Plot {
            name: "training",
            caption: "Time of an epoch against batches from ordinary memory",
            of: "bound=transfer|even|compute|small-data",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["bound"] },
        },
        Plot {
            name: "without-gpu",
            caption: "Time of an epoch of PyTorch's DataLoader without a GPU, pin_memory on against off",
            of: "by=pytorch",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["by"] },
        },
    ],
    threats: &[
        "Batches lie ready in their buffers: filling them is the loader's work and is left out, so that only the way to the device differs.",
        "PyTorch's allocator of pinned memory keeps freed blocks, so pinning inline locks anew only when its cache has no block of that size.",
        "On a machine of several sockets the bandwidth depends on which of them holds the buffer.",
    ],
};

const SIZES: &[&str] = &["4096", "65536", "1048576", "4194304", "16777216", "67108864", "268435456", "1073741824"];
/// A batch of 64 images of 3 x 224 x 224 in fp32.
const IMAGES: &str = "38535168";
const TO_DEVICE: Axis = axis("direction", &["to-device"]);
const FROM_DEVICE: Axis = axis("direction", &["to-host"]);
const CALLS: Axis = axis("call", &["blocking", "non-blocking"]);
const MEMORY: Axis = axis("memory", &["pageable", "pinned"]);
const SENT: Axis = axis("recipe", &["pageable", "pin-inline", "staged", "pinned"]);
const TRAINED: Axis =
    axis("recipe", &["pageable", "pageable-nonblocking", "pinned", "pinned-nonblocking", "prefetched", "pin-inline"]);
const SMALL: Axis = axis("recipe", &["pageable", "pinned-nonblocking"]);
const PINNING: Axis = axis("pinning", &["off", "on"]);

const fn copies(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "copies", profiles, studied: "memory", axes, passes: &[Pass::Check, Pass::Time], only_on: &[Platform::Gpu] }
}

const fn sending(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid {
        name: "sending a tensor",
        profiles,
        studied: "recipe",
        axes,
        passes: &[Pass::Check, Pass::Time],
        only_on: &[Platform::Gpu],
    }
}

const fn training(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "an epoch", profiles, studied: "recipe", axes, passes: &[Pass::Check, Pass::Time], only_on: &[Platform::Gpu] }
}

const fn locked(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "memory", profiles, studied: "memory", axes, passes: &[Pass::Memory], only_on: &[Platform::Gpu, Platform::Dry] }
}

const fn without_gpu(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    Grid { name: "without a GPU", profiles, studied: "pinning", axes, passes, only_on: &[Platform::Cpu] }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    if cell.get("pinning").is_some() {
        return Ok(Box::new(WithoutGpu { pinning: cell.level("pinning")? == "on", batch: None }));
    }
    if cell.get("bound").is_some() {
        return Ok(Box::new(Epoch::prepare(cell, bench)?));
    }
    let elements = cell.number("bytes")? / 4;
    if let Some(read) = cell.get("read") {
        return Ok(Box::new(Read::prepare(read, elements, bench)?));
    }
    let data = || Tensor::f_randn([elements], (Kind::Float, Device::Cpu));
    if let Some(buffers) = cell.get("buffers") {
        let pin = cell.level("memory")? == "pinned";
        let buffers = buffers.parse().context("buffers is a number")?;
        return Ok(Box::new(Held::prepare(pin, elements, buffers, bench)?));
    }
    if let Some(recipe) = cell.get("recipe") {
        let in_pinned = matches!(recipe, "pinned" | "staged").then(|| pinned(&[elements], Kind::Float)).transpose()?;
        let host = data()?;
        let mut step = Send { device: bench.device, recipe: recipe.to_string(), host, buffer: in_pinned, sent: None };
        if let (Some(buffer), "pinned") = (&mut step.buffer, recipe) {
            copy(buffer, &step.host, false)?;
        }
        return Ok(Box::new(step));
    }
    let mut host = if cell.level("memory")? == "pinned" {
        pinned(&[elements], Kind::Float)?
    } else {
        Tensor::f_empty([elements], (Kind::Float, Device::Cpu))?
    };
    copy(&mut host, &data()?, false)?;
    let device = host.f_to(bench.device)?;
    let to_device = cell.level("direction")? == "to-device";
    // What is copied must change what was there, or a copy that does nothing would pass the check.
    let (mut host, mut device) = (host, device);
    let _ = if to_device { device.f_zero_()? } else { host.f_zero_()? };
    Ok(Box::new(Copy { host, device, to_device, non_blocking: cell.level("call")? == "non-blocking" }))
}

/// A copy between two buffers that are there already.
struct Copy {
    host: Tensor,
    device: Tensor,
    to_device: bool,
    non_blocking: bool,
}

impl Step for Copy {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        match self.to_device {
            true => copy(&mut self.device, &self.host, self.non_blocking)?,
            false => copy(&mut self.host, &self.device, self.non_blocking)?,
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Stream::current(self.device.device())?.synchronize()?;
        let received = if self.to_device { self.device.f_to(Device::Cpu)? } else { self.host.f_detach_copy()? };
        Ok(vec![Quantity { name: "values", tensors: vec![received] }])
    }

    fn link_bytes(&self) -> f64 {
        self.host.numel() as f64 * 4.0
    }
}

/// Sends a tensor as a training loop does: memory on the device is taken anew each time.
struct Send {
    device: Device,
    recipe: String,
    host: Tensor,
    buffer: Option<Tensor>,
    sent: Option<Tensor>,
}

impl Step for Send {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        self.sent = None;
        let send = |host: &Tensor, non_blocking| host.f_to_device_(self.device, Kind::Float, non_blocking, true);
        self.sent = Some(match (self.recipe.as_str(), &mut self.buffer) {
            ("pageable", _) => send(&self.host, false)?,
            ("pin-inline", _) => send(&pin(&self.host)?, true)?,
            ("staged", Some(buffer)) => {
                copy(buffer, &self.host, false)?;
                let sent = send(buffer, true)?;
                // The buffer is filled again by the next step.
                Stream::current(self.device)?.event()?.synchronize()?;
                sent
            }
            ("pinned", Some(buffer)) => send(buffer, true)?,
            (other, _) => bail!("'{other}' is no way to send a tensor"),
        });
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let sent = self.sent.as_ref().context("nothing was sent")?;
        Ok(vec![Quantity { name: "values", tensors: vec![sent.f_to(Device::Cpu)?] }])
    }

    fn link_bytes(&self) -> f64 {
        self.host.numel() as f64 * 4.0
    }
}

/// A new pinned tensor with the same values, as `pin_memory()` gives.
fn pin(host: &Tensor) -> Result<Tensor> {
    let mut locked = pinned(&host.size(), host.kind())?;
    copy(&mut locked, host, false)?;
    Ok(locked)
}

/// Batches in host memory, of which one is sent.
struct Held {
    device: Device,
    buffers: Vec<Tensor>,
    on_gpu: bool,
}

impl Held {
    fn prepare(pin: bool, elements: i64, buffers: usize, bench: &Bench) -> Result<Held> {
        let buffer = || match pin {
            true => Ok(pinned(&[elements], Kind::Float)?),
            false => Ok(Tensor::f_empty([elements], (Kind::Float, Device::Cpu))?),
        };
        let buffers = (0..buffers).map(|_| buffer()).collect::<Result<Vec<_>>>()?;
        Ok(Held { device: bench.device, buffers, on_gpu: bench.platform == Platform::Gpu })
    }
}

impl Step for Held {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        let before = probe.live();
        let sent = self.buffers[0].f_to_device_(self.device, Kind::Float, true, true)?;
        let bytes = sent.numel() as f64 * 4.0;
        let grown = probe.live() - before;
        probe.figure(&DEVICE_BYTES, grown as f64 / bytes);
        let locked = host_memory()?.locked as f64;
        probe.figure(&LOCKED, locked);
        probe.figure(&LOCKED_FOR_EACH, locked / (bytes * self.buffers.len() as f64));
        // What is predicted does not depend on the machine that it is predicted on.
        if let Some(total) = total_memory().filter(|_| self.on_gpu) {
            probe.figure(&LOCKED_SHARE, locked / total as f64);
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        bail!("this is about memory alone")
    }
}

/// Host batches in their order, from a ring that is refilled with the same data: what a loader would do meanwhile is left out.
pub struct Ready {
    pub ring: Ring<Vec<Tensor>, Event>,
    /// Batches that are still to come.
    pub left: usize,
}

impl Source for Ready {
    type Host = Vec<Tensor>;
    type Done = Event;

    fn next(&mut self, _: bool) -> Result<Next<Vec<Tensor>>> {
        if self.left == 0 {
            return Ok(Next::End);
        }
        self.left -= 1;
        Ok(self.ring.take()?.map_or(Next::End, Next::Batch))
    }

    fn give_back(&mut self, batch: Vec<Tensor>, until: Arc<Event>) {
        self.ring.give_back(batch, Some(until));
    }
}

/// Different batches in host memory; an epoch goes through them several times.
const BUFFERS: usize = 4;

/// An epoch of a training whose batches lie in host memory.
struct Epoch {
    model: Model,
    optimizer: Optimizer,
    recipe: String,
    batches: Vec<Tensor>,
    targets: Vec<Tensor>,
    ring: Ring<Vec<Tensor>, Event>,
    steps: usize,
    device: Device,
    samples: i64,
}

impl Epoch {
    fn prepare(cell: &Cell, bench: &Bench) -> Result<Epoch> {
        let (model, samples, recipe) =
            (Model::named(cell.level("model")?, bench.device)?, cell.number("batch")?, cell.level("recipe")?);
        let optimizer = Sgd::default().build(&model.store, 1e-3)?;
        let (mut batches, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..BUFFERS {
            let batch = model.batch(samples);
            let host = batch.inputs.f_to(Device::Cpu)?;
            batches.push(if recipe.starts_with("pinned") || recipe == "prefetched" { pin(&host)? } else { host });
            targets.push(batch.targets);
        }
        let ring = Ring::of(batches.iter().map(|batch| vec![batch.shallow_clone()]));
        // Guide 004's example has ten batches in an epoch.
        let steps = if cell.level("bound")? == "small-data" { 10 } else { 4 * BUFFERS };
        Ok(Epoch { model, optimizer, recipe: recipe.to_string(), batches, targets, ring, steps, device: bench.device, samples })
    }

    fn train(&mut self, inputs: &Tensor, step: usize) -> Result<()> {
        self.optimizer.zero_grad();
        let outputs = self.model.forward(inputs, true);
        self.model.loss(&outputs, &self.targets[step % BUFFERS], Reduction::Mean).f_backward()?;
        self.optimizer.step();
        Ok(())
    }
}

impl Step for Epoch {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        if self.recipe == "prefetched" {
            let source = Ready { ring: self.ring.clone(), left: self.steps };
            let mut batches = Prefetcher::new(source, SideStream::new(self.device)?);
            let mut step = 0;
            while let Some(batch) = batches.next()? {
                self.train(&batch[0], step)?;
                step += 1;
            }
            return Ok(());
        }
        for step in 0..self.steps {
            let host = &self.batches[step % BUFFERS];
            let non_blocking = self.recipe.ends_with("nonblocking") || self.recipe == "pin-inline";
            let locked = if self.recipe == "pin-inline" { Some(pin(host)?) } else { None };
            let inputs = locked.as_ref().unwrap_or(host).f_to_device_(self.device, host.kind(), non_blocking, true)?;
            self.train(&inputs, step)?;
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "gradient", tensors: self.model.gradients() }])
    }

    fn least_flops(&self) -> f64 {
        self.model.least_training_flops(self.samples) * self.steps as f64
    }
}

/// A result that is read back while the device is still busy with what comes before it.
struct Read {
    device: Tensor,
    host: Tensor,
    busy: Tensor,
    wait: bool,
    seen: Option<Tensor>,
}

impl Read {
    fn prepare(read: &str, elements: i64, bench: &Bench) -> Result<Read> {
        let mut host = match read {
            "pageable" => Tensor::f_empty([elements], (Kind::Float, Device::Cpu))?,
            _ => pinned(&[elements], Kind::Float)?,
        };
        let _ = host.f_fill_(1.0)?;
        let device = Tensor::f_full([elements], 2.0, (Kind::Float, bench.device))?;
        let busy = Tensor::f_randn([4096, 4096], (Kind::Float, bench.device))?;
        Ok(Read { device, host, busy, wait: read == "synchronised", seen: None })
    }
}

impl Step for Read {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        // Some 100 ms of work for the device come before the copy; reading the host's 64 MiB takes 10.
        for _ in 0..40 {
            self.busy = self.busy.f_matmul(&self.busy)?.f_tanh()?;
        }
        copy(&mut self.host, &self.device, true)?;
        let stream = Stream::current(self.device.device())?;
        if self.wait {
            stream.synchronize()?;
        }
        self.seen = Some(self.host.f_detach_copy()?);
        Ok(stream.synchronize()?)
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let seen = self.seen.as_ref().context("nothing was read")?;
        Ok(vec![Quantity { name: "values", tensors: vec![seen.shallow_clone()] }])
    }
}

/// A batch of this project's, pinned or not, on a machine without a GPU.
struct WithoutGpu {
    pinning: bool,
    batch: Option<Tensor>,
}

impl Step for WithoutGpu {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        let mut batch = match self.pinning {
            true => pinned(&[64], Kind::Float)?,
            false => Tensor::f_empty([64], (Kind::Float, Device::Cpu))?,
        };
        let _ = batch.f_fill_(1.0)?;
        self.batch = Some(batch);
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        let batch = self.batch.as_ref().context("there is no batch")?;
        Ok(vec![Quantity { name: "values", tensors: vec![batch.shallow_clone()] }])
    }
}
