//! `vramlab gpu-day --rehearse`: the day on a machine with a GPU, run without one.

use std::path::Path;
use std::process::{Command, Output};

fn day(out: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vramlab-lab")).args(["gpu-day", "--rehearse", "--out"]).arg(out).args(flags).output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "long"]
fn a_rehearsed_day_runs_each_task_once_and_packs_what_came_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("day");
    // NVML is used there as nowhere else.
    let only = ["--only", "doctor,kernels,outside,smoke-empty_cache,smoke-profiling,decide-amp,events-inference-128,times"];
    let first = said(&day(&out, &only));
    assert!(first.contains("8 of 8 done") && first.contains("smoke-empty_cache (at most"), "{first}");
    // 2 cells of one claim: a check and three rounds of each.
    assert!(first.contains("decide-amp: 8 passes, at most 60 s, decides amp-faster"), "{first}");
    assert!(first.contains("in all "), "{first}");
    assert!(folder.path().join("day.tar.xz").metadata().unwrap().len() > 1000);
    // Checks and times run, too, and leave no figure.
    let mut machines = std::fs::read_dir(out.join("smoke")).unwrap().map(|entry| entry.unwrap().path());
    let machine = machines.find(|path| !path.ends_with("protocols")).unwrap();
    let rows = std::fs::read_to_string(machine.join("empty_cache/samples.csv")).unwrap();
    assert!(rows.contains("in the place of a real one") && !rows.contains(",time,"), "{rows}");
    let outside = std::fs::read_to_string(out.join("outside.log")).unwrap();
    assert!(outside.contains("\nNCCL, one rank,760,") && out.join("kernels.csv").exists(), "{outside}");
    let events = std::fs::read_to_string(out.join("events-inference-128.log")).unwrap();
    let found = events.lines().find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()).unwrap_or_default();
    let [identical, measured] = ["identical", "measured"].map(|what| found[what].as_u64());
    assert!(identical == measured && identical.is_some_and(|events| events > 1000), "{events}");
    // The clock is a real GPU's; what it would be held against is there.
    let times = std::fs::read_to_string(out.join("times.log")).unwrap();
    let row = times.lines().find_map(|line| line.strip_prefix("gpt-plain,")).unwrap_or_default();
    let seconds = row.split(',').next().and_then(|seconds| seconds.parse::<f64>().ok());
    assert!(seconds.is_some_and(|seconds| (0.005..0.5).contains(&seconds)) && row.contains(",-,"), "{times}");
    // It goes on, and nothing is left.
    let second = said(&day(&out, &only));
    assert!(second.contains("8 of 8 done") && !second.contains("(at most"), "{second}");
}

#[test]
fn an_unknown_task_is_told_which_there_are() {
    let output = day(Path::new("never-made"), &["--only", "nothing"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("pin_memory") && !Path::new("never-made").exists(), "{error}");
}

#[test]
fn overruns_of_a_gpu_day_are_stopped() {
    let checks = r#"
import subprocess, time, day
tasks = list(day.DAY)
assert tasks[:len(day.OPEN)] == list(day.OPEN) and sum(day.DAY[task] for task in day.OPEN) == 845 <= day.QUARTER
decided = [claim for claims, _ in day.DECIDES.values() for claim in claims]
missing = {"pin-faster", "pin-larger", "pin-training", "pin-small", "to-device", "amp-faster", "peak-statistics"} - set(decided)
assert not missing and set(day.DECIDES) == {task[7:] for task in tasks if task.startswith("decide-")}, missing
begin = time.monotonic()
assert day.wait(["sh", "-c", "sleep 60 & wait"], begin + 0.2, subprocess.DEVNULL) is None and time.monotonic() < begin + 60
assert day.wait(["false"], begin + 60, subprocess.DEVNULL) == 1
"#;
    let folder = common::root().join("records/gpus");
    let output = Command::new("python3").args(["-B", "-c", checks]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
