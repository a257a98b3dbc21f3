//! What does the GradScaler protect from?

use super::*;

/// Of the parameters' gradients, those that are 0 where fp32's are not.
const ZEROS: Metric = Metric::counted("zeros", "gradients lost to 0", "1").share();
const NOT_ZERO: Metric = Metric::counted("not_zero", "gradients that are not 0 in fp32", "1");
const ERROR: Metric = Metric::counted("fp32_error", "gradient error against fp32", "1");
/// The last scale over the one before the overflow.
const RECOVERED: Metric = Metric::counted("recovered", "scale recovered", "1");

levels! {
    Case "what is difficult for fp16":
    Converged "gradients of a model that has learned its task are small",
    SmallLoss "so are those of a loss with a weight of 1e-4, as an auxiliary loss may have",
    BadBatch "one batch in the middle of training whose activations overflow",
    HighStart "a scale that is 16777216 to begin with",
}
levels! { Scaling "of the loss, under autocast to fp16": Nothing as "none" "", Scaler "GradScaler" }

cell! { Guarded { case: Case, scaling: Scaling, by: By } }

pub fn grid() -> Grid<Guarded> {
    use Case::*;
    let loses = |of: fn(&Guarded) -> bool| {
        ratio(ZEROS).of(move |c: &Guarded| of(c) && c.scaling == Scaling::Scaler).confirm(at_most(0.10)).refute(at_least(0.90))
    };
    let recovers = || {
        let of = |c: &Guarded| c.case == BadBatch && c.scaling == Scaling::Scaler;
        value(RECOVERED).of(of).confirm(at_least(1.0)).refute(at_most(0.99))
    };
    let overflows = |rule: Rule<Guarded>| rule.of(|c| matches!(c.case, BadBatch | HighStart) && c.scaling == Scaling::Scaler);
    let skips = move || overflows(value(SKIPPED)).confirm(at_least(1.0)).refute(at_most(0.0));
    let keeps = move || overflows(value(RUINED)).confirm(at_most(0.0)).refute(at_least(1e-9));
    Grid::new("what the scaler protects from", in_python)
        .compare::<Scaling>()
        .quick_and_full(Guarded::cross(Case::ALL, Scaling::ALL, By::Pytorch))
        .passes(CHECK | COUNT)
        .on(&[Platform::Cpu, Platform::Gpu])
        .metrics(&[LOSS, ZEROS, NOT_ZERO, ERROR, SKIPPED, LOWEST, LAST, RECOVERED, RUINED])
        .check(|_| equal(0.1))
        .claim(
            Claim::new("amp-scaler", "3", "GradScaler prevents underflow and overflow")
                .on(&[Platform::Cpu, Platform::Gpu])
                // Where there is something to prevent.
                .rule(loses(|c| matches!(c.case, Converged | SmallLoss)).scope(ZEROS, NOT_ZERO, 0.01))
                .rule(skips())
                .rule(keeps())
                .rule(recovers())
                .changed(
                    "20 November 2026: a case was added (a loss of weight 1e-4) and a scope set (where 1 % of the gradients are lost \
                     without the scaler). A small model that has learned its task had been seen to lose 0.2 %, which is nothing to prevent.",
                )
                .before(loses(|c| c.case == Converged))
                .before(skips())
                .before(keeps())
                .before(recovers()),
        )
        .no_plots()
}

python_test! {
    /// Gradients that are never unscaled; small ones that are lost without a scaler; and a bad batch that ruins all without one, and with it is left
    /// out alone: 1024 doubles after 10 and 20 steps, is halved at the 26th and doubles again after 10, 20 and 30 more.
    a_scaler_saves_small_gradients_and_leaves_overflowing_steps_out: "amp", r#"
of = "case={} scaling={} by=pytorch"
class Scaled(amp.Guarded):
    def run(self, probe):
        self.scales = True
        self.backward(self.batch(0), self.kind, self.scaler(init_scale=1024.0))
print(*(check(amp.Guarded, of.format(case, "scaler"), of.format(case, "none"), 0.1) for case in ("small-loss", "bad-batch")))
print(check(lambda cell, bench: (Scaled if cell["scaling"] == "scaler" else amp.Guarded)(cell, bench), of.format("bad-batch", "scaler"), of.format("bad-batch", "none"), 0.1))
without, kept = (memory(amp.Guarded, of.format("small-loss", scaling)) for scaling in ("none", "scaler"))
print(without["zeros"] > 100 and 10 * kept["zeros"] < without["zeros"])
without, kept = (memory(amp.Guarded, of.format("bad-batch", scaling)) for scaling in ("none", "scaler"))
print(without["ruined"], "loss" in without, kept["ruined"], kept["skipped"], kept["last_scale"], kept["lowest_scale"])
"#, "ok ok\ninvalid\nTrue\n1.0 False 0.0 1 16384.0 1024.0\n"
}
