//! Does the simulated GPU ask for the bytes that real GPUs were asked for?
//!
//! Others recorded what PyTorch allocated on real GPUs (`records/real_gpus`): peaks of single operators, each allocation and free of whole steps,
//! what steps of PEFT's methods and runs of fine-tuning leave, the largest batches that fitted, and what Megatron-LM's tests logged. PyTorch in
//! Python runs the same again on a simulated GPU of the same kind; what it says is put beside the record. No real GPU takes part: its figures are
//! those that were published.

mod events;
mod fine_tuning;
mod image_models;
mod megatron_lm;
mod peaks;
mod peft_methods;

use harness::lab::*;

/// Where the simulated GPU stands for the record's, and what PyTorch in Python gave there.
const DRY_BY_PYTHON: &[Platform] = &[Platform::Dry, Platform::Python];

/// Rows that PyTorch in Python runs again on a simulated GPU.
fn replayed<C: Cell>(name: &'static str) -> Grid<C> {
    Grid::new(name, in_python).passes(COUNT).on(&[Platform::Dry]).judged_on(DRY_BY_PYTHON).no_plots()
}

/// The rows of a table of records, below its head; levels live as long as the program.
fn rows(table: &str) -> Vec<Vec<&'static str>> {
    let kept = |field: &str| -> &'static str { field.to_string().leak() };
    let records = csv::Reader::from_reader(table.as_bytes()).into_records();
    records.map(|row| row.expect("records are a table").iter().map(kept).collect()).collect()
}

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("real_gpus", "Predictions beside real GPUs")
        .question("Does the simulated GPU allocate what real GPUs allocated: the same peaks, the same events in the same order, the same batches?")
        .hypothesis(
            "The simulated GPU runs PyTorch's own CUDA code and caching allocator, so that everything but what libraries keep to \
             themselves should be equal to the byte: results, temporaries, workspaces, and the order of all of them.",
        )
        .grid(peaks::grid())
        .grid(events::grid())
        .grid(peft_methods::grid())
        .grid(fine_tuning::grid())
        .grid(image_models::grid())
        .grid(megatron_lm::grid())
        .kind(SubjectKind::RealGpus)
        .threat("Records are of PyTorch 1.12 to 2.13; all are replayed with 2.11. Where a version took other memory, records/real_gpus/README.md says so.")
        .threat(
            "What a process held from before its peaks is part of them. Where it was found from the figures themselves, and not from a \
             source, the column 'held from before, inferred' gives its bytes: these rows confirm less than the others.",
        )
        .threat(
            "The mean length of the batches of PEFT's methods was found from one method, LoRA with rank 32, which is not compared; what PyTorch 1.12 \
             held outside the allocator is another version's.",
        )
        .threat(
            "Megatron-LM's tests ran extensions (Apex, Transformer Engine). Their softmax is replaced by one that allocates alike; their norms and optimizer \
             are replaced by PyTorch's, which need some KiB less.",
        )
        .threat("Thresholds of fine-tuning, a per mille, were set when a first trial of its rows had been seen.")
        .threat("Replays were written with most of these rows in view. Rows that nobody looked at would be a harder test.")
}
