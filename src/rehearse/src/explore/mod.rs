//! Rehearsals again and again: for the least memory that would do, for the largest batch, with techniques.

pub mod ci;
pub mod fit;
mod fit_server;
mod fitted;
pub mod needs;
pub mod plan;
pub mod preset;
mod replay;
mod sized;
pub mod snapshot;
pub mod template;
mod unknown;
pub mod versions;
pub mod what_if;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::{iter, panic, thread};

/// What comes of each, with its place, so many at once; in their order.
fn of_each<T: Sync, R: Send>(all: &[T], at_once: usize, one: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let at = next.fetch_add(1, Ordering::Relaxed);
        Some((at, one(at, all.get(at)?)))
    };
    let mut found: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(|| iter::from_fn(take).collect::<Vec<_>>())).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|why| panic::resume_unwind(why))).collect()
    });
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, result)| result).collect()
}
