//! Loss scaling for fp16, with the behaviour of PyTorch's `torch.amp.GradScaler` (torch/amp/grad_scaler.py, 2.11), its errors included.
//!
//! fp16 has no number between 0 and 6e-8 and none beyond 65504. Gradients that are smaller would be lost, so the loss, and with it every
//! gradient, is multiplied by a scale; before the optimizer's step they are divided by it. Where a gradient overflows on the way,
//! the step is left out and the scale halved; after many steps without overflow it is doubled.

use super::native::amp;
use anyhow::{Context, Result, ensure};
use tch::nn::Optimizer;
use tch::{Kind, Tensor};

/// What a scaler starts with, by PyTorch's names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalerState {
    pub scale: f64,
    /// By how much the scale is multiplied after `growth_interval` steps without overflow; above 1.
    pub growth_factor: f64,
    /// By how much the scale is multiplied after an overflow; below 1.
    pub backoff_factor: f64,
    pub growth_interval: i64,
}

/// PyTorch's: 65536, doubled after 2000 steps, halved at an overflow.
impl Default for ScalerState {
    fn default() -> Self {
        ScalerState { scale: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000 }
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

/// Scales losses, unscales gradients, and leaves steps out where gradients overflowed.
///
/// It serves one optimizer, whose parameters live on the device of the first loss, as scale and tracker do. As in PyTorch, the host waits for
/// the device only in [`GradScaler::step`] and in [`GradScaler::get_scale`].
#[derive(Debug)]
pub struct GradScaler {
    settings: ScalerState,
    enabled: bool,
    placed: Option<Placed>,
    stage: ScalerStage,
    /// One float, not 0 where a gradient of this iteration was not finite; none before they were unscaled.
    found_inf: Option<Tensor>,
}

impl Default for GradScaler {
    fn default() -> Self {
        GradScaler { settings: ScalerState::default(), enabled: true, placed: None, stage: ScalerStage::Ready, found_inf: None }
    }
}

impl GradScaler {
    /// A scaler with its own start; [`ScalerState::default`] is PyTorch's.
    ///
    /// # Errors
    /// A growth factor of at most 1, a backoff factor of at least 1.
    pub fn new(settings: ScalerState) -> Result<GradScaler> {
        ensure!(settings.growth_factor > 1.0, "The growth factor must be > 1.0.");
        ensure!(settings.backoff_factor < 1.0, "The backoff factor must be < 1.0.");
        Ok(GradScaler { settings, ..GradScaler::default() })
    }

    /// A scaler that changes nothing: `scale` gives the loss back, `step` takes the step. So one training loop serves all precisions.
    pub fn disabled() -> GradScaler {
        GradScaler { enabled: false, ..GradScaler::default() }
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn placed(&mut self, call: &str) -> Result<&mut Placed> {
        let missing = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration.";
        self.placed.as_mut().with_context(|| format!("Attempted {call} but _scale is None.  {missing}"))
    }

    /// The loss times the scale: what `backward` is to be called on.
    pub fn scale(&mut self, loss: &Tensor) -> Result<Tensor> {
        if !self.enabled {
            return Ok(loss.shallow_clone());
        }
        if self.placed.is_none() {
            self.placed = Some(Placed {
                scale: Tensor::f_full([] as [i64; 0], self.settings.scale, (Kind::Float, loss.device()))?,
                growth_tracker: Tensor::f_zeros([] as [i64; 0], (Kind::Int, loss.device()))?,
            });
        }
        Ok(loss.f_mul(&self.placed("scale")?.scale)?)
    }

    /// Divides the optimizer's gradients by the scale and notes whether all are finite. Call it once all gradients of a step have been
    /// accumulated, before they are clipped or read; [`GradScaler::step`] does it otherwise. Does not wait for the device.
    ///
    /// # Errors
    /// Before the first `scale`, a second time since the last `update`, after `step`; fp16 gradients, which cannot hold what they would
    /// become.
    pub fn unscale(&mut self, optimizer: &Optimizer) -> Result<()> {
        if !self.enabled {
            return Ok(());
        }
        let scale = self.placed("unscale_")?.scale.shallow_clone();
        match self.stage {
            ScalerStage::Unscaled => anyhow::bail!("unscale_() has already been called on this optimizer since the last update()."),
            ScalerStage::Stepped => anyhow::bail!("unscale_() is being called after step()."),
            ScalerStage::Ready => {}
        }
        let mut gradients: Vec<Tensor> = optimizer.trainable_variables().iter().map(Tensor::grad).filter(Tensor::defined).collect();
        ensure!(gradients.iter().all(|gradient| gradient.kind() != Kind::Half), "Attempting to unscale FP16 gradients.");
        // In double precision, so that no compiler's fp32 division matters.
        let inverse = scale.f_to_kind(Kind::Double)?.f_reciprocal()?.f_to_kind(Kind::Float)?;
        if !gradients.is_empty() {
            let mut found = Tensor::f_zeros([] as [i64; 0], (Kind::Float, scale.device()))?;
            amp::unscale(&mut gradients, &mut found, &inverse)?;
            self.found_inf = Some(found);
        }
        self.stage = ScalerStage::Unscaled;
        Ok(())
    }

    /// Takes the optimizer's step with unscaled gradients, or leaves it out where a gradient was not finite. Says whether it was taken.
    ///
    /// # Errors
    /// Before the first `scale`, a second time since the last `update`; what [`GradScaler::unscale`] and the optimizer fail with; an
    /// optimizer none of whose parameters has a gradient.
    pub fn step(&mut self, optimizer: &mut Optimizer) -> Result<bool> {
        if !self.enabled {
            optimizer.step();
            return Ok(true);
        }
        self.placed("step")?;
        ensure!(self.stage != ScalerStage::Stepped, "step() has already been called since the last update().");
        if self.stage == ScalerStage::Ready {
            self.unscale(optimizer)?;
        }
        let found = self.found_inf.as_ref().context("No inf checks were recorded for this optimizer.")?;
        let finite = found.f_double_value(&[])? == 0.0;
        if finite {
            optimizer.step();
        }
        self.stage = ScalerStage::Stepped;
        Ok(finite)
    }

    /// Ends an iteration: shrinks the scale if a gradient overflowed, and grows it after enough steps without. Does not wait for the device.
    ///
    /// # Errors
    /// Before the first `scale`; without an `unscale` or `step` since the last `update`.
    pub fn update(&mut self) -> Result<()> {
        if !self.enabled {
            return Ok(());
        }
        let ScalerState { growth_factor, backoff_factor, growth_interval, .. } = self.settings;
        self.placed("update")?;
        let found = self.found_inf.take().context("No inf checks were recorded prior to update.")?;
        let placed = self.placed("update")?;
        let tracker = &placed.growth_tracker;
        let _ = placed.scale.f_internal_amp_update_scale_(tracker, &found, growth_factor, backoff_factor, growth_interval)?;
        self.stage = ScalerStage::Ready;
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
}
