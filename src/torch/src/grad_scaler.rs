//! Loss scaling for fp16, with the behaviour of PyTorch's `torch.amp.GradScaler` (torch/amp/grad_scaler.py, 2.11), its errors included.
//!
//! fp16 has no number between 0 and 6e-8 and none beyond 65504. Gradients that are smaller would be lost, so the loss, and with it every
//! gradient, is multiplied by a scale; before the optimizer's step they are divided by it. Where a gradient overflows on the way,
//! the step is left out and the scale halved; after many steps without overflow it is doubled.
//!
//! ```no_run
//! # use anyhow::Result;
//! # use tch::{Device, Kind, Tensor, nn::Optimizer};
//! # use torch::{GradScaler, autocast};
//! # fn train(batches: Vec<Tensor>, forward: impl Fn(&Tensor) -> Tensor, optimizer: &mut Optimizer) -> Result<()> {
//! let mut scaler = GradScaler::default();
//! for batch in batches {
//!     optimizer.zero_grad();
//!     let loss = autocast(batch.device(), Kind::Half, || forward(&batch))?;
//!     scaler.scale(&loss)?.backward();
//!     scaler.unscale(optimizer)?; // only where gradients are read or changed, by clipping for instance
//!     optimizer.clip_grad_norm(1.0);
//!     scaler.step(optimizer)?;
//!     scaler.update()?;
//! }
//! # Ok(())
//! # }
//! ```

use super::native::{amp, optimizers::tensor_identity};
use super::optimizers::{GradScale, Implementation, Optimizer};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

/// An optimizer as a gradient scaler sees it.
pub trait Scalable {
    /// The parameters whose gradients the optimizer applies. By them the scaler knows one optimizer from another.
    fn parameters(&self) -> Vec<Tensor>;

    /// Updates the parameters with their gradients.
    ///
    /// # Errors
    /// libtorch's message.
    fn step(&mut self) -> Result<()>;

    /// Whether [`Scalable::step_scaled`] is to be called in place of `step`: fused kernels unscale gradients and leave a step out by
    /// themselves, so that nothing waits for the device.
    fn scales_itself(&self) -> bool {
        false
    }

    /// Updates the parameters with gradients that are to be divided by `scale` (none where they have been already), unless `found_inf` is
    /// not 0. Both are tensors of one float.
    ///
    /// # Errors
    /// libtorch's message; an optimizer that cannot do this.
    fn step_scaled(&mut self, scale: Option<&Tensor>, found_inf: &Tensor) -> Result<()> {
        let _ = (scale, found_inf);
        anyhow::bail!("this optimizer does not take a scale; it has to say so by `scales_itself`")
    }
}

/// tch's optimizers are loops over parameters and know nothing of scales.
impl Scalable for tch::nn::Optimizer {
    fn parameters(&self) -> Vec<Tensor> {
        self.trainable_variables()
    }

    fn step(&mut self) -> Result<()> {
        crate::attempt(|| {
            tch::nn::Optimizer::step(self);
            Ok(())
        })
    }
}

/// Fused steps unscale and skip by themselves; the others are as tch's.
impl Scalable for Optimizer {
    fn parameters(&self) -> Vec<Tensor> {
        Optimizer::parameters(self).map(|(_, parameter)| parameter.shallow_clone()).collect()
    }

    fn step(&mut self) -> Result<()> {
        Optimizer::step(self)
    }

    fn scales_itself(&self) -> bool {
        self.implementation() == Implementation::Fused
    }

    fn step_scaled(&mut self, scale: Option<&Tensor>, found_inf: &Tensor) -> Result<()> {
        let (grad_scale, found_inf) = (scale.map(Tensor::shallow_clone), Some(found_inf.shallow_clone()));
        Optimizer::step_scaled(self, &GradScale { grad_scale, found_inf })
    }
}

/// What a scaler starts with, and what it is saved as; the names are those of PyTorch's `state_dict`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScalerState {
    pub scale: f64,
    /// By how much the scale is multiplied after `growth_interval` steps without overflow; above 1.
    pub growth_factor: f64,
    /// By how much the scale is multiplied after an overflow; below 1.
    pub backoff_factor: f64,
    pub growth_interval: i64,
    /// Steps without overflow since the scale last changed.
    #[serde(rename = "_growth_tracker")]
    pub growth_tracker: i64,
}

/// PyTorch's: 65536, doubled after 2000 steps, halved at an overflow.
impl Default for ScalerState {
    fn default() -> Self {
        ScalerState { scale: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000, growth_tracker: 0 }
    }
}

/// What of the scale lives on a device, so that nothing has to wait to read it.
#[derive(Debug)]
struct Placed {
    /// One float.
    scale: Tensor,
    /// One 32-bit integer.
    growth_tracker: Tensor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScalerStage {
    Ready,
    Unscaled,
    Stepped,
}

/// What this iteration did to one optimizer.
#[derive(Debug)]
struct PerOptimizer {
    /// What its parameters are known by.
    parameters: Vec<usize>,
    stage: ScalerStage,
    /// One float for each device that has gradients, not 0 where one of them was not finite.
    found_inf: Vec<Tensor>,
}

/// Scales losses, unscales gradients, and leaves steps out where gradients overflowed.
///
/// Scale and tracker live on the device of the first loss. As in PyTorch, the host waits for the device only in [`GradScaler::step`], where
/// the optimizer cannot leave a step out by itself, and in [`GradScaler::get_scale`] and [`GradScaler::state`].
#[derive(Debug)]
pub struct GradScaler {
    /// Current factors and interval; scale and tracker are those to start with.
    settings: ScalerState,
    enabled: bool,
    placed: Option<Placed>,
    optimizers: Vec<PerOptimizer>,
}

impl Default for GradScaler {
    fn default() -> Self {
        GradScaler { settings: ScalerState::default(), enabled: true, placed: None, optimizers: Vec::new() }
    }
}

impl GradScaler {
    /// A scaler with its own start; [`ScalerState::default`] is PyTorch's.
    ///
    /// # Errors
    /// A growth factor of at most 1, a backoff factor of at least 1.
    pub fn new(settings: ScalerState) -> Result<GradScaler> {
        check_factors(&settings)?;
        Ok(GradScaler { settings, ..GradScaler::default() })
    }

    /// A scaler that changes nothing: `scale` gives the loss back, `step` takes the step. So one training loop serves all precisions.
    pub fn disabled() -> GradScaler {
        GradScaler { enabled: false, ..GradScaler::default() }
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Brings scale and tracker onto a device now, where the first [`GradScaler::scale`] would do it.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn place_on(&mut self, device: Device) -> Result<()> {
        if self.enabled && self.placed.is_none() {
            self.placed = Some(Placed {
                scale: Tensor::f_full([] as [i64; 0], self.settings.scale, (Kind::Float, device))?,
                growth_tracker: Tensor::f_full([] as [i64; 0], self.settings.growth_tracker, (Kind::Int, device))?,
            });
        }
        Ok(())
    }

    fn placed(&mut self, call: &str) -> Result<&mut Placed> {
        let missing = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration.";
        self.placed.as_mut().with_context(|| format!("Attempted {call} but _scale is None.  {missing}"))
    }

    /// The loss times the scale: what `backward` is to be called on.
    ///
    /// # Errors
    /// libtorch's message.
    pub fn scale(&mut self, loss: &Tensor) -> Result<Tensor> {
        if !self.enabled {
            return Ok(loss.shallow_clone());
        }
        self.place_on(loss.device())?;
        let scale = self.placed("scale")?.scale.f_to_device_(loss.device(), Kind::Float, true, false)?;
        Ok(loss.f_mul(&scale)?)
    }

    /// Divides an optimizer's gradients by the scale and notes whether all are finite. Call it once all gradients of a step have been
    /// accumulated, before they are clipped or read; [`GradScaler::step`] does it otherwise. Does not wait for the device.
    ///
    /// # Errors
    /// Before the first `scale`, a second time since the last `update`, after `step`; fp16 gradients, which cannot hold what they would
    /// become.
    pub fn unscale(&mut self, optimizer: &dyn Scalable) -> Result<()> {
        if !self.enabled {
            return Ok(());
        }
        let scale = self.placed("unscale_")?.scale.shallow_clone();
        let (parameters, index) = self.state_of(optimizer);
        match self.optimizers[index].stage {
            ScalerStage::Unscaled => anyhow::bail!("unscale_() has already been called on this optimizer since the last update()."),
            ScalerStage::Stepped => anyhow::bail!("unscale_() is being called after step()."),
            ScalerStage::Ready => {}
        }
        // In double precision, so that no compiler's fp32 division matters.
        let inverse = scale.f_to_kind(Kind::Double)?.f_reciprocal()?.f_to_kind(Kind::Float)?;
        let found = unscale_gradients(&parameters, &inverse, false)?;
        let state = &mut self.optimizers[index];
        (state.found_inf, state.stage) = (found, ScalerStage::Unscaled);
        Ok(())
    }

    /// Takes the optimizer's step with unscaled gradients, or leaves it out where a gradient was not finite. Says whether it was taken; none
    /// where only the device knows, because the optimizer reads the answer there.
    ///
    /// # Errors
    /// Before the first `scale`, a second time since the last `update`; what [`GradScaler::unscale`] and the optimizer fail with; an
    /// optimizer none of whose parameters has a gradient.
    pub fn step(&mut self, optimizer: &mut dyn Scalable) -> Result<Option<bool>> {
        if !self.enabled {
            optimizer.step()?;
            return Ok(Some(true));
        }
        let scale = self.placed("step")?.scale.shallow_clone();
        let (parameters, index) = self.state_of(optimizer);
        ensure!(self.optimizers[index].stage != ScalerStage::Stepped, "step() has already been called since the last update().");
        let taken = if optimizer.scales_itself() {
            let ready = self.optimizers[index].stage == ScalerStage::Ready;
            if ready {
                let one = Tensor::f_full([] as [i64; 0], 1.0, (Kind::Float, scale.device()))?;
                self.optimizers[index].found_inf = unscale_gradients(&parameters, &one, true)?;
            }
            let found = sum_on(&self.optimizers[index].found_inf, scale.device())?;
            let found = found.context("No inf checks were recorded for this optimizer.")?;
            optimizer.step_scaled(ready.then_some(&scale), &found)?;
            None
        } else {
            if self.optimizers[index].stage == ScalerStage::Ready {
                self.unscale(optimizer)?;
            }
            let found = &self.optimizers[index].found_inf;
            ensure!(!found.is_empty(), "No inf checks were recorded for this optimizer.");
            let mut overflowed = 0.0;
            for device in found {
                overflowed += device.f_double_value(&[])?;
            }
            if overflowed == 0.0 {
                optimizer.step()?;
            }
            Some(overflowed == 0.0)
        };
        self.optimizers[index].stage = ScalerStage::Stepped;
        Ok(taken)
    }

    /// Ends an iteration: shrinks the scale if a gradient of any optimizer overflowed, and grows it after enough steps without. Does not
    /// wait for the device.
    ///
    /// # Errors
    /// Before the first `scale`; without an `unscale` or `step` since the last `update`.
    pub fn update(&mut self) -> Result<()> {
        if !self.enabled {
            return Ok(());
        }
        let ScalerState { growth_factor, backoff_factor, growth_interval, .. } = self.settings;
        let device = self.placed("update")?.scale.device();
        let all: Vec<Tensor> =
            self.optimizers.iter().flat_map(|optimizer| optimizer.found_inf.iter().map(Tensor::shallow_clone)).collect();
        let found = sum_on(&all, device)?.context("No inf checks were recorded prior to update.")?;
        let placed = self.placed("update")?;
        let tracker = &placed.growth_tracker;
        let _ = placed.scale.f_internal_amp_update_scale_(tracker, &found, growth_factor, backoff_factor, growth_interval)?;
        self.optimizers.clear();
        Ok(())
    }

    /// Ends an iteration with a scale of the caller's choice, as `update(new_scale)` does.
    ///
    /// # Errors
    /// Before the first `scale`.
    pub fn update_to(&mut self, scale: f64) -> Result<()> {
        if self.enabled {
            let _ = self.placed("update")?.scale.f_fill_(scale)?;
            self.optimizers.clear();
        }
        Ok(())
    }

    /// The scale as it is now, 1 where scaling is off. Waits for the device.
    ///
    /// # Errors
    /// libtorch's message; an error of the device that shows only now.
    pub fn get_scale(&self) -> Result<f64> {
        match &self.placed {
            _ if !self.enabled => Ok(1.0),
            Some(placed) => Ok(placed.scale.f_double_value(&[])?),
            None => Ok(self.settings.scale),
        }
    }

    /// What has to be saved to go on later; none where scaling is off. To be called between `update` and the next `scale`. Waits for the
    /// device.
    ///
    /// # Errors
    /// As for [`GradScaler::get_scale`].
    pub fn state(&self) -> Result<Option<ScalerState>> {
        if !self.enabled {
            return Ok(None);
        }
        let growth_tracker = match &self.placed {
            Some(placed) => placed.growth_tracker.f_int64_value(&[])?,
            None => self.settings.growth_tracker,
        };
        Ok(Some(ScalerState { scale: self.get_scale()?, growth_tracker, ..self.settings }))
    }

    /// Goes on from a saved state; does nothing where scaling is off.
    ///
    /// # Errors
    /// Factors that [`GradScaler::new`] refuses; libtorch's message.
    pub fn restore(&mut self, state: ScalerState) -> Result<()> {
        if !self.enabled {
            return Ok(());
        }
        check_factors(&state)?;
        self.settings = state;
        if let Some(placed) = &mut self.placed {
            let _ = placed.scale.f_fill_(state.scale)?;
            let _ = placed.growth_tracker.f_fill_(state.growth_tracker)?;
        }
        Ok(())
    }

    /// An optimizer's parameters, and where its state of this iteration is.
    fn state_of(&mut self, optimizer: &dyn Scalable) -> (Vec<Tensor>, usize) {
        let parameters = optimizer.parameters();
        let identities: Vec<usize> = parameters.iter().map(tensor_identity).collect();
        let known = self.optimizers.iter().position(|state| state.parameters == identities);
        let index = known.unwrap_or_else(|| {
            self.optimizers.push(PerOptimizer { parameters: identities, stage: ScalerStage::Ready, found_inf: Vec::new() });
            self.optimizers.len() - 1
        });
        (parameters, index)
    }
}

fn check_factors(settings: &ScalerState) -> Result<()> {
    ensure!(settings.growth_factor > 1.0, "The growth factor must be > 1.0.");
    ensure!(settings.backoff_factor < 1.0, "The backoff factor must be < 1.0.");
    Ok(())
}

/// Multiplies the parameters' gradients by `inverse`, one operation for each device and kind. Gives a float for each device, not 0 where a
/// gradient was not finite.
fn unscale_gradients(parameters: &[Tensor], inverse: &Tensor, allow_half: bool) -> Result<Vec<Tensor>> {
    let mut groups: Vec<((Device, Kind), Vec<Tensor>)> = Vec::new();
    for gradient in parameters.iter().map(Tensor::grad).filter(Tensor::defined) {
        ensure!(allow_half || gradient.kind() != Kind::Half, "Attempting to unscale FP16 gradients.");
        // The values of a sparse gradient share its memory.
        let values = if gradient.is_sparse() { gradient.f_internal_values()? } else { gradient };
        let key = (values.device(), values.kind());
        match groups.iter_mut().find(|(of, _)| *of == key) {
            Some((_, gradients)) => gradients.push(values),
            None => groups.push((key, vec![values])),
        }
    }
    let mut found: Vec<Tensor> = Vec::new();
    for ((device, _), mut gradients) in groups {
        let index = match found.iter().position(|flag| flag.device() == device) {
            Some(index) => index,
            None => {
                found.push(Tensor::f_zeros([] as [i64; 0], (Kind::Float, device))?);
                found.len() - 1
            }
        };
        let inverse = inverse.f_to_device_(device, Kind::Float, true, false)?;
        amp::unscale(&mut gradients, &mut found[index], &inverse)?;
    }
    Ok(found)
}

/// The sum of tensors of one float, on one device; none of none.
fn sum_on(flags: &[Tensor], device: Device) -> Result<Option<Tensor>> {
    let mut sum: Option<Tensor> = None;
    for flag in flags {
        let flag = flag.f_to_device_(device, Kind::Float, true, false)?;
        sum = Some(match sum {
            Some(sum) => sum.f_add(&flag)?,
            None => flag,
        });
    }
    Ok(sum)
}
