//! `vramlab fit` of a server: its pool fills the card whatever it is told, so that bytes say nothing of the bound. It starts, and with the next number
//! that is tried it does not; an engine says itself with how long a context it would.

use super::fitted::{Dimension, Fit, MOST, TriedNumber, with_number};
use super::template::FlagTemplate;
use crate::answer::reply::short_failure;
use crate::answer::{Answer, Serves, answer};
use crate::capture::session::ScriptFailed;
use crate::run::executor::Rehearsal;
use anyhow::Result;

/// A search ends where what starts and what does not are as near: a share.
const NEAR: u64 = 64;
const MOST_CARDS: u64 = 8;

/// The largest number with which it starts, of cards the fewest; by the first answer, which is of `first`.
pub(super) fn fit(rehearsal: &Rehearsal, of: Dimension, template: &FlagTemplate, first: (u64, Answer)) -> Result<Fit> {
    let mut tried: Vec<TriedNumber> = Vec::new();
    let (mut low, mut high, mut ends_at) = (0_u64, MOST + 1, None);
    let mut best: Option<Answer> = None;
    let (mut next, mut known) = (first.0, Some(first.1));
    // What an engine said that it would start with.
    let mut said = None;
    loop {
        let found = match known.take() {
            Some(answer) => answer,
            None => {
                let mut one = with_number(rehearsal, template, next);
                one.gpus = if of == Dimension::Cards { u32::try_from(next).ok() } else { one.gpus };
                let run = one.run_in_silence()?;
                let found = answer(&run)?;
                if found.serves.is_none() {
                    let why = short_failure(&found, &run);
                    if low == 0 || of == Dimension::Cards {
                        return Err(ScriptFailed(format!("the script failed with {}: {why}", template.text(next))).into());
                    }
                    // A length that the model has not, for instance.
                    (high, ends_at, next) = (next, Some(low), low.midpoint(next));
                    if is_near(low, high) { break } else { continue }
                }
                found
            }
        };
        let starts = found.verdict.fits() && found.serves.as_ref().is_some_and(|serves| serves.starts);
        (rehearsal.progress)(&format!("{}: {}", template.text(next), if starts { "it starts" } else { "it does not start" }));
        tried.push(TriedNumber { number: next, fits: starts, peak_reserved: starts.then_some(found.peak_reserved), time: None });
        let longest = found.serves.as_ref().filter(|_| of == Dimension::Context && !starts).and_then(longest);
        if starts {
            (low, best) = (low.max(next), Some(found));
        } else {
            high = high.min(next);
        }
        if of == Dimension::Cards {
            if starts || next >= MOST_CARDS {
                break;
            }
            next *= 2;
            continue;
        }
        if (starts && said == Some(next)) || is_near(low, high) {
            break;
        }
        said = longest.filter(|longest| (low + 1..high).contains(longest));
        next = match said {
            Some(longest) => longest,
            _ if high > MOST => low * 2,
            _ => low.midpoint(high),
        };
    }
    tried.sort_by_key(|tried| tried.number);
    let holds =
        best.as_ref().and_then(|answer| Some(format!("With {} it has {}.", template.text(low), answer.serves.as_ref()?.holds())));
    Ok(Fit {
        gpu: rehearsal.card.to_string(),
        of,
        largest: low,
        recommended: None,
        ends_at,
        peak_reserved: best.as_ref().map(|answer| answer.peak_reserved),
        headroom: best.as_ref().map(|answer| answer.headroom),
        rehearsals: tried.len(),
        tried,
        limits: holds.into_iter().collect(),
        enough: None,
    })
}

fn is_near(low: u64, high: u64) -> bool {
    high - low <= 1 + low / NEAR
}

/// The length of which an engine says that it would start with it.
fn longest(serves: &Serves) -> Option<u64> {
    serves.would_start.iter().find_map(|flag| flag.rsplit(' ').next()?.parse().ok())
}
