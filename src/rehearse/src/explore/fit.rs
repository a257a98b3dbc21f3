//! `vramlab fit`: the largest batch or context that fits a card, found by rehearsals: it fits, and the next one does not.

use super::fitted::{MOST, with_number};
use super::replay::{self, AllocationTrace};
use super::template::FlagTemplate;
use super::{fit_server, of_each};

pub use super::fitted::{Dimension, Fit, TriedNumber, TriedTime};
use crate::answer::reply::short_failure;
use crate::answer::{Answer, ProcessAnswer, RehearsalVerdict, answer, is_near, surely};
use crate::capture::session::{Capture, ScriptFailed};
use crate::run::executor::Rehearsal;
use crate::words::signed_or_dash;
use anyhow::{Error, Result, anyhow, bail, ensure};
use base::units::{Bytes, Seconds, significant};
use sim::cards::Card;
use sim::trace::Phase;
use std::cell::RefCell;
use std::thread;

/// The first number tried where the command has none; models with BatchNorm do not take 1.
const FIRST: u64 = 4;
/// Shorter sequences are padded by some kernels.
const FIRST_CONTEXT: u64 = 256;

/// The largest number that fits each card: of a command that is given it as `template` says. Each card has a rehearsal of its own.
///
/// # Errors
/// The script fails, as a [`ScriptFailed`]; there is nothing to rehearse.
pub fn fit(rehearsals: &[Rehearsal], of: Dimension, template: &FlagTemplate) -> Result<Vec<Fit>> {
    // A rehearsal keeps about one core at work.
    let cores = thread::available_parallelism().map_or(1, usize::from).min(rehearsals.len());
    let rehearsals = Rehearsal::all_in_copies(rehearsals)?;
    of_each(&rehearsals, cores, |_, rehearsal| on_card(rehearsal, of, template)).into_iter().collect()
}

/// The answers as a table.
pub fn table(fits: &[Fit]) -> String {
    let width = fits.iter().map(|fit| fit.gpu.len()).max().unwrap_or(0).max(12);
    let mut text = format!(
        "\n  {:<width$} {:>16} {:>16} {:>14} {:>14} {:>11}\n",
        "GPU", "recommended", "just fits", "peak reserved", "headroom", "rehearsals"
    );
    for fit in fits {
        let number = |number: u64| match number {
            0 => "none".to_string(),
            MOST => format!("{} {MOST} or more", fit.of),
            number => format!("{} {number}", fit.of),
        };
        let (recommended, largest) = (fit.recommended.map_or("-".to_string(), number), number(fit.largest));
        let (peak, headroom) = (signed_or_dash(fit.peak_reserved), signed_or_dash(fit.headroom));
        text +=
            &format!("  {:<width$} {recommended:>16} {largest:>16} {peak:>14} {headroom:>14} {:>11}\n", fit.gpu, fit.rehearsals);
    }
    if fits.iter().any(|fit| fit.recommended.is_some_and(|number| number < fit.largest)) {
        text += "\n  Recommended leaves what the CUDA context, which is assumed, and a real GPU may add: 100 MiB and 2 %. Peak and headroom are of what\n";
        text += "  just fits.\n";
    }
    for fit in fits {
        if let Some(end) = fit.ends_at {
            text += &format!(
                "\n  {}: from {} {end} on more makes no difference: the data end there, or the script has a limit of its own.\n",
                fit.gpu, fit.of
            );
        }
    }
    if let Some(fit) = fits.iter().find(|fit| !fit.limits.is_empty()) {
        text += &format!("\n  {}\n", fit.limits.join(" "));
    }
    for fit in fits {
        throughput(&mut text, fit);
    }
    let too_small: Vec<&str> = fits.iter().filter(|fit| fit.largest == 0).map(|fit| fit.gpu.as_str()).collect();
    if !too_small.is_empty() {
        let gpus = too_small.join(", ");
        text += &format!("\n  Not even 1 fits {gpus}: vramlab rehearse --gpu {} --what-if tells what would help.\n", too_small[0]);
    }
    text
}

/// What each number that fitted brings, and from which on more brings nothing.
fn throughput(text: &mut String, fit: &Fit) {
    let timed: Vec<(u64, TriedTime)> = fit.tried.iter().filter_map(|tried| Some((tried.number, tried.time?))).collect();
    let Some((_, first)) = timed.first() else { return };
    let unit = if first.tokens_per_second.is_some() { "tokens/s" } else { "samples/s" };
    let is_doubled = timed.last().is_some_and(|(last, _)| last / 2 >= timed[0].0);
    *text += &format!("\n  {}: throughput (predicted)\n", fit.gpu);
    for (number, time) in &timed {
        let rate = time.rate().map_or("-".to_string(), |rate| format!("{} {unit}", significant(rate)));
        *text += &format!(
            "    {:<16} {rate:>20} {:>12} a step\n",
            format!("{} {number}", fit.of),
            Seconds(time.step_seconds).to_string()
        );
    }
    *text += &match fit.enough {
        Some(enough) => {
            format!("    From about {} {enough} on, doubling it gives less than {:.0} % more throughput.\n", fit.of, GAIN * 100.0)
        }
        None if is_doubled && fit.of == Dimension::Batch && first.rate().is_some() => {
            format!("    Doubling it to the largest that fits still gives at least {:.0} % more throughput.\n", GAIN * 100.0)
        }
        None => String::new(),
    };
}

/// Twice as much of a batch that brings less than this more throughput brings nothing.
const GAIN: f64 = 0.02;

/// The number from which on twice as much brings less than [`GAIN`] more throughput, by numbers that fitted and what a step of each does in a
/// second. Between two the time of a step is interpolated.
fn enough(rates: &[(u64, f64)]) -> Option<u64> {
    let ((first, _), (last, _)) = (rates.first()?, rates.last()?);
    // A step's time is number / rate, times a factor that is the same for all.
    let time = |number: f64| {
        let above = rates.iter().position(|(each, _)| *each as f64 >= number).unwrap_or(rates.len() - 1).max(1);
        let [(a, fast_a), (b, fast_b)] = [rates[above - 1], rates[above]].map(|(number, rate)| (number as f64, rate));
        let (time_a, time_b) = (a / fast_a, b / fast_b);
        time_a + (time_b - time_a) * (number - a) / (b - a)
    };
    let mut found = None;
    let mut number = *first;
    while rates.len() > 1 && number * 2 <= *last {
        let gain = 2.0 * time(number as f64) / time(number as f64 * 2.0) - 1.0;
        if gain < GAIN {
            found = found.or(Some(number))
        } else {
            found = None
        }
        number += (number / 16).max(1);
    }
    found
}

/// What was tried on a card.
struct Tries<'a> {
    rehearsal: &'a Rehearsal,
    of: Dimension,
    template: &'a FlagTemplate,
    /// Bytes that the card has beside its context.
    room: i64,
    /// The largest number that fits, with what it reserves and leaves.
    best: Option<(u64, i64, i64)>,
    tried: Vec<TriedNumber>,
    rehearsals: usize,
    limits: Option<Vec<String>>,
    /// What numbers that fit asked for, and those that do not.
    courses: Vec<(u64, AllocationTrace)>,
    failed: Vec<(u64, AllocationTrace)>,
    ends_at: Option<u64>,
    has_effect: bool,
    /// The answer of a server, of which the number is found otherwise.
    server: Option<Answer>,
}

fn no_effect(template: &FlagTemplate, less: u64, more: u64) -> anyhow::Error {
    anyhow!(
        "the command was given {} and {} and asked for the same memory, so there is no largest: is it the flag that the script reads, and has it data for more?",
        template.text(less),
        template.text(more)
    )
}

impl Tries<'_> {
    fn probe(&mut self, number: u64) -> Result<Probe> {
        let rehearsal = with_number(self.rehearsal, self.template, number);
        let run = rehearsal.run_in_silence()?;
        let answer = answer(&run)?;
        if answer.serves.is_some() {
            self.server = Some(answer);
            bail!("it is a server");
        }
        ensure!(self.of != Dimension::Cards, "cards are counted for servers alone; vramlab plan splits trainings over several");
        if self.limits.is_none() && answer.verdict.fits() {
            self.limits = Some(rehearsal.limits(&run, &answer));
        }
        self.rehearsals += 1;
        let fits = self.fits(number, &run, &answer)?;
        let time = answer.time.as_ref().filter(|_| fits).map(TriedTime::of);
        self.tried.push(TriedNumber { number, fits, peak_reserved: fits.then_some(answer.peak_reserved), time });
        let reserved = Bytes(answer.peak_reserved.unsigned_abs());
        let what = if fits { format!("fits, {reserved} reserved") } else { "does not fit".to_string() };
        (rehearsal.progress)(&format!("{}, {}: {what}", rehearsal.card, self.template.text(number)));
        let worst = answer.processes.first();
        let course = |worst: &ProcessAnswer| {
            let trace = run.traces.iter().find(|trace| trace.process.id == worst.process)?;
            Some(AllocationTrace::of(trace, worst))
        };
        if fits {
            if self.best.is_none_or(|(most, ..)| number > most) {
                self.best = Some((number, answer.peak_reserved, answer.headroom));
            }
            if let Some(course) = worst.and_then(course) {
                self.courses.push((number, course));
                self.courses.sort_by_key(|(number, _)| *number);
            }
            return Ok(Probe::Fits { allocated: answer.peak_allocated });
        }
        // What runs out while loading has nothing to do with a batch; after that each of another size asks for something else.
        let has_ended = |worst: &&ProcessAnswer| worst.out_of_memory.is_some() && worst.peak.phase != Phase::Load.name();
        if let Some(course) = worst.filter(has_ended).and_then(course) {
            self.compare_failed(number, course)?;
        }
        let idle = worst.and_then(|w| Some(self.room - w.out_of_memory.as_ref()?.free - w.peak.bytes)).unwrap_or(0);
        Ok(Probe::OutOfMemory { idle: idle.max(0) })
    }

    fn fits(&self, number: u64, run: &Capture, answer: &Answer) -> Result<bool> {
        Ok(match answer.verdict {
            // With so much it did not run, where it went on with less.
            verdict if verdict.fits() && answer.went_on_after().is_some() => false,
            RehearsalVerdict::Fits | RehearsalVerdict::BarelyFits => true,
            RehearsalVerdict::DoesNotFit => false,
            _ => {
                let why = short_failure(answer, run);
                let on =
                    |(most, ..): (u64, i64, i64)| format!("; with {} it fits {}", self.template.text(most), self.rehearsal.card);
                let fits = self.best.map_or(String::new(), on);
                return Err(ScriptFailed(format!("the script failed with {}: {why}{fits}", self.template.text(number))).into());
            }
        })
    }

    /// Whether a number that does not fit asked for the same as another one.
    fn compare_failed(&mut self, number: u64, course: AllocationTrace) -> Result<()> {
        if let Some((other, _)) = self.failed.iter().find(|(other, of_other)| *other != number && *of_other == course) {
            let (less, more) = (number.min(*other), number.max(*other));
            if self.best.is_some() {
                // Where some number made a difference it is the data that end.
                self.ends_at = Some(self.ends_at.unwrap_or(u64::MAX).min(less));
            } else if !self.has_effect {
                // It may make one later than memory runs out.
                self.rehearsals += 2;
                ensure!(self.peak_on_a_large_card(less)? != self.peak_on_a_large_card(more)?, no_effect(self.template, less, more));
                self.has_effect = true;
            }
        }
        self.failed.push((number, course));
        Ok(())
    }

    fn peak_on_a_large_card(&self, number: u64) -> Result<i64> {
        let large = with_number(&self.rehearsal.on_a_large_card(), self.template, number);
        Ok(answer(&large.run_in_silence()?)?.peak_allocated)
    }
}

fn on_card(rehearsal: &Rehearsal, of: Dimension, template: &FlagTemplate) -> Result<Fit> {
    let card: Card = rehearsal.card;
    let room = (card.memory - card.context).cast_signed();
    let now = template.number(&rehearsal.command);
    let first = match of {
        Dimension::Cards => 1,
        Dimension::Context => now.unwrap_or(FIRST_CONTEXT),
        Dimension::Batch => now.unwrap_or(FIRST),
    };
    let tries = RefCell::new(Tries {
        rehearsal,
        of,
        template,
        room,
        best: None,
        tried: Vec::new(),
        rehearsals: 0,
        limits: None,
        courses: Vec::new(),
        failed: Vec::new(),
        ends_at: None,
        has_effect: false,
        server: None,
    });
    let boundary_guess = |low, high| replay::largest(rehearsal, &tries.borrow().courses, low, high);
    let without_effect = |less, more| no_effect(template, less, more);
    let searched = search(first, room, boundary_guess, without_effect, |number| tries.borrow_mut().probe(number));
    let Tries { server, mut tried, best, rehearsals, limits, courses, ends_at, .. } = tries.into_inner();
    if let Some(answer) = server {
        return fit_server::fit(rehearsal, of, template, (first, answer));
    }
    let (largest, fitted_end) = searched?;
    tried.sort_by_key(|tried| tried.number);
    let rates: Vec<(u64, f64)> = tried.iter().filter_map(|tried| Some((tried.number, tried.time?.rate()?))).collect();
    Ok(Fit {
        enough: if of == Dimension::Batch { enough(&rates) } else { None },
        tried,
        limits: limits.unwrap_or_default(),
        gpu: card.to_string(),
        of,
        largest,
        recommended: recommended(rehearsal, template, &courses, largest),
        ends_at: fitted_end.or(ends_at),
        peak_reserved: best.map(|(_, peak, _)| peak),
        headroom: best.map(|(.., headroom)| headroom),
        rehearsals,
    })
}

/// The largest number whose need is not near to what the card has: by a replay of what fitted, and seen in a rehearsal.
fn recommended(rehearsal: &Rehearsal, template: &FlagTemplate, courses: &[(u64, AllocationTrace)], largest: u64) -> Option<u64> {
    let is_far = |number: u64| -> Option<bool> {
        let one = with_number(rehearsal, template, number);
        let run = one.run_in_silence().ok()?;
        let answer = answer(&run).ok()?;
        let needs = replay::needed(&one, &answer.processes, &run.traces, &answer.cards).ok()?;
        Some(answer.verdict.fits() && !is_near(needs.least, rehearsal.card.memory.cast_signed()))
    };
    if largest == 0 || is_far(largest)? {
        return Some(largest);
    }
    // A card that has less by what may be wrong.
    let smaller = Rehearsal { card: rehearsal.card.with_memory(surely(rehearsal.card.memory)), ..rehearsal.clone() };
    let least = courses.first().map_or(0, |(number, _)| number - 1);
    let mut number = replay::largest(&smaller, courses, least, largest).unwrap_or(largest - 1).min(largest - 1);
    for _ in 0..TRIES {
        if number == 0 || is_far(number)? {
            return Some(number);
        }
        number -= (number / 64).max(1);
    }
    None
}

/// How many numbers are tried for one that is surely no more than the card has.
const TRIES: usize = 4;

/// What a rehearsal of one number showed.
enum Probe {
    /// Most bytes allocated.
    Fits { allocated: i64 },
    /// Bytes reserved and of no use when memory ran out.
    OutOfMemory { idle: i64 },
}

/// The largest number that fits into so many bytes; 0 where 1 does not fit; and from where on more makes no difference, where that is so for the
/// script's data. Where it is for any number, `no_effect` is the error. `boundary_guess` says from two that fitted where it should be, between
/// one that fits and one that does not; then each side of it is tried until two neighbours are on both sides. Where it cannot say, the line
/// through the bytes of the two is gone along twice, and then the middle is tried.
fn search(
    first: u64,
    room: i64,
    boundary_guess: impl Fn(u64, u64) -> Option<u64>,
    no_effect: impl Fn(u64, u64) -> Error,
    mut rehearse: impl FnMut(u64) -> Result<Probe>,
) -> Result<(u64, Option<u64>)> {
    let (mut low, mut high) = (0, MOST + 1);
    let mut fitted: Vec<(u64, i64)> = Vec::new();
    let mut idle = None;
    // How often the line was gone along since memory ran out first.
    let mut guesses = 0;
    // Whether `boundary_guess` has said something, and how often that did not fit.
    let (mut has_said, mut misses) = (false, 0);
    let mut next = first.clamp(1, MOST);
    loop {
        let fits = match rehearse(next)? {
            Probe::Fits { allocated } => {
                low = low.max(next);
                fitted.push((next, allocated));
                fitted.sort_unstable();
                true
            }
            Probe::OutOfMemory { idle: bytes } => {
                high = high.min(next);
                idle = Some(bytes);
                false
            }
        };
        if high - low <= 1 {
            return Ok((low, None));
        }
        let said = match has_said && !fits {
            true => {
                misses += 1;
                Some(high - ((high - low) >> 6_u32.saturating_sub(misses).max(1)).max(1))
            }
            false if fitted.len() > 1 => boundary_guess(low, high),
            false => None,
        };
        has_said |= said.is_some();
        let guess = match (said, &fitted[..]) {
            (Some(said), _) => said,
            (None, []) => high / 8,
            (None, [(one, _)]) if idle.is_none() => one * 2,
            (None, [_]) => low.midpoint(high),
            (None, [.., (less, before), (more, after)]) => {
                let slope = (after - before) as f64 / (more - less) as f64;
                match idle {
                    None if slope <= 0.0 && fitted.len() > 3 => {
                        // The first from which on it is the same, if any was not.
                        let ends_at = fitted.iter().find(|(_, bytes)| bytes == after).map(|(number, _)| *number);
                        ensure!(fitted[0].1 != *after, no_effect(*less, *more));
                        return Ok((ends_at.unwrap_or(*more), ends_at));
                    }
                    None if slope <= 0.0 => more * 64,
                    _ if slope > 0.0 && guesses < 2 => {
                        guesses += u32::from(idle.is_some());
                        more + ((room - idle.unwrap_or(0) - after).max(0) as f64 / slope) as u64
                    }
                    _ => low.midpoint(high),
                }
            }
        };
        next = guess.clamp(low + 1, high - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_effect(less: u64, more: u64) -> Error {
        anyhow!("{less} and {more} make no difference")
    }

    /// A script whose bytes are linear in the number, and an allocator of which a share lies idle when memory runs out.
    fn tried(constant: i64, each: i64, share: f64, room: i64, first: u64) -> (u64, usize) {
        let mut tries = 0;
        let rehearse = |number: u64| {
            tries += 1;
            let allocated = constant + each * number.cast_signed();
            Ok(match (allocated as f64 * (1.0 + share)) as i64 <= room {
                true => Probe::Fits { allocated },
                false => Probe::OutOfMemory { idle: (room as f64 * share / (1.0 + share)) as i64 },
            })
        };
        let (largest, _) = search(first, room, |_, _| None, no_effect, rehearse).unwrap();
        (largest, tries)
    }

    #[test]
    fn data_that_end_are_a_bound_and_a_flag_that_nobody_reads_is_none() {
        let ending = |end: u64| {
            search(4, 2000, |_, _| None, no_effect, |number| Ok(Probe::Fits { allocated: number.min(end).cast_signed() }))
        };
        let (largest, ends_at) = ending(512).unwrap();
        assert!(largest >= 512 && ends_at.is_some_and(|end| end >= 512), "{largest} {ends_at:?}");
        assert!(ending(1).unwrap_err().to_string().contains("no difference"));
        // As many bytes for each, as where the optimizer's state is the peak, up to what no longer fits.
        let flat = |number: u64| if number < 100 { Probe::Fits { allocated: 1000 } } else { Probe::OutOfMemory { idle: 0 } };
        assert_eq!(search(4, 2000, |_, _| None, no_effect, |number| Ok(flat(number))).unwrap(), (99, None));
    }

    #[test]
    fn the_largest_is_exact_and_found_with_few_tries() {
        for (constant, each) in [(1 << 30, 700 << 20), (6 << 30, 97 << 20), (1 << 20, 9 << 20)] {
            for share in [0.0, 0.03, 0.11] {
                for first in [1, 4, 32] {
                    let room = 24 << 30;
                    let (largest, tries) = tried(constant, each, share, room, first);
                    let exact = (((room as f64 / (1.0 + share)) as i64 - constant) / each).unsigned_abs();
                    assert!(largest.abs_diff(exact) <= 1, "{largest} and not {exact}");
                    assert!(tries <= 8, "{tries} tries for {largest} of {constant}, {each}, {share}, {first}");
                }
            }
        }
        assert_eq!(tried(2 << 30, 1 << 20, 0.0, 1 << 30, 4).0, 0);
    }

    #[test]
    fn what_the_allocator_says_is_tried_first() {
        // Right, and wrong by a share of what is not known yet.
        for (exact, share, most) in [(74_368, 0.0, 4), (19, 0.0, 4), (74_368, 0.03, 8), (74_368, -0.03, 8), (333, 0.1, 8)] {
            let mut tries = 0;
            let boundary_guess = |low: u64, high: u64| {
                let said = exact as f64 + (exact - low) as f64 * share;
                Some((said.round() as u64).clamp(low, high - 1))
            };
            let found = search(4, 1 << 30, boundary_guess, no_effect, |number| {
                tries += 1;
                let fits = Probe::Fits { allocated: number.cast_signed() };
                Ok(if number <= exact { fits } else { Probe::OutOfMemory { idle: 0 } })
            });
            assert_eq!(found.unwrap(), (exact, None));
            assert!(tries <= most, "{tries} tries for {exact} where {share} was wrong");
        }
    }

    #[test]
    fn more_brings_nothing_from_where_a_doubling_gains_less_than_two_per_cent() {
        // A step takes 10 ms and 1 ms for each sample: twice as much of n gains 10 / (10 + 2 n).
        let rate = |n: u64| (n, n as f64 / (10.0 + n as f64));
        let of = |numbers: &[u64]| enough(&numbers.iter().map(|n| rate(*n)).collect::<Vec<_>>());
        let found = of(&[4, 8, 1000, 1024]).unwrap();
        assert!((245..280).contains(&found), "{found}");
        assert_eq!(of(&[4, 8, 300]), None);
        // Of one that was tried, and of none, nothing is known; nor where the host bounds all of them.
        assert_eq!((of(&[4]), enough(&[]), enough(&[(4, 4.0), (64, 64.0)])), (None, None, None));
        assert_eq!(enough(&[(8, 100.0), (16, 100.0), (64, 101.0)]), Some(8));
    }
}
