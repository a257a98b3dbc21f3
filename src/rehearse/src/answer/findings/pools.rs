//! Memory pools of their own: each CUDA graph has one that is not told which to share.

use super::super::bounds;
use super::super::facts::Facts;
use super::{Finding, FindingKind};
use crate::capture::session::OnePool;
use crate::words::bytes;

/// Where several pools have a tenth of what is reserved.
pub fn find(facts: &Facts) -> Option<Finding> {
    let pools = bounds::pools(facts, facts.ran_out.unwrap_or(facts.fullest));
    let held: i64 = pools.values().sum();
    let many = pools.values().filter(|bytes| **bytes > 0).count();
    if many < 2 || held * 10 < facts.most.reserved {
        return None;
    }
    let title = format!("{many} memory pools, one of each CUDA graph: {} that nothing else can have.", bytes(held));
    let mut found = Finding::new(FindingKind::Pools, title, [String::new()])?.of(held, None);
    have_cure(&mut found, cure(None));
    Some(found)
}

/// Adds what is reserved with one pool for all, as PyTorch's allocator said, where that is less. Where memory ran out in the first of them, the
/// others are not known.
pub fn add(findings: &mut Vec<Finding>, reserved: i64, one: OnePool) {
    if one.reserved >= reserved {
        return;
    }
    if !findings.iter().any(|found| found.kind == FindingKind::Pools) {
        let title = "Each CUDA graph has a memory pool of its own, which nothing else can have.";
        findings.extend(Finding::new(FindingKind::Pools, title, [String::new()]));
    }
    let found = findings.iter_mut().find(|found| found.kind == FindingKind::Pools);
    found.into_iter().for_each(|found| have_cure(found, cure(Some((reserved, one.reserved)))));
}

fn have_cure(found: &mut Finding, cure: String) {
    found.rows = vec![format!("{cure} The results of each are to be read before the next one runs.")];
    found.cure = Some(cure);
}

fn cure(reserved: Option<(i64, i64)>) -> String {
    let then = reserved.map_or("shares one".to_string(), |(now, then)| format!("reserves {}, not {}", bytes(then), bytes(now)));
    format!("If no two run at once, pool=torch.cuda.graph_pool_handle(), the same for all, {then}.")
}
