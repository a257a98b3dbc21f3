//! A picture of memory over a step's allocations.

use crate::chart::{self, Areas, Course, Head, Panel, WIDE, areas};
use crate::torch::{Category, Phase, Timeline};
use anyhow::{Result, ensure};

/// Bottom to top: what stays lies below what comes and goes.
const STACK: [Category; 7] = [
    Category::Workspaces,
    Category::Parameters,
    Category::OptimizerState,
    Category::Data,
    Category::Gradients,
    Category::Activations,
    Category::Temporaries,
];

/// Draws the bytes of a timeline by category over its allocations and frees, as an SVG document.
///
/// # Errors
/// Nothing was allocated.
pub fn draw(timeline: &Timeline, title: &str) -> Result<String> {
    let course = course(timeline);
    ensure!(!course.points.is_empty(), "there is nothing to draw: no memory was allocated");
    areas(&Areas {
        head: &Head::new(title, "bytes that tensors asked for", WIDE),
        layers: STACK.map(|category| category.name().to_string()).to_vec(),
        rows: vec![vec![Panel { name: String::new(), course: Ok(course) }]],
        one_scale: true,
        note: "bytes after each allocation and free, in order; each phase is as wide as the others".to_string(),
    })
    .map(|(picture, _)| picture)
}

fn course(timeline: &Timeline) -> Course {
    // Not the fall to nothing after memory has run out.
    let behind = timeline.marks.last().map_or(0, |mark| mark.events);
    let events = timeline.events.iter().rposition(|event| !event.freed).map_or(0, |at| at + 1).max(behind);
    let bytes = |mut live| STACK.map(|category| *category.of(&mut live) as f64).to_vec();
    let points = timeline.moments().take(events).map(|moment| bytes(moment.live)).collect();
    let mut phases = Vec::new();
    let mut from = 0;
    for mark in &timeline.marks {
        let (group, place) = match (mark.iteration, mark.phase) {
            (0, phase) | (_, phase @ Phase::Load) => (String::new(), format!("in {phase}")),
            (n, phase) => (format!("iteration {n}"), format!("in {phase} of iteration {n}")),
        };
        phases.push(chart::Phase { name: mark.phase.to_string(), group, place, points: from..mark.events });
        from = mark.events;
    }
    if from < events {
        let (name, place) = ("memory runs out".to_string(), "where memory ran out".to_string());
        phases.push(chart::Phase { group: name.clone(), name: String::new(), place, points: from..events });
    }
    Course { points, phases }
}
