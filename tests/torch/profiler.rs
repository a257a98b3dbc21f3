//! PyTorch's profiler on real operations: what it tells of time and bytes is what was done.

use serde_json::Value;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::{Device, Kind, Tensor};
use torch::profiler::EventSource;
use torch::{Cpu, MemoryHistory, Profiled, Profiler, Profiling, allocations, attempt, range};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);
const MEMORY: Profiling = Profiling { memory: true, shapes: false, flops: false, cuda: false };

/// A process has one profiler and one counting allocator, so the tests of this file take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Cpu::new(None);
    turn
}

fn profiled(profiling: Profiling, body: impl FnOnce()) -> Profiled {
    let profiler = Profiler::begin(profiling).unwrap();
    body();
    profiler.end().unwrap()
}

#[test]
fn a_product_has_its_calls_its_shapes_its_operations_and_its_bytes() {
    let _turn = alone();
    let (bias, a, b) = (Tensor::ones([32], FLOAT), Tensor::ones([64, 16], FLOAT), Tensor::ones([16, 32], FLOAT));
    let products = || {
        for _ in 0..3 {
            drop(bias.addmm(&a, &b));
        }
    };
    let all = Profiling { shapes: true, flops: true, ..MEMORY };
    let profile = profiled(all, products);
    let of: Vec<_> = profile.events().iter().filter(|event| event.name == "aten::addmm").collect();
    assert_eq!(of.len(), 3);
    for event in &of {
        assert_eq!((event.source, event.device), (EventSource::Operation, None));
        assert!(event.shapes.starts_with("[32], [64, 16], [16, 32]"), "{}", event.shapes);
        assert_eq!(event.flops, 2 * 64 * 16 * 32);
        assert!(event.duration_ns > 0 && event.self_ns > 0 && event.self_ns <= event.duration_ns);
    }
    allocations::record(Device::Cpu, false).unwrap();
    products();
    allocations::stop();
    let counted: Vec<i64> = allocations::take().iter().map(|event| event.change()).collect();
    let told: Vec<i64> = profile.allocations().iter().map(|change| change.bytes).collect();
    assert_eq!(told, counted, "allocation by allocation what the counting allocator saw");
    assert!(counted.iter().filter(|bytes| **bytes == 64 * 32 * 4).count() == 3, "{counted:?}");
    let product = profile.by_self_time().into_iter().find(|operation| operation.name == "aten::addmm").unwrap();
    assert_eq!((product.calls, product.allocated), (3, 3 * 64 * 32 * 4));
    assert_eq!(product.freed, 0, "what the program drops is freed outside of any operation");
}

#[test]
fn bytes_are_not_recorded_unless_they_are_asked_for() {
    let _turn = alone();
    let x = Tensor::ones([64, 64], FLOAT);
    let profile = profiled(Profiling { shapes: true, ..Profiling::default() }, || drop(x.matmul(&x)));
    assert!(profile.allocations().is_empty());
    assert!(!profile.events().is_empty() && profile.events().iter().all(|event| event.allocated == 0 && event.freed == 0));
}

#[test]
fn self_times_add_up_to_the_outermost_operations() {
    let _turn = alone();
    let (x, w) = (Tensor::randn([64, 64], FLOAT), Tensor::randn([64, 64], FLOAT).set_requires_grad(true));
    let profile = profiled(Profiling::default(), || {
        for _ in 0..5 {
            x.linear(&w, None::<&Tensor>).relu().square().mean(Kind::Float).backward();
        }
    });
    let operations: Vec<_> = profile.events().iter().filter(|event| event.source == EventSource::Operation).collect();
    let nested = |event: &&&torch::profiler::ProfiledEvent| {
        operations.iter().any(|outer| {
            outer.thread == event.thread
                && (outer.start_ns, -outer.duration_ns) < (event.start_ns, -event.duration_ns)
                && outer.start_ns + outer.duration_ns > event.start_ns
        })
    };
    let outermost: i64 = operations.iter().filter(|event| !nested(event)).map(|event| event.duration_ns).sum();
    let own: i64 = operations.iter().map(|event| event.self_ns).sum();
    assert!(operations.iter().any(|event| event.self_ns < event.duration_ns), "something is nested");
    assert!(operations.iter().all(|event| event.self_ns >= 0));
    assert!((own as f64 / outermost as f64 - 1.0).abs() < 0.01, "{own} of {outermost}");
    assert_eq!(profile.by_self_time().iter().map(|operation| operation.self_ns).sum::<i64>(), own);
    let backward =
        |event: &&&torch::profiler::ProfiledEvent| event.name.starts_with("autograd::engine::evaluate_function: MmBackward");
    assert_eq!(operations.iter().filter(backward).count(), 5, "the backward pass is recorded, too");
}

/// What the Trace Event Format asks for: an array of events with a phase, and those with a duration with a time, a thread and a process.
#[test]
fn a_trace_is_one_that_viewers_open() {
    let _turn = alone();
    let x = Tensor::randn([64, 64], FLOAT);
    let mut profile = profiled(MEMORY, || range("forward", || drop(x.matmul(&x))).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    profile.save(&path).unwrap();
    let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for event in events {
        let phase = event["ph"].as_str().unwrap();
        assert!(event["name"].is_string() && phase.len() == 1, "{event}");
        if phase == "X" {
            assert!(event["ts"].as_f64().is_some() && event["dur"].as_f64().unwrap() >= 0.0, "{event}");
            assert!(!event["pid"].is_null() && !event["tid"].is_null(), "{event}");
        }
    }
    let named = |name: &str| events.iter().filter(|event| event["name"] == name && event["ph"] == "X").collect::<Vec<_>>();
    let (products, ranges) = (named("aten::mm"), named("forward"));
    assert_eq!((products.len(), ranges.len()), (1, 1));
    let ends = |event: &Value| event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap();
    assert!(ranges[0]["ts"].as_f64() <= products[0]["ts"].as_f64() && ends(products[0]) <= ends(ranges[0]), "inside of its range");
    assert!(events.iter().any(|event| event["name"] == "[memory]" && event["args"]["Bytes"] == 64 * 64 * 4), "bytes are in it");
    assert_eq!(profile.events().iter().filter(|event| event.source == EventSource::Range).count(), 1);
    assert!(profile.save(&path).unwrap_err().to_string().contains("trace.json"), "it is written once");
}

#[test]
fn a_second_profiler_is_refused_and_a_panic_leaves_none() {
    let _turn = alone();
    let first = Profiler::begin(MEMORY).unwrap();
    let error = format!("{:#}", Profiler::begin(MEMORY).unwrap_err());
    assert!(error.contains("a profiler is recording already") && error.contains("end it before"), "{error}");
    let profile = {
        drop(Tensor::ones([8], FLOAT));
        first.end().unwrap()
    };
    assert!(profile.events().iter().any(|event| event.name == "aten::ones"), "the first is not harmed");
    let panicked = attempt(|| -> anyhow::Result<()> {
        let _profiler = Profiler::begin(MEMORY)?;
        panic!("in the middle");
    });
    assert_eq!(panicked.unwrap_err().to_string(), "in the middle");
    let profile = profiled(MEMORY, || drop(Tensor::zeros([8], FLOAT)));
    assert!(profile.events().iter().all(|event| event.name != "aten::ones"), "and its events are gone");
}

#[test]
fn a_history_needs_a_cuda_device() {
    let _turn = alone();
    for _ in 0..2 {
        let error = MemoryHistory::begin(1000).unwrap_err().to_string();
        assert!(error.contains("open a CUDA device") || error.contains("without CUDA"), "{error}");
    }
}
