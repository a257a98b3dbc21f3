//! `vramlab rehearse` as its users run it: on Python scripts, with the PyTorch that the lab itself was built with.

use super::captures::{capture, output_of};
use super::scene::{VRAMLAB, vramlab};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

struct Rehearsed {
    output: Output,
    json: Value,
}

impl Rehearsed {
    fn bytes(&self, field: &str) -> i64 {
        self.json[field].as_i64().unwrap_or_else(|| panic!("{field} in {}", self.error()))
    }

    /// One that was recorded once.
    fn kept(name: &str) -> Rehearsed {
        let output = output_of(&capture(name));
        let json = serde_json::from_slice(&output.stdout).unwrap();
        Rehearsed { output, json }
    }

    fn error(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    fn category(&self, name: &str) -> i64 {
        let held = self.json["processes"][0]["peak"]["categories"].as_array().unwrap();
        held.iter().find(|held| held["name"] == name).map_or(0, |held| held["bytes"].as_i64().unwrap())
    }
}

/// A script in a folder of its own, rehearsed with these flags.
fn rehearse(flags: &[&str], script: &str) -> Rehearsed {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("train.py");
    std::fs::write(&file, script).unwrap();
    command(flags, &[common::python().to_str().unwrap(), file.to_str().unwrap()])
}

fn command(flags: &[&str], words: &[&str]) -> Rehearsed {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("answer.json");
    let output = vramlab().args(["rehearse", "--json", json.to_str().unwrap()]).args(flags).arg("--").args(words).output().unwrap();
    let json = std::fs::read_to_string(&json).map_or(Value::Null, |text| serde_json::from_str(&text).unwrap());
    Rehearsed { output, json }
}

/// What torch.compile brings: repeated blocks, an optimizer, a break in the graph, in place changes of whole numbers.
const COMPILED: &str = include_str!("scripts/compiled.py");

#[test]
#[ignore = "long"]
fn a_compiled_script_runs_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("train.py"), COMPILED).unwrap();
    let run = |flags: &[&str]| {
        let output = Command::new(VRAMLAB)
            .args(["rehearse", "--gpu", "h100", "--steps", "all", "--json", at("answer.json").to_str().unwrap()])
            .args(flags)
            .arg("--")
            .args([common::python(), at("train.py")])
            .env("VRAMLAB_CACHE", at("cache"))
            // The user's own caches of compiled graphs and kernels.
            .env("TORCHINDUCTOR_CACHE_DIR", at("theirs/graphs"))
            .env("TRITON_CACHE_DIR", at("theirs/kernels"))
            .env("HOME", at("theirs"))
            .output()
            .unwrap();
        let json = std::fs::read_to_string(at("answer.json")).unwrap();
        Rehearsed { output, json: serde_json::from_str(&json).unwrap() }
    };
    let peaks = |seen: &Rehearsed| format!("peak {} {}", seen.bytes("peak_allocated"), seen.bytes("peak_reserved"));
    let first = run(&[]);
    assert!(first.output.status.success(), "{}", first.error());
    assert!(first.said().contains(&peaks(&first)), "{}, and PyTorch: {}", peaks(&first), first.said());
    assert_eq!(first.json["steps"], 3);
    assert_eq!(first.json["notes"], serde_json::json!([]));
    // Lines and modules are the script's, not those of the code that Inductor writes.
    let peak = &first.json["processes"][0]["peak"];
    let held = |of: &str, part: &str| peak[of].as_array().unwrap().iter().any(|held| held["name"].as_str().unwrap().contains(part));
    assert_eq!(peak["phase"], "backward", "{peak}");
    assert_eq!(peak["forward_line"]["line"], 12, "{peak}");
    assert!(held("modules", "Net.h.*.up") && held("lines", "train.py:12") && !held("lines", "/cache/"), "{peak}");
    assert!(first.category("activations") > 0 && first.category("parameters") > 0, "{peak}");
    // What a compiled kernel wrote is known to nobody.
    assert!(first.error().contains("item at") && first.error().contains("train.py:34 (<module>)"), "{}", first.error());
    // From what is kept, the same.
    let second = run(&[]);
    assert_eq!(peaks(&first), peaks(&second));
    assert!(first.said().contains("kept 0") && !second.said().contains("kept 0"), "{} {}", first.said(), second.said());
    assert!(!at("theirs").exists(), "the user's caches were written to");
    // The same graph a line further down; two, and its backward pass under compiled autograd.
    let backward = "with torch._dynamo.compiled_autograd._enable(torch.compile()):\n        loss.backward()";
    for (source, forward) in
        [(format!("\n{COMPILED}"), 13), (COMPILED.replace("loss.backward()", backward).replace("import os", "\n\nimport os"), 14)]
    {
        std::fs::write(at("train.py"), source).unwrap();
        let seen = run(&[]);
        let peak = &seen.json["processes"][0]["peak"];
        assert_eq!(peak["forward_line"]["line"], forward, "{peak} {}", seen.error());
        assert!(peaks(&seen) == peaks(&first) || forward == 14, "{}", peaks(&seen));
        assert!(
            seen.said().contains(&peaks(&seen)) && !seen.json["time"].to_string().contains("CompiledAutograd"),
            "{}",
            seen.json
        );
    }
    std::fs::write(at("train.py"), COMPILED).unwrap();
    let eager = run(&["--eager"]);
    assert!(eager.bytes("peak_allocated") > first.bytes("peak_allocated"));
    // Kernels that Inductor writes take time, and less than those that they are made of.
    let device_seconds = |seen: &Rehearsed| seen.json["time"]["device_seconds"].as_f64().unwrap();
    let kernels = first.json["time"]["kernels"].as_array().unwrap();
    let made = kernels.iter().find(|kernel| kernel["operator"].as_str().unwrap().starts_with("triton_"));
    assert!(made.is_some_and(|kernel| kernel["line"]["file"].as_str().unwrap().ends_with("train.py")), "{kernels:?}");
    let modules = &first.json["time"]["modules"];
    assert!(modules.as_array().unwrap().iter().any(|module| module["module"] == "Net.h.*.up"), "{modules}");
    let share = device_seconds(&first) / device_seconds(&eager);
    assert!((0.3..0.95).contains(&share), "{share}");
    assert!(eager.error().contains("torch.compile was turned off"), "{}", eager.error());
}

/// Rows of `torch.compile` that others measured on an A100.
#[test]
fn compiled_peaks_are_those_of_a_gpu() {
    let script = common::root().join("records/real_gpus/compiled.py");
    let output = Command::new(VRAMLAB)
        .args(["rehearse", "--gpu", "a100-80g", "--steps", "all", "--quiet", "--"])
        .arg(common::python())
        .arg(script)
        .env("VRAMLAB_CACHE", tempfile::tempdir().unwrap().path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "16 of 16 equal\n");
}

#[test]
fn graphs_of_cuda_are_compiled_and_what_inductor_cannot_runs_eagerly() {
    let seen = rehearse(
        &["--steps", "all", "--world-size", "2", "--rank", "0"],
        include_str!("scripts/graphs_of_cuda_are_compiled_and_what_inductor_cannot_runs_eagerly.py"),
    );
    assert!(seen.output.status.success(), "{}", seen.error());
    let peaks = format!("peak {} {}", seen.bytes("peak_allocated"), seen.bytes("peak_reserved"));
    assert!(seen.said().contains(&peaks), "{peaks}, and PyTorch: {}", seen.said());
    assert!(seen.error().contains("train.py:25 (<lambda>) was not compiled but ran eagerly"), "{}", seen.error());
    assert!(seen.error().contains("no code for it") && seen.error().contains("CUDA graphs"), "{}", seen.error());
    let modules = seen.json["processes"][0]["peak"]["modules"].as_array().unwrap();
    let has = |part: &str| modules.iter().any(|held| held["name"].as_str().unwrap().starts_with(part));
    assert!(has("DistributedDataParallel.module.") && !has("WrapperModule"), "{modules:?}");
}

/// Two linear layers of 1024 x 4096 and back, with AdamW.
const TRAIN: &str = include_str!("scripts/train.py");

fn train(stop: &str) -> String {
    TRAIN.replace("BREAK", if stop.is_empty() { "-1" } else { "1" }).replace("STOP", if stop.is_empty() { "pass" } else { stop })
}

const PARAMETERS: i64 = (1024 * 4096 + 4096 + 4096 * 1024 + 1024) * 4;

#[test]
fn a_script_is_stopped_after_its_steps_and_answered() {
    let seen = rehearse(&["--gpu", "rtx-4090"], &train(""));
    assert!(seen.output.status.success(), "{}", seen.error());
    assert_eq!(seen.json["verdict"], "fits");
    assert_eq!(seen.json["steps"], 3);
    assert!(seen.said().contains("step 1 loss") && !seen.said().contains("step 3 loss"), "{}", seen.said());
    assert!(seen.error().contains("FITS rtx-4090") && seen.error().contains("train.py:"), "{}", seen.error());
    assert_eq!(seen.category("parameters"), PARAMETERS);
    assert_eq!(seen.category("optimizer state"), 2 * PARAMETERS);
    assert!(seen.category("workspaces") >= 8_519_680, "{}", seen.json["processes"][0]["peak"]["categories"]);
    assert_eq!(seen.bytes("headroom"), seen.json["gpu"]["memory"].as_i64().unwrap() - seen.bytes("peak_on_device"));
}

#[test]
fn the_meters_are_pytorchs_own() {
    let seen = rehearse(&["--steps", "all"], &TRAIN.replace("range(100)", "range(2)").replace("if step == BREAK: STOP", ""));
    let peaks = format!("peak {} {}", seen.bytes("peak_allocated"), seen.bytes("peak_reserved"));
    assert!(seen.said().contains(&peaks), "{peaks}, and PyTorch: {}", seen.said());
}

#[test]
fn a_script_that_is_killed_or_fails_is_answered_as_far_as_it_came() {
    for end in ["import os; os.kill(os.getpid(), 9)", "import os; os._exit(5)", "raise ValueError('no')"] {
        let seen = rehearse(&[], &train(end));
        assert_eq!(seen.output.status.code(), Some(1), "{end}: {}", seen.error());
        assert_eq!(seen.json["verdict"], "script_failed", "{end}");
        assert_eq!(seen.json["steps"], 2, "{end}");
        assert!(seen.bytes("peak_allocated") > 4 * PARAMETERS, "{end}");
    }
    let seen = rehearse(&[], "import torch; torch.ones(1, device='cuda:1')");
    assert!(seen.error().contains("invalid device ordinal; --gpus N gives the simulated machine more GPUs"), "{}", seen.error());
}

#[test]
fn memory_that_runs_out_is_the_scripts_exception_and_the_answer() {
    let script = "
import torch
kept = [torch.empty(1 << 28, device='cuda') for _ in range(4)]
";
    let seen = rehearse(&["--gpu", "3GiB"], script);
    assert_eq!(seen.output.status.code(), Some(3), "{}", seen.error());
    assert!(seen.error().contains("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB"), "{}", seen.error());
    assert_eq!(seen.bytes("needs_at_least") - seen.json["gpu"]["context"].as_i64().unwrap(), 4 << 30);
    let caught = rehearse(
        &["--gpu", "3GiB"],
        &script
            .replace("kept", "try:\n  kept")
            .replace("range(4)]", "range(4)]\nexcept torch.OutOfMemoryError:\n  print('caught')"),
    );
    // Nothing followed it on the GPU.
    assert!(caught.output.status.code() == Some(3) && caught.said().contains("caught"), "{}", caught.error());
}

#[test]
fn integers_are_real_and_floating_point_is_a_placeholder() {
    let seen = rehearse(&[], include_str!("scripts/integers_are_real_and_floating_point_is_a_placeholder.py"));
    assert!(seen.output.status.success(), "{}", seen.error());
    let placeholders = seen.json["processes"][0]["placeholders"].as_array().unwrap();
    assert!(placeholders.iter().any(|value| value["operator"] == "nonzero" && value["line"]["line"] == 12), "{placeholders:?}");
    assert!(placeholders.iter().all(|value| value["line"]["line"].as_i64().unwrap() > 9), "{placeholders:?}");
}

#[test]
fn one_rank_of_many_allocates_what_it_would() {
    let script = include_str!("scripts/one_rank_of_many_allocates_what_it_would.py");
    let bytes: i64 = 2 * (1024 * 1024 + 1024) * 4;
    for (wrap, state) in [("ddp", 2 * bytes), ("fsdp", 2 * bytes / 4)] {
        let seen = rehearse(&["--world-size", "4", "--rank", "1", "--timeout", "200"], &format!("WRAP = '{wrap}'{script}"));
        assert!(seen.output.status.success(), "{}", seen.error());
        let found = seen.category("optimizer state");
        assert!((state..state + 4096).contains(&found), "{wrap}: {found} and {state}");
        assert_eq!(seen.json["processes"][0]["rank"], 1);
    }
}

/// The script's own lines and variables, of a loss that is kept and a sum that keeps its graphs; and nothing is told of a script that keeps
/// what it should.
#[test]
fn memory_that_grows_is_told_with_what_keeps_it() {
    let script = |keeps: &str, adds: &str| {
        format!(
            "
import torch
from torch import nn
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
mean = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.AdamW(model.parameters())
losses, total = [], 0
def evaluate(x):
    return model(x).square().mean()
class Marked(torch.Tensor): pass
for step in range(20):
    x = torch.randn(256, 1024, device='cuda')
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    losses.append({keeps})
    total = total + {adds}
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    mean.update_parameters(model)
"
        )
    };
    let grows = rehearse(&[], &script("loss", "evaluate(x)"));
    let growth = &grows.json["processes"][0]["growth"];
    assert!(growth["bytes_per_round"].as_i64().unwrap() > 8 << 20, "{growth}");
    let kept: Vec<&str> = growth["kept_by"].as_array().unwrap().iter().map(|keeper| keeper["keeps"].as_str().unwrap()).collect();
    assert_eq!(kept, ["losses", "total"]);
    let lines: Vec<&str> = growth["lines"].as_array().unwrap().iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert!(lines[0].ends_with("train.py:9"), "{lines:?}");
    assert!(grows.error().contains("Memory grows: each step leaves"), "{}", grows.error());
    // Nobody reads on below a headline that says FITS.
    let is_headline = |line: &str| line.starts_with("FITS") && line.contains("But memory grows: each step leaves ");
    assert!(grows.error().lines().any(is_headline), "{}", grows.error());
    let honest = rehearse(&["--steps", "4"], &script("loss.item()", "evaluate(x).item()"));
    assert_eq!(honest.json["processes"][0]["growth"], Value::Null, "{}", honest.error());
    assert!(!honest.error().to_lowercase().contains("memory grows"));
}

/// By an attention mask, or by the id that the embedding has for it; where neither tells, nothing is said.
#[test]
fn padding_is_told_where_masks_or_ids_tell_it() {
    let script = include_str!("scripts/padding_is_told_where_masks_or_ids_tell_it.py");
    for (known, told) in [("by mask", Some("(by attention_mask)")), ("by id", Some("(by id 0, the")), ("not", None)] {
        let seen = rehearse(&["--steps", "2"], &format!("KNOWN = '{known}'\n{script}"));
        assert!(seen.output.status.success(), "{}", seen.error());
        let line = told.map(|by| format!("37 % of the tokens in the DataLoader's batches are padding {by}"));
        assert!(line.map_or(!seen.error().contains("padding"), |line| seen.error().contains(&line)), "{known}: {}", seen.error());
    }
}

/// As stages of a pipeline, of which the last has the vocabulary.
#[test]
fn of_all_ranks_the_one_that_needs_most_is_named() {
    let script = include_str!("scripts/of_all_ranks_the_one_that_needs_most_is_named.py");
    let seen = rehearse(&["--world-size", "4", "--rank", "all", "--steps", "1"], script);
    assert!(seen.output.status.success(), "{}", seen.error());
    let ranks: Vec<&Value> = seen.json.as_array().unwrap().iter().map(|answer| &answer["processes"][0]["rank"]).collect();
    assert_eq!(ranks, [0, 1, 2, 3]);
    let peaks: Vec<i64> = seen.json.as_array().unwrap().iter().map(|answer| answer["peak_requested"].as_i64().unwrap()).collect();
    assert!(peaks[0] == peaks[1] && peaks[1] == peaks[2] && peaks[3] > peaks[0] + 128 * (1 << 20), "{peaks:?}");
    assert!(seen.error().contains("Rank 3 needs most"), "{}", seen.error());
    let fails = include_str!("scripts/of_all_ranks_the_one_that_needs_most_is_named_fails.py");
    let seen = rehearse(&["--world-size", "2", "--rank", "all"], fails);
    assert!(seen.error().contains("Rank 1 did not come to its steps: the answer above is its"), "{}", seen.error());
}

/// Barriers, groups of another backend, objects of other ranks: nothing waits for ranks that are not there.
/// Stages that ask the one before for their shapes: all of a pipeline are rehearsed.
#[test]
#[ignore = "long"]
fn all_stages_of_a_pipeline_are_rehearsed() {
    let pipeline = include_str!("scripts/of_all_ranks_the_one_that_needs_most_is_named_pipeline.py");
    let seen = rehearse(&["--world-size", "8", "--rank", "all"], pipeline);
    assert!(seen.output.status.success(), "{}", seen.error());
    let answers = seen.json.as_array().unwrap();
    assert!(answers.len() == 8 && !seen.json.to_string().contains("was not rehearsed before"), "{}", seen.json);
}

#[test]
fn a_rank_that_is_alone_waits_for_nobody() {
    for rank in ["0", "3"] {
        let flags = ["--world-size", "4", "--rank", rank, "--steps", "all"];
        let seen = rehearse(&flags, include_str!("collectives.py"));
        let said = seen.said();
        assert!(said.lines().any(|line| line == "all"), "{said}{}", seen.error());
        let others: Vec<&str> = said.lines().filter(|line| line.contains(": ") && !line.ends_with(": works")).collect();
        assert!(others.is_empty(), "rank {rank}: {others:?}");
        assert!(said.lines().filter(|line| line.ends_with(": works")).count() > 30, "{said}");
    }
}

#[test]
fn arguments_are_taken_by_pytorchs_names() {
    let seen = rehearse(&["--world-size", "2", "--rank", "0"], include_str!("names.py"));
    let said = seen.said();
    assert!(!said.contains("lacks"), "{said}");
    let looked = said.lines().find_map(|line| line.strip_prefix("looked at ")).and_then(|number| number.parse::<u32>().ok());
    assert!(looked.is_some_and(|looked| looked > 20), "{said}{}", seen.error());
}

#[test]
fn a_command_that_is_no_rehearsal_is_told_why_in_one_line() {
    let refuses = |flags: &[&str], words: &[&str], why: &str| {
        let seen = command(flags, words);
        assert_eq!(seen.output.status.code(), Some(2), "{words:?}: {}", seen.error());
        let last = seen.error().trim().lines().last().unwrap_or_default().to_string();
        assert!(last.starts_with("vramlab: ") && last.contains(why), "{words:?}: {}", seen.error());
    };
    let python = common::python();
    let python = python.to_str().unwrap();
    refuses(&[], &[], "no command");
    refuses(&[], &["no-such-program"], "spelled right");
    refuses(&[], &["true"], "started no Python");
    refuses(&[], &[python, "-c", "print(1)"], "never imported torch");
    refuses(&[], &[python, "-I", "-c", "import torch"], "never used the GPU");
    refuses(&[], &["--gpuu", "python"], "no flag '--gpuu'");
    refuses(&["--gpu", "rtx 3090 ti"], &["true"], "is it rtx-3090");
    refuses(&["--gpu", "a100"], &["true"], "which is it of a100-40g, a100-80g");
    refuses(&["--gpu", "12"], &["true"], "any other has a size, written like 24GiB");
    refuses(&["--out", "/proc/nowhere"], &["true"], "--out /proc/nowhere: files cannot be written");
    refuses(&["--timeout", "0.01"], &[python, "-c", "import torch; torch.ones(1).cuda()"], "the time of --timeout was over before");
    refuses(&["--steps", "0"], &["true"], "--steps");
    refuses(&["--world-size", "2", "--rank", "2"], &["true"], "0 to 1");
}

#[test]
fn a_large_model_is_left_untouched_on_the_host() {
    let script = include_str!("scripts/a_large_model_is_left_untouched_on_the_host.py");
    let seen = rehearse(&["--no-init"], script);
    assert!(seen.output.status.success(), "{}", seen.error());
    let resident = seen.said().split_whitespace().last().unwrap().parse::<i64>().unwrap();
    assert!(resident < 1 << 20, "{resident} KiB, and the weight alone is 1 GiB");
    assert!(seen.bytes("peak_allocated") > 2 * 16384 * 16384 * 2);
}

#[test]
fn a_script_gets_pytorchs_own_snapshots() {
    let script = include_str!("scripts/a_script_gets_pytorchs_own_snapshots.py");
    let seen = rehearse(&[], script);
    assert!(seen.output.status.success(), "{}", seen.error());
    let lines = seen.json["processes"][0]["peak"]["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 3, "each of the three has its line, whoever records: {lines:?}");
}

#[test]
fn averages_of_weights_are_copies_and_parts_that_no_pass_went_through_are_parameters() {
    let seen = Rehearsed::kept("averages");
    let weight = 1024 * 1024 * 4;
    assert_eq!(
        (seen.category("data"), seen.category("copies of weights")),
        (512 * 1024 * 4, 2 * weight + weight + (512 + 1024) * 4),
        "{}",
        seen.json["processes"][0]["peak"]
    );
    let coder = 2 * weight + (512 + 1024) * 4 + (1 << 20);
    assert_eq!((seen.category("parameters"), seen.category("optimizer state")), (weight + coder, 2 * weight));
    let process = &seen.json["processes"][0];
    let modules = process["peak"]["modules"].to_string();
    assert!(modules.contains("ModuleDict.decoder") && process["needless_graphs"].is_null(), "{process}");
}

#[test]
fn what_a_closure_does_is_no_part_of_the_optimizers_step() {
    let seen = Rehearsed::kept("closure");
    let process = &seen.json["processes"][0];
    // Both evaluations are of the same samples.
    assert_eq!(seen.json["time"]["samples"], 8192, "{}", seen.json["time"]);
    let phases: Vec<&str> = process["phases"].as_array().unwrap().iter().map(|row| row["phase"].as_str().unwrap()).collect();
    assert_eq!(phases[..4], ["load", "forward", "backward", "optimizer"], "{process}");
    let weights = 2 * (1024 * 1024 + 1024) * 4;
    assert_eq!((seen.category("parameters"), seen.category("optimizer's temporaries")), (weights, 0), "{process}");
    assert!(seen.category("activations") >= 8192 * 1024 * 4 && seen.category("optimizer state") >= 2 * weights, "{process}");
}

#[test]
fn memory_that_runs_out_in_the_optimizers_step_counts_what_it_made_as_state() {
    let script = include_str!("scripts/memory_that_runs_out_in_the_optimizers_step_counts_what_it_made_as_state.py");
    // Parameters and gradients are 2 GiB, the state as much again; 3.5 GiB are there.
    let seen = rehearse(&["--gpu", "4GiB"], script);
    assert_eq!(seen.output.status.code(), Some(3), "{}", seen.error());
    assert_eq!(seen.json["processes"][0]["peak"]["phase"], "optimizer");
    let weight = 8192 * 8192 * 4;
    assert_eq!((seen.category("parameters"), seen.category("gradients")), (4 * weight, 4 * weight));
    assert!(seen.category("optimizer state") > 4 * weight, "{}", seen.json["processes"][0]["peak"]["categories"]);
}

#[test]
fn lines_are_those_outside_of_pytorch() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("site-packages/models");
    std::fs::create_dir_all(&library).unwrap();
    std::fs::write(
        library.join("mlp.py"),
        "from torch import nn\nclass Mlp(nn.Linear):\n    def forward(self, x):\n        return super().forward(x).relu()\n",
    )
    .unwrap();
    let script = include_str!("scripts/lines_are_those_outside_of_pytorch.py");
    let file = folder.path().join("train.py");
    std::fs::write(&file, script).unwrap();
    let seen = command(&[], &[common::python().to_str().unwrap(), file.to_str().unwrap()]);
    let peak = &seen.json["processes"][0]["peak"];
    assert_eq!((&peak["line"]["line"], &peak["called_from"]["line"]), (&4.into(), &7.into()), "{peak}");
    assert!(peak["lines"][0]["name"].as_str().unwrap().ends_with("models/mlp.py:4"), "{}", peak["lines"]);
    assert!(seen.error().contains("at      models/mlp.py:4 (forward)"), "{}", seen.error());
}

#[test]
fn a_library_that_is_started_itself_is_told_what_its_loop_does_not_reach() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("site-packages/trainer");
    std::fs::create_dir_all(&library).unwrap();
    let script = "
import torch
def train(model, optimizer):
    for _ in range(5):
        model(torch.randn(4, 64, device='cuda')).sum().backward()
        optimizer.step()
    model.eval()
    torch.save(model.state_dict(), '/dev/null')
";
    let main = "import torch
from trainer.loop import train
model = torch.nn.Linear(64, 64).cuda()
train(model, torch.optim.SGD(model.parameters(), 0.1))
";
    for (name, text) in [("loop.py", script), ("__main__.py", main), ("other.py", script)] {
        std::fs::write(library.join(name), text).unwrap();
    }
    let start = format!("cd {} && exec {} -m trainer", library.parent().unwrap().display(), common::python().display());
    let seen = command(&[], &["sh", "-c", &start]);
    let told: Vec<String> =
        seen.json["processes"][0]["unreached"].as_array().unwrap().iter().map(|row| row["what"].to_string()).collect();
    assert_eq!(told, ["\"model.eval()\"", "\"torch.save(...)\""], "{}", seen.error());
}

/// As an extension built by nvcc: it registers its kernels, launches one, gives one a tensor's address to write to, and asks its CUDA runtime
/// for something that needs a GPU.
const EXTENSION: &str = r#"
#include <dlfcn.h>
struct dim3 { unsigned x, y, z; };
extern "C" {
int cudaLaunchKernel(const void*, dim3, dim3, void**, unsigned long, void*);
void** __cudaRegisterFatBinary(void*);
static long binary[3];
static void kernel() {}
__attribute__((constructor)) void registers() { __cudaRegisterFatBinary(binary); }
static int launch(void** parameters) { return cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), {1, 1, 1}, {1, 1, 1}, parameters, 0, nullptr); }
int launches() { return launch(nullptr); }
int strangers_kernel(void* tensor) {
  // How many there are is not passed, and anything may lie behind them.
  void* parameters[] = {&tensor, reinterpret_cast<void*>(-1)};
  return launch(parameters);
}
// What a runtime that is linked into a library does first.
int starts_its_own_runtime() {
  using Find = int (*)(const char*, void**, int, unsigned long long, int*);
  void* function = nullptr;
  return reinterpret_cast<Find>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2"))("cuInit", &function, 12000, 0, nullptr);
}
}
"#;

fn extension(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("extension.cpp"), folder.join("fused_ext.so"));
    std::fs::write(&source, EXTENSION).unwrap();
    let compiled = Command::new("c++").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(compiled.success());
    library
}

fn own(script: &str) -> String {
    format!("{}/tests/rehearse/{script}", common::root().display())
}

#[test]
fn what_other_kernels_write_is_lost_and_experts_get_their_share() {
    let folder = tempfile::tempdir().unwrap();
    let library = extension(folder.path());
    let sampled = command(&[], &[common::python().to_str().unwrap(), &own("sampling.py"), library.to_str().unwrap()]);
    let shared = command(&[], &[common::python().to_str().unwrap(), &own("experts.py")]);
    // How many boxes a kernel keeps, and how many tokens come to an expert, is said with its range.
    let sizes = [
        (&sampled, "sampling.py", "boxes[keep].shape == (2000,)", 2000, 2000),
        (&shared, "experts.py", "torch.where(mask[expert])", 256, 32768),
        (&shared, "experts.py", "for counts in", 256, 32768),
    ];
    for (seen, script, line, taken, possible) in sizes {
        assert!(seen.output.status.success() && seen.json["steps"] == 3, "{}", seen.error());
        let script = std::fs::read_to_string(own(script)).unwrap();
        let number = 1 + script.lines().position(|text| text.contains(line)).unwrap();
        let placeholders = seen.json["processes"][0]["placeholders"].as_array().unwrap();
        let size =
            placeholders.iter().find(|row| row["line"]["line"] == number && row["size"] != Value::Null).map(|row| &row["size"]);
        assert_eq!(size, Some(&serde_json::json!({ "least": taken, "most": taken, "possible": possible })), "{placeholders:?}");
        assert!(seen.error().contains(&format!(", taken as {taken}, could be 0 to {possible}")), "{}", seen.error());
    }
}

#[test]
fn steps_without_an_optimizer_are_seen() {
    let seen = command(&["--gpu", "v100", "--timeout", "120"], &[common::python().to_str().unwrap(), &own("by_hand.py")]);
    assert!(seen.output.status.success(), "{}", seen.error());
    assert_eq!(seen.json["steps"], 3, "{}", seen.error());
    assert!(seen.error().contains("steps are counted where gradients were cleared"), "{}", seen.error());
    let phases = seen.json["processes"][0]["phases"].as_array().unwrap();
    assert!(phases.iter().any(|row| row["step"] == 3 && row["phase"] == "backward"), "{phases:?}");
    let no_code = seen.json["no_code"].as_str().unwrap_or_default();
    assert!(
        no_code.contains("has no code for this card (compute capability 7.0") && no_code.contains("install its build for CUDA"),
        "{no_code}"
    );
    assert!(seen.error().lines().any(|line| line.starts_with("FITS v100") && line.contains(no_code)), "{}", seen.error());
}

#[test]
#[ignore = "long"]
fn ranks_that_torchrun_starts_wait_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!(
        "cd '{}' && exec '{}' -m torch.distributed.run --standalone --nproc-per-node 2 '{}'",
        folder.path().display(),
        common::python().display(),
        own("ranks.py")
    );
    let seen = command(&["--timeout", "200"], &["sh", "-c", &line]);
    assert!(seen.output.status.success(), "{}{}", seen.said(), seen.error());
    for rank in ["rank 0 met", "rank 1 met"] {
        assert_eq!(seen.said().matches(rank).count(), 3, "{}{}", seen.said(), seen.error());
    }
    assert_eq!(seen.json["processes"].as_array().map(Vec::len), Some(2), "{}", seen.error());
    // DDP's logger asks for times by itself, which the script makes nothing of.
    assert!(!seen.error().contains("elapsed_time of CUDA events"), "{}", seen.error());
}

#[test]
fn kernels_of_an_extensions_own_are_told_and_one_that_cannot_run_gets_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let library = extension(folder.path());
    let script = |call: &str| {
        let library = library.display();
        format!(
            "import ctypes, torch\nx = torch.ones(8, device='cuda')\nassert ctypes.CDLL('{library}').{call}() == 0, 'CUDA error'\n"
        )
    };
    let told = |seen: &Rehearsed| seen.json["notes"].to_string();
    let seen = rehearse(&[], &script("launches"));
    assert!(seen.output.status.success() && told(&seen).contains("fused_ext.so has CUDA kernels of its own"), "{}", seen.error());
    let seen = rehearse(&[], &script("starts_its_own_runtime"));
    assert_eq!(seen.output.status.code(), Some(1), "{}", seen.error());
    assert!(told(&seen).contains("fused_ext.so brings a CUDA runtime of its own"), "{}", seen.error());
    let seen = rehearse(&[], "import torch\ntorch.ones(8, device='cuda')\n");
    assert_eq!(seen.json["notes"], serde_json::json!([]), "PyTorch's own kernels are nobody's own");
}

#[test]
fn triton_kernels_are_not_launched() {
    let script = include_str!("scripts/triton_kernels_are_not_launched.py");
    let seen = rehearse(&[], script);
    assert!(seen.output.status.success(), "{}", seen.error());
    assert!(seen.error().contains("Triton kernels were not launched"), "{}", seen.error());
    assert!(seen.error().contains("it got a placeholder"), "{}", seen.error());
    assert_eq!(seen.bytes("peak_allocated"), 2 << 22);
}

#[test]
fn no_driver_is_opened_and_nothing_is_written_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["home", "tmp", "work"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    // Worker processes, pinned memory, a compiled kernel of the jiterator: whatever could want a driver or a cache.
    let script = include_str!("scripts/no_driver_is_opened_and_nothing_is_written_elsewhere.py");
    std::fs::write(at("work/train.py"), script).unwrap();
    let output = Command::new(VRAMLAB)
        .args(["rehearse", "--steps", "all", "--", "sh", "-c"])
        .arg(format!("exec '{}' train.py", common::python().display()))
        .current_dir(at("work"))
        .env("HOME", at("home"))
        .env("TMPDIR", at("tmp"))
        .env("VRAMLAB_CACHE", at("cache"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // PyTorch itself makes an empty folder for its compiler.
    let left = |name: &str| {
        let names = std::fs::read_dir(at(name)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with("torchinductor_")).collect::<Vec<_>>()
    };
    assert_eq!(
        (left("home").len(), left("tmp").len(), left("work").len()),
        (0, 0, 1),
        "{:?} {:?} {:?}",
        left("home"),
        left("tmp"),
        left("work")
    );
    // Nothing of it is left in the cache but what is kept for the next one.
    assert!(left("cache").iter().all(|name| !name.starts_with("session")), "{:?}", left("cache"));
}

#[test]
fn an_interrupted_script_is_answered_as_far_as_it_came() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("train.py");
    std::fs::write(&file, train("").replace("range(100)", "range(10**9)")).unwrap();
    let mut child = Command::new(VRAMLAB)
        .args(["rehearse", "--steps", "all", "--"])
        .args([common::python(), file])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // As a terminal does it, which sends Ctrl-C to all of a group.
        .process_group(0)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().starts_with("step 2 ")), "it never came to its third step");
    let group = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{error}");
    assert!(error.contains("peak allocated") && error.contains("INTERRUPTED: ") && !error.contains("FAILED"), "{error}");
}

#[test]
#[ignore = "long"]
fn cards_that_were_rehearsed_before_an_interruption_have_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "import os, time, torch\ntorch.ones(1 << 20, device='cuda')\nif os.path.exists('ran'): time.sleep(600)\nopen('ran', 'w')";
    let mut child = Command::new(VRAMLAB)
        .args(["rehearse", "--gpu", "all", "--writes", "--"])
        .args([common::python().to_str().unwrap(), "-c", script])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.contains("2 of ")), "it never came to the second rehearsal");
    let group = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::INT).unwrap();
    let rest: Vec<String> = said.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("Interrupted: 1 of ")), "{rest:?}");
    assert!(rest.iter().any(|line| line.trim_start().starts_with("rtx-4060 ")), "{rest:?}");
}

#[test]
fn two_rehearsals_at_once_do_not_meet() {
    let folder = tempfile::tempdir().unwrap();
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let one = |n: usize| {
            let folder = folder.path();
            move || {
                let json = folder.join(format!("{n}.json"));
                let script = format!("import torch\nx = torch.empty({n} << 28, dtype=torch.uint8, device='cuda')\n");
                let output = Command::new(VRAMLAB)
                    .args(["rehearse", "--json", json.to_str().unwrap(), "--"])
                    .args([common::python().to_str().unwrap(), "-c", &script])
                    .output()
                    .unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap()
            }
        };
        let both = [1, 2].map(|n| scope.spawn(one(n)));
        both.into_iter().map(|each| each.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().map(|answer| answer["peak_allocated"].as_i64().unwrap()).collect::<Vec<_>>(), [1 << 28, 2 << 28]);
    assert!(answers.iter().all(|answer| answer["processes"].as_array().unwrap().len() == 1));
}

#[test]
fn a_python_that_cannot_be_rehearsed_is_told_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let bare = folder.path().join("bare");
    assert!(Command::new(common::python()).args(["-m", "venv", "--without-pip"]).arg(&bare).status().unwrap().success());
    let bare = bare.join("bin/python");
    let refuses = |words: &[&str], path: &str, why: &[&str]| {
        let cache = tempfile::tempdir().unwrap();
        let output = Command::new(VRAMLAB)
            .args(["rehearse", "--"])
            .args(words)
            .env("VRAMLAB_CACHE", cache.path())
            .env("PATH", path)
            .env_remove("CXX")
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        let last = error.trim().lines().last().unwrap_or_default();
        assert!(last.starts_with("vramlab: ") && why.iter().all(|part| last.contains(part)), "{words:?}: {error}");
    };
    let path = std::env::var("PATH").unwrap();
    let bare = bare.to_str().unwrap();
    refuses(&[bare, "-c", "import torch"], &path, &["has no PyTorch", "-m pip install torch"]);
    // Packages of this name, of which no more is looked at.
    for (version, cuda, why) in [
        ("2.11.0+cpu", "None", ["built without CUDA", "pip install torch --index-url"]),
        ("2.5.1+cu124", "'12.4'", ["too old", "2.6"]),
    ] {
        let package = folder.path().join(version).join("torch");
        std::fs::create_dir_all(&package).unwrap();
        let text = format!("import types\n__version__ = '{version}'\nversion = types.SimpleNamespace(cuda={cuda})\n");
        std::fs::write(package.join("__init__.py"), text).unwrap();
        let script = folder.path().join(version).join("train.py");
        std::fs::write(&script, "import torch").unwrap();
        refuses(&[bare, script.to_str().unwrap()], &path, &why);
    }
    // A version for which the library has to be compiled, and no compiler.
    let script = "import torch; torch.__version__ = '2.10.99'; torch.ones(1, device='cuda')";
    refuses(&[common::python().to_str().unwrap(), "-c", script], "/nowhere", &["no C++ compiler", "Install g++"]);
}

#[test]
fn a_convolution_takes_the_workspace_that_cudnn_chooses() {
    let script = include_str!("scripts/a_convolution_takes_the_workspace_that_cudnn_chooses.py");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("conv.py");
    std::fs::write(&file, script).unwrap();
    let python = common::python();
    let words = |asked: &'static str| ["env", asked, python.to_str().unwrap(), file.to_str().unwrap()].map(str::to_string);
    let peak = |asked: &'static str| {
        let words = words(asked);
        let seen = command(&["--gpu", "h100"], &words.each_ref().map(String::as_str));
        assert!(seen.output.status.success(), "{}", seen.error());
        seen.bytes("peak_requested")
    };
    // What cuDNN 9.19 answers for this convolution on compute capability 9.0.
    assert_eq!(peak("VRAMLAB_DRY_CUDNN=1") - peak("VRAMLAB_DRY_CUDNN=0"), 25_837_584);
    // A GPU would try more of them, and the answer says so.
    let tries = |command: &str| {
        rehearse(&["--gpu", "h100"], command).error().contains("cuDNN, which tries several algorithms: cudnn.benchmark")
    };
    assert!(tries(&format!("import torch; torch.backends.cudnn.benchmark = True\n{script}")) && !tries(script));
    let without = |flags: &str| {
        let seen = rehearse(&["--gpu", "h100"], &script.replace("with ", &format!("with torch.backends.cudnn.flags({flags}), ")));
        (seen.error().contains("Convolutions run without cuDNN"), seen.json["processes"][0]["without_cudnn"]["line"].clone())
    };
    assert_eq!(without("deterministic=True"), (true, 5.into()));
    assert_eq!(without("deterministic=True, enabled=True"), (false, Value::Null));
}

#[test]
fn attentions_backward_takes_the_workspace_that_cudnn_chooses() {
    let script = include_str!("scripts/attentions_backward_takes_the_workspace_that_cudnn_chooses.py");
    let said = rehearse(&["--gpu", "h200", "--steps", "all"], script).said();
    let peak: i64 = said.lines().find_map(|line| line.strip_prefix("backward ")?.parse().ok()).unwrap();
    let (elements, rows) = (4 * 16 * 1024 * 64, 4 * 16 * 1024);
    // Three gradients in bf16, that of the queries in fp32, too, and a sum for each row.
    let expected = 3 * 2 * elements + 4 * elements + 4 * rows;
    assert!((expected..expected + 1024).contains(&peak), "{peak} for {expected}");
}

#[test]
fn recurrent_networks_take_what_cudnn_keeps_for_them() {
    let script = include_str!("scripts/recurrent_networks_take_what_cudnn_keeps_for_them.py");
    let seen = rehearse(&["--gpu", "h100", "--steps", "10"], script);
    assert!(seen.output.status.success() && seen.said().contains("all"), "{}{}", seen.said(), seen.error());
    // The output, the last states and the first, which are zeros, and what cuDNN 9.19 keeps: gates, and an LSTM's cells.
    let (output, state) = (8 * 8 * 512 * 4, 8 * 512 * 4);
    for (kind, states, kept) in [("LSTM", 4, 5), ("GRU", 2, 6), ("RNN", 2, 1)] {
        let line = format!("{kind} {}\n", output + states * state + kept * output + 256);
        assert!(seen.said().contains(&line), "{line} is missing in: {}", seen.said());
    }
}

#[test]
#[ignore = "long"]
fn operators_of_each_library_work_or_say_what_would_have_to_be_known() {
    let seen = rehearse(&["--steps", "all"], include_str!("operators.py"));
    let said = seen.said();
    let lines: Vec<Vec<&str>> =
        said.lines().map(|line| line.splitn(3, ": ").collect()).filter(|parts: &Vec<_>| parts.len() == 3).collect();
    let of = |library: &str| lines.iter().filter(|parts| parts[0] == library).count();
    for library in
        ["cublas", "cublasLt", "cudnn", "cufft", "cusolver and magma", "cusparse", "cusparseLt", "curand", "nvrtc", "nccl"]
    {
        assert!(of(library) > 0, "nothing of {library} ran: {said}{}", seen.error());
    }
    // By operator and the name under which it refuses.
    let refused = [
        ("lstsq", "aten::linalg_lstsq.out"),
        ("coo @ coo", "aten::_sparse_sparse_matmul"),
        ("csr @ csr", "aten::addmm.out"),
        ("csr + csr", "aten::add.out"),
        ("_cslt_sparse_mm", "aten::_cslt_compress"),
    ];
    for parts in &lines {
        match refused.iter().find(|(name, _)| *name == parts[1]) {
            None => assert_eq!(parts[2], "works", "{} of {}", parts[1], parts[0]),
            Some((_, operator)) => {
                let named = parts[2]
                    .starts_with(&format!("NotImplementedError: The simulated GPU cannot run {operator}: its CUDA code calls "));
                assert!(named && parts[2].contains("would have to be known"), "{}", parts[2]);
            }
        }
    }
    for (name, _) in refused {
        assert!(lines.iter().any(|parts| parts[1] == name), "{name} is not in the script");
    }
}

/// Every operator that is answered by other code than PyTorch's is in the table that says how far its bytes are a GPU's, and what the table
/// says is left to PyTorch is.
#[test]
fn the_table_of_what_is_exact_holds_each_operator_that_the_backend_answers() {
    let script = include_str!("scripts/the_table_of_what_is_exact_holds_each_operator_that_the_backend_answers.py");
    let said = rehearse(&["--steps", "all"], script).said();
    let mut answered: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("answered aten::")).collect();
    answered.sort_unstable();
    let mut own: Vec<&str> = Vec::new();
    let mut ours: Vec<&str> = Vec::new();
    for line in include_str!("../../src/sim/native/kernels/table.cpp").lines() {
        let Some((name, rest)) = line.trim_start().strip_prefix("{\"").and_then(|row| row.split_once("\", Standing::")) else {
            continue;
        };
        // 'as NAME' says of a row what it says of another.
        let like = rest.split_once("\"as ").map_or(name, |(_, other)| other.split(['"', ';']).next().unwrap());
        let is_pytorchs = |line: &str| {
            line.contains(&format!("{{\"{like}\"")) && ["PyTorch's own code", "kLibrary"].iter().any(|text| line.contains(text))
        };
        match include_str!("../../src/sim/native/kernels/table.cpp").lines().any(is_pytorchs) {
            true => own.push(name),
            false => ours.push(name),
        }
    }
    let header = include_str!("../../src/sim/native/kernels/kernels.h").split_once("kLinearAlgebra[] = {").unwrap().1;
    ours.extend(header.split_once("};").unwrap().0.split('"').skip(1).step_by(2));
    ours.sort_unstable();
    assert_eq!(answered, ours);
    assert!(answered.len() > 40 && own.contains(&"cudnn_convolution") && own.contains(&"_fft_r2c"), "{own:?}");
}

/// What a library takes for itself is no part of any figure, and the answer says so; where no such library is at work it says nothing.
#[test]
fn memory_of_libraries_that_nobody_knows_is_named_with_its_line() {
    let seen = Rehearsed::kept("uncounted");
    let rows = seen.json["processes"][0]["uncounted"].as_array().unwrap();
    let has = |operator: &str, library: &str, line: i64| {
        rows.iter().any(|row| {
            row["operator"].as_str().unwrap().contains(operator) && row["library"] == library && row["line"]["line"] == line
        })
    };
    assert!(has("linalg_inv_ex", "cuSOLVER or MAGMA", 4) && has("_fft_r2c", "cuFFT", 5), "{rows:?}");
    assert!(seen.error().contains("_fft_r2c (cuFFT) at ") && seen.error().contains("uncounted.py:5"), "{}", seen.error());
    let plain = rehearse(&[], "import torch\ntorch.nn.Linear(8, 8).cuda()(torch.ones(1, 8, device='cuda')).sum().backward()\n");
    assert_eq!(plain.json["processes"][0]["uncounted"].as_array().unwrap().len(), 0);
    assert!(!plain.error().contains("not counted"));
}

#[test]
fn an_operator_without_kernel_names_its_line() {
    let dense = "y = x @ x\ntorch.linalg.lstsq(y, x)\n";
    let sparse = "y = x.to_sparse_csr()\ny @ y\n";
    for (lines, operator) in [(dense, "aten::linalg_lstsq.out"), (sparse, "aten::addmm.out")] {
        let seen = rehearse(&[], &format!("import torch\nx = torch.eye(8, device='cuda')\n{lines}"));
        assert_eq!(seen.output.status.code(), Some(1), "{}", seen.error());
        let said = seen.error();
        for part in ["THE SCRIPT FAILED", &format!("cannot run {operator}"), "would have to be known", "train.py:4"] {
            assert!(said.contains(part), "{part} is missing in: {said}");
        }
    }
}

/// Large products in bf16, one of a size that is odd.
const TIMED: &str = include_str!("scripts/timed.py");

#[test]
fn the_time_of_a_step_is_predicted_by_card() {
    let seen = rehearse(&["--gpu", "h100", "--gpu", "t4", "--gpu", "24GiB"], TIMED);
    assert!(seen.output.status.success(), "{}", seen.error());
    let time = |at: usize| &seen.json[at]["time"];
    let seconds = |at: usize, field: &str| time(at)[field].as_f64().unwrap_or_else(|| panic!("{field}: {}", seen.json[at]));
    // Two products forward, three backward (the first has no gradient of its input): at most the H100's 989 TFLOP/s.
    let rows = 4096.0;
    let flops = 2.0 * rows * (2.0 * 4096.0 * 8192.0 + 3.0 * 8192.0 * 8191.0);
    assert!((flops / 989.4e12..5.0 * flops / 989.4e12).contains(&seconds(0, "step_seconds")), "{}", time(0));
    // A T4 has 65 TFLOP/s.
    assert!(seconds(1, "step_seconds") > 8.0 * seconds(0, "step_seconds"));
    assert!(seconds(0, "low_seconds") < seconds(0, "step_seconds") && seconds(0, "step_seconds") < seconds(0, "high_seconds"));
    assert_eq!((&time(0)["anchored"], &time(0)["predicted"]), (&true.into(), &true.into()));
    // The H100 is done with it in 8 ms, for which a busy host may need longer.
    assert_eq!(time(1)["bound_by"], "compute", "{}", time(1));
    assert_eq!(time(0)["phases"].as_array().unwrap().len(), 3);
    let first = &time(0)["kernels"][0];
    assert!(
        first["operator"].as_str().unwrap().contains("mm") && first["line"]["file"].as_str().unwrap().ends_with("train.py"),
        "{first}"
    );
    let misaligned = &time(0)["misaligned"][0];
    assert_eq!((&misaligned["size"], &misaligned["padded"]), (&8191.into(), &8192.into()), "{}", time(0)["misaligned"]);
    assert!(seen.json[2]["time"].is_null() && seen.json[2]["time_missing"].as_str().unwrap().contains("size alone"));
    assert!(seen.error().contains("(predicted)"), "{}", seen.error());
    assert_eq!((&time(0)["samples"], &time(0)["tokens"]), (&4096.into(), &Value::Null));
    assert!((seconds(0, "samples_per_second") * seconds(0, "step_seconds") / 4096.0 - 1.0).abs() < 1e-9);
    assert!(seen.error().contains(" samples/s"), "{}", seen.error());
}

#[test]
fn a_convolution_with_a_bias_has_time_both_ways_and_channels_first_pay_for_their_layout() {
    let seen = Rehearsed::kept("layouts");
    let kernels = seen.json["time"]["kernels"].as_array().unwrap_or_else(|| panic!("{}", seen.error()));
    let seconds = |line: u64, backward: bool| {
        let is_it = |kernel: &&Value| {
            let is_convolution = kernel["operator"].as_str().is_some_and(|name| name.contains("convolution"));
            is_convolution && kernel["line"]["line"] == line && kernel["backward"] == backward
        };
        kernels.iter().find(is_it).and_then(|kernel| kernel["seconds"].as_f64()).unwrap_or_else(|| panic!("{line}: {kernels:?}"))
    };
    for line in [12, 13] {
        let share = seconds(line, true) / seconds(line, false);
        assert!((1.5..3.0).contains(&share), "twice the products backward: {share}");
    }
    // Both ways its tensors are read and written once more.
    for backward in [false, true] {
        let share = seconds(12, backward) / seconds(13, backward);
        assert!((1.2..4.0).contains(&share), "{share}");
    }
}

#[test]
fn a_step_of_small_kernels_is_bound_by_its_host() {
    let script = include_str!("scripts/a_step_of_small_kernels_is_bound_by_its_host.py");
    let seen = rehearse(&["--gpu", "h100", "--host-factor", "2"], script);
    let time = &seen.json["time"];
    assert_eq!(time["bound_by"], "launches", "{}", seen.error());
    assert!(
        time["host_seconds"].as_f64() > time["device_seconds"].as_f64() && time["launches"].as_u64().unwrap() >= 1200,
        "{time}"
    );
    assert!(seen.error().contains("bound by launches") && seen.error().contains("times 2"), "{}", seen.error());
    // One host for all cards of a command, whatever this machine does beside each.
    let both = rehearse(&["--gpu", "h100", "--gpu", "a100-40g", "--host-factor", "2"], script);
    let host = |card: usize| both.json[card]["time"]["host_seconds"].as_f64().unwrap();
    assert_eq!(host(0), host(1), "{}", both.error());
    let refused = rehearse(&["--gpu", "h100", "--host-factor", "0"], script);
    assert!(refused.output.status.code() == Some(2) && refused.error().contains("--host-factor 0: write"), "{}", refused.error());
}

/// Data sets that sleep, so that a busy machine changes nothing: one for half a second a batch in workers, one for nothing in the script's process.
#[test]
fn what_the_loader_gives_is_set_beside_what_the_card_consumes() {
    is_set_beside_what_the_card_consumes(&["'fork'"]);
}

#[test]
#[ignore = "long"]
fn what_a_loader_gives_that_spawns_its_workers_is_set_beside_what_the_card_consumes() {
    is_set_beside_what_the_card_consumes(&["'spawn'"]);
}

fn is_set_beside_what_the_card_consumes(methods: &[&str]) {
    let script = |seconds: f64, workers: usize, method: &str| {
        format!(
            "
import time, torch

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, at):
        time.sleep({seconds} / 16)
        return torch.ones(256), at

if __name__ == '__main__':
    model = torch.nn.Linear(256, 10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in torch.utils.data.DataLoader(Images(), 16, num_workers={workers}, multiprocessing_context={method}):
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda() % 10).backward()
        optimizer.step()
        optimizer.zero_grad()
"
        )
    };
    for method in methods {
        let seen = rehearse(&["--gpu", "h100"], &script(0.5, 2, method));
        let loading = &seen.json["time"]["loading"];
        let number =
            |field: &str| loading[field].as_f64().unwrap_or_else(|| panic!("{field}: {}, {}", seen.json["time"], seen.error()));
        assert_eq!((&loading["loader"], &loading["workers"]), (&"Images of 256 samples".into(), &2.into()));
        assert!(number("seconds_per_batch") >= 0.5 && number("gives_per_second") <= 64.0, "{loading}");
        assert!(number("waits") > 0.5 && number("workers_needed") > 2.0, "{loading}");
        // 256 samples in batches of 16.
        let (time, epoch) = (&seen.json["time"], &seen.json["time"]["epoch"]);
        assert_eq!((&epoch["steps"], &epoch["cost"]), (&16.into(), &serde_json::Value::Null));
        assert!((epoch["seconds"].as_f64().unwrap() / time["step_seconds"].as_f64().unwrap() - 16.0).abs() < 1e-9, "{epoch}");
        assert!(seen.error().contains("An epoch is 16 steps: "), "{}", seen.error());
        // Without a step it has as many forward passes, also where the second one runs out of memory.
        let fills = "torch.empty(globals().setdefault('n', []).append(0) or (len(n) > 1) << 38, device='cuda')";
        let scores = script(0.5, 2, method).replace(".backward()", "").replace("optimizer.step()", fills);
        let scored = rehearse(&["--gpu", "h100"], &scores);
        assert!(scored.error().contains("An epoch is 16 forward passes: "), "{}", scored.error());
        assert!(
            seen.error().contains("your loader gives") && seen.error().contains("workers of this CPU would do"),
            "{}",
            seen.error()
        );
    }
    // Without workers the host loads, between its launches.
    let seen = rehearse(&["--gpu", "h100"], &script(0.5, 0, "None"));
    assert!(seen.json["time"]["loading"]["waits"].as_f64() > Some(0.5), "{}", seen.json["time"]["loading"]);
    let said = seen.error();
    assert!(said.contains("with the processor time of loading its data") && !said.contains("time: loading of data"), "{said}");
    // A fast one beside a step that takes a T4 a second: 13 TFLOP in fp32, of which it has 8 in a second.
    let layers = "torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.Linear(4096, 4096), torch.nn.Linear(4096, 10))";
    let large =
        script(0.0, 1, "'fork'").replace("torch.nn.Linear(256, 10)", layers).replace("x.cuda()", "x.cuda().repeat(4096, 1)");
    let seen = rehearse(&["--gpu", "t4"], &large.replace("y.cuda()", "y.cuda().repeat(4096)"));
    assert_eq!(seen.json["time"]["loading"]["workers_needed"], 1, "{}", seen.json["time"]["loading"]);
    assert!(seen.error().contains("it does not wait"), "{}", seen.error());
}

#[test]
fn the_program_alone_helps_and_says_what_measuring_takes() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("vramlab");
    std::fs::copy(VRAMLAB, &alone).unwrap();
    let said = |word: &str| {
        let output = Command::new(&alone).arg(word).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    for word in ["--help", "help"] {
        let (status, text) = said(word);
        assert!(status == Some(0) && ["rehearse", "fit", "run-all", "doctor"].iter().all(|name| text.contains(name)), "{text}");
    }
    let (status, text) = said("doctor");
    assert!(status == Some(1) && text.contains("this command is the lab's") && text.contains("just doctor"), "{text}");
}

#[test]
fn a_captured_step_takes_the_time_of_its_kernels_with_each_replay() {
    let script = include_str!("scripts/a_captured_step_takes_the_time_of_its_kernels_with_each_replay.py");
    let command = |words: &[&str]| -> Rehearsed {
        let seen = command(&["--gpu", "a100-80g"], &[&[common::python().to_str().unwrap(), "-c", script], words].concat());
        assert!(seen.output.status.success() && seen.json["steps"] == 3, "{} {}", seen.json["steps"], seen.error());
        seen
    };
    let (plain, captured) = (command(&[]), command(&["captured"]));
    let seconds = |seen: &Rehearsed| seen.json["time"]["device_seconds"].as_f64().unwrap();
    let share = seconds(&captured) / seconds(&plain);
    assert!((0.98..1.02).contains(&share), "{share}");
    assert!(captured.json["time"]["host_seconds"].as_f64() < plain.json["time"]["host_seconds"].as_f64());
}
