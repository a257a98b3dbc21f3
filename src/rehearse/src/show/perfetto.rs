//! The timeline as <https://ui.perfetto.dev> and `chrome://tracing` open it.
//!
//! Time on their axis is the allocator's: one microsecond is one event, since nothing ran that could be timed. The
//! kernels of a predicted step are a process of their own, on an axis of time.

use super::course::{LAYERS, MOST_EVENTS, View, layer, who};
use crate::answer::meters;
use crate::answer::time::Prediction;
use anyhow::Result;
use serde_json::{Value, json};
use sim::trace::{Kind, Phase};
use std::io::Write;

/// With a prediction, the kernels of a step are a process of their own, each stream a thread, on an axis of predicted time.
pub fn write(view: &View, time: Option<&Prediction>, out: &mut dyn Write) -> Result<()> {
    let process = view.process.process;
    let end = view.events.len();
    let from = end.saturating_sub(MOST_EVENTS);
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":")?;
    let note = "one microsecond of the axis is one event of the allocator's history; nothing ran that could be timed";
    serde_json::to_writer(&mut *out, &json!({"time": note, "first_event": from, "events": end}))?;
    writeln!(out, ",\"traceEvents\":[")?;
    let named = |name: &str, text: &str| json!({"ph": "M", "pid": process, "tid": 1, "name": name, "args": {"name": text}});
    serde_json::to_writer(&mut *out, &named("process_name", &format!("vramlab rehearse, {}", who(view.process))))?;
    let mut put = |event: Value| -> Result<()> {
        out.write_all(b",\n")?;
        Ok(serde_json::to_writer(&mut *out, &event)?)
    };
    put(named("thread_name", "steps and phases"))?;
    let slice = |name: &str, events: &std::ops::Range<usize>| {
        let start = events.start.max(from);
        (events.end > start).then(
            || json!({"ph": "X", "pid": process, "tid": 1, "cat": "phase", "name": name, "ts": start, "dur": events.end - start}),
        )
    };
    let mut steps: Vec<(u32, std::ops::Range<usize>)> = Vec::new();
    for (step, part) in view.phases() {
        match steps.last_mut() {
            Some((last, all)) if *last == step => all.end = part.events.end,
            _ => steps.push((step, part.events.clone())),
        }
    }
    // A step before its phases, so that they lie in it.
    let named_steps = steps.iter().filter(|(step, _)| *step > 0).filter_map(|(step, all)| slice(&format!("step {step}"), all));
    named_steps.chain(view.phases().filter_map(|(_, part)| slice(part.phase?, &part.events))).try_for_each(&mut put)?;
    let counter =
        |name: &str, at: usize, bytes: i64| json!({"ph": "C", "pid": process, "name": name, "ts": at, "args": {"bytes": bytes}});
    let mut before = [-1; LAYERS.len() + 2];
    let device = view.process.device;
    for ((moment, event), meter) in view.moments().zip(view.events).zip(meters(view.trace, device)).skip(from) {
        if event.device == device && event.kind == Kind::OutOfMemory {
            put(json!({
                "ph": "i", "s": "p", "pid": process, "tid": 1, "cat": "memory", "name": "out of memory", "ts": moment.event,
                "args": {"tried": event.bytes, "free": event.address},
            }))?;
        }
        let totals = [("allocated", moment.total()), ("reserved", meter.reserved)];
        let now = LAYERS.iter().map(|(name, _)| *name).zip(moment.layers).chain(totals);
        for ((name, bytes), before) in now.zip(&mut before) {
            if *before != bytes {
                put(counter(name, moment.event, bytes))?;
                *before = bytes;
            }
        }
    }
    places(view, from, &mut put)?;
    kernels(time, put)?;
    Ok(writeln!(out, "\n]}}")?)
}

/// Blocks that have a mark of their own.
const LARGEST: usize = 200;

/// What was made where: a mark for each block would hide the phases; the largest ones are enough to find one's way.
fn places(view: &View, from: usize, mut put: impl FnMut(Value) -> Result<()>) -> Result<()> {
    let mut largest: Vec<_> = view.blocks.iter().filter(|block| block.made() >= from).collect();
    largest.sort_by_key(|block| (-block.rounded, block.made()));
    largest.into_iter().take(LARGEST).try_for_each(|block| {
        let event = &view.events[block.made()];
        let stack = if event.phase == Phase::Backward && event.origin != 0 { event.origin } else { event.stack };
        let line = view.trace.line(stack).map(|frame| format!("{}:{} ({})", frame.file, frame.line, frame.function));
        put(json!({
            "ph": "i", "s": "t", "pid": view.process.process, "tid": 1, "cat": "memory", "ts": block.made(),
            "name": format!("{} of {}", base::units::Bytes(block.rounded.unsigned_abs()), LAYERS[layer(block.category)].0),
            "args": {"bytes": block.bytes, "line": line, "operator": view.trace.operators.get(&u32::from(event.operator))},
        }))
    })
}

/// The kernels of a predicted step.
fn kernels(time: Option<&Prediction>, mut put: impl FnMut(Value) -> Result<()>) -> Result<()> {
    // No process has this number.
    let predicted = u32::MAX;
    time.iter().flat_map(|time| &time.spans).enumerate().try_for_each(|(at, span)| {
        let stream = u32::from(span.card) * 4 + span.lane as u32 + 1;
        if at == 0 {
            let name = "a step on the GPU (predicted; microseconds of this axis are of time)";
            put(json!({"ph": "M", "pid": predicted, "tid": stream, "name": "process_name", "args": {"name": name}}))?;
        }
        put(json!({
            "ph": "X", "pid": predicted, "tid": stream, "cat": "predicted", "name": span.operator,
            "ts": span.begin * 1e6, "dur": span.seconds * 1e6,
            "args": {
                "predicted": true,
                "module": span.module,
                "line": span.line.as_ref().map(|line| format!("{}:{} ({})", line.file, line.line, line.function)),
            },
        }))
    })
}
