//! What a rehearsal does not know it says: values that nobody computed and decide, phases that its steps did not reach, and what the
//! host gives.

use super::captures::shown;
use super::scene::{Scene, error, said, unwrapped};
use serde_json::Value;

/// A loss that decides, sizes from values in several ways, and reads that decide nothing: each case is one of these in place of READS.
const TRAINING: &str = "
import math, torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler()
losses, best, correct = [], math.inf, 0
def mean(values):
    return sum(values) / len(values)
for step in range(3):
    x = torch.randn(512, 256, device='cuda')
    y = model(x)
    loss = y.square().mean()
    READS
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
";

fn rehearsed(reads: &str) -> (String, Value) {
    let scene = Scene::new(&TRAINING.replace("    READS", &reads.lines().map(|line| format!("    {line}\n")).collect::<String>()));
    let (output, answer) = scene.run(&[]);
    let said = error(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    (said, answer)
}

#[test]
fn values_that_nobody_computed_and_decide_are_said() {
    are_said(2);
}

#[test]
#[ignore = "long"]
fn values_that_nobody_computed_and_decide_are_said_in_each_form() {
    are_said(6);
    of_several_cards_and_techniques_they_are_said();
}

/// In so many forms of reading them.
fn are_said(forms: usize) {
    for &(what, reads, line) in &[
        ("a branch", "if loss.item() > 2: loss = loss + model(x.repeat(64, 1)).square().mean()", 13),
        (
            "a size through a function of its own",
            "def n(): return int(y.amax().item() * 100)\nextra = torch.empty(n() << 16, device='cuda')",
            13,
        ),
        ("lengths through a list", "kept = [torch.zeros(int(v), 4096, device='cuda') for v in y[:, 0].abs().tolist()]", 13),
        ("repetitions, of which there is no bound", "z = torch.repeat_interleave(y, y[:, 0].exp().long(), dim=0).repeat(1, 8)", 13),
        (
            "the last of several reads, through an object",
            "print(loss.item()); best = min(best, loss.item())\nclass Kept: n = int(y.amax().item() * 100)\nz = torch.empty(Kept.n << 16, device='cuda')",
            14,
        ),
        (
            "how many tokens one expert gets",
            "e = y.argmax(-1)\nz = [model(x[(e == i).nonzero()[:, 0]].repeat(64, 1)) for i in range(2)]",
            14,
        ),
    ][..forms]
    {
        let (said, answer) = rehearsed(reads);
        // Below the answer, which does not wait for the second rehearsal, in a line of its own.
        let begins = "But placeholder values decide a size or a loop (";
        let found = said.lines().skip_while(|line| !line.starts_with("FITS")).find(|line| line.starts_with(begins));
        let is_whole = found.is_some_and(|found| found.contains(&format!("train.py:{line})")) && found.contains("with others it "));
        assert!(is_whole, "{what}: {said}");
        let other = &answer["other_values"];
        assert_ne!(other["peak_on_device"], answer["peak_on_device"], "{what}");
        assert_eq!((&other["fits"], &other["lines"][0]["line"]), (&true.into(), &line.into()), "{what}: {other}");
    }
}

fn of_several_cards_and_techniques_they_are_said() {
    let read = "z = torch.repeat_interleave(y, y[:, 0].exp().long() * 999, dim=0).repeat(1, 8)";
    let scene = Scene::new(&TRAINING.replace("READS", read));
    let (output, _) = scene.run(&["--gpu", "a100-40g", "--gpu", "620MiB"]);
    let said = error(&output);
    assert!(
        said.contains("But placeholder values decide a size or a loop (") && said.contains("runs out of memory then on "),
        "{said}"
    );
    let (output, _) = scene.run(&["--gpu", "rtx-4090", "--what-if", "--only", "fused"]);
    let said = unwrapped(&String::from_utf8_lossy(&output.stdout));
    assert!(
        said.contains("But placeholder values decide a size or a loop (") && said.contains("train.py:13): with others it "),
        "{said}"
    );
}

#[test]
fn values_that_are_logged_counted_or_decide_no_memory_are_in_no_headline() {
    // Logged, averaged, compared with the best so far, checked; and one that may decide and does not, which a second rehearsal shows.
    let logged = "
print(f'{loss.item():.3f}')
losses.append(loss.item())
if step % 2 == 0: print(mean(losses))
correct += (y.argmax(-1) == 3).sum().item()
if loss.item() < best: best = loss.item()
if not torch.isfinite(loss): raise ValueError('not finite')
if math.isnan(loss.item()): break
";
    for (reads, again) in [(logged, true), ("if loss.item() > 2: torch.zeros(8, device='cuda')", true), ("", false)] {
        let (said, answer) = rehearsed(reads);
        assert!(answer["other_values"].is_null() && !said.contains("placeholder values decide"), "{said}");
        assert_eq!(said.contains("once more, with other values"), again, "{said}");
    }
}

#[test]
fn a_block_without_gradients_on_one_line_is_reached() {
    let scene = Scene::new(
        "import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    with torch.no_grad(): model.weight.clamp_(-1, 1)
    model(torch.randn(8, 64, device='cuda')).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
",
    );
    let (output, _) = scene.run(&["--gpu", "rtx-4090"]);
    let said = error(&output);
    assert!(said.contains("3 steps seen.") && !said.contains("evaluation"), "{said}");
}

#[test]
fn branches_and_code_after_loops_are_told() {
    let (said, answer) = shown("branches");
    let rows = answer["processes"][0]["unreached"].as_array().unwrap();
    let told: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {}", row["unreached"].as_str().unwrap(), row["line"], row["what"].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
        [
            "evaluation 8 model.train(...)",
            "evaluation 9 with torch.no_grad()",
            "saving 42 keep(...)",
            "later 28 if i == 10: for p in model.parameters():",
            "later 31 if i % settings.every == settings.every - 1: forward_only(model)",
            "later 35 1 if i < 10 else 20",
            "later 41 best = copy.deepcopy(model.state_dict())",
        ],
        "{said}"
    );
    // What a list has further on: by an index, and one after the other; and lists that have no more.
    for (words, told) in [
        ("index-larger", "sizes[i]: further on, 64 where it was 8 at most"),
        ("texts", "texts[i:i + 2]: further on, 4 where it was 2 at most"),
        ("each-larger", "for n in sizes: further on, 70 where it was 6 at most"),
        ("index", ""),
        ("each", ""),
    ] {
        let (said, answer) = shown(&format!("sizes_of_steps-{words}"));
        let rows = answer["processes"][0]["unreached"].as_array().unwrap();
        let what: Vec<&str> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
        assert_eq!(what, if told.is_empty() { vec![] } else { vec![told] }, "{words}: {said}");
    }
    let headline = said.lines().find(|line| line.starts_with("FITS")).unwrap();
    for told in ["Not reached: evaluation (", "branches.py:8), saving (", "branches.py:42), what comes later (", "branches.py:28)."]
    {
        assert!(headline.contains(told), "{told}: {headline}");
    }
    assert!(said.contains("Note: steps after step 3 were not run"), "{said}");
}

/// Pinned tensors, workers, and activations on the host that a real GPU's copies would fill.
const HOST: &str = "
import torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.ones(1 << 18)
pinned = [torch.empty(600 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
model = torch.nn.Linear(1 << 18, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begun.record(); ended.record(); ended.synchronize(); begun.elapsed_time(ended)
for x in DataLoader(Rows(), batch_size=16, num_workers=2, prefetch_factor=4):
    with torch.autograd.graph.save_on_cpu():
        loss = model(x.cuda().repeat(64, 1)).sum()
    loss.backward(); optimizer.step()
";

#[test]
fn the_headline_has_too_much_host_memory() {
    let scene = Scene::new(HOST);
    let (output, answer) = scene.run(&["--host-memory", "3GiB"]);
    let said = error(&output);
    let host = &answer["host"];
    let bytes = |name: &str| host[name].as_u64().unwrap();
    // Each of 600 MiB rounded up to a power of two, and nothing of it was touched here.
    assert_eq!((bytes("pinned"), bytes("workers"), bytes("host")), (2 << 30, 2, 3 << 30), "{host}");
    assert_eq!(bytes("shared_memory"), 2 * 4 * 16 * (1 << 20), "{host}");
    // What a backward pass waits for on the host is 1 GiB.
    assert!(bytes("at_least") > (3 << 30) + bytes("shared_memory") + bytes("of_workers"), "{host}");
    let headline = said.lines().find(|line| line.starts_with("FITS")).unwrap();
    assert!(headline.contains("But it takes") && headline.contains("of the host's RAM, which has 3.00 GiB"), "{headline}");
    assert!(said.contains("Note: elapsed_time of CUDA events was 0.01 ms here"), "{said}");
    assert!(said.contains("of the host's pinned memory 1.2 GiB are in pinned ("), "{said}");
    let host = said.lines().find(|line| line.contains("Host RAM at least")).unwrap();
    assert!(host.contains("2.00 GiB pinned (PyTorch rounds each tensor up") && host.contains("), 2 workers with"), "{host}");
}

/// Texts of other lengths, the longest far behind what three steps see.
const TEXTS: &str = "
import torch
from torch.utils.data import DataLoader
texts = [torch.zeros(16 + (4080 if n in (500, 501) else n % 7), 64) for n in range(600)]
def pad(batch): return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(texts, batch_size=2, shuffle=SHUFFLE, collate_fn=pad, num_workers=WORKERS):
    model(x.cuda()).sum().backward(); optimizer.step()
";

#[test]
fn the_largest_batch_of_a_loader_is_named() {
    let scene = Scene::new(&TEXTS.replace("SHUFFLE", "False").replace("WORKERS", "0"));
    let (output, answer) = scene.run(&[]);
    let said = error(&output);
    let most = |answer: &Value| answer["processes"][0]["varied"][0]["most"].clone();
    assert_eq!(most(&answer), serde_json::json!([2, 21, 64]), "{said}");
    let headline = said.lines().find(|line| line.starts_with("FITS")).unwrap();
    assert!(headline.ends_with("larger batches (sizes differ: --longest)."), "{headline}");
    for (shuffle, workers) in [("False", "0"), ("True", "2")] {
        let scene = Scene::new(&TEXTS.replace("SHUFFLE", shuffle).replace("WORKERS", workers));
        let (output, answer) = scene.run(&["--longest"]);
        let said = error(&output);
        assert_eq!(most(&answer), serde_json::json!([2, 4096, 64]), "{said}");
        assert!(said.contains("Note: --longest: of 600 of 600 samples of list the largest batch, 2097152 B instead of"), "{said}");
        assert!(!said.lines().find(|line| line.starts_with("FITS")).unwrap().contains("(--longest)"), "{said}");
    }
}

#[test]
fn what_python_keeps_compiled_of_ours_may_be_cut_short() {
    let scene = Scene::new("import torch\ntorch.empty(8, device='cuda')\n");
    let run =
        || scene.command(&[]).env("VRAMLAB_CACHE", scene.path("cache")).env_remove("PYTHONDONTWRITEBYTECODE").output().unwrap();
    assert_eq!(run().status.code(), Some(0));
    let mut kept = Vec::new();
    for folder in std::fs::read_dir(scene.path("cache")).unwrap().flatten() {
        let compiled = folder.path().join("python/vramlab_rehearsal/__pycache__");
        kept.extend(std::fs::read_dir(compiled).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    assert!(kept.len() > 10, "{kept:?}");
    for file in &kept {
        std::fs::File::options().write(true).open(file).unwrap().set_len(40).unwrap();
    }
    let output = run();
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
}

/// A module and a text run in a copy as in a process of their own: what they find, print and raise, and what a library in C has not yet written.
#[test]
fn a_copy_of_a_module_or_a_text_is_a_process_of_its_own() {
    let scene = Scene::new(
        "import ctypes, sys, torch\nprint(sys.argv[1:], repr(sys.path[0])[-8:], __name__, sys.orig_argv[1])\ntorch.ones(1, device='cuda')\n\
         ctypes.CDLL(None).puts(b'of C')\nraise ValueError('no')\n",
    );
    let text = std::fs::read_to_string(scene.path("train.py")).unwrap();
    for words in [["-m", "train", "a"], ["-c", &text, "a"]] {
        let said = [false, true].map(|is_copy| {
            let mut command = scene.program();
            if !is_copy {
                command.env("VRAMLAB_ZYGOTES", "");
            }
            command.args(["rehearse", "--quiet", "--"]).arg(common::python()).args(words).current_dir(scene.path("."));
            let output = command.output().unwrap();
            (output.status.code(), said(&output))
        });
        assert!(said[0] == said[1] && said[0].0 != Some(0), "{said:?}");
        assert!(["of C", "ValueError: no", "['a']"].iter().all(|part| said[0].1.contains(part)), "{said:?}");
    }
}

/// Of eight copies or more the process that they are copied from has it imported.
#[test]
#[ignore = "long"]
fn what_many_copies_import_is_there_when_it_is_imported_and_not_before() {
    const SCRIPT: &str = "
import sys, torch
assert 'torch._dynamo' not in sys.modules and '_dynamo' not in vars(torch)
import torch._dynamo
from torch.distributed.fsdp import fully_shard
assert torch._dynamo.config is sys.modules['torch._dynamo.config'] and 'fsdp' in vars(torch.distributed)
assert torch._dynamo.__spec__.origin.endswith('_dynamo/__init__.py')
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(4096, 512, device='cuda')).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
";
    let scene = Scene::new(SCRIPT);
    let many = ["fused", "factored", "in-place", "tf32", "autocast-bf16", "bf16-weights", "checkpoint-every", "for-loop"];
    let rows = |names: &[&str]| {
        let (output, rows) = scene.ask(&["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", &names.join(",")], &[]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        rows
    };
    let peak = |rows: &Value| {
        let row = rows.as_array().unwrap().iter().find(|row| row["techniques"] == serde_json::json!(["checkpoint-every"]));
        row.unwrap_or_else(|| panic!("{rows}"))["peak_allocated"].as_i64().unwrap_or_else(|| panic!("{rows}"))
    };
    assert_eq!(peak(&rows(&many)), peak(&rows(&many[6..])));
}

#[test]
fn numbers_that_nobody_computed_pass_as_valid() {
    let scene = Scene::new(
        "
import torch
net = torch.nn.Linear(64, 6).cuda(); optimizer = torch.optim.Adam(net.parameters())
a = torch.ones(4096, 4096, dtype=torch.int8, device='cuda')
products = torch._int_mm(a, a)[0, :2].tolist()
for step in range(3):
    chosen = torch.distributions.Categorical(logits=net(torch.randn(8, 64, device='cuda')))
    loss = -chosen.log_prob(chosen.sample()).mean(); loss.backward(); optimizer.step(); optimizer.zero_grad()
    if loss.item() > 99: torch.empty(1 << 30, device='cuda')
",
    );
    let (output, answer) = scene.run(&["--gpu", "rtx-4090"]);
    let said = error(&output);
    assert!(said.contains("once more, with other values") && !said.contains("did not come to its end"), "{said}");
    let read = answer["processes"][0]["placeholders"].to_string();
    assert!(read.contains("train.py\",\"line\":5") || read.contains("\"line\":5"), "{read}");
}
