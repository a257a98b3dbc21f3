//! A full factorial design of two techniques on a machine whose fastest rate is known.

use super::fixture;
use record::protocol::*;
use record::results::{Manifest, PassRecord};

const EVERY_PROFILE: &[Profile] = &[Profile::Smoke, Profile::Quick, Profile::Full];

fn protocol(name: &str, grid: PlainGrid, metrics: &[Metric]) -> PlainProtocol {
    let factor = |name: &str, meaning: &str| Factor { name: name.into(), meaning: meaning.into(), levels: vec![] };
    PlainProtocol {
        name: name.into(),
        revision: 1,
        title: name.into(),
        factors: vec![factor("with", "techniques"), factor(DTYPE, "type")],
        grids: vec![grid],
        metrics: metrics.to_vec(),
        ..PlainProtocol::default()
    }
}

fn grid(name: &str, studied: &str, levels: &[&str]) -> PlainGrid {
    let (profiles, passes) = (EVERY_PROFILE.to_vec(), vec![Pass::Time]);
    PlainGrid { name: name.into(), profiles, studied: studied.into(), axes: vec![axis(studied, levels)], passes, only_on: vec![] }
}

pub fn design() -> PlainProtocol {
    protocol("design", grid("factorial", "with", &["none", "a", "b", "a+b"]), &[TIME])
}

pub fn rates() -> PlainProtocol {
    protocol("rates", grid("rates", DTYPE, &["fp32", "bf16"]), &[TIME, COMPUTED])
}

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
        fixture::record(&PlainCell::parse(text).unwrap(), Pass::Time, round, samples)
    };
    cells.map(record).collect()
}
