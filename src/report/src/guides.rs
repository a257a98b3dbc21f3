//! What became of each of the guides' sentences.

use super::findings::Findings;
use super::markup::Markdown;
use super::prose::{self, Against};
use super::sentences::{GUIDES, SENTENCES, Sentence, compared, title};
use minijinja::{Value, context};
use record::judge::{Judgement, Verdict};

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
    GUIDES.iter().zip(1..).map(|(guide, number)| context! { number, title => title(guide) }).collect()
}
