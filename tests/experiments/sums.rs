//! Does a sum that is written over one of its parts need memory?

use harness::lab::*;

/// The part of the sum that took no memory of its own.
const SPARED: Metric = Metric::counted("spared", "sum that took no memory", "1").share();

number! { Elements "elements of a tensor" }
levels! { Written "where the sum goes": Apart "to a tensor of its own", Over "over its first part" => "adding in place" }

cell! { Sum { elements: Elements, written: Written } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    let grid = Grid::new("memory and time", sum)
        .compare::<Written>()
        .always(Sum::cross(1 << 20, Written::ALL))
        .metrics(&[SPARED])
        .check(|_| equal(0.0))
        .plot(bars(STEP_PEAK).named("peak"))
        .claim(
            Claim::new("sum-over", "mine", "a sum that is written over one of its parts needs no memory")
                .rule(ratio(STEP_PEAK).of(|c: &Sum| c.written == Written::Over).confirm(at_most(0.1)).refute(at_least(0.9))),
        )
        .claim(
            Claim::new("sum-spared", "mine", "all of it is spared").rule(value(SPARED).of(|c: &Sum| c.written == Written::Over).holds(at_least(0.99))),
        );
    Protocol::new("sums", "Sums in place")
        .question("Does a sum that is written over one of its parts need memory?")
        .hypothesis("None, and it is as fast.")
        .grid(grid)
        .shows(Shown::new("Add in place").at(Written::Over).memory(STEP_PEAK))
        .threat("One size.")
}

fn sum(cell: Sum, bench: &Bench) -> Result<Step> {
    let (mut a, b) = (bench.randn(&[cell.elements.0]), bench.randn(&[cell.elements.0]));
    Ok(Step::new(move |probe| {
        let rest = probe.at_rest();
        let sum = match cell.written {
            Written::Apart => &a + &b,
            Written::Over => a.g_add_(&b),
        };
        probe.emit(SPARED, 1.0 - (probe.live() - rest) as f64 / (4 * cell.elements.0) as f64);
        probe.compare(RESULT_ERROR, || Ok(vec![sum]))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_a_sum_too_many() {
        let cell = Sum { elements: Elements(8), written: Written::Over };
        check(&protocol(), cell).holds();
        let twice = |bench: &Bench| Ok(sum(cell, bench)?.altered(|sum| sum * 2.0));
        broken(&protocol(), cell, twice).sees("result: expected equal");
    }
}
