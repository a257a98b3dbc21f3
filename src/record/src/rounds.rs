//! How many timed rounds a comparison gets: said before the first of them, and paid for where more than one look decides.

use crate::protocol::cells::{Pass, Profile};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Chance that noise decides a claim whose true effect lies on a threshold, over all looks together.
pub const ALPHA: f64 = 0.05;

/// The numbers of rounds after which a comparison is looked at. One number: the rounds are fixed. Several: rounds end at the first look that
/// leaves no claim about the comparison open, and each look spends its share of [`ALPHA`] in proportion to the rounds since the look before.
/// By the union bound no way of stopping at a look, whatever it goes by, then decides by noise more often than [`ALPHA`].
///
/// Empty where nothing is timed, and for results that do not say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rounds(Vec<u32>);

impl Rounds {
    pub const fn unsaid() -> Rounds {
        Rounds(Vec::new())
    }

    pub fn fixed(rounds: u32) -> Rounds {
        Rounds::of(&[rounds])
    }

    /// The looks, in rising order.
    pub fn of(looks: &[u32]) -> Rounds {
        let mut looks: Vec<u32> = looks.iter().copied().filter(|look| *look > 0).collect();
        looks.sort_unstable();
        looks.dedup();
        Rounds(looks)
    }

    pub fn looks(&self) -> &[u32] {
        &self.0
    }

    /// The rounds that every comparison gets.
    pub fn least(&self) -> u32 {
        self.0.first().copied().unwrap_or(0)
    }

    /// How often a pass is run at least before its figure counts: what is timed in all rounds, what is counted once.
    pub fn least_of(&self, pass: Pass) -> u32 {
        if pass == Pass::Time { self.least().max(1) } else { 1 }
    }

    /// How many of the rounds that a comparison has may be judged, and at what error rate: those up to the last look that was reached. None
    /// before the first, so that nobody looks, goes on and looks again for nothing.
    pub fn judged(&self, there: usize) -> Option<(usize, f64)> {
        let Some(all) = self.0.last() else { return Some((there, ALPHA)) };
        let position = self.0.iter().rposition(|look| *look as usize <= there)?;
        let before = position.checked_sub(1).map_or(0, |position| self.0[position]);
        Some((self.0[position] as usize, ALPHA * f64::from(self.0[position] - before) / f64::from(*all)))
    }
}

/// The rounds of a profile, where neither the user nor the experiment says another number.
pub fn usual(profile: Profile) -> Rounds {
    match profile {
        Profile::Smoke => Rounds::fixed(2),
        Profile::Quick => Rounds::of(&[3, 5]),
        Profile::Full => Rounds::of(&[5, 10, 25]),
    }
}

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.0[..] {
            [] => f.write_str("not said"),
            [one] => write!(f, "{one}"),
            [looks @ .., last] => {
                let looks: Vec<String> = looks.iter().map(u32::to_string).collect();
                write!(f, "{} or {last}", looks.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_share_the_error_rate_and_rounds_beyond_them_wait() {
        let several = Rounds::of(&[10, 5, 25]);
        let shares = [several.judged(5), several.judged(24), several.judged(30)].map(Option::unwrap);
        assert_eq!(shares.map(|(rounds, _)| rounds), [5, 10, 25]);
        assert!((shares.iter().map(|(_, alpha)| alpha).sum::<f64>() - ALPHA).abs() < 1e-12, "{shares:?}");
        assert_eq!(several.judged(4), None);
        assert_eq!(Rounds::fixed(10).judged(9), None);
        assert_eq!(Rounds::fixed(10).judged(12), Some((10, ALPHA)));
        assert_eq!(Rounds::unsaid().judged(7), Some((7, ALPHA)));
        assert_eq!((several.to_string(), Rounds::fixed(5).to_string()), ("5, 10 or 25".to_string(), "5".to_string()));
    }
}
