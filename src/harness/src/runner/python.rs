//! PyTorch in Python, which runs an experiment's reference (`experiments/NAME/step.py`) in child processes like our own.

use super::spec::ForReference;
use crate::machine::{flags, libtorch_version};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use torch::{self, MemoryFile, meter};

/// A Python whose PyTorch is of the version that this program runs on, and the reference that it runs.
#[derive(Debug, Clone)]
pub struct Python {
    program: PathBuf,
    script: PathBuf,
    version: String,
    torch: String,
    /// Versions of the packages that references use, by name.
    pub packages: BTreeMap<String, String>,
}

/// What tells the versions: Python's and torch's on one line, then of each package that is there its own. Torch is not imported for it, which
/// takes seconds, but its own file is asked.
const VERSIONS: &str = "\
import os, platform, runpy
from importlib import metadata, util
torch = util.find_spec('torch')
if torch is None: raise ModuleNotFoundError('No module named torch')
torch = runpy.run_path(os.path.join(os.path.dirname(torch.origin), 'version.py'))['__version__']
print(platform.python_version(), torch)
for name in ('torchvision', 'Pillow', 'numpy', 'pytorch_memlab', 'transformers', 'peft', 'timm', 'megatron-core'):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
";

impl Python {
    /// Finds the reference of an experiment and a Python for it: the one that `VRAMLAB_PYTHON` names, the one whose PyTorch this program
    /// has loaded, or `python3`.
    ///
    /// What is missing, and what to do about it, is an answer, which decides what is measured.
    ///
    /// # Errors
    /// There is no answer: a signal ended the Python that was asked.
    pub fn find(experiment: &str) -> Result<Result<Python, String>> {
        let script = match script(experiment) {
            Ok(script) => script,
            Err(missing) => return Ok(Err(missing)),
        };
        let program = Python::program();
        let remedy = "set VRAMLAB_PYTHON to a python that has PyTorch 2.11";
        let failed = |what: String| format!("{} {what}; {remedy}", program.display());
        // A group of its own: the terminal's Ctrl-C reaches the parent alone.
        let mut command = Command::new(&program);
        let asked = match command.args(["-c", VERSIONS]).stdin(Stdio::null()).process_group(0).output() {
            Ok(asked) => asked,
            Err(error) => return Ok(Err(failed(format!("cannot be started ({error})")))),
        };
        if let Some(signal) = asked.status.signal() {
            bail!("{} was ended by signal {signal} before it could say its version; run the same command again", program.display());
        }
        let answer = String::from_utf8_lossy(&asked.stdout).trim().to_string();
        let mut lines = answer.lines().filter_map(|line| line.split_once(' '));
        let Some((version, torch)) = lines.next().filter(|_| asked.status.success()) else {
            let complaint = String::from_utf8_lossy(&asked.stderr);
            return Ok(Err(failed(format!(
                "has no PyTorch that works ({})",
                complaint.lines().last().unwrap_or("it said nothing")
            ))));
        };
        let ours = libtorch_version()?;
        // What follows '+' says how it was built, which the libtorch of an archive does not tell.
        if torch.split('+').next() != ours.split('+').next() {
            return Ok(Err(failed(format!("has PyTorch {torch}, and this program runs on {ours}"))));
        }
        let (version, torch) = (version.to_string(), torch.to_string());
        let packages = lines.map(|(name, version)| (name.to_string(), version.to_string())).collect();
        Ok(Ok(Python { program, script, version, torch, packages }))
    }

    /// The Python that is asked first: the one that `VRAMLAB_PYTHON` names, the one whose PyTorch this program has loaded, or `python3`.
    pub fn program() -> PathBuf {
        let named = std::env::var_os("VRAMLAB_PYTHON").map(PathBuf::from).or_else(beside_libtorch);
        named.unwrap_or_else(|| PathBuf::from("python3"))
    }

    /// `Python 3.11.2, torch 2.11.0+cu130`.
    pub fn describe(&self) -> String {
        format!("Python {}, torch {}", self.version, self.torch)
    }

    /// The command that runs the reference; what it is to do is still to be added.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // No bytecode: the sources' folder is not ours to write to.
        command.arg("-B").arg(&self.script);
        // What the steps of experiments share.
        let experiments = self.script.ancestors().nth(2).unwrap_or(&self.script);
        let shared = std::iter::once(experiments.join("python"));
        let given = std::env::var_os("PYTHONPATH").unwrap_or_default();
        let all = shared.chain(std::env::split_paths(&given).filter(|path| !path.as_os_str().is_empty()));
        command.env("PYTHONPATH", std::env::join_paths(all).unwrap_or(given.clone()));
        command
    }
}

/// Settings that the launcher gives each child by its cell, ours and the reference's alike, or that a reference has reasons to change.
const BY_CELL: [&str; 3] = ["PYTORCH_ALLOC_CONF", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"];

/// What a reference is told so that it measures as we do: what counts, and the settings that it must have with so many threads.
pub fn for_reference(threads: u32) -> Result<ForReference> {
    static LIBRARY: OnceLock<MemoryFile> = OnceLock::new();
    let library = MemoryFile::once(&LIBRARY, "vramlab-meter", meter::LIBRARY).context("keeping the meter's library in memory")?;
    let mut settings = flags(threads as usize)?;
    settings.retain(|name, _| !BY_CELL.contains(&name.as_str()));
    let libtorch = torch::loaded_library().context("the loaded libtorch cannot be located")?;
    Ok(ForReference { meter: library.path(), settings, libtorch })
}

/// The copy of the project that has such a file: the folder that holds this program, or one above it, or where it was built.
pub fn project_with(file: &Path) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| format!("this program's own file cannot be found: {e}"))?;
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let found = program.ancestors().skip(1).chain(built).find(|folder| folder.join(file).exists());
    found.map(Path::to_path_buf).ok_or_else(|| format!("{} is missing; run the program from a copy of the project", file.display()))
}

/// The reference's source.
fn script(experiment: &str) -> Result<PathBuf, String> {
    let name = Path::new("experiments").join(experiment).join("step.py");
    Ok(project_with(&name)?.join(name))
}

/// The Python whose package torch the loaded libtorch is: `PREFIX/lib/python3.X/site-packages/torch/lib/libtorch_cpu.so` belongs to
/// `PREFIX/bin/python3`.
fn beside_libtorch() -> Option<PathBuf> {
    let python = torch::loaded_library()?.ancestors().nth(6)?.join("bin/python3");
    python.exists().then_some(python)
}
