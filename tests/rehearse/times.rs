//! What predicted times are made of: classes of operators, a card's own constants, prices.

use super::scene::{VRAMLAB, vramlab};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;

fn run(folder: &Path, words: &[&str]) -> (Output, String) {
    let output = vramlab().args(words).current_dir(folder).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, error)
}

#[test]
fn each_operator_counts_as_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{}/../../tests/rehearse/classes.py", env!("CARGO_MANIFEST_DIR"));
    let python = common::python();
    let words = ["rehearse", "--gpu", "h100", "--quiet", "--steps", "all", "--", python.to_str().unwrap(), &script];
    let (output, error) = run(folder.path(), &words);
    assert!(output.status.success(), "{error}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let found: Vec<&str> = said.lines().filter(|line| line.starts_with("class ")).collect();
    let expected: Vec<&str> = include_str!("classes.txt").lines().collect();
    let differ =
        |a: &[&str], b: &[&str]| a.iter().filter(|line| !b.contains(line)).map(ToString::to_string).collect::<Vec<String>>();
    assert!(found == expected, "too many: {:#?}, missing: {:#?}", differ(&found, &expected), differ(&expected, &found));
}

const PRODUCTS: &str = "
import torch
model = torch.nn.Linear(4096, 4096, device='cuda', dtype=torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8192, 4096, device='cuda', dtype=torch.bfloat16)
for _ in torch.utils.data.DataLoader(range(30), batch_size=10):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
";

#[test]
fn prices_are_used_and_odd_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (at, python) = (|name: &str| folder.path().join(name), common::python());
    let python = python.to_str().unwrap();
    let run = |words: &[&str]| run(folder.path(), words);
    fs::write(at("train.py"), PRODUCTS).unwrap();
    fs::write(
        at("prices.csv"),
        "card,per_hour,currency,date,source\nRTX 4090,0.5,USD,2026-11-25,a seller, here\nt4,0.04,USD,2026-11-20,another\n",
    )
    .unwrap();
    let flags = ["--gpu", "rtx-4090,t4,24GiB", "--prices", "prices.csv", "--json", "answer.json"];
    let (output, error) = run(&[&["rehearse"], &flags[..], &["--", python, "train.py"]].concat());
    assert!(output.status.success(), "{error}");
    let answers: Value = serde_json::from_str(&fs::read_to_string(at("answer.json")).unwrap()).unwrap();
    let time = &answers[0]["time"];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{time}"));
    let cost = &time["cost"];
    assert!((number(&cost["of_1000_steps"]) / (number(&time["step_seconds"]) / 3.6 * 0.5) - 1.0).abs() < 1e-9, "{cost}");
    let epoch = &time["epoch"];
    assert_eq!(epoch["steps"], 3, "{time}");
    assert!((number(&epoch["cost"][0]) / number(&cost["of_1000_steps"]) - 0.003).abs() < 1e-9, "{epoch}");
    assert_eq!(
        (&cost["currency"], &cost["date"], &cost["source"]),
        (&"USD".into(), &"2026-11-25".into(), &"a seller, here".into())
    );
    assert!(
        error.contains("1000 steps") && error.contains("cost least on t4") && error.contains("2026-11-20 to 2026-11-25"),
        "{error}"
    );
    for (flag, file, why) in
        [("--prices", "train.py", "no file of prices"), ("--constants", "prices.csv", "no file of vramlab calibrate")]
    {
        let (output, error) = run(&["rehearse", "--gpu", "t4", flag, file, "--", python, "train.py"]);
        assert!(output.status.code() == Some(2) && error.contains(why), "{error}");
    }
}

/// The list, the times of the simulated GPU, and what a prediction does with times as if a real card had taken them.
#[test]
fn the_kernels_of_a_kept_rehearsal_are_timed_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let (at, python) = (|name: &str| folder.path().join(name), common::python());
    let python = python.to_str().unwrap();
    let run = |words: &[&str]| run(folder.path(), words);
    fs::write(at("train.py"), PRODUCTS).unwrap();
    let (output, error) =
        run(&["rehearse", "--gpu", "rtx-4090", "--keep", "run.vramlab", "--json", "by-formula.json", "--", python, "train.py"]);
    assert!(output.status.success(), "{error}");
    let (output, error) = run(&["calibrate", "--for", "run.vramlab", "--list", "list.csv"]);
    assert!(output.status.success(), "{error}");
    let begin = ["rehearse", "--gpu", "rtx-4090", "--writes", "--steps", "all", "--quiet", "--"];
    let (output, error) =
        run(&[&begin[..], &[VRAMLAB, "calibrate", "--for", "list.csv", "run.vramlab", "--python", python]].concat());
    assert!(output.status.success() && error.contains("these times mean nothing") && !error.contains("left out"), "{error}");
    let rows = fs::read_to_string(at("kernels.csv")).unwrap();
    assert_eq!(rows.lines().count(), fs::read_to_string(at("list.csv")).unwrap().lines().count(), "each once");
    for kernel in ["rtx-4090,mm,matmul,half,", "rtx-4090,addmm,matmul,half,", ",optimizer,half,", ",reduction,half,"] {
        assert!(rows.contains(kernel), "{kernel}: {rows}");
    }
    let (output, error) = run(&["rehearse", "--gpu", "rtx-4090", "--constants", "kernels.csv", "--", python, "train.py"]);
    assert!(output.status.code() == Some(2) && error.contains("was written on a simulated GPU"), "{error}");
    // At 100 TFLOP/s and 500 GB/s.
    let head = rows.lines().next().unwrap().to_string();
    let column = |name: &str| head.split(',').position(|column| column == name).unwrap();
    let (flops, bytes, count, seconds) = (column("flops"), column("bytes"), column("count"), column("seconds"));
    let (mut timed, mut whole) = (format!("{head}\n"), 0.0);
    for line in rows.lines().skip(1) {
        let mut fields: Vec<String> = line.split(',').map(str::to_string).collect();
        let number = |at: usize| fields[at].parse::<f64>().unwrap();
        let takes = number(flops) / 1e14 + number(bytes) / 5e11;
        whole += takes * number(count);
        (fields[seconds], fields[seconds + 1]) = (takes.to_string(), "0".to_string());
        timed += &(fields.join(",") + "\n");
    }
    fs::write(at("kernels.csv"), &timed).unwrap();
    let words = ["rehearse", "--gpu", "rtx-4090", "--constants", "kernels.csv", "--json", "timed.json", "--", python, "train.py"];
    let (output, error) = run(&words);
    assert!(output.status.success() && error.contains("100 % of this time is of kernels timed on this card"), "{error}");
    let time = |name: &str| serde_json::from_str::<Value>(&fs::read_to_string(at(name)).unwrap()).unwrap()["time"].clone();
    let (by_formula, predicted) = (time("by-formula.json"), time("timed.json"));
    let number = |of: &Value, name: &str| of[name].as_f64().unwrap_or_else(|| panic!("{name}: {of}"));
    assert!((number(&predicted, "device_seconds") / whole - 1.0).abs() < 1e-3, "{whole} {predicted}");
    assert_eq!((number(&by_formula, "timed_share"), number(&predicted, "timed_share")), (0.0, 1.0));
    let width = |of: &Value| number(of, "high_seconds") / number(of, "low_seconds");
    assert!(width(&predicted) < width(&by_formula), "{predicted} {by_formula}");
    let (output, error) = run(&["contribute", "kernels.csv"]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("kernels of rtx-4090"), "{error}");
    // On a simulated GPU, and faster than any card can be.
    let at_once = |line: &str| {
        let mut fields: Vec<&str> = line.split(',').collect();
        fields[seconds] = if fields[0] == "card" { "seconds" } else { "1e-9" };
        fields.join(",") + "\n"
    };
    let too_fast: String = timed.lines().map(at_once).collect();
    for (text, why) in [(rows, "simulated"), (too_fast, "at the card's peak")] {
        fs::write(at("kernels.csv"), text).unwrap();
        let (output, error) = run(&["contribute", "kernels.csv"]);
        assert!(!output.status.success() && error.contains("must not be contributed") && error.contains(why), "{error}");
    }
}

/// A product of 2 * 8192^3 FLOPs, timed as scripts do it: by events, and by the clock. An H100's tensor cores do 989 TFLOP/s at most.
const TIMED: &str = "
import time, torch
from time import perf_counter
a = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16)
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
for _ in range(10):
    a @ a
end.record()
torch.cuda.synchronize()
print('events', begin.elapsed_time(end) / 1e3)
since = perf_counter()
for _ in range(10):
    a @ a
torch.cuda.synchronize()
print('clock', perf_counter() - since)
since = time.time()
time.sleep(0.3)
while time.time() - since < 0.4:
    pass
print('slept', time.time() - since)
model = torch.nn.Linear(8192, 8192, device='cuda', dtype=torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = []
for _ in range(9):
    since = time.time()
    loss = model(a).sum()
    model(a).mean()  # a metric, of the same samples
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
    steps.append(time.time() - since)
# One alone moves with what else this machine does.
print('step', sorted(steps[2:])[3])
";

#[test]
fn a_scripts_clocks_advance_by_predicted_time() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("timed.py"), TIMED).unwrap();
    let python = common::python();
    let run = |flags: &[&str]| {
        let words = ["--steps", "all", "--json", "answer.json", "--", python.to_str().unwrap(), "timed.py"];
        let (output, error) = run(folder.path(), &[&["rehearse"], flags, &words].concat());
        assert!(output.status.success(), "{error}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let of = |name: &str| -> f64 {
            let line = said.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {said}"));
            line.trim().parse().unwrap()
        };
        let seconds = ["events", "clock", "slept", "step"].map(of);
        let answer: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("answer.json")).unwrap()).unwrap();
        (seconds, answer["time"]["step_seconds"].as_f64().unwrap_or(0.0), error)
    };
    let products = 10.0 * 2.0 * 8192.0_f64.powi(3) / 989e12;
    let ([events, clock, slept, step], predicted, _) = run(&["--gpu", "h100", "--clock"]);
    assert!((1.0..3.0).contains(&(events / products)), "{events}");
    assert!((clock / events - 1.0).abs() < 0.1, "{clock} beside {events}");
    assert!((0.4..0.6).contains(&slept), "{slept}");
    assert!((step / predicted - 1.0).abs() < 0.25, "{step} beside {predicted}");
    let answer: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("answer.json")).unwrap()).unwrap();
    assert_eq!(answer["time"]["samples"], 8192, "{}", answer["time"]);
    // Without the flag events alone are predicted, and what the script's clock says is called this machine's.
    let ([events_alone, ..], _, error) = run(&["--gpu", "h100"]);
    assert!((events_alone / events - 1.0).abs() < 0.1, "{events_alone} beside {events}");
    for part in ["elapsed_time of CUDA events is predicted", "the script reads the clock (timed.py:"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// The step that ran out of memory had taken its batch, and the loader one more ahead of it.
#[test]
fn an_epoch_is_as_many_steps_whether_or_not_the_last_one_ended() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
import sys, torch
def ahead(batches):
    batches = iter(batches)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x,) in enumerate(ahead(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(64, 1024)), batch_size=4))):
    loss = model(x.cuda()).square().mean()
    if step == int(sys.argv[1]):
        torch.empty(1 << 40, device='cuda')
    loss.backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
";
    fs::write(folder.path().join("train.py"), script).unwrap();
    let python = common::python();
    // Of sixteen batches two make a step; memory runs out in the second micro-batch of the second step, in its first one, or never.
    for fails in ["3", "2", "99"] {
        let words = ["rehearse", "--gpu", "rtx-4090", "--json", "answer.json", "--", python.to_str().unwrap(), "train.py", fails];
        let (_, error) = run(folder.path(), &words);
        let answer: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("answer.json")).unwrap()).unwrap();
        assert_eq!(answer["time"]["loading"]["steps_per_epoch"], 8, "{fails}: {error}");
    }
    // As of an attack whose every batch has steps of its own, more than are rehearsed: how many is not known.
    fs::write(folder.path().join("attack.py"), ATTACK).unwrap();
    let of_steps = |steps: &str| {
        let words = [
            "rehearse",
            "--gpu",
            "rtx-4090",
            "--steps",
            steps,
            "--json",
            "answer.json",
            "--",
            python.to_str().unwrap(),
            "attack.py",
        ];
        let (_, error) = run(folder.path(), &words);
        let answer: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("answer.json")).unwrap()).unwrap();
        (error, answer["time"]["epoch"]["steps"].clone())
    };
    let (said, epoch) = of_steps("3");
    assert!(epoch.is_null() && said.contains("the steps of an epoch are not known; --steps 30 shows more"), "{epoch} {said}");
    assert_eq!(of_steps("all").1, 64);
}

/// Four steps for each of sixteen batches.
const ATTACK: &str = "
import torch
model = torch.nn.Linear(1024, 1024).cuda().requires_grad_(False)
for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(64, 1024)), batch_size=4):
    x = x.cuda().requires_grad_()
    optimizer = torch.optim.Adam([x])
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
";
