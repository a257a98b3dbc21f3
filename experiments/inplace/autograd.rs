//! Is a write to what the backward pass needs caught?

use super::*;

levels! {
    Op "what was computed before the write":
    Exp "exp, whose backward pass needs its result",
    Sin "sin, whose backward pass needs its input",
}
levels! {
    Write "how 1 is added to the result":
    OutOfPlace as "none" "y + 1, a new tensor",
    InPlace as "inplace" "y.add_(1)",
    ThroughData "y.data.add_(1), behind autograd's back",
}

cell! { SavedTensor { op: Op, write: Write } }

pub fn grid() -> Grid<SavedTensor> {
    Grid::new("writing to what backward needs", step)
        .compare::<Write>()
        .always(SavedTensor::cross(Op::ALL, Write::ALL))
        .passes(CHECK)
        .check(|c| match (c.op, c.write) {
            (Op::Exp, Write::InPlace) => raises("modified by an inplace operation"),
            // A wrong gradient and not a word: exp's backward multiplies by what the write left behind.
            (Op::Exp, Write::ThroughData) => differs(1e-2..=1e2),
            (Op::Sin, _) | (_, Write::OutOfPlace) => equal(1e-6),
        })
        .claim(
            Claim::ours("inplace-autograd", "an in-place write to what the backward pass needs is caught").rule(
                value(RAISED)
                    .of(|c: &SavedTensor| c.op == Op::Exp && c.write != Write::OutOfPlace)
                    .confirm(at_least(1.0))
                    .refute(at_most(0.0)),
            ),
        )
}

fn step(cell: SavedTensor, bench: &Bench) -> Result<Step> {
    let mut x = bench.randn(&[64]).set_requires_grad(true);
    Ok(Step::new(move |probe| {
        x.zero_grad();
        let mut y = match cell.op {
            Op::Exp => x.exp(),
            Op::Sin => x.sin(),
        };
        match cell.write {
            Write::OutOfPlace => y = y.g_add_scalar(1.0),
            Write::InPlace => drop(y.g_add_scalar_(1.0)),
            Write::ThroughData => drop(y.data().g_add_scalar_(1.0)),
        }
        y.sum(Kind::Float).f_backward()?;
        probe.compare(GRADIENT_ERROR, || Ok(vec![x.grad()]))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_a_missing_error_and_a_missing_difference() {
        for cell in SavedTensor::cross(Op::ALL, Write::ALL) {
            check(&protocol(), cell).holds();
        }
        let with_op = |op, write| move |bench: &Bench| step(SavedTensor { op, write }, bench);
        let cell = |op, write| SavedTensor { op, write };
        broken(&protocol(), cell(Op::Exp, Write::InPlace), with_op(Op::Sin, Write::InPlace)).sees("none was raised");
        broken(&protocol(), cell(Op::Sin, Write::InPlace), with_op(Op::Exp, Write::InPlace))
            .sees("modified by an inplace operation");
        broken(&protocol(), cell(Op::Exp, Write::ThroughData), with_op(Op::Exp, Write::OutOfPlace)).sees("expected apart");
    }
}
