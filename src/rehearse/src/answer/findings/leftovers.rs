//! What earlier steps or passes left.

use super::growth::{Growth, growth_at};
use super::{Finding, FindingKind};
use crate::answer::Leftover;
use crate::capture::plain::on_one_line;
use crate::capture::process::Retainer;

const ROWS: usize = 6;
/// Of what a variable is called that holds a stage of a pipeline, as passes.py does.
const STAGE: &str = " (PipelineStage)";

/// What keeps no graph that nobody goes back through.
pub const WITHOUT_RETAINING: &str = "leave it out of the last backward pass before a step";

pub fn find(leftovers: &[Leftover], growth: Option<&Growth>, steps: u32) -> Option<Finding> {
    let title = match steps {
        0 => "Made in an earlier forward pass and still there at the peak:",
        _ => "There at the peak, and kept beyond the step that made it:",
    };
    let held = leftovers.iter().map(|left| left.made.bytes).sum();
    let rows = leftovers.iter().take(ROWS).map(|left| leftover(left, growth));
    Some(Finding::new(FindingKind::Leftovers, title, rows)?.of(held, None))
}

fn leftover(left: &Leftover, growth: Option<&Growth>) -> String {
    let made = growth_at(&left.made);
    match (left.variable.as_ref().map(|name| on_one_line(name)), remedy(left, growth)) {
        (Some(name), Some(remedy)) => format!("{made}, held by `{name}`: {remedy}"),
        (_, Some(remedy)) => format!("{made}: {remedy}"),
        (_, None) => made,
    }
}

/// What ends the growth, by the variable that keeps most of it.
pub fn cure(leftovers: &[Leftover], growth: Option<&Growth>) -> Option<String> {
    let keepers = &growth?.kept_by;
    let named = leftovers.iter().find_map(|left| keepers.iter().find(|keeper| left.variable.as_ref() == Some(&keeper.name)));
    // Without a variable the graphs go with their round.
    let of_variable = || keepers.iter().find(|keeper| keeper.with_graphs && !keeper.retains_graphs());
    let keeper = named.filter(|keeper| !keeper.retains_graphs()).or_else(of_variable).or(keepers.first())?;
    Some(format!("`{}` keeps it: {}.", on_one_line(&keeper.name), of_keeper(keeper)?))
}

/// What frees it, by what the script does with the variable that holds it.
fn remedy(left: &Leftover, growth: Option<&Growth>) -> Option<String> {
    let on_host = || Some("keep this copy of weights or state on the host (.cpu())".to_string());
    let Some(variable) = &left.variable else { return on_host().filter(|_| left.is_copy) };
    let name = on_one_line(variable);
    let mut keepers = growth.iter().flat_map(|growth| &growth.kept_by);
    match keepers.find(|keeper| keeper.name == *variable) {
        Some(keeper) => of_keeper(keeper),
        None if left.is_copy => on_host(),
        None if name.ends_with(STAGE) => Some("schedule.step(..., return_outputs=False) keeps none of its outputs".to_string()),
        None if left.is_retained => Some(WITHOUT_RETAINING.to_string()),
        None if left.is_of_this_pass => Some(format!("del {name} before the backward pass, which does not need it")),
        None => Some(format!("del {name} after its last use")),
    }
}

/// What a variable that keeps tensors of several rounds is to keep instead.
fn of_keeper(keeper: &Retainer) -> Option<String> {
    let instead = match (keeper.holder.as_str(), keeper.with_graphs, keeper.numbers) {
        // Its row says what to do.
        ("create_graph", ..) => return None,
        ("retain_graph", ..) => return Some(WITHOUT_RETAINING.to_string()),
        (_, false, _) => return Some("move what it keeps to the host (.cpu()), or keep less".to_string()),
        ("graph", _, false) => {
            return Some(format!("{}.detach() before it is fed back ends its graph there", on_one_line(&keeper.name)));
        }
        ("sum", _, false) => "add .detach() of what is added to it",
        ("sum" | "graph", _, true) => "add loss.item() to it, or loss.detach()",
        (.., true) => "put .item() or .detach() of them into it",
        (.., false) => "put .detach().cpu() of them into it",
    };
    Some(format!("{instead}, in place of tensors with their graphs"))
}
