//! LoRA and DoRA: the model is frozen, and matrices of a low rank beside its linear layers are trained in its place.
//!
//! What it saves is what belongs to trained parameters: gradients and the optimizer's state. Activations stay, because a frozen layer still
//! passes gradients on. PyTorch in Python runs every cell (`experiments/adapters/step.py`), on models that `vramlab rehearse --model` trains.

use harness::lab::*;

const TRAINED: Metric = Metric::counted("trained", "parameters that are trained", "1");
const TRAINING: Metric = Metric::counted("training_bytes", "gradients and optimizer state", "B");

levels! {
    Recompute "what is computed again in the backward pass": Nothing "", EveryBlock "every block of the model" => "checkpointing every block"
}
levels! {
    Trained "what is trained":
    Everything "all parameters" => "full training",
    Attention8 as "attention-8" "LoRA of rank 8 beside the linear layers of attention" => "LoRA of rank 8 on attention",
    All8 as "all-8" "LoRA of rank 8 beside every linear layer of the blocks" => "LoRA of rank 8",
    Dora8 as "dora-8" "DoRA: LoRA of rank 8 beside every linear layer of the blocks, and the lengths of their rows" => "DoRA of rank 8",
    All32 as "all-32" "the same of rank 32" => "LoRA of rank 32",
    All128 as "all-128" "the same of rank 128" => "LoRA of rank 128",
}
levels! { Adapter "what stands beside the weights": Lora "two matrices" => "LoRA", Dora "two matrices, and the lengths of the rows" => "DoRA" }
levels! { Form "where the trained matrices are": Beside "beside the weights", Merged "added to the weights" }

cell! { Adapters { model: ModelName, batch: Batch, recompute: Recompute, trained: Trained, by: By } }
cell! { Merge { model: ModelName, batch: Batch, by: By, adapter: Adapter, form: Form } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("adapters", "Train adapters (LoRA)")
        .question("What does training LoRA matrices save of a full training step's memory, by their rank and place, and what does it leave?")
        .hypothesis(
            "Gradients and AdamW's state of frozen weights are gone: three quarters of what a model itself takes. Activations are as large as \
             before, so the peak falls by much where the model is large for its batch, and by little where activations fill the memory; \
             with checkpoints most of both is gone. The rank hardly matters.",
        )
        .grid(memory())
        .grid(merging())
        .shows(Shown::new("Train LoRA matrices").at(Trained::All8).memory(PEAK))
        .threat("Matrices are plain PyTorch beside `torch.nn.Linear`, without dropout on their input, which PEFT has where it is asked for.")
        .threat("Llama trains in bfloat16 without a copy in fp32, with AdamW's state in bfloat16, so that full training fits 24 GiB.")
}

fn memory() -> Grid<Adapters> {
    use Recompute::*;
    use Trained::*;
    // Set on 23 November 2026, before any figure.
    Grid::new("full-size models", in_python)
        .compare::<Trained>()
        .quick_and_full(Adapters::cross("gpt2", 4, Recompute::ALL, Trained::ALL, By::Pytorch))
        .quick_and_full(Adapters::cross("llama-1b", 1, Recompute::ALL, Trained::ALL, By::Pytorch))
        .quick_and_full(Adapters::cross("vit-l16", 32, Nothing, [Everything, All8], By::Pytorch))
        .quick_and_full(Adapters::cross("sd-unet", 1, Nothing, [Everything, All8], By::Pytorch))
        .passes(COUNT)
        .on(CUDA)
        .judged_on(BY_PYTHON)
        .metrics(&[TRAINED, TRAINING])
        .claim(
            Claim::new(
                "lora-peak",
                "Hu et al., arXiv 2106.09685",
                "LoRA lowers memory by up to two thirds (GPT-3: 1.2 TB to 350 GB)",
            )
            .rule(ratio(PEAK).at(All8).confirm(at_most(0.35)).refute(at_least(0.5))),
        )
        .claim(
            Claim::ours("lora-activations", "LoRA on every linear layer leaves the activations as they are, within a tenth")
                .rule(ratio(ACTIVATIONS).at(All8).at(Nothing).confirm(within(0.9..=1.1)).refute(outside(0.75..=1.25))),
        )
        .claim(
            Claim::ours("lora-rank", "rank 128 in place of 8 raises the peak by less than a tenth")
                .rule(highest(PEAK).at(All128).over_at(All8).holds(at_most(1.1))),
        )
        // DoRA's, set on 25 November 2026, before any figure of it.
        .claim(
            Claim::new(
                "dora-state",
                "Liu et al., arXiv 2402.09353",
                "DoRA has hardly more to train than LoRA: a tenth at most of its gradients and state",
            )
            .rule(highest(TRAINING).at(Dora8).over_at(All8).holds(at_most(1.1))),
        )
        .claim(
            Claim::ours(
                "dora-activations",
                "DoRA keeps a quarter more activations than LoRA, or more: the results that its lengths multiply",
            )
            .rule(
                lowest(ACTIVATIONS)
                    .at(Dora8)
                    .at(Nothing)
                    .over_at(All8)
                    .over_at(Nothing)
                    .confirm(at_least(1.25))
                    .refute(at_most(1.1)),
            ),
        )
        .plot(
            bars(PEAK)
                .named("peak")
                .caption("Peak memory of a training step with LoRA, against full training")
                .by::<ModelName>()
                .by::<Recompute>(),
        )
        .plot(
            amounts(TRAINING)
                .named("trained")
                .caption("Gradients and optimizer state of what is trained")
                .of(|c: &Adapters| c.recompute == Nothing)
                .by::<ModelName>(),
        )
}

fn merging() -> Grid<Merge> {
    Grid::new("merged", in_python)
        .compare::<Form>()
        .always(Merge::cross("small-gpt", 2, By::Pytorch, Adapter::ALL, Form::ALL))
        .passes(CHECK)
        .on(&[Platform::Cpu, Platform::Gpu])
        .check(|_| equal(1e-5)) // products in another order
        .claim(
            Claim::ours("lora-merged", "a model with its matrices merged into the weights says what it said with them beside")
                .on(&[Platform::Gpu, Platform::Python])
                .rule(value(OUTPUT_ERROR).at(Form::Merged).holds(at_most(1e-5))),
        )
        .no_plots()
}

python_test! {
    /// The check of the cells, as they are and with adapters that lose their scale when they are merged.
    the_check_sees_matrices_that_are_not_merged: "adapters", r#"
def checks():
    of = "model=small-gpt batch=2 by=pytorch adapter={} form={}"
    print(*(check(adapters.prepare, of.format(adapter, "merged"), of.format(adapter, "beside"), 1e-5) for adapter in ("lora", "dora")))

checks()
adapters.Adapted.merged = lambda self: self.layer
checks()
"#, "ok ok\ninvalid invalid\n"
}
