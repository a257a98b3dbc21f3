//! What `nvidia-smi` says inside a rehearsal: the simulated cards, and the memory that the rehearsal's processes have of them.

use crate::capture::occupancy::{Occupancy, Share};
use sim::cards::Card;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// By this name the program is `nvidia-smi`.
pub const NAME: &str = "nvidia-smi";

const HELP: &str = "This nvidia-smi is vramlab's, of a simulated GPU. It knows: nvidia-smi, -L, --query-gpu=FIELDS --format=csv[,noheader][,nounits],
--query-compute-apps=FIELDS --format=..., and -i NUMBERS with each of them.
";

const DRIVER: &str = "580.00.00";
const CUDA: &str = "13.0";

/// The answer to these arguments, and the exit status.
pub fn nvidia_smi(arguments: &[String]) -> (String, u8) {
    match Asked::read(arguments) {
        Ok(asked) => (asked.answer(&Cards::here()), 0),
        Err(text) if text.is_empty() => (HELP.to_string(), 0),
        // As the real one ends where it is asked for what it does not know.
        Err(text) => (format!("{text}\n{HELP}"), 2),
    }
}

/// The cards of the rehearsal that this process belongs to.
struct Cards {
    /// Title, memory and compute capability.
    title: String,
    memory: u64,
    capability: String,
    count: usize,
    /// What living processes have.
    shares: Vec<Share>,
}

impl Cards {
    fn here() -> Cards {
        let card = env::var(sim::cards::ENVIRONMENT).unwrap_or_default();
        let fields: Vec<&str> = card.split(',').collect();
        let usual = Card::default();
        let count = env::var("VRAMLAB_DRY_DEVICES").ok().and_then(|count| count.parse().ok()).unwrap_or(1);
        let session = env::var_os("VRAMLAB_REHEARSAL").map(PathBuf::from).unwrap_or_default();
        let mut shares = Occupancy::of_session(&session).shares;
        shares.retain(|share| share.used > 0 && Path::new(&format!("/proc/{}", share.process)).exists());
        shares.sort_by_key(|share| (share.process, share.card));
        Cards {
            title: fields.get(1).map_or_else(|| usual.title.to_string(), ToString::to_string),
            memory: fields.get(2).and_then(|memory| memory.parse().ok()).unwrap_or_default(),
            capability: fields.get(3).unwrap_or(&"").to_string(),
            count,
            shares,
        }
    }

    fn used(&self, card: usize) -> u64 {
        let of_card = self.shares.iter().filter(|share| share.card == card);
        of_card.map(|share| share.used.unsigned_abs()).sum::<u64>().min(self.memory)
    }
}

enum What {
    Table,
    List,
    Gpus(Vec<String>),
    Processes(Vec<String>),
}

struct Asked {
    what: What,
    /// Of these cards; all where it is empty.
    cards: Vec<usize>,
    header: bool,
    units: bool,
}

impl Asked {
    /// # Errors
    /// What is not known; nothing where help is asked for.
    fn read(arguments: &[String]) -> Result<Asked, String> {
        let mut asked = Asked { what: What::Table, cards: Vec::new(), header: true, units: true };
        let mut csv = false;
        // A flag's value follows it, or an equals sign.
        let mut words = arguments.iter().flat_map(|word| match word.split_once('=') {
            Some((flag, value)) if flag.starts_with('-') => vec![flag, value],
            _ => vec![word.as_str()],
        });
        while let Some(flag) = words.next() {
            let mut value = || words.next().ok_or(format!("{flag} needs a value"));
            let mut fields = || value().map(|value| value.split(',').map(|field| field.trim().to_string()).collect::<Vec<_>>());
            match flag {
                "-L" | "--list-gpus" => asked.what = What::List,
                "--query-gpu" => asked.what = What::Gpus(fields()?),
                "--query-compute-apps" => asked.what = What::Processes(fields()?),
                "--format" => {
                    for part in fields()? {
                        match part.as_str() {
                            "csv" => csv = true,
                            "noheader" => asked.header = false,
                            "nounits" => asked.units = false,
                            other => return Err(format!("--format: '{other}' is not known")),
                        }
                    }
                }
                "-i" | "--id" => {
                    for card in fields()? {
                        let last = card.rsplit('-').next().unwrap_or_default();
                        asked.cards.push(last.parse().map_err(|_| format!("-i: there is no GPU '{card}'"))?);
                    }
                }
                "-h" | "--help" => return Err(String::new()),
                other => return Err(format!("Invalid combination of input arguments: '{other}' is not known.")),
            }
        }
        match asked.what {
            What::Gpus(_) | What::Processes(_) if !csv => Err("\"--format=\" must be given, as in --format=csv".to_string()),
            _ => Ok(asked),
        }
    }

    fn answer(&self, cards: &Cards) -> String {
        let wanted: Vec<usize> = (0..cards.count).filter(|card| self.cards.is_empty() || self.cards.contains(card)).collect();
        match &self.what {
            What::Table => table(cards, &wanted),
            What::List => wanted.iter().map(|card| format!("GPU {card}: {} (UUID: {})\n", cards.title, uuid(*card))).collect(),
            What::Gpus(fields) => self.csv(cards, fields, wanted.iter().map(|card| (*card, None))),
            What::Processes(fields) => {
                let shares = cards.shares.iter().filter(|share| wanted.contains(&share.card));
                self.csv(cards, fields, shares.map(|share| (share.card, Some(share))))
            }
        }
    }

    fn csv<'a>(&self, cards: &Cards, fields: &[String], rows: impl Iterator<Item = Row<'a>>) -> String {
        let title = |field: &str| match unit(field) {
            "" => field.to_string(),
            unit => format!("{field} [{unit}]"),
        };
        let cell = |row: Row, field: &str| match (value(cards, row, field), unit(field)) {
            (None, _) => "[N/A]".to_string(),
            (Some(value), unit) if unit.is_empty() || !self.units => value,
            (Some(value), unit) => format!("{value} {unit}"),
        };
        let line = |of: &dyn Fn(&str) -> String| fields.iter().map(|field| of(field)).collect::<Vec<_>>().join(", ") + "\n";
        let header = self.header.then(|| line(&title));
        header.into_iter().chain(rows.map(|row| line(&|field| cell(row, field)))).collect()
    }
}

/// A card, and what a process has of it.
type Row<'a> = (usize, Option<&'a Share>);

fn uuid(card: usize) -> String {
    format!("GPU-00000000-0000-0000-0000-{card:012x}")
}

fn bus(card: usize) -> String {
    format!("00000000:{:02X}:00.0", card + 1)
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

fn unit(field: &str) -> &'static str {
    match field.split('.').next().unwrap_or_default() {
        "memory" | "used_memory" | "used_gpu_memory" => "MiB",
        "utilization" => "%",
        "power" => "W",
        "clocks" => "MHz",
        _ => "",
    }
}

/// A field's value. Nothing runs, so what is busy, warm or drawing power is 0.
fn value(cards: &Cards, (card, share): Row, field: &str) -> Option<String> {
    Some(match (field, share) {
        ("pid", Some(share)) => share.process.to_string(),
        ("process_name" | "name", Some(share)) => name_of(share.process),
        ("used_memory" | "used_gpu_memory", Some(share)) => mib(share.used.unsigned_abs()).to_string(),
        ("index" | "gpu_index", _) => card.to_string(),
        ("name" | "gpu_name", _) => cards.title.clone(),
        ("uuid" | "gpu_uuid", _) => uuid(card),
        ("count", _) => cards.count.to_string(),
        ("driver_version", _) => DRIVER.to_string(),
        ("compute_cap", _) => cards.capability.clone(),
        ("pci.bus_id" | "gpu_bus_id", _) => bus(card),
        ("memory.total", _) => mib(cards.memory).to_string(),
        ("memory.used", _) => mib(cards.used(card)).to_string(),
        ("memory.free", _) => mib(cards.memory - cards.used(card)).to_string(),
        ("memory.reserved" | "utilization.gpu" | "utilization.memory" | "temperature.gpu", _) => "0".to_string(),
        ("power.draw", _) => "0.00".to_string(),
        ("pstate", _) => "P0".to_string(),
        ("mig.mode.current" | "persistence_mode" | "display_active", _) => "Disabled".to_string(),
        _ => return None,
    })
}

fn name_of(process: u32) -> String {
    let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(words.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

fn table(cards: &Cards, wanted: &[usize]) -> String {
    const WIDE: usize = 77;
    let line = format!("+{}+\n", "-".repeat(WIDE));
    let row = |text: String| format!("| {text:<75} |\n");
    let mut out = line.clone();
    out += &row(format!("NVIDIA-SMI {DRIVER}    Driver Version: {DRIVER}    CUDA Version: {CUDA}    (simulated)"));
    out += &line;
    for &card in wanted {
        out += &row(format!("{card:>3}  {:<36} {:>18}", cards.title, bus(card)));
        out += &row(format!(
            "     P0     0W /  N/A   {:>9}MiB / {:>9}MiB      0%   Default",
            mib(cards.used(card)),
            mib(cards.memory)
        ));
    }
    out += &line;
    out += &row("Processes:".to_string());
    for Share { process, card, used, .. } in cards.shares.iter().filter(|share| wanted.contains(&share.card)) {
        out += &row(format!("{card:>3}  {process:>9}  C  {:<38} {:>9}MiB", name_of(*process), mib(used.unsigned_abs())));
    }
    out += &line;
    out
}
