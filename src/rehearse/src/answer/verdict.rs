//! Whether the script can run on the card: from what a session left to the answer.

use super::account::Account;
use super::advice::{self, Advice, Cut, Job};
use super::cards::{CardAnswer, OnCard};
use super::ends::{self, CutShort, FailedProcess, RefusedOperator};
use super::host::HostMemory;
use super::nccl::{self, NcclBuffers};
use super::nothing::{self, source};
use super::out_of_memory::Caught;
use super::process::{ProcessAnswer, process_answers};
use super::serving::{self, Serves};
use super::streams::HeldByStreams;
use super::time::{self, Loading, Prediction, RanksTogether, TOKEN, predict};
use crate::capture::held::HeldBack;
use crate::capture::process::{Note, NoteKind, Trace};
use crate::capture::session::{Capture, Found, Needs, OnePool, OtherValues};
use anyhow::Result;
use base::units::Bytes;
use serde::{Deserialize, Serialize};
use sim::cards::Card;
use sim::trace::Kind;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Whether the script can run on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RehearsalVerdict {
    Fits,
    /// By less than what is assumed of the CUDA context can be wrong by.
    BarelyFits,
    /// What was seen fits, but the simulated GPU refused an operator and the script went on without: a real one would go another way.
    FitsInPart,
    DoesNotFit,
    /// For another reason than memory.
    ScriptFailed,
    /// By `--timeout`, before enough was seen.
    TimedOut,
    /// By Ctrl-C, before enough was seen.
    Interrupted,
}

impl RehearsalVerdict {
    /// Whether it ran as long as was wanted.
    pub fn fits(self) -> bool {
        matches!(self, RehearsalVerdict::Fits | RehearsalVerdict::BarelyFits | RehearsalVerdict::FitsInPart)
    }
}

/// How far the memory of a CUDA context, which is assumed, can be from what a card shows: others' records of one card differ by up to 90 MiB;
/// and the share of a peak that may be added by what only a GPU does.
const UNCERTAIN: (i64, f64) = (100 << 20, 0.02);

/// Whether what a script needs is so near to what a card has that it may not fit it in the end.
pub fn is_near(needs: i64, memory: i64) -> bool {
    memory - needs < UNCERTAIN.0 + (needs as f64 * UNCERTAIN.1) as i64
}

/// What is surely there of so much memory: a need of that is just not near.
pub fn surely(memory: u64) -> u64 {
    ((memory.saturating_sub(UNCERTAIN.0.unsigned_abs())) as f64 / (1.0 + UNCERTAIN.1)) as u64
}

/// Of the form of an answer: a field that is added leaves it as it is, one that is gone or means something else raises it.
pub const SCHEMA: u32 = 2;

/// The card, as far as it decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct SimulatedGpu {
    pub name: String,
    pub memory: i64,
    /// Bytes of it that a process takes beside PyTorch's allocator: the CUDA context; assumed.
    pub context: i64,
    pub count: u32,
}

impl SimulatedGpu {
    pub fn of(card: &Card, count: u32) -> SimulatedGpu {
        let (memory, context) = (card.memory.cast_signed(), card.context.cast_signed());
        SimulatedGpu { name: card.to_string(), memory, context, count }
    }
}

/// The answer of a rehearsal. Peaks of the allocator are those of the process that needs most; what is on the device is the fullest card's.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Answer {
    pub schema: u32,
    pub command: Vec<String>,
    pub gpu: SimulatedGpu,
    pub verdict: RehearsalVerdict,
    /// Where the PyTorch of the script has no code for the card: that it would fail there, and what to install.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_code: Option<String>,
    /// Of a job's processes the first that failed by itself, whatever became of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedProcess>,
    /// What it did not come to because a training was stopped after its steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_short: Option<CutShort>,
    /// Operators that the simulated GPU refused, and the script went on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedOperator>,
    /// Of a server: its KV cache, and what decides how large that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serves: Option<Serves>,
    /// An engine that generates for a training on the same card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Serves>,
    /// Optimizer steps that ended.
    pub steps: u32,
    pub peak_requested: i64,
    pub peak_allocated: i64,
    pub peak_reserved: i64,
    /// All that was in use at one time of the fullest card: what nvidia-smi would show at most.
    pub peak_on_device: i64,
    /// What the card has left at its fullest; where it does not fit, negative by what it lacks of `needs_at_least`, as far as that is known.
    pub headroom: i64,
    /// The smallest memory of a GPU on which it runs, context included: what the allocator keeps cached is given back where memory is short.
    /// None where that was not asked for or could not be found, which the notes say.
    pub needs_at_least: Option<i64>,
    /// The card of `cards.csv` with the least memory that has it.
    pub smallest_card: Option<&'static str>,
    /// Whether the command ended by itself and well, and was not ended after enough steps.
    pub came_to_its_end: bool,
    /// Forward passes after which a script without steps was ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passes: Option<usize>,
    /// Seconds of `--timeout`, where that ended it.
    pub timed_out_after: Option<f64>,
    /// What the script wrote, which its user's files have nothing of; none where it was allowed to write.
    pub held_back: Option<HeldBack>,
    /// What fills the card: of the process that needs most, and of a job that does not fit of a run on a card where it does. None where nothing is
    /// known of that.
    pub account: Option<Account>,
    /// What to change, the first first; estimated.
    pub advice: Vec<Advice>,
    /// Of a job that does not fit: its time on this card with memory enough; predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_if_it_fitted: Option<StepTime>,
    /// Of the process whose steps take longest; predicted.
    pub time: Option<Prediction>,
    /// Why there is none.
    pub time_missing: Option<String>,
    /// Where values that nobody computed decide what it takes: what it takes with others.
    pub other_values: Option<OtherValues>,
    /// What the job takes of the host's memory.
    pub host: Option<HostMemory>,
    /// The worst first.
    pub processes: Vec<ProcessAnswer>,
    /// The one that ran out of memory first, then the fullest.
    pub cards: Vec<CardAnswer>,
    /// What a GPU that is behind its host would keep longer than here; none with `--lag`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<HeldByStreams>,
    /// Bytes of managed memory of all processes, the most of each: CUDA moves it to a card where kernels use it, and back where that is full, so
    /// it is in no figure.
    pub managed: u64,
    /// What NCCL would take of a card beside all that; in no figure.
    pub nccl: Option<NcclBuffers>,
    pub notes: Vec<Note>,
}

/// The predicted time of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StepTime {
    pub unit: String,
    pub seconds: f64,
    pub low: f64,
    pub high: f64,
    pub bound_by: String,
    /// Such as `81,000 tokens/s`; empty where it is not known.
    pub throughput: String,
}

impl StepTime {
    pub fn of(time: &Prediction) -> StepTime {
        StepTime {
            unit: time.unit.to_string(),
            seconds: time.step_seconds,
            low: time.low_seconds,
            high: time.high_seconds,
            bound_by: time.bound_by.to_string(),
            throughput: time.throughput(),
        }
    }
}

/// Of a job that does not fit: what a run on a card that is large enough showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FittingRun {
    account: Account,
    cuts: Vec<Cut>,
    time: Option<StepTime>,
}

impl FittingRun {
    /// Of its processes, the worst first.
    pub fn of(run: &Capture, processes: &[ProcessAnswer]) -> Option<FittingRun> {
        let worst = processes.first()?;
        let (time, _) = predicted(run, worst.steps);
        let mut cuts = worst.cuts.clone();
        if let Some(time) = &time {
            advice::add_times(&mut cuts, time, run.card.speed);
        }
        let mut account = worst.account.clone();
        let cards = run.occupancy.cards(processes, &run.traces);
        let context = run.card.context.cast_signed();
        let total = cards.first().map_or(account.total + context, |card| card.peak);
        account.on_card(cards.first(), worst.process, context, total);
        Some(FittingRun { account, cuts, time: time.as_ref().map(StepTime::of) })
    }
}

impl Answer {
    /// The largest try of any process that was too much, after which the script went on with less.
    pub fn went_on_after(&self) -> Option<&Caught> {
        self.processes.iter().flat_map(|process| &process.caught).max_by_key(|caught| caught.largest)
    }

    /// Adds what PyTorch's allocator said of smaller cards than this one.
    fn complete(&mut self, needs: Needs, card: &Card) {
        let Some(worst) = self.processes.first_mut() else { return };
        // What lies in pools is no fragmentation.
        let saves = |one: OnePool| needs.expandable.is_none_or(|expandable| one.reserved < expandable);
        let is_pooled = needs.pools.is_some_and(saves);
        worst.fragmentation.reserved_if_expandable = needs.expandable.filter(|_| !is_pooled);
        worst.fragmentation.saved_if_expandable = needs.saved_if_expandable.filter(|_| !is_pooled);
        if let Some(one) = needs.pools {
            let ran_out = self.verdict == RehearsalVerdict::DoesNotFit;
            let reserved = if ran_out { needs.least - (needs.contexts * card.context).cast_signed() } else { worst.peak_reserved };
            super::findings::pools::add(&mut worst.findings, reserved, one, ran_out);
        }
        if needs.least == 0 {
            return;
        }
        let least = needs.least;
        // What was seen to run out is not enough.
        if self.verdict == RehearsalVerdict::DoesNotFit && least <= self.gpu.memory {
            let enough = Bytes(least.unsigned_abs());
            let text =
                format!("memory ran out here, and where there is more of it {enough} do: it asks for more where it sees less");
            self.notes.push(Note::new(NoteKind::Unknown, text));
            return;
        }
        self.needs_at_least = Some(least);
        // A hundredth is what a figure says.
        let starts_from = (needs.unknown * 100 > least).then_some(least - needs.unknown);
        self.serves.iter_mut().for_each(|serves| serves.starts_from = starts_from);
        let beside = least.unsigned_abs().saturating_sub(needs.contexts * card.context);
        self.smallest_card = card.smallest_with(beside, needs.contexts).and_then(|card| card.name);
        match self.verdict {
            RehearsalVerdict::DoesNotFit => self.headroom = self.gpu.memory - least,
            RehearsalVerdict::Fits if is_near(least, self.gpu.memory) => self.verdict = RehearsalVerdict::BarelyFits,
            _ => {}
        }
    }

    /// Says what fills the card, and what to change; once what the job needs is known, or where it is not.
    fn advise(&mut self, fitting: Option<&FittingRun>) {
        let Some(worst) = self.processes.first() else { return };
        let (mut account, mut cuts) = match fitting {
            Some(run) => (run.account.clone(), run.cuts.clone()),
            None => (worst.account.clone(), worst.cuts.clone()),
        };
        match (fitting, self.needs_at_least) {
            (Some(_), Some(needs)) => {
                account.hold_to(needs);
                worst.limit.iter().for_each(|share| account.withhold(*share));
            }
            (Some(_), None) => {}
            (None, _) => account.on_card(self.cards.first(), worst.process, self.gpu.context, self.peak_on_device),
        }
        debug_assert_eq!(account.total, account.rows.iter().map(|row| row.bytes).sum::<i64>());
        if let (None, Some(time)) = (fitting, &self.time) {
            advice::add_times(&mut cuts, time, sim::cards::Speed::of_gpu(&self.gpu.name));
        }
        let needs = self.needs_at_least.unwrap_or(account.total);
        if let Some(frees) = worst.fragmentation.saved_if_expandable {
            advice::add_fragmentation(&mut cuts, frees);
        }
        let host_memory = self.host.as_ref().map_or(0, |host| host.host);
        // Where memory ran out and no larger run is known, what was there says nothing of what is needed.
        let is_known = fitting.is_some() || self.verdict != RehearsalVerdict::DoesNotFit;
        let memory =
            if self.verdict == RehearsalVerdict::DoesNotFit { self.gpu.memory.min(needs - 1) } else { self.gpu.memory.max(needs) };
        // A pool takes what techniques free: of a server `more` says what gives more of it.
        let is_known = is_known && !self.serves.as_ref().is_some_and(|serves| serves.starts);
        self.advice = if is_known { advice::advice(&cuts, Job { needs, memory, host_memory }) } else { Vec::new() };
        self.time_if_it_fitted = fitting.and_then(|run| run.time.clone());
        self.account = Some(account).filter(|account| account.total > 0);
    }

    /// What the fullest card would have if the peaks of all processes that may run at one time coincided.
    pub fn if_peaks_coincide(&self) -> i64 {
        self.cards.iter().map(|card| card.if_peaks_coincide).max().unwrap_or(self.peak_on_device)
    }

    /// Whether it fits without NCCL's buffers, and may not with them.
    pub fn nccl_decides(&self) -> bool {
        let most = self.nccl.map_or(0, |buffers| buffers.most);
        self.peak_on_device <= self.gpu.memory && self.peak_on_device + most > self.gpu.memory
    }

    /// The same on another card, which the run names now: its name, and the time of a step.
    pub fn moved(self, run: &Capture) -> Answer {
        let gpu = SimulatedGpu::of(&run.card, gpus(run));
        let (time, time_missing) = predicted(run, self.steps);
        Answer { gpu, time, time_missing, ..self }
    }

    /// The same of an engine, which says what it would have on the card that the run names now.
    pub fn served(self, run: &Capture, needs: Option<Needs>) -> Answer {
        let mut answer = self.moved(run);
        answer.cards.clear();
        answer.account = None;
        let is_too_small = needs.is_some_and(|needs| needs.least > answer.gpu.memory);
        let lacks = is_too_small || serving::lacks(&run.traces);
        answer.verdict = if lacks { RehearsalVerdict::DoesNotFit } else { RehearsalVerdict::Fits };
        answer.serves = Serves::of(run, &answer.processes, answer.time.as_ref(), !lacks);
        let left = answer.serves.as_ref().and_then(Serves::left).unwrap_or(0);
        (answer.peak_on_device, answer.headroom) = (answer.gpu.memory - left, left);
        answer.peak_reserved = answer.peak_on_device - answer.gpu.context;
        (answer.peak_allocated, answer.peak_requested) = (answer.peak_reserved, answer.peak_reserved);
        if let Some(needs) = needs {
            answer.complete(needs, &run.card);
        }
        answer
    }

    /// What was rehearsed on a card with memory for anything, on this one: the allocator has no more than that, and gives back what it keeps.
    pub fn hold_to(&mut self, mut needs: Needs, card: &Card, rehearsed: &Card) {
        let before = needs.least;
        needs.move_to(card, rehearsed);
        let more = needs.least - before;
        let (memory, if_peaks_coincide) = (self.gpu.memory, self.if_peaks_coincide() + more);
        self.peak_on_device = (self.peak_on_device + more).min(memory);
        self.peak_reserved = self.peak_reserved.min(memory - self.gpu.context).max(0);
        self.headroom = memory - self.peak_on_device;
        if let Some(other) = &mut self.other_values {
            other.peak_on_device += more;
            other.fits = other.fits && (other.endless || other.peak_on_device <= memory);
        }
        // Of the other card.
        self.cards.clear();
        if needs.least > memory {
            self.verdict = RehearsalVerdict::DoesNotFit;
        } else if (needs.contexts > 1 && if_peaks_coincide > memory) || self.nccl_decides() {
            self.verdict = RehearsalVerdict::BarelyFits;
        }
        self.complete(needs, card);
        self.advise(None);
    }

    /// Reads what is written in those lines; of a file that is not there, nothing.
    pub fn lines(&self) -> BTreeMap<String, String> {
        let mut files: HashMap<String, String> = HashMap::new();
        let mut line = |name: &str| {
            let (file, number) = name.rsplit_once(':')?;
            let text = files.entry(file.to_string()).or_insert_with(|| source(file).unwrap_or_default());
            let number: usize = number.parse().ok()?;
            Some(text.lines().nth(number.wrapping_sub(1))?.trim().to_string())
        };
        let peaks = self.processes.iter().map(|process| &process.peak);
        let names =
            peaks.flat_map(|peak| peak.lines.iter().map(|held| &held.name).chain(peak.contents.iter().map(|group| &group.line)));
        names.filter_map(|name| Some((name.clone(), line(name)?))).collect()
    }

    /// Adds what was found out beside the capture.
    pub fn add(&mut self, found: &Found, card: &Card) {
        // What is written in the lines that hold memory at the peak.
        for peak in self.processes.iter_mut().map(|process| &mut process.peak) {
            peak.lines.iter_mut().for_each(|held| held.source = found.lines.get(&held.name).cloned());
            peak.contents.iter_mut().for_each(|group| group.source = found.lines.get(&group.line).cloned());
        }
        for process in &mut self.processes {
            if let Some(attention) = &process.explicit_attention {
                super::findings::attention::add_source(attention, &process.peak.contents, &mut process.findings);
            }
        }
        if let Some(needs) = found.needs {
            self.complete(needs, card);
            if !self.verdict.fits() && self.went_on_after().is_some() {
                let note =
                    "'needs at least' is of what the script asked for first: where nothing runs out it does not go on with less";
                self.notes.push(Note::new(NoteKind::Assumed, note));
            }
        }
        let least_missing =
            found.needs_missing.iter().map(|why| format!("the least memory that would do could not be found: {why}"));
        let missing = least_missing.chain(found.other_values_missing.clone());
        self.notes.extend(missing.map(|text| Note::new(NoteKind::Unknown, text)));
        self.advise(found.fitting.as_ref());
        self.other_values = found.other_values.clone();
    }
}

/// What came of a session.
///
/// # Errors
/// There is nothing to rehearse, or no whole answer; with the reason.
pub fn answer(run: &Capture) -> Result<Answer> {
    nothing::incomplete(run)?;
    let ended_well = ends::ended_well(run);
    let mut processes = answers(&run.traces, !ended_well);
    if processes.is_empty() {
        nothing::nothing(run, run.command.first().map_or("", String::as_str))?;
    }
    let enough = run.traces.iter().any(|trace| trace.stopped.is_some());
    let missing = ends::missing(&run.traces).filter(|_| !ended_well && !run.timed_out && !run.interrupted);
    let failed = !ended_well && (!enough || missing.is_some());
    let ran_out = processes.iter().any(|answer| answer.out_of_memory.is_some()) || serving::lacks(&run.traces);
    // A Ctrl-C is none of its failures.
    let (one_failed, refused) = (ends::failed(&run.traces).filter(|_| !run.interrupted), ends::refused(&run.traces));
    let cut_short = CutShort::of(run, one_failed.as_ref());
    let one_failed = one_failed.filter(|_| cut_short.is_none());
    let left_early = ends::left_early(&run.traces).filter(|_| ended_well && !run.waited);
    let failed = failed && cut_short.is_none() || left_early.is_some();
    let verdict = match () {
        () if ran_out => RehearsalVerdict::DoesNotFit,
        () if run.timed_out && !enough => RehearsalVerdict::TimedOut,
        () if run.interrupted && !enough => RehearsalVerdict::Interrupted,
        () if failed || one_failed.is_some() => RehearsalVerdict::ScriptFailed,
        () if cut_short.is_some() || !refused.is_empty() => RehearsalVerdict::FitsInPart,
        () => RehearsalVerdict::Fits,
    };
    let cards = run.occupancy.cards(&processes, &run.traces);
    fullest_first(&mut processes, &cards);
    let worst = processes.first();
    let figure = |of: fn(&ProcessAnswer) -> i64| worst.map_or(0, of);
    let (memory, context) = (run.card.memory.cast_signed(), run.card.context.cast_signed());
    let on_device = cards.first().map_or(figure(|p| p.peak_reserved) + context, |card| card.peak);
    let ends = ends_of(run, &processes, failed, (verdict, one_failed.as_ref()), left_early, missing);
    let streams = run.traces.iter().filter_map(HeldByStreams::of).max_by_key(|held| held.bytes);
    let notes = notes_of(run, ends, streams.as_ref());
    let (time, time_missing) = predicted(run, worst.map_or(0, |answer| answer.steps));
    let mut answer = Answer {
        schema: SCHEMA,
        command: run.command.clone(),
        gpu: SimulatedGpu::of(&run.card, gpus(run)),
        verdict,
        no_code: run.traces.iter().find_map(|trace| trace.no_code.clone()),
        failed: one_failed.filter(|_| verdict == RehearsalVerdict::ScriptFailed),
        cut_short: cut_short.filter(|_| verdict == RehearsalVerdict::FitsInPart),
        refused,
        serves: None,
        engine: None,
        steps: worst.map_or(0, |answer| answer.steps),
        peak_requested: figure(|p| p.peak_requested),
        peak_allocated: figure(|p| p.peak_allocated),
        peak_reserved: figure(|p| p.peak_reserved),
        peak_on_device: on_device,
        headroom: memory - on_device,
        needs_at_least: None,
        smallest_card: None,
        came_to_its_end: ended_well && !enough && !run.timed_out && !run.interrupted,
        passes: run.traces.iter().filter(|trace| trace.stopped == Some(0)).map(passes_of).max(),
        timed_out_after: run.timeout.filter(|_| verdict == RehearsalVerdict::TimedOut),
        account: None,
        advice: Vec::new(),
        time_if_it_fitted: None,
        time,
        time_missing,
        other_values: None,
        host: HostMemory::of(&run.traces, run.host_memory),
        held_back: run.held.clone(),
        processes,
        cards,
        streams: streams.filter(|_| run.lag == 0),
        managed: run.traces.iter().map(|trace| trace.managed).sum(),
        nccl: run.traces.iter().filter_map(|trace| nccl::buffers(trace, &run.card)).max_by_key(|buffers| buffers.most),
        notes,
    };
    // Where what is not known decides.
    let streams = answer.streams.is_some_and(|held| held.bytes > answer.headroom);
    if answer.verdict == RehearsalVerdict::Fits && (answer.if_peaks_coincide() > memory || answer.nccl_decides() || streams) {
        answer.verdict = RehearsalVerdict::BarelyFits;
    }
    let served = Serves::of(run, &answer.processes, answer.time.as_ref(), answer.verdict.fits());
    match served {
        Some(engine) if engine.kv_cache > 0 && serving::is_beside_training(&run.traces) => {
            answer.engine = Some(engine.beside_training())
        }
        served => answer.serves = served,
    }
    Ok(answer)
}

/// How processes ended, in sentences.
fn ends_of(
    run: &Capture,
    processes: &[ProcessAnswer],
    failed: bool,
    (verdict, one_failed): (RehearsalVerdict, Option<&FailedProcess>),
    left_early: Option<(u32, u32)>,
    missing: Option<u32>,
) -> Vec<String> {
    let mut ends = ends::beside(&run.traces, verdict == RehearsalVerdict::ScriptFailed, one_failed);
    ends.extend(ends::crashed_as_it_closed(run).then(|| format!("{}{}", ends::CRASHED, run.end())));
    if run.timed_out && run.traces.iter().any(|trace| trace.stopped.is_some()) {
        ends.push("it had not ended by itself when the time of --timeout was over; its steps had been seen".to_string());
    }
    ends.extend(left_early.map(|(rank, steps)| {
        format!(
            "rank {rank} left after step {steps}, without an error: on real GPUs the others would wait for it until their time-out"
        )
    }));
    let is_named = left_early.is_some() || one_failed.is_some() || processes.iter().any(|process| process.exception.is_some());
    if failed && !run.timed_out && !run.interrupted && !is_named {
        let rank = missing.map_or(String::new(), |rank| format!("rank {rank} ended before its steps were done; "));
        ends.push(format!("{rank}the command did not end well: {}", run.end()));
    }
    ends
}

/// What the processes said, each once, how they ended, and what was assumed.
fn notes_of(run: &Capture, ends: Vec<String>, streams: Option<&HeldByStreams>) -> Vec<Note> {
    let mut said = HashSet::new();
    let of_processes = run.traces.iter().flat_map(|trace| &trace.notes).filter(|note| said.insert(*note));
    let mut notes: Vec<Note> = of_processes.cloned().collect();
    notes.extend(ends.into_iter().map(|text| Note::new(NoteKind::Ended, text)));
    notes.extend(run.host_ran_out().map(|text| Note::new(NoteKind::HostRanOut, text)));
    notes.extend(streams.map(|held| Note::new(NoteKind::Assumed, held.note(run.lag))));
    if run.occupancy.is_crowded {
        let text = "more than 1024 processes used the GPU at one time: what later ones had is not in what was free for others";
        notes.push(Note::new(NoteKind::Assumed, text));
    }
    notes
}

/// GPUs of the simulated machine: where nobody says how many, it has one for each rank that was started on it.
fn gpus(run: &Capture) -> u32 {
    run.traces.iter().filter_map(|trace| Some(trace.devices.as_ref()?.1)).fold(run.gpus, u32::max)
}

/// Plays ranks that were rehearsed one by one against each other; none where they move nothing, or one has no step.
pub fn play_ranks<'a>(runs: impl Iterator<Item = (&'a Capture, &'a Answer)> + Clone) -> Option<RanksTogether> {
    let (first, _) = runs.clone().next()?;
    let steps = runs.clone().map(|(_, answer)| answer.steps).min()?;
    let traces: Vec<&Trace> = runs.flat_map(|(run, _)| &run.traces).collect();
    time::play_ranks(&traces, &first.card, steps, first.host_factor)
}

/// The time of a step, of the process whose steps take longest; or why there is none.
fn predicted(run: &Capture, steps: u32) -> (Option<Prediction>, Option<String>) {
    let predicted = |trace: &Trace| {
        run.one_training()?;
        let mut time = predict(trace, &run.card, steps, run.host_factor)?;
        time.busy = run.host_factor.map(|_| run.load).filter(|load| *load > 1.0);
        // Batches of a forward pass, where there is no step.
        let rounds = time.passes.map_or(steps, |passes| passes as u32);
        let loading = Loading::of(trace, &run.traces, time.seconds(), (rounds, run.cores));
        // Texts of several lengths have as many tokens as they have.
        let each = loading.as_ref().filter(|_| time.unit != TOKEN);
        time.epoch = each.and_then(|loading| loading.steps_per_epoch).map(|steps| time.of_steps(steps));
        time.loading = loading;
        Ok(time)
    };
    let length = |one: &Result<Prediction, String>| one.as_ref().map_or(0.0, |time| time.step_seconds);
    // Of several that are as long the first.
    let longest = run.traces.iter().rev().map(predicted).max_by(|a, b| length(a).total_cmp(&length(b)));
    let longest = longest.map(|found| {
        let mut time = found?;
        if let Some(job) = time::play_ranks(&run.traces.iter().collect::<Vec<_>>(), &run.card, steps, run.host_factor) {
            let first = run.traces.iter().find(|trace| trace.process.rank == job.ranks.first().map(|first| first.rank));
            let first = first.and_then(|trace| predict(trace, &run.card, steps, run.host_factor).ok());
            time.in_job(&job, first.as_ref());
        }
        Ok(time)
    });
    let found = longest.unwrap_or_else(|| Err("nothing ran on the GPU".to_string()));
    found.map_or_else(|why| (None, Some(why)), |time| (Some(time), None))
}

fn passes_of(trace: &Trace) -> usize {
    trace.events.iter().filter(|event| event.kind == Kind::Pass).count()
}

/// What each process needs of each card, the worst first. Those that used none are listed where all are such.
pub fn answers(traces: &[Trace], command_failed: bool) -> Vec<ProcessAnswer> {
    // A pool's worker gives its exception to the parent, which ends by it, and goes on.
    let raises = |trace: &Trace| trace.exception.as_ref().is_some_and(|exception| exception.out_of_memory && !exception.of_thread);
    let has_run_out = |trace: &Trace| trace.events.iter().any(|event| event.kind == Kind::OutOfMemory);
    let is_of_another = traces.iter().any(|trace| raises(trace) && !has_run_out(trace));
    let ends_by_it = |trace: &Trace| raises(trace) || is_of_another;
    let mut answers: Vec<ProcessAnswer> =
        traces.iter().flat_map(|trace| process_answers(trace, ends_by_it(trace), command_failed)).collect();
    if answers.iter().any(|answer| answer.peak_reserved > 0 || answer.out_of_memory.is_some()) {
        answers.retain(|answer| answer.peak_reserved > 0 || answer.out_of_memory.is_some());
    }
    answers.sort_by_key(|answer| (answer.out_of_memory.is_none(), -answer.peak_reserved));
    answers
}

/// Where memory ran out for a process that has little of the card, the one beside it that has most comes first: it is why that does not fit.
fn fullest_first(processes: &mut [ProcessAnswer], cards: &[CardAnswer]) {
    let Some(ran_out) = processes.first().filter(|first| first.out_of_memory.is_some()) else { return };
    let is_it = |process: &ProcessAnswer, of: &OnCard| (of.process, of.device) == (process.process, Some(process.device));
    let card = cards.iter().find(|card| card.beside().any(|of| is_it(ran_out, of)));
    let fullest = card.and_then(|card| processes.iter().position(|process| is_it(process, &card.processes[0])));
    if let Some(at) = fullest.filter(|at| processes[*at].peak_reserved > 2 * ran_out.peak_reserved) {
        processes[..=at].rotate_right(1);
    }
}
