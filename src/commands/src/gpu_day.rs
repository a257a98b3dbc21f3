//! `vramlab gpu-day`: what a quarter of an hour on a machine with a GPU is worth most for. `records/gpus/day.py` goes through it.

use anyhow::{Context, Result};
use clap::Args;
use harness::machine::Gpu;
use harness::runner::{Python, project_with};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Flags of `vramlab gpu-day`.
#[derive(Debug, Clone, Args)]
pub struct GpuDayOptions {
    /// Stop after so many minutes; called again, it goes on where it stopped
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,

    /// Folder of results and logs; DIR.tar.xz is what to carry home
    #[arg(long, value_name = "DIR", default_value = "gpu-day")]
    out: PathBuf,

    /// Only these tasks, by the names of their logs [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,

    /// Dry run on a simulated H200, with the cells of the day; only what counts bytes gives figures
    #[arg(long)]
    rehearse: bool,
}

/// Goes on as the script, with this machine's card.
pub fn gpu_day(options: &GpuDayOptions) -> Result<u8> {
    let script = Path::new("records/gpus/day.py");
    let project = project_with(script).map_err(anyhow::Error::msg)?;
    let own = std::env::current_exe().context("finding this program's own file")?;
    let mut command = Command::new(Python::program());
    command.arg("-B").arg(project.join(script)).arg("--programs").arg(own.parent().context("this program lies in no folder")?);
    command.arg("--minutes").arg(options.minutes.to_string()).arg("--out").arg(&options.out);
    command.arg("--only").arg(options.only.join(","));
    if options.rehearse {
        command.arg("--rehearse");
    } else if let Some(card) = Gpu::open(0).ok().and_then(|gpu| gpu.card()) {
        command.arg("--card").arg(card.to_string());
    }
    Err(command.exec()).with_context(|| format!("starting {}", command.get_program().display()))
}
