//! `vramlab rehearse` beside FakeTensorMode, which is how PyTorch itself runs a script without computing: seconds of a training step of the
//! same script, in turns. And what it takes in all to rehearse a large model without initialising it. `cargo bench --bench rehearse`.

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
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn python() -> PathBuf {
    let own = root().join(".venv/bin/python");
    if own.exists() { own } else { PathBuf::from("python3") }
}

fn rehearse(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
    command.args(["rehearse", "--quiet", "--gpu", "141GiB", "--steps", "all"]).args(flags).arg("--").arg(python());
    command
}

/// What a script says at the end of its last line, and the seconds that it ran.
fn said(command: &mut Command) -> (f64, f64) {
    let began = Instant::now();
    let output = command.stderr(Stdio::inherit()).output().expect("the command starts");
    assert!(output.status.success(), "{command:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split_whitespace().last().and_then(|word| word.parse().ok()).expect("the script says a number");
    (number, began.elapsed().as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
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
        let mut seconds = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let (step, whole) = said(rehearse(&[]).arg(&models).args([model, batch, "--steps", STEPS]));
            let mut fake = Command::new(python());
            let (fake_step, fake_whole) = said(fake.arg(&models).args([model, batch, "--steps", STEPS, "--fake"]));
            for (of, value) in seconds.iter_mut().zip([step, whole, fake_step, fake_whole]) {
                of.push(value);
            }
        }
        let [step, whole, fake_step, fake_whole] = seconds.map(median);
        println!(
            "{model}, batch {batch}: a step rehearsed {:.1} ms, under FakeTensorMode {:.0} ms: {:.1} times as fast. All of {STEPS} steps with \
             imports {whole:.1} s and {fake_whole:.1} s: {:.1} times",
            step * 1e3,
            fake_step * 1e3,
            fake_step / step,
            fake_whole / whole
        );
    }
    let (resident, whole) = said(rehearse(&["--no-init"]).args(["-c", LARGE]));
    println!("6.7e9 parameters with --no-init: {whole:.1} s in all, {:.2} GiB resident at most", resident / (1 << 20) as f64);
}
