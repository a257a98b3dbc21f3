//! A badge for a README: `fits 12 GB`.

use crate::answer::{Answer, RehearsalVerdict};

/// Pixels of a letter of 11 px in the fonts below, about; and beside a text.
const LETTER: usize = 7;
const ROOM: usize = 12;

/// What the answer is about its card, as SVG; none where there is no whole answer. Sizes are those that cards are sold by.
pub fn badge(answer: &Answer) -> Option<String> {
    let sold = |bytes: i64| format!("{} GB", (bytes + (1 << 30) - 1) >> 30);
    let (said, colour) = match (answer.verdict, answer.needs_at_least) {
        (RehearsalVerdict::Fits, _) => (format!("fits {}", sold(answer.gpu.memory)), "#2e7d32"),
        (RehearsalVerdict::BarelyFits, _) => (format!("barely fits {}", sold(answer.gpu.memory)), "#8a6100"),
        (RehearsalVerdict::DoesNotFit, Some(needs)) => (format!("needs {}", sold(needs)), "#b3261e"),
        (RehearsalVerdict::DoesNotFit, None) => (format!("does not fit {}", sold(answer.gpu.memory)), "#b3261e"),
        _ => return None,
    };
    let name = "GPU memory";
    let [left, right] = [name, &said].map(|text| text.len() * LETTER + ROOM);
    let (width, at, also) = (left + right, left / 2, left + right / 2);
    Some(format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{name}: {said}"><title>{name}: {said}, rehearsed by vramlab on {}</title><clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath><g clip-path="url(#r)"><rect width="{left}" height="20" fill="#444"/><rect x="{left}" width="{right}" height="20" fill="{colour}"/></g><g fill="#fff" text-anchor="middle" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11"><text x="{at}" y="14">{name}</text><text x="{also}" y="14">{said}</text></g></svg>
"##,
        answer.gpu.name
    ))
}
