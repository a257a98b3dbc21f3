//! The answer on the terminal.

use super::words::{self, bytes, others_said, place_of, place_or_not, row, share_of, short, streams_said, written};
use super::{cards, time};
use crate::answer::{
    Answer, Caught, Checkpoint, Failure, HostMemory, Leftover, LiveBytes, NeedlessGraphs, OnCard, PlaceholderSize,
    PlaceholderValue, ProcessAnswer, RehearsalVerdict, Uncounted, moment,
};
use crate::capture::plain::{first_line, on_one_line};
use crate::capture::process::{Frame, PlaceholderBranch, Retainer, SkippedCode, Trace};
use crate::capture::session::Capture;
use base::units::{Bytes, counted};
use serde::{Deserialize, Serialize};
use sim::trace::{Phase, blocks};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// The whole answer, each line ended.
pub fn answer(answer: &Answer) -> String {
    written(|text| write_answer(text, answer))
}

/// For a terminal of so many columns: lines that are longer go on below, a little further in.
pub fn wrapped(text: &str, columns: usize) -> String {
    let mut wrapped = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let mut length = 0;
        for (at, word) in line[indent..].split(' ').enumerate() {
            let width = word.chars().count();
            if at == 0 {
                wrapped.push_str(&line[..indent]);
                length = indent;
            } else if length + 1 + width > columns && !word.is_empty() {
                wrapped.push('\n');
                wrapped.push_str(&" ".repeat(indent + 4));
                length = indent + 4;
            } else {
                wrapped.push(' ');
                length += 1;
            }
            wrapped.push_str(word);
            length += width;
        }
        wrapped.push('\n');
    }
    wrapped
}

fn write_answer(text: &mut String, answer: &Answer) -> std::fmt::Result {
    let gpu = &answer.gpu;
    writeln!(text, "\n{}", headline(answer))?;
    if answer.verdict == RehearsalVerdict::DoesNotFit {
        writeln!(text, "  With --what-if: what would make it fit, and the lines to write.")?;
    }
    if let Some(failure) = failure(answer).filter(|_| answer.verdict == RehearsalVerdict::ScriptFailed) {
        writeln!(text, "  {}", first_line(&failure.message))?;
        if let Some(line) = &failure.line {
            writeln!(text, "    at      {}", place_of(line))?;
        }
        if wants_more_gpus(failure) && gpu.count == 1 {
            writeln!(text, "  The script saw one GPU: --gpus 2 shows it more.")?;
        } else if let Some(read) = read_before(answer, failure) {
            let line = place_or_not(read.line.as_ref());
            writeln!(
                text,
                "  A placeholder may be why, if it runs on a GPU: no value is computed here, and the script read {} at {line}.",
                read.operator
            )?;
        }
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
    list(text, &findings(worst))?;
    match (&answer.time, &answer.time_missing) {
        (Some(time), _) => time::prediction(text, time)?,
        (None, Some(why)) => writeln!(text, "\n  The time of a step is not predicted: {why}.")?,
        (None, None) => {}
    }
    list(text, &unknowns(worst))?;
    notes(text, answer)
}

/// Why a script failed: the process that failed by itself, else any that has an exception.
fn failure(answer: &Answer) -> Option<&Failure> {
    let any = || answer.processes.iter().find_map(|process| process.exception.as_ref());
    answer.failed.as_ref().map(|failed| &failed.failure).or_else(any)
}

/// Exceptions to which a number can lead.
const OF_VALUES: [&str; 7] =
    ["AssertionError", "FloatingPointError", "IndexError", "OverflowError", "RuntimeError", "ValueError", "ZeroDivisionError"];

/// A value that nobody computed and the script read before it failed: at the line of the failure, if there was one.
fn read_before<'a>(answer: &'a Answer, failure: &Failure) -> Option<&'a PlaceholderValue> {
    let is_it = |process: &&ProcessAnswer| answer.failed.as_ref().is_none_or(|failed| failed.process == process.process);
    let read = &answer.processes.iter().find(is_it)?.placeholders;
    read.iter().find(|value| value.line == failure.line).or(read.last()).filter(|_| OF_VALUES.contains(&&*failure.kind))
}

/// Whether it failed for want of GPUs: it counts them, or asks for one that is not there.
fn wants_more_gpus(failure: &Failure) -> bool {
    let message = failure.message.to_ascii_lowercase();
    let counts = ["gpus", "device_count", "devices"].iter().any(|word| message.contains(word));
    message.contains("invalid device ordinal") || (counts && !message.contains("no gpus"))
}

/// What the least memory is, in words.
pub fn smallest(answer: &Answer) -> String {
    match answer.smallest_card {
        Some(card) => format!("the least GPU memory it runs on; smallest card: {card}"),
        None => "the least GPU memory it runs on; no known card has it".to_string(),
    }
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

/// What to change, the first first.
fn advice(text: &mut String, answer: &Answer) -> std::fmt::Result {
    if answer.advice.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n  Try first (--what-if: exact figures, and the lines to paste)")?;
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

/// In a few words why a script did not end well.
pub fn short_failure(answer: &Answer, run: &Capture) -> String {
    match (answer.verdict, failure(answer)) {
        (RehearsalVerdict::TimedOut, _) => "it was still running when the time of --timeout was over".to_string(),
        (RehearsalVerdict::FitsInPart, _) => refused(answer),
        (_, Some(e)) => format!("{}: {}", e.kind, first_line(&e.message)),
        (_, None) => run.end(),
    }
}

/// The first line: the verdict, and what it does not say.
pub fn headline(answer: &Answer) -> String {
    let host = answer.host.as_ref().filter(|_| answer.verdict.fits()).and_then(HostMemory::warning);
    let no_code = answer.no_code.as_ref().map(|why| format!("But {}.", first_line(why)));
    let streams = streams_said(answer).filter(|_| answer.verdict.fits());
    let grows = grows(answer, answer.gpu.memory, Some(answer.headroom));
    let crowded = cards::crowded(answer);
    [Some(verdict(answer)), crowded, managed(answer), streams, no_code, others_said(answer), host, grows, unseen(answer)]
        .into_iter()
        .flatten()
        .collect::<Vec<String>>()
        .join(" ")
}

/// Memory that is on no card for sure.
fn managed(answer: &Answer) -> Option<String> {
    let bytes = answer.managed.cast_signed();
    let is_too_much = answer.peak_on_device + bytes > answer.gpu.memory;
    let slow = if is_too_much { "; together that is more than the card has, so it would move back and forth, slowly" } else { "" };
    (bytes > 0)
        .then(|| format!("Beside that {} of managed memory moves to the card where kernels use it{slow}.", words::bytes(bytes)))
}

/// That the peak of so few rounds is not the script's, on a card of so much memory, of which so much is left.
pub fn grows(answer: &Answer, memory: i64, room: Option<i64>) -> Option<String> {
    let growth = answer.processes.first().filter(|_| answer.verdict.fits())?.growth.as_ref().filter(|growth| growth.goes_on)?;
    let until = match room.map(|room| room / growth.bytes_per_round) {
        Some(0) => "and there is no room for another".to_string(),
        Some(more) => format!("and there is room for about {more} more"),
        None => "which is not counted".to_string(),
    };
    let said = || format!("But memory grows: each {} leaves {} behind, {until}.", growth.round, bytes(growth.bytes_per_round));
    (growth.bytes_per_round >= memory / MOST_ROUNDS).then(said)
}

/// What fills a card in more rounds than that grows for days.
const MOST_ROUNDS: i64 = 100_000;

/// What the script has and did not come to, a place of each kind.
pub fn unseen(answer: &Answer) -> Option<String> {
    let worst = answer.processes.first().filter(|_| answer.verdict.fits())?;
    let place = |row: &SkippedCode| match (row.phase.as_str(), row.line) {
        ("later", line) => format!("what comes later ({}:{line})", short(&row.file)),
        (phase, 0) => phase.to_string(),
        (phase, line) => format!("{phase} ({}:{line})", short(&row.file)),
    };
    let mut phases = HashSet::new();
    let mut not_reached: Vec<String> = worst.unreached.iter().filter(|row| phases.insert(&row.phase)).map(place).collect();
    let was_given = || answer.notes.iter().any(|note| note.starts_with("--longest: of "));
    if !worst.varied.is_empty() && !was_given() {
        let flag = if worst.has_loader { " (--longest)" } else { "" };
        not_reached.push(format!("batches larger than those that were seen{flag}"));
    }
    (!not_reached.is_empty()).then(|| format!("Not reached: {}.", not_reached.join(", ")))
}

fn verdict(answer: &Answer) -> String {
    let gpu = &answer.gpu;
    let card = match gpu.name.bytes().next().is_some_and(|b| b.is_ascii_digit()) {
        true => format!("a GPU of {}", bytes(gpu.memory)),
        false => format!("{} ({})", gpu.name, bytes(gpu.memory)),
    };
    let steps = match answer.steps {
        0 if answer.verdict.fits() => "to the end of the script, which has no optimizer step".to_string(),
        0 => match answer.time.as_ref().and_then(|time| time.passes) {
            Some(pass) => format!("in forward pass {pass}"),
            None => "before the first optimizer step ended".to_string(),
        },
        1 => "in 1 optimizer step".to_string(),
        n => format!("in {n} optimizer steps"),
    };
    let on_device = bytes(answer.peak_on_device);
    let needs = answer.needs_at_least.map_or(String::new(), |needs| match bytes(needs) {
        same if same == on_device => String::new(),
        needs => format!("; {needs} would be enough"),
    });
    let less = answer.went_on_after().map_or(String::new(), |caught| {
        let (line, tried, free) = (place_or_not(caught.line.as_ref()), bytes(caught.tried), bytes(caught.free));
        format!(" after it went on with less: {line} asked for {tried} with {free} free, and what then worked is shown here")
    });
    let until = match answer.peak_reserved {
        0 => "before it used the GPU.".to_string(),
        _ => format!("{steps}; until then: {on_device} on the GPU at most."),
    };
    match answer.verdict {
        RehearsalVerdict::Fits => {
            format!("FITS {card}{less}: {on_device} on the GPU at most, {} left{needs}. Seen {steps}.", bytes(answer.headroom))
        }
        RehearsalVerdict::FitsInPart => format!(
            "FITS {card} IN PART{less}: {}, as it would not on a real GPU. What was seen is {on_device} at most, {steps}; what else it needs is not known.",
            refused(answer)
        ),
        RehearsalVerdict::BarelyFits => format!(
            "BARELY FITS {card}{less}: {on_device} on the GPU at most, {} left{needs}. Seen {steps}. {}: it may be too little.",
            bytes(answer.headroom),
            cards::doubt(answer)
        ),
        RehearsalVerdict::DoesNotFit => {
            let more = match answer.needs_at_least {
                // A larger card is no remedy where others stand idle.
                Some(needs) if needs > gpu.memory && cards::crowded(answer).is_some() => {
                    format!(" One GPU for all would need at least {}.", bytes(needs))
                }
                Some(needs) if needs > gpu.memory => {
                    let card = answer.smallest_card.map_or("no known card has that".to_string(), |card| format!("{card} has that"));
                    format!(" It needs at least {}, {} more: {card}.", bytes(needs), bytes(needs - gpu.memory))
                }
                Some(needs) => format!(
                    " {} would be enough: the script sets a limit of its own, as with set_per_process_memory_fraction, or asks for more where it sees less.",
                    bytes(needs)
                ),
                None => String::new(),
            };
            format!("DOES NOT FIT {card}: out of memory {steps}.{more}")
        }
        RehearsalVerdict::TimedOut => {
            let seconds = answer.timed_out_after.map_or(String::new(), |seconds| format!(" after {seconds} s"));
            format!("ENDED BY --timeout{seconds}, {until} Whether it fits {card} is not known.")
        }
        RehearsalVerdict::Interrupted => format!("INTERRUPTED {until} Whether it fits {card} is not known."),
        RehearsalVerdict::ScriptFailed => {
            let process = answer.failed.as_ref().map_or(String::new(), |failed| match failed.rank {
                Some(rank) => format!(" on rank {rank} (process {})", failed.process),
                None if answer.processes.len() > 1 => format!(" in process {}", failed.process),
                None => String::new(),
            });
            match failure(answer) {
                Some(e) => format!("THE SCRIPT FAILED with {}{process}, {until}", e.kind),
                None => format!("THE SCRIPT FAILED, {until}"),
            }
        }
    }
}

/// Of the operators that the simulated GPU refused.
fn refused(answer: &Answer) -> String {
    let places: Vec<String> =
        answer.refused.iter().take(ROWS).map(|one| format!("{} at {}", one.operator, place_or_not(one.line.as_ref()))).collect();
    format!("the simulated GPU refused {} and the script went on", places.join(", "))
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

/// What was found beside the trace of a card.
#[derive(Debug, Clone, Deserialize)]
pub struct OfCard {
    pub device: u16,
    pub events: usize,
    /// Bytes that were there before the history began.
    pub before: i64,
    pub failed: Vec<FailedRequest>,
}

/// Memory that was asked for and was not there, in bytes.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct FailedRequest {
    pub bytes: i64,
    pub free: i64,
}

/// With each setting of the allocator the least memory that would do; or why that is not known.
type NeedsBySetting = [(String, Result<i64, String>)];

/// What a snapshot of a real GPU's allocator says, and what it would need, each line ended.
pub fn snapshot(answer: &Answer, trace: &Trace, about: Option<&OfCard>, needs: &NeedsBySetting) -> String {
    written(|text| write_snapshot(text, answer, trace, about, needs))
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

/// Something that was found beside the figures: a sentence, and where.
#[derive(Debug, Serialize)]
pub struct Finding {
    title: String,
    pub rows: Vec<String>,
}

impl Finding {
    fn new(title: impl Into<String>, rows: impl Iterator<Item = String>) -> Finding {
        Finding { title: title.into(), rows: rows.collect() }
    }
}

/// What there is to know of how a process uses memory; some without rows, which say nothing.
pub fn findings(worst: &ProcessAnswer) -> Vec<Finding> {
    let unreached = match worst.steps {
        0 => "Not reached, so in no figure here, because of values that the script read or of its flags:".to_string(),
        steps => format!(
            "Not reached in {steps} steps, so in no figure here; have the script come to it within these, or run it to its end (--steps all):"
        ),
    };
    let longest = if worst.has_loader { " (--longest rehearses the DataLoader's largest)" } else { "" };
    let left = match worst.steps {
        0 => "Made in an earlier forward pass and still there at the peak:",
        _ => "There at the peak, and kept beyond the step that made it:",
    };
    let mut found = vec![
        Finding::new(
            "The script caught these out-of-memory errors and went on; no figure here counts what those tries held:",
            worst.caught.iter().map(caught_at),
        ),
        Finding::new(unreached, worst.unreached.iter().map(unreached_at)),
        Finding::new(
            format!("Batches differ in size from step to step; a larger one would need more{longest}:"),
            worst.varied.iter().map(varied_of),
        ),
    ];
    found.extend(worst.needless_graphs.as_ref().map(needless_graphs));
    found.extend(worst.gradients_without_steps.map(gradients_of_parameters));
    found.extend(attention(worst).map(|(title, remedy)| Finding::new(title, std::iter::once(remedy))));
    found.extend(worst.without_cudnn.as_ref().map(without_cudnn));
    found.push(Finding::new(left, worst.leftovers.iter().take(ROWS).map(|left| leftover(left, worst))));
    if let Some(growth) = &worst.growth {
        let more =
            if growth.goes_on && growth.round == "step" && worst.steps < 6 { "; --steps 6 shows whether it goes on" } else { "" };
        let each = bytes(growth.bytes_per_round);
        let what = match growth.lines.iter().all(|line| line.blocks == 1) {
            true => format!("has in place of what the one before made a block that is {each} larger"),
            false => format!("leaves {each} behind that nothing frees"),
        };
        // Whether that matters at all.
        let whole = growth.bytes_per_round * 100_000;
        let in_all = if whole < 1 << 30 { format!(" ({} in 100,000)", bytes(whole)) } else { String::new() };
        let title = format!("Memory grows: each {} {what}{in_all}{more}. Allocated at:", growth.round);
        found.push(Finding::new(title, growth.lines.iter().take(ROWS).map(growth_at)));
        found.push(Finding::new("Kept by:", growth.kept_by.iter().map(keeper_of)));
    }
    found
}

/// Scores of attention that are kept, and what keeps none of them.
pub fn attention(worst: &ProcessAnswer) -> Option<(String, String)> {
    let attention = worst.explicit_attention.as_ref()?;
    let (scores, share) = (bytes(attention.bytes), share_of(attention.bytes, worst.peak.bytes));
    let at = place_of(&attention.line);
    let title = format!("Attention is written out: its scores are {scores} of the peak ({share}), with a softmax at {at}.");
    let place = format!("{}:{}", attention.line.file, attention.line.line);
    let written = worst.peak.contents.iter().find(|group| group.line == place).and_then(|group| group.source.as_deref());
    let remedy = match written.is_some_and(|source| source.contains("scaled_dot_product_attention")) {
        true => {
            "PyTorch's scaled_dot_product_attention took the kernel that keeps them; others do not, which want bf16 or fp16 \
             (model and inputs, or autocast), heads that are not grouped in fp32, and a contiguous mask, or none"
        }
        false => "torch.nn.functional.scaled_dot_product_attention(q, k, v) in its place keeps none of them",
    };
    Some((title, remedy.to_string()))
}

fn without_cudnn(line: &Frame) -> Finding {
    Finding::new(
        "Convolutions run without cuDNN, in kernels of PyTorch's that take longer and of whose time there is no record:",
        std::iter::once(format!(
            "first at {}: torch.backends.cudnn.enabled is False there, as cudnn.flags(...) makes it where it is not given enabled=True",
            place_of(line)
        )),
    )
}

/// Values that the script read and nobody computed, and memory of libraries that only a GPU tells.
pub fn unknowns(worst: &ProcessAnswer) -> [Finding; 2] {
    let times = |times| if times > 1 { format!(", {times} times") } else { String::new() };
    let value = |row: &PlaceholderValue| {
        format!("{} at {}{}{}", row.operator, place_or_not(row.line.as_ref()), times(row.times), size_of(row.size))
    };
    let library = |row: &Uncounted| format!("{} ({}) at {}", row.operator, row.library, place_or_not(row.line.as_ref()));
    [
        Finding::new(
            "Nothing is computed: where the script read a value, it got a placeholder, as from a healthy run:",
            worst.placeholders.iter().map(value),
        ),
        Finding::new(
            "Not counted: memory that these take inside a library, which only a GPU can tell:",
            worst.uncounted.iter().map(library),
        ),
    ]
}

fn caught_at(row: &Caught) -> String {
    let times = if row.times > 1 { format!("{} times, at most:", row.times) } else { "once:".to_string() };
    let [tried, free, largest] = [row.tried, row.free, row.largest].map(bytes);
    format!("{} {times} asked for {tried} with {free} free ({largest} of tensors in all)", place_or_not(row.line.as_ref()))
}

fn unreached_at(row: &SkippedCode) -> String {
    let what = on_one_line(&row.what);
    match row.line {
        0 => format!("{:<11} {what}", row.phase),
        line => format!("{:<11} {}:{line}  {what}", row.phase, short(&row.file)),
    }
}

fn gradients_of_parameters(bytes_at_peak: i64) -> Finding {
    Finding::new(
        format!(
            "The backward pass makes gradients of parameters, {} at the peak, and no optimizer takes them:",
            bytes(bytes_at_peak)
        ),
        std::iter::once(
            "where nothing else reads them either, model.requires_grad_(False) before the loop leaves them out".to_string(),
        ),
    )
}

fn needless_graphs(found: &NeedlessGraphs) -> Finding {
    let (which, keeps) = match (found.passes, found.of) {
        (1, 1) => ("The forward pass".to_string(), "keeps"),
        (some, all) if some == all => (format!("All {all} forward passes"), "keep"),
        (some, all) => (format!("{some} of {all} forward passes"), if some == 1 { "keeps" } else { "keep" }),
    };
    let held = match found.bytes_at_peak {
        0 => String::new(),
        held => format!(" At the peak that is {}.", bytes(held)),
    };
    let title = format!("{which} {keeps} activations for a backward pass, and none follows.{held}");
    let remedy = "with torch.inference_mode():  around it, or torch.no_grad(), frees them";
    Finding::new(title, std::iter::once(remedy.to_string()))
}

/// The same in sentences, of a script that trains and has much of them at the peak.
pub fn needless(worst: &ProcessAnswer) -> Option<String> {
    let is_much = |found: &&NeedlessGraphs| worst.steps > 0 && found.bytes_at_peak * 20 >= worst.peak.bytes;
    let found = worst.needless_graphs.as_ref().filter(is_much)?;
    let (title, place) = (needless_graphs(found).title, place_or_not(found.line.as_ref()));
    Some(format!("{title} torch.no_grad() or torch.inference_mode() around them, at {place}, frees that."))
}

fn leftover(left: &Leftover, worst: &ProcessAnswer) -> String {
    let made = growth_at(&left.made);
    let on_host = "keep this copy of weights or state on the host (.cpu())";
    let Some(variable) = &left.variable else { return if left.is_copy { format!("{made}: {on_host}") } else { made } };
    let mut keepers = worst.growth.iter().flat_map(|growth| &growth.kept_by);
    let (name, keeper) = (on_one_line(variable), keepers.find(|keeper| keeper.name == *variable));
    let remedy = match keeper.map(|keeper| (keeper.has_graphs(), keeper.what.starts_with("a sum"))) {
        Some((true, true)) if left.is_number => {
            "add loss.item() to it, or loss.detach(), in place of the loss with its graph".to_string()
        }
        Some((true, true)) => "add .detach() of what is added to it, in place of tensors with their graphs".to_string(),
        Some((true, false)) if left.is_number => {
            "put .item() or .detach() of them into it, in place of tensors with their graphs".to_string()
        }
        Some((true, false)) => "put .detach().cpu() of them into it, in place of tensors with their graphs".to_string(),
        Some((false, _)) => "move what it keeps to the host (.cpu()), or keep less".to_string(),
        None if left.is_copy => on_host.to_string(),
        None => format!("del {name} after its last use"),
    };
    format!("{made}, held by `{name}`: {remedy}")
}

fn growth_at(line: &LiveBytes) -> String {
    format!("{}  {} in {}", short(&line.name), bytes(line.bytes), counted(line.blocks, "block"))
}

/// `losses, a list of 3 tensors (train.py, main)`
fn keeper_of(keeper: &Retainer) -> String {
    let [name, what, function] = [&keeper.name, &keeper.what, &keeper.function].map(|text| on_one_line(text));
    format!("{name}, {what} ({}, {function})", short(&keeper.file))
}

/// `input_ids of GPT: 8 x 312 to 8 x 512, the most in step 2`
fn varied_of(row: &PlaceholderBranch) -> String {
    let sizes = |sizes: &[i64]| sizes.iter().map(i64::to_string).collect::<Vec<String>>().join(" x ");
    let (input, module) = (on_one_line(&row.input), on_one_line(&row.module));
    format!("{input} of {module}: {} to {}, the most in step {}", sizes(&row.least), sizes(&row.most), row.step)
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

/// The first rows of each, and how many more there are.
fn list(text: &mut String, findings: &[Finding]) -> std::fmt::Result {
    for Finding { title, rows } in findings.iter().filter(|finding| !finding.rows.is_empty()) {
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
    answer.notes.iter().try_for_each(|note| writeln!(text, "  Note: {note}"))
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn long_lines_go_on_below_and_others_stay() {
        assert_eq!(wrapped("\n  a  b\n  one two three\n", 9), "\n  a  b\n  one two\n      three\n");
        assert_eq!(wrapped("  a  b\n", 6), "  a  b\n");
        assert_eq!(wrapped("longer-than-that x\n", 6), "longer-than-that\n    x\n");
    }
}
