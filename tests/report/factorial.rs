//! A full factorial design of two techniques on a machine whose fastest rate is known.

use super::fixture;
use vramlab::protocol::*;
use vramlab::results::{Manifest, PassRecord};

const EVERY_PROFILE: &[Profile] = &[Profile::Smoke, Profile::Quick, Profile::Full];

const fn protocol(name: &'static str, grids: &'static [Grid], metrics: &'static [Metric], plots: &'static [Plot]) -> Protocol {
    Protocol {
        name,
        title: name,
        question: "",
        hypothesis: "",
        factors: &[
            Factor { name: "with", meaning: "techniques", levels: &[] },
            Factor { name: DTYPE, meaning: "type", levels: &[] },
        ],
        grids,
        metrics,
        checks: &[Check { when: "", expect: Relation::Equal { tolerance: 0.0 } }],
        claims: &[],
        published: &[],
        plots,
        threats: &[],
    }
}

pub const DESIGN: Protocol = protocol(
    "design",
    &[Grid {
        name: "factorial",
        profiles: EVERY_PROFILE,
        studied: "with",
        axes: &[axis("with", &["none", "a", "b", "a+b"])],
        passes: &[Pass::Time],
        only_on: &[],
    }],
    &[TIME],
    &[Plot { name: "effects", caption: "Effects", of: "", metric: TIME.name, kind: PlotKind::Effects { factors: &["with"] } }],
);

pub const RATES: Protocol = protocol(
    "rates",
    &[Grid {
        name: "rates",
        profiles: EVERY_PROFILE,
        studied: DTYPE,
        axes: &[axis(DTYPE, &["fp32", "bf16"])],
        passes: &[Pass::Time],
        only_on: &[],
    }],
    &[TIME, COMPUTED],
    &[],
);

/// 8, 4, 2 and 1.5 seconds for 1e9 operations: a halves alone and leaves three quarters beside b. One of the machine's two types is faster, and
/// not the one that counts.
pub fn records(manifest: &Manifest) -> Vec<PassRecord> {
    let figures = |text: &str| match text {
        "with=none" => ("least_flops", 1e9, 8.0),
        "with=a" => ("least_flops", 1e9, 4.0),
        "with=b" => ("least_flops", 1e9, 2.0),
        "with=a+b" => ("least_flops", 1e9, 1.5),
        "dtype=fp32" => ("computed", 1e9, 1.0),
        _ => ("computed", 5e9, 1.0),
    };
    let cells = manifest.planned.iter().flat_map(|text| (1..=5).map(move |round| (text, round)));
    let record = |(text, round): (&String, u32)| {
        let (metric, value, seconds) = figures(text);
        let drift = 1.0 + 0.1 * f64::from(round);
        let samples = vec![("time", "s", seconds * drift), (metric, "1", value)];
        fixture::record(&Cell::parse(text).unwrap(), Pass::Time, round, samples)
    };
    cells.map(record).collect()
}
