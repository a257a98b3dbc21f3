//! `vramlab rehearse --what-if` and `--check`, and `vramlab fit`, as their users run them.

use crate::scene::{Scene, VRAMLAB, said, unwrapped};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

fn source() -> String {
    std::fs::read_to_string(common::root().join("tests/rehearse/convnet.py")).unwrap()
}

fn row<'a>(rows: &'a Value, names: &[&str]) -> &'a Value {
    let rows = rows.as_array().unwrap();
    let wanted: Vec<Value> = names.iter().map(|name| Value::from(*name)).collect();
    rows.iter().find(|row| row["techniques"] == Value::from(wanted.clone())).unwrap_or_else(|| panic!("no {names:?} in {rows:?}"))
}

#[test]
fn a_script_that_python_cannot_open_is_told_at_once() {
    let scene = Scene::new("");
    std::fs::rename(scene.path("train.py"), scene.path("trian.py")).unwrap();
    for flags in [&["rehearse", "--what-if"][..], &["fit", "--batch", "--batch-size {}"]] {
        let (output, answer) = scene.ask(flags, &[]);
        assert_eq!((output.status.code(), answer), (Some(2), Value::Null), "{}", said(&output));
        assert!(said(&output).contains("there is no file '") && said(&output).contains("train.py'; is it"), "{}", said(&output));
    }
}

/// The script with a snippet pasted where its comments say.
fn pasted(name: &str, snippet: &str) -> String {
    let script = source();
    let indented = |text: &str| text.lines().map(|line| format!("        {line}\n")).collect::<String>();
    let between = |script: &str, from: &str, to: &str, text: &str| {
        let (begin, end) = (script.find(from).unwrap(), script.find(to).unwrap());
        format!("{}{text}{}", &script[..begin], &script[end..])
    };
    match name {
        "autocast-bf16" => between(&script, "        output = ", "    # step", &indented(snippet)),
        "autocast-fp16" => {
            let (once, rest) = snippet.split_once('\n').unwrap();
            let (batch, step) = rest.split_at(rest.find("# scaler.unscale_").unwrap());
            let script = script.replace("# loop\n", &format!("{once}\n"));
            let script = between(&script, "        output = ", "    # step", &indented(batch));
            let step: String = step.lines().map(|line| format!("    {line}\n")).collect();
            between(&script, "    optimizer.step()", "    optimizer.zero_grad", &step)
        }
        "fused" | "for-loop" => {
            between(&script, "optimizer = ", "# loop", &format!("{}\n", snippet.replace("...", "model.parameters(), lr=1e-3")))
        }
        "factored" => between(&script, "optimizer = ", "# loop", &format!("{}\n", snippet.replace("...", "1e-3"))),
        "zero1" => {
            let (model, optimizer) = snippet.split_once("\noptimizer = ").unwrap();
            let optimizer = format!("optimizer = {}\n", optimizer.replace("...", "lr=1e-3"));
            between(&script.replace("# model\n", &format!("{model}\n")), "optimizer = ", "# loop", &optimizer)
        }
        "zero-grad-to-none" => between(&script, "    optimizer.zero_grad", "    # end", &format!("    {snippet}\n")),
        "optimizer-in-backward" => {
            let script = between(&script, "optimizer = ", "# loop", &format!("{}\n", snippet.replace("...", "lr=1e-3")));
            // Of what is left of the optimizer, the rehearsal's steps are counted by: it has nothing to do.
            let script = script.replace("# loop\n", "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n");
            between(&script, "    optimizer.zero_grad(set", "    # end", "")
        }
        "channels-last" => {
            let (model, images) = snippet.split_once('\n').unwrap();
            script
                .replace("# model\n", &format!("{model}\n"))
                .replace("        # batch\n", &indented(&images.replace("images", "inputs")))
        }
        _ => script.replace("# model\n", &format!("{snippet}\n")),
    }
}

/// Each a rank of several.
const ON_CARDS: [&str; 3] = ["fsdp2", "zero2", "zero1"];

/// Those whose lines go over `# model` need no arm of their own in [`pasted`].
const NAMES: &[&str] = &[
    "autocast-bf16",
    "autocast-fp16",
    "fused",
    "for-loop",
    "factored",
    "zero-grad-to-none",
    "checkpoint-every",
    "checkpoint-second",
    "checkpoint-sqrt",
    "in-place",
    "channels-last",
    // The last, because its hooks hold parameters and optimizers in a circle that Python does not see.
    "optimizer-in-backward",
];

#[test]
#[ignore = "long"]
fn snippets_pasted_into_the_script_ask_for_the_same_bytes_as_the_hooks() {
    let scene = Scene::new(&source());
    let together = ["autocast-bf16", "checkpoint-every"];
    let only = [NAMES, &["foreach", "expandable-segments", &together.join("+")], &ON_CARDS].concat().join(",");
    // A card that does not take it as it is, with 512 MiB of context.
    let out = scene.path("out");
    let flags = ["rehearse", "--gpu", "1050MiB", "--what-if", "--only", &only, "--out", out.to_str().unwrap()];
    let (output, rows) = scene.ask(&flags, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let snippet = |name: &str| {
        let row = row(&rows, &[name]);
        assert!(row["reason"].is_null(), "{row}");
        pasted(name, row["snippet"].as_str().unwrap())
    };
    // All in one process: to start one takes longer than what runs in it.
    std::fs::copy(common::root().join("tests/rehearse/pasted.py"), scene.path("train.py")).unwrap();
    // FSDP2's hooks hold parameters in a circle, too.
    let ranks = ["--world-size", "2", "--rank", "0"];
    let alone = ON_CARDS.each_ref().map(|name| (std::slice::from_ref(name), &ranks[..]));
    for (names, flags) in [&[(NAMES, &[][..])], &alone[..]].concat() {
        let scripts: Vec<String> = names
            .iter()
            .map(|name| {
                let path = scene.path(format!("{name}.py"));
                std::fs::write(&path, snippet(name).replace("range(5)", "range(3)")).unwrap();
                path.to_str().unwrap().to_string()
            })
            .collect();
        let arguments: Vec<&str> = scripts.iter().map(String::as_str).collect();
        let (output, _) = scene.ask(&[&["rehearse", "--gpu", "8GiB", "--steps", "all"], flags].concat(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        for name in names {
            let line = printed
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{name} ")))
                .unwrap_or_else(|| panic!("{name}: {printed}"));
            let row = row(&rows, &[name]);
            assert_eq!(line, format!("{} {}", row["peak_allocated"], row["peak_reserved"]), "{name}");
        }
    }

    let (as_it_is, bf16) = (row(&rows, &[]), row(&rows, &["autocast-bf16"]));
    assert_eq!((&as_it_is["saved"], &as_it_is["fits"]), (&Value::from(0), &Value::from(false)), "{as_it_is}");
    assert!(bf16["saved"].as_i64().unwrap() > 0 && bf16["extra_flops"] == 0, "{bf16}");
    // A block that runs twice is counted twice: less than the whole forward pass, a third of the step.
    let every = row(&rows, &["checkpoint-every"]);
    assert!(every["extra_flops"].as_i64().unwrap() > 0 && every["change"].as_str().unwrap().contains("BatchNorm"), "{every}");
    assert!(row(&rows, &["foreach"])["reason"].as_str().unwrap().contains("by itself"));
    assert!(row(&rows, &["expandable-segments"])["reason"].is_null(), "{rows}");
    let (both, one) = (row(&rows, &together), row(&rows, &together[1..]));
    assert!(both["reason"].is_null() && both["peak_reserved"].as_i64() < one["peak_reserved"].as_i64(), "{both}");
    assert_eq!(both["snippet"], format!("{}\n\n{}", bf16["snippet"].as_str().unwrap(), one["snippet"].as_str().unwrap()));
    let told = std::fs::read_to_string(scene.path("out/what-if.txt")).unwrap();
    assert!(told.contains("The cheapest that fits 1050MiB") && told.contains("leaves the result as it is"), "{told}");
}

/// The lines of PyTorch of every technique's page, in one rehearsal.
#[test]
fn the_lines_of_every_page_run() {
    let folder = common::root().join("experiments");
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let pages = entries.map(|path| if path.is_dir() { path.join("page.md") } else { path });
    let has_lines = |path: &PathBuf| {
        path.extension().is_some_and(|ext| ext == "md")
            && std::fs::read_to_string(path).is_ok_and(|text| text.contains("```python"))
    };
    let pages: Vec<String> = pages.filter(has_lines).map(|path| path.to_str().unwrap().to_string()).collect();
    let scene = Scene::new(&std::fs::read_to_string(common::root().join("tests/rehearse/page_snippets.py")).unwrap());
    let arguments: Vec<&str> = pages.iter().map(String::as_str).collect();
    let paths = ["python", "as_written"].map(|name| common::root().join("experiments").join(name));
    let paths = std::env::join_paths(paths).unwrap();
    let path = ("PYTHONPATH", paths.to_str().unwrap());
    let (output, _) = scene.ask_with(&[path], &["rehearse", "--gpu", "8GiB", "--steps", "all"], &arguments);
    let ran = said(&output).lines().find_map(|line| line.strip_suffix(" snippets ran")?.parse::<usize>().ok());
    assert!(output.status.success() && ran.is_some_and(|ran| ran >= pages.len() && ran > 15), "{ran:?}: {}", said(&output));
}

/// Of a block's attention compiled code keeps parts of one tensor, which it takes back only as they lay.
#[test]
#[ignore = "long"]
fn what_compiled_blocks_keep_is_offloaded() {
    let scene = Scene::new(
        "
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(512, 3 * 512), nn.Linear(512, 512)
    def forward(self, x):
        q, k, v = (part.unflatten(-1, (8, 64)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

model = nn.Sequential(*(Block() for _ in range(6))).cuda()
for block in model:
    block.compile()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 1024, 512, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
",
    );
    let (output, rows) = scene.ask(&["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", "offload-activations"], &[]);
    let (offloaded, as_it_is) = (row(&rows, &["offload-activations"]), row(&rows, &[]));
    let peak = |row: &Value| row["peak_allocated"].as_f64().unwrap_or_else(|| panic!("{}", said(&output)));
    assert!(peak(offloaded) < 0.7 * peak(as_it_is), "{rows}");
}

/// A checkpoint that makes a sequence of a model's blocks calls it by itself in the backward pass: it is no further model.
#[test]
fn a_sequence_that_is_made_for_a_checkpoint_is_no_model_of_its_own() {
    let scene = Scene::new(
        "
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6))
    def forward(self, x):
        for first in range(0, 6, 2):
            x = checkpoint(nn.Sequential(*self.blocks[first:first + 2]), x, use_reentrant=False)
        return x

model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(64, 512, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
",
    );
    let (_, rows) = scene.ask(&["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", "bf16-weights,muon"], &[]);
    let parameters = row(&rows, &[])["peak_allocated"].as_f64();
    for name in ["bf16-weights", "muon"] {
        assert!(row(&rows, &[name])["peak_allocated"].as_f64() < parameters, "{name}: {rows}");
    }
}

/// Techniques for the loss, for what the forward pass keeps and for the weights, on a model whose loss needs most. Lines that go over `# model`, with
/// their functions before the model, need no arm of their own here.
#[test]
#[ignore = "long"]
fn lines_for_the_loss_and_for_offloading_ask_for_the_same_bytes_as_the_hooks() {
    const NAMES: &[&str] = &[
        "muon",
        "chunked-loss",
        "fused-linear-loss",
        "offload-activations",
        "checkpoint-selective",
        "bf16-weights",
        "offload-optimizer",
        "lora",
        "compile",
        // The last, because a compiler's setting stays for what runs after it, and what it compiled before would be reserved still.
        "memory-budget",
    ];
    let folder = common::root().join("tests/rehearse");
    let source = std::fs::read_to_string(folder.join("large_vocabulary.py")).unwrap();
    let scene = Scene::new(&source);
    let only = format!("{},sdpa", NAMES.join(","));
    let (output, rows) = scene.ask(&["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", &only], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // In the order of all advice; nothing is said of a compiled model's time.
    let tried: Vec<f64> = rows.as_array().unwrap().iter().filter_map(|row| row["predicted_seconds"].as_f64()).collect();
    assert!(tried.len() == NAMES.len() - 1 && rows[0]["techniques"] == serde_json::json!([]), "{rows}");
    let (offloaded, as_it_is) = (row(&rows, &["offload-activations"]), row(&rows, &[]));
    assert!(offloaded["predicted_change"]["share"].as_f64() > Some(0.05) && offloaded["extra_flops"] == 0, "{offloaded}");
    assert_eq!(as_it_is["predicted_change"]["share"], 0.0, "{as_it_is}");
    let told = said(&output);
    assert!(told.contains("In the order to try them; times are predicted.") && !told.contains("extra compute"), "{told}");
    let indented = |text: &str, by: &str| text.lines().map(|line| format!("{by}{line}\n")).collect::<String>();
    for &name in NAMES {
        let row = row(&rows, &[name]);
        let snippet = row["snippet"].as_str().unwrap_or_else(|| panic!("{row}"));
        let script = match name {
            "chunked-loss" => {
                let (functions, statement) = snippet.rsplit_once("\n\n\n").unwrap();
                let own = source.lines().find(|line| line.contains("F.cross_entropy(")).unwrap().trim();
                assert_eq!(statement, format!("{}  # at train.py:29", own.replace("F.cross", "chunked_cross")));
                source.replace("class Block", &format!("{functions}\n\n\nclass Block")).replace(own, statement)
            }
            "offload-activations" => {
                let (class, _) = snippet.split_once("\n\n\nwith ").unwrap();
                source
                    .replace("class Block", &format!("{class}\n\n\nclass Block"))
                    .replace("        _, loss = model", "        with OffloadActivations():\n            _, loss = model")
            }
            "offload-optimizer" => {
                let (function, call) = snippet.rsplit_once("\n\n\n").unwrap();
                source
                    .replace("class Block", &format!("{function}\n\n\nclass Block"))
                    .replace("    for _ in range(4)", &format!("    {call}\n    for _ in range(4)"))
            }
            "compile" | "memory-budget" => source.replace("    # model\n", &indented(snippet, "    ")),
            "muon" => {
                let (lines, _) = snippet
                    .replace("lr=...", "lr=1e-3")
                    .rsplit_once('\n')
                    .map(|(lines, last)| (lines.to_string(), last.to_string()))
                    .unwrap();
                let script =
                    source.replace("    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n", &indented(&lines, "    "));
                ["step", "zero_grad"].iter().fold(script, |script, call| {
                    script.replace(&format!("optimizer.{call}()"), &format!("optimizer.{call}()\n        muon.{call}()"))
                })
            }
            // Tokens are no floating-point input.
            "bf16-weights" => source.replace("    # model\n", &format!("    {}\n", snippet.lines().next().unwrap())),
            _ => {
                let (functions, call) = snippet.rsplit_once("\n\n\n").unwrap_or(("", snippet));
                let functions = functions.replace("import torch.nn.functional as F\n", "");
                source
                    .replace("class Block", &format!("{functions}\n\n\nclass Block"))
                    .replace("    # model\n", &indented(call, "    "))
            }
        };
        assert!(script.len() > source.len(), "{name}: {snippet}");
        std::fs::write(scene.path(format!("{name}.py")), script.replace("range(4)", "range(3)")).unwrap();
    }
    std::fs::copy(folder.join("pasted.py"), scene.path("train.py")).unwrap();
    let mut printed = String::new();
    let (names, last) = NAMES.split_at(NAMES.len() - 1);
    for names in [names, last] {
        let scripts: Vec<String> =
            names.iter().map(|name| scene.path(format!("{name}.py")).to_str().unwrap().to_string()).collect();
        let arguments: Vec<&str> = scripts.iter().map(String::as_str).collect();
        let (output, _) = scene.ask(&["rehearse", "--gpu", "rtx-4090", "--steps", "all"], &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        printed += &String::from_utf8_lossy(&output.stdout);
    }
    for &name in NAMES {
        let row = row(&rows, &[name]);
        let line = format!("{name} {} {}", row["peak_allocated"], row["peak_reserved"]);
        assert!(printed.lines().any(|printed| printed == line), "{line}: {printed}");
        // A step with all its state reserves here as much as the backward pass; what waits for its copy on a second stream is no memory for others yet.
        let is_less = |figure: &str| row[figure].as_i64() < as_it_is[figure].as_i64();
        assert!(["peak_reserved", "peak_allocated", "needs_at_least"].into_iter().any(is_less), "{name} saves nothing: {row}");
    }
    let saved = |name: &str| row(&rows, &[name])["saved"].as_i64();
    assert!(saved("fused-linear-loss") > saved("chunked-loss") && saved("chunked-loss") > saved("checkpoint-selective"), "{rows}");
    assert!(row(&rows, &["bf16-weights"])["change"].as_str().unwrap().contains("updates smaller than"), "{rows}");
    assert!(row(&rows, &["lora"])["change"].as_str().unwrap().contains("trains rank-8 adapters"), "{rows}");
    assert!(row(&rows, &["sdpa"])["reason"].as_str().unwrap().contains("transformers"), "{rows}");
}

/// A head that is the embedding's weight, in a model that an object has.
#[test]
#[ignore = "long"]
fn lines_for_the_loss_find_a_head_that_is_the_embeddings_weight() {
    const RUN: &str = "class Run:
    def __init__(self):
        self.net = Model().cuda()

    def loss(self, tokens):
        return self.net(tokens, tokens)


def main():
    run = Run()
";
    let source = std::fs::read_to_string(common::root().join("tests/rehearse/large_vocabulary.py")).unwrap();
    let scene = Scene::new(&source);
    let tied = [
        ("self.lm_head(x)", "F.linear(x, self.embedding.weight)"),
        ("self.lm_head = nn", "# nn"),
        ("def main():\n    model = Model().cuda()\n", RUN),
        ("model(tokens, tokens)", "run.loss(tokens)"),
        ("model.parameters()", "run.net.parameters()"),
    ]
    .iter()
    .fold(source.clone(), |script, (from, to)| script.replace(from, to));
    scene.write(&tied);
    let (output, rows) = scene.ask(&["rehearse", "--what-if", "--only", "fused-linear-loss,checkpoint-every"], &[]);
    let deferred = row(&rows, &["fused-linear-loss"]);
    assert!(row(&rows, &["checkpoint-every"])["snippet"].as_str().unwrap().contains("for block in self.net.blocks:"), "{rows}");
    let (functions, call) =
        deferred["snippet"].as_str().unwrap_or_else(|| panic!("{}", said(&output))).rsplit_once("\n\n\n").unwrap();
    assert_eq!(call, "logits = DeferredLogits(x, self.embedding.weight)  # at train.py:28");
    let lines = tied.replace("logits = F.linear(x, self.embedding.weight)", call);
    scene.write(&lines.replace("class Block", &format!("{functions}\n\n\nclass Block")));
    let (_, answer) = scene.ask(&["rehearse"], &[]);
    assert_eq!((&answer["peak_allocated"], &answer["peak_reserved"]), (&deferred["peak_allocated"], &deferred["peak_reserved"]));
}

/// By a module, over several dimensions.
#[test]
fn lines_for_the_loss_are_of_a_module_that_computes_it() {
    let source = std::fs::read_to_string(common::root().join("tests/rehearse/large_vocabulary.py")).unwrap();
    let scene = Scene::new(&source);
    let own = source.lines().find(|line| line.contains("F.cross_entropy(")).unwrap().trim();
    let module = source.replace("class Model", "criterion = nn.CrossEntropyLoss(ignore_index=-1)\n\n\nclass Model");
    let called = "loss = criterion(logits.transpose(1, 2),\n            targets)";
    scene.write(&module.replace(own, called));
    let (output, rows) = scene.ask(&["rehearse", "--what-if", "--only", "chunked-loss"], &[]);
    let chunked = row(&rows, &["chunked-loss"]);
    let snippet = chunked["snippet"].as_str().unwrap_or_else(|| panic!("{}", said(&output)));
    let (functions, statement) = snippet.rsplit_once("\n\n\n").unwrap();
    let line = module[..module.find(own).unwrap()].matches('\n').count() + 1;
    assert_eq!(
        statement,
        format!(
            "loss = chunked_cross_entropy(logits.transpose(1, 2), targets, ignore_index=-1)  # at train.py:{line}-{}",
            line + 1
        )
    );
    let pasted = module.replace(own, statement);
    scene.write(&pasted.replace("class Block", &format!("{functions}\n\n\nclass Block")));
    let (_, answer) = scene.ask(&["rehearse"], &[]);
    assert_eq!((&answer["peak_allocated"], &answer["peak_reserved"]), (&chunked["peak_allocated"], &chunked["peak_reserved"]));
}

#[test]
#[ignore = "long"]
fn lines_for_the_loss_are_of_a_library_that_computes_it() {
    let source = std::fs::read_to_string(common::root().join("tests/rehearse/large_vocabulary.py")).unwrap();
    let scene = Scene::new(&source);
    std::fs::create_dir(scene.path("site-packages")).unwrap();
    let library = "import torch.nn.functional as F\n\n\ndef loss_of(*given, **more):\n    return F.cross_entropy(*given, **more)\n";
    std::fs::write(scene.path("site-packages/library.py"), library).unwrap();
    let uses = "import sys; sys.path.append(sys.path[0] + '/site-packages'); import library\n";
    let elsewhere = format!("{uses}{}", source.replace("F.cross_entropy(", "library.loss_of("));
    scene.write(&elsewhere);
    let (output, rows) = scene.ask(&["rehearse", "--what-if", "--only", "chunked-loss"], &[]);
    let chunked = row(&rows, &["chunked-loss"]);
    let snippet = chunked["snippet"].as_str().unwrap_or_else(|| panic!("{}", said(&output)));
    assert!(snippet.contains("  # for library.py:5") && snippet.ends_with("F.cross_entropy = cross_entropy"), "{snippet}");
    scene.write(&elsewhere.replace("class Block", &format!("{snippet}\n\n\nclass Block")));
    let (_, answer) = scene.ask(&["rehearse"], &[]);
    assert_eq!((&answer["peak_allocated"], &answer["peak_reserved"]), (&chunked["peak_allocated"], &chunked["peak_reserved"]));
}

/// Its logits are wanted for something else, too; half of it is frozen, and its optimizer keeps nothing.
#[test]
fn what_there_is_nothing_for_has_its_reason() {
    let source = std::fs::read_to_string(common::root().join("tests/rehearse/large_vocabulary.py")).unwrap();
    let scene = Scene::new(&source);
    let frozen = source.replace("    # model\n", "    model.embedding.requires_grad_(False)\n").replace("AdamW(", "SGD(");
    scene.write(&frozen.replace("        # loss\n", "        _.argmax(-1)\n"));
    let only = "fused-linear-loss,lora,qlora,offload-optimizer,compile";
    let (output, rows) = scene.ask(&["rehearse", "--gpu", "16GiB", "--eager", "--what-if", "--only", only], &[]);
    for (name, why) in [
        ("lora", "freezes parameters itself"),
        // tests/ecosystem/lines.py tries it where it is.
        ("qlora", "bitsandbytes is not installed"),
        ("offload-optimizer", "keeps no state"),
        ("compile", "--eager turns"),
    ] {
        assert!(row(&rows, &[name])["reason"].as_str().is_some_and(|reason| reason.contains(why)), "{rows}");
    }
    let why = row(&rows, &["fused-linear-loss"])["reason"].as_str().unwrap();
    assert!(output.status.success() && why.contains("uses its logits for more than cross-entropy: argmax"), "{why}");
}

/// What a script says of a source of ours, both in Python.
fn agrees(script: &str, source: &str) {
    let root = common::root();
    let mut command = Command::new(common::python());
    let output =
        command.arg(root.join("tests/rehearse").join(script)).arg(root.join("src/rehearse/python").join(source)).output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("agree"), "{}", said(&output));
}

#[test]
fn losses_in_chunks_give_the_values_and_gradients_of_the_plain_one() {
    agrees("losses_agree.py", "vramlab_rehearsal/losses.py");
}

#[test]
fn a_model_with_lora_merged_gives_what_the_unmerged_one_gives() {
    agrees("lora_agrees.py", "vramlab_rehearsal/techniques/low_rank.py");
}

#[test]
#[ignore = "long"]
fn the_unet_is_the_published_one_and_checkpoints_leave_its_gradients_as_they_are() {
    agrees("unet_agrees.py", "presets/train.py");
    agrees("segments_agree.py", "vramlab_rehearsal/techniques/checkpoint.py");
}

/// A training loop in functions, whose model is wrapped in a task that is called something else and has its own `to`.
const WRAPPED: &str = "
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)
    def forward(self, x):
        return x + self.down(self.act(self.up(x)))

class Task(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net, self.unused = net, nn.Conv2d(1, 1, 1)
    def forward(self, x):
        return self.net(x).square().mean()
    def to(self, **more):
        raise TypeError('a task stays where it is')

def epoch(task, optimizer):
    for _ in range(3):
        x = torch.randn(4096, 256).cuda()
        loss = task(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

def main():
    model = nn.Sequential(*[Block() for _ in range(4)]).cuda()
    wrapped = Task(model)
    # model
    adam = torch.optim.AdamW(model.parameters())
    epoch(wrapped, adam)

main()
";

/// Everything that there is to try, on a card that the script does not fit: each technique alone, and then what helps together.
#[test]
#[ignore = "long"]
fn lines_use_the_names_of_the_script_and_a_technique_that_fails_says_so() {
    let scene = Scene::new(WRAPPED);
    // To compile takes longest, and has tests of its own.
    let (output, rows) = scene.ask(&["rehearse", "--gpu", "720MiB", "--what-if", "--eager"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let needs = |row: &Value| row["needs_at_least"].as_i64().unwrap();
    let as_it_is = row(&rows, &[]);
    assert_eq!(as_it_is["fits"], false, "{as_it_is}");
    // Two that help alone may be in each other's way, or fail together, which has its reason in the row.
    let all = rows.as_array().unwrap().iter();
    let together: Vec<&Value> =
        all.filter(|row| row["techniques"].as_array().unwrap().len() > 2 && row["reason"].is_null()).collect();
    assert!(together.iter().any(|combined| needs(combined) < needs(as_it_is)), "{rows}");
    for combined in together {
        for name in combined["techniques"].as_array().unwrap() {
            let alone = row(&rows, &[name.as_str().unwrap()]);
            assert!(needs(alone) < needs(as_it_is), "{alone} is of no use, and in {combined}");
            assert!(combined["snippet"].as_str().unwrap().contains(alone["snippet"].as_str().unwrap()), "{combined} {alone}");
        }
    }
    // What does not fit is measured on a large card.
    let pasted =
        [("checkpoint-every", "720MiB", "for block in wrapped.net:"), ("in-place", "8GiB", "for module in wrapped.modules():")];
    for (name, card, line) in pasted {
        let row = row(&rows, &[name]);
        let snippet = row["snippet"].as_str().unwrap();
        assert!(snippet.contains(line), "{snippet}");
        let indented: String = snippet.lines().map(|line| format!("    {line}\n")).collect();
        scene.write(&WRAPPED.replace("    # model\n", &indented));
        let (output, answer) = scene.ask(&["rehearse", "--gpu", card], &[]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        for figure in ["peak_allocated", "peak_reserved"] {
            assert_eq!(answer[figure], row[figure], "{figure} with {name}");
        }
    }
    for (name, line) in
        [("factored", "adam = torch.optim.Adafactor(wrapped.parameters(), "), ("offload-optimizer", "\noffload_state(adam)")]
    {
        let snippet = row(&rows, &[name])["snippet"].as_str().unwrap();
        assert!(snippet.contains(line) && !snippet.contains("optimizer ="), "{snippet}");
    }
    let why = row(&rows, &["channels-last"])["reason"].as_str().unwrap();
    assert!(why.contains("it could not be switched on here: TypeError") && why.contains("a task stays where it is"), "{why}");
}

/// Two models, each with an optimizer of its own.
const TWO: &str = "
import torch
from torch import nn
def layers(number): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(number)]).cuda()
encoder, decoder = layers(2), layers(4)
of_encoder = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
of_decoder = torch.optim.AdamW(decoder.parameters(), lr=1e-3)
for _ in range(3):
    decoder(encoder(torch.randn(64, 1024, device='cuda'))).square().mean().backward()
    for each in (of_encoder, of_decoder): each.step(); each.zero_grad()
";

/// Two models of one optimizer, of which the second has no blocks, and one whose blocks are in its own `model`.
const SHARED: &str = "
import itertools, torch
from torch import nn
class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.model = nn.Sequential(*layers)
    def forward(self, x):
        return self.model(x)
first = Net([nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)]).cuda()
second = Net([nn.Linear(1024, 1024)]).cuda()
both = torch.optim.AdamW(itertools.chain(first.parameters(), second.parameters()), lr=1e-3)
for _ in range(3):
    second(first(torch.randn(4096, 1024, device='cuda'))).square().mean().backward()
    both.step(); both.zero_grad()
";

#[test]
fn lines_of_several_models_leave_none_out_and_name_no_part_by_another_name() {
    let scene = Scene::new(SHARED);
    let (output, rows) = scene.ask(&["rehearse", "--what-if", "--only", "factored,checkpoint-every"], &[]);
    let line_of = |name: &str| row(&rows, &[name])["snippet"].as_str().unwrap_or_else(|| panic!("{}", said(&output))).to_string();
    let (factored, checkpoint) = (line_of("factored"), line_of("checkpoint-every"));
    assert!(checkpoint.contains("for block in first.model:") && !checkpoint.contains("second"), "{checkpoint}");
    assert!(factored.starts_with("both = ") && factored.contains("for each in (first, second)"), "{factored}");
    let optimizer = SHARED.lines().find(|line| line.starts_with("both = ")).unwrap();
    for (name, script) in [
        ("factored", SHARED.replace(optimizer, &factored.replace("...", "1e-3"))),
        ("checkpoint-every", SHARED.replace(optimizer, &format!("{checkpoint}\n{optimizer}"))),
    ] {
        scene.write(&script);
        let (output, answer) = scene.ask(&["rehearse"], &[]);
        assert_eq!(answer["peak_allocated"], row(&rows, &[name])["peak_allocated"], "{name}: {}", said(&output));
    }
}

#[test]
fn lines_are_for_each_model_with_its_own_optimizer() {
    let scene = Scene::new(TWO);
    let (output, rows) = scene.ask(&["rehearse", "--what-if", "--only", "factored,bf16-weights"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let first = |name: &str| row(&rows, &[name])["snippet"].as_str().unwrap().split_once('\n').unwrap();
    let (comment, line) = first("factored");
    assert_eq!(comment, "# each of these lines for encoder with of_encoder, and once more for decoder with of_decoder");
    assert!(first("bf16-weights").1.starts_with("decoder = decoder.to(torch.bfloat16)"), "{rows}");
    assert!(first("bf16-weights").0.contains("for decoder with of_decoder, and once more for encoder with of_encoder"), "{rows}");
    let line = line.replace("...", "1e-3");
    let lines = [line.clone(), line.replace("encoder", "decoder")];
    let kept = TWO.lines().filter(|line| !line.contains("AdamW"));
    let pasted: Vec<String> =
        kept.map(|kept| kept.replace("for _ in range(3):", &format!("{}\nfor _ in range(3):", lines.join("\n")))).collect();
    scene.write(&pasted.join("\n"));
    let (output, answer) = scene.ask(&["rehearse"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(answer["peak_allocated"], row(&rows, &["factored"])["peak_allocated"]);
}

#[test]
#[ignore = "long"]
fn flags_and_environment_ask_for_equal_bytes() {
    let as_it_is = source().replace("lr=1e-3", "lr=1e-3, fused=True");
    let scene = Scene::new(&as_it_is);
    let names = ["foreach", "accumulate-2x", "expandable-segments", "max-split-size", "round-up-power-of-2"];
    let only = names.join(",");
    let flags = ["rehearse", "--what-if", "--only", &only, "--batch", "--batch-size {}", "--accumulation", "--grad-accum {}"];
    let (output, rows) = scene.ask(&flags, &["--batch-size", "16"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = unwrapped(&said(&output));
    assert!(
        text.contains("there is no time to sort by, because a size alone has no speed") && !text.contains("not be counted"),
        "{text}"
    );
    for name in names {
        let row = row(&rows, &[name]);
        let text = row["snippet"].as_str().unwrap_or_else(|| panic!("{row}")).split("  #").next().unwrap();
        let (mut variable, mut arguments) = (None, vec!["--batch-size", "16"]);
        match name {
            "foreach" => scene.write(&as_it_is.replace("model.parameters(), lr=1e-3, fused=True", &{
                let (_, arguments) = text.split_once('(').unwrap();
                arguments.trim_end_matches(')').replace("...", "model.parameters(), lr=1e-3")
            })),
            "accumulate-2x" => arguments = text.split(' ').collect(),
            _ => variable = text.split_once('='),
        }
        let (output, answer) = scene.ask_with(variable.as_slice(), &["rehearse"], &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        for figure in ["peak_allocated", "peak_reserved"] {
            assert_eq!(answer[figure], row[figure], "{figure} with {name}: {text}");
        }
        scene.write(&as_it_is);
    }
    let row = row(&rows, &["accumulate-2x"]);
    assert_eq!(
        (&row["change"], row["saved"].as_i64() > Some(0)),
        (&Value::from("BatchNorm sees the smaller batch"), true),
        "{row}"
    );
}

#[test]
fn targets_that_count_more_in_one_micro_batch_than_in_another_are_told() {
    let targets = "torch.randint(1000, (arguments.batch_size,))";
    let ignoring = source().replace(
        &format!("{targets}.cuda()"),
        &format!("{targets}\n        targets[: _ + 1] = -100\n        targets = targets.cuda()"),
    );
    let flags =
        ["rehearse", "--what-if", "--only", "accumulate-2x", "--batch", "--batch-size {}", "--accumulation", "--grad-accum {}"];
    let change = |source: &str| {
        let (output, rows) = Scene::new(source).ask(&flags, &["--batch-size", "16"]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        row(&rows, &["accumulate-2x"])["change"].as_str().unwrap_or_default().to_string()
    };
    let told = "targets weigh by how many others their batch has";
    assert!(change(&ignoring).contains(told) && !change(&source()).contains(told), "{}", change(&ignoring));
}

/// A training that keeps its outputs, evaluates after its steps, and has grouped heads in fp32.
const KEEPS: &str = "
import sys, torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(256, 256), nn.Linear(256, 128), nn.Linear(256, 256)
    def forward(self, x):
        heads = lambda y: y.unflatten(-1, (-1, 64)).transpose(1, 2)
        q, (k, v) = heads(self.q(x)), map(heads, self.kv(x).chunk(2, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).flatten(-2))
model = nn.Sequential(Block(), Block(), Block()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
history = []
for step in range(100):
    y = model(torch.randn(int((sys.argv + ['8'])[1]), 1024, 256, device='cuda'))
    y.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append(y.detach())
model.eval()
model(torch.randn(8, 1024, 256, device='cuda'))
";

#[test]
fn what_the_peak_of_three_steps_leaves_out_is_in_the_first_lines() {
    let scene = Scene::new(KEEPS);
    let (output, rows) =
        scene.ask(&["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", "expandable-segments+checkpoint-every"], &[]);
    let told = said(&output);
    let first = told.split("\n\n").next().map(unwrapped).unwrap_or_default();
    assert!(first.contains("The script fits rtx-4090 as it is"), "{told}");
    assert!(first.contains("But memory grows: each step leaves 8.00 MiB behind, which is not counted."), "{told}");
    assert!(first.contains("Not reached: evaluation ("), "{told}");
    let (fit, _) = scene.ask(&["fit", "--batch", "{}", "--gpu", "1GiB"], &["2"]);
    assert!(said(&fit).contains("But memory grows: each step leaves "), "{}", said(&fit));
    // Neither part was tried alone.
    let snippet = row(&rows, &["expandable-segments", "checkpoint-every"])["snippet"].as_str().unwrap();
    let (_, lines) = told.split_once("The lines to write").unwrap_or_else(|| panic!("{told}"));
    assert!(snippet.lines().all(|line| lines.contains(line)), "{snippet}\n{told}");
    let (plain, _) = scene.ask(&["rehearse", "--gpu", "rtx-4090"], &[]);
    assert!(said(&plain).contains("takes the kernel that keeps scores: its scores take 384 MiB"), "{}", said(&plain));
}

/// Trains with a small batch, and evaluates with larger ones and gradients.
const EVALUATES: &str = "
import torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    model.train()
    model(torch.randn(256, 512, device='cuda')).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    total = 0
    for batch in range(2):
        total = total + model(torch.randn(8192, 512, device='cuda')).square().mean()
    print(float(total))
";

/// What a script computes on the host takes each run another time: here a few hundredths by design, and what a crowded machine adds.
#[test]
fn a_techniques_change_has_no_noise_of_scripts() {
    let scene = Scene::new(
        "
import os, torch
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    sum(range(5_000_000 + 50_000 * (os.getpid() % 10)))
    net(torch.ones(64, 64, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad()
",
    );
    let (output, rows) =
        scene.ask(&["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", "autocast-bf16,bf16-weights,for-loop"], &[]);
    for row in rows.as_array().unwrap() {
        let share = row["predicted_change"]["share"].as_f64();
        assert!(share.is_some_and(|share| share.abs() < 0.05), "{row} {}", said(&output));
    }
}

#[test]
fn an_evaluation_that_keeps_graphs_is_rehearsed_without_them() {
    let scene = Scene::new(EVALUATES);
    let flags = ["rehearse", "--gpu", "rtx-4090", "--steps", "all"];
    let (output, rows) = scene.ask(&[&flags[..], &["--what-if", "--only", "no-grad,inference-mode"]].concat(), &[]);
    let told = said(&output);
    let without = row(&rows, &["no-grad"]);
    assert!(without["saved"].as_i64() > Some(0) && without["change"] == "", "{told}");
    let why = row(&rows, &["inference-mode"])["reason"].as_str().unwrap_or_default();
    assert!(why.contains("torch.no_grad() is for its forward passes") && why.contains("train.py:14 (<module>)"), "{told}");
    assert!(!told.contains("rehearsing with inference-mode"), "the script's own rehearsal knows: {told}");
    let kept = "4 of 6 forward passes keep activations for a backward pass, and none follows. At the peak that is ";
    let text = unwrapped(&told);
    assert!(text.contains(kept) && text.contains("torch.no_grad() or torch.inference_mode() around them, at "), "{told}");
    let (plain, answer) = scene.ask(&flags, &[]);
    let plain = said(&plain);
    assert!(plain.contains(kept) && answer["advice"][0]["technique"] == "no-grad", "{plain}");
    scene.write(&EVALUATES.replace("        total = total", "        with torch.no_grad(): total = total"));
    let (_, written) = scene.ask(&flags, &[]);
    assert_eq!(
        (&written["peak_allocated"], &written["peak_reserved"]),
        (&without["peak_allocated"], &without["peak_reserved"]),
        "as the script that has the line: {told}"
    );
}

/// A model of blocks whose input wants a gradient and nothing else, and one that is called with other weights than its own.
#[test]
fn a_frozen_model_gone_back_through_is_one() {
    let text = |training: &str| {
        format!(
            "
import torch
from torch import nn
net = nn.Sequential(*[nn.Sequential(nn.Linear(512, 2048), nn.BatchNorm1d(2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(4)]).cuda().eval()
for _ in range(3):
    x = torch.randn(4096, 512, device='cuda')
    {training}
"
        )
    };
    let frozen = text("net.requires_grad_(False); x.requires_grad_(); net(x).square().mean().backward()");
    let scene = Scene::new(&frozen);
    let flags = ["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", "checkpoint-every,offload-activations"];
    let (output, rows) = scene.ask(&flags, &[]);
    let told = said(&output);
    for name in ["checkpoint-every", "offload-activations"] {
        assert!(row(&rows, &[name])["saved"].as_i64() > Some(0), "{name}: {told}");
    }
    assert_eq!(row(&rows, &["checkpoint-every"])["change"], "", "statistics stay as they are in evaluation: {told}");
    scene.write(&text(
        "torch.func.functional_call(net, {k: p * 2 for k, p in net.named_parameters()}, x).square().mean().backward()",
    ));
    let (output, rows) = scene.ask(&flags, &[]);
    let why = row(&rows, &["checkpoint-every"])["reason"].as_str().unwrap_or_default();
    assert!(why.contains("the script calls the model by functional_call"), "{}", said(&output));
}

/// The script calls `forward`, of which PyTorch's own calls of modules say nothing: its parts are those of the model all the same.
#[test]
#[ignore = "long"]
fn a_model_whose_forward_is_called_by_itself_has_its_own_names_and_lines() {
    let text = |call: &str| {
        format!(
            "
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(512, 2048), nn.Linear(2048, 512)
    def forward(self, x):
        return x + self.b(nn.functional.gelu(self.a(x)))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(4)), nn.Linear(512, 10)
    def features(self, x):
        for block in self.blocks:
            x = block(x)
        return x
    def forward(self, x):
        return self.head(self.features(x))
net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    loss = {call}(torch.randn(4096, 512, device='cuda')).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"
        )
    };
    let scene = Scene::new(&text("net"));
    let flags = ["rehearse", "--gpu", "rtx-4090"];
    let what_if = [&flags[..], &["--what-if", "--only", "checkpoint-every,compile"]].concat();
    let (_, called) = scene.ask(&what_if, &[]);
    scene.write(&text("net.forward"));
    let (output, rows) = scene.ask(&what_if, &[]);
    let told = said(&output);
    let of = |rows: &Value| {
        (row(rows, &["checkpoint-every"])["peak_allocated"].clone(), row(rows, &["checkpoint-every"])["snippet"].clone())
    };
    assert!(of(&called) == of(&rows) && told.contains("for block in net.blocks:"), "{told}");
    let why = row(&rows, &["compile"])["reason"].as_str().unwrap_or_default();
    assert!(why.contains("the script calls net.forward(...)"), "{told}");
    let (plain, _) = scene.ask(&flags, &[]);
    assert!(said(&plain).contains("Net.blocks.*.a"), "{}", said(&plain));
}

/// The first rehearsal knows that there are no gradients, and that these packages were not imported.
#[test]
fn a_technique_that_a_script_has_nothing_for_is_not_rehearsed() {
    let scene = Scene::new(
        "
import torch
model = torch.nn.Linear(64, 64).cuda()
with torch.no_grad():
    for _ in range(3):
        model(torch.randn(8, 64, device='cuda'))
",
    );
    let only = "inference-mode,no-grad,static-cache,sdpa,sliced-vae,sliced-attention+offloaded-cache";
    let (output, rows) = scene.ask(&["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", only], &[]);
    let told = said(&output);
    for (names, why) in [
        (&["inference-mode"][..], "without gradients already"),
        (&["no-grad"][..], "the script never trains: see torch.inference_mode()"),
        (&["static-cache"][..], "the script imports no transformers"),
        (&["sdpa"][..], "the script imports no transformers"),
        (&["sliced-vae"][..], "the script imports no diffusers"),
        (&["sliced-attention", "offloaded-cache"][..], "sliced-attention: the script imports no diffusers"),
    ] {
        assert!(row(&rows, names)["reason"].as_str().is_some_and(|reason| reason.ends_with(why)), "{names:?}: {told}");
    }
    assert!(output.status.success() && !told.contains("rehearsing with"), "{told}");
    assert!(!told.contains("compute is not counted"), "{told}");
}

#[test]
fn what_is_no_technique_is_refused_and_what_is_not_there_told() {
    let scene = Scene::new(&source());
    let (output, _) = scene.ask(&["rehearse", "--what-if", "--only", "magic"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("there is no technique 'magic'; there are "), "{}", said(&output));
    let (output, _) = scene.ask(&["rehearse", "--what-if", "--only", "fused+foreach"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("fused and foreach are alternatives"), "{}", said(&output));
}

/// The library is compiled by what stands for a compiler here: for a version that is not out yet, of the pinned one's.
#[test]
#[ignore = "long"]
fn that_a_library_is_compiled_is_said_once() {
    const COPY: &str = "#!/bin/sh
while [ $# -gt 0 ]; do [ \"$1\" = -o ] && made=$2; shift; done
sleep 0.5
name=${made##*/}
cp \"$VRAMLAB_REHEARSAL_LIBRARIES\"/../compiled-*/\"${name%%-*}\"-2.11.*-abi1.so \"$made\"
";
    let scene = Scene::new("import torch; torch.__version__ = '2.99.0'; torch.ones(1, device='cuda'); print(1 / 0)");
    std::fs::write(scene.path("c++"), COPY).unwrap();
    let compiler = format!("sh {}", scene.path("c++").display());
    let compiling = "compiling for PyTorch 2.99.0, once; about a minute";
    let said_of = |flags: &[&str]| {
        let own = [("CXX", compiler.as_str()), ("VRAMLAB_CACHE", scene.folder.path().to_str().unwrap())];
        let (output, _) = scene.ask_with(&own, flags, &[]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("ZeroDivisionError"), "{error}");
        std::fs::read_dir(scene.folder.path()).unwrap().flatten().for_each(|entry| {
            std::fs::remove_file(entry.path().join("python-2.99.0-abi1.so")).ok();
        });
        let untried = "PyTorch 2.99.0 is newer than 2.15, the newest that was tried with vramlab";
        assert!(flags != ["rehearse"] || error.contains(untried), "{error}");
        (error.lines().filter(|line| line.contains(compiling)).count(), error)
    };
    let two_at_once = ["fit", "--batch", "--batch-size {}", "--gpu", "2GiB", "--gpu", "3GiB"];
    let (count, error) = said_of(&two_at_once);
    assert_eq!(count, 1, "{error}");
    // Its progress is one line that a terminal has rewritten, and a file gets none.
    assert_eq!(said_of(&["rehearse", "--what-if"]).0, 0);
    assert_eq!(said_of(&["rehearse"]).0, 1);
    assert_eq!(said_of(&["rehearse", "--quiet"]).0, 0);
}

/// Where there is no GPU the simulated one stands for it: its libraries come before PyTorch's, and nothing of ours watches the allocator.
#[test]
#[ignore = "long"]
fn a_gpu_is_measured_by_pytorchs_own_meters_and_a_clock() {
    let scene = Scene::new(
        "
import torch
blocks = [torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)) for _ in range(4)]
model = torch.nn.Sequential(*blocks).cuda()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    loss = model(torch.randn(4096, 512, device='cuda')).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
",
    );
    let flags = ["rehearse", "--what-if", "--only", "checkpoint-every"];
    let own = [("VRAMLAB_CACHE", scene.folder.path().to_str().unwrap())];
    let (output, simulated) = scene.ask_with(&own, &[&flags[..], &["--gpu", "4GiB"]].concat(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let entries = std::fs::read_dir(scene.folder.path()).unwrap().flatten().map(|entry| entry.path());
    let libraries = entries.into_iter().find(|path| path.to_string_lossy().contains("/rehearsal-")).unwrap();
    let preloaded = ["libnvidia-ml.so.1", "libcuda.so.1"].map(|name| libraries.join(name).display().to_string()).join(":");
    let run = |memory: u64| {
        let json = scene.path("measured.json");
        let output = Command::new(VRAMLAB)
            .args(flags)
            .args(["--device", "cuda", "--json", json.to_str().unwrap(), "--", "env"])
            .arg(format!("LD_PRELOAD={preloaded}"))
            .arg(format!("VRAMLAB_DRY_CARD=,a card,{memory},9.0,132,2048,49152,232448,233472,62914560"))
            .arg(common::python())
            .arg(scene.path("train.py"))
            .envs(own)
            .output()
            .unwrap();
        (said(&output), serde_json::from_str::<Value>(&std::fs::read_to_string(&json).unwrap()).unwrap())
    };
    let (told, measured) = run(4 << 30);
    for name in [&[][..], &["checkpoint-every"]] {
        let (simulated, measured) = (row(&simulated, name), row(&measured, name));
        for figure in ["peak_allocated", "peak_reserved", "saved", "extra_flops", "change", "snippet"] {
            assert_eq!(simulated[figure], measured[figure], "{figure} of {name:?}: {told}");
        }
        assert!(measured["seconds"].as_f64().unwrap() > 0.0 && simulated["seconds"].is_null(), "{measured}");
    }
    let head = told.lines().any(|line| line.split_whitespace().eq("reserved saves step fits".split(' ')));
    assert!(told.contains("On a card (4.00 GiB)") && head, "{told}");
    // A card that is a page short of what the script takes as it is.
    let (told, measured) = run(row(&simulated, &[])["peak_reserved"].as_u64().unwrap() - (2 << 20));
    assert_eq!(
        (&row(&measured, &[])["fits"], &row(&measured, &["checkpoint-every"])["fits"]),
        (&Value::from(false), &Value::from(true)),
        "{told}"
    );
}

/// With a batch of 4 cuDNN chooses other algorithms than with 8, with other workspaces.
#[test]
fn the_batch_that_fits_is_exact() {
    let script = common::root().join("tests/rehearse/pointwise.py");
    let scene = Scene::new(&std::fs::read_to_string(script).unwrap());
    let (output, fits) = scene.ask(&["fit", "--batch", "--batch-size {}", "--gpu", "t4"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let (largest, tries) = (fits[0]["largest"].as_u64().unwrap(), fits[0]["rehearsals"].as_u64().unwrap());
    assert!(tries <= 8, "{}", said(&output));
    assert_eq!(fits[0]["tried"].as_array().unwrap().len() as u64, tries, "{fits}");
    // Convolutions of many images keep the card busy long before its memory is full.
    for tried in fits[0]["tried"].as_array().unwrap() {
        assert_eq!(tried["time"]["samples_per_second"].as_f64().is_some(), tried["fits"].as_bool().unwrap(), "{tried}");
    }
    assert!(fits[0]["enough"].as_u64().is_some_and(|enough| enough <= largest / 2), "{fits}");
    let text = said(&output);
    assert!(text.contains("t4: throughput (predicted)") && text.contains("doubling it gives less than 2 %"), "{text}");
    for (batch, status) in [(largest, 0), (largest + 1, 3)] {
        let (output, answer) = scene.ask(&["rehearse", "--gpu", "t4"], &["--batch-size", &batch.to_string()]);
        assert_eq!(output.status.code(), Some(status), "{}", said(&output));
        if status == 0 {
            assert_eq!((&answer["peak_reserved"], &answer["headroom"]), (&fits[0]["peak_reserved"], &fits[0]["headroom"]));
        }
    }
}

#[test]
fn a_peak_that_grew_is_named_with_its_line() {
    let scene = Scene::new(&source());
    let earlier = scene.path("earlier.json");
    let (output, _) = scene.ask(&["rehearse"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    std::fs::rename(scene.path("answer.json"), &earlier).unwrap();
    let check = ["rehearse", "--check", earlier.to_str().unwrap()];
    let (same, again) = scene.ask(&check, &[]);
    assert_eq!(same.status.code(), Some(0), "{}", said(&same));
    let without_process = |mut answer: Value| {
        answer["processes"][0]["process"].take();
        answer["cards"][0]["processes"][0]["process"].take();
        // What the host's memory came to is this machine's, and differs from run to run.
        answer["host"].take();
        answer["check"].take();
        answer
    };
    let first = serde_json::from_str(&std::fs::read_to_string(&earlier).unwrap()).unwrap();
    assert_eq!(without_process(again), without_process(first));
    // The lines below the new one have other numbers and hold what they did.
    scene.write(&source().replace("return x + self.mix", "x = x.sin()\n        return x + self.mix"));
    let (grew, _) = scene.ask(&check, &["--batch-size", "16"]);
    assert_eq!(grew.status.code(), Some(4), "{}", said(&grew));
    let said_of_growth = said(&grew);
    let named = said_of_growth.lines().filter(|line| line.contains("  new  ")).collect::<Vec<&str>>();
    assert!(said_of_growth.contains("THE PEAK GREW") && named.len() == 1, "{said_of_growth}");
    assert!(named[0].contains("train.py:23") && named[0].contains("x = x.sin()"), "{named:?}");
    let (tolerated, _) = scene.ask(&[&check[..], &["--tolerance", "200%"]].concat(), &["--batch-size", "16"]);
    assert_eq!(tolerated.status.code(), Some(0), "{}", said(&tolerated));
    // What is kept beside a script is small, is the same wherever the script lies, and tells a change by the same lines.
    let kept = |scene: &Scene| {
        scene.write(&source());
        let (output, _) =
            scene.ask(&["rehearse", "--quiet", "--check", scene.path("kept.json").to_str().unwrap(), "--update"], &[]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        std::fs::read_to_string(scene.path("kept.json")).unwrap()
    };
    let text = kept(&scene);
    assert_eq!(text, kept(&Scene::new("")));
    let whole = std::fs::metadata(&earlier).unwrap().len();
    assert!((text.len() as u64) < whole / 2 && !text.contains("/tmp") && !text.contains("process\""), "{text}");
    let file = scene.path("kept.json");
    let check = ["rehearse", "--check", file.to_str().unwrap()];
    let (same, _) = scene.ask(&check, &[]);
    assert!(
        same.status.success() && said(&same).contains("DID NOT GROW: allocated +0 B, reserved +0 B, needs +0 B"),
        "{}",
        said(&same)
    );
    scene.write(&source().replace("return x + self.mix", "x = x.sin()\n        return x + self.mix"));
    let (grew, _) = scene.ask(&check, &["--batch-size", "16"]);
    let news = said(&grew);
    assert!(grew.status.code() == Some(4) && news.contains("  new  ") && news.contains("train.py:23"), "{news}");
    assert!(news.find("THE PEAK GREW") < news.find("What fills"), "{news}");
}

/// The one part of `--device cuda` that a real GPU is not needed for: which meters and times are taken, of scripts that train and that do not.
#[test]
fn on_a_real_gpu_a_script_is_measured_whether_it_trains_or_not() {
    for what in ["trains", "infers", "compiled"] {
        let script = common::root().join("tests/rehearse/measured.py");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
        let output = command
            .args(["rehearse", "--gpu", "h100", "--steps", "all", "--"])
            .arg(common::python())
            .arg(script)
            .arg(what)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("measured as it should be"), "{what}: {printed}{}", said(&output));
    }
}

/// What it imports before torch counts its processes; and it may read on from a file that it opened before.
const COUNTED: &str = "
import counted
OPENED
import torch
from torch import nn
width = WIDTH
model = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(64, width, device='cuda')).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
";

#[test]
fn techniques_are_tried_in_copies_of_a_process_that_copies_share_nothing_of() {
    share_nothing(false);
}

#[test]
#[ignore = "long"]
fn techniques_are_tried_in_processes_where_copies_would_share_something() {
    share_nothing(true);
}

fn share_nothing(in_processes: bool) {
    let of = |opened: &str, width: &str, before: &str| {
        let scene = Scene::new(&COUNTED.replace("OPENED", opened).replace("WIDTH", width));
        std::fs::write(scene.path("numbers.txt"), "1024\n").unwrap();
        std::fs::write(scene.path("counted.py"), format!("open({:?}, 'a').write('x')\n{before}", scene.path("started"))).unwrap();
        let only = "fused,for-loop,factored";
        let (output, rows) = scene.ask(&["rehearse", "--gpu", "rtx-4090", "--writes", "--what-if", "--only", only], &[]);
        assert!(output.status.success(), "{}", said(&output));
        let bytes = |row: &Value| (row["techniques"].to_string(), row["peak_allocated"].as_i64(), row["needs_at_least"].as_i64());
        let mut bytes: Vec<_> = rows.as_array().unwrap().iter().map(bytes).collect();
        bytes.sort();
        (bytes, std::fs::read_to_string(scene.path("started")).unwrap().len())
    };
    let (copied, processes) = of("", "1024", "");
    // Each copy carries the script out from its first line on, once.
    assert!(copied.len() == 4 && copied.iter().all(|row| row.1.is_some() && row.2.is_some()), "{copied:?}");
    assert_eq!(processes, 4, "one for each row");
    let here = "open(__file__.replace('train.py', 'numbers.txt'))";
    for (opened, width, before) in [
        // A file, whose place copies would share.
        (&*format!("numbers = {here}"), "int(next(numbers))", ""),
        // A thread, which copies would not have.
        (
            "",
            "counted.found.result()",
            "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()\nfound = pool.submit(int, 1024)\n",
        ),
        // Anything that it calls.
        ("from pathlib import Path\nPath(__file__ + '.made').mkdir(exist_ok=True)", "1024", ""),
    ]
    .iter()
    .filter(|_| in_processes)
    {
        let (alone, processes) = of(opened, width, before);
        assert_eq!(alone, copied, "{opened}{before}");
        assert!(processes >= 4, "{opened}{before}: {processes}");
    }
}

const RANKS: &str = "
import os, torch
from torch import nn
torch.distributed.init_process_group('nccl')
torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)) for _ in range(6))
    def forward(self, x):
        for block in self.blocks: x = block(x)
        return x
model = nn.parallel.DistributedDataParallel(Net().cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(4096, 512, device='cuda')).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
";

/// A launcher's own process runs no module; and all launchers listen at the same port.
#[test]
#[ignore = "long"]
fn techniques_are_tried_on_ranks_and_not_on_their_launcher() {
    let scene = Scene::new(RANKS);
    let json = scene.path("answer.json");
    let output = Command::new(VRAMLAB)
        .args([
            "rehearse",
            "--gpu",
            "a100-40g",
            "--what-if",
            "--only",
            "checkpoint-every,autocast-bf16,fused,8-bit-torchao+in-place",
        ])
        .args(["--json", json.to_str().unwrap(), "--"])
        .arg(common::python())
        .args(["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29500"])
        .arg(scene.path("train.py"))
        .output()
        .unwrap();
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let needs = |names: &[&str]| row(&rows, names)["needs_at_least"].as_i64().unwrap_or_else(|| panic!("{}", said(&output)));
    // Activations of six blocks, of which one is there at a time; and their halves.
    assert!(needs(&["checkpoint-every"]) < needs(&[]) - (100 << 20), "{}", said(&output));
    assert!(needs(&["autocast-bf16"]) < needs(&[]), "{}", said(&output));
    assert!(needs(&["fused"]) <= needs(&[]), "{}", said(&output));
    let why = row(&rows, &["8-bit-torchao", "in-place"])["reason"].as_str().unwrap_or_default();
    assert!(!why.contains("runs no module") && !why.contains("address already in use"), "{why}");
}

/// As nanoGPT's does: what a backward pass needs is looked for in the first pass that has one, and not in the first of all.
#[test]
fn a_script_that_evaluates_before_it_trains_is_checkpointed() {
    let scene = Scene::new(
        "
import torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
with torch.no_grad():
    model(torch.randn(8, 1024, device='cuda'))
for _ in range(3):
    model(torch.randn(1 << 14, 1024, device='cuda')).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
",
    );
    let (output, rows) =
        scene.ask(&["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", "checkpoint-every,offload-activations"], &[]);
    for name in ["checkpoint-every", "offload-activations"] {
        let row = row(&rows, &[name]);
        assert!(row["reason"].is_null() && row["saved"].as_i64() > Some(64 << 20), "{row} {}", said(&output));
    }
}
