//! Cards that a simulated GPU can be: what PyTorch and its libraries ask of a GPU before they choose a kernel or a workspace.
//!
//! `cards.csv` holds them: memory in bytes as `cudaMemGetInfo` gives it (what is left when the driver has taken its part; rounded to MiB
//! where only PyTorch's out-of-memory messages tell it), compute capability, multiprocessors, resident threads of one, shared memory of a
//! block, of a block that asks for more and of a multiprocessor, L2 cache, and what a process's CUDA context takes: as others recorded it, of
//! an idle process where there is such a record. Kernels, which are loaded when they are first used, added up to 90 MiB where both are known: `code` of
//! it comes with the first one. On H100 that is what vLLM 0.11 measured there (0.13 GiB in five of llm-d-planner's rows), on a T4 in notebooks 0.03 to 0.05.
//! Then how fast it is by NVIDIA's specification: bandwidth of its memory in GB/s, dense TFLOP/s in fp32, TF32 and half precision, bandwidth to
//! the host in GB/s in one direction; the source of the memory; and what clouds call it, a star for any end or middle of a name.

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
    /// Of the card of that name; else of the cards of its kind the fastest, as `NVIDIA A100-SXM-64GB` is an A100. None where there is no such
    /// card.
    pub fn of_gpu(name: &str) -> Option<Speed> {
        if let Ok(card) = named(name) {
            return card.speed;
        }
        let kind =
            |title: &str| title.split([' ', '-']).find(|word| word.contains(|c: char| c.is_ascii_digit())).map(str::to_string);
        let wanted = kind(name)?;
        let alike = all().iter().filter(|card| kind(card.title).as_ref() == Some(&wanted));
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
    /// Bytes that a process takes beside PyTorch's allocator: its CUDA context and the code of kernels and of cuBLAS, as recorded on this card or one
    /// like it; assumed here. `context_source` says where.
    pub context: u64,
    /// Bytes of them that come with a process's first kernel: what it finds free before is more.
    pub code: u64,
    pub context_source: &'static str,
    /// None of a size alone.
    pub speed: Option<Speed>,
    /// The source of its speeds, and of its memory.
    pub speed_source: &'static str,
    pub memory_source: &'static str,
    /// What clouds call it or a machine with it, by spaces.
    pub also: &'static str,
    /// Bytes a second, one way, that a cloud's machine has to others for each of its GPUs, where such a machine was named.
    pub network: Option<f64>,
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
    CARDS.get_or_init(|| FILE.lines().skip(1).map(|line| read(line).unwrap_or_else(|wrong| panic!("cards.csv: {wrong}"))).collect())
}

const FILE: &str = include_str!("cards.csv");

/// A line of the file, or what is wrong with it.
fn read(line: &'static str) -> Result<Card, String> {
    let columns: Vec<&str> = FILE.lines().next().unwrap_or_default().split(',').collect();
    let fields: Vec<&'static str> = line.split(',').collect();
    let (wanted, found) = (columns.len(), fields.len());
    if wanted != found {
        return Err(format!("{}: {found} fields for {wanted} columns; no text may have a comma, quoted or not", fields[0]));
    }
    let wrong = |at: usize| format!("{}: {} is '{}', which is no figure", fields[0], columns[at], fields[at]);
    let number = |at: usize| fields[at].parse::<u64>().map_err(|_| wrong(at));
    let small = |at: usize| fields[at].parse::<u32>().map_err(|_| wrong(at));
    let per_second = |at: usize, unit: f64| {
        let figure = fields[at].parse::<f64>().ok().filter(|figure| *figure > 0.0);
        figure.map(|figure| figure * unit).ok_or_else(|| wrong(at))
    };
    let capability = fields[3].split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    Ok(Card {
        name: Some(fields[0]),
        title: fields[1],
        memory: number(2)?,
        capability: capability.ok_or_else(|| wrong(3))?,
        multiprocessors: small(4)?,
        threads_per_multiprocessor: small(5)?,
        shared_per_block: number(6)?,
        shared_opt_in: number(7)?,
        shared_per_multiprocessor: number(8)?,
        l2: number(9)?,
        context: number(10)?,
        code: number(11)?,
        context_source: fields[12],
        speed: Some(Speed {
            bandwidth: per_second(13, 1e9)?,
            single: per_second(14, 1e12)?,
            tf32: per_second(15, 1e12)?,
            half: per_second(16, 1e12)?,
            host_bandwidth: per_second(17, 1e9)?,
        }),
        speed_source: fields[18],
        memory_source: fields[19],
        also: fields[20],
        network: None,
    })
}

impl Card {
    /// A card of compute capability 9.0 with so many bytes.
    pub fn of_size(memory: u64) -> Card {
        let usual = all().iter().find(|card| card.name == Some(USUAL)).unwrap_or(&all()[0]);
        let (context, code, context_source) = (512 << 20, 80 << 20, "what cards of up to 48 GiB take at most, rounded");
        Card { name: None, title: "vramlab simulated GPU", memory, context, code, context_source, speed: None, ..*usual }
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
        // Nobody looks for a laptop.
        let is_laptop = |card: &Card| card.name.is_some_and(|name| name.contains("laptop"));
        let has = |card: &&Card| card.capability.0 >= oldest && card.memory >= contexts * card.context + bytes && !is_laptop(card);
        all().iter().filter(has).min_by_key(|card| card.memory).copied()
    }

    /// Value of [`ENVIRONMENT`].
    pub fn environment(&self) -> String {
        let nvlink = i32::from(self.nvlink().is_some());
        format!("{},{},{},{},{nvlink}", self.name.unwrap_or_default(), self.title, self.memory, self.kind())
    }

    /// What PyTorch is told of the card, for a record of a dry run.
    pub fn assumption(&self) -> String {
        let (major, minor) = self.capability;
        format!("compute capability {major}.{minor}, {} multiprocessors", self.multiprocessors)
    }

    /// Bytes a second that NVLink moves one way between two cards of a machine, by NVIDIA's data sheets; none of cards that have the host's bus alone.
    pub fn nvlink(&self) -> Option<f64> {
        let has = ["SXM", "HBM3", "H200", "H20", "GH200", "B200", "B300"].iter().any(|kind| self.title.contains(kind));
        has.then_some(match self.capability.0 {
            ..8 => 150e9,
            8 => 300e9,
            9 => 450e9,
            _ => 900e9,
        })
    }

    /// Bytes a second, one way, to GPUs of other machines, for each GPU: of the machine that was named, or of NVIDIA's own with such cards: eight
    /// adapters of 400 Gb/s in a DGX H100, H200 and B200, of 800 in a DGX B300, of 200 in a DGX A100, four of 100 in a DGX-1 (their data sheets). Of cards
    /// without NVLink 100 Gb/s for eight: assumed.
    pub fn network(&self) -> f64 {
        self.network.unwrap_or(match (self.nvlink().is_some(), self.capability) {
            (false, _) => 100e9 / 8.0 / 8.0,
            (true, (..8, _)) => 50e9 / 8.0,
            (true, (8, _)) => 200e9 / 8.0,
            (true, (10, 3..)) => 800e9 / 8.0,
            _ => 400e9 / 8.0,
        })
    }

    /// The card without its name and memory, as in `cards.csv`: two for which that is the same differ by their size alone.
    pub fn kind(&self) -> String {
        let Card { capability: (major, minor), multiprocessors, threads_per_multiprocessor: threads, l2, .. } = self;
        let Card { shared_per_block: block, shared_opt_in: opt_in, shared_per_multiprocessor: multiprocessor, .. } = self;
        format!("{major}.{minor},{multiprocessors},{threads},{block},{opt_in},{multiprocessor},{l2}")
    }
}

impl Default for Card {
    /// A size alone, of nothing.
    fn default() -> Card {
        Card::of_size(0)
    }
}

/// Words that tell one card from another for nobody: its maker, its form, and memory's kind.
const WORDS_BESIDE_A_NAME: &str = "nvidia geforce tesla quadro rtx gtx gpu graphics card generation edition workstation server blackwell with max q ac sxm \
                      sxm2 sxm3 sxm4 sxm5 sxm6 hbm3 hbm2e hbm3e";

/// What is left of a card's name when it is written as others write it: `NVIDIA A100-SXM4-80GB`, `a100 80gb` and `a100-80g` are `a10080g`. And
/// apart from it the size of memory at its end, in GB, where one is there.
fn key(text: &str) -> (String, Option<u64>) {
    let lower = text.to_ascii_lowercase();
    let mut words: Vec<String> = Vec::new();
    let is_noise_word = |word: &&str| word.is_empty() || WORDS_BESIDE_A_NAME.split(' ').any(|each| each == *word);
    for word in lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !is_noise_word(word)) {
        let word = ["nvidia", "geforce", "rtx", "gtx"].iter().fold(word, |word, before| word.strip_prefix(before).unwrap_or(word));
        let number =
            |end: &str| word.strip_suffix(end).filter(|digits| digits.parse::<u64>().is_ok()).map(|digits| format!("{digits}g"));
        let next = match word {
            "" => None,
            // `80 GB` in two words.
            "gb" | "gib" | "g" if words.last().is_some_and(|last| last.parse::<u64>().is_ok()) => {
                words.pop().map(|digits| digits + "g")
            }
            "mobile" => Some("laptop".to_string()),
            _ => Some(number("gb").or_else(|| number("gib")).unwrap_or_else(|| word.to_string())),
        };
        words.extend(next);
    }
    let size = words.last().and_then(|last| last.strip_suffix('g')?.parse().ok()).filter(|_| words.len() > 1);
    (words.concat(), size)
}

/// Whether a cloud's name is the one that is meant; `g5.*` is that family in any of AWS's sizes, another star any end or middle of a name.
fn is_cloud(pattern: &str, text: &str) -> bool {
    let is_size = |size: &str| {
        let number = |digits: &str| digits.is_empty() || digits.parse::<u32>().is_ok();
        size.starts_with("metal") || size == "large" || size.strip_suffix("xlarge").is_some_and(number)
    };
    match pattern.split_once('*') {
        Some((family, "")) if family.ends_with('.') => text.strip_prefix(family).is_some_and(is_size),
        Some((before, after)) => text.len() >= before.len() + after.len() && text.starts_with(before) && text.ends_with(after),
        None => pattern == text,
    }
}

/// How many GPUs a cloud's machine has, where that is what somebody names: by its family and size, as the clouds' own lists have them.
pub fn gpus_of_machine(text: &str) -> Option<u32> {
    let lower = text.trim().to_ascii_lowercase();
    all().iter().find(|card| card.also.split_whitespace().any(|pattern| is_cloud(pattern, &lower)))?;
    let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>().ok();
    if let Some((family, size)) = lower.split_once('.') {
        // AWS: https://aws.amazon.com/ec2/instance-types/#Accelerated_Computing
        let is_of_eight = ["p4", "p5", "p6"].iter().any(|of| family.starts_with(of));
        return Some(match (family, size) {
            (_, "4xlarge") if is_of_eight => 1,
            ("p6e-gb200", _) => 4,
            _ if is_of_eight => 8,
            ("p3", "8xlarge") | ("g4dn", "12xlarge") | ("g5" | "g6" | "g6e", "12xlarge") => 4,
            ("p3", "16xlarge") | ("p3dn", _) | ("g4dn", "metal") => 8,
            ("g7e", "12xlarge") => 2,
            ("g5" | "g6" | "g6e" | "g7e", "24xlarge") => 4,
            ("g5" | "g6" | "g6e" | "g7e", "48xlarge") => 8,
            _ => 1,
        });
    }
    // Google: `a2-highgpu-8g` says it; https://cloud.google.com/compute/docs/gpus
    if let Some((_, size)) = lower.split_once("gpu-") {
        return number(size);
    }
    // Hugging Face and Lambda: `l4x4`, `gpu_8x_a10`.
    if let Some(gpus) = lower.strip_prefix("gpu_").and_then(number).or_else(|| lower.rsplit_once('x')?.1.parse().ok()) {
        return Some(gpus);
    }
    if let Some(processors) = lower.strip_prefix("g2-standard-").and_then(number) {
        return Some(match processors {
            24 => 2,
            48 => 4,
            96 => 8,
            _ => 1,
        });
    }
    // Azure: https://learn.microsoft.com/azure/virtual-machines/sizes/overview#gpu-accelerated
    let processors = number(lower.strip_prefix("standard_n")?.trim_start_matches(|c: char| c.is_ascii_alphabetic()))?;
    Some(match &lower["standard_n".len()..] {
        rest if rest.starts_with("d") => 8,
        rest if rest.contains("h100") && processors >= 80 => 2,
        rest if rest.contains("a100") => (processors / 24).max(1),
        rest if rest.contains("t4") && processors >= 64 => 4,
        _ => 1,
    })
}

/// Bytes a second that a cloud's machine has for each of its GPUs, by the clouds' own lists: those that are sold for jobs of many machines.
fn network_of_machine(machine: &str) -> Option<f64> {
    // Gb/s of the machine. https://aws.amazon.com/ec2/instance-types/#Accelerated_Computing, https://cloud.google.com/compute/docs/gpus,
    // https://learn.microsoft.com/azure/virtual-machines/sizes/overview#gpu-accelerated
    const NETWORKS: [(&str, f64); 15] = [
        ("p4d.24xlarge", 400.0),
        ("p4de.24xlarge", 400.0),
        ("p5.48xlarge", 3200.0),
        ("p5e.48xlarge", 3200.0),
        ("p5en.48xlarge", 3200.0),
        ("p6-b200.48xlarge", 3200.0),
        ("p6-b300.48xlarge", 6400.0),
        ("a2-highgpu-8g", 100.0),
        ("a2-ultragpu-8g", 100.0),
        ("a3-highgpu-8g", 800.0),
        ("a3-megagpu-8g", 1600.0),
        ("a3-ultragpu-8g", 3200.0),
        ("standard_nd96asr_v4", 1600.0),
        ("standard_nd96amsr_a100_v4", 1600.0),
        ("standard_nd96isr_h", 3200.0),
    ];
    let (_, gigabits) = NETWORKS.iter().find(|(name, _)| machine.starts_with(name))?;
    Some(gigabits * 1e9 / 8.0 / f64::from(gpus_of_machine(machine)?))
}

/// The card that somebody means: by our name, PyTorch's, `nvidia-smi`'s or a cloud's, and with its memory or without.
fn named(text: &str) -> Result<Card, String> {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    let (wanted, size) = key(text);
    let keys = |card: &&Card| {
        let (name, title) = (key(card.name.unwrap_or_default()), key(card.title));
        // The title of a card that there is with other memory says too little.
        let says_size = name.1.is_none_or(|size| title.0.contains(&format!("{size}g")));
        if says_size { vec![name.0, title.0] } else { vec![name.0] }
    };
    let of_cloud = |card: &&Card| card.also.split_whitespace().any(|pattern| is_cloud(pattern, &lower));
    if let Some(card) = all().iter().find(|card| of_cloud(card) || keys(card).contains(&wanted)) {
        return Ok(Card { network: network_of_machine(&lower), ..*card });
    }
    if let Some(gigabytes) = size {
        let without = wanted.strip_suffix(&format!("{gigabytes}g")).unwrap_or(&wanted).to_string();
        // As it is sold; the driver takes a part.
        let has = |card: &&Card| (0.86..1.03).contains(&(card.memory as f64 / (gigabytes << 30) as f64));
        if let Some(card) = all().iter().find(|card| has(card) && keys(card).contains(&without)) {
            return Ok(*card);
        }
    }
    let names = |cards: Vec<&Card>| cards.iter().filter_map(|card| card.name).collect::<Vec<&str>>().join(", ");
    let begins: Vec<&Card> =
        all().iter().filter(|card| wanted.len() > 1 && keys(card).iter().any(|key| key.starts_with(&wanted))).collect();
    match begins.as_slice() {
        [] => {}
        [one] => {
            let name = one.name.unwrap_or_default();
            return Err(format!(
                "'{text}' comes in several sizes, of which {name} is known here; another is written as a size, like 8GiB"
            ));
        }
        several => return Err(format!("'{text}' is not one card: which is it of {}?", names(several.to_vec()))),
    }
    let likeness = |card: &&Card| keys(card).iter().map(|key| strsim::jaro_winkler(key, &wanted)).fold(0.0, f64::max);
    let mut like: Vec<&Card> = all().iter().filter(|card| likeness(card) > 0.82).collect();
    like.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
    like.truncate(3);
    let meant = if like.is_empty() { String::new() } else { format!(", but is it {}?", names(like)) };
    Err(format!(
        "unknown GPU '{text}'{meant}; `vramlab gpus` lists the {} cards; any other has a size, written like 24GiB",
        all().len()
    ))
}

/// A size alone.
impl From<u64> for Card {
    fn from(memory: u64) -> Card {
        Card::of_size(memory)
    }
}

impl FromStr for Card {
    type Err = String;

    /// A card's name as anybody writes it, or a size: `rtx-4090`, `NVIDIA GeForce RTX 4090`, `g5.xlarge`, `24GiB`; or both, as `h100:79.18GiB` of a
    /// driver that leaves so much of it.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, size)) = text.split_once(':') {
            return Ok(name.parse::<Card>()?.with_memory(size.parse::<Card>()?.memory));
        }
        let unknown = match named(text) {
            Ok(card) => return Ok(card),
            Err(unknown) => unknown,
        };
        match text.parse::<Bytes>() {
            Ok(Bytes(0)) => Err(format!("'{text}' is a card without memory; write a size like 24GiB, or a card's name")),
            // A number alone is a model's: nobody writes a card's bytes without a unit where they are so few.
            Ok(Bytes(bytes)) if bytes < 1 << 20 && text.trim().bytes().all(|byte| byte.is_ascii_digit()) => Err(unknown),
            Ok(Bytes(bytes)) if bytes > LARGEST => Err(format!("'{text}' is larger than any card; 1TiB is the most")),
            Ok(Bytes(bytes)) => Ok(Card::of_size(bytes)),
            Err(_) => Err(unknown),
        }
    }
}

/// As it is read back.
impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.name {
            Some(name) if all().iter().any(|card| card.name == Some(name) && card.memory == self.memory) => f.pad(name),
            Some(name) => f.pad(&format!("{name}:{}", Bytes(self.memory).exact())),
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
        let of = [
            "NVIDIA A100-PCIE-40GB",
            "NVIDIA A100-SXM4-40GB",
            "NVIDIA A100 80GB PCIe",
            "NVIDIA A100-SXM-64GB",
            "NVIDIA H200",
            "unknown GPU",
        ];
        assert_eq!(of.map(bandwidth), [Some(1555e9), Some(1555e9), Some(1935e9), Some(2039e9), Some(4800e9), None]);
    }

    #[test]
    fn a_card_is_found_however_it_is_written() {
        let cases = [
            ("rtx-4090", "rtx4090|RTX 4090|NVIDIA GeForce RTX 4090|4090|GeForce RTX4090|rtx_4090|RTX 4090 24GB|nvidia-rtx-4090"),
            ("rtx-4090-laptop", "4090 laptop|NVIDIA GeForce RTX 4090 Laptop GPU|rtx 4090 mobile"),
            ("rtx-4070-ti-super", "4070tisuper|RTX 4070 Ti SUPER|NVIDIA GeForce RTX 4070 Ti SUPER"),
            ("rtx-4060-ti-16g", "RTX 4060 Ti 16GB|4060ti-16g|rtx 4060 ti 16 gb"),
            ("a100-40g", "A100-40GB|A100-SXM4-40GB|NVIDIA A100-SXM4-40GB|p4d.24xlarge|colab-a100|a2-highgpu-1g"),
            ("a100-80g", "A100-80GB|NVIDIA A100-SXM4-80GB|a100 80 GB|p4de.24xlarge|Standard_ND96amsr_A100_v4|nvidia-a100-80gb"),
            ("a100-pcie-80g", "NVIDIA A100 80GB PCIe|Standard_NC24ads_A100_v4"),
            ("h100", "h100-80g|NVIDIA H100 80GB HBM3|H100 SXM5|p5.48xlarge|nvidia-h100-80gb"),
            ("h100-pcie", "NVIDIA H100 PCIe"),
            ("h100-nvl", "NVIDIA H100 NVL|Standard_NC40ads_H100_v5"),
            ("t4", "Tesla T4|nvidia-tesla-t4|t4-16gb|colab-t4|g4dn.xlarge|Standard_NC4as_T4_v3|kaggle-t4"),
            ("a10g", "g5.xlarge|g5.48xlarge|a10g-large|NVIDIA A10G"),
            ("l4", "g6.xlarge|L4-24GB|nvidia-l4|g2-standard-4"),
            ("v100", "Tesla V100-SXM2-16GB|p3.2xlarge|v100-16gb"),
            ("v100-32g", "Tesla V100-SXM2-32GB|v100 32GB"),
            ("p100", "Tesla P100-PCIE-16GB|kaggle-p100"),
            ("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition|pro 6000|g7e.2xlarge"),
            ("rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation|6000 ada"),
            ("rtx-a6000", "A6000|NVIDIA RTX A6000"),
            ("titan-rtx", "TITAN RTX"),
            ("b300", "NVIDIA B300 SXM6 AC"),
            ("gh200", "NVIDIA GH200 480GB"),
        ];
        for (name, spellings) in cases {
            for text in spellings.split('|') {
                assert_eq!(text.parse::<Card>().map(|card| card.name), Ok(Some(name)), "{text}");
            }
        }
    }

    #[test]
    fn cloud_machine_has_its_gpus() {
        let machines = "p5.48xlarge=8 P4d.24xlarge=8 p4de.24xlarge=8 p5.4xlarge=1 g5.xlarge=1 g5.12xlarge=4 g5.48xlarge=8 g4dn.12xlarge=4 \
                        g4dn.metal=8 p3.16xlarge=8 p3.2xlarge=1 g6.xlarge=1 g6e.48xlarge=8 a2-highgpu-1g=1 a2-highgpu-4g=4 a3-highgpu-8g=8 \
                        a2-megagpu-16g=16 g2-standard-4=1 g2-standard-96=8 Standard_ND96amsr_A100_v4=8 Standard_NC24ads_A100_v4=1 \
                        Standard_NC96ads_A100_v4=4 Standard_NC80adis_H100_v5=2 Standard_NC64as_T4_v3=4 Standard_ND96isr_H100_v5=8 Standard_ND96asr_v4=8 l40sx8=8 gpu_1x_a10=1";
        for (name, gpus) in machines.split_whitespace().filter_map(|machine| machine.split_once('=')) {
            assert_eq!(gpus_of_machine(name), gpus.parse().ok(), "{name}");
        }
        for name in ["h100", "24GiB", "h100:80GiB", "v100-pcie-16g", "colab-t4", "NVIDIA A100-SXM4-80GB", "a100-80g", "rtx-4090"] {
            assert_eq!(gpus_of_machine(name), None, "{name}");
        }
    }

    #[test]
    fn ambiguous_card_is_an_error() {
        let refused = |text: &str| text.parse::<Card>().unwrap_err();
        assert!(
            refused("a100").contains("which is it of a100-40g, a100-80g, a100-pcie-40g, a100-pcie-80g?"),
            "{}",
            refused("a100")
        );
        // One with 8 GB is sold under the same name.
        assert!(refused("NVIDIA GeForce RTX 4060 Ti").contains("of which rtx-4060-ti-16g is known here"), "{}", refused("4060ti"));
        assert!(refused("rtx 3090 ti").contains("is it rtx-3090"), "{}", refused("rtx 3090 ti"));
        assert!(refused("h100-40g").contains("`vramlab gpus`"), "{}", refused("h100-40g"));
        assert!(refused("g5.xlage").contains("unknown GPU"), "{}", refused("g5.xlage"));
    }

    #[test]
    fn each_line_of_the_file_is_a_card_that_can_be() {
        for card in all() {
            let name = card.name.unwrap();
            assert_eq!(name.parse(), Ok(*card));
            assert_eq!(card.to_string(), name);
            let another = card.with_memory(card.memory - (1 << 26));
            assert_eq!(another.to_string().parse(), Ok(another));
            assert!(name.parse::<Bytes>().is_err(), "{name} reads as a size");
            assert!((7 << 30..LARGEST).contains(&card.memory) && (20..200).contains(&card.multiprocessors), "{name}");
            assert_eq!(card.title.parse::<Card>().map_or(Some(name), |found| found.name), Some(name), "{}", card.title);
            assert!(!card.speed_source.is_empty() && !card.memory_source.is_empty(), "{name}");
            assert!([1024, 1536, 2048].contains(&card.threads_per_multiprocessor), "{name}");
            assert!(card.shared_per_block <= card.shared_opt_in && card.shared_opt_in <= card.shared_per_multiprocessor, "{name}");
            assert!(card.l2 >= 2 << 20 && card.context >= 64 << 20 && !card.context_source.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_line_that_is_no_card_says_which_column_is_wrong() {
        let line = FILE.lines().nth(1).unwrap();
        let of = |line: String| read(line.leak()).unwrap_err();
        assert_eq!(of(format!("{line},")), "rtx-2080-ti: 22 fields for 21 columns; no text may have a comma, quoted or not");
        assert_eq!(of(line.replacen("7.5", "7", 1)), "rtx-2080-ti: capability is '7', which is no figure");
    }

    #[test]
    fn unknown_card_error_lists_cards() {
        for text in ["rtx-9999", "", "lots", "-1", "4444", "24 parsecs"] {
            let error = text.parse::<Card>().unwrap_err();
            assert!(error.contains("`vramlab gpus` lists") && error.contains("24GiB"), "{error}");
        }
        assert!("0".parse::<Card>().unwrap_err().contains("without memory"));
        assert!("9999TiB".parse::<Card>().unwrap_err().contains("1TiB is the most"));
    }
}
