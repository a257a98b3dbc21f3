//! What somebody meets who has nothing but README: names of cards, and what is told where a command cannot be rehearsed.

use serde_json::Value;
use std::process::{Command, Output};

fn vramlab(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vramlab")).args(words).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_program_alone_says_what_to_type() {
    let alone = said(&vramlab(&[]));
    for part in ["vramlab rehearse --gpu rtx-4090 -- python train.py", "--what-if", "vramlab gpus"] {
        assert!(alone.contains(part), "{part}: {alone}");
    }
    // No line of a terminal's help is wider than that.
    let help = said(&vramlab(&["rehearse", "--help"]));
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    // Where the lab is not built, as after pip, the way to it is one that there is.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("vramlab");
    std::fs::copy(env!("CARGO_BIN_EXE_vramlab"), &copy).unwrap();
    let lab = said(&Command::new(copy).arg("doctor").output().unwrap());
    assert!(lab.contains("just doctor") && !lab.contains("just setup"), "{lab}");
}

#[test]
fn cards_are_listed_with_their_sources() {
    let listed = said(&vramlab(&["gpus"]));
    assert!(listed.lines().filter(|line| line.contains("GiB") && line.contains('.')).count() >= 45, "{listed}");
    let one = said(&vramlab(&["gpus", "NVIDIA GeForce RTX 5070 Ti"]));
    assert!(one.starts_with("rtx-5070-ti ") && one.contains("Blackwell whitepaper") && one.contains("15833 MiB"), "{one}");
    let cards: Value = serde_json::from_slice(&vramlab(&["gpus", "--json", "-"]).stdout).unwrap();
    let cards = cards.as_array().unwrap();
    let a100 = cards.iter().find(|card| card["name"] == "a100-40g").unwrap();
    assert_eq!((&a100["bandwidth"], &a100["compute_capability"]), (&Value::from(1555e9), &"8.0".into()));
    let whole = |card: &Value| ["memory", "usable", "l2", "multiprocessors"].iter().all(|field| card[field].as_u64() > Some(0));
    assert!(cards.len() >= 45 && cards.iter().all(whole));
    assert!(said(&vramlab(&["gpus", "24GiB"])).contains("24GiB is a size"));
    let unknown = vramlab(&["gpus", "rx-7900"]);
    assert!(!unknown.status.success() && said(&unknown).contains("`vramlab gpus` lists"), "{}", said(&unknown));
}

/// A folder with scripts in it, and a rehearsal there.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new(files: &[(&str, &str)]) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Scene(folder)
    }

    fn run(&self, flags: &[&str], command: &[&str]) -> Output {
        let python = common::python();
        let python = python.to_str().unwrap();
        let command = command.iter().map(|word| if *word == "python" { python } else { word });
        let mut program = Command::new(env!("CARGO_BIN_EXE_vramlab"));
        program.current_dir(self.0.path()).arg("rehearse").args(flags).arg("--").args(command).output().unwrap()
    }
}

#[test]
fn a_command_that_does_not_come_to_torch_is_told_what_is_wrong_with_it() {
    let scene = Scene::new(&[
        ("gpu.py", "import torch\n"),
        ("run.sh", "python gpu.py\n"),
        ("nb.ipynb", "{}"),
        ("syntax.py", "for i in range(3)\n    print(i)\n"),
        (
            "arguments.py",
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()\nimport torch\n",
        ),
        ("hello.py", "print('hello')\n"),
    ]);
    let cases: [(&[&str], i32, &str); 12] = [
        (&["gpu.py", "--batch", "8"], 2, "write -- python gpu.py --batch 8"),
        (&["missing.py"], 2, "there is no file 'missing.py' here"),
        (&["python", "missing.py"], 2, "there is no file 'missing.py' in "),
        (&["./run.sh"], 2, "write -- bash ./run.sh"),
        (&["python gpu.py"], 2, "is one word: write it without quotes, -- python gpu.py"),
        (&["nb.ipynb"], 2, "jupyter execute nb.ipynb"),
        (&["python", "nb.ipynb"], 2, "jupyter nbconvert --to script nb.ipynb, then -- python nb.py"),
        (&["."], 2, "is a folder; name the program"),
        (&["sh", "-c", "exit 7"], 1, "failed before it started a Python: it ended with status 7"),
        (&["python", "syntax.py"], 1, "'syntax.py' failed before it imported torch: it ended with status 1"),
        (&["python", "arguments.py"], 1, "it ended with status 2 (2 is how argparse refuses a command line"),
        (&["python", "hello.py"], 2, "'hello.py' ran and never imported torch"),
    ];
    for (command, status, why) in cases {
        let output = scene.run(&[], command);
        let text = said(&output);
        let last = text.trim().lines().last().unwrap_or_default();
        assert!(output.status.code() == Some(status) && last.starts_with("vramlab: ") && last.contains(why), "{command:?}: {text}");
    }
}

const ON_CPU: &str = "
import argparse, sys, time, torch
parser = argparse.ArgumentParser()
parser.add_argument('--device', default='cpu')
parser.add_argument('--endless', action='store_true')
parser.add_argument('--count', action='store_true')
told = parser.parse_args()
assert not told.count or torch.cuda.device_count() > 1, 'needs two GPUs'
model = torch.nn.Linear(8, 8, device=told.device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
made = 0
while made < 2 or told.endless:
    model(torch.ones(8, 8, device=told.device)).sum().backward()
    optimizer.step()
    made += 1
    time.sleep(4 if told.endless else 0)
";

const RANKS: &str = "
import socket, time, torch
def work(rank, port):
    torch.distributed.init_process_group('nccl', init_method=f'tcp://localhost:{port}', rank=rank, world_size=2)
    torch.cuda.set_device(rank)
    x = torch.ones(1, device='cuda')
    time.sleep(100)
if __name__ == '__main__':
    with socket.socket() as free:
        free.bind(('localhost', 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (port,), 2)
";

#[test]
fn a_script_that_stays_on_the_cpu_or_wants_more_gpus_is_told_the_flag() {
    let without = "import torch\ntorch.nn.Linear(8, 8)(torch.ones(8)).sum().backward()\n";
    let scene = Scene::new(&[("train.py", ON_CPU), ("plain.py", without)]);
    let short = scene.run(&["--gpu", "t4"], &["python", "train.py"]);
    assert_eq!(short.status.code(), Some(2), "{}", said(&short));
    assert!(
        said(&short).contains("'train.py' ran on the CPU and never used the GPU; it has --device: set that"),
        "{}",
        said(&short)
    );
    let one = said(&scene.run(&["--gpu", "t4"], &["python", "train.py", "--count"]));
    assert!(one.contains("THE SCRIPT FAILED: AssertionError") && one.contains("--gpus 2 shows it more"), "{one}");
    let plain = said(&scene.run(&["--gpu", "t4"], &["python", "plain.py"]));
    assert!(plain.contains("have it put its model and batches on the GPU"), "{plain}");
}

/// One that would train for ever is ended, after it was said what goes on; and ranks that a script spawns are as many as they are.
#[test]
#[ignore = "long"]
fn a_script_that_trains_for_ever_on_the_cpu_is_ended_and_a_rank_that_finds_no_gpu_is_named() {
    let scene = Scene::new(&[("train.py", ON_CPU), ("ranks.py", RANKS)]);
    let endless = said(&scene.run(&["--gpu", "t4", "--timeout", "300"], &["python", "train.py", "--endless"]));
    assert!(endless.contains("20 s: torch is "), "{endless}");
    assert!(endless.contains("optimizer steps on the CPU and was ended; it has --device: set that"), "{endless}");
    let one = said(&scene.run(&["--gpu", "t4"], &["python", "ranks.py"]));
    assert!(one.contains(" on rank 1 (process ") && one.contains("At ranks.py:5 (work)"), "{one}");
    assert!(one.contains("--gpus 2 shows it more") && !one.contains("the command did not end well"), "{one}");
}

const SIZED: &str = "
import os, torch
print('hello from the script')
open('runs', 'a').write('x')
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.ones(64, 4096, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
";

#[test]
fn cards_that_differ_by_their_size_share_a_rehearsal_and_json_stands_alone() {
    let scene = Scene::new(&[("train.py", SIZED)]);
    let output = scene.run(&["--gpu", "600MiB,900MiB, 24GiB", "--writes", "--json", "-"], &["python", "train.py"]);
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(error.contains("hello from the script") && error.contains("needs"), "{error}");
    let answers: Value = serde_json::from_str(&out).unwrap_or_else(|why| panic!("{why}: {out}{error}"));
    let verdicts: Vec<&str> = answers.as_array().unwrap().iter().map(|answer| answer["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["does_not_fit", "barely_fits", "fits"], "{error}");
    assert_eq!(output.status.code(), Some(3));
    // Once for all, and once on the largest on which it does not fit: it might go on with less there.
    assert_eq!(std::fs::read_to_string(scene.0.path().join("runs")).unwrap(), "xx");
    // As a rehearsal of that size says.
    let alone = scene.run(&["--gpu", "900MiB", "--writes", "--json", "alone.json"], &["python", "train.py"]);
    assert!(alone.status.success(), "{}", said(&alone));
    let alone: Value = serde_json::from_slice(&std::fs::read(scene.0.path().join("alone.json")).unwrap()).unwrap();
    for field in ["peak_on_device", "needs_at_least", "headroom", "verdict", "gpu", "steps"] {
        assert_eq!(answers[1][field], alone[field], "{field}");
    }
}

#[test]
#[ignore = "long"]
fn all_cards_are_as_many_rehearsals_as_there_are_compute_capabilities() {
    let scene = Scene::new(&[("train.py", SIZED)]);
    let all = scene.run(&["--gpu", "all", "--writes"], &["python", "train.py"]);
    let text = said(&all);
    let fits = text.lines().filter(|line| line.split_whitespace().nth(1) == Some("fits")).count();
    assert!(all.status.success() && fits >= 40 && text.contains("a100-40g"), "{text}");
    let runs = std::fs::read_to_string(scene.0.path().join("runs")).unwrap().len();
    assert!((8..=11).contains(&runs), "{runs} rehearsals: one for each compute capability");
}
