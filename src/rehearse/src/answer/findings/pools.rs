//! Memory pools of their own: each CUDA graph has one that is not told which to share.

use super::super::bounds;
use super::super::facts::Facts;
use super::{Finding, FindingKind};
use crate::capture::session::OnePool;
use crate::words::bytes;
use sim::trace::{Event, Kind};

/// Where several pools have a tenth of what is reserved.
pub fn find(facts: &Facts) -> Option<Finding> {
    let pools = bounds::pools(facts, facts.ran_out.unwrap_or(facts.fullest));
    let held: i64 = pools.values().sum();
    let many = pools.values().filter(|bytes| **bytes > 0).count();
    if many < 2 || held * 10 < facts.most.reserved {
        return None;
    }
    // Others the script made: several graphs may share one of those.
    let is_of_a_graph = |pool: &u32| facts.events().iter().any(|event| is_of_a_graph(event) && event.bytes as u32 == *pool);
    let of = if pools.keys().all(is_of_a_graph) { ", one of each CUDA graph" } else { "" };
    let title = format!("{many} memory pools{of}: {} that nothing else can have.", bytes(held));
    let mut found = Finding::new(FindingKind::Pools, title, [String::new()])?.of(held, None);
    if !of.is_empty() {
        have_cure(&mut found, cure(None));
    }
    Some(found)
}

fn is_of_a_graph(event: &Event) -> bool {
    event.kind == Kind::Pool && event.rounded == 0 && event.origin == 1
}

/// Adds what is reserved with one pool for all, as PyTorch's allocator said, where that is less. Where memory ran out in one of them, not all were
/// made here: how many those are, and what they have, is of the run that came to its end.
pub fn add(findings: &mut Vec<Finding>, reserved: i64, one: OnePool, ran_out: bool) {
    let is_others = findings.iter().any(|found| found.kind == FindingKind::Pools && found.cure.is_none());
    if one.reserved >= reserved || is_others {
        return;
    }
    let title = format!("{} memory pools, one of each CUDA graph: none can have what is free in another.", one.pools);
    let at = findings.iter().position(|found| found.kind == FindingKind::Pools);
    let Some(found) = Finding::new(FindingKind::Pools, title, [String::new()]) else { return };
    match at {
        None => findings.insert(0, found),
        Some(at) if ran_out => findings[at] = found,
        Some(_) => {}
    }
    have_cure(&mut findings[at.unwrap_or(0)], cure(Some((reserved, one.reserved))));
}

fn have_cure(found: &mut Finding, cure: String) {
    found.rows = vec![format!("{cure} The results of each are to be read before the next one runs.")];
    found.cure = Some(cure);
}

fn cure(reserved: Option<(i64, i64)>) -> String {
    let then = reserved.map_or("shares one".to_string(), |(now, then)| format!("reserves {}, not {}", bytes(then), bytes(now)));
    format!("If no two run at once, pool=torch.cuda.graph_pool_handle(), the same for all, {then}.")
}
