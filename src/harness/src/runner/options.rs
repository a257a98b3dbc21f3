//! The command line that all experiments share.

use super::spec::Spec;
use super::summary::RunAllContext;
use crate::machine::{DeviceChoice, cores};
use base::units::Bytes;
use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use record::protocol::Profile;
use regex::Regex;
use std::path::PathBuf;
use std::time::Duration;

/// Flags of an experiment; the same words everywhere.
#[derive(Debug, Clone, Parser)]
#[command(version, max_term_width = 100, args_override_self = true)]
pub struct Options {
    /// Print the cells that would be run, and their passes, and stop
    #[arg(long)]
    pub list: bool,

    /// Where to measure: cpu, cuda, cuda:N, or dry or dry:MEMORY, which predicts what a GPU of that memory would allocate [default: the
    /// first GPU that libtorch can use, else cpu]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,

    /// How much to measure: smoke takes seconds and is for tests, quick minutes, full is for a GPU [default: quick on a CPU, full on
    /// a GPU and on a simulated GPU]
    #[arg(long, value_name = "PROFILE", value_parser = PossibleValuesParser::new(["smoke", "quick", "full"]).map(profile))]
    pub profile: Option<Profile>,

    /// Only cells whose text matches this regular expression, and the baselines that they are compared with
    #[arg(long, value_name = "REGEX")]
    pub filter: Option<Regex>,

    /// Timed rounds of every comparison, set before the first; results with another number are left as they are [default: the experiment's own
    /// number, or 5 for quick, and 5, 10 or 25 for full, until every claim is decided]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,

    /// Stop after this time; what runs first is worth most [default: 180 for quick, 600 for full]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub budget: Option<Duration>,

    /// Seed of data, parameters and of the order of levels
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u32,

    /// Threads that libtorch computes with [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,

    /// Limit the device's memory; what needs more runs out of it
    #[arg(long, value_name = "SIZE")]
    pub device_memory: Option<Bytes>,

    /// End a cell's process after this time
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub timeout: Duration,

    /// Folder of all results [default: results; smoke keeps none]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Start over instead of going on: remove what an earlier run like this one has measured
    #[arg(long)]
    pub fresh: bool,

    /// Run part I of N of the cells, in a folder of its own that the report joins with the others
    #[arg(long, value_name = "I/N")]
    pub shard: Option<CellShard>,

    /// Write the protocol, EXPERIMENT-REVISION.json, into this folder and measure nothing
    #[arg(long, value_name = "DIR")]
    pub protocol: Option<PathBuf>,

    /// Cells, in a file of the lab's own, to make the witnesses of
    #[arg(long, hide = true)]
    pub witness: Option<PathBuf>,

    /// The command that this run is part of, as it describes that itself
    #[arg(long, hide = true, value_parser = within)]
    pub within: Option<RunAllContext>,

    /// One cell and pass, as the parent describes it
    #[arg(long, hide = true, value_parser = child)]
    pub child: Option<Spec>,

    /// A process that is copied for passes, and the process that asks for them
    #[arg(long, hide = true)]
    pub template: Option<u32>,
}

/// One of several jobs that share a sweep; counts from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellShard {
    pub index: usize,
    pub count: usize,
}

impl std::str::FromStr for CellShard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((index, count)) if (1..=count).contains(&index) => Ok(CellShard { index, count }),
            _ => Err(format!("'{text}' is no part of a sweep; write it like 2/4, the first being 1/4")),
        }
    }
}

fn profile(name: String) -> Profile {
    match name.as_str() {
        "smoke" => Profile::Smoke,
        "quick" => Profile::Quick,
        _ => Profile::Full,
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s < 1e7);
    value.map(Duration::from_secs_f64).ok_or_else(|| format!("'{text}' is no number of seconds"))
}

fn within(text: &str) -> Result<RunAllContext, String> {
    serde_json::from_str(text).map_err(|_| "--within is for the lab's own use".to_string())
}

fn child(text: &str) -> Result<Spec, String> {
    serde_json::from_str(text).map_err(|_| "--child is for the lab's own use".to_string())
}

impl Options {
    pub fn device(&self) -> DeviceChoice {
        self.device.unwrap_or_else(DeviceChoice::best)
    }

    pub fn profile(&self, device: DeviceChoice) -> Profile {
        self.profile.unwrap_or(if device == DeviceChoice::Cpu { Profile::Quick } else { Profile::Full })
    }

    /// Threads that libtorch computes with.
    pub fn threads(&self) -> u32 {
        self.threads.unwrap_or_else(|| u32::try_from(cores()).unwrap_or(1))
    }

    /// Folder of all results; none where they are thrown away.
    pub fn results(&self, profile: Profile) -> Option<PathBuf> {
        self.out.clone().or_else(|| (profile != Profile::Smoke).then(|| PathBuf::from("results")))
    }

    pub fn budget(&self, profile: Profile) -> Option<Duration> {
        self.budget.or(match profile {
            Profile::Smoke => None,
            Profile::Quick => Some(Duration::from_secs(180)),
            Profile::Full => Some(Duration::from_secs(600)),
        })
    }
}
