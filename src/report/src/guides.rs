//! The guides' own sentences, word for word, and what became of each.

use super::claims::{self, GUIDES};
use super::findings::Findings;
use super::markup::Markdown;
use super::prose::{self, Against};
use minijinja::{Value, context};
use record::judge::{Evidence, Judgement, Verdict};
use record::protocol::PlainProtocol;
use serde::Deserialize;
use std::sync::LazyLock;

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
    /// `1: "original": translation`.
    pub fn quoted(&self) -> Markdown {
        let number = Markdown::link(&self.guide.to_string(), "guides.md");
        let translation = if self.translation.is_empty() { String::new() } else { format!("<br>{}", text(&self.translation)) };
        Markdown::trusted(format!("{}: “{}”{translation}", number.as_str(), text(&self.original)))
    }
}

fn text(text: &str) -> String {
    Markdown::text(text).as_str().to_string()
}

/// The sentences that a claim puts to the test, or the claim's own words where no guide makes it.
pub fn quotes(id: &str, own: &str) -> Markdown {
    let quotes: Vec<String> =
        SENTENCES.iter().filter(|sentence| sentence.claim == id).map(|s| s.quoted().as_str().to_string()).collect();
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

/// Every sentence of the guides that says something of memory or speed, with what became of it.
pub fn sentences(findings: &Findings) -> Vec<Value> {
    let row = |sentence: &Sentence| {
        let (mut compared_by, mut effects, mut verdicts, mut pages) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for experiment in &findings.experiments {
            for run in experiment.runs.iter().filter(|run| !run.is_own) {
                let is_told = |j: &&Judgement| j.of.id == sentence.claim && j.carries && j.verdict != Verdict::NotMeasured;
                for judged in run.judgements.iter().filter(is_told) {
                    compared_by.push(compared(&run.protocol, &judged.evidence));
                    effects.push(prose::effect_of_all(&run.protocol, &judged.evidence));
                    verdicts.push(format!(
                        "{}, {}",
                        prose::standing(judged, Against::Claim),
                        prose::whose(judged.platform, &run.machine)
                    ));
                    let page = Markdown::link(&experiment.runs[0].protocol.title, &experiment.page());
                    pages.push(page.as_str().to_string());
                }
            }
        }
        if verdicts.is_empty() {
            verdicts.push(match sentence.claim.is_empty() {
                true => format!("– not judged: {}", sentence.how_much),
                false => "– not known yet: needs a GPU".to_string(),
            });
        }
        pages.dedup();
        let how_much = if sentence.claim.is_empty() { "" } else { &sentence.how_much };
        context! {
            guide => sentence.guide,
            says => sentence.quoted(),
            how_much,
            compared => base::order::distinct(compared_by),
            effects,
            verdicts,
            pages => Markdown::trusted(pages.join(", ")),
        }
    };
    SENTENCES.iter().map(row).collect()
}

/// The guides by their number, for the heads of their tables.
pub fn titles() -> Vec<Value> {
    GUIDES.iter().zip(1..).map(|(guide, number)| context! { number, title => claims::title(guide) }).collect()
}
