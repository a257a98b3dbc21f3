//! Which settings a loader should have: a search that spends a fixed time on measuring and says how sure it is.
//!
//! Successive halving (Jamieson and Talwalkar, arXiv 1502.07943): all numbers of workers are measured for a short time, the better half and
//! all that cannot be told from the best go on, and what is left of the time is shared by fewer and fewer. What was measured before
//! counts. Then the best is tried with other prefetching, and with pinning where there is a GPU. Nothing here knows a clock or a loader:
//! a [`Trial`] says what it measured and how long that took.

use crate::stats::{Interval, mean_interval, median};
use anyhow::{Result, ensure};

/// One setting of a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    pub workers: usize,
    pub prefetch: usize,
    pub pinning: bool,
}

/// What a trial found.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Images a second, one for each slice of the time.
    pub rates: Vec<f64>,
    /// Seconds that the trial took in all.
    pub seconds: f64,
}

/// Something that loads with a setting for a while.
pub trait Trial {
    /// Loads for about so many seconds.
    ///
    /// # Errors
    /// The data cannot be loaded.
    fn run(&mut self, setting: Setting, seconds: f64) -> Result<Measured>;
}

/// What is searched, and for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// Seconds for all trials together.
    pub seconds: f64,
    /// Cores that this process may use.
    pub cores: usize,
    pub batch: usize,
    /// Seconds that a training step takes, where the user knows.
    pub step_time: Option<f64>,
    /// Whether there is a GPU to pin for.
    pub gpu: bool,
}

/// A setting with all that was measured of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    pub setting: Setting,
    pub rates: Vec<f64>,
    pub seconds: f64,
}

impl Tried {
    /// Images a second.
    pub fn rate(&self) -> f64 {
        median(&self.rates)
    }

    /// 95 % interval of the mean rate, and the median with it. Fewer than three slices tell no spread: then the rate is only taken to be right within a factor of
    /// three, which is enough where a step needs a hundredth of it.
    pub fn interval(&self) -> Interval {
        let rough = Interval { estimate: self.rate(), low: self.rate() / 3.0, high: self.rate() * 3.0 };
        let around =
            |mean: Interval| Interval { estimate: self.rate(), low: mean.low.min(self.rate()), high: mean.high.max(self.rate()) };
        if self.has_spread() { mean_interval(&self.rates, 0.05).map_or(rough, around) } else { rough }
    }

    /// Whether there are slices enough for an interval.
    pub fn has_spread(&self) -> bool {
        self.rates.len() >= 3
    }
}

/// What the search advises, and what it saw.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    pub setting: Setting,
    pub reason: String,
    /// Everything that was tried, the fastest first.
    pub tried: Vec<Tried>,
}

/// Batches ahead in the first part, where only workers are compared.
const USUAL_PREFETCH: usize = 2;

/// A setting that is this close to the fastest is as good, if it needs less.
const AS_GOOD: f64 = 0.97;

/// No setting that is further from the fastest counts as being as good, however uncertain its rate.
const NEAR: f64 = 0.9;

/// Share of the time that goes to the number of workers.
const FOR_WORKERS: f64 = 0.7;

impl Search {
    /// Numbers of workers that are worth a try: none, powers of two up to twice the cores, and the cores.
    fn candidates(&self) -> Vec<usize> {
        let mut workers: Vec<usize> =
            std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n <= 2 * self.cores).collect();
        workers.extend([0, self.cores]);
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// Searches; `told` hears of each trial as it ends.
    ///
    /// # Errors
    /// What a trial fails with; no time to search in.
    pub fn run(&self, trial: &mut dyn Trial, told: &mut dyn FnMut(&Tried)) -> Result<Advice> {
        ensure!(self.seconds > 0.0 && self.batch > 0 && self.cores > 0, "a search needs time, cores and a batch");
        let mut tried: Vec<Tried> = Vec::new();
        let mut left: Vec<Setting> =
            self.candidates().into_iter().map(|workers| Setting { workers, prefetch: USUAL_PREFETCH, pinning: false }).collect();
        let rungs = (left.len() as f64).log2().ceil().max(1.0);
        let share = self.seconds * FOR_WORKERS / rungs;
        for rung in 0..rungs as usize {
            // In the other direction each time: what drifts while it is measured favours nobody.
            let order: Vec<Setting> = if rung % 2 == 0 { left.clone() } else { left.iter().rev().copied().collect() };
            for setting in order {
                let within = self.seconds * FOR_WORKERS - spent(&tried);
                measure(trial, setting, (share / left.len() as f64).min(within), &mut tried, told)?;
            }
            left = survivors(&left, &tried);
            if left.len() == 1 {
                break;
            }
        }
        let leader = self.choose(&tried).setting;
        let mut others: Vec<Setting> = Vec::new();
        if leader.workers > 0 {
            others.extend([1, 4, 8].map(|prefetch| Setting { prefetch, ..leader }));
        }
        others.extend(self.gpu.then_some(Setting { pinning: true, ..leader }));
        // The leader is measured among them again, so that all were measured at the same time.
        others.push(leader);
        let each = (self.seconds - spent(&tried)) / others.len() as f64;
        for setting in others {
            let within = self.seconds - spent(&tried);
            measure(trial, setting, each.min(within), &mut tried, told)?;
        }
        let chosen = self.choose(&tried);
        let advice = Advice { setting: chosen.setting, reason: self.reason(chosen, &tried), tried: Vec::new() };
        tried.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
        Ok(Advice { tried, ..advice })
    }

    /// Images a second that the training step takes.
    fn need(&self) -> Option<f64> {
        self.step_time.map(|seconds| self.batch as f64 / seconds)
    }

    /// The cheapest setting that surely feeds the step, or else the cheapest that is as good as the fastest.
    fn choose<'a>(&self, tried: &'a [Tried]) -> &'a Tried {
        let best = fastest(tried);
        let feeds = |t: &&Tried| self.need().is_some_and(|need| t.interval().low >= need);
        // Not shown to be slower: what was measured briefly, because it fell behind early, must be near it, too.
        let as_good = |t: &&Tried| t.interval().high >= AS_GOOD * best.rate() && t.rate() >= NEAR * best.rate();
        let cheapest = |a: &&Tried, b: &&Tried| a.setting.cmp(&b.setting);
        tried.iter().filter(feeds).min_by(cheapest).or_else(|| tried.iter().filter(as_good).min_by(cheapest)).unwrap_or(best)
    }

    fn reason(&self, chosen: &Tried, tried: &[Tried]) -> String {
        let verb = if chosen.setting.workers == 1 { "gives" } else { "give" };
        let gives = format!("{} {verb} {:.0} images/s", counted(chosen.setting.workers), chosen.rate());
        let interval = chosen.interval();
        match self.need() {
            Some(need) if interval.low >= need => {
                format!("not loader-bound: {gives}, your step needs {need:.0}; more would only take memory and cores from it")
            }
            Some(need) if interval.high < need => {
                let waits = (1.0 - chosen.rate() / need) * 100.0;
                format!("loader-bound: {gives}, your step needs {need:.0} and waits {waits:.0} % of its time for data")
            }
            Some(need) => format!(
                "about as fast as your step: {gives} (between {:.0} and {:.0}), your step needs {need:.0}",
                interval.low, interval.high
            ),
            None => {
                let best = fastest(tried);
                if best.setting == chosen.setting {
                    format!("the fastest: {gives}")
                } else {
                    format!(
                        "as good as the fastest: {gives}, the fastest ({}, prefetch {}) {:.0}, which is within {:.0} % or its noise",
                        counted(best.setting.workers),
                        best.setting.prefetch,
                        best.rate(),
                        (1.0 - AS_GOOD) * 100.0
                    )
                }
            }
        }
    }
}

fn counted(workers: usize) -> String {
    match workers {
        0 => "no workers".to_string(),
        1 => "1 worker".to_string(),
        n => format!("{n} workers"),
    }
}

fn spent(tried: &[Tried]) -> f64 {
    tried.iter().map(|t| t.seconds).sum()
}

fn fastest(tried: &[Tried]) -> &Tried {
    tried.iter().max_by(|a, b| a.rate().total_cmp(&b.rate())).unwrap_or(&tried[0])
}

fn measure(
    trial: &mut dyn Trial,
    setting: Setting,
    seconds: f64,
    tried: &mut Vec<Tried>,
    told: &mut dyn FnMut(&Tried),
) -> Result<()> {
    let known = tried.iter().position(|t| t.setting == setting);
    // What went over its time leaves less for those after it; only what nothing is known of is measured all the same.
    if seconds <= 0.0 && known.is_some() {
        return Ok(());
    }
    let found = trial.run(setting, seconds.max(0.1))?;
    let index = known.unwrap_or_else(|| {
        tried.push(Tried { setting, rates: Vec::new(), seconds: 0.0 });
        tried.len() - 1
    });
    tried[index].rates.extend(found.rates);
    tried[index].seconds += found.seconds;
    told(&tried[index]);
    Ok(())
}

/// The better half, and those that cannot be told from the best; at least one fewer than before, unless none can be told apart.
fn survivors(left: &[Setting], tried: &[Tried]) -> Vec<Setting> {
    let mut of: Vec<&Tried> = tried.iter().filter(|t| left.contains(&t.setting)).collect();
    of.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
    let half = of.len().div_ceil(2);
    let best = of.first().map_or(0.0, |best| best.interval().low);
    of.iter().enumerate().filter(|(i, t)| *i < half || t.interval().high >= best).map(|(_, t)| t.setting).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// A loader of known rates with noise, on a clock of its own: a slice of 0.1 s each.
    struct Synthetic<F> {
        rate: F,
        noise: f64,
        random: ChaCha8Rng,
        spent: f64,
        trials: Vec<(Setting, f64)>,
    }

    impl<F: Fn(Setting) -> f64> Trial for Synthetic<F> {
        fn run(&mut self, setting: Setting, seconds: f64) -> Result<Measured> {
            let slices = (seconds / 0.1).floor().max(1.0) as usize;
            let mut draw = || (self.rate)(setting) * (1.0 + self.random.random_range(-self.noise..=self.noise));
            let rates = (0..slices).map(|_| draw()).collect();
            let seconds = slices as f64 * 0.1;
            self.spent += seconds;
            self.trials.push((setting, seconds));
            Ok(Measured { rates, seconds })
        }
    }

    fn synthetic<F: Fn(Setting) -> f64>(noise: f64, seed: u64, rate: F) -> Synthetic<F> {
        Synthetic { rate, noise, random: ChaCha8Rng::seed_from_u64(seed), spent: 0.0, trials: Vec::new() }
    }

    const SEARCH: Search = Search { seconds: 60.0, cores: 8, batch: 64, step_time: None, gpu: false };

    /// Rises to four workers, falls slowly from eight on.
    fn four_are_enough(setting: Setting) -> f64 {
        match setting.workers {
            0 => 400.0,
            1 => 480.0,
            2 => 900.0,
            4 => 1600.0,
            8 => 1605.0,
            _ => 1200.0,
        }
    }

    #[test]
    fn the_cheapest_of_the_best_is_found_in_time() {
        for seed in 0..40 {
            let mut trial = synthetic(0.05, seed, four_are_enough);
            let advice = SEARCH.run(&mut trial, &mut |_| {}).unwrap();
            assert_eq!(advice.setting, Setting { workers: 4, prefetch: 1, pinning: false }, "{}", advice.reason);
            assert!(trial.spent <= 61.0, "{} s", trial.spent);
            assert!(advice.tried[0].rate() >= advice.tried[1].rate());
            let of = |workers| trial.trials.iter().filter(|(s, _)| s.workers == workers).map(|(_, t)| t).sum::<f64>();
            assert!(of(0) < 4.0 && of(4) > 20.0, "time goes to those that may win: {} and {}", of(0), of(4));
        }
    }

    #[test]
    fn candidates_go_to_twice_the_cores() {
        assert_eq!(SEARCH.candidates(), [0, 1, 2, 4, 8, 16]);
        assert_eq!(Search { cores: 6, ..SEARCH }.candidates(), [0, 1, 2, 4, 6, 8]);
        assert_eq!(Search { cores: 1, ..SEARCH }.candidates(), [0, 1, 2]);
    }

    #[test]
    fn prefetching_and_pinning_are_chosen_where_they_help() {
        let mut trial = synthetic(0.02, 1, |s| {
            four_are_enough(s) * if s.prefetch >= 4 { 1.3 } else { 1.0 } * if s.pinning { 1.5 } else { 1.0 }
        });
        let advice = Search { gpu: true, ..SEARCH }.run(&mut trial, &mut |_| {}).unwrap();
        assert!(advice.setting.pinning && advice.setting.workers == 4, "{:?}", advice.setting);
        let mut trial = synthetic(0.02, 1, |s| four_are_enough(s) * if s.prefetch >= 4 { 1.3 } else { 1.0 });
        let advice = SEARCH.run(&mut trial, &mut |_| {}).unwrap();
        assert_eq!(advice.setting, Setting { workers: 4, prefetch: 4, pinning: false });
        assert!(trial.trials.iter().all(|(s, _)| !s.pinning), "nobody pins without a GPU");
    }

    #[test]
    fn the_reason_says_who_waits_for_whom() {
        let advise = |step_time: f64| {
            let mut trial = synthetic(0.02, 3, four_are_enough);
            Search { step_time: Some(step_time), ..SEARCH }.run(&mut trial, &mut |_| {}).unwrap()
        };
        let enough = advise(64.0 / 700.0);
        assert_eq!(enough.setting.workers, 2, "{}", enough.reason);
        assert!(enough.reason.starts_with("not loader-bound: 2 workers give ") && enough.reason.contains("needs 700"));
        let waiting = advise(64.0 / 3200.0);
        assert_eq!(waiting.setting.workers, 4);
        assert!(waiting.reason.starts_with("loader-bound: 4 workers give 1") && waiting.reason.contains("and waits "));
        let free = SEARCH.run(&mut synthetic(0.02, 3, four_are_enough), &mut |_| {}).unwrap();
        assert!(free.reason.contains("the fastest"), "{}", free.reason);
    }

    /// Where no setting is better, the cheapest that is not slower is advised, and noise is not taken for a gain.
    #[test]
    fn noise_is_not_sold_as_a_gain() {
        let dear = (0..40)
            .filter(|seed| {
                let mut trial = synthetic(0.3, *seed, |_| 1000.0);
                SEARCH.run(&mut trial, &mut |_| {}).unwrap().setting.workers > 2
            })
            .count();
        assert!(dear <= 8, "{dear} of 40 searches advise workers that do nothing");
    }

    #[test]
    fn a_slow_loader_is_measured_a_little_all_the_same() {
        struct Slow(f64);
        impl Trial for Slow {
            fn run(&mut self, setting: Setting, _: f64) -> Result<Measured> {
                self.0 += 5.0;
                Ok(Measured { rates: vec![10.0 + setting.workers as f64], seconds: 5.0 })
            }
        }
        let mut trial = Slow(0.0);
        let advice = SEARCH.run(&mut trial, &mut |_| {}).unwrap();
        assert!(trial.0 <= 90.0 && !advice.tried.is_empty(), "{} s", trial.0);
        assert!(SEARCH.run(&mut Failing, &mut |_| {}).unwrap_err().to_string().contains("vanished"));
    }

    struct Failing;
    impl Trial for Failing {
        fn run(&mut self, _: Setting, _: f64) -> Result<Measured> {
            anyhow::bail!("the file vanished")
        }
    }
}
