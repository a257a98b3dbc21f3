//! A technique or several that go together, and what became of them.

use crate::answer::technique::{Changes, Need, Scripts, Source, Technique, TimeKind};
use crate::answer::time::{Prediction, TimeChange};
use crate::answer::{HostMemory, NeedlessGraphs, SimulatedGpu};
use crate::capture::process::TechniqueOutcome;
use crate::run::executor::Variant;
use crate::words::place_or_not;
use base::units::Bytes;
use serde::Serialize;

/// A technique, or several.
#[derive(Debug, Clone, Default)]
pub struct Combination {
    pub names: Vec<String>,
    pub of: Vec<&'static Technique>,
    pub variant: Variant,
    /// Into how many micro-batches it divides a batch; 0 where it does not.
    pub micro_batches: u64,
    /// What to write where no technique says it: flags of the command, the environment.
    pub words: String,
}

/// Those of some texts that say something.
pub fn joined<'a>(texts: impl IntoIterator<Item = &'a String>, between: &str) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).map(String::as_str).collect::<Vec<_>>().join(between)
}

impl Combination {
    /// Of one technique, whose operations are counted.
    pub fn of(name: &str, technique: &'static Technique, variant: Variant) -> Combination {
        let variant = Variant { counts: true, ..variant };
        Combination { names: vec![name.to_string()], of: vec![technique], variant, ..Combination::default() }
    }

    pub fn and(&self, other: &Combination) -> Combination {
        Combination {
            names: [&self.names[..], &other.names].concat(),
            of: [&self.of[..], &other.of].concat(),
            variant: Variant {
                techniques: [&self.variant.techniques[..], &other.variant.techniques].concat(),
                settings: [&self.variant.settings[..], &other.variant.settings].concat(),
                command: other.variant.command.clone().or_else(|| self.variant.command.clone()),
                counts: true,
                replay: None,
            },
            micro_batches: self.micro_batches.max(other.micro_batches),
            words: joined([&self.words, &other.words], "\n\n"),
        }
    }

    pub fn goes_with(&self, other: &Combination) -> bool {
        let is_beside =
            |a: &Combination, b: &Combination| !a.wants(Need::Compiler) || b.of.iter().all(|technique| technique.compiles);
        let is_in = |group: &String| other.of.iter().any(|technique| technique.group == *group);
        !self.of.iter().any(|technique| is_in(&technique.group)) && is_beside(self, other) && is_beside(other, self)
    }
}

impl Combination {
    pub fn wants(&self, need: Need) -> bool {
        self.of.iter().any(|technique| technique.wants(need))
    }
}

/// What a variant asks for that its price does not show, the heaviest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Burdens {
    pub trains_otherwise: bool,
    pub more_cards: bool,
    pub other_numbers: bool,
    /// Where the price is a count of operations, which are not what takes the time.
    pub traffic: bool,
    pub compiler: bool,
}

impl Burdens {
    /// Whether it has none that the other lacks.
    pub fn are_within(self, other: Burdens) -> bool {
        let named = |of: Burdens| [of.trains_otherwise, of.more_cards, of.other_numbers, of.traffic, of.compiler];
        named(self).iter().zip(named(other)).all(|(own, other)| *own <= other)
    }
}

/// Cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VariantCost {
    burdens: Burdens,
    /// Little time, or little to compute.
    price: i64,
    changes_result: bool,
    techniques: usize,
    micro_batches: u64,
    bytes: i64,
}

/// What became of a choice.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
pub struct VariantRow {
    pub techniques: Vec<String>,
    /// None where it was not applied. Where it does not fit: as it would be on a card that is large enough; none on a real GPU.
    pub peak_reserved: Option<i64>,
    pub peak_allocated: Option<i64>,
    /// The least GPU memory that it runs on, with the CUDA context; none on a real GPU.
    pub needs_at_least: Option<i64>,
    /// Of what it needs at least; on a real GPU, of what is reserved.
    pub saved: Option<i64>,
    /// Of one optimizer step; none where they could not be counted.
    pub extra_flops: Option<i64>,
    /// Of a step on a real GPU: the median of those after the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Of a step on the simulated card, and how much longer it is than the script's own; none of a size alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_change: Option<TimeChange>,
    pub fits: bool,
    /// Bytes of the host's memory that are pinned.
    pub pinned: u64,
    /// No other needs less memory for as little time, measured or predicted, or as few operations where the card has no time. Where it has, a
    /// row without one is never marked.
    pub pareto: bool,
    /// What it changes in the result.
    pub change: String,
    pub snippet: String,
    /// Why it was not applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same as a share of the script's own.
    #[serde(skip)]
    pub extra_share: f64,
    /// The script's own step has a predicted time, and this has none.
    #[serde(skip)]
    pub is_without_time: bool,
    #[serde(skip)]
    pub choice: Combination,
}

/// A variant whose step is predicted to take less than this much longer is called free.
pub const FREE: f64 = 0.05;

impl VariantRow {
    pub fn of(choice: Combination, measured: &MeasuredStep, base: &MeasuredStep) -> VariantRow {
        let (reserved, allocated) = measured.peaks.unzip();
        let outcome = |name: &&str| measured.outcomes.iter().find(|outcome| outcome.technique == *name);
        let outcomes: Vec<&TechniqueOutcome> = choice.variant.techniques.iter().filter_map(outcome).collect();
        let flops = measured.flops.zip(base.flops).map(|(now, before)| (now.cast_signed() - before.cast_signed(), before));
        let changes_layout = choice.of.iter().any(|technique| technique.time == TimeKind::Layout);
        // Communication is not in the time, nor what compiling costs at the start.
        let time = measured.time.as_ref().ok().filter(|_| !choice.wants(Need::Cards) && !choice.wants(Need::Compiler));
        let before = base.time.as_ref().ok();
        let change = time.zip(before).map(|(now, before)| now.change_from(before, changes_layout));
        // What the host took otherwise in the same kernels is noise.
        let is_same = change.is_some_and(|change| change.low == change.high);
        VariantRow {
            techniques: choice.names.clone(),
            peak_reserved: reserved,
            peak_allocated: allocated,
            needs_at_least: measured.needs,
            saved: base.bytes().zip(measured.bytes()).map(|(before, now)| before - now),
            extra_flops: flops.map(|(extra, _)| extra),
            extra_share: flops.map_or(0.0, |(extra, before)| extra as f64 / before.max(1) as f64),
            seconds: measured.seconds,
            predicted_seconds: time.map(|time| match before {
                Some(before) if is_same => before.step_seconds,
                Some(before) => time.seconds_beside(before),
                None => time.step_seconds,
            }),
            predicted_change: change,
            is_without_time: time.is_none() && base.time.is_ok(),
            fits: measured.fits,
            pinned: measured.host.pinned,
            change: joined(outcomes.iter().map(|outcome| &outcome.change), "; "),
            snippet: joined([&choice.words].into_iter().chain(outcomes.iter().map(|outcome| &outcome.snippet)), "\n\n"),
            reason: measured.peaks.is_none().then(|| "out of memory".to_string()),
            choice,
            ..VariantRow::default()
        }
    }

    pub fn refused(choice: Combination, reason: String) -> VariantRow {
        VariantRow { techniques: choice.names.clone(), reason: Some(reason), choice, ..VariantRow::default() }
    }

    pub fn name(&self) -> String {
        if self.techniques.is_empty() { "as it is".to_string() } else { self.techniques.join(" + ") }
    }

    /// What rows are compared by.
    pub fn bytes(&self) -> Option<i64> {
        self.needs_at_least.or(self.peak_reserved)
    }

    /// Nanoseconds where they were measured, per cent of the script's own time where it is predicted, else operations beside the script.
    pub fn price(&self) -> i64 {
        match (self.seconds, self.predicted_change) {
            (Some(seconds), _) => (seconds * 1e9) as i64,
            // Less than one per cent is below what the host's time differs by from run to run.
            (None, Some(change)) => (change.share * 100.0).round() as i64,
            (None, None) if self.is_without_time => i64::MAX,
            (None, None) => self.extra_flops.unwrap_or(0),
        }
    }

    pub fn is_timed(&self) -> bool {
        self.seconds.is_some() || self.predicted_change.is_some()
    }

    pub fn burdens(&self) -> Burdens {
        let changes = |what| self.choice.of.iter().any(|technique| technique.changes == what);
        Burdens {
            trains_otherwise: changes(Changes::Training),
            more_cards: self.choice.wants(Need::Cards),
            other_numbers: changes(Changes::Numbers),
            traffic: self.is_offloading() && !self.is_timed(),
            compiler: self.choice.wants(Need::Compiler),
        }
    }

    pub fn is_offloading(&self) -> bool {
        self.choice.wants(Need::HostMemory)
    }

    /// Whether it asks for no clearly longer step, by the predicted time where there is one, and for nothing else. Without a time: for no more
    /// operations, to a thousandth; where they could not be counted, whether it is one of those that compute nothing again.
    pub fn is_free(&self) -> bool {
        let costs = match (self.predicted_change, self.extra_flops) {
            (Some(change), _) => change.share >= FREE,
            (None, Some(_)) => self.extra_share >= 1e-3,
            (None, None) => self.choice.of.iter().any(|technique| technique.again.is_some()),
        };
        !costs && self.burdens() == Burdens::default()
    }

    pub fn cost(&self) -> VariantCost {
        VariantCost {
            burdens: self.burdens(),
            price: if !self.is_timed() && self.is_free() { 0 } else { self.price() },
            changes_result: !self.change.is_empty(),
            techniques: self.techniques.len(),
            micro_batches: self.choice.micro_batches,
            bytes: self.bytes().unwrap_or(i64::MAX),
        }
    }
}

/// What a run showed that ended well, or whose memory ran out.
pub struct MeasuredStep {
    /// Most reserved and most allocated; none where a real GPU's memory ran out. Those of a simulated one go on to a large card.
    pub peaks: Option<(i64, i64)>,
    /// The least GPU memory that would do, with the CUDA context; none on a real GPU.
    pub needs: Option<i64>,
    pub fits: bool,
    pub seconds: Option<f64>,
    /// Predicted; why there is none, which is empty on a real GPU.
    pub time: Result<Prediction, String>,
    pub flops: Option<u64>,
    /// What its processes had in the host's memory at most.
    pub host_memory: u64,
    pub host: HostMemory,
    pub outcomes: Vec<TechniqueOutcome>,
    pub gpu: SimulatedGpu,
    /// Whether it goes backward: else it is inference, for which other techniques are.
    pub trains: bool,
    /// Whether optimizer steps are made, or would have been.
    pub makes_steps: bool,
    /// Where it would have gone backward, and did not.
    pub unreached_backward: Option<String>,
    /// Forward passes that keep what nothing goes back through.
    pub needless: Option<NeedlessGraphs>,
    /// What of the packages that techniques look for it imported; none where that is not known.
    pub imported: Option<Vec<String>>,
    /// In whole sentences, what the peak says nothing of: values that nobody computed, growth, code that was not reached.
    pub limits: Vec<String>,
}

impl MeasuredStep {
    /// What the time is of: `a step`, `a forward pass`, `a token`.
    pub fn unit(&self) -> String {
        let measured = if self.makes_steps { "step" } else { "forward pass" };
        self.time.as_ref().map_or_else(|_| format!("a {measured}"), |time| format!("a {}{}", time.unit, time.with_backward()))
    }

    /// Why a rehearsal on the simulated GPU says that there is nothing for a technique.
    pub fn has_nothing_for(&self, technique: &Technique) -> Option<String> {
        let is_needless = |scripts| technique.is_against(Source::NeedlessGraphs) && technique.scripts == scripts;
        let (is_inference_mode, is_no_grad) = (is_needless(Scripts::Inference), is_needless(Scripts::Training));
        let is_missing = |package: &&str| self.imported.as_ref().is_some_and(|known| known.iter().all(|name| name != package));
        match &self.needless {
            _ if is_inference_mode && self.unreached_backward.is_some() => {
                let place = self.unreached_backward.as_deref().unwrap_or_default();
                Some(format!("the script has a backward pass that was not reached, at {place}"))
            }
            None if is_inference_mode && !self.trains => {
                Some("the script's forward passes are without gradients already".to_string())
            }
            Some(found) if is_inference_mode && self.trains => {
                let place = place_or_not(found.line.as_ref());
                Some(format!(
                    "the script trains; torch.no_grad() is for its forward passes that no backward pass follows, at {place}"
                ))
            }
            Some(found) if is_no_grad && self.trains && !self.makes_steps => {
                let (place, held) = (place_or_not(found.line.as_ref()), Bytes(found.bytes_at_peak.unsigned_abs()));
                Some(format!(
                    "not tried in a script without optimizer steps: put torch.no_grad() around {place}, which keeps {held} at the peak"
                ))
            }
            _ if self.trains && !self.makes_steps && technique.steps => Some("the script makes no optimizer step".to_string()),
            _ if is_no_grad && !self.trains => Some("the script never trains: see torch.inference_mode()".to_string()),
            None if is_no_grad => Some("no forward pass of a trained model in evaluation was found to keep a graph".to_string()),
            _ => technique.package.as_deref().filter(is_missing).map(|package| format!("the script imports no {package}")),
        }
    }

    /// What it is compared by.
    pub fn bytes(&self) -> Option<i64> {
        self.needs.or(self.peaks.map(|(reserved, _)| reserved))
    }
}
