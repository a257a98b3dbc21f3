//! Sweeps and pipelines of commands: a training that is stopped after its steps gives nobody its result. Who waits for it is ended, what fails for want
//! of it fits in part, pools go on with their next task, and what fails by itself is a failure whoever hears of it.

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
fn who_waits_for_a_stopped_training_is_ended_and_what_fails_for_want_of_one_fits_in_part() {
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
    for (script, why) in [
        (queue, "waits for what trainings give that were stopped after their steps"),
        (output, "JSONDecodeError: Expecting value: line 1 column 1 (char 0) (train.py:5)"),
        (evaluation, "the command failed with FileNotFoundError: [Errno 2] No such file or directory: 'net.pt'"),
    ] {
        let (code, _, said, answer) = rehearse(script, "rtx-4090");
        assert_eq!((code, &answer["verdict"]), (Some(2), &"fits_in_part".into()), "{said}");
        let said = unwrapped(&said);
        assert!(said.contains("IN PART: ") && said.contains(why) && said.contains("--steps all"), "{said}");
        assert!(answer["cut_short"].is_object(), "{said}");
    }
}

#[test]
fn a_pool_goes_on_with_its_next_task_and_those_at_work_at_one_time_share_the_card() {
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
fn an_allocator_of_the_scripts_own_is_rehearsed_with_pytorchs_and_what_a_schedule_multiplies_comes_later() {
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
