//! Nothing of the user's is changed by a rehearsal: writes.py does all that a script may do in its folder.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const VRAMLAB: &str = env!("CARGO_BIN_EXE_vramlab");
const SCRIPT: &str = "tests/rehearse/writes.py";

/// A folder with files of 2020, outside of those for temporary files, where sockets are made as they are.
fn folder() -> TempDir {
    // A checkout may lie there itself.
    let places = [env!("CARGO_TARGET_TMPDIR").into(), std::env::home_dir().unwrap()];
    let is_outside = |place: &&PathBuf| !["/tmp", "/var/tmp"].iter().any(|temporary| place.starts_with(temporary));
    let folder = tempfile::tempdir_in(places.iter().find(is_outside).expect("a home outside of /tmp")).unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["ck/step-1", "ck/step-2/sub", "old", "closed", "cache"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    let long = "x".repeat(1000);
    let files = [
        ("a.txt", "original"),
        ("train.log", "log\n"),
        ("ck/step-1/w.bin", "w1"),
        ("ck/step-2/w.bin", "w2"),
        ("ck/step-2/z.bin", "z"),
        ("ck/step-2/sub/s.bin", "s"),
        ("old/x", "x"),
        ("data.bin", &long),
        ("closed/kept", ""),
    ];
    for (name, text) in files {
        fs::write(at(name), text).unwrap();
    }
    symlink("ck/step-2", at("latest")).unwrap();
    fs::set_permissions(at("closed"), fs::Permissions::from_mode(0o555)).unwrap();
    let made = "import sqlite3, torch\nd = sqlite3.connect('runs.db'); d.execute('create table runs (x)'); d.execute('insert into runs values (1)')\n\
                d.commit(); torch.save({'step': 100000}, 'model.pt')";
    assert!(Command::new(common::python()).args(["-c", made]).current_dir(folder.path()).status().unwrap().success());
    fs::write(at("cache/static.c"), "#include <fcntl.h>\nint main(void) { return open(\"a.txt\", O_WRONLY | O_TRUNC) < 0; }")
        .unwrap();
    // Where there is no static C library, there is no such program to be tried.
    Command::new("cc").args(["-static", "-o", "static", "cache/static.c"]).current_dir(folder.path()).output().ok();
    let aged =
        Command::new("find").args([".", "-exec", "touch", "-h", "-d", "2020-01-01", "{}", "+"]).current_dir(folder.path()).status();
    assert!(aged.unwrap().success());
    folder
}

/// All that can be seen of the files in a folder, but for the cache.
fn seen(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let (path, about) = {
                let entry = entry.unwrap();
                (entry.path(), entry.metadata().unwrap())
            };
            if path.ends_with("cache") {
                continue;
            }
            let text = if about.is_file() {
                format!("{:x?}", fs::read(&path).unwrap())
            } else {
                format!("{:?}", fs::read_link(&path).ok())
            };
            let numbers =
                (about.mode(), about.len(), about.ino(), about.mtime(), about.mtime_nsec(), about.ctime_nsec(), about.nlink());
            found.insert(path.display().to_string(), format!("{numbers:?} {text}"));
            if about.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

fn command(folder: &Path, flags: &[&str], by: &str, how: &str) -> Command {
    let mut command = Command::new(VRAMLAB);
    command
        .arg("rehearse")
        .args(flags)
        .arg("--")
        .arg(common::python())
        .arg(common::root().join(SCRIPT))
        .arg(how)
        .current_dir(folder);
    command.env("VRAMLAB_CACHE", folder.join("cache")).env("VRAMLAB_HELD_BY", by);
    command
}

/// Whether the kernel holds, where that is the most that is tried.
fn is_guarded(by: &str) -> bool {
    let unshared = |flags: &[&str]| Command::new("unshare").args(flags).arg("true").status().is_ok_and(|status| status.success());
    by == "namespace" && (unshared(&["--mount"]) || unshared(&["--user", "--mount"])) || by != "library" && has_landlock()
}

fn has_landlock() -> bool {
    let asked = "import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1))";
    let output = Command::new(common::python()).args(["-c", asked]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().parse::<i32>().unwrap() >= 2
}

#[test]
fn a_script_changes_none_of_its_users_files_and_finds_what_it_wrote() {
    for by in ["namespace", "landlock", "library"] {
        let folder = folder();
        let before = seen(folder.path());
        let guarded = is_guarded(by);
        let kept = tempfile::tempdir().unwrap();
        let keep = kept.path().to_str().unwrap();
        let json = kept.path().join("answer.json");
        let flags = ["--steps", "all", "--keep-writes", keep, "--json", json.to_str().unwrap()];
        let output = command(folder.path(), &flags, by, if guarded { "guarded" } else { "followed" }).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("all as it should be"), "{said}");
        assert_eq!(seen(folder.path()), before);
        assert!(said.contains("Held back, ") && said.contains("model.pt"), "{said}");
        assert!(said.contains("Disk: a checkpoint of parameters, buffers and optimizer state takes about 48.0 MiB"), "{said}");
        let answer: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        assert_eq!(answer["held_back"]["by"] != "library", guarded, "{by}");
        let held = answer["held_back"]["files"].as_array().unwrap();
        let named = |name: &str| {
            held.iter().find(|file| file["path"].as_str().unwrap().ends_with(name)).unwrap_or_else(|| panic!("{name}"))
        };
        assert_eq!((named("/model.pt")["replaces"].clone(), named("/at_exit.pt")["replaces"].clone()), (true.into(), false.into()));
        let removed = format!("{}", answer["held_back"]["removed"]);
        assert!(removed.contains("/ck/step-1") && removed.contains("/old") && !removed.contains("a.txt"), "{removed}");
        let name = folder.path().canonicalize().unwrap();
        assert_eq!(fs::read(kept.path().join(name.strip_prefix("/").unwrap()).join("a.txt")).unwrap(), b"ghi\n");
    }
}

#[test]
fn nothing_is_changed_where_vramlab_is_killed() {
    let folder = folder();
    let before = seen(folder.path());
    let mut child = command(folder.path(), &[], "namespace", "never").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "written");
    child.kill().unwrap();
    child.wait().unwrap();
    // Its processes hold the other end until they are gone.
    assert!(lines.next().is_none());
    assert_eq!(seen(folder.path()), before);
}

#[test]
fn a_full_disk_is_told_with_what_helps() {
    let folder = tempfile::tempdir().unwrap();
    let script = "import os\ntry:\n    with open('random.bin', 'wb') as file:\n        for _ in range(200):\n            file.write(os.urandom(1 << 20))\nexcept OSError as error:\n    print(error)";
    fs::write(folder.path().join("fill.py"), script).unwrap();
    let line = "mkdir small && mount -t tmpfs -o size=64m none small || exit 77; VRAMLAB_CACHE=$PWD/small \"$0\" rehearse -- \"$1\" fill.py; echo ended $?";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", line, VRAMLAB])
        .arg(common::python())
        .current_dir(folder.path())
        .output();
    // Where no disk can be made, none is full.
    let Some(output) = output.ok().filter(|output| String::from_utf8_lossy(&output.stdout).contains("ended")) else { return };
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        said.contains("is full, where what the script writes is held back")
            && said.contains("VRAMLAB_CACHE")
            && said.contains("ended 2"),
        "{said}"
    );
    assert!(!folder.path().join("random.bin").exists());
}

/// Nothing that was computed here reaches a tracker or a hub, whatever the script or the environment says.
#[test]
fn nothing_is_uploaded() {
    let folder = folder();
    let output = Command::new(VRAMLAB)
        .current_dir(folder.path())
        .args(["rehearse", "--gpu", "t4", "--"])
        .arg(common::python())
        .arg(common::root().join("tests/rehearse/uploads.py"))
        .envs([("MLFLOW_TRACKING_URI", "https://example.com"), ("WANDB_MODE", "online")])
        .output()
        .unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("nothing was uploaded"), "{said}");
    for name in
        ["wandb: put", "swanlab: put", "trackio: put", "neptune: put", "Comet: put", "ClearML: put", "MLflow: its", "hub: pushes"]
    {
        assert!(said.contains(name), "{name}: {said}");
    }
}

/// Twice, the second time without a hub, beside a cache of the user's that gets no weights.
#[test]
fn of_a_hubs_weights_the_headers_alone_are_fetched() {
    let (folder, script) = (tempfile::tempdir().unwrap(), common::root().join("tests/rehearse/hub.py"));
    fs::create_dir_all(folder.path().join("hf/hub")).unwrap();
    for more in [None, Some("cut")] {
        let answer = folder.path().join("answer.json");
        let output = Command::new(env!("CARGO_BIN_EXE_vramlab"))
            .current_dir(folder.path())
            .args(["rehearse", "--gpu", "24GiB", "--json"])
            .arg(&answer)
            .arg("--")
            .arg(common::python())
            .arg(&script)
            .args(more)
            .env("VRAMLAB_CACHE", folder.path().join("cache"))
            .env("HF_HOME", folder.path().join("hf"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{more:?}: {said}");
        let answer: serde_json::Value = serde_json::from_slice(&fs::read(&answer).unwrap()).unwrap();
        // Of its shape, 4 bytes each.
        assert!(answer["peak_allocated"].as_i64() > Some(2 * 4 * 50257 * 1024), "{answer}");
        let notes = answer["notes"].to_string();
        assert!(notes.contains("the weights of org/single were not downloaded"), "{more:?}: {notes}");
        assert_eq!(notes.contains("org/gated is gated"), more.is_none(), "{notes}");
    }
}

#[test]
fn data_sets_that_are_not_there_have_rows_of_their_shapes() {
    let folder = tempfile::tempdir().unwrap();
    let run = |flag: &str, word: &str| {
        let script = common::root().join("tests/rehearse/fake_data.py");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
        command
            .current_dir(folder.path())
            .args(["rehearse", "--gpu", "8GiB", flag, "--"])
            .arg(common::python())
            .arg(script)
            .arg(word);
        let output = command.env("HF_HUB_OFFLINE", "0").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, said) = run("--fake-data", "unknown");
    assert!(status == Some(2) && said.contains("write them, as in --fake-data=text:string"), "{said}");
    let (status, said) = run("--fake-data=text:string200,label:class10,image:image64x32,rows:20", "typed");
    assert!(
        status == Some(0) && said.contains("at most 20 rows (text, label, image) in each split in place of org/unknown"),
        "{said}"
    );
    assert!(said.contains("10000 images of 32x32 (RGB) and 100 classes in place of torchvision's CIFAR100"), "{said}");
    assert!(said.contains("texts of 200 words"), "{said}");
}
