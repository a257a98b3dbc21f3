//! Which configurations of a step fit a card, what each costs in extra compute, and which to take.

use super::prediction::Prediction;
use crate::models::Settings;
use crate::training::{CheckpointPolicy, Configuration, OptimizerKind, OutOfMemory, Precision};
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// What is searched: every combination, with each micro-batch that divides the effective batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Search {
    /// Name of a model; see [`crate::models`].
    pub model: String,
    pub settings: Settings,
    /// Samples of one step, all micro-batches together.
    pub effective_batch: i64,
    /// Each list in the order in which its values are preferred.
    pub optimizers: Vec<OptimizerKind>,
    pub precisions: Vec<Precision>,
    pub checkpoints: Vec<CheckpointPolicy>,
}

/// The largest effective batch whose divisors are looked for.
const LARGEST_BATCH: i64 = 1 << 40;

impl Search {
    /// Every configuration: optimizers as given, in each the precisions, then the checkpoint policies, then the micro-batches, the
    /// largest first.
    ///
    /// # Errors
    /// A model or a setting that is none; a batch that cannot be.
    pub fn configurations(&self) -> Result<Vec<Configuration>> {
        let plain = Configuration { settings: self.settings, ..Configuration::new(&self.model, self.effective_batch) };
        plain.validate()?;
        ensure!(self.effective_batch <= LARGEST_BATCH, "an effective batch has at most 2^40 samples, not {}", self.effective_batch);
        let counts = divisors(self.effective_batch);
        let mut configurations = Vec::new();
        for &optimizer in &self.optimizers {
            for &precision in &self.precisions {
                for &checkpoint in &self.checkpoints {
                    for &accumulate in &counts {
                        configurations.push(Configuration { optimizer, precision, checkpoint, accumulate, ..plain.clone() });
                    }
                }
            }
        }
        Ok(configurations)
    }
}

/// The divisors of a positive number, the smallest first.
pub fn divisors(n: i64) -> Vec<i64> {
    let small: Vec<i64> = (1..).take_while(|d| d * d <= n).filter(|d| n % d == 0).collect();
    let large: Vec<i64> = small.iter().rev().map(|d| n / d).filter(|d| d * d != n).collect();
    let mut divisors = small;
    divisors.retain(|d| d * d <= n);
    divisors.extend(large.into_iter().filter(|d| d * d > n));
    divisors
}

/// What one configuration needs, in bytes, each at its peak; where memory ran out, up to there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub requested: i64,
    pub allocated: i64,
    pub reserved: i64,
    pub device_used: i64,
    pub out_of_memory: Option<OutOfMemory>,
}

impl From<&Prediction> for Tried {
    fn from(p: &Prediction) -> Tried {
        let Prediction { requested, allocated, reserved, device_used, ref out_of_memory, .. } = *p;
        Tried { requested, allocated, reserved, device_used, out_of_memory: out_of_memory.clone() }
    }
}

/// A configuration with what it needs and what it costs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    pub configuration: Configuration,
    pub fits: bool,
    #[serde(flatten)]
    pub needs: Tried,
    pub micro_batch: i64,
    /// Forward and backward passes of one step, one for each micro-batch.
    pub micro_steps: i64,
    /// How often each sample goes forward through the blocks: once, and once more where they are recomputed.
    pub forward_passes: u32,
    /// Whether it fits and nothing else that fits, with the same optimizer and precision, is as good in all of bytes on the device, forward
    /// passes and micro-steps, and better in one.
    pub on_front: bool,
}

impl Candidate {
    fn new(configuration: Configuration, needs: Tried) -> Candidate {
        Candidate {
            fits: needs.out_of_memory.is_none(),
            needs,
            micro_batch: configuration.micro_batch(),
            micro_steps: configuration.accumulate,
            forward_passes: if configuration.checkpoint == CheckpointPolicy::None { 1 } else { 2 },
            on_front: false,
            configuration,
        }
    }

    fn dominates(&self, other: &Candidate) -> bool {
        let costs = |c: &Candidate| [c.needs.device_used, i64::from(c.forward_passes), c.micro_steps];
        let alike = |c: &Candidate| (c.configuration.optimizer, c.configuration.precision);
        let (mine, its) = (costs(self), costs(other));
        alike(self) == alike(other) && mine != its && mine.iter().zip(its).all(|(mine, its)| *mine <= its)
    }
}

/// All configurations of a search, judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    pub candidates: Vec<Candidate>,
    /// Position of the recommended one; none where nothing fits.
    pub recommended: Option<usize>,
    pub reason: String,
}

impl Plan {
    /// Judges the configurations of a search by what they need, in the same order.
    ///
    /// The recommendation is, among those that fit, the one with the optimizer named first, then with the fewest forward passes, then with
    /// the fewest micro-steps, then with the precision named first, then with the fewest bytes on the device. So it spends no compute that
    /// memory does not ask for, and changes the numbers only where that saves compute.
    pub fn of(configurations: Vec<Configuration>, needs: Vec<Tried>) -> Plan {
        let mut candidates: Vec<Candidate> =
            configurations.into_iter().zip(needs).map(|(configuration, needs)| Candidate::new(configuration, needs)).collect();
        let fitting: Vec<usize> = (0..candidates.len()).filter(|at| candidates[*at].fits).collect();
        for &at in &fitting {
            candidates[at].on_front = !fitting.iter().any(|other| candidates[*other].dominates(&candidates[at]));
        }
        // Positions in the search are in order of preference.
        let first = fitting.first().map(|at| candidates[*at].configuration.optimizer);
        let preferred = fitting.iter().filter(|at| Some(candidates[**at].configuration.optimizer) == first);
        let rank = |at: usize| {
            let c = &candidates[at];
            let named = |other: &Candidate| other.configuration.precision == c.configuration.precision;
            (c.forward_passes, c.micro_steps, candidates.iter().position(named), c.needs.device_used)
        };
        let recommended = preferred.copied().min_by_key(|at| rank(*at));
        let reason = reason(&candidates, recommended);
        Plan { candidates, recommended, reason }
    }
}

fn reason(candidates: &[Candidate], recommended: Option<usize>) -> String {
    let Some(best) = recommended.map(|at| &candidates[at]) else {
        let least = candidates.iter().map(|c| c.micro_batch).min().unwrap_or(0);
        return format!("nothing fits: not even a micro-batch of {least} with everything recomputed that may be");
    };
    let fitting = candidates.iter().filter(|c| c.fits).count();
    let mut reason = format!(
        "of the {fitting} of {} configurations that fit it asks for the least extra compute with {}: {} for each sample, {} for each step",
        candidates.len(),
        best.configuration.optimizer,
        counted(i64::from(best.forward_passes), "forward pass", "forward passes"),
        counted(best.micro_steps, "micro-step", "micro-steps"),
    );
    let same = |c: &&Candidate| {
        c.configuration.optimizer == best.configuration.optimizer
            && (c.forward_passes, c.micro_steps) == (best.forward_passes, best.micro_steps)
    };
    let others = candidates.iter().filter(|c| c.fits).filter(same).count() - 1;
    if others > 0 {
        reason += &format!("; {others} more cost the same; of these it has the precision named first, and then the fewest bytes");
    }
    if best.forward_passes > 1 || best.micro_steps > 1 {
        reason += "; everything with less does not fit";
    }
    reason
}

fn counted(n: i64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_complete_and_in_order() {
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
        assert_eq!(divisors(97), [1, 97]);
        for n in 1..500 {
            assert_eq!(divisors(n), (1..=n).filter(|d| n % d == 0).collect::<Vec<_>>());
        }
    }

    fn candidate(
        precision: Precision,
        checkpoint: CheckpointPolicy,
        accumulate: i64,
        used: i64,
        fits: bool,
    ) -> (Configuration, Tried) {
        let configuration = Configuration { precision, checkpoint, accumulate, ..Configuration::new("mlp", 8) };
        let out = OutOfMemory { iteration: 1, phase: crate::torch::Phase::Forward, message: String::new() };
        let needs =
            Tried { requested: used, allocated: used, reserved: used, device_used: used, out_of_memory: (!fits).then_some(out) };
        (configuration, needs)
    }

    #[test]
    fn the_front_and_the_recommendation_follow_from_what_fits() {
        let (plain, all) = (CheckpointPolicy::None, CheckpointPolicy::EveryBlock);
        let (configurations, needs): (Vec<_>, Vec<_>) = [
            candidate(Precision::Fp32, plain, 1, 90, false),
            candidate(Precision::Fp32, plain, 2, 60, true),
            candidate(Precision::Fp32, all, 2, 60, true),
            candidate(Precision::Fp32, all, 4, 40, true),
            candidate(Precision::AmpBf16, plain, 1, 70, true),
        ]
        .into_iter()
        .unzip();
        let plan = Plan::of(configurations.clone(), needs);
        let front: Vec<bool> = plan.candidates.iter().map(|c| c.on_front).collect();
        assert_eq!(front, [false, true, false, true, true]);
        assert_eq!(plan.recommended, Some(4), "{}", plan.reason);
        let nothing: Vec<Tried> = plan.candidates.iter().map(|_| candidate(Precision::Fp32, plain, 1, 1, false).1).collect();
        let plan = Plan::of(configurations, nothing);
        assert!(plan.recommended.is_none() && plan.reason.contains("nothing fits"));
    }
}
