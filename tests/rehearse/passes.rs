//! Scripts that do not train: inference, generation, and what their forward passes leave behind; and which lines made a peak grow.

use super::captures::{capture, shown};
use super::scene::{Scene, unwrapped, vramlab};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn rehearsed(folder: &Path, script: &Path, words: &[&str]) -> (String, Value) {
    let answer = folder.join(format!("{}.json", words.join("-")));
    let output = vramlab()
        .args(["rehearse", "--gpu", "rtx-4090", "--json"])
        .arg(&answer)
        .arg("--")
        .arg(common::python())
        .arg(script)
        .args(words)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (said, serde_json::from_str(&std::fs::read_to_string(answer).unwrap()).unwrap())
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What is said of techniques, and their rows.
fn techniques_of(script: &Path, only: &str) -> (String, Value) {
    let rows = script.with_extension("rows.json");
    let output = vramlab()
        .args(["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", only, "--json"])
        .args([&rows, Path::new("--"), &common::python(), script])
        .output()
        .unwrap();
    let said = text_of(&output);
    assert!(output.status.success(), "{said}");
    (said, serde_json::from_str(&std::fs::read_to_string(rows).unwrap()).unwrap())
}

fn row<'a>(rows: &'a Value, name: &str) -> &'a Value {
    rows.as_array()
        .unwrap()
        .iter()
        .find(|row| row["techniques"] == serde_json::json!([name]))
        .unwrap_or_else(|| panic!("{name}: {rows}"))
}

/// Bytes of a category at the peak.
fn held(answer: &Value, category: &str) -> i64 {
    let rows = answer["processes"][0]["peak"]["categories"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == category).map_or(0, |row| row["bytes"].as_i64().unwrap())
}

#[test]
fn inference_is_called_so_with_what_fills_it_and_what_it_leaves_behind() {
    let of = |words: &str| shown(&format!("inference-{words}"));

    // Without anything kept: nothing grows, and nothing is said of gradients.
    let (plain, answer) = of("plain");
    let process = &answer["processes"][0];
    assert_eq!(
        (&process["peak"]["phase"], &process["growth"], &process["needless_graphs"]),
        (&"inference".into(), &Value::Null, &Value::Null)
    );
    assert!(!plain.contains("no_grad") && !plain.contains("Memory grows"), "{plain}");
    // 32 texts of 64 tokens in each of 12 passes, a forward pass of which is timed.
    let time = &answer["time"];
    assert_eq!((&time["unit"], &time["passes"], &time["samples"]), (&"forward pass".into(), &12.into(), &32.into()), "{time}");
    assert!(plain.contains("The longest of 12 forward passes takes "), "{plain}");

    // Keys and values of two layers, 64 texts of 162 and 163 tokens and 256 numbers of 4 bytes: those of the pass before, and the new ones.
    let (_, cached) = of("cached");
    let peak = &cached["processes"][0]["peak"];
    assert_eq!(peak["phase"], "generation");
    let cache = held(&cached, "KV cache");
    let of_tokens = |tokens: i64| 2 * 2 * 64 * tokens * 256 * 4;
    assert!((of_tokens(162 + 82)..=of_tokens(162 + 166)).contains(&cache), "{cache}");
    // The text comes before the first token, takes longer than one, and all tokens together longer still.
    let [token, prefill, all] =
        ["step_seconds", "prefill_seconds", "total_seconds"].map(|name| cached["time"][name].as_f64().unwrap());
    assert!(cached["time"]["unit"] == "token" && prefill > 0.0 && all > 20.0 * token.min(prefill), "{token} {prefill} {all}");
    assert_eq!(cached["processes"][0]["growth"], Value::Null, "a cache that grows within a text is no leak");
    // As transformers has it of an encoder and a decoder: a cache of caches of layers.
    let (_, nested) = of("cached-nested");
    assert_eq!((held(&nested, "KV cache"), &nested["processes"][0]["growth"]), (cache, &Value::Null));

    // Each pass leaves its scores, 32 x 64 x 1000 numbers, in a list; or one tensor has them all.
    let scores = 32 * 64 * 1000 * 4;
    for (word, how) in [("kept", "answers, a list of"), ("grows", "predictions, which grows")] {
        let (said, answer) = of(word);
        let growth = &answer["processes"][0]["growth"];
        let per_round = growth["bytes_per_round"].as_i64().unwrap();
        assert!((scores * 4 / 5..=scores * 5 / 4).contains(&per_round), "{word}: {growth}");
        assert_eq!(growth["round"], "forward pass");
        assert!(said.contains(how), "{word}: {said}");
        assert!(held(&answer, "kept outputs") > 8 * scores, "{word}: {said}");
    }

    // Batches in the order of their lengths grow, and nothing is left; of two lists the one that is filled anew for each text keeps nothing.
    let (said, answer) = of("longer");
    assert_eq!(answer["processes"][0]["growth"], Value::Null, "{said}");
    let (said, answer) = of("beams-gradients");
    let kept_by = answer["processes"][0]["growth"]["kept_by"].as_array().unwrap();
    assert!(kept_by.iter().all(|keeper| keeper["keeps"] == "answers") && !kept_by.is_empty(), "{said}");

    // With gradients the whole graph stays, and what helps is named.
    let (said, with) = of("kept-gradients");
    let needless = &with["processes"][0]["needless_graphs"];
    assert_eq!((&needless["passes"], &needless["of"]), (&12.into(), &12.into()));
    assert!(said.contains("All 12 forward passes keep activations") && said.contains("torch.inference_mode()"), "{said}");

    // What the difference is made of, to the byte, from the two answers.
    let [kept, with_gradients] = ["inference-kept", "inference-kept-gradients"].map(capture);
    let diff = |other: &Path, flags: &[&str]| vramlab().arg("diff").args([&kept, other]).args(flags).output().unwrap();
    let output = diff(&with_gradients, &[]);
    let text = text_of(&output);
    assert!(output.status.success() && text.contains("inference.py:") && text.contains("sum"), "{text}");
    let difference: Value = serde_json::from_slice(&diff(&with_gradients, &["--json", "-"]).stdout).unwrap();
    let sum: i64 = difference["rows"].as_array().unwrap().iter().map(|row| row["bytes"].as_i64().unwrap()).sum();
    assert_eq!(Some(sum), with["peak_allocated"].as_i64().zip(difference["before"].as_i64()).map(|(after, before)| after - before));
    let refused = diff(&with_gradients.with_extension("txt"), &[]);
    assert!(!refused.status.success() && text_of(&refused).contains("is neither an answer"), "{}", text_of(&refused));
}

#[test]
fn what_if_of_inference_tries_what_helps_there() {
    let script = common::root().join("tests/rehearse/captures/inference.py");
    let folder = tempfile::tempdir().unwrap();
    let answer = folder.path().join("rows.json");
    let output = vramlab()
        .args(["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", "inference-mode,half-precision", "--json"])
        .arg(&answer)
        .arg("--")
        .arg(common::python())
        .arg(&script)
        .arg("gradients")
        .output()
        .unwrap();
    let said = text_of(&output);
    assert!(output.status.success() && said.contains("with torch.inference_mode():"), "{said}");
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(answer).unwrap()).unwrap();
    let allocated = |name: &str| {
        let row = rows.as_array().unwrap().iter().find(|row| row["techniques"] == serde_json::json!([name]));
        row.and_then(|row| row["peak_allocated"].as_i64()).unwrap_or_else(|| panic!("{name}: {rows}"))
    };
    let plain = shown("inference-plain").1["peak_allocated"].as_i64().unwrap();
    assert_eq!(allocated("inference-mode"), plain, "as the script that has the line: {said}");
    // Half of its parameters and activations, and the workspace.
    let as_it_is =
        rows.as_array().unwrap().iter().find(|row| row["fits"] == true && row["techniques"] == serde_json::json!([])).unwrap();
    assert!(allocated("half-precision") < as_it_is["peak_allocated"].as_i64().unwrap() * 4 / 5, "{said}");
}

#[test]
fn what_goes_backward_and_makes_no_step_is_no_training() {
    let (said, answer) = shown("attack");
    let needless = &answer["processes"][0]["needless_graphs"];
    // Those of the attack are gone back through, after others have run.
    assert_eq!(
        (&needless["passes"], &needless["of"], &needless["line"]["line"]),
        (&6.into(), &18.into(), &33.into()),
        "{needless}"
    );
    assert!(said.contains("The longest of 18 forward passes with its backward pass takes "), "{said}");
    assert!(answer["processes"][0]["gradients_without_steps"].is_null(), "{answer}");
    // Six of them for each batch.
    assert_eq!(answer["time"]["epoch"]["steps"], 18, "{said}");

    let gradients = |words: &str| {
        let (said, answer) = shown(&format!("attack-{words}"));
        let is_said = said.contains("if nothing reads them, model.requires_grad_(False) before the loop leaves them out");
        (is_said, answer["processes"][0]["gradients_without_steps"].as_i64())
    };
    let (is_said, bytes) = gradients("backward");
    let of_weights = (8 * (2048 + 1) * 2048 + (2048 + 1) * 10) * 4;
    assert!(
        is_said && bytes.is_some_and(|bytes| (of_weights..of_weights + (1 << 15)).contains(&bytes)),
        "{bytes:?} of {of_weights}"
    );
    assert_eq!(gradients("backward-frozen"), (false, None));

    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("attack.py");
    std::fs::copy(capture("attack").with_extension("py"), &script).unwrap();
    let (said, rows) = techniques_of(&script, "checkpoint-every,no-grad,fused,zero2,lora,inference-mode");
    for name in ["fused", "zero2", "lora"] {
        assert!(said.contains(&format!("{name}: the script makes no optimizer step")), "{said}");
    }
    let text = unwrapped(&said);
    assert!(text.contains("put torch.no_grad() around ") && text.contains("attack.py:33 (<module>), which keeps "), "{said}");
    assert!(said.lines().any(|line| line.ends_with(" saves        forward+backward fits")), "{said}");
    assert!(text.contains("of what leaves the result as it is"), "{said}");
    // What a backward pass computes again is no forward pass of its own.
    let row = row(&rows, "checkpoint-every");
    let (saved, longer) = (row["saved"].as_i64().unwrap(), row["predicted_change"]["share"].as_f64().unwrap());
    assert!(saved > 0 && (0.1..0.6).contains(&longer), "{row}");
}

/// As of classifier guidance: the model that is gone back through is not the one that takes longest.
#[test]
fn what_changes_another_model_than_the_longest_takes_time_too() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("guidance.py");
    let text = "import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer, self.gate = nn.Linear(width, width), nn.GELU()
    def forward(self, x): return self.gate(self.layer(x))
def of(width, blocks): return nn.Sequential(*[Block(width) for _ in range(blocks)]).cuda().eval().requires_grad_(False)
denoiser, classifier = of(4096, 4), of(2048, 6)
with torch.no_grad():
    for _ in range(6):
        denoiser(torch.randn(8192, 4096, device='cuda'))
        with torch.enable_grad():
            x = torch.randn(8192, 2048, device='cuda', requires_grad=True)
            torch.autograd.grad(classifier(x).sum(), x)
";
    std::fs::write(&script, text).unwrap();
    let (said, rows) = techniques_of(&script, "checkpoint-every,bf16-weights,half-precision,expandable-segments");
    let row = |name: &str| row(&rows, name);
    let longer = row("checkpoint-every")["predicted_change"]["share"].as_f64().unwrap();
    assert!((0.03..0.3).contains(&longer), "{rows}");
    assert_eq!(row("expandable-segments")["predicted_change"]["share"], 0.0, "{rows}");
    assert_eq!(row("bf16-weights")["change"], "weights and gradients in bfloat16");
    assert!(!row("bf16-weights")["snippet"].as_str().unwrap().contains("optimizer"), "{rows}");
    assert!(
        unwrapped(&said).contains("half-precision: the script goes back through a model: see autocast and bf16-weights"),
        "{said}"
    );
}

/// As the tutorial on FGSM has it: the value that it reads is a healthy run's, so that the attack is never made.
#[test]
fn a_backward_pass_that_a_value_decides_against_is_not_reached_and_no_inference() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("fgsm.py");
    let text = "import torch, torch.nn.functional as F
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 10)).cuda().eval()
def test(x, target):
    x.requires_grad = True
    output = model(x)
    if output.argmax(1).item() != target.item() or True:
        return
    F.nll_loss(output.log_softmax(1), target).backward()
for _ in range(4): test(torch.randn(1, 512, device='cuda'), torch.tensor([3], device='cuda'))
";
    std::fs::write(&script, text).unwrap();
    let (said, answer) = rehearsed(folder.path(), &script, &[]);
    assert!(said.contains("Not reached: backward pass (") && said.contains("fgsm.py:8)"), "{said}");
    assert_eq!(answer["processes"][0]["needless_graphs"], Value::Null, "{said}");
    let mut program = vramlab();
    program
        .args(["rehearse", "--gpu", "rtx-4090", "--what-if", "--only", "inference-mode", "--"])
        .arg(common::python())
        .arg(&script);
    let said = text_of(&program.output().unwrap());
    let text = unwrapped(&said);
    assert!(text.contains("inference-mode: the script has a backward pass that was not reached, at "), "{said}");
    assert!(text.contains("Not reached: backward pass (") && text.contains("fgsm.py:8)."), "{said}");
}

/// The one pass of its size compiles; what that takes is none of the pass's time.
#[test]
fn a_pass_that_compiles_takes_no_longer_than_another() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("compiled.py");
    let text = "import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).cuda()
model = torch.compile(model, backend='eager')
with torch.no_grad(): model(torch.randn(64, 512, device='cuda'))
";
    std::fs::write(&script, text).unwrap();
    let (said, answer) = rehearsed(folder.path(), &script, &[]);
    let time = &answer["time"];
    assert!(time["launches"].as_u64() >= Some(3) && time["step_seconds"].as_f64().unwrap() < 0.02, "{said}");
}

/// Stand-ins are found before what is installed: they are packages of their own.
fn come_first(folder: &Path, packages: [&str; 2]) {
    packages.iter().for_each(|package| std::fs::write(folder.join(package).join("__init__.py"), "").unwrap());
}

/// What stands in for transformers and diffusers: a class that generates by a cache it is told, and one that decodes images.
const LIBRARIES: [(&str, &str); 2] = [
    (
        "transformers/generation/utils.py",
        "import torch
class GenerationMixin:
    def generate(self, tokens, cache_implementation=None):
        cache = None if cache_implementation == 'offloaded' else torch.empty(1 << 26, device='cuda')
        return self(tokens.to('cuda'))
",
    ),
    (
        "diffusers/models/autoencoders/autoencoder_kl.py",
        "import torch
class AutoencoderKL(torch.nn.Module):
    use_slicing = False
    def enable_slicing(self):
        self.use_slicing = True
    def decode(self, z):
        return [torch.empty(1 << 22, device='cuda') for _ in range(1 if self.use_slicing else len(z))][0]
",
    ),
];

const GENERATES: &str = "
import sys, torch
from transformers.generation.utils import GenerationMixin
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
class Model(torch.nn.Linear, GenerationMixin):
    pass
many = int(sys.argv[sys.argv.index('--batch') + 1])
model = Model(4096, 4096, device='cuda')
with torch.no_grad():
    for _ in range(3):
        model.generate(torch.ones(64 * many, 4096))
    AutoencoderKL().decode([0] * 32)
";

#[test]
fn what_if_of_inference_chooses_a_librarys_own_ways_and_smaller_batches() {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in LIBRARIES {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    come_first(folder.path(), ["transformers", "diffusers"]);
    std::fs::write(folder.path().join("generate.py"), GENERATES).unwrap();
    let output = vramlab()
        .current_dir(folder.path())
        .args([
            "rehearse",
            "--gpu",
            "rtx-4090",
            "--what-if",
            "--only",
            "sliced-vae,sliced-vae+offloaded-cache,batch-16",
            "--batch",
            "--batch {}",
        ])
        .args(["--json", "rows.json", "--"])
        .arg(common::python())
        .args(["generate.py", "--batch", "32"])
        .output()
        .unwrap();
    let said = text_of(&output);
    assert!(output.status.success(), "{said}");
    let head = said.lines().any(|line| line.split_whitespace().eq("needs saves forward pass fits".split(' ')));
    assert!(head && said.contains("times are predicted") && said.contains("pipe.vae.enable_slicing()"), "{said}");
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(folder.path().join("rows.json")).unwrap()).unwrap();
    let allocated = |names: &[&str]| {
        let row = rows.as_array().unwrap().iter().find(|row| row["techniques"] == serde_json::json!(names));
        row.and_then(|row| row["peak_allocated"].as_i64()).unwrap_or_else(|| panic!("{names:?}: {rows}"))
    };
    // Of 32 images of 16 MiB one is left, then the cache of 256 MiB is the peak, and without it the weights of 64 MiB.
    let sliced = allocated(&["sliced-vae"]);
    assert!(allocated(&[]) > 32 << 24 && (256 << 20..512 << 20).contains(&sliced), "{said}");
    let both = allocated(&["sliced-vae", "offloaded-cache"]);
    assert!(both < sliced - (200 << 20) && allocated(&["batch-16"]) <= allocated(&[]), "{said}");
}

/// Of lists of lists, as vit-pytorch and x-transformers have them: the blocks, and the words that a script names them by.
#[test]
fn blocks_are_found_in_lists_of_lists() {
    let file = common::root().join("src/rehearse/python/vramlab_rehearsal/techniques/shared/blocks.py");
    let script = format!(
        "
exec(open({file:?}).read())
from torch import nn
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(2, 2)
class FeedForward(Attention): pass
model = nn.Module()
model.layers = nn.ModuleList([nn.ModuleList([nn.ModuleList([nn.LayerNorm(2), None]), Attention(), FeedForward(), None]) for _ in range(3)])
(entry,) = repeated(model)
named = eval(of_list(*entry))
assert named == entry[2] and len(named) == 6, named
print(of_list(*entry))
"
    );
    let output = Command::new(common::python()).args(["-W", "ignore", "-c", &script]).output().unwrap();
    let said = text_of(&output);
    assert!(output.status.success() && said.contains("for row in model.layers for block in row if type(block)"), "{said}");
}

/// Stand-ins for IPython and transformers: what of them is followed.
const COMPILER: &str = "
class CachingCompiler:
    def get_code_name(self, raw, code, number):
        return '<ipython-input-1>'

    def cache(self, code, number=0, raw=None):
        return self.get_code_name(raw, code, number)
";
const SEARCH: &str = "
import torch

class GenerationMixin:
    @staticmethod
    def _beam_search_has_unfinished_sequences(hits):
        return ~torch.all(hits)

    def search(self, cur_len, max_length):
        goes_on = True
        while goes_on:
            chance = torch.randn(max_length - 4, device='cuda') > 0
            beam_indices = torch.where(chance, -1, 0)
            cur_len += 1
            goes_on = self._beam_search_has_unfinished_sequences(chance)
        return cur_len, ((beam_indices + 1).bool()).sum().item()
";
const CELLS: &str = r#"
from IPython.core.compilerop import CachingCompiler
for cell in ("import torch", "x = torch.empty(1 << 20, device='cuda')\ny = torch.empty(64 << 20, device='cuda')"):
    exec(compile(cell, CachingCompiler().cache(cell, 1), "exec"))
from transformers.generation.utils import GenerationMixin
print(GenerationMixin().search(4, 20))
"#;

#[test]
fn cells_have_their_numbers_and_beams_go_on_to_the_longest_text() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("IPython/core/compilerop.py", COMPILER), ("transformers/generation/utils.py", SEARCH), ("book.py", CELLS)]
    {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    come_first(folder.path(), ["IPython", "transformers"]);
    let mut command = vramlab();
    command.args(["rehearse", "--"]).arg(common::python()).arg("book.py").current_dir(folder.path());
    let said = text_of(&command.output().unwrap());
    assert!(said.contains("cell 2:2\n") && said.contains("(20, 16)\n"), "{said}");
}

/// Two passes one after the other, both of which a backward pass goes through.
#[test]
fn what_a_perceptual_loss_keeps_is_needed() {
    let scene = Scene::new(
        "
import torch
from torch import nn
class Features(nn.Sequential): pass
model, features = nn.Linear(256, 256).cuda(), Features(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda().eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(4096, 256, device='cuda')
    (features(model(x)) - features(x)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
",
    );
    let (output, answer) = scene.run(&["--gpu", "4GiB"]);
    let process = &answer["processes"][0];
    assert!(process["steps"] == 3 && process["needless_graphs"].is_null(), "{}", text_of(&output));
}

/// A teacher's, of which nothing is kept: no checkpoint makes it smaller, nor is there anything that a backward pass would want back from the host.
#[test]
fn what_no_graph_keeps_of_a_forward_pass_has_remedies_of_its_own() {
    let one = "nn.Linear(256, 1 << 14), nn.GELU(), nn.Linear(1 << 14, 256)";
    let script = "
import torch
from torch import nn
teacher = nn.Sequential(TEACHER).cuda().requires_grad_(False)
student = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    x = torch.randn(8192, 256, device='cuda')
    with torch.no_grad():
        target = teacher(x)
    (student(x) - target).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
";
    // In one piece, and in blocks.
    for teacher in [one.to_string(), format!("nn.Sequential({one}), nn.Sequential({one})")] {
        let scene = Scene::new(&script.replace("TEACHER", &teacher));
        let (output, answer) = scene.run(&["--gpu", "4GiB"]);
        let said = text_of(&output);
        let advice = answer["advice"].as_array().unwrap();
        let named: Vec<&str> = advice.iter().map(|one| one["technique"].as_str().unwrap()).collect();
        assert!(
            said.contains("The peak is in evaluation after step ") && said.contains("half of the batch, twice a step"),
            "{said}"
        );
        assert!(named.contains(&"accumulate") && !named.contains(&"offload-activations"), "{teacher}: {named:?}");
        assert!(!named.iter().any(|name| name.starts_with("checkpoint-")) && !said.contains("checkpoint-"), "{teacher}: {named:?}");
    }
}

#[test]
fn passes_without_parameters_and_of_graphs_are_passes() {
    let (said, answer) = shown("unusual-graph");
    let time = &answer["time"];
    assert!((21..=22).contains(&time["passes"].as_u64().unwrap()), "{said}");
    // Of one replay: of each of two modules a cast and a product.
    assert!(time["unit"] == "forward pass" && time["launches"].as_u64().unwrap() < 10, "{said}");

    let (said, answer) = shown("unusual-frozen");
    assert!(said.contains("torch.jit's modules were not frozen"), "{said}");
    assert_eq!(answer["processes"][0]["peak"]["phase"], "inference", "{said}");
    let batch = 16384 * 2048 * 2;
    // What the last pass gave, and this one gives.
    assert_eq!((held(&answer, "buffers"), held(&answer, "kept outputs")), (2 * 2048 * 2048, 2 * batch), "{said}");
    // The last one, and what the passes of convolutions are given.
    assert!((batch..batch + (1 << 20)).contains(&held(&answer, "data")), "{said}");
}

#[test]
fn sizes_that_a_gpu_would_tell_are_taken_for_the_most() {
    let said = shown("sizes").0;
    assert!(said.contains("coalesce() took each entry") && said.contains("TransformerEncoder kept padded rows"), "{said}");
}

/// PyTorch warns of `create_graph`, and of its own line.
#[test]
fn what_pytorch_warns_of_has_its_own_line() {
    let folder = tempfile::tempdir().unwrap();
    let (said, _) = rehearsed(folder.path(), &capture("holders").with_extension("py"), &["create_graph"]);
    assert!(said.contains("autograd/graph.py:") && !said.contains("vramlab_rehearsal"), "{said}");
}

#[test]
fn the_one_variable_holding_memory_is_named() {
    let of = |what: &str| shown(&format!("holders-{what}"));
    let weights = 8 * 1024 * 1024 * 4;

    // Half of each weight, once, though the blocks are called one by one.
    let (said, answer) = of("autocast");
    assert_eq!(held(&answer, "autocast's copies of weights"), weights / 2, "{said}");
    assert!(!said.contains("Memory grows") && !said.contains("held by"), "{said}");

    let (said, answer) = of("scripted");
    assert_eq!(answer["processes"][0]["peak"]["phase"], "inference", "{said}");
    assert!(!said.contains("left out"), "{said}");

    // A batch by names with dots is no copy of weights.
    let (said, answer) = of("batch");
    assert_eq!(held(&answer, "copies of weights"), 0, "{said}");

    // The graphs in `kept` hold each `x`, so that `del x` frees none of them.
    let (said, _) = of("graphs");
    assert!(said.contains("kept, a list of 3 tensors or more with their graphs") && !said.contains("`x`"), "{said}");

    let (said, _) = of("create_graph");
    assert!(said.contains("backward(create_graph=True), which leaves gradients with their graphs"), "{said}");

    // What replaces a weight, and is replaced, is one: before the first pass, and within a pass.
    let (said, answer) = of("half");
    assert_eq!(held(&answer, "parameters"), weights + weights / 8 / 2, "{said}");
    let (said, answer) = of("momentum");
    // With the one that is about to be replaced.
    assert_eq!(held(&answer, "parameters"), 2 * weights + weights / 8, "{said}");
    assert!(said.contains("a checkpoint of parameters and buffers takes about 64.0 MiB"), "{said}");

    // An optimizer's state, too, that grows after the steps that are rehearsed.
    let (said, answer) = of("history");
    assert!(held(&answer, "optimizer state") > 4 * weights / 8, "{said}");
    assert!(said.contains("Not reached: the whole history of LBFGS, "), "{said}");
    assert!(said.contains(" of 40 steps so far, 8.0 MiB each"), "{said}");

    // Of the model and of the momentum, or of the model.
    for (what, copies) in [("deepcopy", 2 * weights), ("clone", weights)] {
        let (said, answer) = of(what);
        assert_eq!(held(&answer, "copies of weights"), copies, "{said}");
        assert!(said.contains("keep this copy of weights or state on the host"), "{said}");
    }
}
