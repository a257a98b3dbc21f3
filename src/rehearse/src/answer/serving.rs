//! A server: what it has for keys and values, by what it does. It asks what the card has free, makes a pool as large as that allows, and runs forward
//! passes while that lives. What an engine calls tokens and requests is read from its own objects (`serving.py`).

use super::Answer;
use super::kv_pool::{Pool, Sleep};
use super::process::ProcessAnswer;
use super::time::Prediction;
use super::time::tokens::{TokenTime, token_times};
use crate::capture::process::{Engine, Fill, Frame, Trace};
use crate::capture::session::{Capture, Needs};
use crate::words::bytes;
use base::units::thousands;
use serde::Serialize;
use sim::cards::Card;
use sim::trace::{Kind, Phase};

/// What a server has of a card.
#[derive(Debug, Clone, Default, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Serves {
    /// With its version; none of a server whose objects nobody knows.
    pub engine: Option<String>,
    pub starts: bool,
    /// Where it ends, of one that does not start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dies: Option<String>,
    /// What would have it start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub would_start: Vec<String>,
    /// Bytes of the pool, of each of the GPUs that it has one on.
    pub kv_cache: i64,
    pub gpus: usize,
    /// That it holds, and in how many blocks; none where nobody says what a token takes.
    pub tokens: Option<u64>,
    pub blocks: Option<u64>,
    /// With fewer bytes of a card it does not start, and with `needs_at_least` it does: between them it hangs on how far each layer's part of the pool is
    /// rounded up, or was not tried. None where that is next to nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_from: Option<i64>,
    /// Requests of the longest length that it holds at a time, and that length.
    pub concurrency: Option<f64>,
    pub length: Option<u64>,
    /// The lines that make the pool.
    pub lines: Vec<Frame>,
    /// What fills the card; what is left of it last.
    pub fills: Vec<Fill>,
    /// What the engine takes off its share of the card before the pool, by its own measures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Fill>,
    /// Of a decoding step; predicted.
    pub token_times: Vec<TokenTime>,
    /// Tokens of context that each request has in those times.
    pub context: Option<u64>,
    /// Tokens of its next start, which finds compiled what this one compiled; none where that is as many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub later: Option<u64>,
    pub more: Vec<MoreTokens>,
    /// With the CUDA context and what is outside of PyTorch, as `mem_get_info` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep: Option<Sleep>,
}

/// A flag or a card with which the pool would be larger; estimated.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct MoreTokens {
    pub what: String,
    /// How many times as many tokens it would hold.
    pub times: f64,
    /// Bytes that the pool would have more.
    pub more: i64,
}

const LEFT: &str = "left free";

/// The engine of a rehearsal, and what its process wrote.
fn engine(traces: &[Trace]) -> Option<(&Engine, &Trace)> {
    traces.iter().find_map(|trace| Some((trace.engine.as_ref()?, trace)))
}

/// Why an engine ended before it had a pool, where that is what ended it.
pub fn lacks(traces: &[Trace]) -> bool {
    engine(traces).is_some_and(|(engine, _)| engine.longest.is_some())
}

/// Whether an engine generates in a process that is trained, too.
pub fn is_beside_training(traces: &[Trace]) -> bool {
    engine(traces).is_some_and(|(_, trace)| super::trains(&trace.events))
}

/// The least memory with which an engine starts: it takes a share of the card, and of that what it needs beside keys and values is as large on any. None
/// where something is trained beside it.
pub fn needs(traces: &[Trace], card: &Card) -> Option<Needs> {
    (!is_beside_training(traces)).then(|| least(traces, card))?
}

/// The same where something is trained beside it, by an answer of that card: the pool has its share of any card, and the rest has to do with what that
/// leaves.
pub fn needs_beside_training(traces: &[Trace], card: &Card, answer: &Answer) -> Option<Needs> {
    let (engine, _) = engine(traces).filter(|_| is_beside_training(traces))?;
    let pool = answer.processes.iter().filter_map(|process| process.pool.as_ref()).map(|pool| pool.bytes).max()?;
    let others = answer.peak_on_device as f64 - card.memory as f64 * engine.share;
    let with_others = (others / (1.0 - engine.share).max(0.01)).ceil() as i64;
    let needs = least(traces, card)?;
    Some(Needs { least: needs.least.max(with_others).max(answer.peak_on_device - pool), ..needs })
}

fn least(traces: &[Trace], card: &Card) -> Option<Needs> {
    let (engine, _) = engine(traces).filter(|(engine, _)| engine.is_sized && engine.share > 0.0 && engine.least_kv_cache > 0)?;
    let beside = (card.memory as f64 * engine.share) as i64 - engine.available;
    let least = ((beside + engine.least_kv_cache) as f64 / engine.share).ceil() as i64;
    let with_share_free = (engine.before as f64 / (1.0 - engine.share).max(0.01)).ceil() as i64;
    // Pages of the allocator's blocks, and of what is free.
    const ROUNDED: i64 = 2 << 20;
    Some(Needs { least: least.max(with_share_free) + ROUNDED, ..Needs::default() })
}

impl Engine {
    /// Bytes of its share that are not free when it begins.
    fn lacks_of_share(&self, memory: u64) -> i64 {
        (memory as f64 * self.share) as i64 - (memory.cast_signed() - self.before)
    }

    /// Bytes of a block.
    fn block(&self) -> i64 {
        (self.kv_cache / self.blocks.max(1).cast_signed()).max(1)
    }

    /// Tokens with as many bytes more as the next start has.
    fn later(&self) -> Option<u64> {
        let more = (self.saved_later / self.block()) as f64 / self.blocks.max(1) as f64;
        (more * 1000.0 > 1.0).then_some((self.tokens as f64 * (1.0 + more)) as u64)
    }

    /// What it would say on a card of so much memory, after it was seen on one of another: what it has beside keys and values is as large.
    pub fn on(&self, memory: u64, seen: u64) -> Engine {
        let available = self.available + ((memory as f64 - seen as f64) * self.share) as i64;
        let block = self.block();
        let blocks = available.max(0) / block;
        let concurrency = self.concurrency * blocks as f64 / self.blocks.max(1) as f64;
        let has_its_share = self.lacks_of_share(memory) <= 0;
        let starts = has_its_share && available >= self.least_kv_cache;
        let longest =
            if has_its_share { available.max(0) } else { 0 } as f64 / self.least_kv_cache.max(1) as f64 * self.length as f64;
        Engine {
            available,
            kv_cache: if starts { blocks * block } else { 0 },
            blocks: blocks.unsigned_abs(),
            concurrency,
            tokens: (concurrency * self.length as f64) as u64,
            longest: (!starts).then_some(longest as u64),
            ..self.clone()
        }
    }
}

impl Serves {
    /// Of a rehearsal's processes, and what is known of them so far.
    pub fn of(run: &Capture, processes: &[ProcessAnswer], time: Option<&Prediction>, fits: bool) -> Option<Serves> {
        let engine = engine(&run.traces);
        let process = processes.iter().find(|process| process.pool.is_some());
        let trace = process.and_then(|process| run.traces.iter().find(|trace| trace.process.id == process.process));
        let memory = run.card.memory.cast_signed();
        let engine = engine.map(|(engine, _)| engine);
        if let Some(engine) = engine.filter(|engine| engine.longest.is_some()) {
            return Some(Serves::that_lacks(engine, &run.card));
        }
        let (process, trace) = process.zip(trace)?;
        let mut pool = process.pool.clone().unwrap_or_default();
        // On another card than the one that was rehearsed it is another.
        let made = engine.map_or(pool.asked, |engine| engine.kv_cache);
        (pool.bytes, pool.asked) = (pool.bytes + made - pool.asked, made);
        let dies = process.out_of_memory.as_ref().map(|_| dies(trace, process));
        let known = engine.filter(|engine| engine.kv_cache > 0);
        let context = known.map(|engine| engine.length.min(1024));
        let each = known.map_or(0.0, |engine| context.unwrap_or(0) as f64 * engine.kv_cache as f64 / engine.tokens.max(1) as f64);
        let band = time.map(|time| [time.low_seconds, time.high_seconds].map(|end| end / time.step_seconds));
        let mut times = token_times(trace, &run.card, pool.weights as f64, each, band.unwrap_or([1.0, 1.0]));
        times.retain(|time| known.is_none_or(|engine| u64::from(time.requests) * context.unwrap_or(0) <= engine.tokens));
        Some(Serves {
            engine: engine.map(|engine| engine.name.clone()),
            starts: dies.is_none() && fits,
            dies,
            would_start: Vec::new(),
            starts_from: None,
            kv_cache: pool.asked,
            gpus: processes.iter().filter(|process| process.pool.is_some()).count(),
            tokens: known.map(|engine| engine.tokens),
            blocks: known.map(|engine| engine.blocks),
            later: known.and_then(Engine::later),
            concurrency: known.map(|engine| engine.concurrency),
            length: known.map(|engine| engine.length),
            beside: known.map_or_else(Vec::new, |engine| engine.beside.clone()),
            fills: fills(&pool, run.card.context.cast_signed(), memory),
            token_times: times,
            context,
            more: more(&pool, engine, run),
            sleep: pool.sleep.clone().map(|sleep| {
                let beside = run.card.context.cast_signed() + pool.outside;
                Sleep { asleep: sleep.asleep + beside, awake: sleep.awake + beside, ..sleep }
            }),
            lines: pool.lines,
        })
    }

    fn that_lacks(engine: &Engine, card: &Card) -> Serves {
        let length = thousands(engine.length);
        if engine.before > 0 && engine.lacks_of_share(card.memory) > 0 {
            let (memory, share) = (card.memory.cast_signed(), card.memory as f64 * engine.share);
            let [share, free] = [share as i64, memory - engine.before].map(bytes);
            let less = ((memory - engine.before) as f64 / memory as f64 * 100.0).floor() / 100.0;
            return Serves {
                engine: Some(engine.name.clone()),
                dies: Some(format!("before it loads its model: its share of the card is {share}, and {free} is free")),
                would_start: (less > 0.0).then(|| format!("{} {less:.2}", engine.share_flag)).into_iter().collect(),
                length: Some(engine.length),
                ..Serves::default()
            };
        }
        if engine.least_kv_cache == 0 {
            return Serves {
                engine: Some(engine.name.clone()),
                dies: Some("before it has a KV cache: what it has beside that leaves nothing of its share of the card".to_string()),
                would_start: (engine.share < 0.97).then(|| format!("a larger {}", engine.share_flag)).into_iter().collect(),
                length: Some(engine.length),
                ..Serves::default()
            };
        }
        let free = if engine.available > 0 { bytes(engine.available) } else { "nothing".to_string() };
        let longest = engine.longest.unwrap_or(0);
        let share = engine.share + (engine.least_kv_cache - engine.available) as f64 / card.memory as f64;
        let flags = [
            (longest > 0).then(|| format!("{} {longest}", engine.length_flag)),
            (share < 0.97).then(|| format!("{} {:.2}", engine.share_flag, (share * 100.0).ceil() / 100.0)),
        ];
        Serves {
            engine: Some(engine.name.clone()),
            dies: Some(format!(
                "before it has a KV cache: one request of {length} tokens takes {}, and {free} is left for it",
                bytes(engine.least_kv_cache)
            )),
            would_start: flags.into_iter().flatten().collect(),
            length: Some(engine.length),
            ..Serves::default()
        }
    }

    /// Of an engine that generates for a training: what a token takes is a part of its steps, and more for the engine is less for the rest.
    pub fn beside_training(self) -> Serves {
        Serves { token_times: Vec::new(), more: Vec::new(), ..self }
    }

    /// Bytes of the card that nothing has.
    pub fn left(&self) -> Option<i64> {
        self.fills.iter().find(|fill| fill.what == LEFT).map(|fill| fill.bytes)
    }

    /// `22.1 GiB of KV cache, 160,992 tokens: 4.9 requests of 32,768`.
    pub fn holds(&self) -> String {
        let tokens = self.tokens.map_or(String::new(), |tokens| format!(", {} tokens", thousands(tokens)));
        let requests = self
            .concurrency
            .zip(self.length)
            .map_or(String::new(), |(requests, length)| format!(": {requests:.1} requests of {}", thousands(length)));
        let each = if self.gpus > 1 { format!(" on each of {} GPUs", self.gpus) } else { String::new() };
        format!("{} of KV cache{each}{tokens}{requests}", bytes(self.kv_cache))
    }

    /// `One token at 1, 8, 64 requests: 21, 22, 27 ms (predicted).`
    pub fn times_said(&self) -> Option<String> {
        let numbers: Vec<String> = self.token_times.iter().map(|time| time.requests.to_string()).collect();
        let times: Vec<String> = self.token_times.iter().map(|time| base::units::Seconds(time.seconds).to_string()).collect();
        let each = self.context.map_or(String::new(), |context| format!(" of {} tokens", thousands(context)));
        let said = || format!("One token at {} requests{each}: {} (predicted).", numbers.join(", "), times.join(", "));
        (!times.is_empty()).then(said)
    }

    /// `It sleeps 2 times: ...`.
    pub fn sleep_said(&self) -> Option<String> {
        let Sleep { times, asleep, asleep_at, awake, awake_at } = self.sleep.as_ref()?;
        let at = |line: &Option<Frame>| line.as_ref().map_or(String::new(), |line| format!(" at {}", crate::words::place_of(line)));
        Some(format!(
            "It sleeps {}: {} of the card at most while it does{}, {} while both are awake{}.",
            base::units::counted(*times, "time"),
            bytes(*asleep),
            at(asleep_at),
            bytes(*awake),
            at(awake_at)
        ))
    }

    pub fn later_said(&self) -> Option<String> {
        let said =
            |tokens| format!("This start compiles, while memory is profiled; the next one has about {} tokens.", thousands(tokens));
        self.later.map(said)
    }

    pub fn more_said(&self) -> Option<String> {
        let one = |more: &MoreTokens| format!("{} {:.1}x", more.what, more.times);
        (!self.more.is_empty()).then(|| format!("More tokens: {}.", self.more.iter().map(one).collect::<Vec<String>>().join(" · ")))
    }
}

/// Where memory ran out of a server that had its pool.
fn dies(trace: &Trace, process: &ProcessAnswer) -> String {
    let events = &trace.events;
    let out = events.iter().rposition(|event| event.kind == Kind::OutOfMemory).unwrap_or(0);
    let pools = events[..out].iter().rev().find(|event| event.kind == Kind::Pool && event.rounded == 0);
    let place = process.peak.called_from.as_ref().or(process.peak.line.as_ref());
    let at = place.map_or(String::new(), |line| format!(" at {}", crate::words::place_of(line)));
    let what = match events.get(out).map(|event| event.phase) {
        _ if pools.is_some_and(|event| event.bytes != 0) => "in the capture of CUDA graphs",
        Some(Phase::Load) => "before its first request",
        _ => "in a forward pass",
    };
    format!("{what}{at}, after its pool was made")
}

fn fills(pool: &Pool, context: i64, memory: i64) -> Vec<Fill> {
    let rows = [
        ("weights", pool.weights),
        ("KV cache", pool.bytes),
        ("activations", pool.activations),
        ("CUDA graphs", pool.graphs),
        ("CUDA context", context),
        ("outside of PyTorch", pool.outside),
    ];
    let taken: i64 = rows.iter().map(|(_, bytes)| bytes).sum();
    let rows = rows.into_iter().chain([(LEFT, memory - taken)]);
    rows.filter(|(_, bytes)| *bytes > 0).map(|(what, bytes)| Fill { what: what.to_string(), bytes }).collect()
}

/// What gives more tokens, by the engine's flags and by the next larger card.
fn more(pool: &Pool, engine: Option<&Engine>, run: &Capture) -> Vec<MoreTokens> {
    let has = pool.bytes.max(1) as f64;
    let of_bytes = |what: String, more: i64| MoreTokens { what, times: (has + more as f64) / has, more };
    let mut found: Vec<MoreTokens> = Vec::new();
    let (card, mut share) = (&run.card, None);
    if let Some(engine) = engine.filter(|engine| engine.is_sized) {
        found.extend(engine.halves.iter().map(|flag| MoreTokens { what: flag.clone(), times: 2.0, more: 0 }));
        const BATCHED: u64 = 2048;
        let saved = pool.activations as f64 * (1.0 - BATCHED as f64 / engine.batched.max(1) as f64);
        if engine.batched > BATCHED && saved > 0.01 * has {
            found.push(of_bytes(format!("{} {BATCHED}", engine.batched_flag), saved as i64));
        }
        const SHARE: f64 = 0.95;
        let beside = (card.memory as f64 * (1.0 - SHARE)) as i64 - pool.graphs - card.context.cast_signed();
        if engine.share < SHARE && beside > 0 {
            let more = (card.memory as f64 * (SHARE - engine.share)) as i64;
            found.push(of_bytes(format!("{} {SHARE}", engine.share_flag), more));
        }
        share = Some(engine.share);
    } else if engine.is_none() {
        share = run.found.sized.as_ref().and_then(|sized| sized.share);
    }
    let is_next = |next: &&Card| {
        next.memory * 5 >= card.memory * 6
            && next.capability >= card.capability.min((8, 0))
            && next.name.is_some_and(|name| !name.contains("laptop"))
    };
    let next = sim::cards::all().iter().filter(is_next).min_by_key(|next| next.memory);
    found.extend(
        next.zip(share).map(|(next, share)| of_bytes(next.to_string(), ((next.memory - card.memory) as f64 * share) as i64)),
    );
    found
}
