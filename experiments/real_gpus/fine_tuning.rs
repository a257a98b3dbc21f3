//! What fine-tuning a model of 7 billion parameters keeps, and takes at most.

use super::*;

/// Weights, texts and batch, tokens of a text, bytes that stay and bytes at most.
const RUNS: &str = include_str!("../../records/real_gpus/fine_tuning.csv");

const PREDICTED_KEPT: Metric = Metric::counted("predicted_kept", "predicted bytes that stay after training", "B");
const MEASURED_KEPT: Metric = Metric::counted("measured_kept", "bytes that stay after training on the real GPU", "B");
const PREDICTED_HIGHEST: Metric = Metric::counted("predicted_highest", "predicted peak of training", "B");
const MEASURED_HIGHEST: Metric = Metric::counted("measured_highest", "peak of training on the real GPU", "B");

name! { Weights "what the weights are: all trained in fp16, or 4 bits with LoRA" }
name! { Texts "texts of many lengths, padded or one after the other" }
number! { Batch "texts of a step" }
cell! { FineTuning { weights: Weights, texts: Texts, batch: Batch, by: By } }

pub fn grid() -> Grid<FineTuning> {
    const SOURCE: &str = "fms-acceleration, scripts/benchmarks/refs_orca/a100_80gb_pf.csv";
    let whole = |c: &FineTuning| c.weights == Weights("fp16");
    let run = |row: Vec<&'static str>| {
        let batch = Batch(row[2].parse().expect("a batch is a number"));
        FineTuning { weights: Weights(row[0]), texts: Texts(row[1]), batch, by: By::Pytorch }
    };
    let (whole_runs, low_rank_runs): (Vec<FineTuning>, Vec<FineTuning>) = rows(RUNS).into_iter().map(run).partition(whole);
    replayed::<FineTuning>("fine_tuning")
        .compare::<Texts>()
        .quick_and_full(whole_runs)
        .full(low_rank_runs)
        .metrics(&[PREDICTED_KEPT, MEASURED_KEPT, PREDICTED_HIGHEST, MEASURED_HIGHEST])
        .claim(
            // Set on 25 November 2026, after a first trial of these rows.
            Claim::ours("real-gpu-fine-tuning", "the simulated GPU predicts what fine-tuning Mistral 7B takes")
                .rule(agreement(PREDICTED_KEPT, MEASURED_KEPT, 0.999..=1.001, 1.0))
                .rule(agreement(PREDICTED_HIGHEST, MEASURED_HIGHEST, 0.999..=1.001, 1.0).of(whole)),
        )
        .claim(
            Claim::published(
                "padding-free-whole",
                SOURCE,
                "Mistral 7B, all of it trained in fp16, eight texts a step, one A100: at most 72.47 GB with padding and 72.46 GB without",
            )
            .rule(value(PREDICTED_HIGHEST).of(move |c: &FineTuning| whole(c) && c.texts == Texts("padded")).reproduces(72.47e9))
            .rule(value(PREDICTED_HIGHEST).of(move |c: &FineTuning| whole(c) && c.texts == Texts("padding-free")).reproduces(72.46e9))
            .setup(
                "The optimizer's step makes the peak, with a copy of the weights' size, and there is no text in it. A simulated A100; texts are as \
                 long as the source's are on average, by its tokens and seconds; no FlashAttention.",
            ),
        )
        .claim(
            Claim::published(
                "qlora-mistral",
                SOURCE,
                "Mistral 7B in 4 bits, its constants quantised, too, with LoRA of rank 16 on attention: 4.306 GB stay after training",
            )
            .rule(value(PREDICTED_KEPT).of(move |c: &FineTuning| !whole(c)).reproduces(4.306e9))
            .setup("A simulated A100; bitsandbytes's layers are written anew, of tensors as large as its own."),
        )
}
