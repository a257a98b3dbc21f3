//! Rehearsals as values: another Rust program asks, and prints what it likes.

use rehearse::fit::{Dimension, fit};
use rehearse::what_if::{Trials, what_if};
use rehearse::{Rehearsal, RehearsalVerdict, ScriptFailed};
use std::ffi::OsString;
use std::sync::Mutex;

const SCRIPT: &str = "
import sys, torch
print('the script says this')
size = int(sys.argv[sys.argv.index('--size') + 1])
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    model(torch.zeros(size, 1024, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
";

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn of(script: &str, card: &str, words: &[&str]) -> Rehearsal {
    let python = common::python().into_os_string();
    let words = words.iter().map(OsString::from);
    let command = [python, "-c".into(), script.into()].into_iter().chain(words).collect();
    Rehearsal::new(command, card.parse().unwrap()).unwrap()
}

#[test]
#[ignore = "long"]
fn a_rehearsal_is_asked_and_answers_in_figures() {
    let mut rehearsal = of(SCRIPT, "rtx-4090", &["--size", "64"]);
    let found = rehearsal.rehearse(true).unwrap();
    let answer = &found.answer;
    assert_eq!((answer.verdict, answer.steps), (RehearsalVerdict::Fits, 3));
    let state = 2 * 4 * (1024 * 1024 + 1024);
    assert!(answer.peak_requested > state * 3 / 2, "{} bytes", answer.peak_requested);
    assert!(answer.needs_at_least.is_some_and(|least| least <= answer.peak_on_device), "{:?}", answer.needs_at_least);
    let weight = found.capture.traces[0].events.iter().filter(|event| event.bytes == 4 * 1024 * 1024);
    assert!(weight.count() > 3, "the weight, its gradient and the optimizer's state of it");

    // By it what-if knows how many rehearsals this machine has memory for at once.
    assert!(
        (50 << 20..8 << 30).contains(&found.capture.traces[0].host.resident),
        "{} bytes",
        found.capture.traces[0].host.resident
    );

    rehearsal.progress = |what| SAID.lock().unwrap().push(what.to_string());
    let tried = what_if(&rehearsal, &Trials { only: vec!["fused".into()], batch: None }).unwrap();
    assert!(tried.fits() && tried.text().contains("fused"), "{}", tried.text());
    let said = SAID.lock().unwrap().join("\n");
    assert!(said.contains("rehearsing the script as it is") && said.contains("rehearsing with fused (1 of 1)"), "{said}");

    let fits = fit(&[of(SCRIPT, "1GiB", &["--size", "64"])], Dimension::Batch, &"--size {}".parse().unwrap()).unwrap();
    assert!(fits[0].largest > 64 && fits[0].rehearsals > 1, "{fits:?}");

    let error =
        what_if(&of("import torch\ntorch.zeros(1, device='cuda')\nraise ValueError('no')", "24GiB", &[]), &Trials::default());
    let error = error.err().unwrap();
    assert!(error.downcast_ref::<ScriptFailed>().is_some_and(|failed| failed.0.contains("ValueError")), "{error:#}");
    let nothing = of("print('no torch')", "24GiB", &[]).rehearse(false).unwrap_err();
    assert!(format!("{nothing:#}").contains("never imported torch"), "{nothing:#}");
}
