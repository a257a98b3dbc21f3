//! `vramlab rehearse` beside FakeTensorMode, which is how PyTorch itself runs a script without computing: seconds of a training step of the
//! same script, in turns: of processors, all threads together, which a busy machine changes little, and by the clock. And what it takes in all,
//! imports included, for three steps of GPT-2, with and without what the time of a step is predicted from, and for a large model that is not
//! initialised. `cargo bench -p vramlab --bench rehearse`, which needs no libtorch of this program's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const ROUNDS: usize = 5;
const STEPS: &str = "12";

/// A Llama of 6.7e9 parameters in bf16, as it is made by hand: on the host, then moved. Three steps of plain SGD.
const LARGE: &str = "
import resource, torch
from torch import nn
torch.set_default_dtype(torch.bfloat16)

class Block(nn.Module):
    def __init__(self, width=4096, hidden=11008):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.attention = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        n, t, width = x.shape
        h = self.norms[0](x)
        q, k, v = (linear(h).view(n, t, 32, -1).transpose(1, 2) for linear in self.attention[:3])
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention[3](h.transpose(1, 2).reshape(n, t, width))
        h = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))

model = nn.Sequential(nn.Embedding(32000, 4096), *(Block() for _ in range(32)), nn.RMSNorm(4096), nn.Linear(4096, 32000, bias=False)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    ids = torch.randint(32000, (1, 2048), device='cuda')
    nn.functional.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten()).backward()
    if step == 2:
        print('resident', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    optimizer.step()
    optimizer.zero_grad()
";

fn root() -> &'static Path {
    common::root()
}

fn python() -> PathBuf {
    let own = root().join(".venv/bin/python");
    if own.exists() { own } else { PathBuf::from("python3") }
}

fn rehearse(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
    command.args(["rehearse", "--quiet", "--gpu", "h200", "--steps", "all"]).args(flags).arg("--").arg(python());
    command
}

/// What a command took, and the numbers that its script says last.
struct Took {
    said: Vec<f64>,
    seconds: f64,
    processor: f64,
}

fn took(command: &mut Command) -> Took {
    let (began, before) = (Instant::now(), processor());
    let output = command.stderr(Stdio::inherit()).output().expect("the command starts");
    assert!(output.status.success(), "{command:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let said: Vec<f64> = text.lines().last().unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(!said.is_empty(), "{command:?} says no number");
    Took { said, seconds: began.elapsed().as_secs_f64(), processor: processor() - before }
}

/// Seconds of processor time of this process's children and theirs that have ended.
fn processor() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields = text.rsplit(')').next().expect("a line").split_whitespace().skip(13).take(2);
    // Of a hundredth of a second, whatever the kernel counts in.
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = of.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // For cargo test, which runs benches, too.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let models = root().join("tests/rehearse/known_models.py");
    for (model, batch) in [("resnet50", "32"), ("gpt2", "8")] {
        let words = [model, batch, "--steps", STEPS];
        let (ours, fakes): (Vec<Took>, Vec<Took>) = (0..ROUNDS)
            .map(|_| {
                (took(rehearse(&[]).arg(&models).args(words)), took(Command::new(python()).arg(&models).args(words).arg("--fake")))
            })
            .unzip();
        println!("{model}, batch {batch}, {ROUNDS} rounds of {STEPS} steps:");
        for (at, what) in [(1, "of processors"), (0, "by the clock")] {
            let of = |took: &Took| took.said[at];
            let ratios: Vec<f64> = ours.iter().zip(&fakes).map(|(our, fake)| of(fake) / of(our)).collect();
            println!(
                "  a step rehearsed {:.1} ms {what}, under FakeTensorMode {:.0} ms: {:.1} times as fast (rounds {:.1} to {:.1})",
                median(ours.iter().map(of)) * 1e3,
                median(fakes.iter().map(of)) * 1e3,
                median(ratios.iter().copied()),
                ratios.iter().copied().fold(f64::INFINITY, f64::min),
                ratios.iter().copied().fold(0.0, f64::max),
            );
        }
        let all = |of: &[Took]| (median(of.iter().map(|t| t.seconds)), median(of.iter().map(|t| t.processor)));
        let ((whole, work), (fake_whole, fake_work)) = (all(&ours), all(&fakes));
        println!("  with imports {whole:.1} s ({work:.1} s of processors), and {fake_whole:.1} s ({fake_work:.1} s)");
    }
    for (model, batch) in [("gpt2", "12"), ("resnet50", "32")] {
        let three = |without: bool| {
            // The answer is made as well: the prediction is a part of it.
            let mut command = rehearse(&["--json", "/dev/null"]);
            command.arg(&models).args([model, batch, "--steps", "3"]);
            if without {
                command.env("VRAMLAB_REHEARSAL_WITHOUT_TIME", "1");
            }
            took(&mut command)
        };
        let turns: Vec<(Took, Took)> = (0..2 * ROUNDS).map(|_| (three(false), three(true))).collect();
        let ratios = |of: fn(&Took) -> f64| median(turns.iter().map(|(with, without)| of(with) / of(without)));
        println!(
            "{model}, batch {batch}: three steps with imports {:.1} s, {:.1} s of processors; with the time of a step {:+.0} % by the clock, \
             {:+.0} % of processors, medians of {} turns",
            median(turns.iter().map(|(with, _)| with.seconds)),
            median(turns.iter().map(|(with, _)| with.processor)),
            (ratios(|t| t.seconds) - 1.0) * 100.0,
            (ratios(|t| t.processor) - 1.0) * 100.0,
            turns.len()
        );
    }
    let large = took(rehearse(&["--no-init"]).args(["-c", LARGE]));
    println!(
        "6.7e9 parameters with --no-init: {:.1} s in all, {:.1} s of processors, {:.2} GiB resident at most",
        large.seconds,
        large.processor,
        large.said[0] / (1 << 20) as f64
    );
}
