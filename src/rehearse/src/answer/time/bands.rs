//! How far predictions may be off, by records that were not fitted.

use serde::Serialize;

/// Share of the predictions whose real value the interval is to hold.
pub(super) const COVERAGE: f64 = 0.8;

/// A class of kernels without a record, its share of the device's time, and how many times as long it may take as predicted.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Unrecorded {
    pub kernels: &'static str,
    pub share: f64,
    pub low: f64,
    pub high: f64,
}

/// What the real value was, at least and at most, as a part of the predicted one, in 80 of 100 records of `intervals.csv`; wider by what a class
/// without records may be off, by its share.
/// `host` is the row of a step that its host bounds. What was timed on the card is as far off as variants of one script are from each other (`ratio`;
/// assumed), by its share.
pub(super) fn interval(made_of: &str, records: &str, host: Option<&str>, unrecorded: &[Unrecorded], timed: f64) -> (f64, f64) {
    if let Some(host) = host {
        return band(host);
    }
    let (low, high) = band(&format!("{records} {made_of}"));
    let more = |end: fn(&Unrecorded) -> f64| unrecorded.iter().map(|one| one.share * end(one).ln().abs()).sum::<f64>();
    let (least, most) = band("ratio");
    let end =
        |own: f64, more: f64, of_timed: f64| (1.0 - timed) * (own.ln().powi(2) + more * more).sqrt() + timed * of_timed.ln().abs();
    ((-end(low, more(|one| one.low), least)).exp(), end(high, more(|one| one.high), most).exp())
}

/// Of a class of kernels, by the letters before its first `_`; that of a card without records where it has none of its own.
pub(super) fn band_of_class(class: &str) -> (f64, f64) {
    let of_class = band(class.split('_').next().unwrap_or_default());
    if of_class.0 > 0.0 { of_class } else { band("specification passes") }
}

/// A row of `intervals.csv`.
pub(super) fn band(cell: &str) -> (f64, f64) {
    let row = include_str!("intervals.csv").lines().map(|line| line.split(',').collect::<Vec<_>>()).find(|row| row[0] == cell);
    // The tests read the file.
    row.and_then(|row| Some((row.get(1)?.parse().ok()?, row.get(2)?.parse().ok()?))).unwrap_or((0.0, f64::INFINITY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_interval_holds_what_was_predicted_or_says_by_how_much_it_is_off() {
        let wide = [Unrecorded { kernels: "grouped convolutions", share: 0.4, low: 0.4, high: 5.0 }];
        let hosts = [("chip", Some("host")), ("chip", Some("other-host"))];
        for (records, host) in [("chip", None), ("architecture", None), ("specification", None)].into_iter().chain(hosts) {
            let (low, high) = interval("products", records, host, &[], 0.0);
            let (lower, higher) = interval("products", records, host, &wide, 0.0);
            let (nearer, _) = interval("products", records, host, &wide, 0.9);
            assert_eq!(nearer > lower, host.is_none());
            assert_eq!((lower < low, higher > high), (host.is_none(), host.is_none()));
            assert!(0.1 < low && low < high && high < 10.0, "{low} to {high}");
        }
        for cell in ["ratio", "layout"] {
            let (low, high) = band(cell);
            assert!(0.1 < low && low < 1.0 && 1.0 < high && high < 10.0, "{low} to {high}");
        }
    }
}
