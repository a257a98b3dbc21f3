//! Progress for the person who waits: a bar with the time left on a terminal, plain lines elsewhere.

use super::summary::Share;
use base::units::Seconds;
use indicatif::{ProgressBar, ProgressStyle};
use record::results::{PassRecord, Status};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Plain lines come no closer together than this.
const PAUSE: Duration = Duration::from_secs(5);

pub struct Progress {
    name: String,
    bar: Option<ProgressBar>,
    done: u64,
    total: u64,
    start: Instant,
    last_line: Instant,
    /// The place of this run among several, of which one bar tells.
    share: Option<Share>,
}

impl Progress {
    pub fn new(name: &str, share: Option<Share>) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(share.map_or(0, |share| (share.before + share.own + share.after) as u64));
            let template = match share {
                None => "{prefix} [{bar:30}] {pos}/{len}  {eta} left  {wide_msg}",
                Some(_) => "run-all [{bar:30}] {prefix}  {wide_msg}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(if share.is_some() { String::new() } else { name.to_string() });
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        let now = Instant::now();
        let progress = Progress { name: name.to_string(), bar, done: 0, total: 0, start: now, last_line: now, share };
        progress.show(name);
        progress
    }

    /// More rounds than were planned, or fewer.
    pub fn expect(&mut self, total: usize) {
        self.total = total as u64;
        if let (Some(bar), None) = (&self.bar, self.share) {
            bar.set_length(self.total);
        }
    }

    pub fn done(&mut self, pass: &PassRecord) {
        self.done += 1;
        if self.done > self.total {
            self.expect(usize::try_from(self.done).unwrap_or(usize::MAX));
        }
        let what = format!("{} {}", pass.pass, pass.cell);
        if pass.status.is_failure() || pass.status == Status::Oom {
            self.say(&format!("{}: {what}: {}: {}", self.name, pass.status, pass.reason));
        }
        self.show(&what);
        if self.bar.is_none() && self.last_line.elapsed() >= PAUSE {
            self.last_line = Instant::now();
            let spent = Seconds(self.start.elapsed().as_secs_f64());
            let left = self.left().map(|left| format!("; at most {left} left for all")).unwrap_or_default();
            eprintln!("{}: {} of {} passes in {spent}; last: {what}{left}", self.name, self.done, self.total);
        }
    }

    fn show(&self, what: &str) {
        let Some(bar) = &self.bar else { return };
        match (self.share, self.left()) {
            (Some(share), Some(left)) => {
                bar.set_position((share.before + share.own * self.fraction()) as u64);
                bar.set_prefix(format!("{left} left"));
                bar.set_message(format!("{}: {}/{} {what}", self.name, self.done, self.total));
            }
            _ => {
                bar.set_position(self.done);
                bar.set_message(what.to_string());
            }
        }
    }

    /// How much of this run is done: by its passes, or by its time where that is further.
    fn fraction(&self) -> f64 {
        let passes = if self.total == 0 { 0.0 } else { self.done as f64 / self.total as f64 };
        let time = self.share.map_or(0.0, |share| self.start.elapsed().as_secs_f64() / share.own.max(1e-9));
        passes.max(time).min(1.0)
    }

    /// The time that is left for all runs.
    fn left(&self) -> Option<Seconds> {
        self.share.map(|share| Seconds((share.own * (1.0 - self.fraction()) + share.after).round()))
    }

    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
