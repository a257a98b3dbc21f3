//! Progress for the person who waits: a bar with the time left on a terminal, plain lines elsewhere.

use crate::results::{PassRecord, Status};
use crate::units::Seconds;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Plain lines come no closer together than this.
const PAUSE: Duration = Duration::from_secs(5);

pub struct Progress {
    name: &'static str,
    bar: Option<ProgressBar>,
    done: u64,
    total: u64,
    start: Instant,
    last_line: Instant,
}

impl Progress {
    pub fn new(name: &'static str, total: usize) -> Progress {
        let total = total as u64;
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len}  {eta} left  {wide_msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(name);
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        let now = Instant::now();
        Progress { name, bar, done: 0, total, start: now, last_line: now }
    }

    /// More rounds than were planned, or fewer.
    pub fn expect(&mut self, total: usize) {
        self.total = total as u64;
        if let Some(bar) = &self.bar {
            bar.set_length(self.total);
        }
    }

    pub fn done(&mut self, pass: &PassRecord) {
        self.done += 1;
        let what = format!("{} {}", pass.pass, pass.cell);
        if pass.status.is_failure() || pass.status == Status::Oom {
            self.say(&format!("{}: {what}: {}: {}", self.name, pass.status, pass.reason));
        }
        match &self.bar {
            Some(bar) => {
                bar.set_position(self.done);
                bar.set_message(what);
            }
            None if self.last_line.elapsed() >= PAUSE => {
                self.last_line = Instant::now();
                let spent = Seconds(self.start.elapsed().as_secs_f64());
                eprintln!("{}: {} of {} passes in {spent}; last: {what}", self.name, self.done, self.total);
            }
            None => {}
        }
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
