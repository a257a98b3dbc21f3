//! The oldest and the newest PyTorch that `rehearse` is for, as they come from the package index: the library is compiled against their
//! headers, and what it does is run. The versions between are `tests/ecosystem/versions.py`'s.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

const OLDEST: &str = "2.6.0";
const NEWEST: &str = "2.15.0";

/// 200 blocks of 8 MiB that another stream uses, one after the other.
const LAGGING: &str = "
import torch
side = torch.cuda.Stream()
for _ in range(200):
    block = torch.empty(8 << 20, dtype=torch.uint8, device='cuda')
    with torch.cuda.stream(side):
        block.add_(1)
    block.record_stream(side)
    del block
    for _ in range(5):
        torch.zeros(1024, device='cuda').add_(1)
";

fn root(path: &str) -> PathBuf {
    common::root().join(path)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A Python that has this PyTorch; it is kept for the next time. None where it cannot be fetched.
fn environment(version: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("environment-{version}"));
    let made = Command::new(common::python())
        .arg(root("src/rehearse/python/versions/environment.py"))
        .arg(&folder)
        .args(["--without=triton".to_string(), format!("torch=={version}")])
        .output()
        .unwrap();
    if !made.status.success() {
        let why = said(&made).lines().rfind(|line| line.contains("ERROR")).unwrap_or("it could not be installed").to_string();
        common::skipped(&format!("PyTorch {version}: {why}\n{}", said(&made)));
        return None;
    }
    Some(folder.join("bin/python"))
}

/// A torchvision that belongs to a PyTorch of today may come out weeks after it. By a uv that has no torchvision.
#[test]
fn a_companion_that_is_not_out_yet_is_done_without() {
    let folder = tempfile::tempdir().unwrap();
    let (uv, asked) = (folder.path().join("uv"), folder.path().join("asked"));
    let stub = format!(
        r#"#!/bin/sh
for last; do :; done
if [ "$1" = venv ]; then exec "{}" -m venv --without-pip "$last"; fi
echo "$last" >> "{}"
case "$last" in torch==*) ;; *) echo "ERROR: no $last" >&2; exit 1 ;; esac
cd "{}"/env/lib/python*/site-packages && mkdir -p torch-2.99.0.dist-info torchvision-0.26.0.dist-info
printf 'Name: torch\nVersion: 2.99.0\n' > torch-2.99.0.dist-info/METADATA
printf 'Name: torchvision\nVersion: 0.26.0\nRequires-Dist: torch==2.11.0\n' > torchvision-0.26.0.dist-info/METADATA
"#,
        common::python().display(),
        asked.display(),
        folder.path().display()
    );
    fs::write(&uv, stub).unwrap();
    fs::set_permissions(&uv, fs::Permissions::from_mode(0o755)).unwrap();
    let made = Command::new(common::python())
        .arg(root("src/rehearse/python/versions/environment.py"))
        .arg(folder.path().join("env"))
        .args(["--beside".into(), format!("--uv={}", uv.display()), "torch==2.99.0".into()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", said(&made));
    assert_eq!(fs::read_to_string(asked).unwrap(), "torch==2.99.0\ntorchvision==0.114.*,<=0.114.0\n");
}

/// A rehearsal that ends well: what it answers.
fn rehearsed(mut program: Command, flags: &[&str], words: &[&Path]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let answer = folder.path().join("answer.json");
    program.args(["rehearse", "--gpu", "rtx-4090", "--json"]).arg(&answer).args(flags).arg("--").args(words);
    let done = program.output().unwrap();
    assert!(done.status.success(), "{program:?}: {}", said(&done));
    let answer: Value = serde_json::from_str(&fs::read_to_string(answer).unwrap()).unwrap();
    // What PyTorch's own meter says at the end of small_models.py.
    let own = format!("peaks {} {}", answer["peak_allocated"], answer["peak_reserved"]);
    assert!(!said(&done).contains("\npeaks ") || said(&done).contains(&own), "{own}: {}", said(&done));
    answer
}

/// A cell of the documentation's table.
fn documented(version: &str, column: usize) -> String {
    let docs = fs::read_to_string(root("docs/rehearse.md")).unwrap();
    let row = docs.lines().find(|line| line.starts_with(&format!("| {version} |"))).expect("a row for each version");
    row.split('|').nth(column).unwrap().trim().to_string()
}

fn tried(version: &str, scene: &Path) {
    let Some(python) = environment(version) else { return };
    let cache = scene.join(version);
    let program = || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_vramlab"));
        program.env("VRAMLAB_CACHE", &cache);
        program
    };
    let models = root("tests/ecosystem/small_models.py");
    let gpt: [&Path; 3] = [&python, &models, Path::new("gpt")];
    let answer = rehearsed(program(), &["--steps", "all"], &gpt);
    assert_eq!(answer["peak_allocated"].to_string(), documented(version, 6).replace(',', ""), "PyTorch {version}");
    // PyTorch chooses convolutions by it, where cuDNN itself is not there.
    let told = Command::new(&python).args(["-c", "import torch; print(torch.backends.cudnn.version())"]).output().unwrap();
    let cudnn: Vec<u32> = documented(version, 3).split('.').map(|part| part.parse().unwrap()).collect();
    let wanted = format!("{}{:02}{:02}", cudnn[0], cudnn[1], cudnn[2]);
    assert_eq!(String::from_utf8_lossy(&told.stdout).trim(), wanted, "PyTorch {version}: {}", said(&told));
    assert!(answer["needs_at_least"].as_i64() >= answer["peak_allocated"].as_i64(), "PyTorch {version}: {answer}");
    // Where versions differed most: collectives, DTensor, groups.
    let features = root("tests/ecosystem/features.py");
    for feature in ["fsdp2", "pipeline"] {
        rehearsed(program(), &["--world-size", "4", "--rank", "1"], &[&python, &features, Path::new(feature)]);
    }
    // Kernels are launched, and counted, though no library of CUDA is there: else no work of another stream would ever end.
    let lagging = rehearsed(program(), &["--lag", "20"], &[&python, Path::new("-c"), Path::new(LAGGING)]);
    assert!(lagging["peak_reserved"].as_i64() < Some(200 << 20), "PyTorch {version}: {}", lagging["peak_reserved"]);
    if version == NEWEST {
        a_wheel_with_this_library_needs_no_compiler(&python, &cache, scene, &answer, &gpt);
    }
}

fn a_wheel_with_this_library_needs_no_compiler(python: &Path, cache: &Path, scene: &Path, answer: &Value, words: &[&Path]) {
    let dist = scene.join("dist");
    let mut pack = Command::new(common::python());
    pack.arg(root("scripts/wheel")).args(["--program", env!("CARGO_BIN_EXE_vramlab"), "--out"]).arg(&dist);
    let packed = pack.arg("--libraries").arg(cache).output().unwrap();
    assert!(packed.status.success(), "{}", said(&packed));
    let wheel = fs::read_dir(&dist).unwrap().next().unwrap().unwrap().path();
    let site = scene.join("site");
    let mut install = Command::new(common::python());
    install.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]).arg(&site).arg(wheel);
    let installed = install.output().unwrap();
    assert!(installed.status.success(), "{}", said(&installed));
    let mut program = Command::new(python);
    program.args(["-m", "vramlab"]).env("PYTHONPATH", &site).env("VRAMLAB_CACHE", scene.join("fresh"));
    // No compiler is to be found.
    program.env("PATH", scene.join("nothing")).env_remove("CXX");
    assert_eq!(rehearsed(program, &["--steps", "all"], words)["peak_allocated"], answer["peak_allocated"]);
}

#[test]
fn the_oldest_and_the_newest_pytorch_are_rehearsed() {
    let scene = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        for version in [OLDEST, NEWEST] {
            scope.spawn(|| tried(version, scene.path()));
        }
    });
}
