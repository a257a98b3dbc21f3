//! What a card costs an hour: a file of the user's, because prices are of a day and of one seller.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use sim::cards::Card;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Of one card, beside one step's predicted time.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Cost {
    /// Of 1,000 steps, with the ends of the time's band.
    pub of_1000_steps: f64,
    pub low: f64,
    pub high: f64,
    pub per_hour: f64,
    pub currency: String,
    /// When that was the price, `2026-11-25`, and whose.
    pub date: String,
    pub source: String,
}

const STEPS: f64 = 1000.0;
/// The first line of such a file.
pub const HEADER: &str = "card,per_hour,currency,date,source";

#[derive(Debug, Clone, PartialEq)]
struct Price {
    per_hour: f64,
    currency: String,
    date: String,
    source: String,
}

/// Of several sellers of a card the cheapest.
type Prices = HashMap<&'static str, Price>;

static PRICES: OnceLock<Prices> = OnceLock::new();

fn parse(text: &str) -> Result<Prices> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    ensure!(lines.next() == Some(HEADER), "its first line is not '{HEADER}'");
    let mut prices = Prices::new();
    for line in lines {
        let read = || -> Result<(&'static str, Price)> {
            let fields: Vec<&str> = line.splitn(5, ',').map(str::trim).collect();
            let [card, per_hour, currency, date, source] = fields.as_slice() else { anyhow::bail!("it has no five columns") };
            let card = card.parse::<Card>().map_err(anyhow::Error::msg)?.name.context("a size alone has no price: name a card")?;
            let per_hour = per_hour.parse::<f64>().ok().filter(|price| price.is_finite() && *price > 0.0);
            let per_hour = per_hour.context("its price is no number above 0")?;
            let is_date = date.len() == 10
                && date.bytes().enumerate().all(|(at, byte)| if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() });
            ensure!(is_date, "its date is not written like 2026-11-25");
            let text = |word: &str| crate::capture::plain::on_one_line(word);
            Ok((card, Price { per_hour, currency: text(currency), date: text(date), source: text(source) }))
        };
        let (card, price) = read().with_context(|| format!("'{line}'"))?;
        if let Some(other) = prices.values().find(|other| other.currency != price.currency) {
            anyhow::bail!("it has prices in {} and in {}: one currency can be compared", other.currency, price.currency);
        }
        if prices.get(card).is_none_or(|other| price.per_hour < other.per_hour) {
            prices.insert(card, price);
        }
    }
    ensure!(!prices.is_empty(), "it has no price");
    Ok(prices)
}

/// Predictions have the cost of a step by this file, for the rest of the program's life.
///
/// # Errors
/// The file cannot be read, or a line is none of such a file.
pub fn use_file(path: &Path) -> Result<()> {
    let prices = fs::read_to_string(path).with_context(|| format!("reading {}", path.display())).and_then(|text| {
        parse(&text).with_context(|| format!("{} is no file of prices (docs/time.md shows one)", path.display()))
    })?;
    let _ = PRICES.set(prices);
    Ok(())
}

/// What an hour of a card costs, and the currency.
pub fn an_hour(card: &Card) -> Option<(f64, &'static str)> {
    let price = PRICES.get()?.get(card.name?)?;
    Some((price.per_hour, &price.currency))
}

/// None where no price of the card is known.
pub fn cost(card: &Card, [step, low, high]: [f64; 3]) -> Option<Cost> {
    let Price { per_hour, currency, date, source } = PRICES.get()?.get(card.name?)?.clone();
    let of = |seconds: f64| STEPS * seconds / 3600.0 * per_hour;
    Some(Cost { of_1000_steps: of(step), low: of(low), high: of(high), per_hour, currency, date, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_price_of_a_card_counts_and_what_is_no_price_is_an_error() {
        let row = |rows: &str| parse(&format!("# Mine\n{HEADER}\n{rows}\n"));
        let prices = row("NVIDIA H100,3.5,USD,2026-11-01,a, b\nh100,2.5,USD,2026-11-02,c\nt4,0.35,USD,2026-11-02,c").unwrap();
        assert_eq!((prices.len(), prices["h100"].per_hour, prices["h100"].date.as_str()), (2, 2.5, "2026-11-02"));
        for (rows, why) in [
            ("h100,0,USD,2026-11-01,a", "no number above 0"),
            ("h100,2,USD,November,a", "written like"),
            ("h100,2,USD,2026-11-01", "five columns"),
            ("h900,2,USD,2026-11-01,a", "unknown GPU"),
            ("24GiB,2,USD,2026-11-01,a", "size alone"),
            ("h100,2,USD,2026-11-01,a\nt4,2,EUR,2026-11-01,a", "one currency"),
            ("", "no price"),
        ] {
            let error = format!("{:#}", row(rows).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
        assert!(parse("card,price\n").is_err());
    }
}
