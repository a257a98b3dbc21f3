//! How many timed rounds a run takes, said before the first of them.

use super::preconditions::beyond_device;
use crate::machine::DeviceChoice;
use record::protocol::{Pass, PlainProtocol, Profile};
use record::rounds::{Rounds, usual};

/// The rounds of a run: those that the user says, or else the profile.
pub fn rounds(protocol: &PlainProtocol, choice: DeviceChoice, profile: Profile, asked: Option<u32>) -> Rounds {
    let usual = usual(profile);
    match (asked, profile) {
        _ if beyond_device(choice, Pass::Time).is_some() => Rounds::unsaid(),
        (Some(rounds), _) => Rounds::fixed(rounds),
        (None, Profile::Smoke) => usual,
        (None, _) if needs_all_rounds_of_chance(protocol) => {
            Rounds::fixed(ROUNDS_OF_CHANCE * usual.looks().last().copied().unwrap_or(1))
        }
        (None, _) => usual,
    }
}

/// How many times the rounds of one drawing a rate of false positives is drawn from: as many as its interval needs to lie below twice what
/// is promised, for ten levels, where three comparisons of a hundred are false positives.
const ROUNDS_OF_CHANCE: u32 = 8;

fn needs_all_rounds_of_chance(protocol: &PlainProtocol) -> bool {
    let mut rules = protocol.claims.iter().flat_map(|claim| claim.rule.parts());
    rules.any(|part| part.rule.needs_all_rounds())
}
