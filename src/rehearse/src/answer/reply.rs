//! What an answer says, in sentences: the verdict, and what stands beside it.

use super::account::Account;
use super::advice::Advice;
use super::cards::CardAnswer;
use super::ends;
use super::findings::placeholders::PlaceholderValue;
use super::findings::{Finding, FindingKind};
use super::host::HostMemory;
use super::process::{Failure, ProcessAnswer};
use super::serving::Serves;
use super::time::Prediction;
use super::verdict::{Answer, RehearsalVerdict, StepTime};
use crate::capture::plain::first_line;
use crate::capture::process::{Note, NoteKind, SkippedCode};
use crate::capture::session::{Capture, OtherValues};
use crate::words::{bytes, place_or_not, places_of, short};
use base::order::grouped;
use base::units::{Bytes, counted};
use std::collections::{BTreeSet, HashSet};

const ROWS: usize = 6;

/// Of a server whether it starts; with the card in words.
fn serves(answer: &Answer, card: &str) -> Option<String> {
    let serves = answer.serves.as_ref()?;
    match (&serves.dies, answer.verdict.fits()) {
        (Some(dies), _) => Some(format!("DOES NOT START on {card}: it ends {dies}")),
        (None, true) => Some(format!("SERVES on {card}: {}", serves.holds())),
        (None, false) => None,
    }
}

/// Why it is not known of all of it: what was not come to, or operators that the simulated GPU refused.
pub fn in_part(answer: &Answer) -> String {
    if let Some(cut) = &answer.cut_short {
        return format!("{}; --steps all runs trainings to their end", cut.why());
    }
    let places: Vec<String> =
        answer.refused.iter().take(ROWS).map(|one| format!("{} at {}", one.operator, place_or_not(one.line.as_ref()))).collect();
    format!("the simulated GPU cannot run {} and the script caught that error, where a real GPU runs it", places.join(", "))
}

/// Why a script failed: the process that failed by itself, else any that has an exception.
pub fn failure(answer: &Answer) -> Option<&Failure> {
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

/// Whether it failed for want of a compiler: its kernels are compiled for the card that it finds.
fn wants_compiler(failure: &Failure) -> Option<String> {
    let package = failure.package.as_deref().unwrap_or("the script");
    let others = if package == "flashinfer" { " (of attention: vLLM's --attention-backend TRITON_ATTN)" } else { "" };
    let said = || {
        format!(
            "{package} compiles kernels for this card as it runs, and found no nvcc: install the CUDA toolkit, or choose others{others}"
        )
    };
    ["nvcc", "CUDA_HOME"].iter().any(|word| failure.message.contains(word)).then(said)
}

/// Why a card has no whole answer beside others that have one.
pub fn why_not(answer: &Answer) -> Option<String> {
    let of = |failure: &Failure| {
        let why = wants_compiler(failure).map_or(String::new(), |why| format!(" ({why})"));
        format!("{}: {}{why}", failure.kind, first_line(&failure.message))
    };
    match answer.verdict {
        RehearsalVerdict::FitsInPart => Some(in_part(answer)),
        RehearsalVerdict::ScriptFailed => {
            let ended = || answer.notes.iter().rfind(|note| matches!(note.kind, NoteKind::Ended | NoteKind::HostRanOut));
            failure(answer).map(of).or_else(|| Some(ended()?.text.clone()))
        }
        _ => None,
    }
}

/// In a few words why a script did not end well.
pub fn short_failure(answer: &Answer, run: &Capture) -> String {
    match (answer.verdict, failure(answer)) {
        (RehearsalVerdict::TimedOut, _) => "it was still running when the time of --timeout was over".to_string(),
        (RehearsalVerdict::FitsInPart, _) => in_part(answer),
        (_, Some(e)) => format!("{}: {}", e.kind, first_line(&e.message)),
        (_, None) => run.end(),
    }
}

/// What the least memory is, in words.
pub fn smallest(answer: &Answer) -> String {
    match answer.smallest_card {
        Some(card) => format!("the least GPU memory it runs on; smallest card: {card}"),
        None => "the least GPU memory it runs on; no known card has it".to_string(),
    }
}

/// Memory that is on no card for sure.
fn managed(answer: &Answer) -> Option<String> {
    let managed = answer.managed.cast_signed();
    let is_too_much = answer.peak_on_device + managed > answer.gpu.memory;
    let slow = if is_too_much { "; together that is more than the card has, so it would move back and forth, slowly" } else { "" };
    (managed > 0).then(|| format!("Beside that {} of managed memory moves to the card where kernels use it{slow}.", bytes(managed)))
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
    let was_given = || answer.notes.iter().any(|note| note.kind == NoteKind::Longest);
    if !worst.varied.is_empty() && !was_given() {
        let flag = if worst.has_loader { ": --longest" } else { "" };
        not_reached.push(format!("larger batches (sizes differ{flag})"));
    }
    (!not_reached.is_empty()).then(|| format!("Not reached: {}.", not_reached.join(", ")))
}

/// What the headline adds.
pub fn others_said(other: Option<&OtherValues>) -> Option<String> {
    let other = other?;
    let with_others = match (other.fits, other.endless) {
        (false, _) => "with others it runs out of memory".to_string(),
        (_, true) => format!("with others it had not ended at {}; more is not known", bytes(other.peak_on_device)),
        _ => format!("with others it takes {} on the GPU, and a real run may take more", bytes(other.peak_on_device)),
    };
    Some(format!("But placeholder values decide a size or a loop ({}): {with_others}.", places_of(&other.lines)))
}

/// What the headline adds of memory that a GPU behind its host would keep longer.
pub fn streams_said(answer: &Answer) -> Option<String> {
    answer.streams.map(|held| format!("Other streams may hold {} of each step longer than here (--lag 1000).", bytes(held.bytes)))
}

/// That ranks share a GPU while others stand idle, as where each takes the first, and the line that gives each its own.
fn crowded(answer: &Answer) -> Option<String> {
    let on_cards = answer.cards.iter().flat_map(|card| &card.processes);
    let ranks = on_cards.filter_map(|of| of.rank).collect::<BTreeSet<u32>>().len();
    let (used, there) = (answer.cards.len(), answer.gpu.count as usize);
    let named = match answer.cards.as_slice() {
        [one] => format!("GPU {} alone", one.card),
        several => format!("{} GPUs", several.len()),
    };
    let line = r#"torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))"#;
    let gives = format!("{line} before the model is made gives each its own (where mp.spawn starts them: set_device(rank))");
    (used < ranks.min(there)).then(|| format!("All {ranks} ranks use {named}, of {there}: {gives}."))
}

/// What is on the other cards, where that is less than on the fullest.
fn other_cards(answer: &Answer) -> Option<String> {
    const NAMED: usize = 3;
    let (first, others) = answer.cards.split_first()?;
    let least = others.iter().map(|card| card.peak).min().filter(|least| least * 20 < first.peak * 19)?;
    let mut others: Vec<&CardAnswer> = others.iter().collect();
    others.sort_by_key(|card| card.card);
    Some(match others.len() {
        1..=NAMED => {
            let each: Vec<String> = others.iter().map(|card| format!("GPU {} {}", card.card, bytes(card.peak))).collect();
            format!("That is GPU {}; {}.", first.card, each.join(", "))
        }
        _ => format!("That is GPU {}; the others have {} at least.", first.card, bytes(least)),
    })
}

/// Why a script that fitted may not.
fn doubt(answer: &Answer) -> String {
    let most = answer.if_peaks_coincide();
    match answer.nccl.filter(|_| answer.nccl_decides()) {
        _ if most > answer.gpu.memory => {
            format!("That is at the same time; if the peaks of all processes coincide, they take {}", bytes(most))
        }
        Some(nccl) => format!("NCCL takes {} to {} more", bytes(nccl.least), bytes(nccl.most)),
        None if answer.streams.is_some_and(|held| held.bytes > answer.headroom) => {
            "What other streams hold longer is not in it".to_string()
        }
        None => "The context is assumed, to within 100 MiB".to_string(),
    }
}

/// What a person is told at first. Everything of it is somewhere in the answer; the whole answer says more.
pub struct Reply<'a> {
    /// Whether it fits, and by how much; or the error of a script that failed.
    pub verdict: String,
    /// What that does not say, the weightiest first.
    pub beside: Vec<String>,
    pub account: Option<&'a Account>,
    pub findings: Vec<&'a Finding>,
    pub advice: &'a [Advice],
    pub time: Option<StepTime>,
    /// Lines or modules whose kernels take longest, each with its per cent of the GPU's time.
    pub slowest: Vec<(String, f64)>,
    pub notes: Vec<String>,
}

/// Of `FILE:LINE` the file without its folders.
pub fn brief(place: &str) -> &str {
    place.rsplit_once('/').map_or(place, |(_, name)| name)
}

impl Reply<'_> {
    /// The first line of all of the answer.
    pub fn headline(&self) -> String {
        format!("{}. {}", self.verdict.trim_end_matches('.'), self.beside.join(" "))
    }

    pub fn of(answer: &Answer) -> Reply<'_> {
        let worst = answer.processes.first();
        let failed = answer.verdict == RehearsalVerdict::ScriptFailed;
        let time = answer.time.as_ref().map(StepTime::of).or_else(|| answer.time_if_it_fitted.clone());
        let findings = worst.iter().flat_map(|worst| &worst.findings);
        let grows = findings.clone().any(|finding| finding.kind == FindingKind::Growth && finding.cure.is_some());
        // Said beside the verdict.
        let is_said =
            |finding: &&Finding| matches!(finding.kind, FindingKind::Unreached | FindingKind::Varied | FindingKind::Placeholders);
        // What is sized, and what a token takes, stands beside the verdict.
        let is_server = answer.serves.as_ref().is_some_and(|serves| serves.starts);
        let slowest = answer.time.as_ref().map_or_else(Vec::new, slowest);
        let mut findings: Vec<&Finding> = findings
            .filter(|finding| !(is_said(finding) || is_server && finding.kind == FindingKind::SizedByFree))
            .filter(|finding| !(grows && matches!(finding.kind, FindingKind::Leftovers | FindingKind::KeptBy)))
            .filter(|finding| match finding.kind {
                FindingKind::Engines => engines_decide(answer, finding.bytes),
                // What fills a twentieth of a card in as many rounds as that is nobody's matter.
                FindingKind::Growth => finding.bytes >= answer.gpu.memory / MOST_ROUNDS / 20,
                _ => true,
            })
            .collect();
        // What stands beside the verdict is explained first.
        findings.sort_by_key(|finding| finding.kind != FindingKind::Growth || !grows);
        Reply {
            verdict: verdict(answer),
            beside: beside(answer),
            // What fills a larger card is nothing of one on which a server does not start.
            account: answer.account.as_ref().filter(|_| !failed && answer.serves.as_ref().is_none_or(|serves| serves.starts)),
            findings,
            advice: if failed { &[] } else { &answer.advice },
            time: time.filter(|_| !failed && !is_server),
            slowest,
            notes: notes(answer),
        }
    }
}

/// Whether so much reserved would fill the card; or it does not fit by as little as what cuDNN allocates can be off by.
fn engines_decide(answer: &Answer, reserved: i64) -> bool {
    match answer.verdict.fits() {
        true => answer.peak_on_device - answer.peak_reserved + reserved > answer.gpu.memory,
        false => answer.needs_at_least.is_some_and(|needs| needs - needs / 50 <= answer.gpu.memory),
    }
}

/// The lines with most of the GPU's time.
fn slowest(time: &Prediction) -> Vec<(String, f64)> {
    let by_line = grouped(time.kernels.iter().filter_map(|kernel| Some((kernel.line.as_ref()?.place(), kernel.seconds))));
    let sum = |(line, seconds): (String, Vec<f64>)| (line, seconds.iter().sum::<f64>() / time.device_seconds.max(1e-12));
    let mut lines: Vec<(String, f64)> = by_line.into_iter().map(sum).collect();
    lines.sort_by(|a, b| b.1.total_cmp(&a.1));
    lines.truncate(2);
    lines
}

/// `18.9 of 23.6 GiB`, in one unit where both have it.
fn of_memory(bytes_: i64, memory: i64) -> String {
    let (part, whole) = (bytes(bytes_), bytes(memory));
    match (part.split_once(' '), whole.split_once(' ')) {
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} of {whole}"),
        _ => format!("{part} of {whole}"),
    }
}

fn verdict(answer: &Answer) -> String {
    let gpu = &answer.gpu;
    let name = if gpu.name.starts_with(|c: char| c.is_ascii_digit()) {
        format!("a GPU of {}", bytes(gpu.memory))
    } else {
        gpu.name.clone()
    };
    if let Some(serves) = serves(answer, &name) {
        return serves;
    }
    let used = of_memory(answer.peak_on_device, gpu.memory);
    match answer.verdict {
        RehearsalVerdict::Fits => format!("FITS {name}: {used}, {} free", bytes(answer.headroom)),
        RehearsalVerdict::BarelyFits => format!("BARELY FITS {name}: {used}, {} free", bytes(answer.headroom)),
        RehearsalVerdict::FitsInPart => format!("FITS {name} IN PART: {used} as far as it was seen"),
        RehearsalVerdict::DoesNotFit => {
            let ran_out = answer.processes.iter().find(|process| process.out_of_memory.is_some());
            let place = ran_out.and_then(|process| process.peak.called_from.as_ref().or(process.peak.line.as_ref()));
            let stops = place.map_or(String::new(), |line| format!(" Stops at {}.", brief(&line.place())));
            match answer.needs_at_least {
                Some(needs) => format!("DOES NOT FIT {name}: needs {}, has {}.{stops}", bytes(needs), bytes(gpu.memory)),
                None => format!("DOES NOT FIT {name}: more than its {}.{stops}", bytes(gpu.memory)),
            }
        }
        RehearsalVerdict::ScriptFailed => {
            let process = answer.failed.as_ref().map_or(String::new(), |failed| match failed.rank {
                Some(rank) => format!(" on rank {rank} (process {})", failed.process),
                None if answer.processes.len() > 1 => format!(" in process {}", failed.process),
                None => String::new(),
            });
            let why = failure(answer).map(|failure| format!(": {}: {}", failure.kind, first_line(&failure.message)));
            format!("THE SCRIPT FAILED{process}{}", why.unwrap_or_default())
        }
        RehearsalVerdict::TimedOut => {
            let seconds = answer.timed_out_after.map_or(String::new(), |seconds| format!(" after {seconds} s"));
            format!("ENDED BY --timeout{seconds}: whether it fits {name} is not known")
        }
        RehearsalVerdict::Interrupted => format!("INTERRUPTED: whether it fits {name} is not known"),
    }
}

fn seen_said(answer: &Answer) -> String {
    let is_cut = matches!(answer.verdict, RehearsalVerdict::TimedOut | RehearsalVerdict::Interrupted);
    let trainings = answer.processes.first().and_then(|worst| worst.trainings);
    match (answer.steps, answer.time.as_ref().and_then(|time| time.passes)) {
        (0, Some(passes)) => format!("{} seen.", counted(passes, "forward pass").replace("passs", "passes")),
        (0, None) if is_cut => "No optimizer step was seen.".to_string(),
        (0, None) if answer.processes.iter().any(|process| process.steps > 0) => {
            "The process that needs most made no optimizer step.".to_string()
        }
        (0, None) => "Seen to the end of the script, which makes no optimizer step.".to_string(),
        (steps, _) if trainings.is_some() => {
            let trainings = counted(trainings.unwrap_or(0) as usize, "training");
            format!("{} seen, of {trainings}.", counted(steps as usize, "step"))
        }
        (steps, _) if answer.came_to_its_end => format!("{} seen, to the end of the script.", counted(steps as usize, "step")),
        (steps, _) => format!("{} seen.", counted(steps as usize, "step")),
    }
}

/// The least memory that it runs on, and the smallest card that has it.
fn runs_on_said(answer: &Answer) -> Option<String> {
    let fits = answer.verdict.fits();
    let is_other = |needs: &i64| answer.serves.is_some() || fits && bytes(*needs) != bytes(answer.peak_on_device);
    let Some(needs) = answer.needs_at_least.filter(is_other) else {
        let is_whole = fits && answer.verdict != RehearsalVerdict::FitsInPart && answer.other_values.is_none();
        return answer.smallest_card.filter(|_| is_whole).map(|card| format!("Smallest card: {card}."));
    };
    // A smaller card's context may take less.
    let is_smaller =
        |name: &&str| sim::cards::all().iter().any(|card| card.name == Some(name) && needs > card.memory.cast_signed());
    let why = if answer.smallest_card.filter(is_smaller).is_some() { ", where the context takes less" } else { "" };
    let card = answer.smallest_card.map_or(String::new(), |card| format!(" (smallest card: {card}{why})"));
    let verb = if answer.serves.is_some() { "starts" } else { "runs" };
    let from = answer.serves.as_ref().and_then(|serves| serves.starts_from).map(|from| format!("{} to ", bytes(from)));
    Some(format!("Least memory it {verb} on: {}{}{card}.", from.unwrap_or_default(), bytes(needs)))
}

/// Of a script that failed, where, and what may be why.
fn failed_said(answer: &Answer) -> [Option<String>; 2] {
    let Some(failure) = failure(answer).filter(|_| answer.verdict == RehearsalVerdict::ScriptFailed) else { return [None, None] };
    let at = failure.line.as_ref().map_or(String::new(), |line| format!("At {}. ", crate::words::place_of(line)));
    let on_the_gpu = || format!("; until then {} on the GPU", bytes(answer.peak_on_device));
    let until = if answer.peak_reserved > 0 { on_the_gpu() } else { String::new() };
    let placeholder = |read: &PlaceholderValue| {
        format!(
            "A placeholder may be why: no value is computed here, and the script read {} at {}.",
            read.operator,
            place_or_not(read.line.as_ref())
        )
    };
    let why = if wants_more_gpus(failure) && answer.gpu.count == 1 {
        Some("The script saw one GPU: --gpus 2 shows it more.".to_string())
    } else if let Some(why) = wants_compiler(failure) {
        Some(format!("{}{}.", why[..1].to_uppercase(), &why[1..]))
    } else {
        read_before(answer, failure).map(placeholder)
    };
    [Some(format!("{at}Whether it fits is not known{until}.")), why]
}

/// Sentences to the verdict.
fn beside(answer: &Answer) -> Vec<String> {
    let fits = answer.verdict.fits();
    let engine = answer.engine.as_ref();
    let engine = engine.map(|engine| {
        let sleeps = engine.sleep_said().map_or(String::new(), |said| format!(" {said}"));
        format!("{} generates beside it: {}.{sleeps}", engine.engine.as_deref().unwrap_or("An engine"), engine.holds())
    });
    let served = answer.serves.as_ref();
    let would_start = served.filter(|serves| !serves.would_start.is_empty());
    let would_start = would_start.map(|serves| format!("It would start with {}.", serves.would_start.join(", or with ")));
    // How a server came to its end, and what failed without an error of its own.
    let fails_alone = answer.verdict == RehearsalVerdict::ScriptFailed && failure(answer).is_none();
    let told = |note: &&Note| match note.kind {
        NoteKind::HostRanOut => answer.verdict == RehearsalVerdict::ScriptFailed,
        NoteKind::Ended => answer.serves.is_some() || fails_alone || note.text.starts_with(ends::CRASHED),
        _ => false,
    };
    let ended = answer.notes.iter().rfind(told);
    let ended = ended.map(|note| format!("{}{}.", note.text[..1].to_uppercase(), &note.text[1..]));
    let starts = served.filter(|serves| serves.starts);
    let (times, more) = (starts.and_then(Serves::times_said), starts.and_then(Serves::more_said));
    let doubt = (answer.verdict == RehearsalVerdict::BarelyFits).then(|| format!("{}.", doubt(answer)));
    let refused = (answer.verdict == RehearsalVerdict::FitsInPart)
        .then(|| format!("In part, because {}; what else it needs is not known.", in_part(answer)));
    let went_on = answer.went_on_after().filter(|_| fits).map(|caught| {
        format!(
            "It went on with less after {} asked for {} with {} free.",
            place_or_not(caught.line.as_ref()),
            bytes(caught.tried),
            bytes(caught.free)
        )
    });
    // A larger card is no remedy where others stand idle.
    let is_too_small = answer.verdict == RehearsalVerdict::DoesNotFit && crowded(answer).is_none();
    let cards = is_too_small.then(|| would_do(answer)).flatten();
    let is_cut = matches!(answer.verdict, RehearsalVerdict::TimedOut | RehearsalVerdict::Interrupted) && answer.peak_reserved > 0;
    let until = is_cut.then(|| format!("Until then {} on the GPU at most.", bytes(answer.peak_on_device)));
    let [failed, why] = failed_said(answer);
    let seen = (fits || answer.verdict == RehearsalVerdict::TimedOut).then(|| seen_said(answer));
    let host = answer.host.as_ref().filter(|_| fits).and_then(HostMemory::warning);
    let no_code = answer.no_code.as_ref().map(|why| format!("But {}.", first_line(why)));
    let grows = grows(answer, answer.gpu.memory, Some(answer.headroom));
    let streams = streams_said(answer).filter(|_| fits);
    let unseen = unseen(answer).filter(|_| served.is_none());
    [
        failed,
        would_start,
        engine,
        ended,
        why,
        no_code,
        doubt,
        refused,
        other_cards(answer).filter(|_| answer.peak_on_device > 0),
        grows,
        others_said(answer.other_values.as_ref()),
        went_on,
        crowded(answer),
        managed(answer),
        streams,
        host,
        seen,
        until,
        runs_on_said(answer),
        starts.and_then(Serves::later_said),
        times,
        more,
        unseen,
        cards,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The smallest cards that would do, with the price of an hour where prices are given.
fn would_do(answer: &Answer) -> Option<String> {
    const CARDS: usize = 3;
    let needs = answer.needs_at_least?;
    // None older than the rehearsed one or Ampere, and no laptop's.
    let own = answer.gpu.name.parse::<sim::cards::Card>().map_or((8, 0), |card| card.capability.min((8, 0)));
    let would_do = |card: &&sim::cards::Card| {
        card.memory.cast_signed() >= needs && card.capability >= own && !card.name.is_some_and(|name| name.contains("laptop"))
    };
    let mut cards: Vec<&sim::cards::Card> = sim::cards::all().iter().filter(would_do).collect();
    cards.sort_by_key(|card| card.memory);
    cards.dedup_by_key(|card| card.memory >> 30);
    let named = cards.iter().take(CARDS).map(|card| {
        let price = super::time::an_hour(card).map_or(String::new(), |(price, currency)| format!(", {price} {currency}/h"));
        format!("{card} ({}{price})", bytes(card.memory.cast_signed()))
    });
    let named: Vec<String> = named.collect();
    Some(if named.is_empty() { "No known card has that.".to_string() } else { format!("It would fit {}.", named.join(", ")) })
}

/// What a reader must know of the figures.
fn notes(answer: &Answer) -> Vec<String> {
    let mut notes = Vec::new();
    let worst = answer.processes.first();
    if let Some(read) = worst.filter(|_| answer.verdict.fits()).and_then(|worst| worst.placeholders.first()) {
        let at = read.line.as_ref().map_or(String::new(), |line| format!(" at {}", brief(&line.place())));
        notes.push(format!("Values read from the GPU ({}{at}) are placeholders.", read.operator));
    }
    if let Some(held) = answer.held_back.as_ref().filter(|held| !held.files.is_empty()) {
        notes.push(format!(
            "Held back: {} that the script wrote (--keep-writes DIR keeps them); {}.",
            counted(held.files.len(), "file"),
            held.by.known()
        ));
    }
    for sent in answer.held_back.iter().flat_map(|held| &held.sent).take(1) {
        notes.insert(0, format!("Sent over the network, which is not held back: {} to {}.", Bytes(sent.bytes), sent.to));
    }
    notes
}
