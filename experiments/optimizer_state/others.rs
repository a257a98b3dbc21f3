//! What do Muon and Lion keep, and what do they need for their step?

use super::*;

levels! {
    Today as "method" "optimizer, as PyTorch has it or its authors wrote it":
    Adamw "PyTorch's default, foreach" => "AdamW",
    Muon "torch.optim.Muon for the blocks' matrices, AdamW for all else" => "Muon",
    Lion "by its paper, over all tensors at once" => "Lion",
}
levels! { Written "how the step is written": Formula "by its formula in double precision", Optimizer "as it is used" }

cell! { Others { model: ModelName, method: Today, by: By } }
cell! { SameStep { model: ModelName, method: Today, by: By, written: Written } }

pub fn bytes() -> Grid<Others> {
    // Set on 25 November 2026, before any figure.
    Grid::new("Muon and Lion", in_python)
        .compare::<Today>()
        .quick_and_full(Others::cross(["gpt2", "llama-1b", "vit-l16"], Today::ALL, By::Pytorch))
        .passes(COUNT)
        .on(CUDA)
        .judged_on(BY_PYTHON)
        .metrics(&[STATE, STATE_RATIO, STEP_PEAK, TEMPORARY_RATIO])
        .claim(
            Claim::new("lion-state", "Chen et al., arXiv 2302.06675", "Lion keeps half of AdamW's state: one moment")
                .rule(ratio(STATE).at(Today::Lion).confirm(within(0.49..=0.51)).refute(outside(0.4..=0.6))),
        )
        .claim(
            Claim::ours("muon-state", "Muon for the blocks' matrices takes three tenths off AdamW's state, or more")
                .rule(ratio(STATE).at(Today::Muon).confirm(at_most(0.7)).refute(at_least(0.9))),
        )
        .claim(
            Claim::ours(
                "muon-temporaries",
                "Muon's step, matrix by matrix, needs at most half of the temporaries of AdamW's default",
            )
            .rule(ratio(STEP_PEAK).at(Today::Muon).confirm(at_most(0.5)).refute(at_least(0.9))),
        )
        .no_plots()
}

pub fn same_step() -> Grid<SameStep> {
    Grid::new("the same step", in_python)
        .compare::<Written>()
        .always(SameStep::cross("small-gpt", [Today::Muon, Today::Lion], By::Pytorch, Written::ALL))
        .passes(CHECK)
        .on(&[Platform::Cpu, Platform::Gpu])
        .check(|c| match c.method {
            Today::Muon => equal(5e-2), // PyTorch makes its updates orthogonal in bfloat16
            Today::Lion | Today::Adamw => equal(1e-3),
        })
        .no_plots()
}

python_test! {
    /// The cells' own checks, then with steps that forget what came before.
    the_checks_see_steps_that_forget: "optimizer_state", r#"
def checks():
    of = "model=small-gpt method={} by=pytorch written={}"
    step = lambda method, tolerance: check(optimizer_state.Stepping, of.format(method, "optimizer"), of.format(method, "formula"), tolerance)
    print(step("muon", 5e-2), step("lion", 1e-3))

checks()
for optimizer in (torch.optim.Muon, optimizer_state.Lion):
    step = optimizer.step
    optimizer.step = lambda self, step=step: (self.state.clear(), step(self))
checks()
"#, "ok ok\ninvalid invalid\n"
}
