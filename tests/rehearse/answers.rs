//! Rehearsals in which something goes wrong around the script: full disks, odd names, closed outputs, time-outs, memory that ran out and was
//! caught. An answer is right, or it says that it is none.

use crate::captures::shown;
use crate::scene::{Scene, VRAMLAB, error};
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// So many allocations that their record does not fit, and the peak after them.
const MANY: &str = "
import resource, sys
if MOST: resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, MOST))
import torch
for _ in range(40000): torch.empty(1024, device='cuda')
x = torch.empty(8 << 30, dtype=torch.uint8, device='cuda')
";

#[test]
fn a_trace_that_was_cut_is_no_answer() {
    let refused = |output: &Output, answer: &Value, why: &str, what: &str| {
        assert_eq!((output.status.code(), answer), (Some(2), &Value::Null), "{what}: {}", error(output));
        let said = error(output);
        assert!(said.contains("the trace is incomplete") && said.contains(why) && !said.contains("FITS"), "{what}: {said}");
    };
    // A file may not grow: of the events, and of the names, of which a stack for each line is one.
    let scene = Scene::new(&MANY.replace("MOST", "(5 << 20)"));
    let (output, answer) = scene.run(&["--steps", "all"]);
    refused(&output, &answer, "ulimit -f", "the size of files is limited");
    let lines = "x = [torch.empty(8, device='cuda')]\n".repeat(3000);
    let scene = Scene::new(&format!("import torch\n{lines}"));
    let mut warm = scene.command(&["--steps", "all"]);
    assert!(warm.output().unwrap().status.success());
    std::fs::remove_file(scene.path("answer.json")).unwrap();
    let limited = format!("import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))\nimport torch\n{lines}");
    std::fs::write(scene.path("train.py"), limited).unwrap();
    let (output, answer) = scene.run(&["--steps", "all"]);
    refused(&output, &answer, "ulimit -f", "the size of files is limited to what the names do not fit into");

    // A disk that is full, where this user may mount one.
    let scene = Scene::new(&MANY.replace("MOST", "0"));
    let cache = scene.path("cache");
    std::fs::create_dir(&cache).unwrap();
    let full =
        format!("mount -t tmpfs -o size=16m none '{0}' || exit 77\nexport VRAMLAB_CACHE='{0}'\nexec \"$@\"", cache.display());
    let whole = scene.command(&["--steps", "all"]);
    let mut mounted = Command::new("unshare");
    mounted.args(["--mount", "--map-root-user", "sh", "-c", &full, "sh"]).arg(VRAMLAB).args(whole.get_args());
    let output = mounted.output();
    match output.as_ref().map(|output| output.status.code()) {
        Ok(Some(code)) if code != 77 && code != 1 => {
            refused(output.as_ref().unwrap(), &scene.answer(), "make room", "the disk is full")
        }
        _ => println!("no file system can be mounted here: a full disk was not tried, a limit was"),
    }
}

/// Names that no JSON and no terminal takes as they are; a line that Python does not know; a source that never ends.
const ODD: &str = r#"
import os, torch
Net = type("\x1b[31mRED\nFITS evil \u202e", (torch.nn.Linear,), {})
model = Net(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(torch.randn(64, 1024, device="cuda")).sum().backward(); optimizer.step()
step.__code__ = step.__code__.replace(co_linetable=b"")
step()
names = [os.path.join(os.path.dirname(__file__), "fifo"), "/dev/zero", "\x1b[2J\nFITS more.py", "caf\udce9.py"]
os.mkfifo(names[0])
for name in names:
    exec(compile("x = torch.empty(1 << 20, device='cuda')\nstep()\nkept.append(x)", name, "exec"), globals() | {"kept": globals().setdefault("kept", [])})
raise type("E\x1b[31m", (Exception,), {})("caf\udce9 \x1b]0;title\x07")
"#;

#[test]
fn odd_names_lose_nothing_and_reach_no_terminal() {
    let scene = Scene::new(ODD);
    // Of a name that is not UTF-8, as Latin-1 has it.
    let name = std::ffi::OsStr::new("tr\u{e4}in.py").to_os_string();
    let latin = [&b"tr\xe4in.py"[..]].concat();
    let latin = PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(latin));
    let file = self::Path::join(scene.folder.path(), if cfg!(target_os = "linux") { latin } else { name.into() });
    std::fs::rename(scene.path("train.py"), &file).unwrap();
    let out = scene.path("out");
    let output = Command::new(VRAMLAB)
        .args(["rehearse", "--steps", "all", "--timeout", "100", "--json"])
        .arg(scene.path("answer.json"))
        .arg("--out")
        .arg(&out)
        .arg("--")
        .args([common::python(), file])
        .output()
        .unwrap();
    let (said, answer) = (error(&output), scene.answer());
    assert_eq!((output.status.code(), &answer["verdict"]), (Some(1), &"script_failed".into()), "{said}");
    assert_eq!(answer["steps"], 5, "{said}");
    let told = &said[said.find("THE SCRIPT FAILED").unwrap()..];
    assert!(!told.contains(['\x1b', '\x07', '\u{202e}']), "{told:?}");
    assert!(!told.lines().any(|line| line.starts_with("FITS")), "{told}");
    assert!(told.contains("\\u{1b}[31mRED\\nFITS evil") && told.contains("(step)"), "{told}");
    assert!(answer["processes"][0]["exception"]["message"].as_str().unwrap().contains("caf"), "{answer}");
    for name in ["memory.html", "snapshot.pickle", "trace.json"] {
        assert!(out.join(name).metadata().unwrap().len() > 0, "{name}");
    }
}

const TRAIN: &str = "
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(64, 1024, device='cuda')).sum().backward()
    optimizer.step()
";

#[test]
fn files_are_written_though_nobody_listens() {
    let scene = Scene::new(TRAIN);
    let out = scene.path("out");
    let flags = ["--out", out.to_str().unwrap()];
    let written = || {
        assert_eq!(scene.answer()["verdict"], "fits");
        assert!(out.join("memory.html").exists());
        std::fs::remove_dir_all(&out).unwrap();
        std::fs::remove_file(scene.path("answer.json")).unwrap();
    };
    // As `2>&1 | head -1`, which leaves after the script's first line; here at once.
    let mut child = scene.command(&flags).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    written();
    let full = || std::fs::File::create("/dev/full").unwrap();
    assert_eq!(scene.command(&flags).stderr(full()).stdout(Stdio::null()).status().unwrap().code(), Some(0));
    written();
    // Other commands, which write on the standard output: one that is closed is no fault of theirs, one that is full is.
    let diff = || {
        let mut diff = Command::new(VRAMLAB);
        let results = common::root().join("records/predicted/dry-24gib");
        diff.arg("diff").args([&results, &results]);
        diff
    };
    let mut child = diff().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let (mut said, code) = (String::new(), child.wait().unwrap().code());
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let output = diff().stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).starts_with("vramlab: writing to the standard output: No space left"), "{}", error(&output));
}

#[test]
fn a_time_out_is_called_one() {
    let scene = Scene::new(&format!("{TRAIN}\nprint('trained', flush=True)\nimport time; time.sleep(1000)"));
    // As long as it takes on a busy machine until it has trained.
    let mut limits = [15_u32, 60, 240, 960].into_iter();
    let (limit, output, answer) = loop {
        let limit = limits.next().expect("the script never trains");
        let (output, answer) = scene.run(&["--steps", "all", "--timeout", &limit.to_string()]);
        if String::from_utf8_lossy(&output.stdout).contains("trained") {
            break (limit, output, answer);
        }
    };
    let said = error(&output);
    assert_eq!((output.status.code(), &answer["verdict"]), (Some(5), &"timed_out".into()), "{said}");
    assert_eq!((&answer["steps"], &answer["timed_out_after"]), (&3.into(), &f64::from(limit).into()));
    assert_eq!(answer["needs_at_least"], Value::Null);
    assert!(
        said.contains(&format!("ENDED BY --timeout after {limit} s: ")) && said.contains("3 steps seen. Until then "),
        "{said}"
    );
    assert!(!said.contains("FAILED") && !said.contains("DOES NOT FIT"), "{said}");
}

#[test]
fn what_follows_the_last_step_is_none() {
    let scene = Scene::new(&format!("{TRAIN}\nx = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')\n"));
    let (output, answer) = scene.run(&["--steps", "all"]);
    let process = &answer["processes"][0];
    let steps = process["phases"].as_array().unwrap().iter().map(|row| row["step"].as_u64().unwrap());
    assert_eq!((steps.max(), &process["peak"]["step"]), (Some(3), &0.into()), "{}", error(&output));
}

/// Batches are halved until one fits, as accelerate's `find_executable_batch_size` does it.
const HALVING: &str = "
import os, sys, time, torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batch = 1 << 24
while True:
    try:
        for _ in range(2):
            model(torch.randn(batch, 1024, device='cuda')).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        break
    except torch.OutOfMemoryError:
        batch //= 2
        optimizer.zero_grad()
print('trained with', batch, flush=True)
END
";

#[test]
fn memory_that_ran_out_and_was_caught_is_told_and_decides_nothing() {
    let run = |end: &str, flags: &[&str]| {
        let scene = Scene::new(&HALVING.replace("END", end));
        let (output, answer) = scene.run(&[&["--gpu", "rtx-4090"][..], flags].concat());
        (output.status.code(), error(&output), answer)
    };
    let (code, said, answer) = run("os._exit(0)", &[]);
    assert_eq!((code, &answer["verdict"]), (Some(0), &"fits".into()), "{said}");
    // The batch that went on is of 2^21 rows of 4 KiB, twice.
    assert!(answer["peak_allocated"].as_i64().unwrap() - (2 << 33) < 64 << 20, "{said}");
    assert!(answer["needs_at_least"].as_i64().unwrap() < 18 << 30, "{said}");
    let caught = &answer["processes"][0]["caught"][0];
    assert_eq!((&caught["times"], &caught["line"]["line"], &caught["largest"]), (&3.into(), &9.into(), &68_723_675_136_i64.into()));
    assert!(
        said.contains("The script caught these out-of-memory errors") && said.contains("train.py:9 (<module>) 3 times"),
        "{said}"
    );
    // Killed by somebody else, and given up on at last.
    let (code, said, answer) = run("os.kill(os.getpid(), 9)", &[]);
    assert_eq!((code, &answer["verdict"]), (Some(1), &"script_failed".into()), "{said}");
    let (code, said, answer) = run("sys.exit('it failed')", &[]);
    assert_eq!((code, &answer["verdict"]), (Some(1), &"script_failed".into()), "{said}");
    let scene =
        Scene::new("import sys, torch\ntry: torch.empty(1 << 40, device='cuda')\nexcept torch.OutOfMemoryError: sys.exit(9)\n");
    let (output, answer) = scene.run(&[]);
    assert_eq!((output.status.code(), &answer["verdict"]), (Some(3), &"does_not_fit".into()), "{}", error(&output));
    let scene = Scene::new(
        "import torch\ntry: torch.empty(1 << 40, device='cuda')\nexcept torch.OutOfMemoryError as e: raise RuntimeError('no batch') from e\n",
    );
    let (output, answer) = scene.run(&[]);
    assert_eq!((output.status.code(), &answer["verdict"]), (Some(3), &"does_not_fit".into()), "{}", error(&output));
    // What a batch finder would take of a larger card is not what it needs.
    let scene = Scene::new(
        "import torch\ntry: torch.empty(1 << 40, device='cuda')\nexcept torch.OutOfMemoryError: torch.ones(8, device='cuda')\ntorch.empty(1 << 38, device='cuda')\n",
    );
    let (output, answer) = scene.run(&[]);
    assert_eq!((output.status.code(), &answer["needs_at_least"]), (Some(3), &Value::Null), "{}", error(&output));
    assert!(answer["notes"].to_string().contains("the least memory that would do could not be found"), "{}", error(&output));
}

#[test]
fn an_exception_before_anything_was_allocated_is_in_the_answer() {
    let scene = Scene::new("import torch\nx = torch.empty(-5, device='cuda')\n");
    let (output, answer) = scene.run(&[]);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    let exception = &answer["processes"][0]["exception"];
    assert!(exception["message"].as_str().unwrap().contains("negative dimension") && exception["line"]["line"] == 2, "{answer}");
    assert!(
        error(&output).contains("THE SCRIPT FAILED: RuntimeError") && error(&output).contains("train.py:2"),
        "{}",
        error(&output)
    );
}

/// Blocks that come and go in sizes of which none fits into another's place.
const CACHING: &str = "
import torch
kept = torch.empty(200 << 20, dtype=torch.uint8, device='cuda')
for size in (100, 230, 150, 310, 270): x = torch.empty(size << 20, dtype=torch.uint8, device='cuda'); del x
";

/// What is reserved on a large card is no need: the least that would do is what a card of that size shows.
/// The place that is looked up is one of a single row, which a GPU would find.
#[test]
fn what_fails_by_a_value_that_nobody_computed_says_so() {
    let of = |last: &str| {
        let scene = Scene::new(&format!(
            "import torch\nx = torch.randn(1, 1024, 1024, device='cuda')\nloss = (x @ x).sum((1, 2))\n{last}\n"
        ));
        let (output, answer) = scene.run(&[]);
        assert_eq!(answer["verdict"], "script_failed", "{answer}");
        error(&output)
    };
    let said = of("best = (loss > 0).nonzero().squeeze()\nx[best]");
    assert!(said.contains("THE SCRIPT FAILED: IndexError"), "{said}");
    assert!(said.contains("A placeholder may be why: ") && said.contains("item at ") && said.contains("train.py:5"), "{said}");
    // Nothing was read.
    let said = of("x[1]");
    assert!(said.contains("THE SCRIPT FAILED: IndexError") && !said.contains("placeholder"), "{said}");
}

#[test]
fn the_least_memory_is_where_it_still_runs_and_a_page_less_is_not() {
    let scene = Scene::new(CACHING);
    let (output, answer) = scene.run(&["--gpu", "24GiB"]);
    let said = error(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let bytes = |field: &str| answer[field].as_i64().unwrap();
    let context = answer["gpu"]["context"].as_i64().unwrap();
    assert_eq!((bytes("peak_reserved"), bytes("needs_at_least") - context), (840 << 20, 510 << 20), "{said}");
    assert!(
        said.contains("Least memory it runs on: 1022 MiB") && said.contains("expandable_segments:True alone it would reserve"),
        "{said}"
    );
    assert_eq!(answer["smallest_card"], "rtx-4060");
    let at = |bytes: i64| {
        let (output, answer) = scene.run(&["--gpu", &format!("{bytes}B")]);
        (output.status.code(), answer)
    };
    let (code, exactly) = at(bytes("needs_at_least"));
    assert_eq!(
        (code, &exactly["verdict"], &exactly["needs_at_least"]),
        (Some(0), &"barely_fits".into(), &answer["needs_at_least"])
    );
    let (code, less) = at(bytes("needs_at_least") - (2 << 20));
    assert_eq!((code, &less["verdict"], &less["needs_at_least"]), (Some(3), &"does_not_fit".into(), &answer["needs_at_least"]));
}

/// Two large blocks are dropped and a small one is kept, again and again.
const FIGHTING: &str = "
import torch
kept = []
for _ in range(40):
    large, half = (torch.empty(size << 19, dtype=torch.uint8, device='cuda') for size in (182, 91))
    kept.append(torch.empty(2 << 20, dtype=torch.uint8, device='cuda'))
    del large, half
";

/// A block above the limit is not split, and therefore not used for another size; expandable segments grow by each.
#[test]
fn a_limit_of_splits_that_fights_expandable_segments_is_seen() {
    let scene = Scene::new(FIGHTING);
    let with = |setting: &str| {
        let output = scene.command(&["--gpu", "rtx-4090"]).env("PYTORCH_CUDA_ALLOC_CONF", setting).output().unwrap();
        let answer = scene.answer();
        let alone = answer["processes"][0]["fragmentation"]["reserved_if_expandable"].as_i64();
        (error(&output), answer["peak_reserved"].as_i64().unwrap(), alone)
    };
    let (said, reserved, alone) = with("expandable_segments:True");
    assert_eq!(alone, None, "{said}");
    let (said, fighting, alone) = with("max_split_size_mb:64,expandable_segments:True");
    assert!(fighting > 5 * reserved && alone == Some(reserved), "{reserved}, {alone:?}: {said}");
    assert!(said.contains("With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True alone it would reserve"), "{said}");
}

#[test]
fn what_the_steps_do_not_reach_is_named_and_so_are_sizes_that_differ() {
    let seen = |name: &str| {
        let (said, answer) = shown(name);
        let rows = answer["processes"][0]["unreached"].as_array().unwrap();
        let rows = rows
            .iter()
            .map(|row| format!("{} {} {}", row["unreached"].as_str().unwrap(), row["what"].as_str().unwrap(), row["line"]));
        (rows.collect::<Vec<String>>(), answer["processes"][0]["varied"].clone(), said)
    };
    let (rows, varied, said) = seen("later");
    assert_eq!(
        rows,
        ["evaluation nothing was read from the DataLoader val_loader 0", "evaluation model.eval() 18", "saving torch.save(...) 39"],
        "{said}"
    );
    assert!(
        said.contains("Not reached in 3 steps") && said.contains("--steps all") && said.contains("later.py:39  torch.save(...)"),
        "{said}"
    );
    let ids = varied.as_array().unwrap().iter().find(|row| row["varied"] == "ids").unwrap();
    assert_eq!(
        (&ids["least"], &ids["most"], &ids["step"]),
        (&vec![8, 10, 256].into(), &vec![8, 17, 256].into(), &2.into()),
        "{varied}"
    );
    assert!(said.contains("mask of Net: 8 x 10 to 8 x 17, the most in step 2"), "{said}");
    assert!(varied.as_array().unwrap().iter().all(|row| row["module"] == "Net"), "checkpointing gives no batches: {varied}");
    // What was reached is not said to be missing, and a run to its end has everything.
    let (rows, ..) = seen("later-early");
    assert_eq!(rows, ["saving torch.save(...) 39"]);
    let (rows, varied, _) = seen("later-all");
    assert_eq!((rows.len(), varied), (0, Value::Array(Vec::new())));
}

#[test]
fn what_to_try_is_said_where_memory_runs_out_before_there_is_a_gradient() {
    let (said, answer) = shown("no_gradient");
    assert!(answer["verdict"] == "does_not_fit" && said.contains("Out of memory in the forward pass of step 1"), "{said}");
    // Nothing by itself makes it fit, as --what-if finds, too.
    let advice = answer["advice"].as_array().unwrap();
    let checkpoint = advice.iter().find(|one| one["technique"].as_str().unwrap().starts_with("checkpoint-"));
    assert!(checkpoint.is_some_and(|one| one["frees"].as_i64() > Some(1 << 30)), "{answer}");
    assert!(advice.iter().all(|one| one["makes_it_fit"] == false), "{answer}");
    assert!(answer["time_if_it_fitted"]["seconds"].as_f64().is_none() && answer["account"]["total"] == answer["needs_at_least"]);
    assert!(said.contains("a checkpoint of parameters and buffers takes about 32.0 MiB"), "no state is there yet: {said}");
}

#[test]
fn what_the_script_has_or_has_nothing_for_is_no_advice() {
    let advised = |words: &str| {
        let answer = shown(&format!("layers-{words}")).1;
        let names = answer["advice"].as_array().unwrap().iter().map(|one| one["technique"].as_str().unwrap().to_string());
        names.collect::<Vec<String>>().join(" ")
    };
    let of = |optimizer: &str, words: [&str; 2]| words.map(|word| advised(&format!("linear-{optimizer}-fp32")).contains(word));
    assert_eq!(of("AdamW", ["offload-optimizer", "lora"]), [true, true]);
    assert_eq!(of("RMSprop", ["offload-optimizer", "lora"]), [true, true]);
    assert_eq!(of("SGD", ["offload-optimizer", "lora"]), [false, true]);
    let images = advised("images-SGD-fp32");
    assert!(images.starts_with("autocast-bf16 offload-activations") && !images.contains("lora"), "{images}");
    let images = advised("images-SGD-bf16");
    assert!(images.contains("offload-activations") && !images.contains("autocast-bf16"), "{images}");
}

#[test]
fn a_flag_that_nobody_reads_is_no_batch_of_which_not_even_one_fits() {
    const SOURCE: &str = "import sys, torch\nmodel = torch.nn.Linear(8, 1 << 20).cuda()\nmodel(torch.randn(1 << 13, 8, device='cuda')).sum().backward()\n";
    let fit = |source: &str| {
        let scene = Scene::new(source);
        let mut command = Command::new(VRAMLAB);
        command.args(["fit", "--gpu", "8GiB", "--batch", "--batch-size {}", "--"]).arg(common::python());
        command.arg(scene.path("train.py")).output().unwrap()
    };
    let output = fit(SOURCE);
    let said = error(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("given --batch-size 1 and --batch-size 4 and asked for the same memory"), "{said}");
    assert!(said.contains("is it the flag that the script reads") && !said.contains("Not even 1"), "{said}");
    // One that is read, and memory runs out before it matters.
    let output = fit(&format!("{SOURCE}torch.empty(int(sys.argv[2]) << 34, device='cuda')\n"));
    let said = error(&output) + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(3) && said.contains("Not even 1 fits"), "{said}");
}
