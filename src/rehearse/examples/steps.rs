//! Predicts steps whose operators were recorded before (`records/times/steps.py`), as a rehearsal would: a row of CSV for each.
//!
//! `cargo run -p rehearse --example steps -- [--constants FILE] CARD... < STEPS.csv`

use anyhow::{Context, Result, bail};
use rehearse::Trace;
use rehearse::time::{self, Precision, Work, WorkKind};
use sim::cards::Card;
use sim::trace::Phase;
use std::collections::BTreeMap;
use std::io::Read;

fn main() -> Result<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--constants") {
        time::use_constants(words.get(1).context("--constants without a file")?.as_ref())?;
        words.drain(..2);
    }
    let cards: Vec<Card> = words.iter().map(|word| word.parse().map_err(anyhow::Error::msg)).collect::<Result<_>>()?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut cases: BTreeMap<&str, Vec<Work>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let &[case, operator, .., count] = fields.as_slice() else { bail!("'{line}' is no row of a step") };
        let work = work(&fields, operator).with_context(|| format!("'{line}' is no row of a step"))?;
        cases.entry(case).or_default().extend(vec![work; count.parse()?]);
    }
    println!("case,card,seconds,device_seconds,low,high,bound_by,records,launches,classes,unrecorded");
    for (case, work) in cases {
        let mut trace = Trace::default();
        trace.work = work;
        for card in &cards {
            let time = time::predict(&trace, card, 1, 1.0).map_err(anyhow::Error::msg)?;
            let classes = time::by_class(&trace.work, card).map_err(anyhow::Error::msg)?;
            let classes: Vec<String> = classes.iter().map(|(class, seconds)| format!("{class}:{seconds:.5}")).collect();
            let unrecorded: Vec<String> = time.unrecorded.iter().map(|one| format!("{}:{:.2}", one.kernels, one.share)).collect();
            println!(
                "{case},{},{:.6},{:.6},{:.6},{:.6},{},{},{},{},{}",
                card.name.unwrap_or_default(),
                time.step_seconds,
                time.device_seconds,
                time.low_seconds,
                time.high_seconds,
                time.bound_by,
                time.records,
                time.launches,
                classes.join(";"),
                unrecorded.join(";")
            );
        }
    }
    Ok(())
}

/// case,operator,kind,precision,flags,alignment,launches,flops,bytes,m,n,k,batch,groups,taps,direction,stride,count
fn work(fields: &[&str], operator: &str) -> Option<Work> {
    let integer = |at: usize| fields.get(at)?.parse::<u32>().ok();
    let (kind, precision) = (WorkKind::named(fields.get(2)?)?, Precision::named(fields.get(3)?)?);
    let (flags, direction) = (integer(4)?, u8::try_from(integer(15)?).ok()?);
    Some(Work {
        kind,
        precision,
        phase: if direction != 0 || operator.contains("backward") { Phase::Backward } else { Phase::Forward },
        changes_layout: flags & 4 != 0,
        is_channels_last: flags & 16 != 0,
        is_transposed: flags & 32 != 0,
        is_volume: flags & 64 != 0,
        alignment: u16::try_from(integer(5)?).ok()?,
        launches: integer(6)?,
        flops: fields.get(7)?.parse().ok()?,
        bytes: fields.get(8)?.parse().ok()?,
        m: integer(9)?,
        n: integer(10)?,
        k: integer(11)?,
        batch: integer(12)?,
        groups: integer(13)?,
        taps: u16::try_from(integer(14)?).ok()?,
        direction,
        stride: u8::try_from(integer(16)?).ok()?,
        ..Work::default()
    })
}
