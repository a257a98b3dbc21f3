use super::{Bound, Evidence, JudgedCells, RuleKind, RuleSubject};
use crate::protocol::{Metric, PEAK, PlainCell, TIME};
use crate::results::Samples;
use base::stats::Interval;
use base::units::change;
use serde::{Deserialize, Serialize};

/// What a technique did to whole programs on this machine's GPU: rows of `records/gpus`, each over the program without it, once measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedRule {
    /// As `--what-if` calls it.
    pub technique: String,
    pub figure: RecordedFigure,
    pub confirm: Bound,
    pub refute: Bound,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordedFigure {
    /// The most that was reserved.
    Memory,
    /// Of a step.
    Time,
}

/// One program with a technique on one card, over itself without it: as it was predicted, and as it was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedProgram {
    /// The machine's name, as that of its results.
    pub machine: &'static str,
    pub program: String,
    pub technique: String,
    /// Reserved memory: predicted, measured.
    pub memory: (f64, f64),
    /// Time of a step: predicted, measured.
    pub time: (f64, f64),
}

const H200: &str = include_str!("../../../../records/gpus/h200-what-if.csv");

/// Every program of `records/gpus` that ran with a technique and without it.
pub fn recorded_programs() -> Vec<RecordedProgram> {
    let rows: Vec<csv::StringRecord> = csv::Reader::from_reader(H200.as_bytes()).into_records().filter_map(Result::ok).collect();
    let number = |row: &csv::StringRecord, column: usize| row.get(column)?.parse::<f64>().ok();
    let found = |row: &csv::StringRecord| {
        let (program, technique) = (row.get(0)?, row.get(1).filter(|name| !name.is_empty())?);
        let plain = rows.iter().find(|other| other.get(0) == Some(program) && other.get(1) == Some(""))?;
        let over = |column| Some(number(row, column)? / number(plain, column)?);
        // The columns: peak reserved and its measured one, seconds and theirs.
        let (memory, time) = ((over(3)?, over(5)?), (over(6)?, over(7)?));
        Some(RecordedProgram { machine: "nvidia-h200", program: program.into(), technique: technique.into(), memory, time })
    };
    rows.iter().filter_map(found).collect()
}

impl RecordedProgram {
    fn cell(&self) -> PlainCell {
        PlainCell::new(vec![("program".into(), self.program.clone()), ("technique".into(), self.technique.clone())])
    }
}

impl RuleKind for RecordedRule {
    fn about(&self) -> RuleSubject<'_> {
        let metric = match self.figure {
            RecordedFigure::Memory => PEAK.name,
            RecordedFigure::Time => TIME.name,
        };
        RuleSubject { of: "", metrics: vec![metric], bounds: Some((self.confirm, self.refute)) }
    }

    fn reads_cells(&self) -> bool {
        false
    }

    fn is_relative(&self) -> bool {
        true
    }

    fn is_there(&self, machine: &str) -> bool {
        recorded_programs().iter().any(|row| row.machine == machine && row.technique == self.technique)
    }

    fn evaluate(&self, cells: &JudgedCells, _: &Samples, evidence: &mut Evidence) {
        for row in recorded_programs().iter().filter(|row| row.machine == cells.machine && row.technique == self.technique) {
            let (_, measured) = if self.figure == RecordedFigure::Time { row.time } else { row.memory };
            evidence.compare(row.cell(), None, Some((Interval::exact(measured), 1)), (self.confirm, self.refute));
        }
    }

    fn effects_in_words(&self, _metrics: &[Metric], low: f64, high: f64) -> String {
        format!("{} in whole programs", change(low, high))
    }

    fn comparison(&self, metrics: &[Metric]) -> String {
        format!("{} of a program with {} relative to itself without it (records/gpus)", self.subject(metrics), self.technique)
    }
}
