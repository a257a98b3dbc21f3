//! Figures that tables and rules can name.

use super::cells::Pass;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Text that lives as long as the process. (An alias, so that serde does not take it for a borrow of its input.)
pub type Text = &'static str;

/// A figure that tables and rules can name.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    #[serde(deserialize_with = "interned")]
    pub name: Text,
    /// Column head and axis label, without the unit.
    #[serde(deserialize_with = "interned")]
    pub label: Text,
    /// `B`, `s`, `1`, or `x` for a ratio.
    #[serde(deserialize_with = "interned")]
    pub unit: Text,
    pub pass: Pass,
    #[serde(default, skip_serializing_if = "is_usual")]
    pub style: FigureStyle,
    /// The metric that has this one's sign, where this one is the size of an error.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "interned_option")]
    pub signed: Option<Text>,
    #[serde(default, skip_serializing_if = "is_usual")]
    pub role: Role,
    /// Whether two memory passes may differ in it: other processes move what is used of a device. (`moves` in older results.)
    #[serde(default, alias = "moves", skip_serializing_if = "is_usual")]
    pub nondeterministic: bool,
}

/// How a figure without a unit is best written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureStyle {
    #[default]
    Number,
    /// In percent.
    Share,
    /// As so many times something.
    Ratio,
}

/// What a metric is there for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A column of tables.
    #[default]
    Column,
    /// Tables leave it out; rules, pictures and whoever reads the samples may want it.
    Detail,
    /// Its label says why PyTorch's bytes are more than ours; a step of ours gives, as the part `REASON.METRIC`, by how many bytes of that
    /// metric they are.
    Reason,
}

/// Reads text that a metric names: constants of experiments in which the same few come again and again, so each is kept once for the life
/// of the process.
fn interned<'de, D: serde::Deserializer<'de>>(input: D) -> std::result::Result<&'static str, D::Error> {
    String::deserialize(input).map(|text| intern(&text))
}

fn interned_option<'de, D: serde::Deserializer<'de>>(input: D) -> std::result::Result<Option<&'static str>, D::Error> {
    Option::<String>::deserialize(input).map(|text| text.map(|text| intern(&text)))
}

/// The one copy of a text that lives as long as the process.
pub fn intern(text: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(same) = known.get(text) {
        return same;
    }
    let own: &'static str = text.to_string().leak();
    known.insert(own);
    own
}

fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Metric {
    const fn new(name: &'static str, label: &'static str, unit: &'static str, pass: Pass) -> Metric {
        Metric { name, label, unit, pass, style: FigureStyle::Number, signed: None, role: Role::Column, nondeterministic: false }
    }

    /// A figure that is counted once, as bytes are.
    pub const fn counted(name: &'static str, label: &'static str, unit: &'static str) -> Metric {
        Metric::new(name, label, unit, Pass::Memory)
    }

    /// A figure that moves from run to run, as times do, and so gets rounds.
    pub const fn timed(name: &'static str, label: &'static str, unit: &'static str) -> Metric {
        Metric::new(name, label, unit, Pass::Time)
    }

    /// The relative error of something that is compared with the baseline's; its name ends in `_error`.
    pub const fn compared(name: &'static str, label: &'static str) -> Metric {
        Metric::new(name, label, "1", Pass::Check)
    }

    /// The same figure under another label.
    pub const fn labelled(self, label: &'static str) -> Metric {
        Metric { label, ..self }
    }

    /// A share, which is written in percent.
    pub const fn share(self) -> Metric {
        Metric { style: FigureStyle::Share, ..self }
    }

    /// A ratio to something that its label names.
    pub const fn ratio(self) -> Metric {
        Metric { style: FigureStyle::Ratio, ..self }
    }

    /// The size of an error, whose sign another metric has.
    pub const fn signed_by(self, signed: Metric) -> Metric {
        Metric { signed: Some(signed.name), ..self }
    }

    /// The unit that the figure is written with: `%` for a share, `x` for a ratio.
    pub fn shown_unit(&self) -> &'static str {
        match self.style {
            FigureStyle::Number => self.unit,
            FigureStyle::Share => "%",
            FigureStyle::Ratio => "x",
        }
    }

    /// A figure for rules and pictures, which tables leave out.
    pub const fn detail(self) -> Metric {
        Metric { role: Role::Detail, ..self }
    }

    /// Why PyTorch's bytes are more than ours; see [`Role::Reason`].
    pub const fn reason(self) -> Metric {
        Metric { role: Role::Reason, ..self }
    }

    /// A count that two passes may differ in, because other processes or the order in which threads allocate move it.
    pub const fn nondeterministic(self) -> Metric {
        Metric { nondeterministic: true, ..self }
    }
}

/// Peak of the bytes that tensors asked for during one step; the same notion on every device.
pub const PEAK: Metric = Metric::counted("requested_peak", "peak memory", "B");
/// What a step needs at its peak beyond what lives between steps: parameters, optimizer state, data.
pub const STEP_PEAK: Metric = Metric::counted("step_peak", "transient peak", "B");
/// Bytes still held for the backward pass when the forward pass is done.
pub const ACTIVATIONS: Metric = Metric::counted("activations", "saved activations", "B");
/// Bytes of the gradients when the backward pass is done.
pub const GRADIENTS: Metric = Metric::counted("gradients", "gradients", "B");
/// Wall-clock or device time of one work item of a step, after warm-up.
pub const TIME: Metric = Metric::timed("time", "time per step", "s");
/// Floating-point operations a second of one operation. The highest in fp32 on a machine is what its other figures are put against.
pub const COMPUTED: Metric = Metric::timed("computed", "rate", "FLOP/s");
/// The least fp32 operations of one work item, where they are known, else 0: beside each time.
pub const LEAST_FLOPS: Metric = Metric::timed("least_flops", "operations, at least", "1");
/// Bytes a second over the link between host and device.
pub const BANDWIDTH: Metric = Metric::timed("bandwidth", "bandwidth", "B/s");
/// The same over what the link is specified for; more than 1 is a timing bug, and the cell invalid.
pub const LINK_SHARE: Metric = Metric::timed("link_share", "share of the link's bandwidth", "1").share();
