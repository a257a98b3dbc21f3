//! What a plan says.

use super::{BEST, Plan, TriedLayout};
use crate::run::executor::WAS_INTERRUPTED;
use base::units::{Bytes, Seconds, significant};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The answers as text.
pub fn table(plans: &[Plan]) -> String {
    let mut text = String::new();
    for plan in plans {
        // Writing to a string does not fail.
        let _ = one(&mut text, plan);
    }
    if plans.len() > 1 {
        let _ = by_cards(&mut text, plans);
    }
    text
}

fn rate_of(tried: &TriedLayout) -> String {
    match (tried.tokens_per_second, tried.samples_per_second) {
        (Some(rate), _) => format!("{} tokens/s", significant(rate)),
        (None, Some(rate)) => format!("{} samples/s", significant(rate)),
        (None, None) => "-".to_string(),
    }
}

fn price_of(tried: &TriedLayout, plan: &Plan) -> String {
    let currency = plan.currency.as_deref().unwrap_or_default();
    tried.price.map_or(String::new(), |price| format!("  {} {currency}", significant(price)))
}

fn one(text: &mut String, plan: &Plan) -> fmt::Result {
    let all = plan.fastest.len() + plan.others.len();
    let machines = if plan.machines > 1 { format!(" on {} machines", plan.machines) } else { String::new() };
    let count = |outcome: &str| plan.others.iter().filter(|tried| tried.outcome == outcome).count();
    let slower = count("slower");
    writeln!(
        text,
        "\n{} x {}{machines}: {all} layouts, of which {} fit{} ({} rehearsals, {})",
        plan.gpus,
        plan.gpu,
        plan.fastest.len(),
        if slower > 0 { format!(" and {slower} are slower than five of them") } else { String::new() },
        plan.rehearsals,
        Seconds(plan.seconds)
    )?;
    if !plan.fastest.is_empty() {
        let is_priced = plan.fastest.iter().any(|tried| tried.price.is_some());
        let of = if plan.fastest[0].tokens_per_second.is_some() { "1e9 tokens" } else { "1e6 samples" };
        let price = if is_priced { format!("  {of}") } else { String::new() };
        writeln!(
            text,
            "  {:<26} {:>18} {:>9} {:>8} {:>7}  {:<22}{price}",
            "the fastest (predicted)", "the job", "a step", "exposed", "bubble", "fullest rank"
        )?;
        for tried in plan.fastest.iter().take(BEST) {
            let percent = |share: Option<f64>| share.map_or("-".to_string(), |share| format!("{:.0} %", 100.0 * share));
            let step = Seconds(tried.step_seconds.unwrap_or_default()).to_string();
            let full = format!("{}: {}", tried.fullest_rank.unwrap_or(0), Bytes(tried.peak_on_device.unwrap_or(0).unsigned_abs()));
            let (exposed, bubble) = (percent(tried.exposed), percent(tried.bubble));
            let (layout, rate, price) = (tried.layout.to_string(), rate_of(tried), price_of(tried, plan));
            writeln!(text, "  {layout:<26} {rate:>18} {step:>9} {exposed:>8} {bubble:>7}  {full:<22}{price}")?;
        }
        if let Some(nccl) = plan.fastest.iter().take(BEST).map(|tried| tried.nccl).max().filter(|nccl| *nccl > 0) {
            writeln!(text, "  NCCL takes up to {} more of a card.", Bytes(nccl.unsigned_abs()))?;
        }
    }
    if let Some(first) = plan.fastest.first() {
        writeln!(text, "  The first one is: {}", first.command)?;
        let rank = first.fullest_rank.unwrap_or(0);
        writeln!(
            text,
            "  What fills its fullest rank: vramlab rehearse --gpu {} --world-size {} --rank {rank} -- (that command)",
            plan.gpu, plan.gpus
        )?;
    }
    let more = plan.fastest.len().saturating_sub(BEST);
    if more > 0 {
        writeln!(text, "  Not listed: {more} more that fit (--json FILE has all).")?;
    }
    if slower > 0 {
        writeln!(
            text,
            "  Of the {slower} slower ones the first stage of the pipeline, or that and the last, was rehearsed: whether the others fit is not known."
        )?;
    }
    let named = |outcome: &str| {
        plan.others.iter().filter(|tried| tried.outcome == outcome).map(|tried| tried.layout.to_string()).collect::<Vec<_>>()
    };
    let too_large = named("does_not_fit");
    if !too_large.is_empty() {
        writeln!(text, "  Do not fit: {}; left out for it, as they need more: {}.", too_large.join(", "), count("left_out"))?;
    }
    let interrupted = named(WAS_INTERRUPTED);
    if !interrupted.is_empty() {
        writeln!(text, "  Interrupted before they were rehearsed to the end: {}.", interrupted.join(", "))?;
    }
    let mut failures: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for tried in plan.others.iter().filter(|tried| tried.outcome == "failed") {
        failures.entry(tried.why.as_deref().unwrap_or_default()).or_default().push(tried.layout.to_string());
    }
    for (why, layouts) in failures {
        writeln!(text, "  Failed: {}: {why}", layouts.join(", "))?;
    }
    Ok(())
}

/// Where more cards stop paying.
fn by_cards(text: &mut String, plans: &[Plan]) -> fmt::Result {
    writeln!(
        text,
        "\n  {:>6}  {:<26} {:>18} {:>12} {:>14}",
        "cards", "its fastest (predicted)", "the job", "of a card", "beside fewest"
    )?;
    let base = plans.iter().find_map(|plan| Some(plan.fastest.first()?.rate() / f64::from(plan.gpus)));
    for plan in plans {
        let Some(best) = plan.fastest.first() else {
            writeln!(text, "  {:>6}  none fits", plan.gpus)?;
            continue;
        };
        let each = best.rate() / f64::from(plan.gpus);
        let share = base.map_or(String::new(), |base| format!("{:.0} %", 100.0 * each / base));
        let (layout, rate, price) = (best.layout.to_string(), rate_of(best), price_of(best, plan));
        writeln!(text, "  {:>6}  {layout:<26} {rate:>18} {:>12} {share:>14}{price}", plan.gpus, significant(each))?;
    }
    let pairs = plans.windows(2).filter_map(|two| {
        let gain = two[1].fastest.first()?.rate() / two[0].fastest.first()?.rate();
        let (before, gpus) = (two[0].gpus, two[1].gpus);
        Some((before, gpus, gain / (f64::from(gpus) / f64::from(before))))
    });
    match pairs.clone().find(|(_, _, gain)| *gain < PAYS) {
        Some((before, gpus, gain)) => {
            writeln!(
                text,
                "  {gpus} cards do not pay as {before} do: each does {:.0} % of what it did with {before}.",
                100.0 * gain
            )
        }
        None => writeln!(text, "  More cards pay: at each step each keeps {:.0} % of its speed, or more.", 100.0 * PAYS),
    }
}

/// With less of its speed a card pays no more.
const PAYS: f64 = 0.9;
