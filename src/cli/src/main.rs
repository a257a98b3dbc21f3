//! The program `vramlab`. It needs no libtorch; the lab's commands are those of `vramlab-lab`, which it starts.

mod calibrate;
mod ci;
mod diff;
mod fit;
mod flags;
mod gpus;
mod mcp;
mod outcome;
mod plan;
mod rehearsal;
mod several;
mod show;
mod terminal;
mod versions;

use anyhow::{Context, Result, ensure};
use base::{console, eprintln, print, println};
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Begin with your own command, as you type it:
  vramlab rehearse --gpu rtx-4090 -- python train.py
      Does it fit, and what fills the memory? With --what-if: what would make it fit, and the lines.
  vramlab rehearse --gpu all -- python train.py
      Which cards does it fit?
  vramlab fit --batch '--batch-size {}' --gpu t4 -- python train.py
      The largest batch that fits.
  vramlab plan --gpu h100 --gpus 64 --layout '--tp {tp} --pp {pp} --mb {mb}' -- torchrun train.py
      The fastest layout of a job on many cards.
  vramlab gpus
      The cards, and what each is called.

The lab measures techniques through libtorch and judges what guides say of them (in a clone of the project):
  run-all, gpu-day    Every experiment; those that say most of a GPU
  report, check       Pages from results; whether results are whole
  evidence            Whether the steps of measured cells still ask for what they asked for then
  contribute, doctor  A pull request of results; what this machine lacks";

/// Predict and reduce the GPU memory of PyTorch training
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, arg_required_else_help = true, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Run your own training script, unmodified, on a simulated GPU: does it fit, and what fills the memory?
    Rehearse(Box<flags::RehearseOptions>),

    /// Find the largest batch or context of your own training script that fits a GPU, without one
    Fit(Box<fit::FitOptions>),

    /// Find the fastest layout of a job on many cards: tensor, pipeline and data parallel groups, and the micro-batch
    Plan(Box<plan::PlanOptions>),

    /// Time the kernels of a kept rehearsal on the GPU that is there, in two minutes, so that predicted times are this card's own
    Calibrate(Box<calibrate::CalibrateOptions>),

    /// Show a rehearsal that was kept (`vramlab rehearse --keep FILE`), without running anything
    Show(show::ShowOptions),

    /// Run your own script with several versions of PyTorch or of a package: what each takes, and the lines that made it jump
    Versions(versions::VersionsOptions),

    /// Find the release of a package, or the commit of a clone, that made your script take more memory
    Bisect(versions::BisectOptions),

    /// Rehearse the cases of vramlab.toml, at the base of a change and with it: which grew, by which line
    Ci(ci::CiOptions),

    /// List the cards that --gpu takes, by their names here, NVIDIA's and the clouds'
    Gpus(gpus::GpusOptions),

    /// Say which lines made a peak grow, between two rehearsals; or which verdicts and effects differ between two machines
    Diff {
        /// A rehearsal, as --json or --keep wrote it; or a machine's folder, records/measured/MACHINE
        #[arg(value_name = "BEFORE")]
        a: PathBuf,
        /// A later rehearsal; or the folder of another machine, or of the same at another time
        #[arg(value_name = "AFTER")]
        b: PathBuf,
        /// Of two rehearsals, write the rows as JSON to FILE; - is the standard output
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },

    /// Check that a machine's results are whole and valid, as CONTRIBUTING.md requires
    #[command(hide = true)]
    Check {
        /// Folder of one machine, results/MACHINE
        #[arg(value_name = "DIR")]
        machine: PathBuf,
    },

    /// Check results that somebody measured, put them beside the project's, and write the text of a pull request
    #[command(hide = true)]
    Contribute {
        /// Folder of one machine or of several, an archive, such as gpu-day.tar.xz, or what `vramlab calibrate --for` wrote
        #[arg(value_name = "DIR|ARCHIVE|CSV")]
        given: PathBuf,
        /// Folder of all results; those that came with the project are in records/ beside it
        #[arg(long, value_name = "DIR", default_value = "results")]
        results: PathBuf,
    },

    /// Write the report from the results of all machines
    #[command(hide = true)]
    Report {
        /// Folder that holds MACHINE/EXPERIMENT/samples.csv and run.json; what came with the project is read from records/ beside it
        #[arg(long, value_name = "DIR", default_value = "results")]
        results: PathBuf,
        /// Folder for README.md and the other pages, plots/ and data/
        #[arg(long, value_name = "DIR", default_value = "report")]
        out: PathBuf,
        /// Also write the table of what to try between the marks in this README
        #[arg(long, value_name = "FILE")]
        readme: Option<PathBuf>,
    },

    /// Serve these commands to an agent, over the Model Context Protocol on the standard input and output
    Mcp,

    /// Print the JSON schema of what a command's --json writes
    Schema {
        /// The command
        #[arg(value_name = "COMMAND", default_value = "rehearse", value_parser = ["rehearse", "what-if", "fit", "plan", "versions", "bisect", "diff"])]
        of: String,
    },

    /// Print what completes this program's flags in a shell, as in: source <(vramlab completion bash)
    Completion {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },

    #[command(flatten)]
    Lab(Lab),
}

/// Commands of `vramlab-lab`, which is linked to libtorch: what follows them is read there.
#[derive(Debug, Subcommand)]
enum Lab {
    /// Run every experiment and write the report into report/, or with --out DIR into DIR-report/; takes the flags of an experiment
    #[command(hide = true)]
    RunAll(Rest),

    /// Say whether the steps of measured cells still ask for what they asked for when they were measured
    #[command(hide = true)]
    Evidence(Rest),

    /// Say what this machine has, what is missing and how to fix it
    #[command(hide = true)]
    Doctor(Rest),

    /// Run the most useful GPU experiments within a time budget and pack the results
    #[command(hide = true)]
    GpuDay(Rest),
}

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<OsString>,
}

fn main() -> ExitCode {
    console::outlive_limits();
    mcp::end_with_parent();
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    if words.next().is_some_and(|name| Path::new(&name).ends_with(rehearse::NVIDIA_SMI)) {
        let (text, status) = rehearse::nvidia_smi(&words.collect::<Vec<String>>());
        print!("{text}");
        return ExitCode::from(console::status(status));
    }
    let command = Arguments::parse().command;
    let rehearses = command.rehearses();
    let code = run(command).unwrap_or_else(|error| {
        eprintln!("vramlab: {error:#}");
        if rehearses && !error.is::<rehearse::ScriptFailed>() { outcome::BAD_INPUT } else { 1 }
    });
    ExitCode::from(console::status(code))
}

impl Subcommands {
    /// Whether 1 is the exit status of a script that fails.
    fn rehearses(&self) -> bool {
        use Subcommands::{Bisect, Ci, Fit, Plan, Rehearse, Show, Versions};
        matches!(self, Rehearse(_) | Show(_) | Fit(_) | Plan(_) | Versions(_) | Bisect(_) | Ci(_))
    }
}

fn run(command: Subcommands) -> Result<u8> {
    match command {
        Subcommands::Diff { a, b, .. } if [&a, &b].iter().all(|file| file.extension().is_some_and(|end| end == "csv")) => {
            print!("{}", report::diff_verdicts(&a, &b)?);
            Ok(0)
        }
        Subcommands::Diff { a, b, json } if a.is_file() || b.is_file() => diff::answers(&a, &b, json.as_deref()),
        Subcommands::Diff { a, b, .. } => {
            print!("{}", report::diff(&a, &b)?);
            Ok(0)
        }
        Subcommands::Check { machine } => {
            let problems = report::check(&machine)?;
            for problem in &problems {
                println!("{problem}");
            }
            ensure!(problems.is_empty(), "{} must not be contributed as they are: see above", machine.display());
            println!("{}: whole and valid", machine.display());
            Ok(0)
        }
        Subcommands::Contribute { given, .. } if given.extension().is_some_and(|kind| kind == "csv") => {
            calibrate::contributed(&given)
        }
        Subcommands::Contribute { given, results } => {
            let report::Contribution { problems, text } = report::contribute(&given, &results)?;
            print!("{text}");
            for problem in &problems {
                eprintln!("{problem}");
            }
            ensure!(problems.is_empty(), "{} must not be contributed as it is: see above", given.display());
            Ok(0)
        }
        Subcommands::Rehearse(options) => rehearsal::rehearse(&options),
        Subcommands::Show(options) => show::show(&options),
        Subcommands::Fit(options) => fit::fit(&options),
        Subcommands::Plan(options) => plan::plan(&options),
        Subcommands::Versions(options) => versions::versions(&options),
        Subcommands::Bisect(options) => versions::bisect(&options),
        Subcommands::Ci(options) => ci::ci(&options),
        Subcommands::Gpus(options) => gpus::gpus(&options),
        Subcommands::Calibrate(options) => options.run(),
        Subcommands::Report { results, out, readme } => {
            println!("wrote {}", report::write(&results, &out)?.display());
            if let Some(readme) = readme {
                report::show_summary(&results, &readme)?;
            }
            Ok(0)
        }
        Subcommands::Mcp => mcp::serve(),
        Subcommands::Schema { of } => {
            println!("{}", serde_json::to_string_pretty(&rehearse::schema(&of)).context("writing the schema")?);
            Ok(0)
        }
        Subcommands::Completion { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "vramlab", &mut text);
            print!("{}", String::from_utf8_lossy(&text));
            Ok(0)
        }
        Subcommands::Lab(_) => lab(),
    }
}

/// Goes on as the lab's program, with the same arguments.
fn lab() -> Result<u8> {
    let program = std::env::current_exe().context("finding this program's own file")?.with_file_name("vramlab-lab");
    ensure!(
        program.exists(),
        "this command is the lab's, which measures with libtorch 2.11 and is not installed by pip: in a clone of the project `pip install \
         rust-just && just doctor` builds it and says what is missing; then run it there as target/release/vramlab. Your own script needs \
         none of it: vramlab rehearse -- python train.py"
    );
    let error = std::process::Command::new(&program).args(std::env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("starting {}", program.display()))
}
