//! `vramlab predict` and `vramlab plan` as their user sees them, each in processes of its own.
#![cfg(feature = "torch")]

mod memory_viz;

use memory_viz::reads_as_memory_viz;
use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

fn vramlab(command: &str, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vramlab")).arg(command).args(flags).env_remove("PYTORCH_ALLOC_CONF").output().unwrap()
}

fn json(command: &str, flags: &[&str]) -> Value {
    let output = vramlab(command, &[flags, &["--json"]].concat());
    assert!(output.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(command: &str, flags: &[&str]) -> String {
    let output = vramlab(command, flags);
    assert!(output.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("{value} is no whole number"))
}

fn sum(categories: &Value) -> i64 {
    categories.as_object().unwrap().values().map(number).sum()
}

/// Bytes of the CPU's random state, which a checkpointed segment keeps until it is run again. On a GPU it stays on the CPU.
const RANDOM_STATE: i64 = 5056;

const MIB: i64 = 1 << 20;

/// What `measure` counts on the CPU and `predict` gives, phase by phase.
fn compare(flags: &[&str], segments: i64) {
    let counted = json("measure", &[flags, &["--device", "cpu", "--threads", "1"]].concat());
    let predicted = json("predict", flags);
    assert_eq!(counted["parameters"], predicted["parameters"]);
    assert_eq!(counted["configuration"], predicted["configuration"]);
    let (counted, predicted) = (counted["phases"].as_array().unwrap(), predicted["phases"].as_array().unwrap());
    assert_eq!(counted.len(), predicted.len());
    for (counted, predicted) in counted.iter().zip(predicted) {
        let place = format!("{flags:?}: {} of iteration {}", counted["phase"], counted["iteration"]);
        assert_eq!((&counted["phase"], &counted["iteration"]), (&predicted["phase"], &predicted["iteration"]));
        let kept = if counted["phase"] == "forward" { segments * RANDOM_STATE } else { 0 };
        // What cuBLAS and cuBLASLt keep, 32 MiB and 1 MiB for each of two threads; on the CPU nothing of the kind is there.
        let workspaces = number(&predicted["at_end"]["workspaces"]);
        assert!(workspaces % MIB == 0 && (0..=66 * MIB).contains(&workspaces), "{place}: {workspaces} bytes of workspaces");
        for told in [counted, predicted] {
            assert_eq!(number(&told["at_end"]["temporaries"]), 0, "{place}");
        }
        assert_eq!(number(&counted["live"]), number(&predicted["live"]) - workspaces + kept, "{place}");
        for category in ["parameters", "gradients", "optimizer_state", "activations", "data"] {
            let kept = if category == "activations" { kept } else { 0 };
            let (counted, predicted) = (number(&counted["at_end"][category]), number(&predicted["at_end"][category]));
            assert_eq!(counted, predicted + kept, "{place}: {category}");
        }
        let difference = number(&counted["peak"]) - (number(&predicted["peak"]) - workspaces);
        match predicted["phase"].as_str().unwrap() {
            // Scalars of the optimizer that stay on the CPU when the tensors are on a GPU.
            "step" => assert!((0..=12).contains(&difference), "{place}: {difference} bytes more were counted"),
            // The device's thread takes its workspaces in the midst of its first backward pass, so its peak is not that of the CPU less them.
            "backward" if predicted["iteration"] == 1 => assert!((0..=workspaces).contains(&difference), "{place}: {difference}"),
            // Softmax's backward pass holds the gradient times its result on a GPU.
            "backward" if flags.contains(&"explicit") => {
                assert!(difference <= (segments + 1) * RANDOM_STATE, "{place}: {difference}")
            }
            // While a segment is run again, the state outside of it is kept, too.
            "backward" => {
                assert!(difference % RANDOM_STATE == 0 && difference <= (segments + 1) * RANDOM_STATE, "{place}: {difference}")
            }
            "forward" => assert!(difference % RANDOM_STATE == 0 && difference <= segments * RANDOM_STATE, "{place}: {difference}"),
            _ => assert_eq!(difference, 0, "{place}"),
        }
    }
}

#[test]
fn it_predicts_what_is_counted_on_the_cpu() {
    for optimizer in ["sgd", "momentum", "rmsprop", "adam", "adamw"] {
        compare(&["--model", "mlp-4x64", "--batch", "32", "--optimizer", optimizer], 0);
    }
    compare(&["--model", "mlp-6x64", "--batch", "32", "--checkpoint", "sqrt", "--accumulate", "4"], 2);
    let gpt = ["--model", "gpt-3x64", "--batch", "8", "--seq", "32", "--attention", "explicit"];
    compare(&gpt, 0);
    compare(&[&gpt[..], &["--checkpoint", "every-block", "--accumulate", "2"]].concat(), 3);
}

#[test]
fn json_has_the_keys_of_measure_and_adds_up() {
    let report = json("predict", &["--model", "gpt-2x64", "--batch", "4", "--precision", "amp-fp16"]);
    for key in [
        "schema",
        "command",
        "device",
        "libtorch",
        "configuration",
        "parameters",
        "device_memory",
        "fits",
        "out_of_memory",
        "phases",
        "second_iteration",
        "peak",
    ] {
        assert!(report.get(key).is_some(), "{key}");
    }
    for phase in report["phases"].as_array().unwrap() {
        assert_eq!(sum(&phase["at_end"]), number(&phase["live"]), "{phase}");
        assert_eq!(sum(&phase["at_peak"]), number(&phase["peak"]), "{phase}");
    }
    let peak = &report["peak"];
    assert_eq!(sum(&peak["categories"]), number(&peak["bytes"]));
    assert_eq!(peak["bytes"], report["requested"]);
    let ordered = ["requested", "allocated", "reserved", "device_used", "device_memory"].map(|key| number(&report[key]));
    assert!(ordered.is_sorted(), "{ordered:?}");
    let terms: i64 = report["terms"].as_array().unwrap().iter().map(|term| number(&term["bytes"])).sum();
    assert_eq!(ordered[3], ordered[2] + terms);
    let tensors = peak["tensors"].as_array().unwrap();
    assert!(tensors.iter().any(|t| t["category"] == "parameters" && t["name"].is_string()), "{tensors:?}");
    let listed: i64 = tensors.iter().map(|t| number(&t["count"]) * number(&t["bytes"])).sum();
    assert!(listed <= ordered[0] && listed > ordered[0] / 2);
}

#[test]
fn every_model_predicts_the_same_every_time() {
    let models =
        ["mlp", "resnet18", "resnet50", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "bert-base", "bert-large", "vit-l16"];
    for model in models {
        let flags = ["--model", model, "--batch", "2", "--device-memory", "141GiB", "--precision", "amp-bf16"];
        let mut twice = [json("predict", &flags), json("predict", &flags)];
        assert_eq!(twice[0]["fits"], true, "{model}");
        for report in &mut twice {
            report["dry_seconds"] = Value::Null;
        }
        assert_eq!(twice[0], twice[1], "{model}");
    }
}

#[test]
fn memory_that_runs_out_is_a_finding_with_pytorchs_message() {
    let flags = ["--model", "gpt2", "--batch", "8", "--device-memory", "6GiB"];
    let report = json("predict", &flags);
    assert_eq!((&report["fits"], &report["second_iteration"]), (&Value::Bool(false), &Value::Null));
    let out = &report["out_of_memory"];
    assert_eq!((&out["phase"], &out["iteration"]), (&Value::from("forward"), &Value::from(1)));
    let message = out["message"].as_str().unwrap();
    assert!(message.starts_with("CUDA out of memory. Tried to allocate"), "{message}");
    assert!(message.contains("GPU 0 has a total capacity of 6.00 GiB"), "{message}");
    assert!(number(&report["needs"]["device_used"]) > 6 << 30);
    assert!(number(&report["peak"]["categories"]["activations"]) > 0);
    let told = text("predict", &flags);
    assert!(
        told.contains("does not fit: 6.00 GiB ran out in forward of iteration 1") && told.contains("with memory enough"),
        "{told}"
    );
    // What it needs is what it gets on a card with room for it.
    let enough = json("predict", &["--model", "gpt2", "--batch", "8"]);
    assert_eq!(enough["fits"], true);
    for key in ["requested", "reserved", "device_used"] {
        assert_eq!(enough[key], report["needs"][key], "{key}");
    }
}

#[test]
fn accumulated_micro_batches_need_the_same_however_many_they_are() {
    let with = |accumulate: &str, batch: &str| {
        json("predict", &["--model", "mlp-4x256", "--batch", batch, "--accumulate", accumulate, "--optimizer", "adam"])
    };
    let (few, many) = (with("8", "64"), with("4096", "32768"));
    let data = |report: &Value| number(&report["peak"]["categories"]["data"]);
    let rest = |report: &Value| number(&report["requested"]) - data(report);
    assert_eq!(rest(&few), rest(&many));
    assert_eq!(512 * data(&few), data(&many));
}

#[test]
fn the_allocators_settings_count() {
    let flags = ["--model", "gpt2", "--batch", "4", "--precision", "amp-bf16"];
    let reserved = |conf: &[&str]| number(&json("predict", &[&flags[..], conf].concat())["reserved"]);
    assert!(reserved(&["--alloc-conf", "expandable_segments:True"]) < reserved(&[]));
    let output = vramlab("predict", &[&flags[..], &["--alloc-conf", "no_such_setting:1"]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("no_such_setting"), "{told}");
    let output = vramlab("predict", &[&flags[..], &["--alloc-conf", "nonsense"]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && !told.contains("signal") && told.contains("'nonsense' are no settings"), "{told}");
}

#[test]
fn a_timeline_is_drawn_and_a_snapshot_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (svg, pickle) = (folder.path().join("step.svg"), folder.path().join("step.pickle"));
    let files = ["--timeline", svg.to_str().unwrap(), "--snapshot", pickle.to_str().unwrap()];
    let flags = ["--model", "gpt-2x64", "--batch", "4"];
    json("predict", &[&flags[..], &files[..]].concat());

    let drawn = fs::read_to_string(&svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
    assert_eq!(drawn.matches("<text").count(), drawn.matches("</text>").count());
    for part in [
        "model=gpt-2x64",
        "parameters",
        "activations",
        "peak ",
        "iteration 2",
        "backward",
        "bytes after each allocation and free, in order",
    ] {
        assert!(drawn.contains(part), "no '{part}' in the picture");
    }
    // Nothing is drawn outside of the picture.
    let view: Vec<f64> = drawn
        .split("viewBox=\"0 0 ")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .split(' ')
        .map(|side| side.parse().unwrap())
        .collect();
    for (attribute, most) in [(" x=\"", view[0]), (" y=\"", view[1])] {
        for value in drawn.split(attribute).skip(1) {
            let value: f64 = value.split('"').next().unwrap().parse().unwrap();
            assert!((0.0..=most).contains(&value), "{attribute}{value}");
        }
    }

    let bytes = fs::read(&pickle).unwrap();
    reads_as_memory_viz(&bytes);
}

/// The flags of `predict` that a candidate of a plan stands for.
fn flags_of(candidate: &Value) -> Vec<String> {
    let configuration = &candidate["configuration"];
    let mut flags = Vec::new();
    for key in ["model", "batch", "seq", "optimizer", "precision", "checkpoint", "accumulate"] {
        let value = &configuration[key];
        if !value.is_null() {
            flags.extend([format!("--{key}"), value.as_str().map_or(value.to_string(), str::to_string)]);
        }
    }
    flags
}

fn predicted(candidate: &Value, card: &str) -> Value {
    let flags = flags_of(candidate);
    let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    flags.extend(["--device-memory", card]);
    json("predict", &flags)
}

/// Also: a configuration gives the same bytes alone and after others in one process, and put together from others' passes and steps.
#[test]
fn a_plan_says_what_predict_says() {
    let card = "3GiB";
    let search = ["--model", "gpt2", "--seq", "256", "--effective-batch", "12", "--device-memory", card];
    let plan = json("plan", &search);
    let candidates = plan["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 5 * 3 * 3 * 6);
    for candidate in candidates.iter().step_by(41) {
        let alone = predicted(candidate, card);
        for key in ["requested", "allocated", "reserved", "device_used", "fits", "out_of_memory"] {
            assert_eq!(candidate[key], alone[key], "{key} of {:?}", flags_of(candidate));
        }
    }
    let best = &candidates[plan["recommended"].as_u64().unwrap() as usize];
    assert_eq!((&best["fits"], &best["on_front"]), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!(predicted(best, card)["fits"], true);
    // Everything with the same optimizer that costs less does not fit.
    let cost = |c: &Value| (number(&c["forward_passes"]), number(&c["micro_steps"]));
    let same = |c: &&Value| c["configuration"]["optimizer"] == best["configuration"]["optimizer"];
    let cheaper: Vec<&Value> = candidates.iter().filter(same).filter(|c| cost(c) < cost(best)).collect();
    assert!(!cheaper.is_empty(), "the card is too large for this test");
    assert!(cheaper.iter().all(|candidate| candidate["fits"] == false));
    // Those with the next less cost: the same passes and a divisor fewer, or fewer passes.
    let nearest = cheaper.iter().map(|c| cost(c)).max().unwrap();
    for candidate in cheaper.iter().filter(|c| cost(c) == nearest) {
        assert_eq!(predicted(candidate, card)["fits"], false, "{:?}", flags_of(candidate));
    }
    // Nothing on the front is beaten.
    let costs = |c: &Value| [number(&c["device_used"]), number(&c["forward_passes"]), number(&c["micro_steps"])];
    let alike = |c: &Value| (c["configuration"]["optimizer"].clone(), c["configuration"]["precision"].clone());
    for mine in candidates.iter().filter(|c| c["fits"] == true) {
        let beats = |its: &&Value| {
            alike(its) == alike(mine)
                && costs(its) != costs(mine)
                && costs(its).iter().zip(costs(mine)).all(|(its, mine)| *its <= mine)
        };
        let beaten = candidates.iter().filter(|c| c["fits"] == true).any(|its| beats(&its));
        assert_eq!(mine["on_front"], !beaten, "{mine}");
    }
    let told = text("plan", &search);
    assert!(told.contains("\nrecommended: model=gpt2 batch=12 seq=256") && told.contains("forward passes"), "{told}");
}

#[test]
fn a_plan_keeps_to_the_lists_and_says_when_nothing_fits() {
    let search = ["--model", "gpt2", "--effective-batch", "4", "--optimizer", "sgd,adam", "--precision", "amp-bf16"];
    let plan = json("plan", &[&search[..], &["--checkpoint", "none"]].concat());
    let candidates = plan["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 2 * 3);
    let best = &candidates[plan["recommended"].as_u64().unwrap() as usize];
    assert_eq!((&best["configuration"]["optimizer"], &best["micro_steps"]), (&Value::from("sgd"), &Value::from(1)));
    let none = text("plan", &[&search[..], &["--device-memory", "1GiB"]].concat());
    assert!(none.starts_with("0 of ") && none.contains("nothing fits"), "{none}");
}

#[test]
fn the_largest_batch_is_exact() {
    for flags in [
        &["--model", "gpt2", "--seq", "512", "--device-memory", "8GiB", "--precision", "amp-bf16"][..],
        &["--model", "resnet18", "--device-memory", "2GiB", "--optimizer", "momentum", "--checkpoint", "sqrt"],
        &["--model", "mlp", "--device-memory", "1GiB"],
        &["--model", "gpt2", "--seq", "128", "--device-memory", "4GiB", "--accumulate", "4"],
    ] {
        let found = json("plan", &[flags, &["--max-batch"]].concat());
        let batch = number(&found["batch"]);
        assert_eq!(found["exact"], true, "{found}");
        let accumulate = if flags.contains(&"--accumulate") { 4 } else { 1 };
        let predict = |batch: i64| json("predict", &[flags, &["--batch", &batch.to_string()]].concat());
        let (fits, next, beyond) = (predict(batch), predict(batch + accumulate), predict(number(&found["bound"]) + accumulate));
        assert_eq!((&fits["fits"], &next["fits"], &beyond["fits"]), (&true.into(), &false.into(), &false.into()), "{flags:?}");
        assert_eq!(fits["reserved"], found["needs"]["reserved"]);
        assert_eq!(next["out_of_memory"], found["next"]["out_of_memory"]);
    }
    let none = text("plan", &["--model", "gpt2", "--max-batch", "--device-memory", "1GiB"]);
    assert!(none.starts_with("not even 1 sample fits in 1GiB"), "{none}");
}

#[test]
fn flags_that_make_no_sense_are_explained() {
    let predict: &[(&[&str], &str)] = &[
        (&["--model", "gpt2-larg", "--batch", "1"], "did you mean gpt2-large?"),
        (&["--model", "mlp", "--batch", "0"], "at least one sample, not 0"),
        (&["--model", "resnet50", "--batch", "9000000000000000"], "63 bits"),
        (&["--model", "mlp", "--batch", "99999999999999999999"], "number too large"),
        (&["--model", "gpt2", "--batch", "8", "--accumulate", "3"], "3 micro-batches do not divide a batch of 8"),
        (&["--model", "gpt2", "--batch", "8", "--seq", "2048"], "1 to 1024 tokens"),
        (&["--model", "mlp", "--batch", "8", "--optimizer", "adamm"], "did you mean adam?"),
        (&["--model", "mlp", "--batch", "8", "--device-memory", "0"], "a card without memory"),
        (&["--model", "mlp", "--batch", "8", "--device-memory", "512MiB"], "no room for tensors beside CUDA context"),
        (&["--model", "mlp", "--batch", "8", "--device-memory", "2TiB"], "larger than any card"),
        (&["--model", "mlp", "--batch", "8", "--device-memory", "99999999999GiB"], "64 bits"),
        (&["--model", "mlp", "--batch", "8", "--device-memory", "much"], "write it like 24GiB"),
        (&["--model", "mlp"], "--batch <N>"),
    ];
    let plan: &[(&[&str], &str)] = &[
        (&["--model", "gpt2", "--effective-batch", "0"], "at least one sample, not 0"),
        (&["--model", "gpt2", "--effective-batch", "-8"], "at least one sample, not -8"),
        (&["--model", "mlp-1x1", "--effective-batch", "1099511627777"], "at most 2^40"),
        (&["--model", "gpt2", "--effective-batch", "9223372036854775807"], "63 bits"),
        (&["--model", "gpt", "--effective-batch", "8"], "did you mean gpt2?"),
        (&["--model", "gpt2", "--effective-batch", "8", "--precision", "fp32,bf16"], "did you mean amp-bf16?"),
        (&["--model", "gpt2", "--effective-batch", "8", "--device-memory", "0"], "a card without memory"),
        (&["--model", "gpt2", "--effective-batch", "8", "--max-batch"], "cannot be used with"),
        (&["--model", "gpt2", "--max-batch", "--optimizer", "sgd,adam"], "for one optimizer, not for 2"),
        (&["--model", "gpt2", "--max-batch", "--accumulate", "0"], "at least one"),
        (&["--model", "gpt2"], "--effective-batch"),
    ];
    for (command, cases) in [("predict", predict), ("plan", plan)] {
        for (flags, why) in cases {
            let output = vramlab(command, flags);
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && told.contains(why), "{command} {flags:?}: no '{why}' in:\n{told}");
            assert!(!told.contains("panicked") && output.stdout.is_empty(), "{command} {flags:?}: {told}");
        }
    }
}
