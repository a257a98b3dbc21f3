//! Steps, and Liger's operators: predicted and measured, record by record.

use super::*;

/// Source, case, card, family, where the constants are from, what bounds it, predicted, band, measured, the two simpler ways, commit.
const STEPS: &str = include_str!("steps.csv");

pub const PREDICTED: Metric = Metric::counted("predicted", "predicted time", "s");
const MEASURED: Metric = Metric::counted("measured", "time on the real GPU", "s");
const LOW: Metric = Metric::counted("low", "lower end of the band", "s");
const HIGH: Metric = Metric::counted("high", "upper end of the band", "s");
const NEAREST: Metric = Metric::counted("nearest", "nearest time in the band", "s");
const OFF: Metric = Metric::counted("off", "error", "1");

name! { Family "what kind of model" }
name! { Constants "where most of the card's constants are from" }
name! { Bound as "bound-by" "what bounds it, as predicted" }
name! { Case "what runs" }
levels! {
    Length "how long it takes": Ms1 as "below-10-ms" "", Ms10 as "10-to-100-ms" "", Ms100 as "0.1-to-1-s" "", S1 as "1-s-and-more" ""
}
// Selections name the last factors that tell cells apart.
cell! { Timed { case: Case, source: Source, card: CardName, family: Family, bound: Bound, length: Length, constants: Constants, way: Way } }

#[derive(Debug, Clone, Deserialize)]
pub struct StepRecord {
    pub source: String,
    case: String,
    pub card: String,
    family: String,
    constants: String,
    bound_by: String,
    predicted: f64,
    /// Of the band that other sources' rows give.
    pub low: f64,
    pub high: f64,
    pub measured: f64,
    roofline: f64,
    pytorch: f64,
}

impl StepRecord {
    pub fn by(&self, way: Way) -> f64 {
        match way {
            Way::Rehearsal => self.predicted,
            Way::Roofline => self.roofline,
            Way::Pytorch => self.pytorch,
        }
    }
}

/// The shortest first.
pub fn rows() -> Vec<StepRecord> {
    let mut rows: Vec<StepRecord> = super::rows(STEPS);
    rows.sort_by(|a, b| a.measured.total_cmp(&b.measured));
    rows
}

fn cell(row: &StepRecord, way: Way) -> Timed {
    let length = match row.measured {
        seconds if seconds < 0.01 => Length::Ms1,
        seconds if seconds < 0.1 => Length::Ms10,
        seconds if seconds < 1.0 => Length::Ms100,
        _ => Length::S1,
    };
    Timed {
        source: Source(kept(&row.source)),
        card: CardName(kept(&row.card)),
        family: Family(kept(&row.family)),
        constants: Constants(kept(&row.constants)),
        bound: Bound(kept(&row.bound_by)),
        length,
        case: Case(kept(&row.case)),
        way,
    }
}

/// The measured time where the band holds it, else the band's end.
pub fn nearest(row: &StepRecord) -> f64 {
    row.measured.clamp(row.low, row.high)
}

fn step(cell: Timed, _: &Bench) -> Result<Step> {
    let row = rows().into_iter().find(|row| self::cell(row, cell.way) == cell);
    let row = row.with_context(|| format!("steps.csv has no row for {cell:?}"))?;
    Ok(Step::new(move |probe| {
        let predicted = row.by(cell.way);
        let mut figures = vec![(PREDICTED, predicted), (MEASURED, row.measured), (OFF, (predicted / row.measured - 1.0).abs())];
        if cell.way == Way::Rehearsal && is_step(&cell) {
            figures.extend([(LOW, row.low), (HIGH, row.high), (NEAREST, nearest(&row))]);
        }
        figures.into_iter().for_each(|(metric, value)| probe.emit(metric, value));
        Ok(())
    }))
}

/// Liger's are operators.
fn is_step(cell: &Timed) -> bool {
    cell.source != Source("liger")
}

fn is_ours(cell: &Timed) -> bool {
    cell.way == Way::Rehearsal
}

/// Half of the records within one share, nine in ten within another.
fn within(claim: Claim<Timed>, half: f64, most: f64, of: fn(&Timed) -> bool) -> Claim<Timed> {
    let rule =
        |by: f64, share| agreement(PREDICTED, MEASURED, 1.0 - by..=1.0 + by, share).of(move |cell| is_ours(cell) && of(cell));
    claim.rule(rule(half, 0.5)).rule(rule(most, 0.9)).on(FILES)
}

pub fn grid() -> Grid<Timed> {
    let steps = Claim::new;
    let grid = Grid::new("steps", step)
        .metrics(&[PREDICTED, MEASURED, OFF, LOW, HIGH, NEAREST])
        .claim(
            within(
                steps(
                    "real-times-anchored",
                    "this lab",
                    "on a card with records of its operators, half of the predicted steps are within 10 % and nine in ten within 25 %",
                ),
                0.10,
                0.25,
                |cell| cell.constants == Constants("anchored"),
            ),
        )
        .claim(
            within(
                steps(
                    "real-times-specification",
                    "this lab",
                    "on a card that only its specification tells of, half of the predicted steps are within 15 % and nine in ten within 35 %",
                ),
                0.15,
                0.35,
                |cell| cell.constants == Constants("specification"),
            ),
        )
        .claim(
            within(
                steps(
                    "real-times-neusight",
                    "this lab",
                    "on NeuSight's language models, half are within the 6.2 % and nine in ten within the 17.6 % of its own network",
                ),
                0.062,
                0.176,
                |cell| cell.source == Source("neusight"),
            ),
        )
        .claim(
            steps("real-times-coverage", "this lab", "the band of a prediction holds 75 % and more of the steps of a source that it was not made from")
                .rule(agreement(NEAREST, MEASURED, 1.0..=1.0, 0.75).of(|cell| is_ours(cell) && is_step(cell)))
                .on(FILES),
        )
        .plot(
            against(PREDICTED, MEASURED)
                .named("steps")
                .caption("Predicted times of steps against those that others measured on real GPUs")
                .of(|cell| is_ours(cell) && is_step(cell))
                .by::<Family>(),
        );
    of_all(
        grid,
        rows().iter().map(|row| Way::ALL.iter().map(|way| cell(row, *way)).collect::<Vec<_>>()).collect::<Vec<_>>().into_iter(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_figure_of_a_band_is_the_measured_one_inside_of_it() {
        let row = StepRecord { low: 1.0, high: 2.0, ..rows().remove(0) };
        let nearest = |measured| super::nearest(&StepRecord { measured, ..row.clone() });
        assert_eq!([0.5, 1.5, 4.0].map(nearest), [1.0, 1.5, 2.0]);
    }
}
