//! Pinned memory, streams and copying ahead on the simulated GPU, where PyTorch's own allocators tell what they hold.

use harness::lab::testing::dry;
use record::protocol::Pass;
use record::results::Run;
use std::process::Command;
use tch::{Device, Kind, Tensor};
use torch::Backend;
use torch::transfer::{Stream, copy, host_memory, pinned, record_stream};

const MIB: i64 = 1 << 20;
const CUDA: Device = Device::Cuda(0);

/// A tensor of so many MiB on the device.
fn on_device(mebibytes: i64) -> Tensor {
    Tensor::empty([mebibytes * MIB], (Kind::Uint8, CUDA))
}

#[test]
fn locked_blocks_are_powers_of_two_and_stay_locked_in_the_cache() {
    let Some(_dry) = dry(concat!(module_path!(), "::locked_blocks_are_powers_of_two_and_stay_locked_in_the_cache")) else { return };
    assert_eq!(host_memory().unwrap().locked, 0);
    // A batch of 64 images: 36.75 MiB take 64.
    let batch = pinned(&[64, 3, 224, 224], Kind::Float).unwrap();
    let with = host_memory().unwrap();
    assert_eq!((with.locked, with.blocks, with.locks), (64 * MIB, 1, 1));
    assert_eq!((batch.size(), batch.kind(), batch.device()), (vec![64, 3, 224, 224], Kind::Float, Device::Cpu));
    assert!(batch.is_pinned(CUDA) && batch.get(63).is_pinned(CUDA));
    assert!(!Tensor::zeros([4], (Kind::Float, Device::Cpu)).is_pinned(CUDA));
    let _ = pinned(&[3], Kind::Int64).unwrap().fill_(7);
    drop(batch);
    assert_eq!(host_memory().unwrap().blocks, 2, "freed blocks wait in the cache");
    let again = pinned(&[40 * MIB], Kind::Uint8).unwrap();
    assert_eq!(host_memory().unwrap().locks, 2, "and are used again");
    drop(again);
    assert_eq!(host_memory().unwrap().locked_peak, 64 * MIB + 32);
}

#[test]
fn memory_belongs_to_the_stream_that_it_was_taken_on() {
    let Some(dry) = dry(concat!(module_path!(), "::memory_belongs_to_the_stream_that_it_was_taken_on")) else { return };
    let (current, side) = (Stream::current(CUDA).unwrap(), Stream::side(CUDA).unwrap());
    assert_ne!(current, side);
    assert_ne!(side, Stream::side(CUDA).unwrap(), "the pool gives another one each time");
    let of_side = {
        let _region = side.enter().unwrap();
        assert_eq!(Stream::current(CUDA).unwrap(), side);
        on_device(64)
    };
    assert_eq!(Stream::current(CUDA).unwrap(), current);
    let panicked = std::panic::catch_unwind(|| {
        let _region = side.enter().unwrap();
        panic!("on purpose");
    });
    assert!(panicked.is_err() && Stream::current(CUDA).unwrap() == current);
    // What the side stream freed is not given to the current one, whose work might come first.
    drop(of_side);
    let of_current = on_device(64);
    assert_eq!(dry.memory().unwrap().reserved, 128 * MIB);
    let error = record_stream(&Tensor::zeros([1], (Kind::Float, Device::Cpu)), current).unwrap_err().to_string();
    assert!(error.contains("is not used by a stream"), "{error}");
    record_stream(&of_current, side).unwrap();
    let event = side.event().unwrap();
    current.wait(&event).unwrap();
    event.synchronize().unwrap();
    side.synchronize().unwrap();
    drop(of_current);
    assert_eq!(dry.memory().unwrap().requested, 64 * MIB, "the allocator asks for events when it is asked for memory");
    drop(on_device(1));
    assert_eq!(dry.memory().unwrap().requested, 0);
}

#[test]
fn a_copy_with_and_without_waiting_checks_its_shapes() {
    let Some(_dry) = dry(concat!(module_path!(), "::a_copy_with_and_without_waiting_checks_its_shapes")) else { return };
    let host = pinned(&[8], Kind::Float).unwrap();
    let mut device = Tensor::zeros([8], (Kind::Float, CUDA));
    copy(&mut device, &host, true).unwrap();
    copy(&mut device, &host, false).unwrap();
    assert!(copy(&mut device, &pinned(&[9], Kind::Float).unwrap(), true).is_err());
}

#[test]
fn the_experiment_predicts_what_is_locked() {
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pin_memory"));
    command.args(["--device", "dry:8GiB", "--profile", "smoke", "--out"]).arg(out.path()).env_remove("PYTORCH_ALLOC_CONF");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run = Run::read(&out.path().join("dry-8gib/pin_memory")).unwrap();
    let figure = |cell: &str, metric: &str| {
        let pass = run.passes.iter().find(|pass| pass.cell.to_string() == cell && pass.pass == Pass::Memory).unwrap();
        pass.samples.iter().find(|s| s.metric == metric).unwrap_or_else(|| panic!("{cell}: {}", pass.reason)).value
    };
    for (buffers, locked) in [("1", 64), ("4", 256)] {
        let cell = |memory: &str| format!("bytes=38535168 buffers={buffers} memory={memory}");
        assert_eq!(figure(&cell("pinned"), "locked"), (locked * MIB) as f64);
        assert!((figure(&cell("pinned"), "locked_for_each") - 1.7415).abs() < 1e-4);
        assert_eq!(figure(&cell("pageable"), "locked"), 0.0);
        for memory in ["pinned", "pageable"] {
            assert_eq!(figure(&cell(memory), "device_bytes"), 1.0, "the device holds a copy");
        }
    }
    let copies = run.passes.iter().find(|pass| pass.cell.get("direction").is_some()).unwrap();
    assert!(copies.reason.contains("only these devices have: GPU"), "{}", copies.reason);
}
