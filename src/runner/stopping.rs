//! When timed rounds end.

use super::gates::beyond_device;
use crate::machine::DeviceChoice;
use crate::protocol::{Pass, Profile, Protocol, Rule};

/// When timed rounds end.
pub struct Stopping {
    pub least: u32,
    pub most: u32,
    /// Log half-width of every ratio's interval at which a group has had enough: 5 % either way.
    pub margin: f64,
}

impl Stopping {
    pub fn new(protocol: &'static Protocol, choice: DeviceChoice, profile: Profile, rounds: Option<u32>) -> Stopping {
        let (least, most) = match (rounds, profile) {
            // One row for each cell, which says why it has no time.
            _ if beyond_device(choice, Pass::Time).is_some() => (1, 1),
            (Some(n), _) => (n, n),
            (None, Profile::Smoke) => (2, 2),
            (None, Profile::Quick) => (5.max(drawn_from(protocol)), 5.max(drawn_from(protocol))),
            (None, Profile::Full) => (5.max(drawn_from(protocol)), 25),
        };
        Stopping { least, most, margin: 1.05f64.ln() }
    }
}

/// Rounds that a rate of false alarms wants: several times as many as one drawing takes, or all drawings are one.
fn drawn_from(protocol: &'static Protocol) -> u32 {
    let drawn = protocol.claims.iter().flat_map(|claim| claim.rule.parts()).map(|rule| match rule {
        Rule::FalseAlarms { rounds, .. } => 3 * *rounds,
        _ => 0,
    });
    drawn.max().and_then(|rounds| u32::try_from(rounds).ok()).unwrap_or(0)
}
