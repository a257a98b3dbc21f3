//! What earlier steps or passes left.

use super::growth::{Growth, growth_at};
use super::{Finding, FindingKind};
use crate::answer::Leftover;
use crate::capture::plain::on_one_line;

const ROWS: usize = 6;
/// Of what a variable is called that holds a stage of a pipeline, as passes.py does.
const STAGE: &str = " (PipelineStage)";

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

/// What ends the growth, by the first variable that keeps some of it.
pub fn cure(leftovers: &[Leftover], growth: Option<&Growth>) -> Option<String> {
    let is_kept =
        |left: &&Leftover| growth.is_some_and(|growth| growth.kept_by.iter().any(|of| left.variable.as_ref() == Some(&of.name)));
    let left = leftovers.iter().find(is_kept)?;
    Some(format!("`{}` keeps it: {}.", on_one_line(left.variable.as_ref()?), remedy(left, growth)?))
}

/// What frees it, by what the script does with the variable that holds it.
fn remedy(left: &Leftover, growth: Option<&Growth>) -> Option<String> {
    let on_host = "keep this copy of weights or state on the host (.cpu())";
    let Some(variable) = &left.variable else { return left.is_copy.then(|| on_host.to_string()) };
    let mut keepers = growth.iter().flat_map(|growth| &growth.kept_by);
    let (name, keeper) = (on_one_line(variable), keepers.find(|keeper| keeper.name == *variable));
    let is_chain = keeper.is_some_and(|keeper| keeper.holder == "graph");
    let remedy = match keeper.map(|keeper| (keeper.with_graphs, keeper.is_sum())) {
        _ if is_chain => format!("{name}.detach() before it is fed back ends its graph there"),
        Some((true, true)) if left.is_number => {
            "add loss.item() to it, or loss.detach(), in place of the loss with its graph".to_string()
        }
        Some((true, true)) => "add .detach() of what is added to it, in place of tensors with their graphs".to_string(),
        Some((true, false)) if left.is_number => {
            "put .item() or .detach() of them into it, in place of tensors with their graphs".to_string()
        }
        Some((true, false)) => "put .detach().cpu() of them into it, in place of tensors with their graphs".to_string(),
        Some((false, _)) => "move what it keeps to the host (.cpu()), or keep less".to_string(),
        None if left.is_copy => on_host.to_string(),
        None if name.ends_with(STAGE) => "schedule.step(..., return_outputs=False) keeps none of its outputs".to_string(),
        None => format!("del {name} after its last use"),
    };
    Some(remedy)
}
