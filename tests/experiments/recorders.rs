//! The lab's recorder, which follows tch, against that of `vramlab rehearse`, which follows Python, and the simulated GPU against the CPU:
//! the same models and techniques, the same bytes. (No harness: a dry process is a process of its own, so this program starts itself again,
//! with a role.)

mod roles;

use anyhow::{Context, Result, bail};
use models::training::{CheckpointPolicy, Configuration, OptimizerKind, Precision, Trainer};
use models::{Attention, Settings};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sim::trace::{Event, Kind};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use torch::dry::{self, Dry};
use torch::{Backend, Categories, Cpu, Mark, Phase, Recorder, Stage};

fn main() -> ExitCode {
    let tests: &[(&str, fn())] = &[
        ("both_recorders_say_the_same_event_for_event", both_recorders_say_the_same_event_for_event),
        ("what_if_gives_the_labs_bytes", what_if_gives_the_labs_bytes),
        ("the_simulated_gpu_allocates_what_the_cpu_does", the_simulated_gpu_allocates_what_the_cpu_does),
    ];
    roles::main(play, tests)
}

fn root(path: &str) -> PathBuf {
    common::root().join(path)
}

fn python() -> PathBuf {
    let own = root(".venv/bin/python");
    if own.exists() { own } else { PathBuf::from("python3") }
}

/// Bytes of two training steps.
#[derive(Serialize, Deserialize)]
struct Recorded {
    stages: Vec<Stage>,
    /// After loading: whether a block is freed, its number in the order of their making, or 0 of one made before, and its bytes.
    events: Vec<(bool, usize, i64)>,
    requested: i64,
    allocated: i64,
    reserved: i64,
}

fn play(role: &str, argument: &str) -> Result<String> {
    tch::set_num_threads(1);
    let flags: Value = serde_json::from_str(argument)?;
    Ok(serde_json::to_string(&match role {
        "dry" => record(&Dry::open()?, &configuration(&flags)?)?,
        "cpu" => record(&Cpu::new(None), &configuration(&flags)?)?,
        _ => bail!("no role '{role}'"),
    })?)
}

fn configuration(flags: &Value) -> Result<Configuration> {
    fn named<T: Copy>(flags: &Value, name: &str, choices: &[(T, &str)], default: &str) -> Result<T> {
        let text = flags[name].as_str().unwrap_or(default);
        choices.iter().find(|(_, name)| *name == text).map(|(choice, _)| *choice).with_context(|| format!("{name}: {text}"))
    }
    Ok(Configuration {
        model: flags["model"].as_str().context("a model")?.to_string(),
        batch: flags["batch"].as_i64().unwrap_or(1),
        settings: Settings {
            sequence: flags["seq"].as_i64(),
            image: None,
            attention: named(flags, "attention", &Attention::ALL, "fused")?,
            dropout: flags["dropout"].as_f64(),
        },
        optimizer: named(flags, "optimizer", OptimizerKind::ALL, "adamw-foreach")?,
        precision: named(flags, "precision", Precision::ALL, "fp32")?,
        checkpoint: named(flags, "checkpoint", CheckpointPolicy::ALL, "none")?,
        accumulate: flags["accumulate"].as_i64().unwrap_or(1),
    })
}

fn record(backend: &dyn Backend, configuration: &Configuration) -> Result<Recorded> {
    backend.reset_peaks()?;
    let mut recorder = Recorder::begin(backend)?;
    let mut trainer = Trainer::load(configuration, backend.device())?;
    trainer.record(Mark::LOADED, &mut recorder)?;
    for _ in 0..2 {
        trainer.iterate(&mut |mark, trainer| trainer.record(mark, &mut recorder))?;
    }
    let timeline = recorder.end();
    let stages = timeline.stages();
    let others = backend.memory()?.others;
    let most = |metric: &str| others.iter().find(|(name, _)| *name == metric).map_or(0, |(_, bytes)| *bytes);
    let loaded = timeline.marks[0].events;
    let mut live = HashMap::new();
    let mut made = 0;
    let told = |event: &Event| {
        let number = if event.kind == Kind::Alloc {
            made += 1;
            live.insert(event.address, made);
            made
        } else {
            live.remove(&event.address).unwrap_or(0)
        };
        (event.kind != Kind::Alloc, number, event.bytes)
    };
    let events = timeline.events[loaded..].iter().map(told).collect();
    let (allocated, reserved) = (most("allocated_peak"), most("reserved_peak"));
    Ok(Recorded { requested: stages.iter().map(|stage| stage.peak).max().unwrap_or(0), allocated, reserved, events, stages })
}

fn recorded(role: &str, flags: &Value) -> Recorded {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--role", role, &flags.to_string()]);
    command.env_remove("PYTORCH_ALLOC_CONF").env_remove("PYTORCH_CUDA_ALLOC_CONF");
    if role == "dry" {
        dry::prepare(&mut command, 24 << 30).unwrap();
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{flags}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// With the answer, and the snapshot beside it.
fn rehearsed(folder: &Path, flags: &[&str], words: &[&str]) -> Value {
    let output = Command::new(common::program("vramlab"))
        .args(["rehearse", "--quiet", "--steps", "2", "--json"])
        .arg(folder.join("answer.json"))
        .args(flags)
        .arg("--")
        .arg(python())
        .args(words)
        .env("VRAMLAB_CACHE", folder.join("cache"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&fs::read(folder.join("answer.json")).unwrap()).unwrap()
}

fn assert_same_bytes(answer: &Value, recorded: &Recorded, of: &str) {
    let theirs = ["peak_requested", "peak_allocated", "peak_reserved"].map(|key| answer[key].as_i64().unwrap());
    assert_eq!(theirs, [recorded.requested, recorded.allocated, recorded.reserved], "{of}");
}

/// Events after loading, in both: how large a block is, and which of the blocks made since is freed.
const COMPARE: &str = "
import itertools, json, pickle, sys
def in_order(told):
    # A list of Python's frees its tensors from its end, one of Rust's from its beginning.
    runs = [list(run) for _, run in itertools.groupby(told, lambda event: event[0])]
    return [event for run in runs for event in (sorted(run) if run[0][0] else run)]
history = pickle.load(open(sys.argv[2], 'rb'))['device_traces'][0]
history = [event for event in history if event['action'] in ('alloc', 'free_requested')]
begin = max(i for i, event in enumerate(history) if event['action'] == 'free_requested' and event['size'] == 12345) + 1
live, made, told = {}, 0, []
for event in history[begin:]:
    if event['action'] == 'alloc':
        made += 1
        live[event['addr']] = made
        told.append((False, made, event['size']))
    else:
        told.append((True, live.pop(event['addr'], 0), event['size']))
ours, theirs = in_order(map(tuple, json.load(open(sys.argv[1])))), in_order(told)
for at, (a, b) in enumerate(zip(ours, theirs)):
    if a != b:
        sys.exit(f'event {at}: the lab recorded {a}, the rehearsal {b}; before: {ours[max(at - 3, 0):at]}')
sys.exit(len(ours) != len(theirs) and f'{len(ours)} events of the lab, {len(theirs)} of the rehearsal')
";

fn both_recorders_say_the_same_event_for_event() {
    let script = root("tests/rehearse/known_models.py");
    std::thread::scope(|scope| {
        for (model, batch) in [("gpt2", 2), ("resnet50", 8), ("bert-base", 4), ("vit-l16", 4)] {
            let script = &script;
            scope.spawn(move || {
                let folder = tempfile::tempdir().unwrap();
                let ours = recorded("dry", &json!({"model": model, "batch": batch}));
                fs::write(folder.path().join("ours.json"), serde_json::to_vec(&ours.events).unwrap()).unwrap();
                let out = folder.path().join("out");
                let words = [script.to_str().unwrap(), model, &batch.to_string()];
                let answer = rehearsed(folder.path(), &["--out", out.to_str().unwrap()], &words);
                let files = [folder.path().join("ours.json"), out.join("snapshot.pickle")];
                let output = Command::new(python()).args(["-c", COMPARE]).args(files).output().unwrap();
                assert!(output.status.success(), "{model}: {}", String::from_utf8_lossy(&output.stderr));
                assert_same_bytes(&answer, &ours, model);
            });
        }
    });
}

/// The lab's own models under the same techniques: plain PyTorch in Python here, the lab's training loop over libtorch there. These are
/// configurations of the experiments accumulation, amp, checkpointing, combined and optimizer_state.
///
/// The lab's checkpointed segments are a function with a backward pass of its own, and --what-if's are PyTorch's without re-entry. So the
/// former are held against the same function in Python, to the byte. The latter free what a block keeps a moment earlier, when it is handed
/// to its operation's backward pass and not when that has ended: less is allocated, by no more than what one operation keeps.
fn what_if_gives_the_labs_bytes() {
    // The wider of the results that a block keeps, in fp32.
    const KEPT: i64 = 32 * 64 * 4 * 128 * 4;
    let lab = |more: Value| {
        let mut flags = json!({"model": "gpt-4x128", "batch": 32, "seq": 64, "dropout": 0.0});
        flags.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        recorded("dry", &flags)
    };
    let folder = tempfile::tempdir().unwrap();
    let script = root("tests/rehearse/lab.py");
    let rehearse = |flags: &[&str], arguments: &[&str]| {
        rehearsed(folder.path(), flags, &[&[script.to_str().unwrap(), "--model", "gpt-4x128"], arguments].concat())
    };
    let only = "autocast-bf16,fused,accumulate-4x,autocast-bf16+accumulate-4x,checkpoint-every,checkpoint-sqrt";
    let flags = ["--what-if", "--only", only, "--batch", "--batch {}", "--accumulation", "--accumulate {}"];
    let rows = rehearse(&flags, &["--batch", "32"]);
    let row = |names: &[&str]| {
        let found = rows.as_array().unwrap().iter().find(|row| row["techniques"] == json!(names));
        found.unwrap_or_else(|| panic!("no {names:?} in {rows:?}"))
    };
    for (names, flags) in [
        (&[][..], json!({})),
        (&["autocast-bf16"], json!({"precision": "amp-bf16"})),
        (&["fused"], json!({"optimizer": "adamw-fused"})),
        (&["accumulate-4x"], json!({"accumulate": 4})),
        (&["autocast-bf16", "accumulate-4x"], json!({"precision": "amp-bf16", "accumulate": 4})),
    ] {
        let lab = lab(flags);
        let row = row(names);
        assert_eq!(
            (&row["peak_allocated"], &row["peak_reserved"]),
            (&lab.allocated.into(), &lab.reserved.into()),
            "{names:?}: {row}"
        );
    }
    // Nothing in this model depends on what else a batch holds.
    assert_eq!(row(&["accumulate-4x"])["change"], "");
    for (arguments, flags) in [
        (&["--batch", "32", "--segment", "1"][..], json!({"checkpoint": "every-block"})),
        (&["--batch", "32", "--segment", "2"], json!({"checkpoint": "sqrt"})),
        (
            &["--batch", "8", "--segment", "2", "--bf16", "--accumulate", "4"],
            json!({"checkpoint": "sqrt", "precision": "amp-bf16", "accumulate": 4}),
        ),
    ] {
        assert_same_bytes(&rehearse(&[], arguments), &lab(flags), &arguments.join(" "));
    }
    for (name, policy) in [("checkpoint-every", "every-block"), ("checkpoint-sqrt", "sqrt")] {
        let less = lab(json!({"checkpoint": policy})).allocated - row(&[name])["peak_allocated"].as_i64().unwrap();
        assert!((0..=KEPT).contains(&less), "{name}: {less} bytes less than the lab's");
    }
}

/// Bytes of the CPU's random state, which a checkpointed segment keeps until it is run again. On a GPU it stays on the CPU.
const RANDOM_STATE: i64 = 5056;

const MIB: i64 = 1 << 20;

/// What is counted on the CPU and what the simulated GPU allocates, phase by phase.
fn compare(flags: Value, segments: i64) {
    let (counted, dry) = (recorded("cpu", &flags).stages, recorded("dry", &flags).stages);
    assert_eq!(counted.len(), 7);
    assert_eq!(dry.len(), 7);
    for (counted, dry) in counted.iter().zip(&dry) {
        let place = format!("{flags}: {} of iteration {}", counted.phase, counted.iteration);
        assert_eq!((counted.phase, counted.iteration), (dry.phase, dry.iteration));
        let kept = if counted.phase == Phase::Forward { segments * RANDOM_STATE } else { 0 };
        // What cuBLAS and cuBLASLt keep, 32 MiB and 1 MiB for each of two threads; on the CPU nothing of the kind is there.
        let workspaces = dry.at_end.workspaces;
        assert!(workspaces % MIB == 0 && (0..=66 * MIB).contains(&workspaces), "{place}: {workspaces} bytes of workspaces");
        assert_eq!((counted.at_end.temporaries, dry.at_end.temporaries), (0, 0), "{place}");
        assert_eq!(counted.live, dry.live - workspaces + kept, "{place}");
        let without = |categories: Categories, kept: i64| Categories {
            activations: categories.activations - kept,
            workspaces: 0,
            ..categories
        };
        assert_eq!(without(counted.at_end, kept), without(dry.at_end, 0), "{place}");
        let difference = counted.peak - (dry.peak - workspaces);
        match counted.phase {
            // Scalars of the optimizer that stay on the CPU when the tensors are on a GPU.
            Phase::Optimizer => assert!((0..=12).contains(&difference), "{place}: {difference} bytes more were counted"),
            // The device's thread takes its workspaces in the midst of its first backward pass, so its peak is not that of the CPU less them.
            Phase::Backward if counted.iteration == 1 => assert!((0..=workspaces).contains(&difference), "{place}: {difference}"),
            // Softmax's backward pass holds the gradient times its result on a GPU.
            Phase::Backward if flags["attention"] == "explicit" => {
                assert!(difference <= (segments + 1) * RANDOM_STATE, "{place}: {difference}")
            }
            // While a segment is run again, the state outside of it is kept, too.
            Phase::Backward => {
                assert!(difference % RANDOM_STATE == 0 && difference <= (segments + 1) * RANDOM_STATE, "{place}: {difference}")
            }
            Phase::Forward => {
                assert!(difference % RANDOM_STATE == 0 && difference <= segments * RANDOM_STATE, "{place}: {difference}")
            }
            Phase::Load | Phase::Evaluation | Phase::Generation | Phase::Saving => assert_eq!(difference, 0, "{place}"),
        }
    }
}

fn the_simulated_gpu_allocates_what_the_cpu_does() {
    for optimizer in ["sgd", "momentum", "rmsprop", "adam", "adamw"] {
        compare(json!({"model": "mlp-4x64", "batch": 32, "optimizer": optimizer}), 0);
    }
    compare(json!({"model": "mlp-6x64", "batch": 32, "optimizer": "adamw", "checkpoint": "sqrt", "accumulate": 4}), 2);
    let gpt = |checkpoint: &str, accumulate: i64| {
        json!({"model": "gpt-3x64", "batch": 8, "seq": 32, "attention": "explicit", "optimizer": "adamw", "checkpoint": checkpoint,
               "accumulate": accumulate})
    };
    compare(gpt("none", 1), 0);
    compare(gpt("every-block", 2), 3);
}
