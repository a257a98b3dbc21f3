//! Cards that a simulated GPU can be: what PyTorch and its libraries ask of a GPU before they choose a kernel or a workspace.
//!
//! `cards.csv` holds them: memory in bytes as `cudaMemGetInfo` gives it (what is left when the driver has taken its part; rounded to MiB
//! where only PyTorch's out-of-memory messages tell it), compute capability, multiprocessors, resident threads of one, shared memory of a
//! block, of a block that asks for more and of a multiprocessor, L2 cache, and what a process's CUDA context takes: as others recorded it, of
//! an idle process where there is such a record. Kernels, which are loaded when they are first used, added up to 90 MiB where both are known.
//! Then how fast it is by NVIDIA's specification: bandwidth of its memory in GB/s, dense TFLOP/s in fp32, TF32 and half precision, bandwidth to
//! the host in GB/s in one direction.

use base::units::Bytes;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// How fast a card is by its specification, per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Bytes of its own memory, and of the host's.
    pub bandwidth: f64,
    pub host_bandwidth: f64,
    /// Floating-point operations, dense: fp32, TF32 (fp32's where there is none), fp16 and bf16 with sums in fp32.
    pub single: f64,
    pub tf32: f64,
    pub half: f64,
}

impl Speed {
    /// Of the cards of a GPU's kind the fastest, as `NVIDIA A100-PCIE-40GB` is an A100; none where there is no such card.
    pub fn of_gpu(name: &str) -> Option<Speed> {
        let kind =
            |title: &str| title.split([' ', '-']).find(|word| word.contains(|c: char| c.is_ascii_digit())).map(str::to_string);
        let alike = all().iter().filter(|card| kind(card.title) == kind(name));
        alike.filter_map(|card| card.speed).max_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth))
    }
}

/// A card, or a size alone, which stands for a card of compute capability 9.0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Card {
    /// As on the command line; none where only a size was given.
    pub name: Option<&'static str>,
    /// As `torch.cuda.get_device_name` gives it.
    pub title: &'static str,
    pub memory: u64,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    pub multiprocessors: u32,
    pub threads_per_multiprocessor: u32,
    pub shared_per_block: u64,
    pub shared_opt_in: u64,
    pub shared_per_multiprocessor: u64,
    pub l2: u64,
    /// Bytes of a process's CUDA context, as others recorded it on this card or one like it; assumed here. `context_source` says where.
    pub context: u64,
    pub context_source: &'static str,
    /// None of a size alone, and of a card that lacks one of the figures.
    pub speed: Option<Speed>,
    /// Those that it lacks, as `cards.csv` calls them.
    pub no_figures_of: &'static [&'static str],
}

/// What makes a process's simulated runtime this card: its line of `cards.csv` up to the L2 cache, with the size for its memory.
pub const ENVIRONMENT: &str = "VRAMLAB_DRY_CARD";

/// The largest card that can be asked for.
const LARGEST: u64 = 1 << 40;

/// The card whose other figures a size alone has.
const USUAL: &str = "h200";

/// Every card, in the order of the file.
pub fn all() -> &'static [Card] {
    static CARDS: OnceLock<Vec<Card>> = OnceLock::new();
    CARDS.get_or_init(|| include_str!("cards.csv").lines().skip(1).filter_map(read).collect())
}

/// A line of the file; the tests read all of them.
fn read(line: &'static str) -> Option<Card> {
    let mut fields = line.split(',');
    let name = fields.next();
    let title = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    let memory = number()?;
    let (major, minor) = fields.next()?.split_once('.')?;
    let mut number = || fields.next()?.parse().ok();
    Some(Card {
        name,
        title,
        memory,
        capability: (major.parse().ok()?, minor.parse().ok()?),
        multiprocessors: u32::try_from(number()?).ok()?,
        threads_per_multiprocessor: u32::try_from(number()?).ok()?,
        shared_per_block: number()?,
        shared_opt_in: number()?,
        shared_per_multiprocessor: number()?,
        l2: number()?,
        context: number()?,
        context_source: fields.next()?,
        speed: None,
        no_figures_of: &[],
    })
    .map(|card| card.with_speed(fields))
}

/// Columns of a card's speed, and their units per second.
const FIGURES: [(&str, f64); 5] = [("bandwidth", 1e9), ("single", 1e12), ("tf32", 1e12), ("half", 1e12), ("host_bandwidth", 1e9)];

impl Card {
    /// A card of compute capability 9.0 with so many bytes.
    pub fn of_size(memory: u64) -> Card {
        let usual = all().iter().find(|card| card.name == Some(USUAL)).unwrap_or(&all()[0]);
        let (context, context_source) = (512 << 20, "about what the largest cards' take, rounded");
        Card { name: None, title: "vramlab simulated GPU", memory, context, context_source, speed: None, ..*usual }
    }

    /// The rest of a line.
    fn with_speed(self, mut fields: std::str::Split<'static, char>) -> Card {
        let figures =
            FIGURES.map(|(_, unit)| Some(fields.next()?.trim().parse::<f64>().ok().filter(|figure| *figure > 0.0)? * unit));
        let lacking = FIGURES.iter().zip(figures).filter(|(_, figure)| figure.is_none()).map(|((name, _), _)| *name);
        let speed = match figures {
            [Some(bandwidth), Some(single), Some(tf32), Some(half), Some(host_bandwidth)] => {
                Some(Speed { bandwidth, host_bandwidth, single, tf32, half })
            }
            _ => None,
        };
        Card { speed, no_figures_of: lacking.collect::<Vec<_>>().leak(), ..self }
    }

    /// The card with another size of memory.
    pub fn with_memory(self, memory: u64) -> Card {
        Card { memory, ..self }
    }

    /// Of the cards that PyTorch gives the same kernels, by their generation, the one with the least memory that has so many bytes beside so
    /// many CUDA contexts.
    pub fn smallest_with(&self, bytes: u64, contexts: u64) -> Option<Card> {
        // From Ampere on there are bf16 and flash attention.
        let oldest = self.capability.0.min(8);
        let has = |card: &&Card| card.capability.0 >= oldest && card.memory >= contexts * card.context + bytes;
        all().iter().filter(has).min_by_key(|card| card.memory).copied()
    }

    /// Value of [`ENVIRONMENT`].
    pub fn environment(&self) -> String {
        let Card { title, memory, capability: (major, minor), multiprocessors, threads_per_multiprocessor, .. } = self;
        let Card { shared_per_block, shared_opt_in, shared_per_multiprocessor, l2, .. } = self;
        format!(
            "{},{title},{memory},{major}.{minor},{multiprocessors},{threads_per_multiprocessor},{shared_per_block},{shared_opt_in},\
             {shared_per_multiprocessor},{l2}",
            self.name.unwrap_or_default()
        )
    }

    /// What PyTorch is told of the card, for a record of a dry run.
    pub fn assumption(&self) -> String {
        let (major, minor) = self.capability;
        format!("compute capability {major}.{minor}, {} multiprocessors", self.multiprocessors)
    }

    fn find(text: &str) -> Option<Card> {
        // A size has a digit in front and a unit behind; no card's name reads as one.
        all().iter().copied().find(|card| card.name.is_some_and(|name| name.eq_ignore_ascii_case(text.trim())))
    }
}

/// A size alone.
impl From<u64> for Card {
    fn from(memory: u64) -> Card {
        Card::of_size(memory)
    }
}

impl FromStr for Card {
    type Err = String;

    /// A card's name, or a size: `rtx-4090`, `24GiB`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(card) = Card::find(text) {
            return Ok(card);
        }
        match text.parse::<Bytes>() {
            Ok(Bytes(0)) => Err(format!("'{text}' is a card without memory; write a size like 24GiB, or a card's name")),
            Ok(Bytes(bytes)) if bytes > LARGEST => Err(format!("'{text}' is larger than any card; 1TiB is the most")),
            Ok(Bytes(bytes)) => Ok(Card::of_size(bytes)),
            Err(e) if text.trim_start().starts_with(|c: char| c.is_ascii_digit()) => Err(e),
            Err(_) => {
                let names: Vec<&str> = all().iter().filter_map(|card| card.name).collect();
                Err(format!("'{text}' is no card and no size; there are {}; a size alone, write it like 24GiB", names.join(", ")))
            }
        }
    }
}

/// As it is read back.
impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.name {
            Some(name) => f.pad(name),
            None => f.pad(&Bytes(self.memory).exact()),
        }
    }
}

impl Serialize for Card {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_as_fast_as_the_fastest_of_its_kind() {
        let bandwidth = |name| Speed::of_gpu(name).map(|speed| speed.bandwidth);
        assert_eq!(["NVIDIA A100-PCIE-40GB", "NVIDIA H200", "unknown GPU"].map(bandwidth), [Some(2039e9), Some(4800e9), None]);
    }

    #[test]
    fn each_line_of_the_file_is_a_card_that_can_be() {
        assert_eq!(all().len(), include_str!("cards.csv").lines().count() - 1);
        for card in all() {
            let name = card.name.unwrap();
            assert_eq!(name.parse(), Ok(*card));
            assert_eq!(card.to_string(), name);
            assert!(name.parse::<Bytes>().is_err(), "{name} reads as a size");
            assert!((8 << 30..LARGEST).contains(&card.memory) && (40..200).contains(&card.multiprocessors), "{name}");
            assert!([1024, 1536, 2048].contains(&card.threads_per_multiprocessor), "{name}");
            assert!(card.shared_per_block < card.shared_opt_in && card.shared_opt_in <= card.shared_per_multiprocessor, "{name}");
            assert!(card.l2 >= 4 << 20 && card.context >= 100 << 20 && !card.context_source.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_size_alone_is_a_card_of_capability_9() {
        let card: Card = "24GiB".parse().unwrap();
        assert_eq!((card.name, card.memory, card.capability, card.multiprocessors), (None, 24 << 30, (9, 0), 132));
        assert_eq!(card.speed, None);
        // A line that ends before TF32, and one with nothing for the bandwidth.
        let lacking = |rest: &'static str| all()[0].with_speed(rest.split(',')).no_figures_of;
        assert_eq!(lacking("936,35.6"), ["tf32", "half", "host_bandwidth"]);
        assert_eq!(lacking(",35.6,35.6,71,12.5"), ["bandwidth"]);
        assert!(lacking("936,35.6,35.6,71,12.5").is_empty() && all().iter().all(|card| card.speed.is_some()));
        assert_eq!(card.to_string(), "24GiB");
        assert_eq!(Card::from(24 << 30), card);
        assert_eq!("RTX-4090".parse::<Card>().unwrap().to_string(), "rtx-4090");
    }

    #[test]
    fn an_unknown_card_is_told_which_there_are() {
        for text in ["rtx-9999", "", "lots", "-1"] {
            let error = text.parse::<Card>().unwrap_err();
            assert!(error.contains("rtx-3090") && error.contains("gh200") && error.contains("24GiB"), "{error}");
        }
        assert!("24 parsecs".parse::<Card>().unwrap_err().contains("write it like 24GiB"));
        assert!("0".parse::<Card>().unwrap_err().contains("without memory"));
        assert!("9999TiB".parse::<Card>().unwrap_err().contains("1TiB is the most"));
    }
}
