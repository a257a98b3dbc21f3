//! What the script read and nobody computed, and what a library allocates and nobody knows.

use super::{Finding, FindingKind};
use crate::capture::process::{Frame, Trace};
use crate::words::place_or_not;
use base::order::{distinct, grouped};
use serde::Serialize;
use sim::trace::{Event, Kind};

/// A value that the script read and nobody computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct PlaceholderValue {
    pub operator: String,
    pub line: Option<Frame>,
    pub times: usize,
    /// Where it decided a size, or is a count: elements that were taken, the least and the most, and the most that there could have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<PlaceholderSize>,
}

/// Elements of results whose shape hangs on values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct PlaceholderSize {
    pub least: i64,
    pub most: i64,
    pub possible: i64,
}

/// Whether a decision of the script may hang on what is read there: Dynamo prints what it guards, Inductor keeps what it tunes with.
pub fn may_decide(trace: &Trace, stack: u32) -> bool {
    const BESIDE: [&str; 2] = ["/torch/_dynamo/convert_frame.py", "/torch/_inductor/runtime/triton_heuristics.py"];
    !trace.stack(stack).any(|frame| BESIDE.iter().any(|file| frame.file.ends_with(file)))
}

/// An operator whose library takes memory of its own that nobody knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Uncounted {
    pub operator: String,
    pub library: String,
    pub line: Option<Frame>,
}

pub fn placeholders(trace: &Trace) -> Vec<PlaceholderValue> {
    let decides = |event: &&Event| event.kind == Kind::Placeholder && may_decide(trace, event.stack);
    let read = trace.events.iter().filter(decides).map(|event| {
        let operator = trace.operators.get(&event.operator.into()).cloned().unwrap_or_default();
        let (taken, possible) = (event.rounded, i64::try_from(event.address).unwrap_or(0));
        let size = (possible > 0).then_some(PlaceholderSize { least: taken, most: taken, possible });
        ((operator, trace.line(event.stack).cloned()), size)
    });
    let widest = |a: PlaceholderSize, b: PlaceholderSize| PlaceholderSize {
        least: a.least.min(b.least),
        most: a.most.max(b.most),
        possible: a.possible.max(b.possible),
    };
    let value = |((operator, line), sizes): (_, Vec<Option<PlaceholderSize>>)| {
        let times = sizes.len();
        let size = sizes.into_iter().reduce(|a, b| a.zip(b).map(|(a, b)| widest(a, b))).flatten();
        PlaceholderValue { operator, line, times, size }
    };
    grouped(read).into_iter().map(value).collect()
}

/// Such an operator allocates its results, at least.
pub fn uncounted(trace: &Trace) -> Vec<Uncounted> {
    distinct(trace.events.iter().filter(|event| event.kind == Kind::Alloc).filter_map(|event| {
        let library = trace.uncounted.get(&event.operator.into())?.clone();
        let operator = trace.operators.get(&event.operator.into()).cloned().unwrap_or_default();
        Some(Uncounted { operator, library, line: trace.line(event.stack).cloned() })
    }))
}

pub fn find(placeholders: &[PlaceholderValue]) -> Option<Finding> {
    let times = |times| if times > 1 { format!(", {times} times") } else { String::new() };
    let value = |row: &PlaceholderValue| {
        format!("{} at {}{}{}", row.operator, place_or_not(row.line.as_ref()), times(row.times), size_of(row.size))
    };
    let title = "Nothing is computed: where the script read a value, it got a placeholder, as from a healthy run:";
    let place = placeholders.first().and_then(|value| value.line.as_ref());
    Some(Finding::new(FindingKind::Placeholders, title, placeholders.iter().map(value))?.of(0, place))
}

/// What was taken for a size that nobody computed, and its range.
fn size_of(size: Option<PlaceholderSize>) -> String {
    match size {
        Some(PlaceholderSize { least, most, possible }) if least < most => {
            format!(", taken as {least} to {most}, could be 0 to {possible}")
        }
        Some(PlaceholderSize { most, possible, .. }) => format!(", taken as {most}, could be 0 to {possible}"),
        None => String::new(),
    }
}
