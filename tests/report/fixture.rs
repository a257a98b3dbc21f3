//! Results of three made-up experiments on three made-up machines, with figures of a plausible size and every kind of outcome.

use record::protocol::*;
use record::results::{Command, Identity, Journal, Manifest, PassRecord, SCHEMA, Sample, Status};
use record::rounds::Rounds;
use record::rules::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const EVERY_PROFILE: &[Profile] = &[Profile::Smoke, Profile::Quick, Profile::Full];
const MIB: f64 = 1048576.0;

const GRADIENT_ERROR: Metric = Metric::compared("gradient_error", "relative error of the gradient");
const UPDATE_ERROR: Metric = Metric::compared("update_error", "relative error of the update");

fn factor(name: &str, meaning: &str) -> Factor {
    Factor { name: name.into(), meaning: meaning.into(), levels: vec![] }
}

pub fn accumulation() -> PlainProtocol {
    PlainProtocol {
        name: "accumulation".into(),
        revision: 1,
        title: "Gradient accumulation".into(),
        question: "Do k micro-batches of B/k need less memory than one batch of B, and do they give the same update?".into(),
        hypothesis: "The peak falls by the share of the activations; gradients stay as large as they are.".into(),
        factors: vec![
            factor("model", "network that is trained"),
            factor("regime", "what stays fixed while k grows"),
            factor("k", "number of micro-batches"),
            Factor {
                name: "recipe".into(),
                meaning: "how the losses of micro-batches are put together".into(),
                levels: vec![
                    PlainLevel { name: "add".into(), meaning: "each loss as it is".into(), label: String::new() },
                    PlainLevel { name: "divide".into(), meaning: "each loss divided by k".into(), label: String::new() },
                    PlainLevel {
                        name: "weighted".into(),
                        meaning: "each loss weighted by its targets".into(),
                        label: String::new(),
                    },
                ],
            },
            factor("reduction", "reduction of the loss"),
            factor("tail", "size of the last micro-batch"),
            factor("targets", "whether some targets are ignored"),
            factor("optimizer", "optimizer"),
        ],
        grids: vec![
            PlainGrid {
                name: "memory".into(),
                profiles: EVERY_PROFILE.to_vec(),
                studied: "k".into(),
                axes: vec![
                    axis("model", &["mlp", "resnet-gn", "gpt", "mlp-wide"]),
                    axis("regime", &["fixed-batch", "fixed-micro-batch"]),
                    axis("k", &["1", "2", "4", "8"]),
                ],
                passes: vec![Pass::Check, Pass::Memory, Pass::Time],
                only_on: vec![],
            },
            PlainGrid {
                name: "equivalence".into(),
                profiles: EVERY_PROFILE.to_vec(),
                studied: "recipe".into(),
                axes: vec![
                    axis("model", &["mlp", "gpt"]),
                    axis("recipe", &["full", "divide", "add", "weighted"]),
                    axis("reduction", &["mean", "sum"]),
                    axis("tail", &["even", "ragged"]),
                    axis("targets", &["all", "ignored"]),
                    axis("optimizer", &["sgd", "adam"]),
                ],
                passes: vec![Pass::Check],
                only_on: vec![],
            },
        ],
        metrics: vec![PEAK, ACTIVATIONS, GRADIENTS, TIME, GRADIENT_ERROR, UPDATE_ERROR],
        checks: vec![
            Check { when: "recipe=add reduction=mean".into(), expect: Relation::Scaled { by: 4.0, tolerance: 1e-4 } },
            Check { when: "recipe=divide reduction=sum".into(), expect: Relation::Scaled { by: 0.25, tolerance: 1e-4 } },
            Check { when: "recipe=divide tail=ragged".into(), expect: Relation::Differs { at_least: 1e-3, at_most: 10.0 } },
            Check { when: "recipe=divide targets=ignored".into(), expect: Relation::Differs { at_least: 1e-3, at_most: 10.0 } },
            Check { when: "".into(), expect: Relation::Equal { tolerance: 1e-4 } },
        ],
        claims: vec![
            Claim {
                id: "accumulate-memory".into(),
                from: "000 001 002".into(),
                text: "k micro-batches of B/k need much less memory than one batch of B".into(),
                judged_on: vec![Platform::Cpu, Platform::Gpu, Platform::Dry],
                rule: RatioRule {
                    metric: "requested_peak".into(),
                    of: "k=4 regime=fixed-batch".into(),
                    confirm: Bound::AtMost(0.6),
                    refute: Bound::AtLeast(0.9),
                    scope: Some(Scope { part: "activations".into(), whole: "requested_peak".into(), at_least: 0.5 }),
                }
                .into(),
                about_the_lab: false,
            },
            Claim {
                id: "accumulate-gradients".into(),
                from: "001".into(),
                text: "it shrinks the memory for gradients".into(),
                judged_on: vec![Platform::Cpu, Platform::Gpu, Platform::Dry],
                rule: RatioRule {
                    metric: "gradients".into(),
                    of: "k=4 regime=fixed-batch".into(),
                    confirm: Bound::AtMost(0.9),
                    refute: Bound::Within(0.98, 1.02),
                    scope: None,
                }
                .into(),
                about_the_lab: false,
            },
            Claim {
                id: "accumulate-normalise".into(),
                from: "000, 001".into(),
                text: "adding k losses, or dividing each by k, gives the update of the full batch".into(),
                judged_on: vec![Platform::Cpu, Platform::Gpu],
                rule: ValueRule {
                    metric: "gradient_error".into(),
                    of: "recipe=divide|add|weighted".into(),
                    confirm: Bound::AtMost(1e-4),
                    refute: Bound::AtLeast(1e-3),
                }
                .into(),
                about_the_lab: false,
            },
        ],
        plots: vec![PlainPlot {
            name: "peak".into(),
            caption:
                "Peak memory falls with the number of micro-batches where the batch is fixed, and stays where the micro-batch is."
                    .into(),
            of: "".into(),
            metric: "requested_peak".into(),
            kind: PlotKind::Bars { clusters: vec!["model".into(), "regime".into()], absolute: false },
            on_front: false,
        }],
        threats: vec![
            "The models are small; the share of activations grows with the batch.".into(),
            "Counted bytes leave out what a library keeps for itself.".into(),
        ],
        ..PlainProtocol::default()
    }
}

pub fn checkpointing() -> PlainProtocol {
    PlainProtocol {
    name: "checkpointing".into(),
    revision: 1,
    title: "Activation checkpointing".into(),
    question: "How much activation memory does recomputation save, and what does it cost in time?".into(),
    hypothesis: "With a checkpoint every sqrt(n) blocks the saved activations grow like the root of the depth, for about a third more time.".into(),
    factors: vec![
        factor("depth", "number of blocks"),
        Factor {
            name: "policy".into(),
            meaning: "which blocks are recomputed".into(),
            levels: vec![PlainLevel { name: "sqrt".into(), meaning: "segments of sqrt(n) blocks".into(), label: String::new() }],
        },
        factor("batch", "samples in a batch"),
    ],
    grids: vec![
        PlainGrid {
            name: "depth".into(),
            profiles: EVERY_PROFILE.to_vec(),
            studied: "policy".into(),
            axes: vec![axis("depth", &["8", "16", "32", "64", "128"]), axis("policy", &["none", "every-block", "sqrt", "every-4"])],
            passes: vec![Pass::Check, Pass::Memory, Pass::Time],
            only_on: vec![],
        },
        PlainGrid {
            name: "budget".into(),
            profiles: EVERY_PROFILE.to_vec(),
            studied: "policy".into(),
            axes: vec![
                axis("depth", &["64"]),
                axis("batch", &["32", "64", "128", "256", "512"]),
                axis("policy", &["none", "every-block", "sqrt"]),
            ],
            passes: vec![Pass::Check, Pass::Memory],
            only_on: vec![],
        },
    ],
    metrics: vec![PEAK, ACTIVATIONS, TIME, GRADIENT_ERROR],
    checks: vec![Check { when: "".into(), expect: Relation::Equal { tolerance: 1e-5 } }],
    claims: vec![Claim {
        id: "checkpoint-memory".into(),
        from: "002 003".into(),
        text: "checkpointing saves activation memory for compute".into(),
        judged_on: vec![Platform::Cpu, Platform::Gpu, Platform::Dry],
        rule: PlainRule::All(vec![
            RatioRule {
                metric: "activations".into(),
                of: "depth=64 policy=sqrt".into(),
                confirm: Bound::AtMost(0.5),
                refute: Bound::AtLeast(0.8),
                scope: None,
            }.into(),
            ExponentRule {
                metric: "activations".into(),
                along: "depth".into(),
                of: "policy=sqrt".into(),
                confirm: Bound::AtMost(0.7),
                refute: Bound::AtLeast(0.9),
            }.into(),
            RatioRule {
                metric: "time".into(),
                of: "policy=sqrt|every-block".into(),
                confirm: Bound::AtMost(1.5),
                refute: Bound::AtLeast(1.5),
                scope: None,
            }.into(),
        ]), about_the_lab: false }],
    published: vec![
        Published {
            id: "chen-sqrt".into(),
            source: "arXiv 1604.06174".into(),
            figure: "memory grows as the square root of the depth, at about 30 % more time".into(),
            judged_on: vec![Platform::Cpu, Platform::Gpu, Platform::Dry],
            rule: Some(PlainRule::All(vec![
                ExponentRule {
                    metric: "activations".into(),
                    along: "depth".into(),
                    of: "policy=sqrt".into(),
                    confirm: Bound::Within(0.4, 0.6),
                    refute: Bound::Outside(0.4, 0.6),
                }.into(),
                RatioRule { metric: TIME.name.into(), of: "depth=64 policy=sqrt".into(), confirm: Bound::Within(1.17, 1.43), refute: Bound::Outside(1.17, 1.43), scope: None }.into(),
            ])),
            setup: "Blocks of an MLP instead of a ResNet's.".into(),
        },
        Published {
            id: "out-of-reach".into(),
            source: "a paper | of others".into(),
            figure: "48 to 7 GB".into(),
            judged_on: vec![Platform::Gpu],
            rule: None,
            setup: "Nobody has this network.".into(),
        },
    ],
    plots: vec![
        PlainPlot {
            name: "activations".into(),
            caption: "Saved activations grow like the depth without checkpoints, and like its root with sqrt(n) segments.".into(),
            of: "depth=8|16|32|64|128".into(),
            metric: "activations".into(),
            kind: PlotKind::Lines { x: "depth".into(), series: vec!["policy".into()] }, on_front: false },
        PlainPlot {
            name: "budget".into(),
            caption: "The largest batch that fits into the same memory.".into(),
            of: "batch=32|64|128|256|512".into(),
            metric: "requested_peak".into(),
            kind: PlotKind::Lines { x: "batch".into(), series: vec!["policy".into()] }, on_front: false },
        PlainPlot {
            name: "time".into(),
            caption: "What the recomputation costs.".into(),
            of: "".into(),
            metric: "time".into(),
            kind: PlotKind::Bars { clusters: vec!["depth".into()], absolute: false }, on_front: false },
    ],
    threats: vec!["Segments of equal size assume blocks of equal cost.".into()], subject: Subject::default() }
}

/// One sentence that holds, one whose bound the figures break, one whose figures no machine has, and one that is only a condition.
const INPLACE_PAGE: &str = "works where nothing is recorded\n\nIt saves {cpu requested_peak form=inplace: at most -1 %} & <b>more</b>.\n\n\
    ```python\nx = torch.relu_(x)\ny = x  # the same\n```\n\n## When it does not help\n\n- Where autograd needs it. \
    {? claim inplace-autograd: depends|confirmed|refuted|not decided}\n- It costs {cpu requested_peak form=clone: at least 9x} with GPT-2 halved by {rehearsed checkpoint-every memory gpt2: at most -10 %}.\n\
    - Nobody has {rehearsed nowhere memory: at most -1 %}.\n\n![peak]\n";

pub fn inplace() -> PlainProtocol {
    PlainProtocol {
        name: "inplace".into(),
        revision: 1,
        title: "In-place operations".into(),
        question: "Do in-place operations use more memory, and does autograd catch the dangerous ones?".into(),
        hypothesis: "`relu_` saves one activation for each call; a clone adds one; autograd catches what it can see.".into(),
        subject: Subject {
            shown: vec![ShownEffect { label: "In place".into(), memory: Some(PEAK.name.into()), ..ShownEffect::default() }],
            ..Subject::default()
        },
        factors: vec![
            factor("workload", "what is computed"),
            factor("form", "how the operation is written"),
            factor("grad", "with or without a backward pass"),
        ],
        grids: vec![PlainGrid {
            name: "memory".into(),
            profiles: EVERY_PROFILE.to_vec(),
            studied: "form".into(),
            axes: vec![
                axis("workload", &["network", "single", "chain"]),
                axis("grad", &["with", "without"]),
                axis("form", &["plain", "clone", "inplace"]),
            ],
            passes: vec![Pass::Check, Pass::Memory, Pass::Time],
            only_on: vec![],
        }],
        metrics: vec![PEAK, TIME, Metric::compared("raised", "error raised")],
        checks: vec![
            Check {
                when: "workload=chain grad=with form=inplace".into(),
                expect: Relation::Raises { message: "modified by an inplace operation".into() },
            },
            Check { when: "".into(), expect: Relation::Equal { tolerance: 0.0 } },
        ],
        claims: vec![
            Claim {
                id: "inplace-memory".into(),
                from: "000".into(),
                text: "in-place operations use more memory, `relu(x).clone()` is the better form".into(),
                judged_on: vec![Platform::Cpu, Platform::Gpu, Platform::Dry],
                rule: RatioRule {
                    metric: "requested_peak".into(),
                    of: "form=clone".into(),
                    confirm: Bound::AtMost(0.98),
                    refute: Bound::AtLeast(1.02),
                    scope: None,
                }
                .into(),
                about_the_lab: false,
            },
            Claim {
                id: "inplace-autograd".into(),
                from: "000's fear".into(),
                text: "an in-place write to what backward needs is caught".into(),
                judged_on: vec![Platform::Gpu],
                rule: ValueRule {
                    metric: "raised".into(),
                    of: "workload=chain grad=with form=inplace".into(),
                    confirm: Bound::AtLeast(1.0),
                    refute: Bound::AtMost(0.0),
                }
                .into(),
                about_the_lab: false,
            },
        ],
        plots: vec![PlainPlot {
            name: "peak".into(),
            caption: "A clone adds to the peak, an in-place operation takes from it.".into(),
            of: "".into(),
            metric: "requested_peak".into(),
            kind: PlotKind::Bars { clusters: vec!["workload".into(), "grad".into()], absolute: false },
            on_front: false,
        }],
        threats: vec!["One operation of one network.".into()],
        ..PlainProtocol::default()
    }
}

/// A machine whose results are made up.
#[derive(Clone, Copy)]
pub struct Machine {
    pub name: &'static str,
    pub platform: Platform,
    /// Seconds that its slowest step takes.
    pub second: f64,
    pub noise: f64,
}

pub const CPU: Machine = Machine { name: "amd-epyc-2c", platform: Platform::Cpu, second: 0.4, noise: 0.04 };
pub const GPU: Machine = Machine { name: "nvidia-h200", platform: Platform::Gpu, second: 0.01, noise: 0.004 };
pub const DRY: Machine = Machine { name: "dry-24gib", platform: Platform::Dry, second: 0.0, noise: 0.0 };

/// Where the words of a page stand.
pub fn page(results: &Path) -> PathBuf {
    results.with_file_name("experiments").join("inplace.md")
}

/// Writes all three experiments of all three machines, and the one page that an editor wrote.
pub fn write_all(results: &Path) {
    std::fs::create_dir_all(page(results).parent().unwrap()).unwrap();
    std::fs::write(page(results), INPLACE_PAGE).unwrap();
    for machine in [CPU, GPU, DRY] {
        for protocol in [accumulation(), checkpointing(), inplace()] {
            write(results, machine, protocol);
        }
    }
    let predicted = record::results::records(results).join("predicted");
    std::fs::create_dir_all(&predicted).unwrap();
    std::fs::write(predicted.join("ladder.json"), techniques().to_string()).unwrap();
}

/// Techniques that were tried on two models: what each needs of the model's 10 GB, and the change of the time of a step.
fn techniques() -> Value {
    let row = |names: &[&str], needs: f64, time: f64, change: &str| {
        json!({
            "techniques": names, "needs_at_least": (needs * 1e10) as u64, "predicted_seconds": 0.2 * (1.0 + time),
            "predicted_change": {"share": time, "low": time - 0.1, "high": time + 0.1}, "change": change,
            "snippet": format!("{}()  # ```\n<b>|</b>", names.join("")),
        })
    };
    let model = |name: &str, more: Vec<Value>| {
        let shared = [
            row(&[], 1.0, 0.0, ""),
            row(&["checkpoint-every"], 0.5, 0.2, ""),
            row(&["lora"], 0.2, -0.3, "trains adapters"),
            row(&["factored"], 0.99, 0.0, "Adafactor"),
        ];
        let before = [row(&[], 2.0, 1.0, ""), row(&["autocast-bf16"], 1.0, -0.5, "in bfloat16")];
        let rows = [shared.to_vec(), more].concat();
        json!({
            "model": name, "card": "rtx-4090", "batch": 8, "checkpoint": "", "command": format!("vramlab rehearse --model {name}"),
            "before": before, "rows": rows,
        })
    };
    let refused = json!({"techniques": ["chunked-loss"], "change": "", "snippet": "", "reason": "no <b>loss</b> | here"});
    json!({
        "schema": 1,
        "models": [
            model("gpt2", vec![row(&["accumulate-2x"], 0.9, 0.0, ""), row(&["offload-activations"], 0.4, 4.0, ""), row(&["chunked-loss"], 0.8, 0.01, "")]),
            model("resnet50", vec![row(&["accumulate-2x"], 0.6, 0.0, ""), row(&["offload-activations"], 0.45, 4.0, ""), refused]),
        ],
    })
}

pub fn write(results: &Path, machine: Machine, protocol: PlainProtocol) {
    write_with(results, machine, protocol, |manifest| {
        let cells = manifest.planned.iter().map(|text| PlainCell::parse(text).unwrap()).enumerate();
        cells.flat_map(|(n, cell)| records(machine, &manifest.protocol, &cell, n)).collect()
    });
}

/// Writes one experiment of one machine with given records.
pub fn write_with(results: &Path, machine: Machine, protocol: PlainProtocol, records: impl Fn(&Manifest) -> Vec<PassRecord>) {
    // Nobody waits for figures that are made up.
    let mistakes = protocol.mistakes().into_iter().filter(|mistake| !mistake.starts_with("profile quick times "));
    assert_eq!(mistakes.collect::<Vec<_>>(), Vec::<String>::new());
    let cells: Vec<PlainCell> = protocol.grids(profile(machine)).flat_map(PlainGrid::cells).collect();
    let dir = results.join(machine.name).join(&protocol.name);
    let mut manifest = manifest(machine, protocol, &cells);
    let (mut journal, _) = Journal::open(&dir, &mut manifest, false).unwrap();
    journal.append(&records(&manifest)).unwrap();
}

fn profile(machine: Machine) -> Profile {
    if machine.platform == Platform::Cpu { Profile::Quick } else { Profile::Full }
}

fn manifest(machine: Machine, protocol: PlainProtocol, cells: &[PlainCell]) -> Manifest {
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    };
    let hardware = match machine.platform {
        Platform::Gpu => map(&[("gpu", "NVIDIA H200"), ("driver", "580.65"), ("power limit", "700 W"), ("cpu", "Xeon, 16 cores")]),
        Platform::Dry => map(&[("device", "CUDA that allocates and never computes, 24 GiB")]),
        _ => map(&[("cpu", "AMD EPYC, 2 cores"), ("memory", "8 GiB")]),
    };
    Manifest {
        schema: SCHEMA,
        method: protocol.method(),
        profile: profile(machine),
        identity: Identity {
            machine: machine.name.to_string(),
            platform: machine.platform,
            hardware,
            libtorch: "2.11.0".to_string(),
            flags: map(&[("threads", "2"), ("tf32", "off")]),
            memory_limit: (machine.platform == Platform::Dry).then_some(24 << 30),
            seed: 1,
        },
        planned: cells.iter().map(PlainCell::to_string).collect(),
        rounds: Rounds::unsaid(),
        commands: vec![Command {
            began: "2026-11-22T05:10:00Z".to_string(),
            argv: vec![format!("target/release/{}", protocol.name), "--profile".into(), profile(machine).to_string()],
            git_revision: "0123456789abcdef0123".to_string(),
            git_dirty: machine.platform == Platform::Cpu,
            environment: map(&[("kernel", "Linux 6.1.0")]),
        }],
        protocol,
    }
}

pub fn record(cell: &PlainCell, pass: Pass, round: u32, samples: Vec<(&str, &str, f64)>) -> PassRecord {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let sample = |(metric, unit, value): (&str, &str, f64)| {
        let n = counts.entry(metric.to_string()).or_default();
        *n += 1;
        Sample { metric: metric.into(), unit: unit.into(), value, sample: *n - 1, reason: String::new() }
    };
    PassRecord {
        cell: cell.clone(),
        pass,
        round,
        status: Status::Ok,
        reason: String::new(),
        seconds: Some(1.5),
        samples: samples.into_iter().map(sample).collect(),
    }
}

/// All passes of one cell; `n` counts the cells and seeds what is random about them.
fn records(machine: Machine, protocol: &PlainProtocol, cell: &PlainCell, n: usize) -> Vec<PassRecord> {
    let grid = protocol.grid_of(profile(machine), cell).unwrap();
    let mut records = Vec::new();
    for pass in &grid.passes {
        if let Some((status, reason)) = trouble(machine, protocol, cell, *pass) {
            records.push(PassRecord::not_run(cell, *pass, 1, status, reason));
            if status != Status::Skipped {
                break;
            }
            continue;
        }
        match pass {
            Pass::Check => records.push(record(cell, Pass::Check, 1, check_samples(protocol, cell))),
            Pass::Memory => {
                records.extend((1..=2).map(|round| record(cell, Pass::Memory, round, memory_samples(machine, protocol, cell))))
            }
            Pass::Time => records
                .extend((1..=6).map(|round| record(cell, Pass::Time, round, time_samples(machine, protocol, cell, n, round)))),
        }
    }
    records
}

/// What goes wrong, so that each kind of outcome is there.
fn trouble(machine: Machine, protocol: &PlainProtocol, cell: &PlainCell, pass: Pass) -> Option<(Status, &'static str)> {
    let budget = |fits: f64| cell.get("batch").is_some() && memory(protocol, cell).0 > fits * MIB;
    match (machine.platform, protocol.name.as_str(), pass) {
        (Platform::Dry, _, Pass::Time) => Some((Status::Skipped, "the simulated GPU has no time")),
        (Platform::Dry, _, Pass::Check) => Some((Status::Skipped, "the simulated GPU computes nothing that could be compared")),
        (Platform::Cpu, "checkpointing", Pass::Memory) if budget(2000.0) => {
            Some((Status::Oom, "tried to allocate 96.0 MiB | limit 2.0 GiB"))
        }
        (Platform::Gpu, "checkpointing", Pass::Memory) if budget(6000.0) => {
            Some((Status::Oom, "tried to allocate 96.0 MiB | limit 6.0 GiB"))
        }
        (Platform::Cpu, "inplace", Pass::Check) if selects("workload=single grad=without form=inplace", cell) => {
            Some((Status::Invalid, "outputs differ by 0.25 <relative> where 0 is expected"))
        }
        (Platform::Gpu, "inplace", Pass::Time) if selects("workload=network grad=with form=clone", cell) => {
            Some((Status::Crashed, "signal 9"))
        }
        _ => None,
    }
}

fn check_samples(protocol: &PlainProtocol, cell: &PlainCell) -> Vec<(&'static str, &'static str, f64)> {
    let raises = selects("workload=chain grad=with form=inplace", cell);
    if protocol.name == "inplace" {
        return if raises { vec![("raised", "1", 1.0)] } else { Vec::new() };
    }
    let error = match cell.get("recipe") {
        Some("full") => return Vec::new(),
        Some("add") if selects("reduction=mean", cell) => 3.0,
        Some("divide") if selects("reduction=sum", cell) => 0.75,
        Some("divide") if selects("tail=ragged", cell) => 0.031,
        Some("divide" | "add") if selects("targets=ignored reduction=mean", cell) => 0.012,
        Some("weighted") if selects("model=mlp", cell) => 0.0,
        _ => 2.1e-7,
    };
    vec![("gradient_error", "1", error), ("update_error", "1", error * 1.5)]
}

/// Peak, activations and gradients in bytes.
fn memory(protocol: &PlainProtocol, cell: &PlainCell) -> (f64, f64, f64) {
    let number = |factor: &str, other: f64| cell.get(factor).and_then(|l| l.parse().ok()).unwrap_or(other);
    match protocol.name.as_str() {
        "accumulation" => {
            let (weights, full) = match cell.get("model") {
                Some("mlp") => (8.0, 210.0),
                Some("resnet-gn") => (45.0, 690.0),
                Some("gpt") => (98.0, 1430.0),
                _ => (512.0, 96.0),
            };
            let activations = if selects("regime=fixed-batch", cell) { full / number("k", 1.0) } else { full };
            ((weights * 3.0 + activations * 1.1) * MIB, activations * MIB, weights * MIB)
        }
        "checkpointing" => {
            let (depth, batch) = (number("depth", 64.0), number("batch", 64.0));
            let kept = match cell.get("policy") {
                Some("every-block") => depth * 0.12 + 1.0,
                Some("sqrt") => 2.0 * depth.sqrt() * 0.45,
                Some("every-4") => depth * 0.25 * 0.4 + 4.0,
                _ => depth,
            };
            let activations = kept * 0.2 * batch;
            ((activations + depth * 3.0) * MIB, activations * MIB, depth * MIB)
        }
        _ => {
            let base = if selects("workload=network", cell) { 310.0 } else { 128.0 };
            let effect = match (cell.get("form"), cell.get("grad")) {
                (Some("clone"), Some("with")) => 1.24,
                (Some("clone"), _) => 1.09,
                (Some("inplace"), Some("with")) => 0.81,
                (Some("inplace"), _) => 0.5,
                _ => 1.0,
            };
            (base * effect * MIB, 0.0, 0.0)
        }
    }
}

fn memory_samples(machine: Machine, protocol: &PlainProtocol, cell: &PlainCell) -> Vec<(&'static str, &'static str, f64)> {
    let (peak, activations, gradients) = memory(protocol, cell);
    let whole = |bytes: f64| bytes.round();
    let mut samples = vec![("requested_peak", "B", whole(peak))];
    if protocol.name != "inplace" {
        samples.push(("activations", "B", whole(activations)));
    }
    if protocol.name == "accumulation" {
        samples.push(("gradients", "B", whole(gradients)));
    }
    if machine.platform == Platform::Gpu {
        samples.push(("allocated_peak", "B", whole(peak * 1.02)));
        samples.push(("reserved_peak", "B", whole(peak * 1.2)));
        samples.push(("device_used", "B", whole(peak * 1.2 + 520.0 * MIB)));
    }
    samples
}

fn time_samples(
    machine: Machine,
    protocol: &PlainProtocol,
    cell: &PlainCell,
    n: usize,
    round: u32,
) -> Vec<(&'static str, &'static str, f64)> {
    let effect = match (cell.get("policy"), cell.get("form"), cell.get("k")) {
        (Some("every-block"), ..) => 1.36,
        (Some("sqrt"), ..) => 1.29,
        (Some("every-4"), ..) => 1.31,
        (_, Some("clone"), _) => 1.12,
        (_, Some("inplace"), _) => 0.93,
        (.., Some(k)) => 0.97 + 0.03 * k.parse::<f64>().unwrap(),
        _ => 1.0,
    };
    let size = (memory(protocol, &cell.with("policy", "none").with("form", "plain").with("k", "1")).0 / MIB / 2000.0).max(0.02);
    // A fixed wobble that looks like noise: the fixture must give the same bytes each time.
    let wobble = |i: usize| ((i * 7919 + n * 104_729) % 1000) as f64 / 1000.0 - 0.5;
    let of_round = 1.0 + machine.noise * wobble(round as usize * 31);
    let sample = |i: usize| {
        let slip = if i == 7 && round == 3 && n.is_multiple_of(5) { 1.8 } else { 1.0 };
        (
            "time",
            "s",
            machine.second * size * effect * of_round * slip * (1.0 + 0.2 * machine.noise * wobble(i + round as usize * 100)),
        )
    };
    (0..10).map(sample).collect()
}
