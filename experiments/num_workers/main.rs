//! How many workers should load data, and what do the loader's other settings give?
//!
//! Guide 1 says that workers help and that too many hurt, guide 3 that two to four for each core are right, that workers which stay save
//! the start of each epoch, that more prefetched batches hide latency, and that a training without the loading bottleneck takes much less
//! time.
//!
//! The claims are about Python's `DataLoader`, whose workers are processes that hand whole batches over through shared memory. PyTorch in
//! Python runs every cell (`experiments/num_workers/step.py`).

mod loading;
mod recipe;
mod training;
mod waiting;

use harness::lab::*;

const PROPORTIONAL: Metric = Metric::timed("proportional", "memory of all processes (PSS)", "B");
const SAMPLES_ERROR: Metric = Metric::compared("samples_error", "difference of samples");

levels! {
    Work as "transform" "what is done to a sample":
    Heavy "a 500 x 375 JPEG read, decoded, randomly cropped and resized to 224, flipped, normalised",
    Light "3 x 32 x 32 bytes in memory, normalised",
    Waits "5 ms of waiting, as for storage, and no work",
}
number! { Samples "samples in an epoch" }
levels! {
    Workers "workers":
    Nobody as "0" "the training thread loads by itself",
    One as "1" "",
    PerCore as "1x" "as many as the process may use cores",
    TwoPerCore as "2x" "twice as many as cores",
    ThreePerCore as "3x" "three times as many as cores",
    FourPerCore as "4x" "four times as many as cores",
}

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("num_workers", "DataLoader workers")
        .question(
            "How many workers should load data, should they stay between epochs, how far should they be ahead, and how much does training \
             gain?",
        )
        .hypothesis(
            "Decoding images is work for a core, so workers help up to the number of cores and no further: beyond it they only share cores, \
             take memory and take time to start. More than that pays where workers wait for storage instead. Each epoch pays for new \
             processes unless they are kept. More prefetched \
             batches help where batches take unequal times and the trainer would else wait for a slow one. Training gains what it waited \
             for: much where loading is the bottleneck, nothing where it was not.",
        )
        .grid(loading::grid())
        .grid(waiting::grid())
        .grid(waiting::ahead())
        .grid(training::grid())
        .grid(recipe::grid())
        .shows(Shown::new("A worker for each core").at(Workers::PerCore).time(TIME))
        .threat(
            "The files are in the page cache: what is measured is decoding and handing over, not a disk. Prefetching is measured with \
             samples that wait as a disk makes them wait.",
        )
        .threat("Epochs here last a second or less; a gap between epochs is a much smaller share of an hour.")
        .threat("On a CPU training and workers share the cores, so overlapping them gains little; on a GPU it gains what the CPU had to wait.")
        .threat(
            "torchvision's transforms alone are imported, which start a second sooner and take less memory than all of torchvision.",
        )
}

python_test! {
    /// The cells' own checks; then an order that depends on the workers, and samples that are lost.
    the_check_sees_an_order_that_depends_on_the_workers_and_samples_that_are_lost: "num_workers", r#"
WAITING, LIGHT = "by=pytorch prefetch=", "by=pytorch transform=light samples=64 workers="

def checked(cell, baseline, change=lambda step: None):
    # The baseline comes first.
    changes = iter([lambda step: None, change])
    def prepare(of, bench):
        step = num_workers.prepare(of, bench)
        next(changes)(step)
        return step
    try:
        return check(prepare, cell, baseline, 0.0)
    except ValueError as error:
        return error

def reseed(step):
    step.seed += 1

def lose(step):
    step.data = num_workers.Subset(step.data, range(48))

print(checked(LIGHT + "1x", LIGHT + "0"), checked(WAITING + "4", WAITING + "2"))
print(checked(LIGHT + "1x", LIGHT + "0", reseed), checked(WAITING + "4", WAITING + "2", reseed))
print(checked(LIGHT + "1x", LIGHT + "0", lose))
"#, "ok ok\ninvalid invalid\n3 tensors to compare with 4\n"
}
