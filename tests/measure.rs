//! `vramlab measure` as its user sees it: what it prints, and what it says of flags that make no sense.
#![cfg(feature = "torch")]

use serde_json::Value;
use std::process::{Command, Output};

fn measure(flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
    command.arg("measure").args(["--device", "cpu", "--threads", "1"]).args(flags).output().unwrap()
}

fn json(flags: &[&str]) -> Value {
    let output = measure(&[flags, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn total(categories: &Value) -> i64 {
    categories.as_object().unwrap().values().map(|bytes| bytes.as_i64().unwrap()).sum()
}

#[test]
fn json_has_stable_keys_and_plain_numbers() {
    let report = json(&["--model", "mlp-2x64", "--batch", "32", "--optimizer", "adam"]);
    let expected = [
        "command",
        "configuration",
        "device",
        "device_memory",
        "fits",
        "libtorch",
        "out_of_memory",
        "parameters",
        "peak",
        "phases",
        "schema",
        "second_iteration",
        "skipped_steps",
        "step_seconds",
        "threads",
    ];
    let mut found = keys(&report);
    found.sort_unstable();
    assert_eq!(found, expected);
    let parameters = 2 * (64 * 64 + 64) + 64 * 10 + 10;
    assert_eq!(report["parameters"], parameters);
    assert_eq!((&report["fits"], &report["out_of_memory"]), (&Value::Bool(true), &Value::Null));
    let phases = report["phases"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(names, ["load", "forward", "backward", "step", "forward", "backward", "step"]);
    for phase in phases {
        assert_eq!(phase["live"].as_i64().unwrap(), total(&phase["at_end"]), "{phase}");
        assert_eq!(phase["peak"].as_i64().unwrap(), total(&phase["at_peak"]), "{phase}");
    }
    let held = phases[1]["largest"].as_array().unwrap();
    assert!(held.iter().any(|h| h["category"] == "parameters" && h["bytes"] == 4 * 64 * 64 && h["count"] == 2), "{held:?}");
    // Parameters, gradients and Adam's two states; the data.
    assert_eq!(report["second_iteration"]["live"], 4 * 4 * parameters + 32 * (4 * 64 + 8));
    let highest = phases.iter().map(|phase| phase["peak"].as_i64().unwrap()).max();
    assert_eq!(report["peak"]["bytes"].as_i64(), highest);
    assert_eq!(report["peak"]["iteration"], 2);
    let seconds = &report["step_seconds"];
    let second = |key: &str| seconds[key].as_f64().unwrap();
    assert!(0.0 < second("min") && second("min") <= second("median") && second("median") <= second("max"));
    assert!(seconds["samples"].as_array().unwrap().len() >= 5);
}

#[test]
fn counted_bytes_are_the_same_every_time() {
    let flags = ["--model", "gpt-2x64", "--batch", "4", "--seq", "32", "--precision", "amp-bf16", "--checkpoint", "sqrt"];
    assert_eq!(json(&flags)["phases"], json(&flags)["phases"]);
}

#[test]
fn the_table_is_for_people() {
    let output = measure(&["--model", "gpt-2x32", "--batch", "4", "--accumulate", "2"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "model=gpt-2x32 batch=4 optimizer=adamw accumulate=2 device=cpu threads=1",
        "optimizer state",
        "\nload ",
        "\nforward ",
        "\niteration 2 ",
        "\npeak, in ",
        "fits in ",
        " a step, ",
    ] {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
}

#[test]
fn memory_that_runs_out_is_a_finding() {
    for (limit, iteration, phase, stages) in [("1MiB", 0, "load", 0), ("16MiB", 1, "forward", 1)] {
        let flags = ["--model", "mlp-8x256", "--batch", "4096", "--device-memory", limit];
        let report = json(&flags);
        assert_eq!(report["fits"], false, "{limit}");
        let when = &report["out_of_memory"];
        assert_eq!((&when["iteration"], &when["phase"]), (&Value::from(iteration), &Value::from(phase)), "{limit}: {when}");
        assert!(when["message"].as_str().unwrap().contains("Tried to allocate"), "{when}");
        assert_eq!(report["phases"].as_array().unwrap().len(), stages, "{limit}");
        assert_eq!(report["step_seconds"], Value::Null);
        let output = measure(&flags);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("does not fit: "), "{text}");
    }
}

#[test]
fn flags_that_make_no_sense_are_explained() {
    for (flags, why) in [
        (&["--model", "gpt2-larg", "--batch", "1"][..], "did you mean gpt2-large?"),
        (&["--model", "mlp", "--batch", "0"], "at least one sample, not 0"),
        (&["--model", "mlp", "--batch", "-4"], "at least one sample, not -4"),
        (&["--model", "mlp", "--batch", "99999999999999999999"], "number too large"),
        (&["--model", "resnet50", "--batch", "9000000000000000"], "63 bits"),
        (&["--model", "gpt2", "--batch", "8", "--accumulate", "3"], "3 micro-batches do not divide a batch of 8"),
        (&["--model", "gpt2", "--batch", "8", "--accumulate", "0"], "at least one micro-batch"),
        (&["--model", "gpt2", "--batch", "8", "--seq", "2048"], "1 to 1024 tokens"),
        (&["--model", "gpt2", "--batch", "8", "--image", "224"], "no images"),
        (&["--model", "resnet18", "--batch", "8", "--seq", "8"], "no sequence"),
        (&["--model", "vit-l16", "--batch", "8", "--image", "225"], "multiple of 16"),
        (&["--model", "mlp", "--batch", "8", "--attention", "flash"], "there are fused, explicit"),
        (&["--model", "mlp", "--batch", "8", "--dropout", "1.5"], "probability"),
        (&["--model", "mlp", "--batch", "8", "--optimizer", "adamm"], "did you mean adam?"),
        (&["--model", "mlp", "--batch", "8", "--precision", "bf16"], "did you mean amp-bf16?"),
        (&["--model", "mlp", "--batch", "8", "--checkpoint", "all"], "there are none, every-block, sqrt"),
        (&["--model", "mlp", "--batch", "8", "--device-memory", "much"], "write it like 24GiB"),
        (&["--model", "mlp", "--batch", "8", "--device", "gpu"], "there are cpu, cuda, cuda:N"),
        (&["--model", "mlp", "--batch", "8", "--device", "dry:rtx-9999"], "there are rtx-3090"),
        (&["--model", "mlp", "--batch", "8", "--device", "dry:100MiB"], "has no room for tensors beside CUDA context"),
        (&["--batch", "8"], "--model <NAME>"),
        (&["--model", "mlp"], "--batch <N>"),
    ] {
        let output = measure(flags);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(why), "{flags:?}: no '{why}' in:\n{told}");
        assert!(output.stdout.is_empty(), "{flags:?} printed something");
    }
}

#[test]
fn on_a_simulated_gpu_it_tells_the_bytes_that_predict_tells_and_no_times() {
    let run = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
        let output = command.args(flags).args(["--model", "gpt-2x32", "--batch", "4", "--accumulate", "2"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let [measured, predicted] =
        [&["measure", "--device", "dry:rtx-4090", "--json"][..], &["predict", "--gpu", "rtx-4090", "--json"]]
            .map(|flags| serde_json::from_str::<Value>(&run(flags)).unwrap());
    for key in ["device", "device_memory", "fits", "parameters", "second_iteration"] {
        assert_eq!(measured[key], predicted[key], "{key}");
    }
    let bytes = |report: &Value| {
        let phases = report["phases"].as_array().unwrap().iter();
        phases.map(|phase| ["phase", "live", "peak", "at_peak"].map(|key| phase[key].clone())).collect::<Vec<_>>()
    };
    assert_eq!(bytes(&measured), bytes(&predicted));
    assert_eq!(measured["step_seconds"], Value::Null);
    let text = run(&["measure", "--device", "dry:rtx-4090"]);
    assert!(
        text.contains("predicted: a simulated GPU computes nothing, so it has no times") && !text.contains(" a step, "),
        "{text}"
    );
    // Its allocator is held to the limit, too.
    let limited = run(&["measure", "--device", "dry:rtx-4090", "--device-memory", "16MiB"]);
    assert!(limited.contains("does not fit: 16.0 MiB ran out in "), "{limited}");
}
