//! How figures are written for people and read from them. The only place that does either.

use std::fmt;
use std::str::FromStr;

/// A number of bytes; displayed with a binary unit, as PyTorch's own messages do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const BINARY: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
const DECIMAL: [(&str, u64); 4] = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)];

impl Bytes {
    /// The size without rounding, in the largest binary unit that allows it and as it is read back: `24GiB`, `1000B`.
    pub fn exact(self) -> String {
        match BINARY.iter().find(|(_, size)| self.0 >= *size && self.0.is_multiple_of(*size)) {
            Some((unit, size)) => format!("{}{unit}", self.0 / size),
            None => format!("{}B", self.0),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match BINARY.iter().find(|(_, size)| self.0 >= *size) {
            Some((unit, size)) => f.pad(&format!("{} {unit}", significant(self.0 as f64 / *size as f64))),
            None => f.pad(&format!("{} B", self.0)),
        }
    }
}

impl FromStr for Bytes {
    type Err = String;

    /// `24GiB`, `1.5GB`, `512 MiB` or plain bytes.
    fn from_str(text: &str) -> Result<Self, String> {
        let explain = || format!("'{text}' is no size; write it like 24GiB, 512MiB, 1.5GB or as plain bytes");
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..split], trimmed[split..].trim());
        let scale = match unit {
            "" | "B" => 1,
            _ => BINARY
                .iter()
                .chain(&DECIMAL)
                .find(|(name, _)| name.eq_ignore_ascii_case(unit))
                .map(|(_, size)| *size)
                .ok_or_else(explain)?,
        };
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(scale).ok_or_else(|| format!("'{text}' is more bytes than 64 bits hold"))?,
            Err(_) => {
                let value = number.parse::<f64>().map_err(|_| explain())? * scale as f64;
                if !(0.0..u64::MAX as f64).contains(&value) {
                    return Err(format!("'{text}' is more bytes than 64 bits hold"));
                }
                value as u64
            }
        };
        Ok(Bytes(bytes))
    }
}

/// A duration in seconds; displayed from nanoseconds to hours.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let s = self.0;
        let text = match s.abs() {
            _ if !s.is_finite() => significant(s),
            a if a >= 3600.0 => format!("{:.0} h {:02.0} min", (s / 3600.0).floor(), (s % 3600.0) / 60.0),
            a if a >= 120.0 => format!("{:.0} min {:02.0} s", (s / 60.0).floor(), s % 60.0),
            a if a >= 1.0 => format!("{} s", significant(s)),
            a if a >= 1e-3 => format!("{} ms", significant(s * 1e3)),
            a if a >= 1e-6 => format!("{} µs", significant(s * 1e6)),
            0.0 => "0 s".to_string(),
            _ => format!("{} ns", significant(s * 1e9)),
        };
        f.pad(&text)
    }
}

/// What stands for a number that is none: an interval of two rounds may reach anywhere.
fn not_finite(x: f64) -> Option<String> {
    let word = if x.is_nan() {
        "unknown"
    } else if x == f64::INFINITY {
        "unbounded"
    } else {
        "unbounded below"
    };
    (!x.is_finite()).then(|| word.to_string())
}

/// A whole number with commas: `160,992`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// Three significant digits without an exponent, for numbers of ordinary size.
pub fn significant(x: f64) -> String {
    if let Some(word) = not_finite(x) {
        return word;
    }
    let digits = match x.abs() {
        a if a >= 100.0 => 0,
        a if a >= 10.0 => 1,
        _ => 2,
    };
    format!("{x:.digits$}")
}

/// A ratio to a baseline: `0.003x`, `0.26x`, `3.1x`, `12x`.
pub fn ratio(x: f64) -> String {
    match x.abs() {
        _ if !x.is_finite() => not_finite(x).unwrap_or_default(),
        0.0 => "0x".to_string(),
        a if a < 5e-4 => "0.000x".to_string(),
        a if a < 0.01 => format!("{}x", shortest(x)),
        a if a >= 1e5 => format!("{x:.0e}x"),
        a if a >= 9.95 => format!("{x:.1}x"),
        _ => format!("{x:.2}x"),
    }
}

/// A number without a unit: plain where it is of ordinary size, with an exponent where it is tiny or huge.
pub fn plain(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_string(),
        _ if !x.is_finite() => not_finite(x).unwrap_or_default(),
        a if !(1e-3..1e5).contains(&a) => format!("{x:.1e}"),
        _ if x.fract() == 0.0 => format!("{x:.0}"),
        a if a < 0.1 => format!("{x:.4}"),
        // No figure here has more than four digits to tell.
        a if a >= 1000.0 => format!("{x:.0}"),
        a if a >= 100.0 => format!("{x:.1}"),
        _ => format!("{x:.3}"),
    }
}

/// A value of a sample row for people, by the row's unit: `B`, `s`, `x` for a ratio, or none.
pub fn quantity(value: f64, unit: &str) -> String {
    match unit {
        _ if !value.is_finite() => significant(value),
        "B" => Bytes(value.max(0.0).round() as u64).to_string(),
        "s" => Seconds(value).to_string(),
        "x" => ratio(value),
        // Links are specified in powers of ten.
        "FLOP/s" if value >= 1e11 => format!("{} TFLOP/s", significant(value / 1e12)),
        "FLOP/s" => format!("{} GFLOP/s", significant(value / 1e9)),
        "B/s" if value >= 1e8 => format!("{} GB/s", plain(value / 1e9)),
        "B/s" => format!("{} MB/s", plain(value / 1e6)),
        "" | "1" => plain(value),
        // A share.
        "%" if value == 0.0 => "0 %".to_string(),
        "%" if value.abs() < 0.001 => format!("{:.1e} %", value * 100.0),
        "%" => format!("{} %", shortest((value * 1000.0).round() / 10.0)),
        other => format!("{} {other}", plain(value)),
    }
}

/// Two ratios as a change in percent.
pub fn change(low: f64, high: f64) -> String {
    let (low, high) = (percent(low), percent(high));
    match low == high {
        true => low,
        // Both fall: the smaller change first, as one says it.
        false if low.starts_with('−') && high.starts_with('−') => format!("{high} to {low}"),
        false => format!("{low} to {high}"),
    }
}

/// A ratio as a change: `−56 %`, `+8 %`, or `3.1x` where it is more than double.
pub fn percent(ratio: f64) -> String {
    if ratio >= 2.0 || ratio.is_nan() {
        return self::ratio(ratio);
    }
    let percent = ((ratio - 1.0) * 100.0).round();
    match percent {
        // Nearly everything is not everything.
        p if p == -100.0 && ratio > 0.0 => format!("−{} %", ((1.0 - ratio) * 1000.0).floor() / 10.0),
        p if p < 0.0 => format!("−{} %", -p),
        p if p > 0.0 => format!("+{p} %"),
        _ => "0 %".to_string(),
    }
}

/// Two texts as a range, or one where they are the same.
pub fn range(low: String, high: String) -> String {
    if low == high { low } else { format!("{low} to {high}") }
}

/// A count with its noun: `1 cell`, `3 cells`.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// A round value beside an axis, in the unit `B`, `s`, `1`, or `x` for ratios: as many digits as it needs.
pub fn tick(value: f64, unit: &str) -> String {
    match unit {
        _ if !value.is_finite() => significant(value),
        "x" => format!("{}x", shortest(value)),
        "B" => {
            // The largest unit that needs no rounding, so that the ticks of one axis do not look uneven.
            let exact = |size: f64| value >= size && (value / size * 100.0).fract().abs() < 1e-6;
            match BINARY.iter().find(|(_, size)| exact(*size as f64)) {
                Some((name, size)) => format!("{} {name}", shortest(value / *size as f64)),
                None => quantity(value, unit),
            }
        }
        "" | "1" if value != 0.0 && !(0.01..1e7).contains(&value.abs()) => format!("{value:.1e}").replace(".0e", "e"),
        "" | "1" => shortest(value),
        _ => match quantity(value, unit).split_once(' ') {
            Some((number, unit)) if number.contains('.') => {
                format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
            }
            _ => quantity(value, unit),
        },
    }
}

/// At most four decimals, without trailing zeros.
fn shortest(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Size of the largest binary unit that is not larger than a number of bytes.
pub fn binary_unit(bytes: f64) -> f64 {
    BINARY.iter().map(|(_, size)| *size as f64).find(|size| bytes >= *size).unwrap_or(1.0)
}

/// The time now, UTC, to the second: `2026-11-22T05:10:00Z`.
pub fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    moment(since.map_or(0, |since| since.as_secs()))
}

/// Seconds since 1970 as a date and time of the Gregorian calendar (days by Hinnant's `civil_from_days`).
fn moment(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, carried) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + carried;
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interval of two rounds may reach anywhere, and damaged files may say anything.
    #[test]
    fn no_figure_is_inf_or_nan() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for unit in ["B", "s", "x", "FLOP/s", "B/s", "1", "%", "images/s"] {
                for text in [quantity(value, unit), tick(value, unit), ratio(value), plain(value)] {
                    assert!(!text.contains("inf") && !text.contains("NaN"), "{value} {unit}: {text}");
                }
            }
        }
        assert_eq!((ratio(f64::INFINITY), ratio(3e200)), ("unbounded".to_string(), "3e200x".to_string()));
    }

    #[test]
    fn sizes_read_and_written() {
        for (text, bytes) in
            [("24GiB", 24 << 30), ("512 MiB", 512 << 20), ("1.5GB", 1_500_000_000), ("77", 77), ("0", 0), ("3kb", 3000)]
        {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "GiB", "-1", "12 parsecs", "1e99", "99999999999GiB", "1.2.3"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        for (bytes, text) in [(24 << 30, "24GiB"), (1 << 40, "1TiB"), (1536 << 20, "1536MiB"), (1025, "1025B"), (0, "0B")] {
            assert_eq!(Bytes(bytes).exact(), text);
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)));
        }
        assert_eq!(Bytes(149_529_600).to_string(), "143 MiB");
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(141 << 30).to_string(), "141 GiB");
    }

    #[test]
    fn ticks_have_the_digits_they_need() {
        let mib = f64::from(1 << 20);
        for (value, unit, text) in [
            (64.0 * mib, "B", "64 MiB"),
            (1536.0 * mib, "B", "1.5 GiB"),
            (1050.0 * mib, "B", "1050 MiB"),
            (0.01, "s", "10 ms"),
            (0.0025, "s", "2.5 ms"),
            (0.5, "x", "0.5x"),
            (1e-6, "1", "1e-6"),
            (0.01, "1", "0.01"),
            (128.0, "1", "128"),
            (0.0, "1", "0"),
        ] {
            assert_eq!(tick(value, unit), text);
        }
        assert_eq!(binary_unit(1000.0 * mib), mib);
    }

    #[test]
    fn durations_and_ratios() {
        assert_eq!(Seconds(0.0123).to_string(), "12.3 ms");
        assert_eq!(Seconds(3.3e-7).to_string(), "330 ns");
        assert_eq!(Seconds(125.0).to_string(), "2 min 05 s");
        assert_eq!(Seconds(7260.0).to_string(), "2 h 01 min");
        assert_eq!([0.0, 2e-5, 0.00312, 0.2611].map(ratio), ["0x", "0.000x", "0.0031x", "0.26x"]);
        assert_eq!(plain(3.2e-8), "3.2e-8");
        assert_eq!(plain(4.0), "4");
        assert_eq!((plain(1632.886), plain(661.946), plain(1.25)), ("1633".to_string(), "661.9".to_string(), "1.250".to_string()));
    }

    #[test]
    fn moments_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(moment(seconds), text);
        }
    }
}
