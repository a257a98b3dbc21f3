//! How each process of a job ends, and what a script sees of us: forked processes have traces of their own, out of memory and failures that
//! somebody swallowed decide the answer, and nothing of ours raises into a script.

use crate::scene::{Scene, error};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

fn process(answer: &Value, id: u64) -> Option<&Value> {
    answer["processes"].as_array()?.iter().find(|process| process["process"] == id)
}

/// Numbers of the lines `NAME ID` that a script printed, by name.
fn said_ids(output: &std::process::Output) -> Vec<(String, u64)> {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let id = |line: &str| line.split_once(" is ").map(|(name, id)| (name.to_string(), id.trim().parse().unwrap()));
    said.lines().filter_map(id).collect()
}

/// Processes that are forked after torch was imported, and what they do.
const FORKED: &str = "
import multiprocessing, os, subprocess, sys, threading, torch
fork = multiprocessing.get_context('fork')
def step(rows, device='cuda', times=1, before=lambda at: None):
    w = torch.nn.Linear(1024, 1024).to(device); o = torch.optim.SGD(w.parameters(), 0.1)
    for at in range(times):
        before(at)
        w(torch.empty(rows, 1024, device=device)).sum().backward(); o.step()
def told(name, work):
    def run():
        # Whole: what two print at once may stand in one line.
        os.write(1, f'{name} is {os.getpid()}\\n'.encode())
        work()
    return run
def start(name, work):
    process = fork.Process(target=told(name, work)); process.start(); return process
def quietly(work, then=lambda: None):
    try: work()
    except torch.OutOfMemoryError: pass
    else: return
    then()
HUGE = 1 << 24
";

#[test]
fn forked_processes_have_traces_of_their_own_and_out_of_memory_that_is_swallowed_decides() {
    let work = "
def grandchild():
    start('of a child', lambda: torch.empty(5 << 28, device='cuda')).join(); step(1 << 10)
def halving():
    quietly(lambda: step(HUGE), lambda: step(1 << 10))
def by_thread():
    thread = threading.Thread(target=lambda: step(HUGE)); thread.start(); thread.join()
def in_the_end():
    try: step(4, times=9)
    finally: torch.empty(30 << 28, device='cuda')
at_once = [start(f'at once {gib}', lambda gib=gib: (torch.empty(gib << 28, device='cuda'), step(1 << 10))) for gib in (2, 3)]
for each in at_once: each.join()
start('child', grandchild).join()
if os.fork() == 0:
    told('bare', lambda: torch.empty(7 << 28, device='cuda'))()
    os._exit(0)
os.wait()
subprocess.run(['true'])
start('died', lambda: step(HUGE)).join()
start('printed', lambda: quietly(lambda: step(HUGE))).join()
start('skipped', lambda: [quietly(lambda: step(HUGE)) for _ in range(3)]).join()
start('on the CPU', lambda: quietly(lambda: step(HUGE), lambda: step(4, 'cpu'))).join()
start('wrapped', lambda: quietly(lambda: step(HUGE), lambda: (torch.zeros(10, device='cuda'), sys.exit(1)))).join()
start('in a thread', by_thread).join()
start('in the end', in_the_end).join()
start('halved', halving).join()
print('parent is', os.getpid(), flush=True)
";
    let scene = Scene::new(&format!("{FORKED}{work}"));
    let (output, answer) = scene.run(&["--gpu", "rtx-4090"]);
    let said = error(&output);
    assert_eq!((output.status.code(), &answer["verdict"]), (Some(3), &"does_not_fit".into()), "{said}");
    let ids = said_ids(&output);
    assert_eq!(ids.len(), 14, "{said}");
    for (name, id) in ids {
        let found = process(&answer, id);
        let gib = match name.as_str() {
            "at once 2" => 2,
            "at once 3" => 3,
            "of a child" => 5,
            "bare" => 7,
            "child" => 0,
            "parent" => {
                assert!(found.is_none(), "{said}");
                continue;
            }
            "halved" => {
                let found = found.unwrap_or_else(|| panic!("{name}: {said}"));
                assert!(found["out_of_memory"].is_null() && found["caught"][0]["largest"].as_i64() > Some(60 << 30), "{found}");
                continue;
            }
            swallowed => {
                let found = found.unwrap_or_else(|| panic!("{name}: {said}"));
                assert!(!found["out_of_memory"].is_null(), "{swallowed}: {found}");
                continue;
            }
        };
        let found = found.unwrap_or_else(|| panic!("{name}: {said}"));
        let peak = found["peak_allocated"].as_i64().unwrap() - (gib << 30);
        assert!((0..64 << 20).contains(&peak), "{name}: {found}");
    }
    // What would do for those that went on with less, or not at all, is asked of a card on which nothing runs out.
    assert!(answer["needs_at_least"].as_i64() > Some(120 << 30), "{said}");
}

#[test]
fn a_process_that_fails_is_a_failure_whoever_made_its_steps() {
    let run = |work: &str| {
        let scene = Scene::new(&format!("{FORKED}{work}"));
        // As `pip install --target` leaves a package.
        let libraries = scene.path("libraries");
        std::fs::create_dir_all(libraries.join("checks-1.0.dist-info")).unwrap();
        std::fs::write(libraries.join("checks.py"), "def check(): raise ValueError('labels out of range')\n").unwrap();
        let output = scene.command(&["--gpu", "rtx-4090"]).env("PYTHONPATH", libraries).output().unwrap();
        (output.status.code(), error(&output), scene.answer())
    };
    // The other rank is stopped as done; and a failure that somebody deals with, or that is a helper's, decides nothing.
    let (code, said, answer) = run("
def rank(number):
    os.environ['RANK'] = str(number)
    def fails(at):
        if number == 1 and at == 1: import checks; checks.check()
    step(4, times=9, before=fails)
for each in [start(f'rank {number}', lambda number=number: rank(number)) for number in (0, 1)]: each.join()
subprocess.run([sys.executable, '-c', 'import torch; raise KeyError(1)'])
");
    assert_eq!((code, &answer["verdict"]), (Some(1), &"script_failed".into()), "{said}");
    assert_eq!((&answer["failed"]["rank"], &answer["failed"]["failure"]["type"]), (&1.into(), &"ValueError".into()), "{said}");
    assert!(
        said.contains("THE SCRIPT FAILED on rank 1 (process ")
            && said.contains("): ValueError: ")
            && said.contains("labels out of range"),
        "{said}"
    );
    assert!(answer["failed"]["failure"]["line"]["file"].as_str().unwrap().ends_with("train.py"), "{said}");
    assert!(said.contains("ended with KeyError: 1; it used no GPU"), "{said}");
    let (code, said, answer) = run("
again = [sys.executable, '-c', 'import os, torch; torch.ones(1 << 20, device=\"cuda\"); os.mkdir(\"made\")']
os.chdir(os.path.dirname(os.path.abspath(__file__)))
os.mkdir('made'); subprocess.run(again); os.rmdir('made'); subprocess.run(again, check=True); os.rmdir('made')
here, there = fork.Pipe()
def learner():
    here.close()
    step(4, times=9)
child = start('learner', learner); there.close()
torch.ones(1, device='cuda')
here.recv()
");
    // Who waits for the learner's word hears that it has gone.
    assert_eq!((code, &answer["verdict"]), (Some(2), &"fits_in_part".into()), "{said}");
    assert!(said.contains("the command failed with EOFError"), "{said}");
    assert!(said.contains("ended with FileExistsError") && said.contains("was started again and ended well"), "{said}");
}

/// As a library's destructors do it, after the script's last line; what crashes before that is a failure.
#[test]
fn a_crash_as_python_closes_is_no_failure() {
    for (crash, verdict) in [
        ("class Late:\n    def __del__(self, abort=os.abort): abort()\nsys.modules['late'] = Late()\n", "fits"),
        ("os.abort()\n", "script_failed"),
        // Its child had come to its end, and it had not.
        ("", "script_failed"),
    ] {
        let launcher = "import os, subprocess, sys\nif sys.argv[1:] != ['child']:\n    subprocess.run([sys.executable, __file__, 'child'], check=True)\n    os.abort()\n";
        let launcher = if crash.is_empty() { launcher } else { "" };
        let scene = Scene::anew(&format!("{launcher}{FORKED}step(4)\n{crash}"));
        let (output, answer) = scene.ask(&["rehearse", "--gpu", "rtx-4090", "--steps", "all"], &[]);
        let text = error(&output).replace('\n', " ");
        assert_eq!(answer["verdict"], verdict, "{text}");
        assert_eq!(
            text.contains("The script had come to its end, and as the interpreter closed it was ended by signal 6"),
            verdict == "fits",
            "{text}"
        );
    }
}

#[test]
fn the_headline_has_refusals_that_scripts_swallow() {
    let scene = Scene::anew(
        "
import torch
w = torch.nn.Linear(64, 64).cuda(); o = torch.optim.SGD(w.parameters(), 0.1)
x = torch.randn(64, 64, device='cuda')
for _ in range(4):
    try: torch.linalg.lstsq(x, x)
    except Exception: pass
    w(x).sum().backward(); o.step()
",
    );
    let (output, answer) = scene.run(&["--gpu", "rtx-4090"]);
    let said = error(&output);
    assert_eq!((output.status.code(), &answer["verdict"]), (Some(2), &"fits_in_part".into()), "{said}");
    assert!(
        said.contains("IN PART: ")
            && said.contains("the simulated GPU cannot run lstsq at")
            && said.contains("and the script caught that error"),
        "{said}"
    );
    assert_eq!(answer["refused"].as_array().map(Vec::len), Some(1), "{said}");
}

/// What follows after what a script prints, of how often each of our functions is left out.
fn left_out(answer: &Value) -> BTreeSet<String> {
    let notes = answer["notes"].as_array().into_iter().flatten().filter_map(|note| note["note"].as_str());
    notes.filter_map(|note| Some(note.strip_prefix("left out: ")?.split(',').next()?.to_string())).collect()
}

#[test]
fn whatever_fails_of_ours_the_script_sees_nothing_of_it() {
    let script = include_str!("guarded.py");
    let run = |fails: Option<&str>, flags: &[&str]| {
        let scene = Scene::anew(script);
        std::fs::write(scene.path("resource.py"), "MINE = 'its own'\n").unwrap();
        let mut command = scene.command(&[&["--gpu", "rtx-4090"][..], flags].concat());
        command.current_dir(scene.path(".")).envs(fails.map(|fails| ("VRAMLAB_REHEARSAL_FAILS", fails)));
        let output = command.output().unwrap();
        let said = error(&output);
        let own = said.split_once("\nTHE SCRIPT FAILED").map_or(said.clone(), |(own, _)| own.to_string());
        // On a busy machine what goes on is said, too.
        let own: String = own.lines().filter(|line| !line.starts_with("vramlab: ")).map(|line| format!("{line}\n")).collect();
        // What others called their folders is no word of ours: this clone's own name above all.
        let (folder, python) = (scene.path(""), common::python());
        let others = [folder.as_path(), python.ancestors().nth(2).unwrap(), common::root()];
        let own = others.iter().fold(own, |own, folder| own.replace(folder.to_str().unwrap(), ""));
        (String::from_utf8_lossy(&output.stdout).into_owned(), own, said, scene.answer())
    };
    let all = ["--steps", "all"];
    let (printed, raised, said, answer) = run(None, &all);
    assert!(printed.contains("its own module: its own") && raised.contains("ValueError: the script's own"), "{printed}\n{said}");
    assert!(!raised.contains("vramlab_rehearsal") && left_out(&answer).is_empty(), "{said}");
    assert_eq!(answer["verdict"], "script_failed", "{said}");
    let mut missing = names();
    for fails in ["always", "at first"] {
        let (printed_here, raised_here, said_here, answer_here) = run(Some(fails), &all);
        assert_eq!(printed, printed_here, "{fails}: {said_here}");
        // What takes our lines out of the traceback has failed, too.
        assert!(
            raised_here.ends_with("ValueError: the script's own\n") && !raised_here.contains("vramlab"),
            "{fails}: {raised_here}"
        );
        for figure in ["peak_requested", "peak_allocated", "peak_reserved", "verdict"] {
            assert_eq!(answer[figure], answer_here[figure], "{fails}: {said_here}");
        }
        missing.retain(|name| !left_out(&answer_here).contains(name));
    }
    // It is stopped as it was to be, too.
    let (.., said, answer) = run(Some("at first"), &[]);
    missing.retain(|name| !left_out(&answer).contains(name));
    assert_eq!((&answer["verdict"], &answer["steps"]), (&"fits".into(), &3.into()), "{said}");
    let elsewhere = [
        "compiled",
        "floating-point",
        "finder",
        "rank",
        "child process",
        "task",
        "what kernels of others",
        "values of a tensor",
        "safetensors",
        "distributed.checkpoint",
        // With --clock, of which times.rs asks.
        "the script's clock",
        "the wait for a batch",
        // Of servers, which serving.rs starts.
        "vLLM",
        "SGLang",
        "a server",
    ];
    missing.retain(|name| !elsewhere.iter().any(|part| name.contains(part)));
    // Those that others call which failed themselves.
    while !missing.is_empty() {
        let named = missing.iter().cloned().collect::<Vec<String>>().join("|");
        let (printed_here, .., said_here, answer_here) = run(Some(&named), &all);
        assert_eq!(printed, printed_here, "{named}: {said_here}");
        assert_eq!(answer_here["verdict"], "script_failed", "{named}: {said_here}");
        let before = missing.len();
        missing.retain(|name| !left_out(&answer_here).contains(name));
        assert!(missing.len() < before, "never called, or not told: {missing:?}\n{said_here}");
    }
}

/// What our functions are for that a script's calls come through.
fn names() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rehearse/python/vramlab_rehearsal");
    let mut found = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap_or_default();
        found.extend(text.split("guarded(\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_string())));
    }
    assert!(found.len() > 20, "{found:?}");
    found
}
