//! When do the buckets appear, and how large are they?

use super::*;

/// What a training run holds beyond the same run without DDP, over the bytes of its gradients.
const EXTRA: Metric = Metric::counted("extra", "extra memory, relative to the gradients", "1").ratio();
/// Bytes that live at the cell's moment.
const LIVE: Metric = Metric::counted("live", "live memory", "B");

levels! {
    Moment "when bytes are counted":
    Load "the model is there and DDP is built",
    FirstForward as "1-forward" "after the first forward pass",
    FirstBackward as "1-backward" "after the first backward pass",
    Rebuilt as "2-rebuilt" "gradients are dropped and buckets built anew, as the second forward pass begins",
    ThirdForward as "3-forward" "after the third forward pass",
    ThirdBackward as "3-backward" "after the third backward pass",
}

cell! { Moments { model: ModelName, batch: Batch, cap: Cap, moment: Moment, ddp: Way } }

pub fn grid() -> Grid<Moments> {
    use Moment::*;
    let with_ddp = |moment: Moment| move |c: &Moments| c.moment == moment && matches!(c.ddp, Way::Copies | Way::Views);
    Grid::new("when the buckets appear", step)
        .compare::<Way>()
        .quick(Moments::cross("gpt-4x128", 4, 25, Moment::ALL, Way::ALL))
        .quick(Moments::cross("resnet-2x64-gn", 4, 25, [Load, ThirdBackward], Way::ALL))
        .quick(Moments::cross("mlp-16x512", 4, [1, 100], ThirdBackward, Way::ALL))
        .full(Moments::cross("gpt2", 4, 25, Moment::ALL, Way::ALL))
        .full(Moments::cross(["resnet50", "mlp-8x4096"], 32, 25, [Load, ThirdBackward], Way::ALL))
        .full(Moments::cross("mlp-8x4096", 32, [1, 100], ThirdBackward, Way::ALL))
        .smoke(Moments::cross("mlp-4x64", 8, 25, ThirdBackward, Way::ALL))
        .passes(COUNT)
        .metrics(&[EXTRA, LIVE])
        .claim(
            Claim::new("ddp-buckets", "4", "DDP takes a second model's size, at model load, for gradient buckets")
                // When: already at load, before there is any gradient. And for good: still there when the gradients are.
                .rule(one_copy(value(EXTRA).of(with_ddp(Load))))
                .rule(one_copy(value(EXTRA).of(with_ddp(ThirdBackward)))),
        )
        .plot(
            bars(LIVE)
                .named("moments")
                .caption(
                    "Live memory against training without DDP: after loading, after the first forward and backward pass, when DDP has \
                     built its buckets anew in step 2, and after the passes of step 3",
                )
                .of(|c: &Moments| matches!(c.model.0, "gpt-4x128" | "gpt2") && c.cap == Cap(25))
                .by::<Moment>(),
        )
}

impl Moment {
    /// Iterations before it, and the phase of the next at whose end it is.
    fn reached(self) -> (usize, Option<DdpPhase>) {
        match self {
            Moment::Load => (0, None),
            Moment::FirstForward => (0, Some(DdpPhase::Forward)),
            Moment::FirstBackward => (0, Some(DdpPhase::Backward)),
            Moment::Rebuilt => (1, Some(DdpPhase::Begun)),
            Moment::ThirdForward => (2, Some(DdpPhase::Forward)),
            Moment::ThirdBackward => (2, Some(DdpPhase::Backward)),
        }
    }
}

/// A training run up to a moment, and the same without DDP.
fn step(cell: Moments, bench: &Bench) -> Result<Step> {
    let run =
        DdpRun { model: cell.model, batch: cell.batch, cap: cell.cap, zero_grad: ZeroGrad::Nothing, processes: 1, bench: *bench };
    let moment = cell.moment;
    // Bytes that live at the moment, without those that lived before, and the bytes of all gradients.
    let live_at = move |way: Way, probe: &Probe| -> Result<(i64, i64)> {
        let before = probe.live();
        let mut training = run.start(way, Update::Sgd)?;
        let (whole, last) = moment.reached();
        for until in std::iter::repeat_n(None, whole).chain(last.map(Some)) {
            training.iterate(until)?;
        }
        Ok((probe.live() - before, training.gradient_bytes()))
    };
    Ok(Step::new(move |probe| {
        let plain = match cell.ddp {
            Way::Nothing => None,
            Way::Copies | Way::Views => Some(live_at(Way::Nothing, probe)?.0),
        };
        probe.reset_peaks();
        let (live, gradients) = live_at(cell.ddp, probe)?;
        probe.emit(LIVE, live);
        if let Some(plain) = plain {
            probe.emit(EXTRA, (live - plain) as f64 / gradients as f64);
        }
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn buckets_are_counted_as_can_be_worked_out_by_hand() {
        let cell = |moment, ddp| Moments { model: ModelName("mlp-4x64"), batch: Batch(8), cap: Cap(25), moment, ddp };
        let at = |moment, ddp, metric| count(&protocol(), cell(moment, ddp)).figure(metric);
        let parameters = 4.0 * f64::from(4 * (64 * 64 + 64) + 64 * 10 + 10);
        let batch = f64::from(8 * 64 * 4 + 8 * 8);
        assert_eq!(at(Moment::Load, Way::Nothing, LIVE), parameters + batch);
        assert_eq!(at(Moment::Load, Way::Copies, LIVE), 2.0 * parameters + batch, "a bucket for each gradient");
        assert_eq!(at(Moment::FirstBackward, Way::Nothing, LIVE), 2.0 * parameters + batch, "parameters and gradients");
        for (moment, copies, views) in [
            (Moment::Load, 1.0, 1.0),
            (Moment::FirstForward, 1.0, 1.0),
            (Moment::FirstBackward, 1.0, 0.0),
            (Moment::Rebuilt, 1.0, 1.0),
            (Moment::ThirdForward, 1.0, 1.0),
            (Moment::ThirdBackward, 1.0, 0.0),
        ] {
            assert_eq!((at(moment, Way::Copies, EXTRA), at(moment, Way::Views, EXTRA)), (copies, views), "{moment:?}");
        }
    }
}
