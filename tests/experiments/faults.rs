//! What can go wrong around a real run, with real processes: kill -9, Ctrl-C, a full disk, a second run, bad input, damaged results.

use rand::{RngExt, SeedableRng};
use record::results::{Run, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const ACCUMULATION: &str = env!("CARGO_BIN_EXE_accumulation");

fn smoke(out: &Path) -> Command {
    let mut command = Command::new(ACCUMULATION);
    command.args(["--profile", "smoke", "--device", "cpu", "--threads", "1", "--out"]).arg(out);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// OUT/MACHINE/accumulation.
fn folder(out: &Path) -> PathBuf {
    let machines = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path());
    machines.min().unwrap().join("accumulation")
}

/// (cell, pass, round, metric, status) of every row, and the value where it is counted in bytes.
fn rows(run: &Run) -> BTreeMap<(String, String, u32, String, Status), Vec<f64>> {
    let mut rows = BTreeMap::new();
    for pass in &run.passes {
        let key = |metric: &str| (pass.cell.to_string(), pass.pass.to_string(), pass.round, metric.to_string(), pass.status);
        let closing = rows.insert(key(pass.pass.closing_metric()), vec![]);
        assert!(closing.is_none(), "{} {} {} is there twice", pass.cell, pass.pass, pass.round);
        for sample in &pass.samples {
            let values = rows.entry(key(&sample.metric)).or_default();
            values.push(if sample.unit == "B" { sample.value } else { 0.0 });
        }
    }
    rows
}

#[test]
#[ignore = "long"]
fn killed_at_twenty_random_moments_nothing_is_lost() {
    let undisturbed = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let output = smoke(undisturbed.path()).output().unwrap();
    // Moments within a run as fast as this one: on a loaded machine a pass takes longer, too.
    let quarter = start.elapsed().as_secs_f64() / 4.0;
    assert!(output.status.success(), "{}", said(&output));
    let expected = rows(&Run::read(&folder(undisturbed.path())).unwrap());

    let out = tempfile::tempdir().unwrap();
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(20);
    let mut complete = BTreeSet::new();
    for _ in 0..20 {
        let mut child = smoke(out.path()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs_f64(random.random_range(0.02..1.0) * quarter));
        let _ = child.kill();
        child.wait().unwrap();
        // What a reader sees after a kill is whole, and no pass that was once complete is gone.
        let Ok(entries) = std::fs::read_dir(out.path()) else { continue };
        if entries.count() == 0 || !folder(out.path()).join("run.json").exists() {
            continue;
        }
        let now: BTreeSet<_> = rows(&Run::read(&folder(out.path())).unwrap()).into_keys().collect();
        assert!(now.is_superset(&complete), "a complete pass was lost");
        complete = now;
    }
    let output = smoke(out.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(complete.is_empty() || said(&output).contains("going on in"), "{}", said(&output));
    assert_eq!(rows(&Run::read(&folder(out.path())).unwrap()), expected);
    let text = std::fs::read_to_string(folder(out.path()).join("samples.csv")).unwrap();
    assert!(text.ends_with('\n') && text.lines().all(|line| line.matches(',').count() >= 7), "no torn row");
    let output = smoke(out.path()).output().unwrap();
    assert!(said(&output).contains("done: 0 passes"), "nothing is left to do: {}", said(&output));
}

/// Starts a run and waits until it has recorded something.
fn started(out: &Path) -> Child {
    let child = smoke(out).spawn().unwrap();
    let start = Instant::now();
    let recorded = || {
        let mut machines = std::fs::read_dir(out).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let machine = machines.find(|path| !path.ends_with("protocols"))?;
        let text = std::fs::read_to_string(machine.join("accumulation/samples.csv")).ok()?;
        (text.lines().count() > 2).then_some(())
    };
    while recorded().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "the run records nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap().success());
}

#[test]
fn ctrl_c_stops_cleanly_with_130_and_the_run_goes_on() {
    let out = tempfile::tempdir().unwrap();
    let child = started(out.path());
    signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(said(&output).contains("stopped; the same command goes on"), "{}", said(&output));
    let before = Run::read(&folder(out.path())).unwrap().passes;
    assert!(!before.is_empty());
    let output = smoke(out.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(Run::read(&folder(out.path())).unwrap().passes[..before.len()], before[..]);
}

#[test]
fn a_second_run_on_the_same_folder_is_refused() {
    let out = tempfile::tempdir().unwrap();
    let mut first = started(out.path());
    let output = smoke(out.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("another run is writing to") && said(&output).contains("--out"), "{}", said(&output));
    assert!(first.wait().unwrap().success(), "the first run was not disturbed");
}

/// Processes whose command line names this parent as theirs: children that were started, templates and their copies.
fn children_of(parent: u32) -> Vec<u32> {
    let marks = [format!("\"parent\":{parent}"), format!("--template\0{parent}\0")];
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_string_lossy().parse::<u32>().ok());
    entries
        .filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| marks.iter().any(|mark| line.contains(mark)))
        })
        .collect()
}

#[test]
fn a_child_ends_with_its_parent() {
    let out = tempfile::tempdir().unwrap();
    let mut parent = started(out.path());
    let start = Instant::now();
    while children_of(parent.id()).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "no child was seen");
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
    let start = Instant::now();
    while !children_of(parent.id()).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(120), "a child outlives its parent");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A file system with room for manifest, protocol and one page of samples, in a mount namespace of its own.
#[test]
fn a_full_disk_is_a_clear_error_and_what_was_there_is_kept() {
    let (mount, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert!(smoke(copy.path()).output().unwrap().status.success());
    let manifest = std::fs::metadata(folder(copy.path()).join("run.json")).unwrap().len();
    let protocol = std::fs::metadata(copy.path().join("protocols/accumulation-1.json")).unwrap().len();
    let room = manifest.next_multiple_of(4096) + protocol.next_multiple_of(4096) + 4096;
    let script = format!(
        "mount -t tmpfs -o size={room} tmpfs {mount} && {ACCUMULATION} --profile smoke --device cpu --threads 1 --out {mount}; code=$?; \
         rm -r {copy}/*; cp -r {mount}/. {copy}; exit $code",
        mount = mount.path().display(),
        copy = copy.path().display()
    );
    let output = Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", &script]).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("No space left on device") && text.contains("make room and run the same command again"), "{text}");
    let run = Run::read(&folder(copy.path())).unwrap();
    assert!(!run.passes.is_empty() && run.passes.iter().all(|p| p.status == Status::Ok), "what was complete is kept");
    // With room, the same command goes on.
    let output = smoke(copy.path()).output().unwrap();
    assert!(output.status.success() && said(&output).contains("going on in"), "{}", said(&output));
}

#[test]
fn bad_input_is_refused_clearly_and_leaves_nothing() {
    let out = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &str); 13] = [
        (&["--device", "gpu"], "there are cpu, cuda, cuda:N"),
        (&["--device", "dry:lots"], "a simulated GPU is written like dry:24GiB or dry:rtx-4090"),
        (&["--profile", "huge"], "[possible values: smoke, quick, full]"),
        (&["--filter", "k=("], "unclosed group"),
        (&["--filter", "k=77"], "no cell of smoke matches 'k=77'"),
        (&["--rounds", "0"], "--rounds"),
        (&["--rounds", "many"], "--rounds"),
        (&["--budget", "soon"], "'soon' is no number of seconds"),
        (&["--seed", "-1"], "-1"),
        (&["--threads", "0"], "--threads"),
        (&["--device-memory", "lots"], "write it like 24GiB"),
        (&["--shard", "3/2"], "write it like 2/4"),
        (&["--fast"], "unexpected argument '--fast'"),
    ];
    for (flags, part) in cases {
        let output = smoke(out.path()).args(flags).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {text}");
        assert!(text.contains(part), "{flags:?}: {text}");
        assert!(!text.contains("panicked"), "{flags:?}: {text}");
    }
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0, "nothing was written");
}

#[test]
fn cuda_without_a_gpu_says_what_is_missing() {
    let out = tempfile::tempdir().unwrap();
    let output = smoke(out.path()).args(["--device", "cuda", "--list"]).output().unwrap();
    assert!(output.status.success(), "a list needs no device: {}", said(&output));
    if Path::new("/dev/nvidiactl").exists() {
        return;
    }
    let output = smoke(out.path()).args(["--device", "cuda"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("no NVIDIA driver answers") && said(&output).contains("--device cpu"), "{}", said(&output));
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0, "nothing was written");
}

#[test]
fn a_run_leaves_the_results_of_others() {
    let out = tempfile::tempdir().unwrap();
    let run = || smoke(out.path()).args(["--filter", "recipe=full"]).output().unwrap();
    let output = run();
    assert!(output.status.success(), "{}", said(&output));
    let own = folder(out.path());
    let (json, samples) = (own.join("run.json"), own.join("samples.csv"));
    let beside = PathBuf::from(format!("{}-2", own.parent().unwrap().display())).join("accumulation");
    let good = std::fs::read_to_string(&json).unwrap();
    let before = std::fs::read_to_string(&samples).unwrap();
    let expected = rows(&Run::read(&own).unwrap());
    let number = |name: &str| good.split(&format!("\"{name}\": ")).nth(1).unwrap().split([',', '\n']).next().unwrap().to_string();
    let changed = |name: &str, value: &str| {
        let changed = good.replacen(&format!("\"{name}\": {}", number(name)), &format!("\"{name}\": {value}"), 1);
        assert_ne!(changed, good, "{name}");
        changed
    };
    let damaged = before.replacen(",ok,", ",fine,", 1);
    let cases = [
        (changed("schema", "99"), &before, "results of schema 99"),
        (changed("cpu", "\"another\""), &before, "cpu: there \"another\""),
        (changed("revision", "9"), &before, "method: there accumulation-9, now accumulation-1"),
        (changed("libtorch", "\"2.10.0\""), &before, "libtorch: there \"2.10.0\""),
        (changed("seed", "7"), &before, "seed: there 7"),
        (good.clone(), &damaged, "samples.csv, line 2, is damaged"),
    ];
    for (manifest, rows_there, part) in cases {
        std::fs::write(&json, &manifest).unwrap();
        std::fs::write(&samples, rows_there).unwrap();
        let output = run();
        assert!(output.status.success(), "{part}: {}", said(&output));
        assert!(said(&output).contains(part) && said(&output).contains("stays as it is"), "{part}: {}", said(&output));
        assert_eq!(std::fs::read_to_string(&samples).unwrap(), *rows_there, "{part}: the samples were touched");
        assert_eq!(std::fs::read_to_string(&json).unwrap(), manifest);
        assert_eq!(rows(&Run::read(&beside).unwrap()), expected, "{part}");
        let again = run();
        assert!(said(&again).contains("done: 0 passes"), "{part}: it goes on beside: {}", said(&again));
        std::fs::remove_dir_all(beside.parent().unwrap()).unwrap();
    }
    std::fs::write(&json, &good).unwrap();
    std::fs::write(&samples, &before).unwrap();
    let output = smoke(out.path()).args(["--fresh", "--filter", "recipe=full"]).output().unwrap();
    assert!(output.status.success() && !said(&output).contains("going on"), "--fresh starts over: {}", said(&output));
    assert!(!beside.exists());
    assert_ne!(std::fs::read_to_string(&samples).unwrap(), before, "times were taken anew");
}

#[test]
fn parts_of_a_sweep_make_the_whole() {
    let out = tempfile::tempdir().unwrap();
    for part in ["1/2", "2/2"] {
        let output = smoke(out.path()).args(["--shard", part]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
    let whole = tempfile::tempdir().unwrap();
    assert!(smoke(whole.path()).output().unwrap().status.success());
    assert_eq!(rows(&Run::read(&folder(out.path())).unwrap()), rows(&Run::read(&folder(whole.path())).unwrap()));
}

#[test]
fn a_budget_leaves_rows_that_a_resumed_run_fills() {
    let out = tempfile::tempdir().unwrap();
    let output = smoke(out.path()).args(["--budget", "0.2"]).output().unwrap();
    assert!(output.status.success() && said(&output).contains("the budget ended"), "{}", said(&output));
    let run = Run::read(&folder(out.path())).unwrap();
    let seen: BTreeSet<String> = run.passes.iter().map(|p| p.cell.to_string()).collect();
    assert_eq!(seen, run.manifest.planned.iter().cloned().collect(), "every planned cell has a row");
    assert!(run.passes.iter().any(|p| p.status == Status::Skipped));
    let output = smoke(out.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let run = Run::read(&folder(out.path())).unwrap();
    assert!(run.passes.iter().all(|p| p.status == Status::Ok), "the skipped rows are gone");
}
