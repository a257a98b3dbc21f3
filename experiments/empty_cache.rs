//! `empty_cache`: does calling it now and then prevent fragmentation, and does it avoid running out of memory?
//!
//! Guide 002 recommends it. PyTorch's allocator gives its cache back by itself before it fails, so inside one process there should be
//! nothing to avoid; memory that the allocator does not manage (another process, another library) is another matter. Sequences of varying
//! length are what fragments a cache.
//!
//! Claims: empty-cache.

use anyhow::{Result, bail};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::process::ExitCode;
use tch::nn::{Adam, Optimizer, OptimizerConfig};
use tch::{Device, Reduction, Tensor};
use vramlab::measure::{Bench, Probe, Quantity, Step, is_out_of_memory};
use vramlab::models::{Batch, Model};
use vramlab::protocol::*;
use vramlab::torch::{OutsideMemory, attempt, cuda_memory, empty_cuda_cache};

fn main() -> ExitCode {
    vramlab::run_constant(&PROTOCOL, prepare)
}

/// What the allocator holds from the device and no tensor uses, after a training step and what the policy does then.
const CACHED: Metric = Metric { name: "cached", label: "reserved and unused", unit: "B", pass: Pass::Memory };
const REFUSED: Metric = Metric { name: "refused", label: "requests refused", unit: "1", pass: Pass::Memory };
const RESERVED: Metric = Metric { name: "reserved_peak", label: "peak reserved", unit: "B", pass: Pass::Memory };
const CALLS: Metric = Metric { name: "calls", label: "calls", unit: "1", pass: Pass::Memory };

pub const PROTOCOL: Protocol = Protocol {
    name: "empty_cache",
    title: "empty_cache",
    question: "Does calling empty_cache now and then prevent fragmentation and avoid running out of memory, and what does it cost?",
    hypothesis: "It gives back what is cached and unused, so the device shows less memory in use. It avoids no failure of the process \
                 itself, because the allocator empties its cache before it fails; it helps whoever else wants memory of the device. Each \
                 call costs time, and the next step pays for allocating again.",
    factors: &[
        Factor { name: "model", meaning: "model", levels: &[] },
        Factor { name: "batch", meaning: "samples", levels: &[] },
        Factor { name: "steps", meaning: "training steps, each with sequences of another length", levels: &[] },
        Factor {
            name: "neighbour",
            meaning: "who else wants memory of the device",
            levels: &[
                Level { name: "none", meaning: "nobody" },
                Level {
                    name: "outside",
                    meaning: "after each fifth step someone outside PyTorch asks for half of what is cached on top of what is free",
                },
            ],
        },
        Factor { name: DEVICE_MEMORY, meaning: "memory of the device", levels: &[] },
        Factor { name: ALLOC_CONF, meaning: "PYTORCH_ALLOC_CONF", levels: &[] },
        Factor {
            name: "policy",
            meaning: "when empty_cache is called",
            levels: &[
                Level { name: "never", meaning: "never" },
                Level { name: "every-step", meaning: "after every step" },
                Level { name: "every-10", meaning: "after every tenth step" },
                Level { name: "above-limit", meaning: "after a step where less than half of what is reserved is in use" },
            ],
        },
    ],
    grids: &[
        cache(&[Profile::Quick], &[SMALL, axis("batch", &["32"]), STEPS, NOBODY, CONFIGURATIONS, POLICIES], COUNTED),
        cache(
            &[Profile::Quick],
            &[SMALL, axis("batch", &["32"]), STEPS, axis("neighbour", &["outside"]), DEFAULT, POLICIES],
            COUNTED,
        ),
        tight(
            &[Profile::Quick],
            &[SMALL, axis("batch", &["32"]), STEPS, NOBODY, axis(DEVICE_MEMORY, &["136MiB", "150MiB"]), POLICIES],
        ),
        cache(&[Profile::Full], &[LARGE, axis("batch", &["4"]), STEPS, NOBODY, CONFIGURATIONS, POLICIES], COUNTED),
        cache(
            &[Profile::Full],
            &[LARGE, axis("batch", &["4"]), STEPS, axis("neighbour", &["outside"]), DEFAULT, POLICIES],
            COUNTED,
        ),
        cache(&[Profile::Full], &[LARGE, axis("batch", &["4"]), axis("steps", &["10"]), NOBODY, DEFAULT, POLICIES], TIMED),
        tight(&[Profile::Full], &[LARGE, axis("batch", &["4"]), STEPS, NOBODY, axis(DEVICE_MEMORY, &["5GiB", "6GiB"]), POLICIES]),
        cache(
            &[Profile::Smoke],
            &[
                axis("model", &["gpt-2x64"]),
                axis("batch", &["8"]),
                axis("steps", &["10"]),
                axis("neighbour", &["outside"]),
                DEFAULT,
                axis("policy", &["never", "every-step"]),
            ],
            COUNTED,
        ),
    ],
    metrics: &[
        CACHED,
        REFUSED,
        CALLS,
        RESERVED,
        Metric { name: "allocated_peak", label: "peak allocated", unit: "B", pass: Pass::Memory },
        Metric { name: "inactive_split", label: "inactive split at the end", unit: "B", pass: Pass::Memory },
        Metric { name: "allocation_retries", label: "allocator's own retries", unit: "1", pass: Pass::Memory },
        PEAK,
        TIME,
    ],
    checks: &[Check { when: "", expect: Relation::Equal { tolerance: 1e-4 } }],
    claims: &[Claim {
        id: "empty-cache",
        from: "002",
        text: "calling empty_cache now and then prevents fragmentation and running out of memory",
        judged_on: &[Platform::Gpu, Platform::Dry],
        rule: Rule::All(&[
            Rule::Ratio {
                metric: CACHED.name,
                of: "policy=every-step|every-10|above-limit neighbour=none alloc-conf=default steps=40",
                confirm: Bound::AtMost(0.80),
                refute: Bound::AtLeast(1.00),
                scope: None,
            },
            // Without any call something has to fail, or there is nothing to avoid.
            Rule::Value {
                metric: REFUSED.name,
                of: "policy=never alloc-conf=default",
                confirm: Bound::AtLeast(0.01),
                refute: Bound::AtMost(0.0),
            },
            Rule::Value {
                metric: REFUSED.name,
                of: "policy=every-step alloc-conf=default",
                confirm: Bound::AtMost(0.0),
                refute: Bound::AtLeast(0.01),
            },
        ]),
        meaning: Meaning {
            confirmed: "It helps here: {effect}.",
            refuted: "Leave it out: {effect}.",
            depends: "Call it for others, not for yourself. It gives the cache back ({effect}), but the allocator does that by itself before it \
                      fails, so it avoids a failure only where {where}. Set PYTORCH_ALLOC_CONF=expandable_segments:True against \
                      fragmentation instead.",
            inconclusive: "What is cached shrinks ({effect}), but not every part of the promise could be shown here.",
        },
    }],
    published: &[Published {
        id: "empty-cache-cost",
        source: "huggingface/peft#2894",
        figure: "250 steps take 45 s without it, 50 s with a call every tenth step, 65 to 108 s with one every step; reserved 19.3 \
                 against 23.5 GB",
        judged_on: &[Platform::Gpu, Platform::Dry],
        rule: Some(Rule::All(&[
            published_ratio(&RESERVED, "policy=every-step neighbour=none alloc-conf=default steps=40", 19.3 / 23.5),
            published_ratio(&TIME, "policy=every-10 steps=10", 50.0 / 45.0),
            Rule::Ratio {
                metric: TIME.name,
                of: "policy=every-step steps=10",
                confirm: Bound::Within(65.0 / 45.0, 108.0 / 45.0),
                refute: Bound::Outside(65.0 / 45.0, 108.0 / 45.0),
                scope: None,
            },
        ])),
        setup: "Theirs fine-tunes an adapter on a large language model; ours trains a GPT on sequences of varying length.",
    }],
    plots: &[
        Plot {
            name: "cached",
            caption: "What the allocator holds and no tensor uses, against never calling empty_cache",
            of: "neighbour=none alloc-conf=default|max_split_size_mb:21|roundup_power2_divisions:4|expandable_segments:True steps=40",
            metric: CACHED.name,
            kind: PlotKind::Bars { clusters: &["model", ALLOC_CONF] },
        },
        Plot {
            name: "reserved",
            caption: "Peak of the memory reserved from the device, against never calling empty_cache",
            of: "neighbour=none alloc-conf=default|max_split_size_mb:21|roundup_power2_divisions:4|expandable_segments:True steps=40",
            metric: RESERVED.name,
            kind: PlotKind::Bars { clusters: &["model", ALLOC_CONF] },
        },
    ],
    threats: &[
        "The neighbour here is the same process asking the driver past PyTorch's allocator, at a moment between two steps; another process \
         may ask at any time.",
        "Which lengths come after one another decides how a cache fragments; the lengths are random and the same for every policy.",
        "A prediction knows no price: what a call costs in time is measured on a GPU only.",
    ],
};

const SMALL: Axis = axis("model", &["gpt-4x256"]);
const LARGE: Axis = axis("model", &["gpt2"]);
const STEPS: Axis = axis("steps", &["40"]);
const NOBODY: Axis = axis("neighbour", &["none"]);
const DEFAULT: Axis = axis(ALLOC_CONF, &["default"]);
const CONFIGURATIONS: Axis =
    axis(ALLOC_CONF, &["default", "max_split_size_mb:21", "roundup_power2_divisions:4", "expandable_segments:True"]);
const POLICIES: Axis = axis("policy", &["never", "every-step", "every-10", "above-limit"]);
const COUNTED: &[Pass] = &[Pass::Check, Pass::Memory];
const TIMED: &[Pass] = &[Pass::Check, Pass::Memory, Pass::Time];

/// Only there is a caching allocator.
const DEVICES: &[Platform] = &[Platform::Gpu, Platform::Dry];

const fn cache(profiles: &'static [Profile], axes: &'static [Axis], passes: &'static [Pass]) -> Grid {
    Grid { name: "cache", profiles, studied: "policy", axes, passes, only_on: DEVICES }
}

const fn tight(profiles: &'static [Profile], axes: &'static [Axis]) -> Grid {
    Grid { name: "little memory", profiles, studied: "policy", axes, passes: &[Pass::Memory], only_on: DEVICES }
}

pub fn prepare(cell: &Cell, bench: &Bench) -> Result<Box<dyn Step>> {
    let Device::Cuda(index) = bench.device else { bail!("only CUDA devices have a caching allocator") };
    let model = Model::named(cell.level("model")?, bench.device)?;
    let batch = model.batch(cell.number("batch")?);
    let policy = match cell.level("policy")? {
        "never" => Policy::Never,
        "above-limit" => Policy::AboveLimit,
        "every-step" => Policy::Every(1),
        "every-10" => Policy::Every(10),
        other => bail!("'{other}' is no policy"),
    };
    let longest = batch.inputs.size()[1];
    let mut random = ChaCha8Rng::seed_from_u64(bench.seed as u64);
    let lengths = (0..cell.number("steps")?).map(|_| random.random_range(longest / 8..=longest)).collect();
    let optimizer = Adam::default().build(&model.store, 1e-4)?;
    let neighbour = cell.get("neighbour") == Some("outside");
    Ok(Box::new(Varying { model, optimizer, batch, lengths, policy, neighbour, device: index as i32, start: true }))
}

enum Policy {
    Never,
    Every(usize),
    AboveLimit,
}

/// Training on sequences of varying length.
struct Varying {
    model: Model,
    optimizer: Optimizer,
    batch: Batch,
    /// Tokens of each step's sequences.
    lengths: Vec<i64>,
    policy: Policy,
    neighbour: bool,
    device: i32,
    /// Whether the parameters are still those that it was set up with.
    start: bool,
}

/// How often the neighbour asks.
const ASKS: usize = 5;

impl Varying {
    fn train(&mut self, length: i64) -> Result<()> {
        self.optimizer.zero_grad();
        let (inputs, targets) = (self.batch.inputs.narrow(1, 0, length), self.batch.targets.narrow(1, 0, length));
        let loss = attempt(|| Ok(self.model.loss(&self.model.forward(&inputs, true), &targets, Reduction::Mean)))?;
        loss.f_backward()?;
        attempt(|| {
            self.optimizer.step();
            Ok(())
        })
    }

    fn wants_empty(&self, step: usize) -> Result<bool> {
        Ok(match self.policy {
            Policy::Never => false,
            Policy::Every(n) => (step + 1).is_multiple_of(n),
            Policy::AboveLimit => {
                let memory = cuda_memory(self.device)?;
                memory.reserved > 2 * memory.allocated
            }
        })
    }
}

impl Step for Varying {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        self.start = false;
        probe.at_rest();
        let (mut cached, mut calls, mut refused, mut requests) = (0.0, 0, 0, 0);
        for step in 0..self.lengths.len() {
            let outcome = self.train(self.lengths[step]);
            requests += 1;
            match outcome {
                Ok(()) => {}
                Err(e) if is_out_of_memory(&format!("{e:#}")) => refused += 1,
                Err(e) => return Err(e),
            }
            let asked = if self.neighbour && (step + 1).is_multiple_of(ASKS) {
                let memory = cuda_memory(self.device)?;
                Some((memory.free + (memory.reserved - memory.allocated) / 2) as u64)
            } else {
                None
            };
            if self.wants_empty(step)? {
                empty_cuda_cache()?;
                calls += 1;
            }
            if let Some(bytes) = asked {
                requests += 1;
                // What is granted is given back at once: the next step is to find the device as this one did.
                refused += usize::from(OutsideMemory::take(bytes).is_err());
            }
            if let Some(memory) = probe.memory() {
                cached += (memory.reserved - memory.allocated) as f64;
            }
        }
        let steps = self.lengths.len() as f64;
        probe.figure(&CACHED, (cached / steps).round());
        probe.figure(&CALLS, f64::from(calls));
        probe.figure(&REFUSED, refused as f64 / requests as f64);
        Ok(())
    }

    fn outcome(&self) -> Result<Vec<Quantity>> {
        if self.start {
            bail!("nothing was trained");
        }
        Ok(vec![Quantity { name: "parameter", tensors: self.model.parameters().iter().map(Tensor::detach).collect() }])
    }

    fn items(&self) -> f64 {
        self.lengths.len() as f64
    }
}
