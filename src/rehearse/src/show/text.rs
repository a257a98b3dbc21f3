//! The answer on the terminal.

use super::short::advice_is_for;
use super::{cards, time};
use crate::answer::reply::{Reply, smallest};
use crate::answer::{Answer, Checkpoint, Finding, LiveBytes, OnCard, ProcessAnswer, RehearsalVerdict, moment};
use crate::capture::plain::first_line;
use crate::capture::process::{Frame, Trace};
use crate::explore::snapshot::{FailedRequest, OfCard, SnapshotAnswer};
use crate::words::{bytes, place_of, row, share_of, short, written};
use base::units::{Bytes, Seconds, counted};
use sim::trace::{Phase, blocks};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;

/// The whole answer, each line ended.
pub fn answer(answer: &Answer) -> String {
    written(|text| write_answer(text, answer))
}

fn write_answer(text: &mut String, answer: &Answer) -> std::fmt::Result {
    let gpu = &answer.gpu;
    writeln!(text, "\n{}", Reply::of(answer).headline())?;
    if answer.verdict == RehearsalVerdict::DoesNotFit {
        writeln!(text, "  With --what-if: what would make it fit, and the lines to write.")?;
    }
    let used = |worst: &&ProcessAnswer| worst.peak_reserved > 0 || worst.out_of_memory.is_some();
    let Some(worst) = answer.processes.first().filter(used) else {
        return notes(text, answer);
    };
    writeln!(text)?;
    row(text, "peak requested", answer.peak_requested, "what tensors asked for")?;
    row(text, "peak allocated", answer.peak_allocated, "rounded up by the allocator")?;
    row(text, "peak reserved", answer.peak_reserved, "what the allocator had of the GPU")?;
    cards::rows(text, answer)?;
    if answer.headroom >= 0 && answer.verdict.fits() {
        row(text, "headroom", answer.headroom, &format!("of {} ({})", bytes(gpu.memory), gpu.name))?;
    }
    if let Some(needs) = answer.needs_at_least {
        row(text, "needs at least", needs, &smallest(answer))?;
    }
    writeln!(text)?;
    let ran_out = answer.processes.iter().find(|process| process.out_of_memory.is_some());
    place(text, ran_out.unwrap_or(worst))?;
    let then = match worst.out_of_memory {
        None if ran_out.is_some() => format!(", of process {}, which has most", worst.process),
        // Where memory ran out less can be there than was before.
        Some(_) if worst.peak.bytes < worst.peak_allocated => format!(", {} then", bytes(worst.peak.bytes)),
        _ => String::new(),
    };
    table(text, &format!("What fills it{then}"), &worst.peak.categories, usize::MAX, worst.peak.bytes)?;
    let named = |rows: &[LiveBytes], name: &str| rows.iter().find(|row| row.name == name).map_or(0, |row| row.bytes);
    if 2 * named(&worst.peak.categories, "other") > worst.peak.bytes
        && 2 * named(&worst.peak.modules, "elsewhere") > worst.peak.bytes
    {
        writeln!(text, "    'other' is what the script made outside of torch.nn's modules: its lines are below.")?;
    }
    table(text, "by module", &worst.peak.modules, ROWS, worst.peak.bytes)?;
    table(text, "by line", &worst.peak.lines, ROWS, worst.peak.bytes)?;
    account(text, answer)?;
    serves(text, answer)?;
    advice(text, answer)?;
    cards::shared(text, answer)?;
    phases(text, worst)?;
    cached(text, worst)?;
    if let Some(host) = &answer.host {
        writeln!(text, "\n  {}", host.said())?;
    }
    if answer.processes.len() > 1 {
        processes(text, answer)?;
    }
    list(text, worst.findings.iter().filter(|finding| !finding.is_unknown()))?;
    match (&answer.time, &answer.time_missing) {
        (Some(time), _) => time::prediction(text, time)?,
        (None, Some(why)) => writeln!(text, "\n  The time of a step is not predicted: {why}.")?,
        (None, None) => {}
    }
    list(text, worst.findings.iter().filter(|finding| finding.is_unknown()))?;
    notes(text, answer)
}

/// Every byte of the card.
fn account(text: &mut String, answer: &Answer) -> std::fmt::Result {
    let Some(account) = &answer.account else { return Ok(()) };
    writeln!(text, "\n  Of {} on the GPU", bytes(account.total))?;
    for row in &account.rows {
        let lines: Vec<String> = row.lines.iter().map(|of| short(&of.line)).collect();
        writeln!(
            text,
            "    {:>10}  {:>5}  {:<20}  {}",
            bytes(row.bytes),
            share_of(row.bytes, account.total),
            row.part.name(),
            lines.join(", ")
        )?;
    }
    Ok(())
}

/// What a server has of the card.
fn serves(text: &mut String, answer: &Answer) -> std::fmt::Result {
    let Some(serves) = &answer.serves else { return Ok(()) };
    let engine = serves.engine.as_ref().map_or(String::new(), |engine| format!(" of {engine}"));
    writeln!(text, "\n  What serving{engine} takes of {}", bytes(answer.gpu.memory))?;
    for fill in &serves.fills {
        writeln!(text, "    {:>10}  {:>5}  {}", bytes(fill.bytes), share_of(fill.bytes, answer.gpu.memory), fill.what)?;
    }
    for time in &serves.token_times {
        let [step, low, high, floor] = [time.seconds, time.low, time.high, time.floor].map(|seconds| Seconds(seconds).to_string());
        writeln!(
            text,
            "    a token of {} takes {step} (predicted; {low} to {high}); its memory alone {floor}",
            counted(time.requests as usize, "request")
        )?;
    }
    for more in &serves.more {
        writeln!(text, "    {:.1} times as many tokens with {}", more.times, more.what)?;
    }
    Ok(())
}

/// What to change, the first first.
fn advice(text: &mut String, answer: &Answer) -> std::fmt::Result {
    if answer.advice.is_empty() {
        return Ok(());
    }
    let head = advice_is_for(&answer.advice, answer);
    let order = "what costs no time first, what changes results last";
    writeln!(text, "\n  {head}: {order} (--what-if: exact figures, and the lines to paste)")?;
    for one in &answer.advice {
        let time = match one.longer {
            Some(longer) if longer.abs() >= 0.01 => format!(", step {:+.0} %", longer * 100.0),
            _ => String::new(),
        };
        writeln!(text, "    {:<24}  {}: about -{}{time}", one.technique, one.what, bytes(one.frees))?;
    }
    Ok(())
}

/// What is reserved and was never allocated, and what would change that: said where it does, by what PyTorch's allocator itself makes of it.
fn cached(text: &mut String, worst: &ProcessAnswer) -> std::fmt::Result {
    let (idle, reserved) = (worst.fragmentation.reserved_beyond_allocated, worst.peak_reserved);
    if reserved == 0 {
        return Ok(());
    }
    write!(text, "\n  Of what was reserved, {} ({}) was never allocated at once", bytes(idle), share_of(idle, reserved))?;
    let saves = worst.fragmentation.reserved_if_expandable.map(|expandable| (expandable, reserved - expandable));
    match saves.filter(|(_, saved)| *saved >= 64 << 20 && *saved * 20 >= reserved) {
        Some((expandable, _)) => {
            writeln!(text, ". With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True alone it would reserve {}.", bytes(expandable))
        }
        None => writeln!(text, "."),
    }
}

fn place(text: &mut String, worst: &ProcessAnswer) -> std::fmt::Result {
    let peak = &worst.peak;
    let phase = moment(peak.phase, peak.step, peak.pass);
    match &worst.out_of_memory {
        Some(oom) => writeln!(text, "  Out of memory {phase}, allocating {} ({} free).", bytes(oom.tried), bytes(oom.free))?,
        // A benchmark of kernels loads no more than it does anything else.
        None if worst.exception.is_none() && worst.phases.iter().all(|row| row.phase == Phase::Load.name()) => {
            writeln!(text, "  The peak is outside of any model.")?;
        }
        // There are backward passes, and nothing makes a step.
        None if worst.steps == 0 && worst.exception.is_none() && peak.step > 0 && ["forward", "backward"].contains(&peak.phase) => {
            writeln!(text, "  The peak is in a {} pass.", peak.phase)?;
        }
        None => writeln!(text, "  The peak is {phase}.")?,
    }
    for (word, line) in [("at", &peak.line), ("from", &peak.called_from), ("backward of", &peak.forward_line)] {
        if let Some(line) = line {
            writeln!(text, "    {word:<7} {}", place_of(line))?;
        }
    }
    let within: Vec<&str> = [&peak.module, &peak.operator].into_iter().flatten().map(String::as_str).collect();
    if within.is_empty() { Ok(()) } else { writeln!(text, "    in      {}", within.join(", ")) }
}

/// With each setting of the allocator the least memory that would do; or why that is not known.
type NeedsBySetting = [(String, Result<i64, String>)];

/// What a snapshot of a real GPU's allocator says, and what it would need, each line ended.
pub fn of_snapshot(of: &SnapshotAnswer) -> String {
    written(|text| write_snapshot(text, &of.answer, &of.capture.traces[0], of.about(), &of.needs))
}

fn write_snapshot(
    text: &mut String,
    answer: &Answer,
    trace: &Trace,
    about: Option<&OfCard>,
    needs: &NeedsBySetting,
) -> std::fmt::Result {
    let Some(worst) = answer.processes.first() else { return Ok(()) };
    let (device, gpu) = (worst.device, &answer.gpu);
    let (allocated, reserved) = (bytes(worst.peak_allocated), bytes(worst.peak_reserved));
    let most = format!("{allocated} allocated and {reserved} reserved at most");
    writeln!(text, "\nGPU {device}: {most}, in {} events of PyTorch's allocator.", about.map_or(0, |card| card.events))?;
    if let (Some((_, Ok(least))), Some(needs)) = (needs.first(), answer.needs_at_least) {
        let verdict = if *least > gpu.memory { "would NOT FIT" } else { "would fit" };
        let card = format!("{} ({})", gpu.name, bytes(gpu.memory));
        writeln!(text, "It {verdict} {card}: it needs at least {}, the CUDA context included.", bytes(needs))?;
    }
    let failed = about.map_or(&[][..], |card| &card.failed);
    if let Some(FailedRequest { bytes: asked, free }) = failed.last() {
        let times = if failed.len() > 1 { format!("{} times; the last time", failed.len()) } else { "once:".to_string() };
        writeln!(text, "Memory ran out {times} {} were asked for, and {} were free.", bytes(*asked), bytes(*free))?;
    }
    writeln!(text)?;
    row(text, "peak requested", worst.peak_requested, "what tensors asked for")?;
    row(text, "peak allocated", worst.peak_allocated, "rounded up to 512 bytes; more where the allocator did not split a block")?;
    row(text, "peak reserved", worst.peak_reserved, "what the allocator had of the GPU")?;
    match &worst.peak.line {
        Some(line) => writeln!(text, "\n  The peak is at {}.", place_of(line))?,
        None => writeln!(text, "\n  The peak is where no line of Python was recorded, as in a backward pass.")?,
    }
    if let Some(line) = &worst.peak.called_from {
        writeln!(text, "    from    {}", place_of(line))?;
    }
    table(text, "What fills it, by line", &worst.peak.lines, 2 * ROWS, worst.peak.bytes)?;
    let before = about.map_or(0, |card| card.before);
    if before > 0 {
        writeln!(
            text,
            "\n  {} were there before the history began: they are 'elsewhere' above. torch.cuda.memory._record_memory_history() earlier, \
            or with larger max_entries, tells their lines.",
            bytes(before)
        )?;
    }
    kept(text, trace, device)?;
    cached(text, worst)?;
    let context = format!("{} of CUDA context included", bytes(gpu.context));
    writeln!(text, "\n  The least memory that these allocations need, {context}, with PyTorch's allocator set")?;
    for (setting, least) in needs {
        let least = match least {
            Ok(least) => bytes(*least),
            Err(why) => format!("not known: {}", first_line(why)),
        };
        writeln!(text, "    {setting:<32} {least}")?;
    }
    Ok(())
}

/// What grows: lines that made blocks over most of the history which are still there in the end.
fn kept(text: &mut String, trace: &Trace, device: u16) -> std::fmt::Result {
    // Of each line its bytes and blocks, and the first and the last of the events that made them.
    let mut lines: HashMap<&Frame, (i64, usize, usize, usize)> = HashMap::new();
    for block in blocks(&trace.events).iter().filter(|block| block.device == device && block.freed().is_none()) {
        let made = block.made();
        let Some(line) = trace.line(trace.events[made].stack) else { continue };
        let (size, count, _, last) = lines.entry(line).or_insert((0, 0, made, made));
        (*size, *count, *last) = (*size + block.bytes, *count + 1, made);
    }
    let mut grows: Vec<_> = lines.into_iter().filter(|(_, (.., first, last))| (last - first) * 2 > trace.events.len()).collect();
    grows.sort_by_key(|(_, (size, ..))| Reverse(*size));
    if !grows.is_empty() {
        writeln!(text, "\n  What grows: lines that made blocks all along which are still there in the end")?;
    }
    for (line, (size, count, ..)) in grows.iter().take(ROWS) {
        writeln!(text, "    {:>10}  in {count} blocks  {}", bytes(*size), place_of(line))?;
    }
    Ok(())
}

const ROWS: usize = 6;

fn table(text: &mut String, title: &str, held: &[LiveBytes], rows: usize, total: i64) -> std::fmt::Result {
    writeln!(text, "\n  {title}")?;
    held.iter()
        .take(rows)
        .try_for_each(|row| writeln!(text, "    {:>10}  {:>5}  {}", bytes(row.bytes), share_of(row.bytes, total), short(&row.name)))
}

fn phases(text: &mut String, worst: &ProcessAnswer) -> std::fmt::Result {
    writeln!(text, "\n  {:<6} {:<10} {:>14} {:>14} {:>14}", "step", "phase", "peak", "at its end", "reserved")?;
    // The first step and the last one: those between are as the last.
    let last = worst.phases.iter().map(|row| row.step).max().unwrap_or(0);
    for row in worst.phases.iter().filter(|row| row.step <= 1 || row.step == last) {
        let step = if row.step == 0 { "-".to_string() } else { row.step.to_string() };
        let (peak, end, reserved) = (bytes(row.peak_allocated), bytes(row.allocated), bytes(row.reserved));
        writeln!(text, "  {step:<6} {:<10} {peak:>14} {end:>14} {reserved:>14}", row.phase)?;
    }
    Ok(())
}

fn processes(text: &mut String, answer: &Answer) -> std::fmt::Result {
    writeln!(text, "\n  Each process on each of its GPUs, the worst first; the tables above are of the first:")?;
    writeln!(text, "    {:<10} {:<6} {:<6} {:>14} {:>14}", "process", "rank", "GPU", "allocated", "reserved")?;
    for process in &answer.processes {
        let rank = process.rank.map_or("-".to_string(), |rank| rank.to_string());
        let (allocated, reserved) = (bytes(process.peak_allocated), bytes(process.peak_reserved));
        let is_it = |of: &OnCard| (of.process, of.device) == (process.process, Some(process.device));
        let card =
            answer.cards.iter().find(|card| card.processes.iter().any(is_it)).map_or(process.device.into(), |card| card.card);
        writeln!(text, "    {:<10} {rank:<6} {card:<6} {allocated:>14} {reserved:>14}", process.process)?;
    }
    Ok(())
}

/// The first rows of each, and how many more there are.
fn list<'a>(text: &mut String, findings: impl Iterator<Item = &'a Finding>) -> std::fmt::Result {
    for Finding { title, rows, .. } in findings {
        writeln!(text, "\n  {title}")?;
        rows.iter().take(ROWS).try_for_each(|row| writeln!(text, "    {row}"))?;
        if rows.len() > ROWS {
            writeln!(text, "    and at {} more places", rows.len() - ROWS)?;
        }
    }
    Ok(())
}

/// What the script wrote and removed, and what the job takes of the disk.
fn held_back(text: &mut String, answer: &Answer) -> std::fmt::Result {
    const NAMED: usize = 3;
    const LARGE: u64 = 1 << 20;
    let Some(held) = &answer.held_back else { return Ok(()) };
    let named = |names: Vec<String>| match names.len().saturating_sub(NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names[..NAMED].join(", ")),
    };
    let mut lines = Vec::new();
    if !held.files.is_empty() {
        let names = named(held.files.iter().map(|file| short(&file.path)).collect());
        let kept = held.kept_in.as_ref().map(|folder| format!("they are in {}", folder.display()));
        let after = kept.unwrap_or_else(|| "--keep-writes DIR keeps them".to_string());
        let what = format!("{} ({}) that the script wrote", counted(held.files.len(), "file"), Bytes(held.bytes));
        lines.push(format!("Held back, {}: {what}: {names}; {after}.", held.by.known()));
    }
    if !held.removed.is_empty() {
        let removed = named(held.removed.iter().map(|path| short(path)).collect());
        lines.push(format!("Still there, though the script removed or moved it: {removed}."));
    }
    let sent = |one: &crate::capture::held::Sent| {
        format!("{} to {} ({})", Bytes(one.bytes), one.to, counted(one.connections, "connection"))
    };
    if !held.sent.is_empty() {
        lines.push(format!("Sent over the network, which is not held back: {}.", named(held.sent.iter().map(sent).collect())));
    }
    let mut disk = Vec::new();
    if let Some(Checkpoint { bytes, has_state }) =
        answer.processes.first().map(|worst| worst.checkpoint).filter(|of| of.bytes >= LARGE)
    {
        let what = if has_state { "parameters, buffers and optimizer state" } else { "parameters and buffers" };
        disk.push(format!("a checkpoint of {what} takes about {}", Bytes(bytes)));
    }
    let large: Vec<u64> = held.files.iter().map(|file| file.bytes).filter(|bytes| *bytes >= LARGE).collect();
    if !large.is_empty() {
        disk.push(format!(
            "the script left {} of 1 MiB or more, {} in all",
            counted(large.len(), "file"),
            Bytes(large.iter().sum())
        ));
    }
    if !disk.is_empty() {
        lines.push(format!("Disk: {}.", disk.join("; ")));
    }
    if !lines.is_empty() {
        writeln!(text)?;
    }
    lines.iter().try_for_each(|line| writeln!(text, "  {line}"))
}

fn notes(text: &mut String, answer: &Answer) -> std::fmt::Result {
    held_back(text, answer)?;
    if !answer.notes.is_empty() {
        writeln!(text)?;
    }
    answer.notes.iter().try_for_each(|note| writeln!(text, "  Note: {}", note.text))
}
