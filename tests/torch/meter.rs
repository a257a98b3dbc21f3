//! The meter counts what PyTorch's profiler sees: `tests/reference/meter.json` holds every allocation and free of some operations, written by
//! `tests/reference/make/meter.py`, which are run here under the counting allocator.

use serde::Deserialize;
use tch::{Device, Kind, Reduction, Tensor};
use torch::{Backend, Cpu, allocations};

#[derive(Deserialize)]
struct Reference {
    torch: String,
    operations: Vec<Operation>,
}

#[derive(Deserialize)]
struct Operation {
    name: String,
    /// Bytes that live on afterwards, and the most that lived at once, above what lived before.
    kept: i64,
    peak: i64,
    /// Bytes of each allocation (above 0) and of each free (below 0), in order.
    sizes: Vec<i64>,
}

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn tensor(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, FLOAT)
}

fn leaf(shape: &[i64]) -> Tensor {
    tensor(shape).set_requires_grad(true)
}

/// Numbers 0 to `count`, each modulo `modulus`.
fn indices(count: i64, modulus: i64) -> Tensor {
    Tensor::arange(count, (Kind::Int64, Device::Cpu)).remainder(modulus)
}

fn backward_of(output: Tensor) -> Vec<Tensor> {
    output.sum(Kind::Float).backward();
    Vec::new()
}

/// An operation over tensors that are there; what it gives back lives on.
type Body = Box<dyn Fn() -> Vec<Tensor>>;

/// The operation of the same name in the script.
fn operation(name: &str) -> Body {
    match name {
        "add" => {
            let (a, b) = (tensor(&[100, 7]), tensor(&[100, 7]));
            Box::new(move || vec![&a + &b])
        }
        "add_with_broadcasting" => {
            let (a, b) = (tensor(&[100, 1]), tensor(&[7]));
            Box::new(move || vec![&a + &b])
        }
        "add_in_place" => {
            let (a, b) = (tensor(&[100, 7]), tensor(&[100, 7]));
            Box::new(move || vec![a.shallow_clone().g_add_(&b)])
        }
        "views" => {
            let a = tensor(&[10, 20]);
            Box::new(move || vec![a.view([200]), a.tr(), a.select(0, 3), a.unsqueeze(0).expand([4, 10, 20], false)])
        }
        "contiguous" => {
            let a = tensor(&[10, 20]).tr();
            Box::new(move || vec![a.contiguous()])
        }
        "to_double" => {
            let a = tensor(&[33]);
            Box::new(move || vec![a.to_kind(Kind::Double)])
        }
        "nothing" => Box::new(|| vec![Tensor::empty([0], FLOAT)]),
        "concatenate" => {
            let (a, b) = (tensor(&[3, 5]), tensor(&[4, 5]));
            Box::new(move || vec![Tensor::cat(&[&a, &b], 0)])
        }
        "reduce" => {
            let a = tensor(&[50, 60]);
            Box::new(move || {
                let (sum, mean) = (a.sum(Kind::Float), a.mean_dim([1i64].as_slice(), false, Kind::Float));
                let (most, _) = a.max_dim(1, false);
                vec![sum, mean, most, a.var_dim([0i64].as_slice(), true, false)]
            })
        }
        "sort" => {
            let a = tensor(&[50, 60]);
            Box::new(move || {
                let (values, order) = a.sort(1, false);
                vec![values, order]
            })
        }
        "matmul" => {
            let (a, b) = (tensor(&[30, 40]), tensor(&[40, 50]));
            Box::new(move || vec![a.matmul(&b)])
        }
        "batched_matmul" => {
            let (a, b) = (tensor(&[3, 30, 40]), tensor(&[40, 50]));
            Box::new(move || vec![a.matmul(&b)])
        }
        "linear" => {
            let (x, w, b) = (leaf(&[16, 30]), leaf(&[20, 30]), leaf(&[20]));
            Box::new(move || vec![x.linear(&w, Some(&b)).relu()])
        }
        "linear_backward" => {
            let (x, w, b) = (leaf(&[16, 30]), leaf(&[20, 30]), leaf(&[20]));
            Box::new(move || {
                // A temporary lives until its statement ends, in Python until it has been used.
                let y = x.linear(&w, Some(&b)).relu();
                backward_of(y)
            })
        }
        "two_branches_meet" => {
            let x = leaf(&[16, 30]);
            Box::new(move || backward_of(x.tanh() * x.sin() + &x))
        }
        "layer_norm_backward" => {
            let (x, w, b) = (leaf(&[16, 30]), leaf(&[30]), leaf(&[30]));
            Box::new(move || backward_of(x.layer_norm([30], Some(&w), Some(&b), 1e-5, true)))
        }
        "batch_norm_backward" => {
            let (x, w, b) = (leaf(&[4, 5, 6, 6]), leaf(&[5]), leaf(&[5]));
            let (mean, variance) = (Tensor::zeros([5], FLOAT), Tensor::ones([5], FLOAT));
            Box::new(move || backward_of(x.batch_norm(Some(&w), Some(&b), Some(&mean), Some(&variance), true, 0.1, 1e-5, true)))
        }
        "pooling_backward" => {
            let x = leaf(&[2, 3, 9, 9]);
            Box::new(move || {
                backward_of(x.max_pool2d(3, 2, 1, 1, false));
                backward_of(x.avg_pool2d(3, 3, 0, false, true, None::<i64>));
                backward_of(x.mean_dim([2i64, 3].as_slice(), false, Kind::Float))
            })
        }
        "cross_entropy_backward" => {
            let (x, targets) = (leaf(&[16, 10]), indices(16, 10));
            Box::new(move || backward_of(x.cross_entropy_loss::<Tensor>(&targets, None, Reduction::Mean, -100, 0.0)))
        }
        "embedding_backward" => {
            let (table, indices) = (leaf(&[50, 8]), indices(40, 7));
            Box::new(move || backward_of(Tensor::embedding(&table, &indices, -1, false, false)))
        }
        "dropout_backward" => {
            let x = leaf(&[100, 10]);
            Box::new(move || backward_of(x.dropout(0.25, true)))
        }
        "explicit_attention_backward" => {
            let [q, k, v] = [(); 3].map(|()| leaf(&[2, 3, 11, 8]));
            Box::new(move || {
                let scores = q.matmul(&k.transpose(-2, -1)).softmax(-1, Kind::Float);
                let y = scores.matmul(&v);
                drop(scores);
                backward_of(y)
            })
        }
        "fused_attention_backward" => {
            let [q, k, v] = [(); 3].map(|()| leaf(&[2, 3, 11, 8]));
            Box::new(move || backward_of(Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, None, false)))
        }
        "gradients_that_are_added_up" => {
            let (x, w) = (tensor(&[16, 30]), leaf(&[20, 30]));
            Box::new(move || {
                backward_of(x.linear(&w, None::<&Tensor>));
                backward_of(x.linear(&w, None::<&Tensor>))
            })
        }
        "without_gradients" => {
            let (x, w, b) = (leaf(&[16, 30]), leaf(&[20, 30]), leaf(&[20]));
            Box::new(move || {
                tch::no_grad(|| {
                    let y = x.linear(&w, Some(&b)).relu();
                    vec![y.exp()]
                })
            })
        }
        other => panic!("no operation '{other}'"),
    }
}

/// One test, because the meter and its events are the process's.
#[test]
fn every_allocation_is_the_one_that_pytorchs_profiler_sees() {
    tch::set_num_threads(1);
    let cpu = Cpu::new(None);
    let reference: Reference = serde_json::from_str(include_str!("../reference/meter.json")).unwrap();
    assert_eq!(reference.torch, "2.11.0");
    assert!(reference.operations.len() > 20);
    let mut differ = Vec::new();
    for Operation { name, kept, peak, sizes } in &reference.operations {
        drop(operation(name)());
        let body = operation(name);
        cpu.reset_peaks().unwrap();
        let before = cpu.memory().unwrap().requested;
        allocations::record(Device::Cpu).unwrap();
        let results = body();
        allocations::stop();
        let after = cpu.memory().unwrap();
        let found: Vec<i64> = allocations::take().iter().map(|event| event.change()).collect();
        if found != *sizes {
            differ.push(format!("{name}:\n{found:?}, by PyTorch's profiler\n{sizes:?}"));
        }
        let (live, most) = (after.requested - before, after.requested_peak - before);
        if (live, most) != (*kept, *peak) {
            differ.push(format!("{name}: {live} bytes, {most} at most; by PyTorch's profiler {kept} and {peak}"));
        }
        drop(results);
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}
