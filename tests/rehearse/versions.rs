//! The oldest and the newest PyTorch that `rehearse` is for, as they come from the package index: the library is compiled against their
//! headers, and what it does is run. The versions between are `tests/ecosystem/versions.py`'s.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
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

/// The machine's uv, else one that is kept for the next time.
pub fn uv() -> &'static Path {
    static UV: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("uv");
        let program = folder.join("bin/uv");
        let own = std::env::split_paths(&std::env::var_os("PATH").unwrap()).map(|folder| folder.join("uv")).find(|uv| uv.is_file());
        if own.is_none() && !program.exists() {
            let pip = ["-m", "pip", "install", "--quiet", "--target"];
            let made = Command::new(common::python()).args(pip).arg(&folder).arg("uv").output().unwrap();
            assert!(made.status.success(), "{}", said(&made));
        }
        own.unwrap_or(program)
    });
    &UV
}

/// Makes an environment, beside the Python of the tests where that is asked for.
fn make(folder: &Path, uv: &Path, words: &[&str]) -> Output {
    let maker = root("src/rehearse/python/versions/environment.py");
    Command::new(common::python()).arg(maker).arg(folder).arg("--uv").arg(uv).args(words).output().unwrap()
}

/// A Python that has this PyTorch; it is kept for the next time. None where it cannot be fetched.
fn environment(version: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("environment-{version}"));
    let made = make(&folder, uv(), &["--without=triton", &format!("torch=={version}")]);
    if !made.status.success() {
        let why = said(&made).lines().rfind(|line| line.contains("ERROR")).unwrap_or("it could not be installed").to_string();
        common::skipped(&format!("PyTorch {version}: {why}\n{}", said(&made)));
        return None;
    }
    Some(folder.join("bin/python"))
}

/// A wheel of nothing but what it says of itself.
fn wheel(folder: &Path, name: &str, version: &str, needs: &str) {
    let script = r"
import sys, zipfile
folder, name, version, needs = sys.argv[1:]
about = f'{name}-{version}.dist-info'
with zipfile.ZipFile(f'{folder}/{name}-{version}-py3-none-any.whl', 'w') as wheel:
    needs = f'Requires-Dist: {needs}\n' if needs else ''
    wheel.writestr(f'{name}.py', '')
    wheel.writestr(f'{about}/METADATA', f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}')
    wheel.writestr(f'{about}/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr(f'{about}/RECORD', f'{name}.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n')
";
    let made = Command::new(common::python()).args(["-c", script]).arg(folder).args([name, version, needs]).output().unwrap();
    assert!(made.status.success(), "{}", said(&made));
}

#[test]
fn a_version_is_the_one_that_its_row_names_or_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let wheels = folder.path().join("wheels");
    fs::create_dir(&wheels).unwrap();
    for (name, version, needs) in [
        ("vl_grower", "1.0.0", ""),
        ("vl_grower", "2.0.0", ""),
        ("vl_wants", "1.0.0", "vl_grower>=2"),
        ("vl_loose", "1.0.0", "vl_grower"),
    ] {
        wheel(&wheels, name, version, needs);
    }
    let with = |words: &[&str]| {
        let environment = folder.path().join(words.join("-").replace("--", ""));
        let maker = root("src/rehearse/python/versions/environment.py");
        let mut command = Command::new(common::python());
        command.arg(maker).arg(&environment).arg("--uv").arg(uv()).env("UV_FIND_LINKS", &wheels).env("UV_OFFLINE", "1");
        (command.args(words).output().unwrap(), environment)
    };
    let installed = |environment: &Path| {
        let list = "from importlib import metadata; print(*sorted(f'{d.name}=={d.version}' for d in metadata.distributions() if d.name.startswith('vl')))";
        let listed = Command::new(environment.join("bin/python")).args(["-c", list]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout).trim().to_string()
    };
    // One that contradicts another is refused by the resolver, before anything is installed.
    let (refused, environment) = with(&["vl_grower==1.0.0", "vl_wants==1.0.0"]);
    let why = said(&refused);
    assert!(!refused.status.success() && why.contains("vl-wants depend on vl-grower>=2"), "{why}");
    assert!(!environment.join("bin").exists());
    let (made, environment) = with(&["vl_grower==1.0.0", "vl_loose==1.0.0"]);
    assert!(made.status.success(), "{}", said(&made));
    assert_eq!(installed(&environment), "vl_grower==1.0.0 vl_loose==1.0.0");
    // Whoever wants it all the same says so.
    let (made, environment) = with(&["vl_grower==1.0.0", "vl_wants==1.0.0", "--no-deps"]);
    assert!(made.status.success(), "{}", said(&made));
    assert_eq!(installed(&environment), "vl_grower==1.0.0 vl_wants==1.0.0");
    let (made, environment) = with(&["vl_wants==1.0.0", "--with=vl_loose"]);
    assert!(made.status.success(), "{}", said(&made));
    assert_eq!(installed(&environment), "vl_grower==2.0.0 vl_loose==1.0.0 vl_wants==1.0.0");
}

/// A torchvision that belongs to a PyTorch of today may come out weeks after it. By a uv that has no torchvision.
#[test]
fn a_companion_that_is_not_out_yet_is_done_without() {
    let folder = tempfile::tempdir().unwrap();
    let (uv, asked, beside) = (folder.path().join("uv"), folder.path().join("asked"), folder.path().join("beside"));
    let stub = format!(
        r#"#!/bin/sh
for last; do :; done
case "$1 $2" in
venv*) exec "{}" -m venv --without-pip "$last" ;;
"pip compile") grep torchvision "$last" >> "{asked}" && exit 1; echo torch==2.99.0 > "$(dirname "$last")/lock.txt" ;;
"pip install") echo "$last" >> "{asked}" ;;
esac
"#,
        common::python().display(),
        asked = asked.display()
    );
    fs::write(&uv, stub).unwrap();
    fs::set_permissions(&uv, fs::Permissions::from_mode(0o755)).unwrap();
    let about = beside.join("torchvision-0.26.0.dist-info");
    fs::create_dir_all(&about).unwrap();
    fs::write(about.join("METADATA"), "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.26.0\nRequires-Dist: torch==2.11.0\n")
        .unwrap();
    let maker = root("src/rehearse/python/versions/environment.py");
    let mut command = Command::new(common::python());
    command.arg(maker).arg(folder.path().join("env")).arg("--beside").arg("--uv").arg(&uv).arg("torch==2.99.0");
    let made = command.env("PYTHONPATH", &beside).output().unwrap();
    assert!(made.status.success(), "{}", said(&made));
    assert_eq!(fs::read_to_string(asked).unwrap(), "torchvision==0.114.*\ntorch==2.99.0\n");
}

/// An extension as vLLM's asks for functions of CUDA's libraries that PyTorch itself does not, and comes beside libraries of its own.
#[test]
fn an_extension_finds_what_pytorch_does_not_ask_for() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
import ctypes, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from stand_in import stand_in
packages = Path(sys.argv[2])
lib, extension, elsewhere = packages / "torch/lib", packages / "engine", packages / "elsewhere"
for place in (lib, extension, elsewhere, packages / "torch-2.11.0.dist-info"):
    place.mkdir(parents=True)
(packages / "torch-2.11.0.dist-info/METADATA").write_text("Requires-Dist: nvidia-cudnn-cu13==9.19.0.56")
(extension / "script.so").write_text("/* of a linker */")
def made(path, text, *needs):
    # Each library that it needs is there when it is linked, and gone afterwards, but for those of our own.
    words = [word for need in needs for word in (f"-L{need.parent}", f"-l:{need.name}")]
    subprocess.run(["cc", "-shared", "-fPIC", "-nostdlib", "-z", "now", "-xc", "-", "-o", path, "-Wl,--no-as-needed,-rpath,$ORIGIN:$ORIGIN/../torch/lib", *words], input=text, text=True, check=True)
    return path
def gone(name, text=""):
    return made(lib / name, text)
driver = [gone("libcudart.so.13", "int cudaMalloc(){return 0;} int cudaFuncSetAttribute(){return 0;}"), gone("libcublas.so.13", "int cublasHgemm(){return 0;}")]
driver.append(gone("libcupti.so.13", "int cuptiEnable(){return 0;}"))
torch = made(lib / "libtorch.so", "int cudaMalloc(); int cuptiEnable(); int torch(){return cudaMalloc() + cuptiEnable();}", driver[0], driver[2])
# Triton has one of the same name, which nobody finds.
made(elsewhere / "libcupti.so.13", "int cuptiEnable(){return 0;}")
own = made(extension / "libnvjpeg-1a2b.so", "int nvjpegCreate(){return 7;}")
text = "int cublasHgemm(); int cudaFuncSetAttribute(); int nvjpegCreate(); int own(){return nvjpegCreate();} int all(){return cublasHgemm() + cudaFuncSetAttribute();}"
made(extension / "_C.so", text, torch, own, *driver[:2])
for file in driver:
    file.unlink()
stand_in(packages)
ctypes.CDLL(lib / "libtorch.so", ctypes.RTLD_GLOBAL)
engine = ctypes.CDLL(extension / "_C.so")
print(engine.own(), engine.all())
"#;
    let mut command = Command::new(common::python());
    command.args(["-c", script]).arg(root("src/rehearse/python/versions")).arg(folder.path());
    let done = command.output().unwrap();
    // Its own library's answer, and twice the error of what stands in.
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "7 2", "{}", said(&done));
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
    let docs = fs::read_to_string(root("docs/limits.md")).unwrap();
    let row = docs.lines().find(|line| line.starts_with(&format!("| {version} |"))).expect("a row for each version");
    row.split('|').nth(column).unwrap().trim().to_string()
}

fn tried(version: &str, scene: &Path) {
    let Some(python) = environment(version) else { return };
    // Kept as the environment is, and named by its sources: what is compiled anew is what has changed.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("compiled-{version}"));
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
#[ignore = "long"]
fn the_oldest_and_the_newest_pytorch_are_rehearsed() {
    let scene = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        for version in [OLDEST, NEWEST] {
            scope.spawn(|| tried(version, scene.path()));
        }
    });
}
