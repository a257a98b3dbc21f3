//! Axes: where a value lies in pixels, and which values are written beside it.

use base::units::{binary_unit, tick};

/// An axis from one pixel to another, logarithmic or linear.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub low: f64,
    pub high: f64,
    is_linear: bool,
    pub from: i32,
    pub to: i32,
}

impl Scale {
    /// A logarithmic axis over all positive values, with some room at both ends; at least a factor of `least` wide.
    pub fn over(values: impl Iterator<Item = f64>, least: f64, from: i32, to: i32) -> Scale {
        let (low, high) =
            values.filter(|v| v.is_finite() && *v > 0.0).fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 1.0) };
        let room = (high / low).powf(0.06).max((least / (high / low)).sqrt());
        Scale { low: low / room, high: high * room, is_linear: false, from, to }
    }

    pub fn linear(low: f64, high: f64, from: i32, to: i32) -> Scale {
        Scale { low, high, is_linear: true, from, to }
    }

    pub fn at(&self, value: f64) -> i32 {
        let share = match self.is_linear {
            true => (value - self.low) / (self.high - self.low),
            false => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + (share * f64::from(self.to - self.from)).round() as i32
    }

    /// Round values on a logarithmic axis with their labels, in the unit `B`, `s`, `1`, or `x` for ratios.
    pub fn ticks(&self, unit: &str) -> Vec<(i32, String)> {
        let values = if unit == "B" { binary_ticks(self.low, self.high) } else { decimal_ticks(self.low, self.high) };
        values.into_iter().map(|value| (self.at(value), tick(value, unit))).collect()
    }

    /// Round values on a linear axis, some `count` of them.
    pub fn linear_ticks(&self, count: i32) -> Vec<f64> {
        multiples(nice_step((self.high - self.low) / f64::from(count)), self.low, self.high)
    }

    /// Round in binary units, at most six, on an axis from 0.
    pub fn linear_binary_ticks(&self) -> Vec<f64> {
        multiples((self.high / 5.0).log2().ceil().exp2().max(1.0), 0.0, self.high)
    }
}

/// 1, 2 or 5 times a power of ten, not below `least`; not 2.5 times, whose multiples are no whole per cents.
fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= least * 0.999).unwrap_or(power * 10.0)
}

/// The multiples of a step within a range, twelve at most.
fn multiples(step: f64, low: f64, high: f64) -> Vec<f64> {
    let first = (low / step).ceil() as i64;
    (first..).map(|i| i as f64 * step).take_while(|value| *value <= high).take(12).collect()
}

const MOST_TICKS: usize = 7;
const FEWEST_TICKS: usize = 3;

/// Of several rows of candidates, densest first, the first that is not too dense; evenly spaced ones where that is too sparse.
fn choose(rows: impl Iterator<Item = Vec<f64>>, low: f64, high: f64, even_unit: f64) -> Vec<f64> {
    let within = |row: Vec<f64>| row.into_iter().filter(|v| *v >= low * 0.999 && *v <= high * 1.001).collect::<Vec<_>>();
    let fitting = rows.map(within).find(|row| row.len() <= MOST_TICKS).unwrap_or_default();
    if fitting.len() >= FEWEST_TICKS {
        return fitting;
    }
    let even = multiples(nice_step((high - low) / even_unit / 5.0) * even_unit, low, high);
    even.into_iter().filter(|value| *value > 0.0).collect()
}

fn binary_ticks(low: f64, high: f64) -> Vec<f64> {
    let rows = (1..=8).map(|stride| (0..64).step_by(stride).map(|e| 2f64.powi(e)).collect());
    choose(rows, low, high, binary_unit(low))
}

fn decimal_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = |multiples: &'static [f64], stride: usize| -> Vec<f64> {
        (-18..=18).step_by(stride).flat_map(|e| multiples.iter().map(move |m| m * 10f64.powi(e))).collect()
    };
    let dense = [decades(&[1.0, 2.0, 5.0], 1), decades(&[1.0, 3.0], 1)];
    let rows = dense.into_iter().chain([1, 2, 3, 6, 9].into_iter().map(|stride| decades(&[1.0], stride)));
    choose(rows, low, high, 1.0)
}
