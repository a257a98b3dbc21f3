//! What was fitted of a card's kernels, and whose records it is: `constants.csv`, which `records/times/fit.py` writes, and a file of
//! `vramlab calibrate` before it.

use anyhow::{Context, Result, ensure};
use sim::cards::{self, Card, Speed};
use std::collections::HashMap;
use std::sync::OnceLock;

/// Whose records a constant is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Grade {
    /// The card's own, or those of another with the same chip.
    Chip,
    /// Those of a card of the same architecture.
    Architecture,
    /// The median over the cards that have records of the class.
    Any,
    /// No card has any: those of a class that is near.
    None,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Constants {
    pub fixed: f64,
    pub compute: f64,
    pub memory: f64,
    rows: u32,
}

/// By card and class. The card `any` has the median of all.
#[derive(Debug, Default)]
pub struct ConstantsTable(HashMap<(String, String), Constants>);

const ANY: &str = "any";
/// The first line of such a file.
const HEADER: &str = "card,class,fixed_us,compute,memory,rows,median_error,fitted_on";

/// Classes of convolutions: by precision (half, TF32, single), and forward, gradient of the input, gradient of the weights.
macro_rules! of_convolutions {
    ($kind:literal) => {
        [
            [concat!($kind, "_half_forward"), concat!($kind, "_half_data"), concat!($kind, "_half_weights")],
            [concat!($kind, "_tf32_forward"), concat!($kind, "_tf32_data"), concat!($kind, "_tf32_weights")],
            [concat!($kind, "_single_forward"), concat!($kind, "_single_data"), concat!($kind, "_single_weights")],
        ]
    };
}
pub const CONVOLUTION: [[&str; 3]; 3] = of_convolutions!("convolution");
pub const GROUPED: [[&str; 3]; 3] = of_convolutions!("grouped");
pub const DEPTHWISE: [[&str; 3]; 3] = of_convolutions!("depthwise");
const OTHERS: &str = "matmul_half matmul_single volume_half volume_tf32 volume_single layout attention attention_narrow attention_backward pointwise compiled \
                      reduction reduction_backward";

/// Classes of kernels that have constants on each card.
pub fn classes() -> impl Iterator<Item = &'static str> {
    [CONVOLUTION, GROUPED, DEPTHWISE].into_iter().flatten().flatten().chain(OTHERS.split(' '))
}

static OWN_FILE: OnceLock<ConstantsTable> = OnceLock::new();

impl ConstantsTable {
    fn parse(text: &str) -> Result<ConstantsTable> {
        ensure!(text.lines().next() == Some(HEADER), "its first line is not '{HEADER}'");
        let mut table = ConstantsTable::default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split(',').collect();
            let number = |at: usize| {
                let value = fields.get(at).and_then(|field| field.parse::<f64>().ok()).filter(|value| *value > 0.0);
                value.with_context(|| format!("'{line}' has no number above 0 in column {}", at + 1))
            };
            let constants = Constants {
                fixed: number(2)? * 1e-6,
                compute: number(3)?,
                memory: number(4)?,
                rows: fields.get(5).and_then(|rows| rows.parse().ok()).unwrap_or(0),
            };
            table.0.insert((fields[0].to_string(), fields[1].to_string()), constants);
        }
        Ok(table)
    }

    fn get(&self, card: &str, class: &str) -> Option<&Constants> {
        self.0.get(&(card.to_string(), class.to_string()))
    }
}

/// Those of a text come before those that the program has. The first one stays: a program reads its flags once.
pub(super) fn use_text(text: &str) -> Result<()> {
    let _ = OWN_FILE.set(ConstantsTable::parse(text)?);
    Ok(())
}

static LEFT_OUT: OnceLock<String> = OnceLock::new();

/// Records of a card and of others with its chip count as if nobody had them, for the rest of the program's life: what a card without records has to
/// expect. The medians over all chips stay.
pub fn leave_out(card: &str) {
    let _ = LEFT_OUT.set(card.to_string());
}

fn is_left_out(of: &str) -> bool {
    LEFT_OUT.get().is_some_and(|card| card == of || chip_of(card).is_some() && chip_of(card) == chip_of(of))
}

static LAUNCH_SECONDS: OnceLock<f64> = OnceLock::new();

/// The host takes so long for each launch, in seconds, for the rest of the program's life.
pub fn use_launch_seconds(seconds: f64) {
    let _ = LAUNCH_SECONDS.set(seconds);
}

/// What the host takes to launch a kernel, where a flag says so.
pub fn launch_seconds() -> Option<f64> {
    LAUNCH_SECONDS.get().copied()
}

fn shipped() -> &'static ConstantsTable {
    static TABLE: OnceLock<ConstantsTable> = OnceLock::new();
    TABLE.get_or_init(|| ConstantsTable::parse(include_str!("constants.csv")).expect("the tests read it"))
}

/// By card, also those that only records have.
fn chips() -> &'static [(&'static str, &'static str)] {
    static CHIPS: OnceLock<Vec<(&str, &str)>> = OnceLock::new();
    CHIPS.get_or_init(|| include_str!("chips.csv").lines().skip(1).filter_map(|line| line.split_once(',')).collect())
}

fn chip_of(card: &str) -> Option<&'static str> {
    chips().iter().find(|(name, _)| *name == card).map(|(_, chip)| *chip)
}

/// Cards, and those that only records have (`elsewhere.csv`), which have no more than their speed.
fn specifications() -> &'static [Card] {
    static ALL: OnceLock<Vec<Card>> = OnceLock::new();
    let of_line = |line: &'static str| {
        let fields: Vec<&'static str> = line.split(',').collect();
        let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
        let (major, minor) = fields.get(7)?.split_once('.')?;
        let [bandwidth, single, tf32, half] = [number(1)? * 1e9, number(2)? * 1e12, number(3)? * 1e12, number(4)? * 1e12];
        let speed = Some(Speed { bandwidth, single, tf32, half, host_bandwidth: 0.0 });
        let (capability, multiprocessors) = ((major.parse().ok()?, minor.parse().ok()?), fields.get(5)?.parse().ok()?);
        Some(Card { name: Some(fields[0]), capability, multiprocessors, speed, ..Card::of_size(0) })
    };
    let of_records = || include_str!("elsewhere.csv").lines().skip(1).filter_map(of_line);
    ALL.get_or_init(|| cards::all().iter().filter(|card| card.speed.is_some()).copied().chain(of_records()).collect())
}

/// FLOP/s of the tensor cores that a class runs on, of a multiprocessor and for each in fp32; none of others.
fn peak(card: &Card, class: &str) -> Option<(f64, f64)> {
    let speed = card.speed?;
    let peak = match class {
        // A channel alone has nothing for tensor cores.
        _ if class.starts_with("depthwise") => return None,
        _ if class.contains("_tf32") => speed.tf32,
        _ if class.contains("_half") || class.starts_with("attention") => speed.half,
        _ => return None,
    };
    Some((peak / f64::from(card.multiprocessors), peak / speed.single))
}

/// GeForce's tensor cores run at half rate where sums are in fp32, and reach nearly all of that; those of professional cards run at full rate into a limit
/// of power. Whether both are one kind.
fn is_alike(card: &Card, other: &Card, class: &str) -> bool {
    let ratios = peak(card, class).zip(peak(other, class));
    ratios.is_none_or(|((_, own), (_, others))| (own / others).ln().abs() < 1.5_f64.ln())
}

/// Their power is too little for their arithmetic in fp32 (an A10 reaches 0.43 of its peak and an A10G of the same chip 0.66): of other cards that
/// says nothing.
const LITTLE_POWER: [&str; 5] = ["a10", "l4", "l40", "l40s", "t4"];

/// A card's constants of a class, from whose records they are, and the card whose they are where it is another.
pub fn of(card: &Card, class: &'static str) -> (Constants, Grade, Option<String>) {
    let name = card.name.unwrap_or_default();
    if let Some(own) = OWN_FILE.get().and_then(|table| table.get(name, class)) {
        return (own.clone(), Grade::Chip, None);
    }
    // Of one read and one written tensor, whatever is summed in between: kernels that are all reductions to Inductor are as fast as others.
    if class == "compiled" {
        return of(card, "pointwise");
    }
    let tables = OWN_FILE.get().into_iter().chain([shipped()]);
    let kin = |is_kin: &dyn Fn(&Card) -> bool| -> Vec<(&Card, &Constants)> {
        let is_little = |of: &str| class.contains("_single") && LITTLE_POWER.contains(&of);
        let rows = tables.clone().flat_map(|table| &table.0).filter(|((of, kind), _)| kind == class && !is_left_out(of));
        let known = |of: &str| specifications().iter().find(|one| one.name == Some(of));
        let rows = rows.filter_map(|((of, _), row)| Some((known(of)?, row)));
        rows.filter(|(of, _)| of.name.is_some_and(is_little) == is_little(name) && is_kin(of)).collect()
    };
    let is_of_chip = |of: &Card| chip_of(name).is_some() && of.name.and_then(chip_of) == chip_of(name);
    // From Hopper on a generation's chips are near enough.
    let generation = |(major, minor): (u32, u32)| if major < 9 { (major, minor) } else { (major, 0) };
    let is_of_architecture = |of: &Card| generation(of.capability) == generation(card.capability);
    let is_alike = |of: &Card| is_alike(card, of, class);
    // Of several the one with the most records.
    let most = |rows: Vec<(&Card, &Constants)>| {
        let row = rows.into_iter().max_by(|a, b| a.1.rows.cmp(&b.1.rows).then_with(|| b.0.name.cmp(&a.0.name)));
        row.map(|(of, row)| (row.clone(), of.name.unwrap_or_default().to_string()))
    };
    // A few records of its own are less than more of its chip.
    let of_chip = most(kin(&|of| of.name != card.name && is_of_chip(of) && is_alike(of)));
    let own_row = shipped().get(name, class).filter(|_| !is_left_out(name));
    let own_row = own_row.filter(|own| own.rows >= 30 || of_chip.as_ref().is_none_or(|(row, _)| row.rows <= own.rows));
    match (own_row, of_chip) {
        (Some(own), _) => return (own.clone(), Grade::Chip, None),
        (None, Some((row, of))) => return (row, Grade::Chip, Some(of)),
        (None, None) => {}
    }
    if let Some((row, of)) = most(kin(&|of| is_of_architecture(of) && is_alike(of))) {
        return (row, Grade::Architecture, Some(of));
    }
    // Of the other kind a multiprocessor's rate says more than its share of a peak: the highest, as the others' power is less.
    if let Some((own, _)) = peak(card, class) {
        let rate = |(of, row): &(&Card, &Constants)| row.compute * peak(of, class).map_or(0.0, |(rate, _)| rate);
        if let Some(row) = kin(&is_of_architecture).into_iter().max_by(|a, b| rate(a).total_cmp(&rate(b))) {
            let compute = (rate(&row) / own).min(highest(class));
            let grade = if is_of_chip(row.0) { Grade::Chip } else { Grade::Architecture };
            return (Constants { compute, ..row.1.clone() }, grade, row.0.name.map(str::to_string));
        }
    }
    match shipped().get(ANY, class) {
        Some(any) => (beside_own(card, class, any), Grade::Any, None),
        None => {
            let (near, _, _) =
                near(class).map_or_else(|| panic!("constants.csv has no class {class}"), |near| self::of(card, near));
            (near, Grade::None, None)
        }
    }
}

/// The highest share of a peak that a card reaches. Attention is of products.
fn highest(class: &str) -> f64 {
    let class = if class.starts_with("attention") { "matmul_half" } else { class };
    shipped().0.iter().filter(|((_, kind), _)| kind == class).map(|(_, row)| row.compute).fold(0.0, f64::max)
}

/// Kernels that only other cards have records of are as far from those as what the card has is from theirs: a convolution's gradient as its own forward
/// pass; without that, in half precision, as its products, which the same tensor cores compute, and so is attention.
fn beside_own(card: &Card, class: &str, any: &Constants) -> Constants {
    let beside = |other| match (of(card, other), shipped().get(ANY, other)) {
        ((own, Grade::Chip | Grade::Architecture, _), Some(usual)) => {
            Some((own.fixed, own.compute / usual.compute, own.memory / usual.memory))
        }
        _ => None,
    };
    let kind = class.strip_suffix("_data").or_else(|| class.strip_suffix("_weights"));
    let forward = kind.and_then(|kind| classes().find(|one| one.strip_suffix("_forward") == Some(kind)));
    if let Some((fixed, compute, memory)) = forward.and_then(beside) {
        return Constants { fixed, compute: any.compute * compute, memory: any.memory * memory, rows: 0 };
    }
    let is_product = class.starts_with("convolution_half") || class.starts_with("attention");
    let products = if is_product { beside("matmul_half") } else { None };
    let compute = products.map_or(any.compute, |(_, compute, _)| (any.compute * compute).min(highest(class).max(any.compute)));
    Constants { compute, ..any.clone() }
}

/// The class whose kernels are most like those of one without any record.
fn near(class: &str) -> Option<&'static str> {
    // What a kind of convolutions lacks in one precision it may have in another, and else it is as plain ones are.
    let of_kind = match class.split('_').collect::<Vec<_>>().as_slice() {
        ["convolution", "tf32", part] => format!("convolution_half_{part}"),
        [kind @ ("grouped" | "depthwise"), "half", part] => format!("{kind}_tf32_{part}"),
        [kind @ ("grouped" | "depthwise"), "tf32", part] => format!("{kind}_single_{part}"),
        ["depthwise", "single", "data" | "weights"] => "depthwise_single_forward".to_string(),
        ["grouped" | "depthwise", "single", part] => format!("convolution_single_{part}"),
        ["volume", "half"] => "volume_tf32".to_string(),
        ["volume", "tf32"] => "convolution_half_forward".to_string(),
        ["volume", "single"] => "convolution_single_forward".to_string(),
        ["attention", "backward" | "narrow"] => "attention".to_string(),
        ["reduction", "backward"] => "reduction".to_string(),
        ["layout"] => "pointwise".to_string(),
        ["attention"] => "matmul_half".to_string(),
        _ => return None,
    };
    classes().find(|class| *class == of_kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_card_has_its_chip() {
        let names = cards::all().iter().filter_map(|card| card.name);
        let without: Vec<&str> = names.filter(|name| chip_of(name).is_none()).collect();
        assert!(without.is_empty(), "src/rehearse/src/answer/time/chips.csv names no chip of {without:?}");
    }

    #[test]
    fn constants_are_those_of_the_nearest_card_that_has_records() {
        let of = |card: &str, class| of(&card.parse().unwrap(), class);
        assert_eq!(of("rtx-4090", "matmul_half").1, Grade::Chip);
        // An RTX PRO 6000 has the 5090's chip, and the 4090 another architecture.
        let (_, grade, whose) = of("rtx-5090", "matmul_half");
        assert_eq!((grade, whose.as_deref()), (Grade::Chip, Some("rtx-pro-6000")));
        let (_, grade, whose) = of("l4", "attention");
        assert_eq!((grade, whose.as_deref()), (Grade::Architecture, Some("l40s")));
        assert_eq!(of("rtx-4090", "attention").1, Grade::Chip);
        assert_eq!(of("t4", "attention").1, Grade::Any);
        // An A6000 has the 3080 Ti's chip and twice its rate on tensor cores, so that its share of the peak is another.
        assert_eq!(of("rtx-3080-ti", "matmul_half").2.as_deref(), Some("rtx-3090"));
        assert_eq!(of("rtx-4080-super", "matmul_half").2.as_deref(), Some("rtx-4090"));
        assert_eq!(of("l4", "matmul_half").2.as_deref(), Some("l40s"));
        // Of the other kind the rate of a multiprocessor counts, as far as the tensor cores go.
        let (attention, of_l40s) = (of("rtx-4090", "attention").0.compute, of("l40s", "attention").0.compute);
        assert!(attention > 1.5 * of_l40s && attention < 1.0, "{attention} {of_l40s}");
        // Its products reach more of the peak than those of other cards.
        let usual = shipped().get(ANY, "convolution_half_forward").unwrap().compute;
        assert!(of("rtx-4090", "convolution_half_forward").0.compute > 1.2 * usual);
    }

    #[test]
    fn each_row_is_plausible_and_each_card_has_each_class() {
        for (card, class) in cards::all().iter().flat_map(|card| classes().map(move |class| (card, class))) {
            assert!(of(card, class).0.compute > 0.0, "{card} {class}");
        }
        assert_eq!(shipped().0.len(), include_str!("constants.csv").lines().count() - 1);
        for ((card, class), row) in &shipped().0 {
            assert!((5e-7..4e-5).contains(&row.fixed), "{card} {class}");
            assert!((0.02..1.5).contains(&row.compute) && (0.05..1.5).contains(&row.memory), "{card} {class}");
        }
        for text in ["card,class\n", &format!("{HEADER}\nh100,matmul_half,1,x,1\n"), &format!("{HEADER}\nh100,matmul_half,0,1,1\n")]
        {
            assert!(ConstantsTable::parse(text).is_err());
        }
    }
}
