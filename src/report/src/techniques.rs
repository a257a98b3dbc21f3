//! What the report knows of its subjects beside their figures: the page that an experiment's results stand on, the lines of PyTorch that a
//! technique takes, and where it does not help. Figures and verdicts come from results alone.

use super::markup::Markdown;
use super::recorded::Recorded;

/// A guide whose claims are tested.
pub struct Guide {
    pub title: &'static str,
    /// Empty where it is not known.
    pub address: &'static str,
}

/// Claims name them by their place here, from 1.
pub const GUIDES: [Guide; 5] = [
    Guide { title: "PyTorch 메모리 최적화 기법 (2023)", address: "https://colinch4.github.io/2023-09-07/12-01-30-118535/" },
    Guide { title: "PyTorch GPU 메모리 관리 (2023)", address: "" },
    Guide { title: "GPU 메모리·연산 효율 최적화 완전 가이드 (Deep Learning study)", address: "" },
    Guide { title: "Pytorch에서 memory사용 Guide (Jeong-Minju, 2023)", address: "" },
    Guide { title: "PyTorch Dataloader pin_memory설정 (손무현, 2024)", address: "" },
];

/// The numbers of the guides that a claim comes from.
pub fn guides_of(from: &str) -> impl Iterator<Item = usize> {
    from.split_whitespace().filter_map(|number| number.parse().ok())
}

/// The guides that make a claim, as links to the list of guides.
pub fn guides(from: &str) -> Markdown {
    let known = guides_of(from).filter(|number| (1..=GUIDES.len()).contains(number));
    let links = known.map(|number| Markdown::link(&number.to_string(), "README.md#the-five-guides").as_str().to_string());
    Markdown::trusted(links.collect::<Vec<_>>().join(", "))
}

/// What a page is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Users ask for it: a page of its own.
    Technique,
    /// How far the lab itself can be trusted.
    SelfCheck,
    /// Figures of others, put beside ours.
    Published,
    /// Predictions, put beside what real GPUs allocated.
    RealGpus,
}

/// An effect that stands for a technique on the front page.
pub struct Shown {
    /// What one does, as a row of a table names it.
    pub label: &'static str,
    /// Which cells show it.
    pub of: &'static str,
    /// The metrics whose ratio to the baseline is shown; empty where there is none.
    pub memory: &'static str,
    pub time: &'static str,
    /// When to use it, in a few words.
    pub advice: &'static str,
}

/// One experiment, as a reader meets it.
pub struct Subject {
    pub experiment: &'static str,
    pub title: &'static str,
    pub kind: Kind,
    pub shown: &'static [Shown],
    /// Lines of PyTorch.
    pub code: &'static str,
    /// Where it does not help, or what else it changes.
    pub fails: &'static [&'static str],
}

/// Claims that the lab makes about itself, among the claims of techniques.
pub const SELF_CHECKS: [&str; 2] = ["dry-run", "pin-refused"];

/// Experiments whose bars are bytes: what is left of a tensor, or what a load takes, has no baseline that a reader would divide by.
pub const AMOUNTS: [&str; 2] = ["free_tensors", "load_checkpoint"];

const PEAK: &str = "requested_peak";
const TIME: &str = "time";

const fn shown(label: &'static str, of: &'static str, memory: &'static str, time: &'static str, advice: &'static str) -> Shown {
    Shown { label, of, memory, time, advice }
}

pub const SUBJECTS: &[Subject] = &[
    Subject {
        experiment: "accumulation",
        title: "Gradient accumulation",
        kind: Kind::Technique,
        shown: &[shown("Accumulate 4 micro-batches", "hold=effective-batch k=4", PEAK, TIME, "Activations fill the memory")],
        code: "for micro in batch.split(len(batch) // 4):\n    loss = criterion(model(micro.x), micro.y) / 4  # equal micro-batches, mean loss\n    loss.backward()\noptimizer.step()\noptimizer.zero_grad()",
        fails: &[
            "Parameters, gradients and optimizer state keep their size: where they fill the memory, it saves little.",
            "With ignored targets or a shorter last micro-batch, divide the summed loss by the number of targets in the whole batch; otherwise the update changes.",
            "BatchNorm sees one micro-batch at a time: its statistics, and so the update, are those of the smaller batch.",
        ],
    },
    Subject {
        experiment: "amp",
        title: "Mixed precision (autocast)",
        kind: Kind::Technique,
        shown: &[shown("bf16 autocast", "precision=amp-bf16", PEAK, TIME, "Large activations; a GPU with tensor cores")],
        code: "with torch.autocast(\"cuda\", dtype=torch.bfloat16):\n    loss = criterion(model(x), y)\nloss.backward()  # fp16 instead of bf16: scale the loss with torch.amp.GradScaler",
        fails: &[
            "Parameters, gradients and optimizer state stay in fp32, and half-precision copies of the weights come on top: small batches can need more memory than without.",
            "An overhead-bound step (many small kernels) gets slower, because every cast is one more kernel.",
            "fp16 without a GradScaler loses small gradients. bf16 has the range of fp32 and needs no scaler.",
        ],
    },
    Subject {
        experiment: "checkpointing",
        title: "Activation checkpointing",
        kind: Kind::Technique,
        shown: &[shown("Checkpoint every block", "policy=every-block", PEAK, TIME, "Deep models")],
        code: "from torch.utils.checkpoint import checkpoint\n\nfor block in self.blocks:\n    x = checkpoint(block, x, use_reentrant=False)",
        fails: &[
            "It costs one extra forward pass of whatever is checkpointed.",
            "Where a block saves little besides its input (a plain MLP layer), segments of sqrt(n) blocks save more than checkpointing every block. So they do where the peak lies in a loss over a large vocabulary, as GPT-2's: no block is recomputed there, and each saved input counts. Elsewhere checkpoint every transformer block.",
            "Parameters, gradients and optimizer state keep their size.",
        ],
    },
    Subject {
        experiment: "combined",
        title: "Techniques combined",
        kind: Kind::Technique,
        shown: &[shown(
            "Autocast, accumulate, checkpoint",
            "with=amp+checkpoint+accumulate",
            PEAK,
            TIME,
            "One technique is not enough",
        )],
        code: "for micro in batch.split(len(batch) // 4):\n    with torch.autocast(\"cuda\", dtype=torch.bfloat16):\n        loss = criterion(model(micro.x), micro.y) / 4  # model checkpoints its blocks\n    loss.backward()\noptimizer.step()\noptimizer.zero_grad()",
        fails: &[
            "Techniques that shrink the same bytes do not multiply: after accumulation, fewer activations are left for checkpointing to drop.",
            "What remains is parameters, gradients and optimizer state. To shrink those, use a smaller optimizer or sharding.",
        ],
    },
    Subject {
        experiment: "transfer_learning",
        title: "Transfer learning with a frozen backbone",
        kind: Kind::Technique,
        shown: &[shown("Freeze the backbone", "rest=frozen", PEAK, TIME, "Only the last part is trained")],
        code: "for parameter in model.backbone.parameters():\n    parameter.requires_grad = False\noptimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)",
        fails: &[
            "Only leaving the backbone out of the optimizer saves optimizer state and nothing else: gradients and activations stay.",
            "A trainable layer early in the model keeps the activations of everything after it.",
        ],
    },
    Subject {
        experiment: "optimizer_state",
        title: "Optimizer state and temporaries",
        kind: Kind::Technique,
        shown: &[shown(
            "Fused AdamW instead of a loop",
            "optimizer=adamw implementation=fused",
            "",
            TIME,
            "Always, where it is supported",
        )],
        code: "optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
        fails: &[
            "The state is the same in every implementation: two values per parameter for Adam and AdamW, one for RMSProp and SGD with momentum, none for plain SGD.",
        ],
    },
    Subject {
        experiment: "no_grad",
        title: "Inference without gradients",
        kind: Kind::Technique,
        shown: &[shown("`no_grad` for inference", "mode=no-grad", PEAK, TIME, "Every forward pass without a backward pass")],
        code: "model.eval()\nwith torch.inference_mode():  # or torch.no_grad()\n    output = model(x)",
        fails: &["`model.eval()` alone only changes dropout and BatchNorm; every activation is still saved."],
    },
    Subject {
        experiment: "inplace",
        title: "In-place operations",
        kind: Kind::Technique,
        shown: &[
            shown("`relu_` in place", "form=inplace", PEAK, TIME, "Where autograd allows it"),
            shown("`relu(x).clone()`", "form=clone", PEAK, TIME, "Never: the copy buys nothing"),
        ],
        code: "x = torch.relu_(x)  # or nn.ReLU(inplace=True)",
        fails: &[
            "Autograd does not see writes through `.data`: overwriting a saved tensor gives a wrong gradient without an error.",
        ],
    },
    Subject {
        experiment: "empty_cache",
        title: "`empty_cache` and fragmentation",
        kind: Kind::Technique,
        shown: &[shown(
            "`empty_cache` at every step",
            "neighbour=none policy=every-step",
            "reserved_peak",
            "",
            "Another process needs the memory",
        )],
        code: "# against fragmentation, before the process starts:\n#   PYTORCH_ALLOC_CONF=expandable_segments:True python train.py",
        fails: &[
            "The allocator frees its cache by itself before an allocation fails, so calling it seldom prevents your own out-of-memory error.",
        ],
    },
    Subject {
        experiment: "batch_loading",
        title: "Batches instead of the whole data set",
        kind: Kind::Technique,
        shown: &[shown("Move batches, not the data set", "how=batches", PEAK, TIME, "The data set is larger than a few batches")],
        code: "for x, y in DataLoader(dataset, batch_size=64):\n    x, y = x.to(device), y.to(device)",
        fails: &["Moving single samples saves no more than moving batches, and every transfer has overhead."],
    },
    Subject {
        experiment: "ddp_buckets",
        title: "Gradient buckets of DistributedDataParallel",
        kind: Kind::Technique,
        shown: &[shown("`gradient_as_bucket_view=True`", "zero-grad=none|zeros ddp=views", PEAK, "", "Always, with DDP")],
        code: "model = DistributedDataParallel(model, gradient_as_bucket_view=True)",
        fails: &[
            "Where the peak comes from activations, after `zero_grad` has dropped the gradients, it falls by less than one copy of the gradients.",
        ],
    },
    Subject {
        experiment: "free_tensors",
        title: "Dropping tensors",
        kind: Kind::Technique,
        shown: &[],
        code: "del output, loss  # every reference: views, graphs and optimizers keep the memory, too",
        fails: &["`nvidia-smi` shows the memory as used until `torch.cuda.empty_cache()`; PyTorch reuses it at once."],
    },
    Subject {
        experiment: "load_checkpoint",
        title: "Loading a checkpoint",
        kind: Kind::Technique,
        shown: &[],
        code: "state = torch.load(path, map_location=\"cpu\", mmap=True, weights_only=True)\nmodel.load_state_dict(state)\ndel state",
        fails: &["Without `map_location` tensors return to the device they were saved from, which can run out of memory."],
    },
    Subject {
        experiment: "step_timeline",
        title: "Where memory goes in a training step",
        kind: Kind::Technique,
        shown: &[],
        code: "torch.cuda.memory._record_memory_history()\ntrain_step()\ntorch.cuda.memory._dump_snapshot(\"step.pickle\")  # drag it onto pytorch.org/memory_viz",
        fails: &[],
    },
    Subject { experiment: "memory_model", title: "Predicting memory", kind: Kind::Technique, shown: &[], code: "", fails: &[] },
    Subject {
        experiment: "num_workers",
        title: "DataLoader workers",
        kind: Kind::Technique,
        shown: &[],
        code: "DataLoader(dataset, batch_size=64, num_workers=os.cpu_count(), persistent_workers=True)",
        fails: &["Where the training step is the bottleneck, faster loading does not shorten the epoch."],
    },
    Subject {
        experiment: "pin_memory",
        title: "Pinned memory",
        kind: Kind::Technique,
        shown: &[],
        code: "loader = DataLoader(dataset, pin_memory=True)\nfor x, y in loader:\n    x = x.to(\"cuda\", non_blocking=True)",
        fails: &["Without a GPU it only prints a warning."],
    },
    Subject {
        experiment: "lr_warmup",
        title: "Learning-rate warm-up",
        kind: Kind::Technique,
        shown: &[],
        code: "warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=500)",
        fails: &[],
    },
    Subject { experiment: "backends", title: "Types and backends", kind: Kind::Technique, shown: &[], code: "", fails: &[] },
    Subject {
        experiment: "profiling",
        title: "Profiling tools",
        kind: Kind::Technique,
        shown: &[],
        code: "with torch.profiler.profile(profile_memory=True) as profile:\n    train_step()\nprint(profile.key_averages().table(sort_by=\"self_cuda_memory_usage\"))",
        fails: &[],
    },
    Subject { experiment: "agreement", title: "Agreement with PyTorch", kind: Kind::SelfCheck, shown: &[], code: "", fails: &[] },
    Subject {
        experiment: "loader",
        title: "The lab's image loader beside PyTorch's",
        kind: Kind::SelfCheck,
        shown: &[],
        code: "",
        fails: &[],
    },
    Subject {
        experiment: "same_level",
        title: "False positives of A/A comparisons",
        kind: Kind::SelfCheck,
        shown: &[],
        code: "",
        fails: &[],
    },
    Subject { experiment: "published", title: "Published memory figures", kind: Kind::Published, shown: &[], code: "", fails: &[] },
    Subject {
        experiment: "real_gpus",
        title: "Predictions beside real GPUs",
        kind: Kind::RealGpus,
        shown: &[],
        code: "",
        fails: &[],
    },
    Subject {
        experiment: "real_times",
        title: "Predicted times beside real GPUs",
        kind: Kind::RealGpus,
        shown: &[],
        code: "",
        fails: &[],
    },
];

/// What is known of an experiment.
pub fn subject(experiment: &str) -> Option<&'static Subject> {
    SUBJECTS.iter().find(|subject| subject.experiment == experiment)
}

/// What a page is called, also where the report does not know its experiment.
pub fn title(run: &Recorded) -> String {
    subject(&run.protocol.name).map_or_else(|| run.protocol.title.to_string(), |subject| subject.title.to_string())
}

pub fn kind(run: &Recorded) -> Kind {
    subject(&run.protocol.name).map_or(Kind::Technique, |subject| subject.kind)
}

/// Whether a claim is about the lab itself.
pub fn is_self_check(run: &Recorded, id: &str) -> bool {
    kind(run) == Kind::SelfCheck || SELF_CHECKS.contains(&id)
}
