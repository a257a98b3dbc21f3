//! Loading a checkpoint: how much memory a load takes at its peak and afterwards, and on which device the loaded state lands.
//!
//! Guide 4 warns twice. A checkpoint goes back to the device that it was saved on unless the load is told otherwise, and can run it out
//! of memory; and the loaded state keeps its memory until it is dropped. Both are about `torch.load`, so PyTorch in Python runs every cell
//! (`experiments/load_checkpoint/step.py`).

mod fits;
mod place;
mod process;
mod without_gpu;

use harness::lab::*;

/// 1 where the memory sufficed, 0 where it ran out.
const FITS: Metric = Metric::counted("fits", "fits", "1");

levels! { Saved "the device that the tensors were on when they were saved": Cpu "", OnDevice as "device" "the GPU" }
levels! {
    Map "the device that the reader is told":
    Nothing as "none" "none: where it puts tensors by itself",
    ToDevice as "device" "the model's",
    Cpu "the CPU",
}
levels! {
    Reader "what reads the file":
    AsSaved "nothing is read: the model that was saved" => "the model alone",
    Load "torch.load, and load_state_dict" => "torch.load",
    LoadUnrestricted "torch.load(weights_only=False)" => "torch.load(weights_only=False)",
    LoadMmap "torch.load(mmap=True)" => "torch.load(mmap=True)",
}

cell! { Loaded { model: ModelName, by: By, saved: Saved, map: Map, reader: Reader } }

const SMALL: ModelName = ModelName("mlp-4x2048");
const LARGE: ModelName = ModelName("mlp-4x4096");

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("load_checkpoint", "Loading a checkpoint")
        .question(
            "How many times the model's memory does a load take, at its peak and until the loaded state is dropped, and where does the \
             state land?",
        )
        .hypothesis(
            "A load that makes tensors of the whole file holds the model twice; the pages of a mapped file are the kernel's. torch.load puts \
             tensors where they were saved unless told otherwise. What is loaded stays until it is dropped.",
        )
        .grid(process::grid())
        .grid(place::grid())
        .grid(without_gpu::grid())
        .grid(fits::loading())
        .grid(fits::training())
        .threat("The file has just been written and stands in the page cache, so times are those of copying and not of a disk.")
        .threat(
            "The peak of the process is the kernel's high-water mark of resident memory. There is none of the proportional size; what the \
             two differ in, shared libraries, is there before and after the load alike.",
        )
        .threat(
            "What is dropped goes back to the C library, which keeps blocks of less than 32 MiB for the next request: the process may show \
             no less memory until malloc_trim, which the verdict allows it.",
        )
        .threat(
            "A page of a library counts for a process by its share among all that map it; while other programs that use libtorch start and \
             end, the process moves by some megabytes for that reason alone.",
        )
        .threat("Pages of a mapped file count for the process while they are mapped, though the kernel can take them back at any time.")
        .threat("A ratio to the model's bytes needs no large model, so the files are of moderate size; the model has no optimizer state in them.")
}

impl Reader {
    /// Whether what it loads is a state of its own, beside the model.
    fn holds_a_state(self) -> bool {
        self != Reader::AsSaved
    }
}

python_test! {
    /// The bytes of a load on the counted CPU, in models; the cells' own checks, and with nothing loaded.
    a_load_holds_the_model_twice_and_the_check_sees_a_parameter_that_was_not_loaded: "load_checkpoint", r#"
of = "model=mlp-2x256 by=pytorch saved=cpu map=cpu reader="
loads = [reader for reader in load_checkpoint.READERS if load_checkpoint.READERS[reader] is not None]
for reader in ("as-saved", "load"):
    found = memory(load_checkpoint.prepare, of + reader)
    print(*(found[metric] for metric in ("load_peak", "held", "dropped")))
print(*(check(load_checkpoint.prepare, of + reader, of + "as-saved") for reader in loads))
torch.nn.Module.load_state_dict = lambda *_: None
print(*(check(load_checkpoint.prepare, of + reader, of + "as-saved") for reader in loads))
"#, "1.0 1.0 1.0\n2.0 2.0 1.0\nok ok ok\ninvalid invalid invalid\n"
}
