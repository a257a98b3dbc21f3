//! All techniques: what each does to memory, and what it costs in time.

use super::Picture;
use crate::chart::{Axis, Dot, Head, Ranges, Row, ranges};
use crate::report::effects::{Effect, percent};
use crate::report::prose;
use crate::report::recorded::Recorded;
use crate::report::techniques::{NO_TRAINING, Shown, Subject};
use anyhow::Result;

/// What is shown of a technique: on memory, and on time.
pub type Found<'a> = (&'a Subject, &'a Shown, Vec<Effect>, Vec<Effect>);

/// A row for each training technique, those that save most first; nothing where no technique has a figure.
///
/// # Errors
/// The drawing library fails.
pub fn overview(found: &[Found], machines: &[&Recorded]) -> Result<Option<Picture>> {
    let found: Vec<&Found> = found.iter().filter(|(subject, ..)| !NO_TRAINING.contains(&subject.experiment)).collect();
    let Some((_, first, memory, _)) = found.iter().find(|(_, _, memory, _)| !memory.is_empty()) else {
        return Ok(None);
    };
    let change = memory[0].change();
    let title = format!("Largest saving: {}, peak memory {change}", first.label.replace('`', ""));
    let place = |name: &str| machines.iter().position(|machine| machine.machine == name).unwrap_or(0);
    let dots = |effects: &[Effect]| -> Vec<Dot> {
        let dot = |effect: &Effect| Dot {
            series: place(&effect.machine),
            middle: effect.middle,
            low: effect.low,
            high: effect.high,
            text: effect.change(),
        };
        effects.iter().map(dot).collect()
    };
    let row = |(_, shown, memory, time): &Found| Row { name: shown.label.replace('`', ""), panels: vec![dots(memory), dots(time)] };
    let rows: Vec<Row> = found.iter().map(|found| row(found)).collect();
    let axis = |title: &str| Axis { title: title.to_string(), tick: percent, reference: 1.0 };
    let series: Vec<String> = machines.iter().map(|machine| prose::whose(machine.platform(), &machine.machine)).collect();
    Picture::drawn("overview", "Peak memory and time of every technique, relative to its own baseline".to_string(), |width| {
        let head = Head::new(&title, "dot: median over configurations; line: smallest to largest, with 95 % CI of times", width);
        let axes = vec![axis("change of peak memory (linear)"), axis("change of time per step (linear)")];
        ranges(&Ranges { head: &head, axes, series: series.clone(), rows: rows.clone() }).map(Some)
    })
}
