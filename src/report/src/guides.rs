//! What became of each of the guides' sentences.

use super::findings::Findings;
use super::markup::Markdown;
use super::prose::{self, Against};
use super::sentences::{GUIDES, SENTENCES, Sentence, compared, title};
use minijinja::{Value, context};
use record::judge::Verdict;
use record::protocol::Platform;

/// Every sentence of the guides that says something of memory or speed, with what became of it.
pub fn sentences(findings: &Findings) -> Vec<Value> {
    let row = |sentence: &Sentence| {
        let (mut compared_by, mut effects, mut verdicts, mut pages) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut on, mut asks): (&[Platform], &str) = (&[], "");
        for experiment in &findings.experiments {
            for run in experiment.runs.iter().filter(|run| !run.is_own) {
                for judged in run.judgements.iter().filter(|j| j.of.id == sentence.claim) {
                    (on, asks) = (&judged.of.judged_on, &judged.of.text);
                    if !judged.carries || judged.verdict == Verdict::NotMeasured {
                        continue;
                    }
                    let whose = prose::taken_by(judged, &run.machine);
                    compared_by.push(compared(&run.protocol, &judged.evidence));
                    effects.push((whose.clone(), prose::effect_of_all(&run.protocol, &judged.evidence)));
                    let place = prose::holds(&judged.holds);
                    let place = match judged.verdict {
                        Verdict::Depends => format!(": holds {}", place.trim_end_matches(" (see the evidence below)")),
                        _ => String::new(),
                    };
                    verdicts.push(format!("{}{place}, {whose}", prose::standing(judged, Against::Claim)));
                    let page = Markdown::link(&experiment.runs[0].protocol.title, &experiment.page());
                    pages.push(page.as_str().to_string());
                }
            }
        }
        if verdicts.is_empty() {
            verdicts.push(match sentence.claim.is_empty() {
                true => format!("– not judged: {}", sentence.how_much),
                false => format!("– {}", prose::wanting(on)),
            });
        }
        let is_alone = effects.len() == 1;
        let effects: Vec<String> =
            effects.into_iter().map(|(whose, effect)| if is_alone { effect } else { format!("{whose}: {effect}") }).collect();
        pages.dedup();
        let how_much = if sentence.claim.is_empty() { "" } else { &sentence.how_much };
        context! {
            guide => sentence.guide,
            says => sentence.words(),
            how_much,
            asks,
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
