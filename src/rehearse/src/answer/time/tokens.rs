//! What a token takes where a server decodes several requests at a time, by the kernels of a decoding pass that was seen.

use super::device::CardModel;
use super::stretch::HostModel;
use crate::capture::process::Trace;
use crate::capture::work::{Work, WorkKind};
use serde::Serialize;
use sim::cards::Card;
use sim::trace::{Kind, Phase};

/// Requests for which it is told.
const REQUESTS: [u32; 3] = [1, 8, 64];

/// One decoding step, in which each request has one more token; predicted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, schemars::JsonSchema)]
pub struct TokenTime {
    pub requests: u32,
    pub seconds: f64,
    pub low: f64,
    pub high: f64,
    /// What the card's memory takes to give the weights once and each request's keys and values: no step is shorter.
    pub floor: f64,
}

/// None of a card without figures of speed, or where no pass had a product. `weights` are bytes that each step reads, `each` those of a request's keys and
/// values, where that is known: 0 leaves attention as it was seen. `band` are the ends of the interval as parts of the time.
pub fn token_times(trace: &Trace, card: &Card, weights: f64, each: f64, band: [f64; 2]) -> Vec<TokenTime> {
    let (Ok(device), Some((pass, rows)), Some(speed)) = (CardModel::of(card), decoding(trace), card.speed) else {
        return Vec::new();
    };
    let host = HostModel::of(None);
    let of = |requests: u32| {
        let is_counted = |work: &&Work| each == 0.0 || !matches!(work.kind, WorkKind::Attention | WorkKind::Index);
        let works: Vec<Work> = pass.iter().filter(is_counted).map(|work| of_rows(work, rows, requests)).collect();
        let device = device.clone().over(&works);
        let floor = (weights + f64::from(requests) * each) / speed.bandwidth;
        let keys = f64::from(requests) * each / (speed.bandwidth * device.constants("pointwise").memory);
        let works_for = works.iter().map(|work| device.takes(work).seconds).sum::<f64>() + keys;
        // What is captured once is replayed by one launch.
        let has_graphs = trace.events.iter().any(|event| event.kind == Kind::Pool && event.bytes != 0);
        let launches = if has_graphs { 0.0 } else { works.iter().map(|work| host.seconds(work, 0)).sum::<f64>() };
        let seconds = works_for.max(launches).max(floor);
        TokenTime { requests, seconds, low: (seconds * band[0]).max(floor), high: seconds * band[1], floor }
    };
    REQUESTS.into_iter().map(of).collect()
}

/// Of a product with weights the rows that go through them.
fn rows_of(work: &Work) -> Option<u32> {
    let is_product = work.kind == WorkKind::Matmul && work.batch <= 1 && work.phase != Phase::Backward;
    is_product.then_some(if work.n == 1 { 1 } else { work.m }).filter(|rows| *rows > 0)
}

/// The pass with fewest rows, of those that replay CUDA graphs where any does: a decoding step, with its number of requests.
fn decoding(trace: &Trace) -> Option<(&[Work], u32)> {
    let passes = trace.work.chunk_by(|_, next| !next.begins_pass).filter(|pass| pass[0].begins_pass);
    // Most of its products' rows: the last layer of a prompt has those of its last token alone.
    let rows = |pass: &[Work]| {
        let mut all: Vec<u32> = pass.iter().filter_map(rows_of).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    };
    let found = passes.filter_map(|pass| Some((pass, rows(pass)?)));
    // Of several the last: it was warm.
    found.rev().min_by_key(|(pass, rows)| (!pass.iter().any(|work| work.of_graph), *rows))
}

/// The same for another number of requests.
fn of_rows(work: &Work, rows: u32, requests: u32) -> Work {
    let times = f64::from(requests) / f64::from(rows);
    match rows_of(work) {
        Some(own) if own == rows => {
            let (out, k) = (if work.n == 1 { work.m } else { work.n }, work.k);
            let size = |m: u32| f64::from(m) * f64::from(k) + f64::from(out) * f64::from(k) + f64::from(m) * f64::from(out);
            let bytes = work.bytes * size(requests) / size(own).max(1.0);
            Work { m: requests, n: out, flops: work.flops * times, bytes, ..*work }
        }
        _ if work.kind == WorkKind::Copy => *work,
        _ => {
            let m = (f64::from(work.m) * times).ceil() as u32;
            Work { m, flops: work.flops * times, bytes: work.bytes * times, ..*work }
        }
    }
}
