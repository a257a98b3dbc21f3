//! However a script is started and comes to PyTorch, `vramlab rehearse` follows it; nothing that it starts reaches a real GPU, or outlives it.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

pub fn own(script: &str) -> PathBuf {
    common::root().join("tests/rehearse").join(script)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A rehearsal in a folder.
pub fn vramlab(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
    command.current_dir(folder).args(["rehearse", "--gpu", "rtx-4090"]);
    command
}

/// The same, with its cache in the folder.
fn with_own_cache(folder: &Path) -> Command {
    let mut command = vramlab(folder);
    command.env("VRAMLAB_CACHE", folder.join("cache"));
    command
}

/// What the line writes is there afterwards.
fn in_python(folder: &Path, line: &str) -> Output {
    with_own_cache(folder).args(["--writes", "--"]).arg(common::python()).args(["-c", line]).output().unwrap()
}

#[test]
#[ignore = "long"]
fn every_way_to_pytorch_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--json", "answer.json", "--timeout", "400", "--"];
    // By bash, which has a getenv and an unsetenv of its own; and on the fourth card of a machine of which one was asked for.
    let line = ["bash", "-c", "CUDA_VISIBLE_DEVICES=3 \"$@\"; exit $?", "bash"];
    let output = vramlab(folder.path()).args(flags).args(line).args([common::python(), own("ways_in.py")]).output().unwrap();
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{error}");
    let answer: Value = serde_json::from_slice(&fs::read(folder.path().join("answer.json")).unwrap()).unwrap();
    let steps: BTreeMap<u64, u64> = answer["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| (process["process"].as_u64().unwrap(), process["steps"].as_u64().unwrap()))
        .collect();
    let after = |start: &'static str| said.lines().filter_map(move |line| line.strip_prefix(start));
    let trained: Vec<(u64, &str)> =
        after("trains: ").filter_map(|line| line.split_once(' ')).map(|(process, way)| (process.parse().unwrap(), way)).collect();
    let lost: Vec<&str> = trained.iter().filter(|(process, _)| steps.get(process) != Some(&3)).map(|(_, way)| *way).collect();
    assert!(lost.is_empty(), "not followed for three steps: {lost:?}\n{said}{error}");
    assert_eq!(after("ways: ").next(), Some(trained.len().to_string().as_str()), "{said}{error}");
}

/// Says in a file that something of it was called.
const FAKE: &str = r#"
#include <fcntl.h>
#include <unistd.h>
static void say(const char *what, int n) { int f = open(LOG, O_WRONLY | O_CREAT | O_APPEND, 0666); if (write(f, what, n)) {} close(f); }
__attribute__((constructor)) static void loaded(void) { say("loaded\n", 7); }
int cuInit(unsigned flags) { say("cuInit\n", 7); return 0; }
int nvmlInit_v2(void) { say("nvmlInit\n", 9); return 0; }
"#;

#[test]
fn nothing_reaches_a_real_driver() {
    let folder = tempfile::tempdir().unwrap();
    let (fake, log) = (folder.path().join("fake"), folder.path().join("log"));
    fs::create_dir(&fake).unwrap();
    fs::write(fake.join("fake.c"), format!("#define LOG \"{}\"\n{FAKE}", log.display())).unwrap();
    fs::write(fake.join("linked.c"), "int cuInit(unsigned); int main(void) { return cuInit(0); }").unwrap();
    let compiled = |words: &[&str]| {
        let done = Command::new("cc").current_dir(&fake).args(words).output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
    };
    for name in ["libcuda.so", "libnvidia-ml.so"] {
        let soname = format!("{name}.1");
        compiled(&["-shared", "-fPIC", "fake.c", "-o", &soname, &format!("-Wl,-soname,{soname}")]);
        symlink(&soname, fake.join(name)).unwrap();
    }
    compiled(&["linked.c", "-o", "linked", "-L.", "-lcuda"]);
    let script = [common::python(), own("reach.py"), fake.clone()];

    let output = vramlab(folder.path())
        .env("LD_LIBRARY_PATH", &fake)
        .args(["--writes", "--timeout", "200", "--"])
        .args(&script)
        .output()
        .unwrap();
    assert!(text(&output.stdout).contains("opened"), "{}", text(&output.stderr));
    assert!(!log.exists(), "called: {}", fs::read_to_string(&log).unwrap());
    // Without a rehearsal all of them do.
    let alone = Command::new(&script[0]).args(&script[1..]).env("LD_LIBRARY_PATH", &fake).output().unwrap();
    assert!(alone.status.success(), "{}", text(&alone.stderr));
    assert!(fs::read_to_string(&log).unwrap().lines().filter(|line| *line == "cuInit").count() >= 8);
}

#[test]
fn a_damaged_cache_is_mended_and_one_that_cannot_serve_is_refused_before_the_first_line() {
    let folder = tempfile::tempdir().unwrap();
    let ran = "open('ran', 'a').close()";
    let is_followed = || {
        let output = in_python(folder.path(), ran);
        assert!(text(&output.stderr).contains("never imported torch"), "{}", text(&output.stderr));
        fs::remove_file(folder.path().join("ran")).unwrap();
    };
    is_followed();
    let entries = fs::read_dir(folder.path().join("cache")).unwrap().flatten().map(|entry| entry.path());
    let libraries = entries.into_iter().find(|path| path.to_string_lossy().contains("/rehearsal-")).unwrap();
    File::create(libraries.join("libvramlab_start.so")).unwrap();
    File::options().write(true).open(libraries.join("libcuda.so.1")).unwrap().set_len(5000).unwrap();
    fs::remove_file(libraries.join("python/vramlab_rehearsal/imports.py")).unwrap();
    is_followed();
    assert!(fs::metadata(libraries.join("libvramlab_start.so")).unwrap().len() > 5000);

    let refused = |cache: &Path, why: &str| {
        let mut command = vramlab(folder.path());
        let output =
            command.env("VRAMLAB_CACHE", cache).args(["--writes", "--"]).arg(common::python()).args(["-c", ran]).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(why) && error.contains("set VRAMLAB_CACHE"), "{error}");
        assert!(!folder.path().join("ran").exists(), "the script ran: {error}");
    };
    refused(&folder.path().join("a:b"), "no library can be loaded from a folder with : ; or $ in its name");
    // What everybody can write to could hold anybody's library.
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    refused(&open, "can be written to by everybody");
    // No file as large as our libraries may be written, and the script has that limit, too.
    let limited = "umask 0; ulimit -f 20; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, "sh"]).arg(env!("CARGO_BIN_EXE_vramlab")).env("VRAMLAB_CACHE", folder.path().join("limited"));
    let output = command
        .current_dir(folder.path())
        .args(["rehearse", "--writes", "--"])
        .arg(common::python())
        .args(["-c", ran])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{:?}", output.status);
    let made = fs::metadata(folder.path().join("limited")).unwrap().permissions().mode();
    assert_eq!(made & 0o022, 0, "others can write to a cache that we made: {made:o}");
    assert!(
        text(&output.stderr).contains("allow larger files (ulimit -f)") && !folder.path().join("ran").exists(),
        "{}",
        text(&output.stderr)
    );
    // Nobody can write there, not even root.
    refused(Path::new("/proc/self/vramlab"), "making /proc/self/vramlab");
    // A space ends a name in LD_PRELOAD.
    let spaces = folder.path().join("with a space");
    let mut command = vramlab(folder.path());
    let output = command.env("VRAMLAB_CACHE", &spaces).arg("--").arg(common::python()).args(["-I", "-c", ran]).output().unwrap();
    assert!(text(&output.stderr).contains("never imported torch"), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("ld.so"), "{}", text(&output.stderr));
}

#[test]
fn a_hook_that_fails_ends_the_script_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("torch")).unwrap();
    fs::write(folder.path().join("torch/__init__.py"), "__version__ = '2.11.0'").unwrap();
    let line = "try:\n    import torch\nexcept BaseException:\n    pass\nopen('went_on', 'w')";
    let output = in_python(folder.path(), line);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.trim().lines().last().unwrap().contains("the rehearsal could not be set up for torch: AttributeError"),
        "{error}"
    );
    assert!(!folder.path().join("went_on").exists());
}

/// Whether all of these processes have ended, or do within some seconds.
fn have_ended(pids: &[u32]) -> bool {
    let began = Instant::now();
    let is_there = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while pids.iter().any(is_there) {
        if began.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

#[test]
fn whatever_was_started_ends_with_the_rehearsal() {
    // The flags, the script's argument, and what is sent to vramlab.
    type Signal = Option<(&'static str, &'static str)>;
    let endings: [(&[&str], &str, Signal); 5] = [
        (&["--timeout", "3"], "", None),
        (&[], "", Some(("-TERM", ""))),
        (&[], "", Some(("-KILL", ""))),
        // The whole group of vramlab and the command.
        (&[], "", Some(("-KILL", "-"))),
        (&[], "leave", None),
    ];
    std::thread::scope(|scope| {
        for (flags, argument, signal) in endings {
            scope.spawn(move || {
                let folder = tempfile::tempdir().unwrap();
                let mut command = with_own_cache(folder.path());
                command
                    .args(flags)
                    .args(["--writes", "--"])
                    .args([common::python(), own("lingering.py")])
                    .arg(argument)
                    .stderr(Stdio::null());
                let mut child = command.process_group(0).spawn().unwrap();
                let began = Instant::now();
                while !folder.path().join("ready").exists() && began.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                if let Some((signal, group)) = signal {
                    let to = format!("{group}{}", child.id());
                    assert!(Command::new("kill").args([signal, "--", &to]).status().unwrap().success());
                }
                let status = child.wait().unwrap();
                let pids = fs::read_to_string(folder.path().join("pids")).unwrap();
                let pids: Vec<u32> = pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
                assert_eq!(pids.len(), 3);
                assert!(have_ended(&pids), "{flags:?} {argument} {signal:?}: left after {status}");
                if signal.is_some_and(|(signal, _)| signal == "-KILL") {
                    old_sessions_are_swept(folder.path());
                }
            });
        }
    });
}

fn old_sessions_are_swept(folder: &Path) {
    let sessions = || -> Vec<PathBuf> {
        let entries = fs::read_dir(folder.join("cache")).unwrap().flatten().map(|entry| entry.path());
        entries.filter(|path| path.to_string_lossy().contains("/session-")).collect()
    };
    let began = Instant::now();
    while let [left, ..] = &sessions()[..] {
        assert!(began.elapsed() < Duration::from_secs(60), "its guard leaves {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Of one whose guard was killed, too.
    let left = folder.join("cache/session-left");
    fs::create_dir(&left).unwrap();
    in_python(folder, "pass");
    assert!(left.exists(), "it could be another's that has just begun");
    File::open(&left).unwrap().set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    in_python(folder, "pass");
    assert!(!left.exists());
}

/// Started by a launcher that leaves at once.
#[test]
#[ignore = "long"]
fn monitors_recorders_and_daemons_find_what_they_look_for() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("{} {} & exit 0", common::python().display(), own("monitors.py").display());
    let output = vramlab(folder.path()).args(["--steps", "all", "--", "sh", "-c", &line]).output().unwrap();
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && said.contains("all works") && error.contains("\nFITS"), "{said}{error}");
}

#[test]
fn a_cuda_tensor_for_another_process_is_refused_and_nobody_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let line = "import time, torch, torch.multiprocessing as processes\nqueue = processes.get_context('spawn').Queue()\n\
                queue.put(torch.ones(1, device='cuda'))\ntime.sleep(600)";
    let output = in_python(folder.path(), line);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.trim().lines().last().unwrap().contains("sends a CUDA tensor to another process"), "{error}");
}
