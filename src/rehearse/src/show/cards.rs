//! What the terminal's answer says of the cards: who shares them, what was taken outside of PyTorch, what NCCL takes.

use super::words::{bytes, place_of, row};
use crate::answer::{Answer, Outside};
use crate::capture::plain::on_one_line;
use std::fmt::Write;

/// Rows of the first table.
pub(super) fn rows(text: &mut String, answer: &Answer) -> std::fmt::Result {
    let Some(card) = answer.cards.first() else {
        return row(text, "on the GPU", answer.peak_on_device, &format!("with {} of context (assumed)", bytes(answer.gpu.context)));
    };
    for outside in card.outside() {
        row(text, "outside", outside.bytes, &taken_outside(outside))?;
    }
    let at_once = card.processes.iter().filter(|process| process.at_the_peak > 0).count();
    let contexts = answer.gpu.context * at_once.max(1) as i64;
    let what = match at_once {
        0 | 1 => format!("with {} of context (assumed)", bytes(contexts)),
        n => format!("of {n} processes at the same time, with {} of contexts (assumed)", bytes(contexts)),
    };
    row(text, "on the GPU", answer.peak_on_device, &what)?;
    match answer.if_peaks_coincide() {
        most if most > answer.peak_on_device => row(text, "at most", most, "if the peaks of all processes coincide"),
        _ => Ok(()),
    }?;
    match &answer.nccl {
        Some(nccl) => writeln!(
            text,
            "  NCCL           {} to {} more for {} communicator{} on a GPU, in no figure here (by its sources; NCCL_NVLS_ENABLE=0 and NCCL_BUFFSIZE lower it)",
            bytes(nccl.least),
            bytes(nccl.most),
            nccl.communicators,
            if nccl.communicators == 1 { "" } else { "s" }
        ),
        None => Ok(()),
    }
}

/// `taken outside of PyTorch by raw.so at train.py:12 (main)`
pub(super) fn taken_outside(outside: &Outside) -> String {
    let at = outside.line.as_ref().map_or(String::new(), |line| format!(" at {}", place_of(line)));
    format!("taken outside of PyTorch's allocator by {}{at}", on_one_line(&outside.library))
}

/// Why a script that fitted may not.
pub(super) fn doubt(answer: &Answer) -> String {
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

/// Each card that several processes had memory of.
pub(super) fn shared(text: &mut String, answer: &Answer) -> std::fmt::Result {
    for card in answer.cards.iter().filter(|card| card.processes.len() > 1) {
        writeln!(
            text,
            "\n  GPU {} is shared: {} at the same time at most. Each process at its most, and when the GPU was fullest:",
            card.card,
            bytes(card.peak)
        )?;
        writeln!(
            text,
            "    {:<10} {:<6} {:>14} {:>14} {:>14} {:>14} {:>14}",
            "process", "rank", "reserved", "context", "outside", "at most", "then"
        )?;
        for process in &card.processes {
            let rank = process.rank.map_or("-".to_string(), |rank| rank.to_string());
            let [reserved, context, outside, most, then] =
                [process.reserved, process.context, process.outside, process.most, process.at_the_peak].map(bytes);
            writeln!(
                text,
                "    {:<10} {rank:<6} {reserved:>14} {context:>14} {outside:>14} {most:>14} {then:>14}",
                process.process
            )?;
        }
    }
    Ok(())
}
