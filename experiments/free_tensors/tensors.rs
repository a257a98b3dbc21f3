//! The bytes that the allocator has given to tensors.

use super::*;

pub fn grid() -> Grid<Dropping> {
    use Reference::*;
    const BEFORE_AND_AFTER: [Moment; 2] = [Moment::Before, Moment::Dropped];
    let of = |dropped: Dropped, size: &'static str, references: &[Reference]| {
        Dropping::cross(Watched::Tensors, dropped, size, references, BEFORE_AND_AFTER)
    };
    let of_tensor: [Reference; 5] = [Nothing, Clone, View, Graph, Gradient];
    let of_model: [Reference; 5] = [Nothing, Optimizer, Loss, Gradients, Row];
    let after = || value(FREED).at(Watched::Tensors).at(Moment::Dropped);
    Grid::new("bytes of tensors", step)
        .compare::<Moment>()
        .quick(of(Dropped::Tensor, "16MiB", &of_tensor))
        .quick(of(Dropped::SmallTensors, "16MiB", &[Nothing, Few]))
        .quick(of(Dropped::Model, "mlp-8x256", &of_model))
        .full(of(Dropped::Tensor, "1GiB", &of_tensor))
        .full(of(Dropped::SmallTensors, "1GiB", &[Nothing, Few]))
        .full(of(Dropped::Model, "gpt2-medium", &of_model))
        .smoke(of(Dropped::Tensor, "1MiB", &[Nothing, Clone]))
        .passes(CHECK | COUNT)
        .metrics(&[ALLOCATED, FREED, RESERVED, UNRESERVED, USED, RETURNED, SURVIVOR_ERROR])
        .check(|_| equal(1e-5)) // what survives a drop is untouched; two backward passes differ by rounding
        .claim(
            Claim::new(
                "del-frees",
                "2",
                "dropping a tensor frees its GPU memory: allocated falls by its size, reserved and the device's only at empty_cache, and a \
                 surviving reference keeps it",
            )
            .on(CUDA) // elsewhere only its first two parts of six can be judged
            .rule(after().at(Nothing).confirm(within(0.99..=1.01)).refute(at_most(0.50)))
            .rule(after().at([Clone, View, Graph, Optimizer]).confirm(at_most(0.01)).refute(at_least(0.50)))
            .changed("22 November 2026: no longer judged on the CPU, where the first two of its six parts alone can be."),
        )
        .no_plots()
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    fn dropped(dropped: Dropped, size: &'static str, reference: Reference) -> Dropping {
        Dropping { watched: Watched::Tensors, dropped, size: Size(size), reference, moment: Moment::Dropped }
    }

    #[test]
    fn the_check_sees_a_drop_that_takes_the_survivor_with_it() {
        use Reference::*;
        for reference in [Nothing, Clone, View, Graph, Gradient] {
            check(&protocol(), dropped(Dropped::Tensor, "1MiB", reference)).holds();
        }
        for reference in [Nothing, Optimizer, Loss, Gradients, Row] {
            check(&protocol(), dropped(Dropped::Model, "mlp-2x64", reference)).holds();
        }
        let cell = dropped(Dropped::Tensor, "1MiB", Clone);
        // Frees memory as `resize_(0)` on a storage does: whoever still refers to it has nothing.
        let forced = |bench: &Bench| Ok(step(cell, bench)?.altered(Tensor::zeros_like));
        broken(&protocol(), cell, forced).sees("survivor: all of it is zero");
    }

    /// What a drop gives back, worked out by hand.
    #[test]
    fn what_survives_keeps_what_it_refers_to() {
        use Reference::*;
        let freed = |what, size, reference| count(&protocol(), dropped(what, size, reference)).figure(FREED);
        for (reference, share) in [(Nothing, 1.0), (Clone, 0.0), (View, 0.0), (Graph, 0.0), (Gradient, 1.0)] {
            assert_eq!(freed(Dropped::Tensor, "1MiB", reference), share, "{reference:?}");
        }
        let small = |reference| freed(Dropped::SmallTensors, "4MiB", reference);
        assert_eq!((small(Nothing), small(Few)), (1.0, 31.0 / 32.0));
        let [none, optimizer, gradients] = [Nothing, Optimizer, Gradients].map(|kept| freed(Dropped::Model, "mlp-2x64", kept));
        assert_eq!((none, optimizer), (1.0, 0.0));
        // Of parameters, gradients and Adam's two moments.
        assert!((gradients - 0.75).abs() < 0.01, "{gradients}");
    }

    #[test]
    fn a_survivor_that_there_is_not_is_refused() {
        let cell = dropped(Dropped::SmallTensors, "1MiB", Reference::Row);
        check(&protocol(), cell).sees("nothing of small-tensors survives as 'row'");
    }
}
