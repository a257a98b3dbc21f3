//! The wheel as people without Rust use it: installed into an empty environment beside PyTorch, run from the shell and from Python.

use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    output
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A script that trains, which is also a module with a function that trains.
const TRAIN: &str = "
import sys
import torch

def train(width=1024, break_=False):
    model = torch.nn.Linear(width, width).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(100):
        model(torch.randn(64, width).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        print('step', step)
        assert not break_, 'it broke'

if __name__ == '__main__':
    train()
";

/// Uses the package as its documentation shows, and prints what the test compares.
const USE: &str = "
import json
import sys
import vramlab
from train import train

def local():
    train(2048)

if __name__ == '__main__':
    report = vramlab.rehearse(train, gpu='4GiB')
    assert report.fits and report.steps == 3 and 'step 1' in report.output and 'step 2' not in report.output, report
    assert str(report).startswith('FITS') and report.headroom == report.gpu_memory - report.json['peak_on_device']
    assert report.categories['parameters'] == 4 * 1024 * 1025, report.categories
    larger = vramlab.rehearse(local, gpu='4GiB', steps=1)
    assert larger.steps == 1 and larger.categories['parameters'] == 4 * 2048 * 2049, larger
    small = vramlab.rehearse(train, (8000,), gpu='1GiB')
    assert not small.fits and small.needs_at_least > 4 * 4 * 8000 * 8000, small
    try:
        vramlab.rehearse(train, (64, True))
    except vramlab.RehearsalError as error:
        assert 'it broke' in str(error) and 'FAILED' in str(error), error
    else:
        raise AssertionError('the failure was hidden')
    print(json.dumps([report.peak_requested, report.peak_allocated, report.peak_reserved]))
";

#[test]
#[ignore = "long"]
fn it_installs_beside_pytorch_and_gives_the_programs_bytes() {
    let root = common::root();
    let scene = tempfile::tempdir().unwrap();
    let at = |name: &str| scene.path().join(name);
    let program = env!("CARGO_BIN_EXE_vramlab");
    // An environment that sees PyTorch, and pip, where they are installed already.
    done(Command::new(common::python()).args(["-m", "venv", "--without-pip"]).arg(at("venv")));
    let packages = "import importlib.util as u, os, sys, sysconfig; torch = os.path.dirname(os.path.dirname(u.find_spec('torch').origin)); \
                    open(sys.argv[1] + '/torch.pth', 'w').write(torch)";
    let folder = fs::read_dir(at("venv/lib")).unwrap().next().unwrap().unwrap().path().join("site-packages");
    done(Command::new(common::python()).args(["-c", packages]).arg(&folder));
    let venv = at("venv/bin/python");
    // Packed as `pip install .` does, with the program that cargo has built here already, and installed as from an index.
    let wheel = ["-m", "pip", "wheel", "--no-index", "--no-deps", "--wheel-dir", "index", "--config-settings"];
    done(Command::new(&venv).current_dir(scene.path()).args(wheel).arg(format!("program={program}")).arg(root));
    let install = ["-m", "pip", "install", "--no-index", "--no-compile", "--find-links", "index", "vramlab"];
    // There is neither cargo nor a compiler.
    let alone = |command: &mut Command| {
        command.current_dir(scene.path()).env_remove("CXX").env("PATH", at("venv/bin")).env("VRAMLAB_CACHE", at("empty"));
        command.output().unwrap()
    };
    let installed = alone(Command::new(&venv).args(install));
    assert!(said(&installed).contains("Successfully installed vramlab-"), "{}", said(&installed));

    fs::write(at("train.py"), TRAIN).unwrap();
    fs::write(at("use.py"), USE).unwrap();
    let flags = ["rehearse", "--gpu", "4GiB", "--json"];
    let bytes = |command: &mut Command, name: &str| {
        done(command.args(flags).arg(at(name)).arg("--").arg(&venv).arg(at("train.py")).env("VRAMLAB_CACHE", at("cache")));
        let json: Value = serde_json::from_str(&fs::read_to_string(at(name)).unwrap()).unwrap();
        ["peak_requested", "peak_allocated", "peak_reserved"].map(|figure| json[figure].as_i64().unwrap())
    };
    let ours = bytes(&mut Command::new(program), "ours.json");
    assert!(ours[0] > 4 * 4 * 1024 * 1025, "{ours:?}");
    assert_eq!(bytes(&mut Command::new(at("venv/bin/vramlab")), "installed.json"), ours);
    let words = ["rehearse", "--gpu", "4GiB", "--json", "alone.json", "--", "python"];
    let rehearsed = alone(Command::new(at("venv/bin/vramlab")).args(words).arg("train.py"));
    let json: Value =
        serde_json::from_str(&fs::read_to_string(at("alone.json")).unwrap_or_else(|_| panic!("{}", said(&rehearsed)))).unwrap();
    assert_eq!(json["peak_reserved"].as_i64(), Some(ours[2]), "{}", said(&rehearsed));
    let other = "import torch; torch.__version__ = '2.8.0+cu128'; torch.ones(1, device='cuda')";
    let refused = alone(Command::new(at("venv/bin/vramlab")).args(words).args(["-c", other]));
    let why = said(&refused);
    assert!(why.contains("no library for PyTorch 2.8.0, but for 2.11.0") && why.contains("apt install g++"), "{why}");
    let module = done(Command::new(&venv).args(["-m", "vramlab", "--version"]));
    assert_eq!(said(&module).trim(), concat!("vramlab ", env!("CARGO_PKG_VERSION")));
    let used = done(Command::new(&venv).arg(at("use.py")).env("VRAMLAB_CACHE", at("cache")));
    assert_eq!(serde_json::from_slice::<[i64; 3]>(&used.stdout).unwrap(), ours, "{}", said(&used));
}
