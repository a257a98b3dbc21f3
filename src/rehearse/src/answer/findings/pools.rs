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
    let title = format!(
        "{many} memory pools, as each CUDA graph has its own: {} reserved in them, which nothing else can have.",
        bytes(held)
    );
    Some(Finding::new(FindingKind::Pools, title, [remedy(None)])?.of(held, None))
}

/// Adds what is reserved with one pool for all, as PyTorch's allocator said.
pub fn add(findings: &mut [Finding], reserved: i64, one: OnePool) {
    let reserved = (reserved, one.reserved);
    if let Some(found) = findings.iter_mut().find(|found| found.kind == FindingKind::Pools) {
        found.rows = vec![remedy(Some(reserved))];
    }
}

fn remedy(reserved: Option<(i64, i64)>) -> String {
    let then = reserved.map_or(String::new(), |(now, then)| format!(" reserves {} in all, not {}", bytes(then), bytes(now)));
    format!(
        "pool=torch.cuda.graph_pool_handle(), the same for all,{then}: for graphs that never run at once, and whose results are read before the next \
         one runs"
    )
}
