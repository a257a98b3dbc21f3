//! A folder with a script, and the program that rehearses it.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

pub const VRAMLAB: &str = env!("CARGO_BIN_EXE_vramlab");

/// The program, whose rehearsals are copies of a Python that has imported torch and waits for all tests; with an empty `VRAMLAB_ZYGOTES` in the
/// environment they are not, so that the same tests tell whether copies do the same.
pub fn vramlab() -> Command {
    let mut program = Command::new(VRAMLAB);
    let folder = std::env::var_os("VRAMLAB_ZYGOTES").unwrap_or_else(|| common::scratch().join("zygotes").into());
    program.env("VRAMLAB_ZYGOTES", folder);
    program
}

pub struct Scene {
    pub folder: TempDir,
    is_anew: bool,
}

impl Scene {
    pub fn new(script: &str) -> Scene {
        let scene = Scene { folder: tempfile::tempdir().unwrap(), is_anew: false };
        scene.write(script);
        scene
    }

    /// One whose rehearsals are processes that are started anew: of how they start and end it is.
    pub fn anew(script: &str) -> Scene {
        Scene { is_anew: true, ..Scene::new(script) }
    }

    pub fn write(&self, script: &str) {
        std::fs::write(self.path("train.py"), script).unwrap();
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn program(&self) -> Command {
        if self.is_anew { Command::new(VRAMLAB) } else { vramlab() }
    }

    pub fn command(&self, flags: &[&str]) -> Command {
        self.asks(&[&["rehearse"][..], flags].concat())
    }

    fn asks(&self, flags: &[&str]) -> Command {
        let mut command = self.program();
        command.args(flags).arg("--json").arg(self.path("answer.json")).arg("--").arg(common::python()).arg(self.path("train.py"));
        command
    }

    pub fn run(&self, flags: &[&str]) -> (Output, Value) {
        let output = self.command(flags).output().unwrap();
        (output, self.answer())
    }

    /// Of a command with flags, and the script's arguments.
    pub fn ask(&self, flags: &[&str], arguments: &[&str]) -> (Output, Value) {
        self.ask_with(&[], flags, arguments)
    }

    /// With variables of the environment.
    pub fn ask_with(&self, variables: &[(&str, &str)], flags: &[&str], arguments: &[&str]) -> (Output, Value) {
        let output = self.asks(flags).args(arguments).envs(variables.iter().copied()).output().unwrap();
        let answer = self.answer();
        if !answer.is_null() {
            let of = if flags.contains(&"--what-if") { "what-if" } else { flags[0] };
            // Several cards have an answer each.
            let each = answer.as_array().filter(|_| of == "rehearse").map_or(std::slice::from_ref(&answer), Vec::as_slice);
            each.iter().for_each(|answer| super::agents::is_of_the_schema(of, answer));
        }
        (output, answer)
    }

    pub fn answer(&self) -> Value {
        std::fs::read_to_string(self.path("answer.json")).map_or(Value::Null, |text| serde_json::from_str(&text).unwrap())
    }
}

/// Its words on one line, wherever it was wrapped.
pub fn unwrapped(said: &str) -> String {
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What it said on its standard error.
pub fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// All that it said.
pub fn said(output: &Output) -> String {
    error(output) + &String::from_utf8_lossy(&output.stdout)
}
