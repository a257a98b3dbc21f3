//! Do they use more memory?

use super::*;

levels! {
    Workload "where the operation stands":
    Single "one relu on an intermediate result",
    Chain "five pointwise operations in a row, relu the last",
    Network "relu between the linear layers of an MLP, 8 x 128",
}
number! { Elements "elements of a tensor" }
levels! {
    Mode "what the operation is part of":
    Inference "nothing is recorded",
    Training "recorded for a backward pass, which is run",
}
levels! {
    Form "how the operation is written":
    Plain "y = relu(x)" => "relu(x)",
    Clone "y = relu(x).clone(), as guide 1 recommends" => "relu(x).clone()",
    InPlace as "inplace" "relu_(x)" => "relu_(x)",
}

cell! { Pointwise { workload: Workload, elements: Elements, mode: Mode, form: Form } }

pub fn grid() -> Grid<Pointwise> {
    use {Form::*, Mode::*, Workload::*};
    Grid::new("memory and time", step)
        .compare::<Form>()
        .quick(Pointwise::cross([Single, Chain], 4 << 20, Inference, Form::ALL))
        .quick(Pointwise::cross([Single, Chain], 4 << 20, Training, Form::ALL).passes(CHECK | COUNT))
        .quick(Pointwise::cross(Network, 1 << 20, Training, Form::ALL))
        .quick(Pointwise::cross(Network, 1 << 20, Inference, Form::ALL).passes(CHECK | COUNT))
        .full(Pointwise::cross([Single, Chain], 256 << 20, Mode::ALL, Form::ALL))
        .full(Pointwise::cross(Network, 128 << 20, Mode::ALL, Form::ALL))
        .smoke(Pointwise::cross(Network, 32 << 10, Training, [Plain, Clone]))
        .check(|_| equal(1e-6))
        .claim(
            Claim::new("inplace-memory", "1", "in-place operations use more memory; relu(x).clone() is the better form")
                .rule(
                    ratio(PEAK)
                        .at(Clone)
                        .confirm(at_most(0.98))
                        .refute(at_least(1.02))
                        // Where the peak lies in the backward pass of whatever follows, no form of the operation moves it.
                        .scope(ACTIVATIONS, PEAK, 0.5),
                )
                .changed(
                    "20 November 2026: judged only where saved activations make at least half of the peak. One operation with a gradient has \
                     its peak in the backward pass of what follows it, which no form of the operation moves (1.00x).",
                )
                .before(ratio(PEAK).at(Clone).confirm(at_most(0.98)).refute(at_least(1.02))),
        )
}

const WIDTH: i64 = 128;

fn step(cell: Pointwise, bench: &Bench) -> Result<Step> {
    let Pointwise { workload, elements: Elements(elements), mode, form } = cell;
    let training = mode == Mode::Training;
    let leaf = |shape: &[i64], scale: f64| (bench.randn(shape) * scale).set_requires_grad(training);
    let (x, weights): (Tensor, Vec<Tensor>) = match workload {
        Workload::Network => {
            let weights = (0..8).map(|_| leaf(&[WIDTH, WIDTH], (2.0 / WIDTH as f64).sqrt())).collect();
            (bench.randn(&[elements / WIDTH, WIDTH]), weights)
        }
        Workload::Single | Workload::Chain => (leaf(&[elements], 1.0), Vec::new()),
    };
    Ok(Step::new(move |probe| {
        let compute = || match workload {
            Workload::Network => weights.iter().fold(x.shallow_clone(), |x, w| form.relu(x.matmul(w))),
            Workload::Single => form.relu(&x * 1.5),
            Workload::Chain => form.relu(form.mul(form.add(form.mul(form.add(&x * 1.5, 0.5), 0.9), -0.1), 1.1)),
        };
        probe.at_rest();
        if !training {
            let result = no_grad(compute);
            return probe.compare(RESULT_ERROR, || Ok(vec![result]));
        }
        let loss = probe.forward(|| Ok(compute()))?.mean(Kind::Float);
        let leaves: Vec<&Tensor> = if weights.is_empty() { vec![&x] } else { weights.iter().collect() };
        let gradients = Tensor::f_run_backward(&[loss], &leaves, false, false)?;
        probe.compare(RESULT_ERROR, || Ok(gradients))
    }))
}

impl Form {
    fn relu(self, x: Tensor) -> Tensor {
        self.apply(x, |x| x.relu(), |x| x.relu_())
    }

    fn add(self, x: Tensor, value: f64) -> Tensor {
        self.apply(x, |x| x + value, |x| x.g_add_scalar_(value))
    }

    fn mul(self, x: Tensor, value: f64) -> Tensor {
        self.apply(x, |x| x * value, |x| x.g_mul_scalar_(value))
    }

    fn apply(self, mut x: Tensor, new: impl Fn(&Tensor) -> Tensor, in_place: impl Fn(&mut Tensor) -> Tensor) -> Tensor {
        match self {
            Form::Plain => new(&x),
            Form::Clone => new(&x).copy(),
            Form::InPlace => in_place(&mut x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    fn small(workload: Workload, mode: Mode, form: Form) -> Pointwise {
        Pointwise { workload, elements: Elements(32 << 10), mode, form }
    }

    #[test]
    fn the_check_sees_another_computation() {
        for form in Form::ALL {
            check(&protocol(), small(Workload::Network, Mode::Training, *form)).holds();
        }
        let cell = small(Workload::Single, Mode::Inference, Form::InPlace);
        broken(&protocol(), cell, |bench| step(with(cell, Workload::Chain), bench)).sees("result: expected equal");
    }

    #[test]
    fn bytes_are_what_can_be_worked_out_by_hand() {
        let n = 32768.0 * 4.0;
        let single = |form| count(&protocol(), small(Workload::Single, Mode::Inference, form));
        assert_eq!(single(Form::Plain).figure(PEAK), 3.0 * n, "the input, the intermediate and the result");
        assert_eq!(single(Form::Plain).figure(STEP_PEAK), 2.0 * n, "the intermediate and the result");
        assert_eq!(single(Form::Clone).figure(STEP_PEAK), 3.0 * n, "and its clone");
        // The peak is while x * 1.5 is computed: libtorch makes the factor a tensor of 8 bytes and casts it to one of 4.
        assert_eq!(single(Form::InPlace).figure(STEP_PEAK), n + 12.0, "the intermediate becomes the result");
        let network = |form| count(&protocol(), small(Workload::Network, Mode::Training, form)).figure(ACTIVATIONS);
        assert_eq!(network(Form::Plain), 8.0 * n, "each layer's output is kept once");
        assert_eq!(network(Form::InPlace), 8.0 * n);
        assert_eq!(network(Form::Clone), 16.0 * n, "by relu and, cloned, by the next layer");
    }
}
