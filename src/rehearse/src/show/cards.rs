//! What the terminal's answer says of the cards: who shares them, what was taken outside of PyTorch, what NCCL takes.

use crate::answer::{Answer, Outside};
use crate::capture::plain::on_one_line;
use crate::words::{bytes, place_of, row};
use base::units::counted;
use std::fmt::Write;

/// Rows of the first table.
pub(super) fn rows(text: &mut String, answer: &Answer) -> std::fmt::Result {
    let Some(card) = answer.cards.first() else {
        return row(text, "on the GPU", answer.peak_on_device, &format!("with {} of context (assumed)", bytes(answer.gpu.context)));
    };
    for Outside { library, line, bytes } in card.outside() {
        let at = line.as_ref().map_or(String::new(), |line| format!(" at {}", place_of(line)));
        let what = format!("taken outside of PyTorch's allocator by {}{at}", on_one_line(library));
        row(text, "outside", *bytes, &what)?;
    }
    let at_once = card.processes.iter().filter(|process| process.at_the_peak > 0).count();
    let contexts = answer.gpu.context * at_once.max(1) as i64;
    let what = match at_once {
        0 | 1 => format!("with {} of context (assumed)", bytes(contexts)),
        n => format!("of {n} processes at the same time, with {} of contexts (assumed)", bytes(contexts)),
    };
    row(text, "on the GPU", answer.peak_on_device, &what)?;
    let most = answer.if_peaks_coincide();
    if most > answer.peak_on_device {
        row(text, "at most", most, "if the peaks of all processes coincide")?;
    }
    let Some(nccl) = &answer.nccl else { return Ok(()) };
    let more = format!("{} to {} more for {}", bytes(nccl.least), bytes(nccl.most), counted(nccl.communicators, "communicator"));
    let lower = "by its sources; NCCL_NVLS_ENABLE=0 and NCCL_BUFFSIZE lower it";
    writeln!(text, "  NCCL           {more} on a GPU, in no figure here ({lower})")
}

/// Each card that several processes had memory of.
pub(super) fn shared(text: &mut String, answer: &Answer) -> std::fmt::Result {
    for card in answer.cards.iter().filter(|card| card.processes.len() > 1) {
        let (number, peak) = (card.card, bytes(card.peak));
        writeln!(
            text,
            "\n  GPU {number} is shared: {peak} at the same time at most. Each process at its most, and when the GPU was fullest:"
        )?;
        let mut row = |process: &str, rank: &str, [reserved, context, outside, most, then]: [&str; 5]| {
            writeln!(text, "    {process:<10} {rank:<6} {reserved:>14} {context:>14} {outside:>14} {most:>14} {then:>14}")
        };
        row("process", "rank", ["reserved", "context", "outside", "at most", "then"])?;
        for of in &card.processes {
            let rank = of.rank.map_or("-".to_string(), |rank| rank.to_string());
            let figures = [of.reserved, of.context, of.outside, of.most, of.at_the_peak].map(bytes);
            row(&of.process.to_string(), &rank, figures.each_ref().map(String::as_str))?;
        }
    }
    Ok(())
}
