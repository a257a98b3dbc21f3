//! Predicts steps whose operators were recorded before (`records/times/steps.py`), as a rehearsal would: a row of CSV for each.
//!
//! `cargo run -p rehearse --example steps -- [--constants FILE] [--without CARD] CARD... < STEPS.csv`

use anyhow::{Context, Result};
use rehearse::Trace;
use rehearse::time::{self, Work};
use sim::cards::Card;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;

fn main() -> Result<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--constants") {
        time::use_constants(words.get(1).context("--constants without a file")?.as_ref())?;
        words.drain(..2);
    }
    if words.first().is_some_and(|word| word == "--without") {
        time::leave_out(words.get(1).context("--without without a card")?);
        words.drain(..2);
    }
    let cards: Vec<Card> = words.iter().map(|word| word.parse().map_err(anyhow::Error::msg)).collect::<Result<_>>()?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut cases: BTreeMap<&str, Vec<Work>> = BTreeMap::new();
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    for line in lines {
        let row: HashMap<&str, &str> = columns.iter().copied().zip(line.split(',')).collect();
        let column = |name: &str| row.get(name).copied();
        let read = || Some((column("case")?, time::work_of(column)?, column("count")?.parse().ok()?));
        let (case, work, count) = read().with_context(|| format!("'{line}' is no row of a step"))?;
        cases.entry(case).or_default().extend(vec![work; count]);
    }
    println!("case,card,seconds,device_seconds,low,high,bound_by,records,made_of,launches,classes,unrecorded");
    for (case, work) in cases {
        let mut trace = Trace::default();
        trace.work = work;
        for card in &cards {
            let time = time::predict(&trace, card, 1, None).map_err(anyhow::Error::msg)?;
            let classes = time::by_class(&trace.work, card).map_err(anyhow::Error::msg)?;
            let classes: Vec<String> = classes.iter().map(|(class, seconds)| format!("{class}:{seconds:.5}")).collect();
            let unrecorded: Vec<String> = time.unrecorded.iter().map(|one| format!("{}:{:.2}", one.kernels, one.share)).collect();
            println!(
                "{case},{},{:.6},{:.6},{:.6},{:.6},{},{},{},{},{},{}",
                card.name.unwrap_or_default(),
                time.step_seconds,
                time.device_seconds,
                time.low_seconds,
                time.high_seconds,
                time.bound_by,
                time.records,
                time.made_of,
                time.launches,
                classes.join(";"),
                unrecorded.join(";")
            );
        }
    }
    Ok(())
}
