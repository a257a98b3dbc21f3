//! Statistics of samples: pure functions on slices, no knowledge of cells or files.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// An estimate with a confidence interval, all in the unit of the estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub estimate: f64,
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// A figure that is exact: counted bytes have no spread.
    pub fn exact(value: f64) -> Self {
        Interval { estimate: value, low: value, high: value }
    }

    pub fn is_exact(&self) -> bool {
        self.low == self.high
    }
}

pub fn mean(xs: &[f64]) -> f64 {
    xs.iter().sum::<f64>() / xs.len() as f64
}

/// Sample standard deviation (divisor n - 1); zero for fewer than two values.
pub fn standard_deviation(xs: &[f64]) -> f64 {
    if xs.len() < 2 {
        return 0.0;
    }
    let m = mean(xs);
    (xs.iter().map(|x| (x - m).powi(2)).sum::<f64>() / (xs.len() - 1) as f64).sqrt()
}

/// Middle value, or the mean of the two middle values; NaN for an empty slice.
pub fn median(xs: &[f64]) -> f64 {
    let mut sorted = xs.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Median absolute deviation from the median, unscaled.
pub fn mad(xs: &[f64]) -> f64 {
    let m = median(xs);
    median(&xs.iter().map(|x| (x - m).abs()).collect::<Vec<_>>())
}

/// How many values lie further than 5 scaled MADs from the median (1.4826 MAD estimates one standard deviation of a normal
/// distribution). They are counted and shown, never dropped.
pub fn outliers(xs: &[f64]) -> usize {
    let (m, limit) = (median(xs), 5.0 * 1.4826 * mad(xs));
    xs.iter().filter(|x| limit > 0.0 && (*x - m).abs() > limit).count()
}

/// Mean of the figures of several rounds with a two-sided t interval at error rate `alpha`. `None` with fewer than two rounds, or where a
/// figure is not finite: the logarithm of a ratio to 0, say.
pub fn mean_interval(xs: &[f64], alpha: f64) -> Option<Interval> {
    let n = xs.len();
    if n < 2 || xs.iter().any(|x| !x.is_finite()) {
        return None;
    }
    let t = StudentsT::new(0.0, 1.0, (n - 1) as f64).ok()?;
    let half = t.inverse_cdf(1.0 - alpha / 2.0) * standard_deviation(xs) / (n as f64).sqrt();
    Some(Interval { estimate: mean(xs), low: mean(xs) - half, high: mean(xs) + half })
}

/// Ratio of two levels measured side by side, from the log ratio of each round: exp of their mean with a two-sided t interval at
/// error rate `alpha`. `None` with fewer than two rounds, where no spread is known.
pub fn ratio_interval(log_ratios: &[f64], alpha: f64) -> Option<Interval> {
    let Interval { estimate, low, high } = mean_interval(log_ratios, alpha)?;
    Some(Interval { estimate: estimate.exp(), low: low.exp(), high: high.exp() })
}

/// Two-sided p value of 'the true mean is `threshold`', from the same t statistic as [`mean_interval`].
pub fn mean_p_value(xs: &[f64], threshold: f64) -> Option<f64> {
    let n = xs.len();
    if n < 2 || xs.iter().chain([&threshold]).any(|x| !x.is_finite()) {
        return None;
    }
    let distance = (mean(xs) - threshold).abs();
    let error = standard_deviation(xs) / (n as f64).sqrt();
    if error == 0.0 {
        return Some(if distance == 0.0 { 1.0 } else { 0.0 });
    }
    let t = StudentsT::new(0.0, 1.0, (n - 1) as f64).ok()?;
    Some(2.0 * (1.0 - t.cdf(distance / error)))
}

/// Error rate at which each of several comparisons is to be judged so that the chance of any false one stays at `alpha`: Holm's
/// step-down. The smallest p value gets alpha/m, the next alpha/(m-1), and so on; from the first that fails on, its rate holds for
/// all that follow. An interval at the returned rate excludes the threshold exactly where Holm's test rejects it.
pub fn holm_levels(p_values: &[f64], alpha: f64) -> Vec<f64> {
    let m = p_values.len();
    let mut order: Vec<usize> = (0..m).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut levels = vec![alpha; m];
    let mut failed = None;
    for (rank, &i) in order.iter().enumerate() {
        let level = failed.unwrap_or(alpha / (m - rank) as f64);
        if p_values[i] > level {
            failed = Some(level);
        }
        levels[i] = level;
    }
    levels
}

/// Growth exponent of `y` in `x` between two points: the slope of the line through them on log-log axes.
pub fn local_exponent(x: (f64, f64), y: (f64, f64)) -> f64 {
    (y.1 / y.0).ln() / (x.1 / x.0).ln()
}

/// The 95 % interval of a share, from how many of some trials came out so (Wilson 1927): right also near 0 and 1, where there are few.
pub fn wilson_interval(hits: u32, trials: u32) -> Interval {
    wilson(f64::from(hits) / f64::from(trials.max(1)), f64::from(trials.max(1)))
}

fn wilson(share: f64, trials: f64) -> Interval {
    const Z: f64 = 1.959964;
    let centre = (share + Z * Z / (2.0 * trials)) / (1.0 + Z * Z / trials);
    let half = Z / (1.0 + Z * Z / trials) * (share * (1.0 - share) / trials + Z * Z / (4.0 * trials * trials)).sqrt();
    Interval { estimate: share, low: (centre - half).max(0.0), high: (centre + half).min(1.0) }
}

/// Ratio of two shares, each of `(hits, attempts)`, at error rate `alpha`: Katz's interval of the logarithm, with half a hit more on each side,
/// so that none is no infinity (Walters 1985). Also the two-sided p value of 'the true ratio is `threshold`'.
pub fn share_ratio(a: (f64, f64), b: (f64, f64), alpha: f64, threshold: f64) -> (Interval, f64) {
    let more = |(hits, attempts): (f64, f64)| (hits + 0.5, attempts + 0.5);
    let ((x, n), (y, m)) = (more(a), more(b));
    let log = ((x / n) / (y / m)).ln();
    let error = (1.0 / x - 1.0 / n + 1.0 / y - 1.0 / m).max(0.0).sqrt();
    let normal = Normal::standard();
    let half = normal.inverse_cdf(1.0 - alpha / 2.0) * error;
    let distance = (log - threshold.max(1e-12).ln()).abs();
    let p = if error == 0.0 { f64::from(u8::from(distance == 0.0)) } else { 2.0 * (1.0 - normal.cdf(distance / error)) };
    let estimate = if a.0 == 0.0 { 0.0 } else { (a.0 / a.1) / (b.0 / b.1) };
    (Interval { estimate, low: (log - half).exp().min(estimate), high: (log + half).exp().max(estimate) }, p)
}

/// Spearman's rank correlation, with mean ranks for equal values; NaN where either side has one value only.
pub fn rank_correlation(xs: &[f64], ys: &[f64]) -> f64 {
    let (a, b) = (ranks(xs), ranks(ys));
    let (ma, mb) = (mean(&a), mean(&b));
    let covariance: f64 = a.iter().zip(&b).map(|(x, y)| (x - ma) * (y - mb)).sum();
    let spread = |ranks: &[f64], m: f64| ranks.iter().map(|r| (r - m).powi(2)).sum::<f64>();
    covariance / (spread(&a, ma) * spread(&b, mb)).sqrt()
}

fn ranks(xs: &[f64]) -> Vec<f64> {
    let rank = |x: &f64| {
        let below = xs.iter().filter(|y| *y < x).count();
        let equal = xs.iter().filter(|y| *y == x).count();
        below as f64 + (equal as f64 + 1.0) / 2.0
    };
    xs.iter().map(rank).collect()
}

/// Resamplings behind a rate of false positives.
const RESAMPLINGS: u32 = 4000;

/// How much the alarms of two pairs that share a level hang together: their correlation is 0.10 to 0.14 in simulations of normal and of
/// heavy-tailed noise, with 5 rounds as with looks at 5, 10 and 25.
const SHARED: f64 = 0.15;

/// How often intervals tell two levels apart that are the same: the share of resamplings, each of two levels and of rounds without
/// repetition, in which the interval of some look excludes a ratio of 1. `looks` has numbers of rounds in rising order, each with its
/// error rate: an alarm at any look counts, whether rounds would have ended there or not. Nothing of what sets one level apart, its place
/// in a round for instance, is evened out. `levels` holds the logarithm of each level's figure in each round.
///
/// The interval is Wilson's, at 95 %. It counts as trials the sets of rounds without overlap, and in each of them as many as all pairs of
/// levels are worth, which share levels. None where there are fewer than two levels, or too few rounds.
pub fn false_alarms(levels: &[Vec<f64>], looks: &[(usize, f64)]) -> Option<Interval> {
    let common = levels.iter().map(Vec::len).min()?;
    let (rounds, _) = *looks.last()?;
    if levels.len() < 2 || looks[0].0 < 2 || common < rounds {
        return None;
    }
    let mut random = SplitMix(1);
    let mut alarms = 0;
    for _ in 0..RESAMPLINGS {
        let pair = random.choose(2, levels.len());
        let logs: Vec<f64> = random.choose(rounds, common).iter().map(|r| levels[pair[0]][*r] - levels[pair[1]][*r]).collect();
        let tells = |(look, alpha): &(usize, f64)| {
            ratio_interval(&logs[..*look], *alpha).is_some_and(|interval| interval.low > 1.0 || interval.high < 1.0)
        };
        alarms += u32::from(looks.iter().any(tells));
    }
    let names = levels.len() as f64;
    let pairs = names * (names - 1.0) / 2.0;
    let worth = pairs / (1.0 + 2.0 * (names - 2.0) * SHARED);
    Some(wilson(f64::from(alarms) / f64::from(RESAMPLINGS), worth * (common / rounds) as f64))
}

/// Steele, Lea and Flood's SplitMix64: the same numbers every time, for resampling.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// `n` different numbers below `among`.
    fn choose(&mut self, n: usize, among: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..among).collect();
        for i in 0..n {
            let other = i + (self.next() % (among - i) as u64) as usize;
            all.swap(i, other);
        }
        all.truncate(n);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// One standard normal value, by Box and Muller.
    fn normal(rng: &mut ChaCha8Rng) -> f64 {
        let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    #[test]
    fn location_and_spread_of_known_samples() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(mad(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]), 1.0);
        assert!((standard_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(outliers(&[1.0, 1.1, 0.9, 1.05, 0.95, 9.0]), 1);
        assert_eq!(outliers(&[1.0, 1.0, 1.0, 2.0]), 0, "no spread is known where the MAD is zero");
    }

    /// The interval covers the true ratio of two log-normal levels in 95 % of 4000 repetitions; the binomial standard error is
    /// 0.34 percentage points.
    #[test]
    fn ratio_intervals_cover_at_their_nominal_rate() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for rounds in [5, 12] {
            let covered = (0..4000)
                .filter(|_| {
                    let logs: Vec<f64> = (0..rounds).map(|_| 1.25f64.ln() + 0.1 * normal(&mut rng)).collect();
                    let interval = ratio_interval(&logs, 0.05).unwrap();
                    interval.low <= 1.25 && 1.25 <= interval.high
                })
                .count();
            assert!((3740..=3860).contains(&covered), "{covered} of 4000 at {rounds} rounds");
        }
        assert!(ratio_interval(&[0.1], 0.05).is_none());
    }

    #[test]
    fn interval_and_p_value_say_the_same() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        for _ in 0..500 {
            let logs: Vec<f64> = (0..6).map(|_| 0.05 + 0.06 * normal(&mut rng)).collect();
            let interval = ratio_interval(&logs, 0.05).unwrap();
            let excluded = interval.low > 1.0 || interval.high < 1.0;
            assert_eq!(excluded, mean_p_value(&logs, 0.0).unwrap() < 0.05);
        }
    }

    #[test]
    fn holm_steps_down_and_stops_at_the_first_failure() {
        assert_eq!(holm_levels(&[0.001, 0.5, 0.02], 0.05), vec![0.05 / 3.0, 0.05, 0.025]);
        assert_eq!(holm_levels(&[0.04, 0.03], 0.05), vec![0.025, 0.025]);
    }

    /// Figures of Newcombe (1998), table I: 81 of 263, and 0 of 20.
    #[test]
    fn wilsons_interval_is_the_published_one() {
        let found = wilson_interval(81, 263);
        assert!((found.low - 0.2553).abs() < 5e-5 && (found.high - 0.3662).abs() < 5e-5, "{found:?}");
        let none = wilson_interval(0, 20);
        assert!(none.low == 0.0 && (none.high - 0.1611).abs() < 5e-5, "{none:?}");
        assert_eq!(wilson_interval(32, 32).high, 1.0);
    }

    /// 29 of 107 against 30 of 102: exp(ln 0.9215 ± 1.96 √(1/29 - 1/107 + 1/30 - 1/102)) is 0.60 to 1.42.
    #[test]
    fn ratios_of_shares_have_intervals_also_without_a_hit() {
        let (found, p) = share_ratio((29.0, 107.0), (30.0, 102.0), 0.05, 1.0);
        assert!((found.estimate - 0.9215).abs() < 1e-3 && (0.58..0.62).contains(&found.low) && (1.38..1.44).contains(&found.high));
        assert!(p > 0.6, "{p}");
        let (none, p) = share_ratio((0.0, 32.0), (32.0, 32.0), 0.05, 0.5);
        assert!(none.estimate == 0.0 && none.high < 0.3 && p < 0.02, "{none:?}, {p}");
        let (all, _) = share_ratio((31.0, 32.0), (32.0, 32.0), 0.05, 0.9);
        assert!(all.low > 0.85 && all.high < 1.1, "{all:?}");
    }

    /// The second from a textbook: with ties, rho is Pearson's correlation of mean ranks.
    #[test]
    fn rank_correlations_of_known_series() {
        assert!((rank_correlation(&[1.0, 2.0, 3.0], &[0.1, 5.0, 5.1]) - 1.0).abs() < 1e-12);
        assert!((rank_correlation(&[1.0, 2.0, 3.0, 4.0], &[9.0, 4.0, 4.0, 1.0]) + 0.9486832980505138).abs() < 1e-12);
        // 1 - 6 * (1 + 1) / (5 * 24)
        assert!((rank_correlation(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 1.0, 3.0, 4.0, 5.0]) - 0.9).abs() < 1e-12);
        assert!(rank_correlation(&[1.0, 2.0], &[3.0, 3.0]).is_nan());
    }

    /// Levels of the same mean: normal noise, and one level apart from the others by `bias` of its standard deviations.
    fn named_alike(seed: u64, rounds: usize, bias: f64) -> Vec<Vec<f64>> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let bias = |level: u32| if level == 0 { bias } else { 0.0 };
        (0..10).map(|level| (0..rounds).map(|_| 0.02 * (normal(&mut rng) + bias(level))).collect()).collect()
    }

    const FIVE: [(usize, f64); 1] = [(5, 0.05)];

    #[test]
    fn false_alarms_are_as_rare_as_they_should_be_and_a_bias_is_seen() {
        let sequential = [(5, 0.01), (10, 0.01), (25, 0.03)];
        for looks in [&FIVE[..], &sequential[..]] {
            let of = |seed| false_alarms(&named_alike(seed, 50, 0.0), looks).unwrap();
            let rates: Vec<f64> = (0..40).map(|seed| of(seed).estimate).collect();
            assert!((0.025..0.06).contains(&mean(&rates)), "{looks:?}: {}", mean(&rates));
            // The rate that all are drawn from lies in 95 % of the intervals; by chance in fewer than 34 of 40 once in 200 times.
            let covered = (0..40).filter(|seed| (of(*seed).low..=of(*seed).high).contains(&mean(&rates))).count();
            assert!(covered >= 34, "{looks:?}: {covered} of 40");
        }
        // One level of ten stands in a fifth of the pairs.
        let biased = false_alarms(&named_alike(1, 25, 10.0), &FIVE).unwrap();
        assert!(biased.estimate > 0.2 && biased.low > 0.05, "{biased:?}");
        let (few, many) = [25, 60].map(|rounds| false_alarms(&named_alike(1, rounds, 0.0), &FIVE).unwrap()).into();
        assert!(few.high > 0.1 && many.high < 0.1, "more rounds narrow it: {few:?}, {many:?}");
        assert_eq!(false_alarms(&named_alike(1, 4, 0.0), &FIVE), None, "too few rounds");
        assert_eq!(false_alarms(&named_alike(1, 25, 0.0)[..1], &FIVE), None);
    }
}
