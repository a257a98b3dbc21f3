//! Each card of the machine: who shared it, how full it was, and what was taken of it that is not PyTorch's.

use super::account::{Account, Part};
use super::process::ProcessAnswer;
use crate::capture::occupancy::{CardPeak, Occupancy, Share};
use crate::capture::process::{Frame, Trace};
use base::order::grouped;
use serde::Serialize;
use sim::trace::Kind;

impl Occupancy {
    /// Each card that was used, the one that a process ran out of memory on first, then the fullest.
    pub fn cards(&self, processes: &[ProcessAnswer], traces: &[Trace]) -> Vec<CardAnswer> {
        let mut cards: Vec<CardAnswer> = self.peaks.iter().map(|peak| self.card(peak, processes, traces)).collect();
        cards.sort_by_key(|card| {
            let ran_out = |of: &OnCard| {
                processes.iter().any(|p| p.process == of.process && Some(p.device) == of.device && p.out_of_memory.is_some())
            };
            (!card.processes.iter().any(ran_out), -card.peak, card.card)
        });
        cards
    }

    fn card(&self, peak: &CardPeak, processes: &[ProcessAnswer], traces: &[Trace]) -> CardAnswer {
        let mut shares: Vec<Share> = self.shares.iter().filter(|share| share.card == peak.card).cloned().collect();
        let mut on_card: Vec<OnCard> = Vec::new();
        for share in &mut shares {
            let trace = traces.iter().find(|trace| trace.process.id == share.process);
            let device = trace
                .and_then(|trace| trace.cards.iter().position(|card| *card == peak.card))
                .and_then(|at| u16::try_from(at).ok());
            let answer = processes.iter().find(|answer| answer.process == share.process && Some(answer.device) == device);
            // What a try held that ran out of memory and was caught counts for nobody.
            if let Some(answer) = answer {
                share.peak = share.peak.min(answer.peak_reserved + share.context + share.outside);
            }
            let mut outside = trace.zip(device).map(|(trace, device)| outside(trace, device)).unwrap_or_default();
            if outside.is_empty() && share.outside > 0 {
                outside.push(Outside { library: share.library.clone(), line: None, bytes: share.outside });
            }
            on_card.push(OnCard {
                process: share.process,
                rank: trace.and_then(|trace| trace.process.rank),
                device,
                most: share.peak,
                at_the_peak: peak.shares.iter().filter(|(process, _)| *process == share.process).map(|(_, bytes)| bytes).sum(),
                reserved: answer.map_or(0, |answer| answer.peak_reserved),
                context: share.context,
                outside: share.outside,
                outside_at: outside,
                beside_others: false,
            });
        }
        let together = together(&shares);
        for process in &mut on_card {
            process.beside_others = together.iter().any(|share| share.process == process.process);
        }
        let if_peaks_coincide = together.iter().map(|share| share.peak).sum();
        on_card.sort_by_key(|process| (!process.beside_others, -process.most));
        CardAnswer { card: peak.card, peak: peak.bytes.min(if_peaks_coincide), if_peaks_coincide, processes: on_card }
    }
}

/// One card and the processes that had memory of it.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct CardAnswer {
    /// Its number in the machine.
    pub card: usize,
    /// The most that was in use at one time.
    pub peak: i64,
    /// What the peaks of those processes add up to that may run at one time: rehearsed ones are not in step as real ones are.
    pub if_peaks_coincide: i64,
    pub processes: Vec<OnCard>,
}

impl CardAnswer {
    /// Those whose peaks may coincide.
    pub fn beside(&self) -> impl Iterator<Item = &OnCard> {
        self.processes.iter().filter(|process| process.beside_others)
    }

    /// Where memory was taken that is not PyTorch's.
    pub fn outside(&self) -> impl Iterator<Item = &Outside> {
        self.beside().flat_map(|process| &process.outside_at)
    }
}

impl Account {
    /// Of the whole card: beside the process's own its context, what others than PyTorch have, and other processes. `total` is what is in use in
    /// all.
    pub fn on_card(&mut self, card: Option<&CardAnswer>, process: u32, context: i64, total: i64) {
        let of = card.and_then(|card| card.processes.iter().find(|of| of.process == process));
        self.add(Part::Context, of.map_or(context, |of| of.context));
        self.add(Part::Outside, of.map_or(0, |of| of.outside));
        let is_shared = card.is_some_and(|card| card.processes.len() > 1);
        self.fill(if is_shared { Part::OtherProcesses } else { Part::Cached }, total);
    }
}

/// A process on a card, in bytes.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct OnCard {
    pub process: u32,
    pub rank: Option<u32>,
    /// What the process itself calls the card; none of one that PyTorch did not use.
    pub device: Option<u16>,
    /// The most that it had, context included; and what it had when the card was fullest.
    pub most: i64,
    pub at_the_peak: i64,
    /// Of that: by PyTorch's allocator, its CUDA context, and by others.
    pub reserved: i64,
    pub context: i64,
    pub outside: i64,
    pub outside_at: Vec<Outside>,
    /// Whether it is one of those whose peaks may coincide.
    pub beside_others: bool,
}

/// Memory that others than PyTorch's allocator had when they had the most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Outside {
    pub library: String,
    pub line: Option<Frame>,
    pub bytes: i64,
}

fn outside(trace: &Trace, device: u16) -> Vec<Outside> {
    let mut live: Vec<(u64, Outside)> = Vec::new();
    let mut most: (i64, Vec<Outside>) = (0, Vec::new());
    for event in trace.events.iter().filter(|event| event.kind == Kind::Outside && event.rounded == 0 && event.device == device) {
        if event.bytes < 0 {
            live.retain(|(address, _)| *address != event.address);
            continue;
        }
        let library = trace.operators.get(&event.operator.into()).cloned().unwrap_or_default();
        let line = trace.line(event.stack).cloned();
        live.push((event.address, Outside { library, line, bytes: event.bytes }));
        let bytes = live.iter().map(|(_, taken)| taken.bytes).sum();
        if bytes > most.0 {
            let rows = grouped(live.iter().map(|(_, taken)| (Outside { bytes: 0, ..taken.clone() }, taken.bytes))).into_iter();
            let mut rows: Vec<Outside> = rows.map(|(row, bytes)| Outside { bytes: bytes.iter().sum(), ..row }).collect();
            rows.sort_by_key(|row| -row.bytes);
            most = (bytes, rows);
        }
    }
    most.1
}

/// Those processes of a card that may have run at one time whose peaks add up to the most.
fn together(shares: &[Share]) -> Vec<&Share> {
    let at = |time: u64| -> Vec<&Share> { shares.iter().filter(|share| share.began <= time && time < share.ended).collect() };
    let sum = |shares: &Vec<&Share>| shares.iter().map(|share| share.peak).sum::<i64>();
    shares.iter().map(|share| at(share.began)).max_by_key(sum).unwrap_or_default()
}
