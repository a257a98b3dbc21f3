//! Programs that start the ranks of a job, such as torchrun: how many they start, and the command of one rank without them.

use super::executor::{Output, Rehearsal};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

impl Rehearsal {
    /// The command as its launcher starts each rank, without the launcher: with the environment that accelerate makes of its flags and its configuration.
    ///
    /// # Errors
    /// accelerate ends with an error.
    pub fn without_launcher(&self) -> Result<Rehearsal> {
        let command = without_launcher(&self.command);
        let words = || self.command.iter().filter_map(|word| word.to_str());
        let mut one = Rehearsal { command, ..self.clone() };
        if one.command == self.command || !words().take(3).any(is_accelerate) {
            return Ok(one);
        }
        // accelerate itself, which is asked on the machine that the ranks have, up to where it would start them.
        let flags =
            words().skip_while(|word| !is_accelerate(word)).skip(1).skip_while(|word| *word == "launch").map(OsString::from);
        let command = [&[one.command[0].clone(), "-c".into(), ASKED.into()], &*flags.collect::<Vec<_>>()].concat();
        let (capture, session) = Rehearsal { command, rank: None, is_silent: true, ..self.clone() }.run(Output::Silent)?;
        let path = session.path().join("launched");
        ensure!(path.exists(), "accelerate does not start the command: {}", capture.last_line_of_stderr);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        one.launched = serde_json::from_str::<BTreeMap<String, String>>(&text)
            .context("the environment that accelerate makes")?
            .into_iter()
            .collect();
        Ok(one)
    }
}

/// Leaves in the session what the ranks' environment has more than its own, where accelerate would start them.
const ASKED: &str = include_str!("launched.py");

fn is_accelerate(word: &str) -> bool {
    ["accelerate", "accelerate-launch", "accelerate.commands.launch"].contains(&program(word))
}

/// A command as its launcher starts each rank: `torchrun --nproc-per-node 8 train.py` is `python train.py`.
fn without_launcher(command: &[OsString]) -> Vec<OsString> {
    let words: Vec<&str> = command.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let first = words.first().copied().map(program).unwrap_or_default();
    let module = words.iter().position(|word| *word == "-m").and_then(|at| words.get(at + 1)).copied().unwrap_or_default();
    let is_launcher = ["torchrun", "deepspeed", "accelerate", "accelerate-launch"].contains(&first)
        || ["torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"].contains(&module);
    let python = if first.starts_with("python") { command[0].clone() } else { "python".into() };
    let script = words.iter().position(|word| word.ends_with(".py"));
    let own_module = words
        .iter()
        .skip(1)
        .position(|word| ["-m", "--module"].contains(word))
        .filter(|_| !first.starts_with("python"))
        .map(|at| at + 1);
    match (is_launcher, script, own_module) {
        (true, _, Some(at)) => [&[python, "-m".into()], &command[at + 1..]].concat(),
        (true, Some(at), None) => [&[python], &command[at..]].concat(),
        _ => command.to_vec(),
    }
}

/// How many ranks a launcher is asked for that starts fewer where it sees fewer GPUs.
pub fn ranks_of_launcher(command: &[OsString]) -> Option<u32> {
    const FLAGS: [&str; 3] = ["--num_processes", "--num-processes", "--num_gpus"];
    let words: Vec<&str> = command.iter().map_while(|word| word.to_str()).collect();
    let is_launcher =
        |word: &&str| ["accelerate", "accelerate-launch", "deepspeed", "accelerate.commands.launch"].contains(&program(word));
    let launcher = words.iter().take(3).position(is_launcher)?;
    let mut flags = words[launcher..].iter().take_while(|word| !word.ends_with(".py"));
    while let Some(word) = flags.next() {
        let (name, value) = word.split_once('=').map_or((*word, None), |(name, value)| (name, Some(value)));
        if FLAGS.contains(&name) {
            return value.or_else(|| flags.next().copied())?.parse().ok().filter(|ranks| (1..=64).contains(ranks));
        }
    }
    None
}

pub fn program(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_launcher_is_left_out() {
        for (command, without) in [
            ("torchrun --nproc-per-node 8 --nnodes=2 train.py --x 1", "python train.py --x 1"),
            ("torchrun --nproc_per_node 8 -m titan.train --x 1", "python -m titan.train --x 1"),
            ("/v/bin/python -m torch.distributed.run --nproc-per-node=2 a/t.py", "/v/bin/python a/t.py"),
            ("accelerate launch --num_processes 2 t.py", "python t.py"),
            ("deepspeed --num_gpus=2 t.py --deepspeed", "python t.py --deepspeed"),
            ("python -m titan.train", "python -m titan.train"),
            ("python t.py", "python t.py"),
        ] {
            assert_eq!(without_launcher(&words(command)), words(without), "{command}");
        }
    }
}
