//! Checkpointing gives what PyTorch's gives: `tests/reference/checkpoint.json` holds outputs, gradients, random numbers, and how often each
//! segment was run, in scenes of `tests/reference/make/checkpoint.py` that are played here again.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tch::{Device, Kind, Tensor};
use torch::{Checkpoint, backward_keeping_graph};

/// The random state is the process's, so the tests of this file take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- what PyTorch gave -------------------------------------------------------------------------------------------------------------------

#[derive(Deserialize)]
struct Reference {
    torch: String,
    scenes: Vec<Given>,
}

#[derive(Deserialize)]
struct Given {
    name: String,
    outputs: Vec<Vec<f64>>,
    need_gradients: Vec<bool>,
    /// Of each leaf; none where it has no gradient.
    gradients: Vec<Option<Vec<f64>>>,
    /// How often each segment was begun: in the forward pass, and in all.
    runs: BTreeMap<String, [usize; 2]>,
    random_afterwards: Vec<f64>,
}

fn reference() -> Vec<Given> {
    let reference: Reference = serde_json::from_str(include_str!("../reference/checkpoint.json")).unwrap();
    assert_eq!(reference.torch, "2.11.0");
    reference.scenes
}

// ---- what a scene is played with ---------------------------------------------------------------------------------------------------------

const SIDE: i64 = 4;

fn matrix(i: usize) -> Tensor {
    let values: Vec<f64> = (0..SIDE * SIDE).map(|k| (0.3 + 1.1 * k as f64 + 2.3 * i as f64).cos()).collect();
    Tensor::from_slice(&values).to_kind(Kind::Float).reshape([SIDE, SIDE])
}

/// Hands out segments that are counted by name; a segment that has segments has one, too.
#[derive(Clone, Default)]
struct Segments {
    runs: Arc<Mutex<BTreeMap<String, usize>>>,
    options: Checkpoint,
}

impl Segments {
    fn all(&self, name: &str, inputs: &[&Tensor], body: impl Fn(&[Tensor]) -> Vec<Tensor> + Send + 'static) -> Vec<Tensor> {
        let (runs, name) = (self.runs.clone(), name.to_string());
        let counted = move |inputs: &[Tensor]| {
            *runs.lock().unwrap().entry(name.clone()).or_default() += 1;
            Ok(body(inputs))
        };
        self.options.run(inputs, counted).unwrap()
    }

    /// Of one output.
    fn one(&self, name: &str, inputs: &[&Tensor], body: impl Fn(&[Tensor]) -> Tensor + Send + 'static) -> Tensor {
        self.all(name, inputs, move |inputs| vec![body(inputs)]).remove(0)
    }
}

struct Scene {
    segments: Segments,
    leaves: Vec<Tensor>,
}

/// Outputs, and what the backward passes are to begin with.
type Played = (Vec<Tensor>, Vec<Tensor>);

impl Scene {
    fn leaf(&mut self, gradient: bool) -> Tensor {
        let leaf = matrix(self.leaves.len()).set_requires_grad(gradient);
        self.leaves.push(leaf.shallow_clone());
        leaf
    }

    fn leaves(&mut self) -> (Tensor, Tensor) {
        (self.leaf(true), self.leaf(true))
    }
}

fn loss(outputs: &[&Tensor]) -> Tensor {
    outputs.iter().map(|output| (*output * *output).sum(Kind::Float)).sum()
}

/// One output, and its loss.
fn one(y: Tensor) -> Played {
    let total = loss(&[&y]);
    (vec![y], vec![total])
}

/// tanh(x w), the matrix w being owned.
fn layer(w: &Tensor) -> impl Fn(&[Tensor]) -> Tensor + Send + 'static {
    let w = w.shallow_clone();
    move |x| x[0].matmul(&w).tanh()
}

/// dropout(tanh(x w)).
fn dropping_layer(w: &Tensor) -> impl Fn(&[Tensor]) -> Tensor + Send + 'static {
    let layer = layer(w);
    move |x| layer(x).dropout(0.5, true)
}

fn random() -> Tensor {
    Tensor::rand([4], (Kind::Float, Device::Cpu))
}

// ---- the scenes --------------------------------------------------------------------------------------------------------------------------

fn play(name: &str, scene: &mut Scene) -> Played {
    let segments = scene.segments.clone();
    match name {
        "one_segment" => {
            let (x, w) = scene.leaves();
            one(segments.one("only", &[&x, &w], |i| i[0].matmul(&i[1]).tanh()))
        }
        "in_a_row" => {
            let (x, w) = scene.leaves();
            let row = ["first", "second", "third"];
            one(row.into_iter().fold(x, |y, name| segments.one(name, &[&y], layer(&w))))
        }
        "nested" | "backward_twice_nested" => {
            let (x, w) = scene.leaves();
            let inner = segments.clone();
            let y = segments.one("outer", &[&x], move |x| inner.one("inner", &[&x[0].sin()], layer(&w)).matmul(&w));
            let (outputs, mut losses) = one(y);
            if name == "backward_twice_nested" {
                losses.push(losses[0].shallow_clone());
            }
            (outputs, losses)
        }
        "nested_three_deep" => {
            let (x, w) = scene.leaves();
            let (in_outer, in_middle) = (segments.clone(), segments.clone());
            one(segments.one("outer", &[&x], move |x| {
                let (in_middle, w) = (in_middle.clone(), w.shallow_clone());
                let middle = move |x: &[Tensor]| {
                    let own = w.shallow_clone();
                    in_middle.one("inner", &[&x[0]], move |x| x[0].matmul(&own).sin()).tanh().matmul(&w)
                };
                in_outer.one("middle", &[&x[0].sin()], middle) * &x[0]
            }))
        }
        "nested_siblings" => {
            let (x, w) = scene.leaves();
            let inside = segments.clone();
            one(segments.one("outer", &[&x], move |x| {
                let first = inside.one("first", &[&x[0]], layer(&w));
                let own = w.shallow_clone();
                inside.one("second", &[&first], move |x| x[0].matmul(&own).sin()) * first
            }))
        }
        "several_inputs_and_outputs" => {
            let (a, b) = scene.leaves();
            let index = Tensor::from_slice(&[2i64, 0]);
            let body = |i: &[Tensor]| vec![&i[0] * &i[1], i[0].index_select(0, &i[2]), i[2].shallow_clone(), i[1].sin()];
            let out = segments.all("only", &[&a, &b, &index], body);
            let total = out[0].sum(Kind::Float) + loss(&[&out[1]]) * 3.0;
            (out, vec![total])
        }
        "an_output_is_an_input" => {
            let (a, b) = scene.leaves();
            let out = segments.all("only", &[&a, &b], |i| vec![i[0].shallow_clone(), &i[0] * &i[1]]);
            let total = loss(&[&out[0], &out[1]]);
            (out, vec![total])
        }
        "one_tensor_twice" => {
            let x = scene.leaf(true);
            one(segments.one("only", &[&x, &x], |i| i[0].sin().matmul(&i[1])))
        }
        "used_inside_and_outside" => {
            let (x, w) = scene.leaves();
            let y = segments.one("only", &[&x], layer(&w));
            one(y.matmul(&w) + &x)
        }
        "some_inputs_without_gradient" => {
            let (x, w) = (scene.leaf(false), scene.leaf(true));
            one(segments.one("only", &[&x, &w], |i| i[0].matmul(&i[1]).tanh() * &i[0]))
        }
        "no_input_needs_a_gradient" => {
            let (x, w) = (scene.leaf(false), scene.leaf(true));
            one(segments.one("only", &[&x], layer(&w)))
        }
        "an_input_is_missing" => {
            let (x, w) = scene.leaves();
            one(segments.one("only", &[&x, &Tensor::new(), &w], |i| {
                let y = i[0].matmul(&i[2]);
                if i[1].defined() { y + &i[1] } else { y }.tanh()
            }))
        }
        "an_output_is_missing" => {
            let (x, w) = scene.leaves();
            let layer = layer(&w);
            let mut out = segments.all("only", &[&x], move |x| vec![layer(x), Tensor::new()]);
            assert!(!out[1].defined());
            one(out.remove(0))
        }
        "dropout" | "dropout_that_is_not_replayed" => {
            let (x, w) = scene.leaves();
            let segments = Segments { options: Checkpoint { preserve_random: name == "dropout" }, ..segments };
            let (mut outputs, losses) = one(segments.one("only", &[&x], move |x| x[0].matmul(&w).dropout(0.5, true)));
            outputs.push(random());
            (outputs, losses)
        }
        "dropout_in_a_row" => {
            let (x, w) = scene.leaves();
            let y = ["first", "second"].into_iter().fold(x, |y, name| segments.one(name, &[&y], dropping_layer(&w)));
            let random = random();
            let total = loss(&[&y]);
            (vec![y, random], vec![total])
        }
        "dropout_nested" => {
            let (x, w) = scene.leaves();
            let inside = segments.clone();
            let y = segments.one("outer", &[&x], move |x| {
                let dropped = x[0].dropout(0.25, true);
                inside.one("inner", &[&dropped], dropping_layer(&w)).matmul(&w).dropout(0.25, true)
            });
            let random = random();
            let total = loss(&[&y]);
            (vec![y, random], vec![total])
        }
        "dropped_early" => {
            let (x, w) = scene.leaves();
            drop(segments.one("only", &[&x], layer(&w)));
            (vec![], vec![])
        }
        "backward_twice" => {
            let (x, w) = scene.leaves();
            let (outputs, mut losses) = one(segments.one("only", &[&x], layer(&w)));
            losses.push(losses[0].shallow_clone());
            (outputs, losses)
        }
        "an_output_at_a_time" => {
            let (x, w) = scene.leaves();
            let out = segments.all("only", &[&x], move |x| {
                let y = x[0].matmul(&w);
                vec![y.tanh(), y.sin()]
            });
            let losses = out.iter().map(|y| loss(&[y])).collect();
            (out, losses)
        }
        "without_gradients" => {
            let (x, w) = scene.leaves();
            (vec![tch::no_grad(|| segments.one("only", &[&x], layer(&w)))], vec![])
        }
        other => panic!("no scene '{other}'"),
    }
}

fn close(found: &Tensor, wanted: &[f64]) -> bool {
    let found = Vec::<f64>::try_from(found.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap();
    found.len() == wanted.len() && found.iter().zip(wanted).all(|(a, b)| (a - b).abs() <= 2e-6 * (1.0 + b.abs()))
}

#[test]
fn every_scene_goes_as_in_pytorch() {
    let _turn = alone();
    let scenes = reference();
    assert!(scenes.len() > 20);
    for Given { name, outputs, need_gradients, gradients, runs, random_afterwards } in scenes {
        tch::manual_seed(7);
        let mut scene = Scene { segments: Segments::default(), leaves: Vec::new() };
        let (found, losses) = play(&name, &mut scene);
        let counts = || scene.segments.runs.lock().unwrap().clone();
        let forward = counts();
        for total in &losses {
            if losses.len() > 1 { backward_keeping_graph(total).unwrap() } else { total.f_backward().unwrap() }
        }
        let counted: BTreeMap<String, [usize; 2]> =
            counts().into_iter().map(|(name, all)| (name.clone(), [forward.get(&name).copied().unwrap_or(0), all])).collect();
        assert_eq!(counted, runs, "{name}: runs");
        assert_eq!(found.len(), outputs.len(), "{name}");
        for (i, (found, wanted)) in found.iter().zip(&outputs).enumerate() {
            assert!(close(found, wanted), "{name}: output {i} is {found}, PyTorch's {wanted:?}");
        }
        assert_eq!(found.iter().map(Tensor::requires_grad).collect::<Vec<_>>(), need_gradients, "{name}");
        for (i, (leaf, wanted)) in scene.leaves.iter().zip(&gradients).enumerate() {
            let found = leaf.grad();
            assert_eq!(found.defined(), wanted.is_some(), "{name}: gradient {i}");
            if let Some(wanted) = wanted {
                assert!(close(&found, wanted), "{name}: gradient {i} is {found}, PyTorch's {wanted:?}");
            }
        }
        assert!(close(&random(), &random_afterwards), "{name}: random numbers afterwards");
    }
}
