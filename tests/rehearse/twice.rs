//! The same command gives the same answer.

use super::scene::vramlab;
use serde_json::Value;
use std::path::Path;

/// Of `tests/rehearse`. Not among them: `functional`, where PyTorch frees what `vmap` made in the order of addresses, and what would compile twice.
const SCRIPTS: [&str; 20] = [
    "captures/attention.py",
    "captures/checkpoints.py",
    "captures/convolutions.py",
    "captures/evaluation.py",
    "captures/fails.py",
    "captures/generation.py",
    "captures/kept_graphs.py",
    "captures/leak.py",
    "captures/own_clock.py",
    "captures/placeholder.py",
    "captures/refused.py",
    "captures/smaller_batch.py",
    "captures/stale_logits.py",
    "captures/tokens.py",
    "captures/training.py",
    "captures/two_on_a_card.py",
    "captures/workers.py",
    "convnet.py",
    "large_vocabulary.py",
    "scripts/recurrent_networks_take_what_cudnn_keeps_for_them.py",
];

/// Three times, and with cuDNN's choice by time, which is made of times that mean nothing here.
const BENCHMARKS: &str = "
import torch
from torch import nn
torch.backends.cudnn.benchmark = True
def block(i, o, stride):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, 1, 1), nn.BatchNorm2d(o), nn.ReLU())
model = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), *(block(*sizes) for sizes in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for batch in (64, 64, 48, 64):
    x, y = torch.randn(batch, 3, 224, 224, device='cuda'), torch.randint(1000, (batch,), device='cuda')
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step(); optimizer.zero_grad()
";

fn answer(folder: &Path, script: &Path) -> Value {
    let file = folder.join("answer.json");
    std::fs::remove_file(&file).ok();
    let output = vramlab()
        .args(["rehearse", "--gpu", "rtx-4090", "--quiet", "--json"])
        .args([&file, Path::new("--"), &common::python(), script])
        .current_dir(folder)
        .output()
        .unwrap();
    let text = std::fs::read(&file).unwrap_or_else(|why| panic!("{}: {why} {output:?}", script.display()));
    serde_json::from_slice(&text).unwrap()
}

/// Without what is of the processes that ran, and what the host took: a script that loads its data does work of its own, which is measured.
fn lasting(value: &mut Value) {
    if let Some(all) = value.as_object_mut() {
        if all.get("time").is_some_and(|time| !time["loading"].is_null()) {
            all.remove("time");
        }
        all.retain(|name, _| !["process", "host", "loading"].contains(&name.as_str()));
        all.values_mut().for_each(lasting);
    }
    value.as_array_mut().into_iter().flatten().for_each(lasting);
}

/// Where two differ.
fn differences(a: &Value, b: &Value, path: &str, found: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(one), Value::Object(other)) if one.keys().eq(other.keys()) => {
            one.iter().for_each(|(name, value)| differences(value, &other[name], &format!("{path}.{name}"), found));
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            one.iter().zip(other).enumerate().for_each(|(at, (a, b))| differences(a, b, &format!("{path}[{at}]"), found));
        }
        _ if a == b => {}
        _ => found.push(format!("{path}: {a} and {b}")),
    }
}

fn is_the_same_each_time(script: &Path, times: usize) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let mut first = answer(folder.path(), script);
    lasting(&mut first);
    let mut found = Vec::new();
    for _ in 1..times {
        let mut again = answer(folder.path(), script);
        lasting(&mut again);
        differences(&first, &again, "", &mut found);
    }
    found
}

#[test]
fn five_scripts_give_the_same_answer_twice() {
    give_the_same_answer_twice(&SCRIPTS[..5]);
}

#[test]
#[ignore = "long"]
fn fifteen_more_scripts_give_the_same_answer_twice() {
    give_the_same_answer_twice(&SCRIPTS[5..]);
}

fn give_the_same_answer_twice(scripts: &[&str]) {
    let folder = common::root().join("tests/rehearse");
    let differ = |script: &&str| {
        let found = is_the_same_each_time(&folder.join(script), 2);
        (!found.is_empty()).then(|| format!("{script}\n  {}", found.join("\n  ")))
    };
    let found: Vec<String> = scripts.iter().filter_map(differ).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_network_whose_convolutions_are_chosen_by_time_gives_the_same_answer_three_times() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("train.py");
    std::fs::write(&script, BENCHMARKS).unwrap();
    let found = is_the_same_each_time(&script, 3);
    assert!(found.is_empty(), "{}", found.join("\n"));
}
