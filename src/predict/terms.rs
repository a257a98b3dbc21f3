//! What a CUDA process takes of the card beside what PyTorch's allocator holds.

use crate::cards::Card;
use serde::Serialize;

/// Bytes that no dry run sees, with where the figure comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Term {
    pub name: &'static str,
    pub bytes: u64,
    pub source: String,
    /// Whether it was seen on a GPU by this lab; else it is assumed.
    pub confirmed: bool,
}

/// Each term for a card.
pub fn terms(card: &Card) -> Vec<Term> {
    let assumed = |name, bytes, source: &str| Term {
        name,
        bytes,
        source: format!("{source}; assumed, not yet confirmed on a GPU"),
        confirmed: false,
    };
    vec![
        assumed("CUDA context", card.context, card.context_source),
        assumed("cuDNN batch norm and RNN workspaces", 0, "counted as nothing until a GPU has told"),
    ]
}

/// The sum of all terms, in bytes: what [`crate::dry::prepare_beside`] is told to keep from the allocator.
pub fn taken(card: &Card) -> u64 {
    terms(card).iter().map(|term| term.bytes).sum()
}
