//! What an experiment's own tests need: to check a cell, rightly and with the technique broken on purpose, and to count it.

use super::{Cell, Grid, Has, Level, Protocol, Step};
use crate::measure::{self, Bench, Found};
use crate::runner::{Python, for_reference};
use anyhow::Result;
use record::protocol::{Metric, Platform};
use record::results::Sample;
pub use record::results::Status;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::Device;
use torch::Cpu;
use torch::dry::{self, Dry};

/// Where a test's cells are set up.
const BENCH: Bench = Bench { device: Device::Cpu, platform: Platform::Cpu, seed: 1 };

/// The random state and the meter are the process's, so what tests run takes turns; it computes with one thread, as a check does.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    tch::set_num_threads(1);
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What came of a check.
pub struct Checked(Found);

impl Checked {
    /// The relation that the protocol expects was there.
    pub fn holds(self) {
        assert_eq!((self.0.status, self.0.reason.as_str()), (Status::Ok, ""));
    }

    /// The check saw what is broken and said so in these words.
    pub fn sees(self, words: &str) {
        assert!(
            self.0.status.is_failure() && self.0.reason.contains(words),
            "what is broken passed, or for another reason: {:?}",
            self.0
        );
    }
}

/// Checks a cell, planned or not, against the relation and the baseline that its grid has for it.
pub fn check<C: Cell>(protocol: &Protocol, cell: C) -> Checked {
    broken(protocol, cell, |bench| grid(protocol, &cell).step(cell, bench))
}

/// As [`check`], with another step in the place of the cell's own: one that breaks the technique.
pub fn broken<C: Cell>(protocol: &Protocol, cell: C, set_up: impl Fn(&Bench) -> Result<Step>) -> Checked {
    let grid = grid(protocol, &cell);
    let baseline = grid.baseline_of(&cell).expect("the grid compares something");
    compared(grid, cell, set_up, |bench| grid.step(baseline, bench))
}

/// As [`check`], with another step in the place of the baseline's: where PyTorch in Python runs that, it stands in for it.
pub fn beside<C: Cell>(protocol: &Protocol, cell: C, baseline: impl Fn(&Bench) -> Result<Step>) -> Checked {
    let grid = grid(protocol, &cell);
    compared(grid, cell, |bench| grid.step(cell, bench), baseline)
}

fn compared<C: Cell>(
    grid: &Grid<C>,
    cell: C,
    set_up: impl Fn(&Bench) -> Result<Step>,
    set_up_baseline: impl Fn(&Bench) -> Result<Step>,
) -> Checked {
    let _turn = alone();
    let baseline = grid.baseline_of(&cell).expect("the grid compares something");
    let relation = grid.relation_of(&cell).expect("the grid has a check");
    let prepare = |plain: &record::protocol::PlainCell, bench: &Bench| -> Result<Step> {
        if *plain == baseline.plain() && baseline != cell { set_up_baseline(bench) } else { set_up(bench) }
    };
    let found = measure::check(&relation, &prepare, &cell.plain(), &baseline.plain(), &BENCH);
    Checked(found.unwrap_or_else(|e| Found::failed(&e)))
}

fn grid<'a, C: Cell>(protocol: &'a Protocol, cell: &C) -> &'a Grid<C> {
    protocol.grid_of(cell).expect("a grid of such cells")
}

/// Figures of a memory pass.
pub struct Counted(Vec<Sample>);

impl Counted {
    /// A figure that the step gave.
    pub fn figure(&self, metric: Metric) -> f64 {
        self.get(metric).unwrap_or_else(|| panic!("no {} in {:?}", metric.name, self.0))
    }

    pub fn get(&self, metric: Metric) -> Option<f64> {
        self.detail(metric.name)
    }

    /// A figure by the name that it has in results.
    pub fn detail(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|sample| sample.metric == name).map(|sample| sample.value)
    }
}

/// Counts the bytes of a cell, planned or not.
pub fn count<C: Cell>(protocol: &Protocol, cell: C) -> Counted {
    let _turn = alone();
    let grid = grid(protocol, &cell);
    let prepare = |_: &record::protocol::PlainCell, bench: &Bench| -> Result<Step> { grid.step(cell, bench) };
    // What the setup allocates is counted, too.
    let meter = Cpu::new(None);
    let mut step = BENCH.set_up(&prepare, &cell.plain()).expect("the cell is set up");
    Counted(measure::memory(&mut step, &meter).expect("the step runs"))
}

/// A cell with another level: `with(cell, Recipe::Add)`.
pub fn with<L: Level, C: Has<L>>(cell: C, level: L) -> C {
    cell.with(level)
}

/// What a script of [`assert_python_says`] begins with: `check` gives what a check of a cell says, `ok` or `invalid`, and `memory` a cell's
/// counted figures on the CPU.
const PRELUDE: &str = r#"
import sys
sys.path.insert(0, "experiments/python")
import lab, meter, torch
torch.set_num_threads(1)

def memory(experiment, cell):
    meter.open_library(sys.argv[1])
    spec = {"cell": cell, "memory_limit": None, "exchange": None}
    rows = lab._memory(experiment, spec, lab.Bench(torch.device("cpu"), seed=1, threads=1))[2]
    return {metric: value for metric, unit, value, _ in rows}

def check(experiment, cell, baseline, tolerance=0.0, **expected):
    expected = expected or {"Equal": {"tolerance": tolerance}}
    spec = {"cell": cell, "baseline": baseline, "expected": expected, "exchange": None}
    return lab._check(experiment, spec, lab.Bench(torch.device("cpu"), seed=1, threads=1))[0]
"#;

/// Runs a script, to which an experiment's `step.py` is a module of the experiment's name, in the Python whose PyTorch this is, and
/// compares what it prints.
pub fn assert_python_says(experiment: &str, script: &str, expected: &str) {
    let script = format!("{PRELUDE}sys.path.insert(0, 'experiments/{experiment}')\nimport step as {experiment}\n{script}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = Python::program();
    let meter = for_reference(1).expect("the meter is kept in memory").meter;
    let output = Command::new(&python).args(["-c", &script]).arg(meter).current_dir(root).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", python.display()));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", String::from_utf8_lossy(&output.stderr));
}

/// A test of a `step.py`, as [`assert_python_says`] has it: `python_test! { name_of_the_test: "experiment", "script", "what it prints" }`.
#[macro_export]
macro_rules! python_test {
    ($(#[$doc:meta])* $name:ident: $experiment:literal, $script:expr, $expected:expr) => {
        $(#[$doc])*
        #[cfg(test)]
        #[test]
        fn $name() {
            $crate::lab::testing::assert_python_says($experiment, $script, $expected);
        }
    };
}

/// The simulated GPU for a test. A process is dry from its start, so the test of this path, which begins with its program's name, runs again in a child:
/// the device is given there, and none here, when the child has passed.
pub fn dry(test: &str) -> Option<Dry> {
    let test = test.split_once("::").map_or(test, |(_, within)| within);
    const IN_CHILD: &str = "VRAMLAB_TEST_IS_DRY";
    if std::env::var_os(IN_CHILD).is_some() {
        return Some(Dry::open().expect("the simulated GPU opens"));
    }
    let mut child = Command::new(std::env::current_exe().expect("a test knows its program"));
    child.args([test, "--exact", "--nocapture"]).env(IN_CHILD, "1").env_remove("PYTORCH_ALLOC_CONF");
    // As a process that measures on the CPU hides real GPUs.
    child.env("CUDA_VISIBLE_DEVICES", "");
    dry::prepare(&mut child, 24 << 30).expect("the simulated GPU is there");
    let output = child.output().expect("the child starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    None
}
