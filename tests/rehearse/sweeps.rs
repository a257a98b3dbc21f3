//! Sweeps and pipelines of commands: a training that is stopped after its steps gives nobody its result. Who waits for it is ended, what fails for want
//! of it fits in part, pools and sweeps go on with their next task, loops that train anew are told, and what fails by itself is a failure whoever hears of it.

use crate::scene::{Scene, error, unwrapped};
use serde_json::Value;

/// A training of so many GiB, in a file of its own, which anything can start.
const TRIAL: &str = "
import sys, torch
def train(gib, steps=9):
    held = torch.empty(int(gib * 2**30), dtype=torch.uint8, device='cuda')
    net = torch.nn.Linear(64, 64).cuda(); optimizer = torch.optim.Adam(net.parameters())
    for _ in range(steps):
        net(torch.randn(64, 64, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad()
    return gib
";

fn rehearse(script: &str, gpu: &str) -> (Option<i32>, String, String, Value) {
    let scene = Scene::new(script);
    std::fs::write(scene.path("trial.py"), TRIAL).unwrap();
    let mut command = scene.command(&["--gpu", gpu]);
    let output = command.current_dir(scene.path(".")).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), printed, error(&output), scene.answer())
}

#[test]
fn waiters_of_a_stopped_training_are_ended() {
    are_ended(1);
}

#[test]
#[ignore = "long"]
fn waiters_of_all_kinds_of_a_stopped_training_are_ended() {
    are_ended(3);
}

fn are_ended(kinds: usize) {
    let queue = "
import multiprocessing
def work(gib, queue):
    import trial
    queue.put(trial.train(gib))
if __name__ == '__main__':
    spawn = multiprocessing.get_context('spawn')
    for gib in (1, 30):
        queue = spawn.Queue(); spawn.Process(target=work, args=(gib, queue)).start(); print(queue.get())
";
    let output = "
import json, subprocess, sys
for gib in (1, 30):
    made = subprocess.run([sys.executable, '-c', f'import trial; trial.train({gib}); print(1)'], capture_output=True, text=True, check=True)
    print(json.loads(made.stdout))
";
    let evaluation = "
import subprocess, sys
subprocess.run([sys.executable, '-c', 'import torch, trial; trial.train(1); torch.save(1, \"net.pt\")'], check=True)
subprocess.run([sys.executable, '-c', 'import torch, trial; torch.ones(9, device=\"cuda\"); torch.load(\"net.pt\")'])
";
    for &(script, why) in &[
        (queue, "waits for what trainings give that were stopped after their steps"),
        (output, "JSONDecodeError: Expecting value: line 1 column 1 (char 0) (train.py:5)"),
        (evaluation, "the command failed with FileNotFoundError: [Errno 2] No such file or directory: 'net.pt'"),
    ][..kinds]
    {
        let (code, _, said, answer) = rehearse(script, "rtx-4090");
        assert_eq!((code, &answer["verdict"]), (Some(2), &"fits_in_part".into()), "{said}");
        let said = unwrapped(&said);
        assert!(said.contains("IN PART: ") && said.contains(why) && said.contains("--steps all"), "{said}");
        assert!(answer["cut_short"].is_object(), "{said}");
    }
}

#[test]
fn a_pools_concurrent_tasks_share_the_card() {
    let pool = |tasks: &str| {
        format!(
            "
import concurrent.futures, multiprocessing
def work(gib):
    import trial
    return trial.train(gib)
if __name__ == '__main__':
    fork = multiprocessing.get_context('fork')
    with fork.Pool(2) as pool: print(pool.map(work, {tasks}, chunksize=1), pool.apply(work, (1,)))
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=fork) as pool: print(list(pool.map(work, {tasks})))
"
        )
    };
    let (code, printed, said, answer) = rehearse(&pool("[1, 2, 2]"), "rtx-4090");
    assert_eq!((code, &answer["verdict"]), (Some(0), &"fits".into()), "{said}");
    assert!(printed.contains("[None, None, None] None\n[None, None, None]"), "{printed}");
    // Workers keep what the allocator cached for their first tasks.
    assert!((4..7).contains(&(answer["peak_on_device"].as_i64().unwrap() >> 30)), "{said}");
    for tasks in ["[15, 15, 1]", "[1, 1, 30]"] {
        let (code, _, said, answer) = rehearse(&pool(tasks), "rtx-4090");
        assert_eq!((code, &answer["verdict"]), (Some(3), &"does_not_fit".into()), "{tasks}: {said}");
    }
}

#[test]
fn a_training_that_fails_by_itself_is_a_failure_however_its_parent_ends() {
    for (fails, kind) in
        [("raise ValueError('labels')", "ValueError"), ("sys.exit(3)", "SystemExit"), ("import os; os._exit(3)", "SystemExit")]
    {
        let script = format!(
            "
import subprocess, sys
subprocess.run([sys.executable, '-c', '''import sys, trial; trial.train(1, 2); {fails}'''])
"
        );
        let (code, _, said, answer) = rehearse(&script, "rtx-4090");
        assert_eq!((code, &answer["failed"]["failure"]["type"]), (Some(1), &kind.into()), "{fails}: {said}");
    }
    // A rank that leaves without a word would have the others wait.
    let ranks = "
import os, subprocess, sys
if 'RANK' in os.environ:
    import torch, trial
    trial.train(1, 1)
    if os.environ['RANK'] == '1': os._exit(0)
    trial.train(1)
else:
    ranks = [subprocess.Popen([sys.executable, __file__], env=dict(os.environ, RANK=str(rank))) for rank in (0, 1)]
    for rank in ranks: rank.wait()
";
    let (code, _, said, answer) = rehearse(ranks, "rtx-4090");
    assert_eq!((code, &answer["verdict"]), (Some(1), &"script_failed".into()), "{said}");
    assert!(said.contains("rank 1 left after step 1, without an error"), "{said}");
}

#[test]
fn an_own_allocator_is_rehearsed_as_pytorchs() {
    let (code, _, said, answer) = rehearse(
        "
import torch
torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator('libc.so.6', 'malloc', 'free'))
class Schedule:
    rows = 64
    def __init__(self): self.rows = 64
    def after(self, step):
        if step % 8 == 7: self.rows *= 2
schedule = Schedule(); net = torch.nn.Linear(64, 64).cuda(); optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(40):
    net(torch.randn(schedule.rows, 64, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad(); schedule.after(step)
",
        "rtx-4090",
    );
    assert_eq!((code, &answer["verdict"]), (Some(0), &"fits".into()), "{said}");
    assert!(said.contains("change_current_allocator: rehearsed with PyTorch's own allocator"), "{said}");
    assert!(said.contains("if step % 8 == 7: self.rows *= 2"), "{said}");
}

#[test]
fn a_loop_whose_rounds_are_trainings_of_their_own_is_told() {
    let train = "
import torch
def train(width):
    net = torch.nn.Linear(width, width).cuda(); optimizer = torch.optim.Adam(net.parameters())
    for _ in range(9):
        net(torch.randn(64, width, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad()
";
    let here = "
import torch
for fold in range(5):
    net = torch.nn.Linear(64, 64).cuda(); optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(9):
        net(torch.randn(64, 64, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad()
";
    // Of one round there is no other, and an optimizer that a condition replaces is not made anew.
    let unfreezes = "
import torch
net = torch.nn.Linear(64, 64).cuda(); optimizer = torch.optim.Adam(net.parameters())
for epoch in range(9):
    if epoch == 7: optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(64, 64, device='cuda')).sum().backward(); optimizer.step(); optimizer.zero_grad()
";
    for (script, told) in [
        (
            format!("{train}for width in (64, 4096): train(width)\n"),
            Some("for width in (64, 4096): each round has a training of its own"),
        ),
        (here.to_string(), Some("for fold in range(5): each round has a training of its own")),
        (format!("{train}for width in [64]: train(width)\n"), None),
        (unfreezes.to_string(), None),
    ] {
        let (code, _, said, answer) = rehearse(&script, "rtx-4090");
        assert_eq!(code, Some(0), "{said}");
        let later = answer["processes"][0]["unreached"].to_string();
        assert_eq!(told.is_some(), later.contains("a training of its own"), "{script}: {later}");
        assert!(later.contains(told.unwrap_or_default()), "{script}: {later}");
        assert!(told.is_none() || unwrapped(&said).contains("Not reached: what comes later (train.py:"), "{said}");
    }
}

/// What Hydra, Optuna, submitit and joblib have jobs run by, with their names and what they give.
const LAUNCHERS: [(&str, &str); 4] = [
    ("hydra/core/utils.py", "def run_job(task_function, config):\n    return task_function(config)\n"),
    (
        "optuna/study/_optimize.py",
        "def _run_trial(study, function, catch):\n    value = function(None)\n    float(value if len(study.directions) == 1 else value[1])\n",
    ),
    (
        "submitit/core/utils.py",
        "class DelayedSubmission:\n    def __init__(self, function, *given): self.function, self.given = function, given\n    \
         def result(self): return self.function(*self.given)\n",
    ),
    (
        "joblib/externals/loky/process_executor.py",
        "def _process_worker(calls, results):\n    call = calls.get()\n    while call is not None:\n        results.put(call.fn())\n        call = calls.get()\n",
    ),
];

fn rehearse_with_launchers(script: &str) -> (Option<i32>, String, String, Value) {
    let scene = Scene::new(script);
    std::fs::write(scene.path("trial.py"), TRIAL).unwrap();
    for (file, text) in LAUNCHERS {
        let file = scene.path(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    std::fs::write(scene.path("submitit/core/_submit.py"), "import train; train.job()\n").unwrap();
    let output = scene.command(&["--gpu", "rtx-4090"]).current_dir(scene.path(".")).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), printed, error(&output), scene.answer())
}

#[test]
fn each_job_of_a_sweep_is_seen() {
    let of_hydra = "
import enum, types, trial
from hydra.core.utils import run_job
mode = enum.Enum('RunMode', 'RUN MULTIRUN').MULTIRUN
for gib in (1, 7, 2):
    print(run_job(trial.train, type('Config', (float,), {'hydra': types.SimpleNamespace(mode=mode)})(gib)))
";
    let of_optuna = "
import itertools, types, trial
from optuna.study._optimize import _run_trial
for directions, gibs in ((['minimize'], [1, 7]), (['minimize', 'maximize'], [2])):
    for gib in gibs: _run_trial(types.SimpleNamespace(directions=directions), lambda _: trial.train(gib), ())
print('1.0')
";
    let of_joblib = "
import multiprocessing, types
from joblib.externals.loky.process_executor import _process_worker
def work(gib):
    import trial
    return trial.train(gib)
class Calls:
    def __init__(self, *items): self.items = list(items)
    def __call__(self): return [function(*given, **named) for function, given, named in self.items]
class Call:
    def __init__(self, fn): self.fn = fn
if __name__ == '__main__':
    calls, results = multiprocessing.Queue(), multiprocessing.Queue()
    worker = multiprocessing.get_context('fork').Process(target=_process_worker, args=(calls, results)); worker.start()
    for call in (Call(Calls((work, (1,), {}), (work, (7,), {}))), Call(Calls((work, (2,), {}))), None): calls.put(call)
    print(results.get(), results.get()); worker.join()
";
    // As `n_jobs` has it: what two threads have at one time adds up.
    let in_threads = "
import concurrent.futures, types, trial, torch
from optuna.study._optimize import _run_trial
torch.ones(1, device='cuda')
study = types.SimpleNamespace(directions=['minimize'])
with concurrent.futures.ThreadPoolExecutor(2) as threads:
    done = [threads.submit(_run_trial, study, lambda _, gib=gib: trial.train(gib), ()) for gib in (3, 4, 1)]
    for each in done: each.result()
print('1.0')
";
    for (script, prints) in
        [(of_hydra, "1.0\n1.0\n1.0"), (of_optuna, "1.0"), (in_threads, "1.0"), (of_joblib, "[None, None] [None]")]
    {
        let (code, printed, said, answer) = rehearse_with_launchers(script);
        assert_eq!((code, &answer["verdict"]), (Some(0), &"fits".into()), "{said}");
        assert!(printed.contains(prints), "{printed}");
        // The allocator keeps what the jobs before had.
        assert!((7..9).contains(&(answer["peak_on_device"].as_i64().unwrap() >> 30)), "{said}");
        assert_eq!(answer["processes"][0]["trainings"], 3, "{said}");
        assert_eq!(answer["processes"][0]["unreached"].to_string(), "[]", "{said}");
        assert!(said.contains(" steps seen, of 3 trainings.") && answer["time"].is_null(), "{said}");
    }
}

#[test]
fn jobs_that_run_side_by_side_give_a_result_and_keep_what_they_have() {
    let (code, printed, said, answer) = rehearse_with_launchers(
        "
import subprocess, sys
def job():
    import trial
    from submitit.core.utils import DelayedSubmission
    print('gave', DelayedSubmission(trial.train, 5).result(), flush=True)
if __name__ == '__main__':
    jobs = [subprocess.Popen([sys.executable, '-m', 'submitit.core._submit']) for _ in range(2)]
    for job in jobs: job.wait()
",
    );
    assert_eq!((code, &answer["verdict"]), (Some(0), &"fits".into()), "{said}");
    assert_eq!(printed.matches("gave None").count(), 2, "{printed}");
    assert_eq!(answer["peak_on_device"].as_i64().unwrap() >> 30, 11, "{said}");
}
