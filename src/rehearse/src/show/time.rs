//! The predicted time on the terminal.

use crate::answer::reply::{others_said, streams_said, why_not};
use crate::answer::time::{Communication, Cost, HostWait, Prediction, RanksTogether, an_hour};
use crate::answer::{Answer, RehearsalVerdict};
use crate::words::{place_or_not, share_of, signed, signed_or_dash};
use base::order::grouped;
use base::units::{Bytes, Seconds, thousands};
use std::fmt::Write;

fn seconds(value: f64) -> String {
    Seconds(value).to_string()
}

fn between(low: f64, high: f64) -> String {
    format!("{} to {}", seconds(low), seconds(high))
}

/// `The host waits for the GPU at PLACE: 45 ms without that`.
pub fn of_wait(wait: &HostWait, place: &str) -> String {
    format!("The host waits for the GPU at {place}: {} without that", seconds(wait.seconds_without))
}

/// With cents, and two digits of what is less.
fn money(value: f64) -> String {
    let digits = if value >= 0.1 { 2.0 } else { 1.0 - value.max(1e-9).log10().floor() };
    format!("{value:.*}", digits as usize)
}

const ROWS: usize = 6;

/// Of the time of the GPU.
fn share(seconds: f64, time: &Prediction) -> String {
    share_of((seconds * 1e12) as i64, (time.device_seconds * 1e12) as i64)
}

/// Of each module its name, the time of its kernels, their share, and what bounds them.
pub fn modules(time: &Prediction) -> impl Iterator<Item = [String; 4]> {
    time.modules.iter().map(move |row| {
        let name = if row.module.is_empty() { "outside of modules" } else { &row.module };
        [name.to_string(), seconds(row.seconds), share(row.seconds, time), row.bound_by.to_string()]
    })
}

/// Lines for an answer, each ended.
pub fn prediction(text: &mut String, time: &Prediction) -> std::fmt::Result {
    let others = time.records_of.iter().take(2).cloned().collect::<Vec<_>>().join(" and ");
    let of = match time.records {
        "chip" if others.is_empty() => "constants from records of this card".to_string(),
        "chip" => format!("constants from records of this card or of {others}"),
        "architecture" => format!("constants from records of {others}, a card of the same architecture"),
        _ => "constants from specifications: no record of most of its kernels on such a card".to_string(),
    };
    let what = match (time.unit, time.passes) {
        ("token", _) => "A token of the longest text".to_string(),
        ("step", _) => "A step".to_string(),
        (_, Some(passes)) if passes > 1 => format!("The longest of {passes} forward passes{}", time.with_backward()),
        _ => format!("The forward pass{}", time.with_backward()),
    };
    let Prediction { gpu, bound_by, launches, host_factor, .. } = time;
    let [step, device, host] = [time.step_seconds, time.device_seconds, time.host_seconds].map(seconds);
    let (coverage, band) = (time.coverage * 100.0, between(time.low_seconds, time.high_seconds));
    writeln!(text, "\n  {what} takes {step} (predicted; {coverage:.0} %: {band}) on {gpu}; bound by {bound_by}.")?;
    if let Some(wait) = &time.waits {
        writeln!(text, "    {}.", of_wait(wait, &wait.line.place()))?;
    }
    let factor = match (host_factor, time.busy) {
        (None, _) => String::new(),
        (Some(factor), None) => format!(" (this machine's time, times {factor})"),
        (Some(factor), Some(load)) => {
            format!(" (this machine's time, times {factor}, while {load:.1} processes wanted each of its cores: longer than alone)")
        }
    };
    writeln!(text, "    The GPU works {device} of it, the host {host} for {launches} launches{factor}; {of}.")?;
    if time.timed_share > 0.0 {
        writeln!(text, "    {:.0} % of this time is of kernels timed on this card.", time.timed_share * 100.0)?;
    }
    if time.clock < 0.99 {
        writeln!(text, "    Its power limit leaves it {:.0} % of its clock where it computes.", time.clock * 100.0)?;
    }
    for one in &time.unrecorded {
        let (share, times) = (one.share * 100.0, format!("{:.1} to {:.1} times", one.low, one.high));
        let what = format!("{}, of which no card of this architecture has a record", one.kernels);
        writeln!(text, "    {share:.0} % of it are {what}: {times}.")?;
    }
    throughput(text, time)?;
    communication(text, time)?;
    if let Some(job) = &time.job {
        ranks(text, job)?;
    }
    longest(text, time)?;
    epoch(text, time)
}

/// Of a rank among others, whose its throughput is.
pub(super) fn of_whom(time: &Prediction) -> &'static str {
    match time.replicas {
        Some(0 | 1) if time.job.as_ref().is_some_and(|job| job.is_pipeline) => " of the pipeline",
        Some(0 | 1) => " of one rank",
        Some(_) => " of the whole job",
        None => "",
    }
}

/// What it does in a second, and what that costs.
fn throughput(text: &mut String, time: &Prediction) -> std::fmt::Result {
    if !time.throughput().is_empty() {
        let more = time.replicas.filter(|ranks| *ranks > 1);
        let more = more.map_or(String::new(), |ranks| format!(", whose {ranks} ranks have batches of their own"));
        writeln!(text, "    That is {}{}{more} (predicted).", time.throughput(), of_whom(time))?;
    }
    if let Some(prefill) = time.prefill_seconds {
        writeln!(text, "    The text before the first token takes {} (predicted), at most.", seconds(prefill))?;
    }
    if let Some(passes) = time.passes.filter(|passes| *passes > 1) {
        writeln!(text, "    All {passes} forward passes take {} (predicted), one after the other.", seconds(time.total_seconds))?;
    }
    if let Some(Cost { of_1000_steps, low, high, per_hour, currency, date, source }) = &time.cost {
        let [of, low, high] = [of_1000_steps, low, high].map(|cost| money(*cost));
        let price = format!("{per_hour} an hour on {date} ({source})");
        writeln!(text, "    1000 steps cost {of} {currency} ({low} to {high}; predicted), at {price}.")?;
    }
    Ok(())
}

/// Phases, modules and kernels that take longest.
fn longest(text: &mut String, time: &Prediction) -> std::fmt::Result {
    for row in &time.phases {
        let (device, host) = (seconds(row.device_seconds), seconds(row.host_seconds));
        writeln!(text, "    {:<10} {device:>9} of the GPU {host:>9} of the host   bound by {}", row.phase, row.bound_by)?;
    }
    writeln!(text, "  Modules whose kernels take longest (predicted)")?;
    for [name, seconds, share, bound_by] in modules(time).take(ROWS) {
        writeln!(text, "    {seconds:>10}  {share:>5}  {bound_by:<9}  {name}")?;
    }
    writeln!(text, "  Kernels that take longest (predicted)")?;
    for row in time.kernels.iter().take(ROWS) {
        let share = share(row.seconds, time);
        let back = if row.backward { "backward of " } else { "" };
        let place = place_or_not(row.line.as_ref());
        writeln!(text, "    {:>10}  {share:>5}  {:<9}  {}, {back}{place}", seconds(row.seconds), row.bound_by, row.operator)?;
    }
    for one in &time.misaligned {
        let (took, padded, place) = (seconds(one.seconds), seconds(one.padded_seconds), place_or_not(one.line.as_ref()));
        let than = format!("padded to {} {padded} (predicted)", one.padded);
        writeln!(text, "  Size {} is no multiple of 8: its products take {took}, {than}, at {place}", one.size)?;
    }
    Ok(())
}

fn epoch(text: &mut String, time: &Prediction) -> std::fmt::Result {
    // What the host does between two launches is in its time.
    let is_loaded_here = time.loading.as_ref().is_some_and(|loading| loading.workers == 0);
    if let Some(epoch) = &time.epoch {
        let cost = match (&time.cost, epoch.cost.map(|cost| cost.map(money))) {
            (Some(cost), Some([of, low, high])) => format!(" and {of} {} ({low} to {high})", cost.currency),
            _ => String::new(),
        };
        let (took, range) = (seconds(epoch.seconds), between(epoch.low_seconds, epoch.high_seconds));
        let data = if is_loaded_here { "with the processor time of loading its data" } else { "without waiting for data" };
        let rounds = if time.passes.is_some() { "forward passes" } else { "steps" };
        writeln!(text, "  An epoch is {} {rounds}: {took} ({range}){cost} {data} (predicted).", epoch.steps)?;
    }
    if let Some(loading) = &time.loading {
        writeln!(text, "  {}.", loading.text())?;
    }
    let missing = &time.not_modelled[usize::from(is_loaded_here)..];
    writeln!(text, "  Not included in the time: {}.", missing.join(", "))
}

/// `all_gather 11.2 GB in 8 ranks (NVLink)`.
fn moved(row: &Communication) -> String {
    let nodes = if row.nodes > 1 { format!(" of {} machines", row.nodes) } else { String::new() };
    let ranks = if ["send", "receive"].contains(&row.what) { "with one of".to_string() } else { "in".to_string() };
    format!("{} {} {ranks} {} ranks{nodes} ({})", row.what, Bytes(row.bytes as u64), row.ranks, row.over)
}

/// What ranks move in a step, by kind and group.
fn communication(text: &mut String, time: &Prediction) -> std::fmt::Result {
    if time.communication.is_empty() {
        return Ok(());
    }
    let exposed = 100.0 * time.exposed_seconds / time.step_seconds.max(f64::MIN_POSITIVE);
    writeln!(
        text,
        "  Communication between ranks: {} of the step are spent in nothing else, {exposed:.0} % (predicted)",
        seconds(time.exposed_seconds)
    )?;
    for row in time.communication.iter().take(ROWS) {
        let (took, hidden) = (seconds(row.seconds), seconds(row.hidden_seconds));
        writeln!(text, "    {took:>10}  {hidden:>9} hidden  {:>5} calls  {}", row.calls, moved(row))?;
    }
    Ok(())
}

/// Ranks that were played against each other.
fn ranks(text: &mut String, job: &RanksTogether) -> std::fmt::Result {
    let what = if job.is_pipeline { "its bubble" } else { "waiting for each other" };
    let (step, share) = (seconds(job.step_seconds), 100.0 * job.waiting);
    writeln!(text, "  {} ranks together: a step of {step}, {share:.0} % of it {what} (predicted)", job.ranks.len())?;
    for rank in job.ranks.iter().take(MOST_RANKS) {
        let (alone, device) = (seconds(rank.alone_seconds), seconds(rank.device_seconds));
        let waits = |whom| format!("   waits {} for rank {whom}", seconds(rank.waits_seconds));
        let whom = rank.waits_for.map_or(String::new(), waits);
        writeln!(text, "    rank {:<5} {alone:>10} alone, its GPU {device:>10}{whom}", rank.rank)?;
    }
    if job.unmatched > 0 {
        writeln!(text, "    {} sends or receives have no other end in what was seen: they wait for nobody here.", job.unmatched)?;
    }
    Ok(())
}

const MOST_RANKS: usize = 16;

/// Of a short answer: what is spent in moving, where that is worth a word, and what ranks wait.
pub fn in_short(time: &Prediction) -> Option<String> {
    let exposed = time.exposed_seconds / time.step_seconds.max(f64::MIN_POSITIVE);
    let first = time.communication.first().filter(|_| exposed >= WORTH);
    let waiting = time.job.as_ref().filter(|job| job.waiting >= WORTH);
    let moved = first.map(|row| format!("{:.0} % of it is communication, most of it {}", 100.0 * exposed, moved(row)));
    let waits = waiting.map(|job| {
        let what = if job.is_pipeline { "the pipeline's bubble" } else { "ranks that wait for each other" };
        format!("{:.0} % of it is {what}", 100.0 * job.waiting)
    });
    let all: Vec<String> = waits.into_iter().chain(moved).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// A share of a step that is.
const WORTH: f64 = 0.05;

/// Servers on several cards: what each holds, and what a token takes there, and costs where a price of the card is known.
fn servers(heading: &str, answers: &[(&str, &Answer)]) -> String {
    let width = answers.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(12);
    let row = |cells: [&str; 8]| {
        let [gpu, starts, cache, tokens, requests, needs, step, cost] = cells;
        format!("  {gpu:<width$} {starts:<14} {cache:>9} {tokens:>11} {requests:>9} {needs:>9} {step:>22}  {cost}")
            .trim_end()
            .to_string()
            + "\n"
    };
    let numbers = answers.iter().filter_map(|(_, answer)| answer.serves.as_ref()).map(|serves| serves.token_times.len()).max();
    let of = match numbers {
        Some(3) => "a token at 1, 8, 64",
        _ => "a token",
    };
    let is_priced = answers.iter().any(|(_, answer)| cost_of_tokens(answer).is_some());
    let cost = if is_priced { "a million tokens" } else { "" };
    let mut text = "\n".to_string() + &row([heading, "", "KV cache", "tokens", "requests", "starts on", of, cost]);
    for (name, answer) in answers {
        let serves = answer.serves.as_ref().filter(|serves| serves.starts);
        let starts = match answer.verdict {
            _ if answer.no_code.is_some() => "no kernels",
            _ if serves.is_some() => "serves",
            RehearsalVerdict::ScriptFailed => "failed",
            RehearsalVerdict::TimedOut => "timed out",
            RehearsalVerdict::Interrupted => "interrupted",
            _ => "does not start",
        };
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
        let times = serves.map(|serves| {
            let each = serves.token_times.iter().map(|time| seconds(time.seconds).replace(' ', ""));
            each.collect::<Vec<String>>().join(" ")
        });
        text += &row([
            name,
            starts,
            &or_dash(serves.map(|serves| signed(serves.kv_cache))),
            &or_dash(serves.and_then(|serves| serves.tokens).map(thousands)),
            &or_dash(serves.and_then(|serves| serves.concurrency).map(|requests| format!("{requests:.1}"))),
            &signed_or_dash(answer.needs_at_least),
            &or_dash(times.filter(|times| !times.is_empty())),
            &cost_of_tokens(answer).unwrap_or_default(),
        ]);
    }
    text + "\n  Times are predicted, for so many requests at a time.\n" + &failures(answers)
}

/// Why there is no whole answer of some, those with one reason together.
fn failures(answers: &[(&str, &Answer)]) -> String {
    let why = answers.iter().filter_map(|(name, answer)| Some((why_not(answer)?, *name)));
    grouped(why).into_iter().map(|(why, names)| format!("\n  {}: {why}\n", names.join(", "))).collect()
}

/// At the most requests whose time is known.
fn cost_of_tokens(answer: &Answer) -> Option<String> {
    let serves = answer.serves.as_ref()?;
    let time = serves.token_times.last()?;
    let (an_hour, currency) = an_hour(&answer.gpu.name.parse().ok()?)?;
    Some(format!("{} {currency}", money(an_hour * serves.gpus as f64 / 3600.0 * time.seconds / f64::from(time.requests) * 1e6)))
}

/// Answers of several cards in one table.
pub fn side_by_side<'a>(heading: &str, answers: impl IntoIterator<Item = (&'a str, &'a Answer)>) -> String {
    let answers: Vec<(&str, &Answer)> = answers.into_iter().collect();
    if answers.iter().any(|(_, answer)| answer.serves.as_ref().is_some_and(|serves| serves.starts)) {
        return servers(heading, &answers);
    }
    let width = answers.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(12);
    let is_priced = answers.iter().any(|(_, answer)| cost_of(answer).is_some());
    let row = |cells: [&str; 9]| {
        let [gpu, verdict, peak, headroom, needs, step, cost, throughput, between] = cells;
        let cost = if is_priced { format!(" {cost:>11}") } else { String::new() };
        format!("  {gpu:<width$} {verdict:<13} {peak:>10} {headroom:>10} {needs:>10} {step:>11}{cost} {throughput:>17}  {between}")
            .trim_end()
            .to_string()
            + "\n"
    };
    let bands = "80 %, and what bounds it (predicted)";
    let titles = [heading, "", "on the GPU", "headroom", "needs", "a step", "1000 steps", "throughput", bands];
    let mut text = "\n".to_string() + &row(titles);
    for (name, answer) in &answers {
        let verdict = match answer.verdict {
            _ if answer.no_code.is_some() => "no kernels",
            RehearsalVerdict::Fits => "fits",
            RehearsalVerdict::BarelyFits => "barely fits",
            RehearsalVerdict::FitsInPart => "fits in part",
            RehearsalVerdict::DoesNotFit => "does not fit",
            RehearsalVerdict::ScriptFailed => "failed",
            RehearsalVerdict::TimedOut => "timed out",
            RehearsalVerdict::Interrupted => "interrupted",
        };
        // Where memory ran out, what was there says nothing of what would be needed.
        let peak = if answer.verdict == RehearsalVerdict::DoesNotFit { "-".to_string() } else { signed(answer.peak_on_device) };
        let needs = signed_or_dash(answer.needs_at_least);
        let throughput = answer.time.as_ref().map(Prediction::throughput).unwrap_or_default();
        // Of text the tokens.
        let throughput = throughput.split(", ").next().unwrap_or_default();
        let (step, more) = match &answer.time {
            Some(time) => {
                let anchor = match time.records {
                    "chip" => String::new(),
                    "architecture" => {
                        format!(", from records of {}", time.records_of.first().map_or("another card", String::as_str))
                    }
                    _ => ", from specifications".to_string(),
                };
                let more = format!("{}; {}{anchor}", between(time.low_seconds, time.high_seconds), time.bound_by);
                (seconds(time.step_seconds), more)
            }
            None => ("-".to_string(), answer.time_missing.clone().unwrap_or_default()),
        };
        let cost = cost_of(answer).map_or("-".to_string(), |cost| format!("{} {}", money(cost.of_1000_steps), cost.currency));
        text += &row([name, verdict, &peak, &signed(answer.headroom), &needs, &step, &cost, throughput, &more]);
    }
    text += &failures(&answers);
    text += &cheapest(&answers);
    if let Some(streams) = answers.iter().find_map(|(_, answer)| streams_said(answer)) {
        text += &format!("\n  {streams}\n");
    }
    text + &of_other_values(&answers)
}

fn cost_of(answer: &Answer) -> Option<Cost> {
    answer.time.as_ref()?.cost.clone()
}

/// Between bands that overlap nothing is decided.
fn cheapest(answers: &[(&str, &Answer)]) -> String {
    let fitting =
        answers.iter().filter(|(_, answer)| answer.verdict.fits()).filter_map(|(name, answer)| Some((name, cost_of(answer)?)));
    let Some((name, least)) = fitting.clone().min_by(|a, b| a.1.of_1000_steps.total_cmp(&b.1.of_1000_steps)) else {
        return String::new();
    };
    let (oldest, newest) = fitting.clone().fold((least.date.clone(), least.date.clone()), |(oldest, newest), (_, cost)| {
        (oldest.min(cost.date.clone()), newest.max(cost.date))
    });
    let dates = if oldest == newest { oldest } else { format!("{oldest} to {newest}") };
    let rivals: Vec<&str> =
        fitting.filter(|(other, cost)| *other != name && cost.low < least.high).map(|(name, _)| *name).collect();
    let or = if rivals.is_empty() { String::new() } else { format!("; within what is uncertain also {}", rivals.join(", ")) };
    format!("\n  1000 steps cost least on {name}, of the cards that fit and have a price{or} (predicted; prices of {dates}).\n")
}

/// What is needed where values that nobody computed are others.
fn of_other_values(answers: &[(&str, &Answer)]) -> String {
    let others = |(name, answer): &(&str, &Answer)| {
        Some((name.to_string(), answer.other_values.as_ref()?.fits, others_said(answer.other_values.as_ref())?))
    };
    let others: Vec<(String, bool, String)> = answers.iter().filter_map(others).collect();
    // The same of each card but for its context.
    let Some((.., said)) = others.iter().find(|(_, fits, _)| *fits).or(others.first()) else { return String::new() };
    let too_small: Vec<&str> = others.iter().filter(|(_, fits, _)| !fits).map(|(name, ..)| name.as_str()).collect();
    let too_small =
        if too_small.is_empty() { String::new() } else { format!(" It runs out of memory then on {}.", too_small.join(", ")) };
    format!("\n  {said}{too_small}\n")
}
