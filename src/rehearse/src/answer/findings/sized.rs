//! What is made as large as the card's free memory allows, and a limit that the script sets itself.

use super::super::facts::Facts;
use super::{Finding, FindingKind};
use crate::words::{bytes, place_of};
use sim::trace::Bound;

pub fn find(facts: &Facts) -> Option<Finding> {
    let (asked, lines) = facts.trace.sized_by_free.as_ref()?;
    let held = facts.bytes_at_peak(|block| block.bound == Bound::SizedByFree);
    let (trace, stack) = (facts.trace, facts.events().get(*asked)?.stack);
    let asks = trace.own_line(stack).or_else(|| trace.line(stack))?;
    let title =
        format!("{} are sized by what the card has free, which {} asks: larger on a larger card.", bytes(held), place_of(asks));
    Some(Finding::new(FindingKind::SizedByFree, title, lines.iter().map(place_of))?.of(held, Some(asks)))
}

pub fn limit(facts: &Facts) -> Option<Finding> {
    let share = facts.trace.limits.get(&facts.device).filter(|share| **share < 1.0)?;
    let title = format!("The script sets a limit of its own: PyTorch may have {:.0} % of the card's memory.", 100.0 * share);
    Finding::new(FindingKind::Limit, title, ["torch.cuda.set_per_process_memory_fraction".to_string()])
}
