//! Backends and types: copy, matrix product, convolution and attention on the device that is there, by type; and when moving to a GPU pays.
//!
//! Guide 001 moves model and data to the GPU to speed computation up, and falls back to the CPU without one; so does every program here,
//! whose device is the best that is there. Guide 002 says to compare backends. What is fast shows against what its maker specifies:
//! a rate far below the specified one is the size's fault, or the type's, more often than the device's.
//!
//! Claims: to-device, backends.

use anyhow::{Result, bail};
use std::process::ExitCode;
use std::time::Instant;
use tch::{Cuda, Device, Kind, Tensor, no_grad};
use vramlab::machine::{Specification, specification};
use vramlab::measure::{Bench, Probe, Quantity, Step};
use vramlab::protocol::*;

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

const SHARE: Metric = Metric { name: "share", label: "share of the specified peak", unit: "1", pass: Pass::Time };

pub const PROTOCOL: Protocol = Protocol {
    name: "backends",
    title: "Backends and types",
    question: "What does this device make of copying, products, convolution and attention in each type, and from which size on does moving to a \
               GPU pay?",
    hypothesis: "Copies reach most of the specified bandwidth, large products most of the specified rate; attention and convolution less. \
                 Half-precision types pay where there are units for them. A GPU pays from a size on, and later where the data has to travel \
                 each time.",
    factors: &[
        Factor {
            name: "operation",
            meaning: "what is computed",
            levels: &[
                Level { name: "copy", meaning: "one tensor into another, bytes counted once read and once written" },
                Level { name: "product", meaning: "of two square matrices" },
                Level { name: "convolution", meaning: "3 x 3 over 64 channels of 56 x 56, forward" },
                Level { name: "attention", meaning: "the fused kernel, 64 numbers to a head, forward" },
            ],
        },
        Factor { name: "size", meaning: "MiB copied as fp32, side of the matrices, images, or tokens of 4 sequences", levels: &[] },
        Factor { name: DTYPE, meaning: "type of the numbers", levels: &[] },
        Factor {
            name: "where",
            meaning: "where a product of two fp32 matrices is computed",
            levels: &[
                Level { name: "cpu", meaning: "on the CPU" },
                Level { name: "device", meaning: "on the GPU, where the matrices are already" },
                Level { name: "device-and-back", meaning: "on the GPU, with both matrices and the result moved each time" },
            ],
        },
    ],
    grids: &[
        operation(&[Profile::Quick], &[COPY, axis("size", &["64"]), TWO_TYPES]),
        operation(&[Profile::Quick], &[PRODUCT, axis("size", &["1024"]), TWO_TYPES]),
        operation(&[Profile::Quick], &[CONVOLUTION, axis("size", &["8"]), TWO_TYPES]),
        operation(&[Profile::Quick], &[ATTENTION, axis("size", &["512"]), TWO_TYPES]),
        operation(&[Profile::Full], &[COPY, axis("size", &["1024"]), TYPES]),
        operation(&[Profile::Full], &[PRODUCT, axis("size", &["1024", "8192"]), TYPES]),
        operation(&[Profile::Full], &[CONVOLUTION, axis("size", &["512"]), TYPES]),
        operation(&[Profile::Full], &[ATTENTION, axis("size", &["4096"]), TYPES]),
        operation(&[Profile::Smoke], &[PRODUCT, axis("size", &["128"]), TWO_TYPES]),
        moving(&[Profile::Full], &[axis("size", &["64", "256", "1024", "4096"]), WHERE]),
        moving(&[Profile::Smoke], &[axis("size", &["64"]), WHERE]),
    ],
    metrics: &[TIME, COMPUTED, BANDWIDTH, SHARE],
    checks: &[
        // Eight bits of mantissa.
        Check { when: "dtype=bf16", expect: Relation::Equal { tolerance: 2e-2 } },
        Check { when: "dtype=fp16", expect: Relation::Equal { tolerance: 1e-2 } },
        Check { when: "", expect: Relation::Equal { tolerance: 1e-4 } },
    ],
    claims: &[
        Claim {
            id: "to-device",
            from: "001",
            text: "moving to the GPU speeds computation up",
            judged_on: &[Platform::Gpu],
            rule: Rule::Ratio {
                metric: TIME.name,
                of: "where=device|device-and-back",
                confirm: Bound::AtMost(0.95),
                refute: Bound::AtLeast(1.00),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "Move to the GPU at every size that was measured, even where the data travels each time: {effect} of the CPU's time.",
                refuted: "The CPU is faster at every size that was measured ({effect} of its time on the GPU).",
                depends: "It pays where {where}: {effect} of the CPU's time. Keep data on the GPU between operations; moving it each time costs \
                          more than small products save.",
                inconclusive: "The GPU takes {effect} of the CPU's time, which is too near to call somewhere.",
            },
        },
        Claim {
            id: "backends",
            from: "002",
            text: "it pays to compare backends: the same operation differs clearly in time from type to type",
            judged_on: &[Platform::Cpu, Platform::Gpu],
            rule: Rule::Ratio {
                metric: TIME.name,
                of: "dtype=bf16|fp16",
                confirm: Bound::AtMost(0.95),
                refute: Bound::AtLeast(0.95),
                scope: None,
            },
            meaning: Meaning {
                confirmed: "Half-precision types are faster for every operation here: {effect} of fp32's time.",
                refuted: "They are faster for no operation here ({effect} of fp32's time): this device has no units for them.",
                depends: "Look at the operation first: they are faster where {where} ({effect} of fp32's time).",
                inconclusive: "Times of {effect} of fp32's are too near to call somewhere.",
            },
        },
    ],
    published: &[],
    plots: &[
        Plot {
            name: "types",
            caption: "Time of an operation against fp32's, on the same device",
            of: "operation=copy|product|convolution|attention",
            metric: TIME.name,
            kind: PlotKind::Bars { clusters: &["operation", "size"] },
        },
        Plot {
            name: "where",
            caption: "Time of a product by the side of its matrices: when moving to the GPU pays",
            of: "where=cpu|device|device-and-back",
            metric: TIME.name,
            kind: PlotKind::Lines { x: "size", series: &["where"] },
        },
    ],
    threats: &[
        "Rates are taken with a clock of their own around each operation, which waits for the device each time; time per step is not.",
        "The specified rate of a type is that of dense tensor cores in the maker's data sheet, for fp32 that without them: convolutions may use \
         TF32 by PyTorch's default, so they have no share in fp32.",
        "No maker specifies a CPU's rate in a form that a program could look up; there the rates are shown without a share.",
    ],
};

const COPY: Axis = axis("operation", &["copy"]);
const PRODUCT: Axis = axis("operation", &["product"]);
const CONVOLUTION: Axis = axis("operation", &["convolution"]);
const ATTENTION: Axis = axis("operation", &["attention"]);
const TWO_TYPES: Axis = axis(DTYPE, &["fp32", "bf16"]);
const TYPES: Axis = axis(DTYPE, &["fp32", "bf16", "fp16"]);
const WHERE: Axis = axis("where", &["cpu", "device", "device-and-back"]);
const TIMED: &[Pass] = &[Pass::Check, Pass::Time];

const fn operation(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "by type", profiles, studied: "dtype", axes, passes: TIMED, only_on: &[] }
}

const fn moving(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "to the device", profiles, studied: "where", axes, passes: TIMED, only_on: &[Platform::Gpu] }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let size = cell.number("size")?;
    let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
    if let Some(place) = cell.get("where") {
        let inputs = [random(&[size, size]), random(&[size, size])];
        let (home, away) = match place {
            "cpu" => (Device::Cpu, Device::Cpu),
            "device" => (bench.device, bench.device),
            "device-and-back" => (Device::Cpu, bench.device),
            other => bail!("'{other}' is no place"),
        };
        let inputs = inputs.iter().map(|t| t.to_device(home)).collect();
        return Ok(Box::new(Moved { inputs, home, away, result: Tensor::new() }));
    }
    let kind = match cell.level("dtype")? {
        "fp32" => Kind::Float,
        "bf16" => Kind::BFloat16,
        "fp16" => Kind::Half,
        other => bail!("'{other}' is no type"),
    };
    let known = specification(bench.device);
    let peak = |of: fn(&Specification) -> Option<f64>| known.as_ref().and_then(of);
    let rate = match kind {
        Kind::Float => peak(|s| Some(s.fp32)),
        _ => peak(|s| s.half),
    };
    let (what, inputs, work, metric, peak) = match cell.level("operation")? {
        "copy" => {
            let elements = size << 18;
            let bytes = 2.0 * (elements * kind.elt_size_in_bytes() as i64) as f64;
            (Operation::Copy, vec![random(&[elements]), random(&[elements])], bytes, BANDWIDTH, peak(|s| Some(s.bandwidth)))
        }
        "product" => {
            let flops = 2.0 * (size as f64).powi(3);
            (Operation::Product, vec![random(&[size, size]), random(&[size, size])], flops, COMPUTED, rate)
        }
        "convolution" => {
            let (channels, side) = (64, 56);
            let flops = 2.0 * (size * side * side * channels * channels * 9) as f64;
            let inputs = vec![random(&[size, channels, side, side]), random(&[channels, channels, 3, 3])];
            (Operation::Convolution, inputs, flops, COMPUTED, rate.filter(|_| kind != Kind::Float))
        }
        "attention" => {
            let (sequences, heads, width) = (4, 8, 64);
            let flops = 4.0 * (sequences * heads * size * size * width) as f64;
            let inputs = (0..3).map(|_| random(&[sequences, heads, size, width])).collect();
            (Operation::Attention, inputs, flops, COMPUTED, rate)
        }
        other => bail!("'{other}' is no operation"),
    };
    let inputs = inputs.iter().map(|t| t.to_device(bench.device).to_kind(kind)).collect();
    Ok(Box::new(Operating { what, inputs, work, metric, peak, device: bench.device, result: Tensor::new() }))
}

enum Operation {
    Copy,
    Product,
    Convolution,
    Attention,
}

struct Operating {
    what: Operation,
    inputs: Vec<Tensor>,
    /// Bytes or floating-point operations of one step.
    work: f64,
    metric: Metric,
    /// What the device's maker specifies for this work in a second.
    peak: Option<f64>,
    device: Device,
    result: Tensor,
}

impl Operating {
    fn compute(&mut self) -> Result<()> {
        let inputs = &mut self.inputs;
        self.result = match self.what {
            Operation::Copy => {
                let (source, target) = inputs.split_at_mut(1);
                target[0].f_copy_(&source[0])?;
                target[0].shallow_clone()
            }
            Operation::Product => inputs[0].f_matmul(&inputs[1])?,
            Operation::Convolution => inputs[0].f_conv2d(&inputs[1], None::<&Tensor>, 1, 1, 1, 1)?,
            Operation::Attention => Tensor::f_scaled_dot_product_attention(
                &inputs[0],
                &inputs[1],
                &inputs[2],
                None::<&Tensor>,
                0.0,
                false,
                None::<f64>,
                false,
            )?,
        };
        Ok(())
    }

    fn wait(&self) {
        if let Device::Cuda(index) = self.device {
            Cuda::synchronize(index as i64);
        }
    }
}

impl Step for Operating {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        if !probe.is_timing() {
            return no_grad(|| self.compute());
        }
        self.wait();
        let start = Instant::now();
        no_grad(|| self.compute())?;
        self.wait();
        let rate = self.work / start.elapsed().as_secs_f64();
        probe.sample(&self.metric, rate);
        if let Some(peak) = self.peak {
            probe.sample(&SHARE, rate / peak);
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "result", tensors: vec![self.result.to_kind(Kind::Float)] }])
    }

    fn least_flops(&self) -> f64 {
        let counts = matches!(self.what, Operation::Product) && self.inputs[0].kind() == Kind::Float;
        if counts { self.work } else { 0.0 }
    }
}

/// A product of two matrices that live at home and are computed with away.
struct Moved {
    inputs: Vec<Tensor>,
    home: Device,
    away: Device,
    result: Tensor,
}

impl Step for Moved {
    fn run(&mut self, _: &mut Probe) -> Result<()> {
        let inputs = self.inputs.iter().map(|t| t.f_to_device(self.away)).collect::<Result<Vec<_>, _>>()?;
        self.result = no_grad(|| inputs[0].f_matmul(&inputs[1]))?.f_to_device(self.home)?;
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        Ok(vec![Quantity { name: "result", tensors: vec![self.result.to_device(Device::Cpu)] }])
    }
}
