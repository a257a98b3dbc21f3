//! The guides, their own sentences word for word, and what of a claim was compared.

use super::markup::Markdown;
use record::judge::Evidence;
use record::protocol::PlainProtocol;
use serde::Deserialize;
use std::sync::LazyLock;

/// A guide whose claims are tested.
pub struct Guide {
    pub title: &'static str,
    /// Empty where it is not known.
    pub address: &'static str,
}

/// Claims name them by their place here, from 1.
pub const GUIDES: [Guide; 5] = [
    Guide {
        title: "PyTorch 메모리 최적화 기법 (PyTorch memory optimisation techniques, 2023)",
        address: "https://colinch4.github.io/2023-09-07/12-01-30-118535/",
    },
    Guide { title: "PyTorch GPU 메모리 관리 (PyTorch GPU memory management, 2023)", address: "" },
    Guide {
        title: "GPU 메모리·연산 효율 최적화 완전 가이드 (Complete guide to GPU memory and compute efficiency, Deep Learning study)",
        address: "",
    },
    Guide { title: "Pytorch에서 memory사용 Guide (Guide to memory use in PyTorch, Jeong-Minju, 2023)", address: "" },
    Guide { title: "PyTorch Dataloader pin_memory설정 (The DataLoader's pin_memory setting, 손무현, 2024)", address: "" },
];

/// The numbers of the guides that a claim comes from.
pub fn guides_of(from: &str) -> impl Iterator<Item = usize> {
    from.split_whitespace().filter_map(|number| number.parse().ok())
}

/// A guide by its title, with its address where that is known.
pub fn title(guide: &Guide) -> Markdown {
    if guide.address.is_empty() { Markdown::text(guide.title) } else { Markdown::link(guide.title, guide.address) }
}

/// One thing that a sentence of a guide says. A sentence that says several has a row for each.
#[derive(Debug, Deserialize)]
pub struct Sentence {
    /// From 1, by their place in [`GUIDES`].
    pub guide: usize,
    /// Word for word, line ends apart.
    pub original: String,
    /// Empty where the original is English or code.
    pub translation: String,
    /// The claim that puts it to the test; empty where nothing does.
    pub claim: String,
    /// The metric that it is about.
    #[expect(dead_code, reason = "a test holds it against the claim's rule")]
    effect: String,
    #[expect(dead_code, reason = "a test holds it against the claim's rule")]
    side: String,
    /// How much, only where the guide says it; or, without a claim, why it is not judged.
    #[serde(rename = "how much or why it is not judged")]
    pub how_much: String,
}

/// In the guides' order.
pub static SENTENCES: LazyLock<Vec<Sentence>> = LazyLock::new(|| {
    let rows = csv::ReaderBuilder::new().delimiter(b';').from_reader(include_bytes!("sentences.csv").as_slice());
    rows.into_deserialize().collect::<Result<_, _>>().unwrap_or_default()
});

impl Sentence {
    /// The original, and its translation below it.
    pub fn words(&self) -> Markdown {
        let translation = if self.translation.is_empty() { String::new() } else { format!("<br>{}", text(&self.translation)) };
        Markdown::trusted(format!("“{}”{translation}", text(&self.original)))
    }

    /// With the guide's number before it.
    fn quoted(&self) -> String {
        let guide = Markdown::link(&format!("Guide {}", self.guide), "guides.md");
        format!("{}: {}", guide.as_str(), self.words().as_str())
    }
}

fn text(text: &str) -> String {
    Markdown::text(text).as_str().to_string()
}

/// The sentences that a claim puts to the test, or the claim's own words where no guide makes it.
pub fn quotes(id: &str, own: &str) -> Markdown {
    let quotes: Vec<String> = SENTENCES.iter().filter(|sentence| sentence.claim == id).map(Sentence::quoted).collect();
    if quotes.is_empty() { Markdown::text(own) } else { Markdown::trusted(quotes.join("<br>")) }
}

/// Of more parts than this the first are told.
const FEW_PARTS: usize = 2;

/// What was compared, in the words of the parts that decide.
pub fn compared(protocol: &PlainProtocol, evidence: &[Evidence]) -> String {
    let judged = || evidence.iter().filter(|part| part.is_judged && !part.comparisons.is_empty());
    let any_decides = judged().any(|part| part.decides);
    let parts = judged().filter(|part| part.decides || !any_decides);
    let all = base::order::distinct(parts.map(|part| part.rule.comparison(&protocol.metrics)));
    let more = all.len().saturating_sub(FEW_PARTS);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{}{more}", all.iter().take(FEW_PARTS).cloned().collect::<Vec<_>>().join("; "))
}
