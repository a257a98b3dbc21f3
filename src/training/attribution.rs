//! What each byte is for, from the events of an allocator.

use super::{Categories, Phase};
use crate::native::Allocation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What a block of memory is for; see [`Categories`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    Parameters,
    Gradients,
    OptimizerState,
    Activations,
    Data,
    Temporaries,
}

impl Category {
    /// In the order of [`Categories::named`].
    pub const ALL: [Category; 6] = [
        Category::Parameters,
        Category::Gradients,
        Category::OptimizerState,
        Category::Activations,
        Category::Data,
        Category::Temporaries,
    ];

    pub fn name(self) -> &'static str {
        Categories::default().named()[self as usize].0
    }

    /// This category's bytes.
    pub fn of(self, categories: &mut Categories) -> &mut i64 {
        match self {
            Category::Parameters => &mut categories.parameters,
            Category::Gradients => &mut categories.gradients,
            Category::OptimizerState => &mut categories.optimizer_state,
            Category::Activations => &mut categories.activations,
            Category::Data => &mut categories.data,
            Category::Temporaries => &mut categories.temporaries,
        }
    }
}

/// Blocks of one size and category that lived at a peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub category: Category,
    /// Of one block.
    pub bytes: i64,
    pub count: i64,
}

/// How many kinds of blocks are told.
const TOLD: usize = 10;

/// Addresses of the tensors that are known at the end of a phase.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub parameters: HashSet<u64>,
    pub gradients: HashSet<u64>,
    pub data: HashSet<u64>,
}

/// What was found of one phase.
#[derive(Debug, PartialEq)]
pub(super) struct Followed {
    pub at_end: Categories,
    pub at_peak: Categories,
    /// The kinds of blocks that held most of the peak, the largest first.
    pub largest: Vec<Held>,
}

/// The blocks that live, followed from event to event.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    live: HashMap<u64, (i64, Category)>,
}

/// One block in the course of a phase; times count the phase's events from 1.
struct Life {
    address: u64,
    bytes: i64,
    /// What it was for when the phase began; none where it began within.
    before: Option<Category>,
    born: usize,
    freed: Option<usize>,
}

impl Blocks {
    /// Follows a phase to its end. What a block that begins within it is for shows at the end only: what a forward pass leaves is
    /// activations, what a step leaves is the optimizer's, and what is gone was temporary.
    pub fn follow(&mut self, phase: Phase, events: &[Allocation], known: &Known) -> Followed {
        let old = self.live.iter().map(|(&address, &(bytes, category))| Life {
            address,
            bytes,
            before: Some(category),
            born: 0,
            freed: None,
        });
        let mut lives: Vec<Life> = old.collect();
        let mut at: HashMap<u64, usize> = lives.iter().enumerate().map(|(i, life)| (life.address, i)).collect();
        let mut total: i64 = lives.iter().map(|life| life.bytes).sum();
        let (mut highest, mut peak) = (total, 0);
        for (i, event) in events.iter().enumerate() {
            if event.freed {
                // What began before the recording did is not ours.
                let Some(index) = at.remove(&event.address) else { continue };
                lives[index].freed = Some(i + 1);
                total -= lives[index].bytes;
            } else {
                at.insert(event.address, lives.len());
                lives.push(Life { address: event.address, bytes: event.bytes, before: None, born: i + 1, freed: None });
                total += event.bytes;
                if total > highest {
                    (highest, peak) = (total, i + 1);
                }
            }
        }
        let mut followed = Followed { at_end: Categories::default(), at_peak: Categories::default(), largest: Vec::new() };
        let mut held: BTreeMap<(Category, i64), i64> = BTreeMap::new();
        self.live.clear();
        for life in &lives {
            let category = match life.freed {
                Some(_) => life.before.unwrap_or(Category::Temporaries),
                None => {
                    let category = settled(phase, life, known);
                    *category.of(&mut followed.at_end) += life.bytes;
                    self.live.insert(life.address, (life.bytes, category));
                    category
                }
            };
            if life.born <= peak && life.freed.is_none_or(|freed| freed > peak) {
                *category.of(&mut followed.at_peak) += life.bytes;
                *held.entry((category, life.bytes)).or_default() += 1;
            }
        }
        let mut largest: Vec<Held> = held.into_iter().map(|((category, bytes), count)| Held { category, bytes, count }).collect();
        largest.sort_by_key(|held| std::cmp::Reverse(held.bytes * held.count));
        largest.truncate(TOLD);
        Followed { largest, ..followed }
    }
}

/// What a block that lives at a phase's end is for.
fn settled(phase: Phase, life: &Life, known: &Known) -> Category {
    if known.parameters.contains(&life.address) {
        return Category::Parameters;
    }
    if known.gradients.contains(&life.address) {
        return Category::Gradients;
    }
    if known.data.contains(&life.address) {
        return Category::Data;
    }
    match (phase, life.before) {
        (Phase::Forward, None | Some(Category::Activations)) => Category::Activations,
        (Phase::Step, None) | (_, Some(Category::OptimizerState)) => Category::OptimizerState,
        _ => Category::Temporaries,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Vec<Allocation> {
        let event = |word: &str| {
            let (address, bytes) = word[1..].split_once(':').unwrap_or((&word[1..], "0"));
            Allocation { address: address.parse().unwrap(), bytes: bytes.parse().unwrap(), freed: word.starts_with('-') }
        };
        text.split_whitespace().map(event).collect()
    }

    fn addresses(known: &[u64]) -> HashSet<u64> {
        known.iter().copied().collect()
    }

    #[test]
    fn a_step_is_followed_through_its_phases() {
        let mut blocks = Blocks::default();
        let mut known = Known { parameters: addresses(&[1]), data: addresses(&[2]), gradients: addresses(&[]) };
        let mut follow = |phase, text: &str, gradients: &[u64]| {
            known.gradients = addresses(gradients);
            blocks.follow(phase, &events(text), &known)
        };
        // 9 began before the recording; 7 is how the parameters were made.
        let loaded = follow(Phase::Load, "+7:100 +1:100 -7 +2:10 -9", &[]);
        let rest = Categories { parameters: 100, data: 10, ..Categories::default() };
        assert_eq!(loaded.at_end, rest);
        assert_eq!(loaded.at_peak, Categories { parameters: 100, temporaries: 100, ..Categories::default() });

        // 3 and 5 are kept for backward, 4 is not; the library keeps 8.
        let forward = follow(Phase::Forward, "+3:50 +4:30 +5:20 -4", &[]);
        assert_eq!(forward.at_end, Categories { activations: 70, ..rest });
        assert_eq!(forward.at_peak, Categories { activations: 70, temporaries: 30, ..rest });
        assert_eq!(forward.largest[0], Held { category: Category::Parameters, bytes: 100, count: 1 });

        // The address of 5 is used again, for the gradient.
        let backward = follow(Phase::Backward, "+6:40 -5 +5:100 -6 -3", &[5]);
        assert_eq!(backward.at_end, Categories { gradients: 100, ..rest });
        assert_eq!(backward.at_peak, Categories { gradients: 100, activations: 50, temporaries: 40, ..rest });

        let step = follow(Phase::Step, "+3:100 +4:100 +6:5 -6", &[5]);
        assert_eq!(step.at_end, Categories { gradients: 100, optimizer_state: 200, ..rest });
        assert_eq!(step.at_peak.temporaries, 5);
        assert_eq!(step.largest[0], Held { category: Category::OptimizerState, bytes: 100, count: 2 });

        // The gradients go first; the peak is where they had not gone.
        let forward = follow(Phase::Forward, "-5 +5:60", &[]);
        assert_eq!(forward.at_end, Categories { optimizer_state: 200, activations: 60, ..rest });
        assert_eq!(forward.at_peak, Categories { gradients: 100, optimizer_state: 200, ..rest });
    }
}
