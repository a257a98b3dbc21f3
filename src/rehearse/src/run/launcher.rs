//! Programs that start the ranks of a job, such as torchrun: how many they start, and the command of one rank without them.

use std::ffi::OsString;

pub fn is_accelerate(word: &str) -> bool {
    ["accelerate", "accelerate-launch", "accelerate.commands.launch"].contains(&program(word))
}

/// A command as its launcher starts each rank: `torchrun --nproc-per-node 8 train.py` is `python train.py`.
pub fn without_launcher(command: &[OsString]) -> Vec<OsString> {
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
