//! Ratios of two variants of one script on one card: most errors are in both.

use super::*;

/// Source, what is changed, card, the two cases, predicted and measured ratio, commit.
const RATIOS: &str = include_str!("ratios.csv");

const PREDICTED: Metric = Metric::counted("ratio_predicted", "predicted ratio", "x");
const MEASURED: Metric = Metric::counted("ratio_measured", "ratio on the real GPU", "x");
const PAIRS: Metric = Metric::counted("pairs", "pairs of variants", "1");
const MEDIAN: Metric = Metric::counted("median_ratio", "median error of the ratio", "1");
const RIGHT: Metric = Metric::counted("right", "share of pairs whose faster variant is predicted to be faster", "1");

/// A difference of less than this has no sign.
const LEAST: f64 = 0.03;

levels! { Changed as "change" "what is changed": Size "batch, or passes that are run", Layout "channels last instead of first" }
name! { To "the variant" }
name! { From "what it is compared with" }
cell! { Ratio { from: From, to: To, source: Source, card: CardName, change: Changed, way: Way } }
cell! { Kind { change: Changed, way: Way } }

#[derive(Debug, Clone, Deserialize)]
pub struct RatioRecord {
    source: String,
    change: String,
    card: String,
    from: String,
    to: String,
    predicted: f64,
    measured: f64,
    roofline: f64,
    pytorch: f64,
}

pub fn rows() -> Vec<RatioRecord> {
    super::rows(RATIOS)
}

fn cell(row: &RatioRecord, way: Way) -> Ratio {
    Ratio {
        source: Source(kept(&row.source)),
        card: CardName(kept(&row.card)),
        change: if row.change == "layout" { Changed::Layout } else { Changed::Size },
        from: From(kept(&row.from)),
        to: To(kept(&row.to)),
        way,
    }
}

impl RatioRecord {
    fn by(&self, way: Way) -> f64 {
        match way {
            Way::Rehearsal => self.predicted,
            Way::Roofline => self.roofline,
            Way::Pytorch => self.pytorch,
        }
    }

    /// Whether the faster one is predicted to be faster; none where they differ too little.
    fn is_right(&self, way: Way) -> Option<bool> {
        ((self.measured - 1.0).abs() > LEAST).then_some((self.measured > 1.0) == (self.by(way) > 1.0))
    }
}

fn step(cell: Ratio, _: &Bench) -> Result<Step> {
    let row = rows().into_iter().find(|row| self::cell(row, cell.way) == cell);
    let row = row.with_context(|| format!("ratios.csv has no row for {cell:?}"))?;
    Ok(Step::new(move |probe| {
        probe.emit(PREDICTED, row.by(cell.way));
        probe.emit(MEASURED, row.measured);
        Ok(())
    }))
}

pub fn grid() -> Grid<Ratio> {
    let rule =
        |by: f64, share| agreement(PREDICTED, MEASURED, 1.0 - by..=1.0 + by, share).of(|cell: &Ratio| cell.way == Way::Rehearsal);
    let grid = Grid::new("ratios", step)
        .metrics(&[PREDICTED, MEASURED])
        .claim(
            Claim::new(
                "real-times-ratios",
                "this lab",
                "half of the predicted ratios of two variants are within 4 % and nine in ten within 10 %",
            )
            .rule(rule(0.04, 0.5))
            .rule(rule(0.10, 0.9))
            .on(FILES),
        )
        .plot(
            against(PREDICTED, MEASURED)
                .named("ratios")
                .caption("Predicted ratios of two variants of one script against the measured ones")
                .of(|cell: &Ratio| cell.way == Way::Rehearsal)
                .by::<Changed>(),
        );
    of_all(
        grid,
        rows().iter().map(|row| Way::ALL.iter().map(|way| cell(row, *way)).collect::<Vec<_>>()).collect::<Vec<_>>().into_iter(),
    )
}

fn of_kind(cell: Kind, _: &Bench) -> Result<Step> {
    let mut own = rows();
    own.retain(|row| self::cell(row, cell.way).change == cell.change);
    ensure!(!own.is_empty(), "ratios.csv has no row for {cell:?}");
    Ok(Step::new(move |probe| {
        probe.emit(PAIRS, own.len());
        probe.emit(MEDIAN, sources::median(own.iter().map(|row| (row.by(cell.way) / row.measured - 1.0).abs())));
        let signs: Vec<bool> = own.iter().filter_map(|row| row.is_right(cell.way)).collect();
        probe.emit(RIGHT, signs.iter().filter(|right| **right).count() as f64 / signs.len().max(1) as f64);
        Ok(())
    }))
}

pub fn kinds() -> Grid<Kind> {
    let grid = Grid::new("kinds", of_kind)
        .metrics(&[PAIRS, MEDIAN, RIGHT])
        .claim(
            Claim::new(
                "real-times-signs",
                "this lab",
                "where two variants differ by more than 3 %, the faster one is predicted to be faster in 95 %",
            )
            .rule(value(RIGHT).of(|cell: &Kind| cell.way == Way::Rehearsal).holds(at_least(0.95)))
            .on(FILES),
        )
        .no_plots();
    of_all(grid, Changed::ALL.iter().map(|change| Kind::cross(*change, Way::ALL)))
}
