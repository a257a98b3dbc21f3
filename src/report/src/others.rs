//! What documents that many people read advise, beside what was found here.

use super::claims::standing;
use super::findings::Findings;
use super::markup::Markdown;
use super::prose::Against;
use minijinja::context;
use minijinja::value::{Serde, Value};
use record::judge::{Judged, Verdict};
use serde::Serialize;
use std::collections::BTreeSet;

/// The documents, as they were read, by their number in [`ADVICE`].
const DOCUMENTS: [(&str, &str); 6] = [
    (
        "PyTorch, Performance Tuning Guide",
        "https://github.com/pytorch/tutorials/blob/09d930d75efe8cd3ac1b3732aedb9b8dab749521/recipes_source/recipes/tuning_guide.py",
    ),
    (
        "PyTorch, A guide on good usage of non_blocking and pin_memory()",
        "https://github.com/pytorch/tutorials/blob/01e580da0662a8fce8a7a14d935967d62b7f245e/intermediate_source/pinmem_nonblock.py",
    ),
    (
        "Lightning, Speed Up Model Training",
        "https://github.com/Lightning-AI/pytorch-lightning/blob/0071883b0d7866f77624fc96ed7a6274ebb6aac2/docs/source-pytorch/advanced/speed.rst",
    ),
    (
        "Hugging Face, training on a single GPU",
        "https://github.com/huggingface/transformers/blob/04b696acabab4a3ca21b1716a488d8223e57b726/docs/source/en/perf_train_gpu_one.md",
    ),
    (
        "Hugging Face, GPU: the table of Transformers 4.56 (in 5.13, too)",
        "https://huggingface.co/docs/transformers/v4.56.1/perf_train_gpu_one",
    ),
    ("TRL 1.6, Reducing Memory Usage", "https://huggingface.co/docs/trl/v1.6.0/reducing_memory_usage"),
];

/// What each says, in our words, and the claims and published figures that put it to the test: with `!`, where it says the contrary of the claim.
const ADVICE: &str = include_str!("others.csv");

/// In the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
enum Agreement {
    #[serde(rename = "✘ disagrees")]
    Disagrees,
    #[serde(rename = "◐ agrees in part")]
    InPart,
    #[serde(rename = "✔ agrees")]
    Agrees,
    #[serde(rename = "? not known yet")]
    Unknown,
    #[serde(rename = "– not put to the test")]
    Untested,
}

impl Agreement {
    fn of(verdict: Verdict, is_contrary: bool) -> Agreement {
        match (verdict, is_contrary) {
            (Verdict::Confirmed | Verdict::InPart, false) | (Verdict::Refuted, true) => Agreement::Agrees,
            (Verdict::Refuted, false) | (Verdict::Confirmed | Verdict::InPart, true) => Agreement::Disagrees,
            (Verdict::Depends | Verdict::FallsShort, _) => Agreement::InPart,
            (Verdict::Inconclusive | Verdict::Incomplete | Verdict::NotMeasured, _) => Agreement::Unknown,
        }
    }
}

/// What was found of each document's advice, those that disagree first.
pub fn advice(findings: &Findings) -> Vec<Value> {
    let mut rows: Vec<(Agreement, Value)> = ADVICE.lines().skip(1).filter_map(|line| row(findings, line)).collect();
    rows.sort_by_key(|(agreement, _)| *agreement);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn row(findings: &Findings, line: &'static str) -> Option<(Agreement, Value)> {
    let mut fields = line.split(';');
    let (document, says, claims) = (fields.next()?, fields.next()?, fields.next()?);
    let (title, address) = DOCUMENTS.get(document.parse::<usize>().ok()?.checked_sub(1)?)?;
    let (mut found, mut pages, mut agreements) = (Vec::new(), Vec::new(), BTreeSet::new());
    for claim in claims.split_whitespace() {
        let (is_contrary, id) = claim.strip_prefix('!').map_or((false, claim), |id| (true, id));
        for experiment in &findings.experiments {
            let mut standings = Vec::new();
            let mut keep = |verdict, text: &str, standing| {
                agreements.insert(Agreement::of(verdict, is_contrary));
                standings.push((text.to_string(), standing));
            };
            for run in experiment.runs.iter().filter(|run| !run.is_own) {
                for judged in run.judgements.iter().filter(|judged| judged.of.id == id && is_known(judged)) {
                    keep(judged.verdict, &judged.of.text, standing(judged, Against::Claim, run));
                }
                for judged in run.reproductions.iter().filter(|judged| judged.of.id == id && is_known(judged)) {
                    keep(judged.verdict, &judged.of.figure, standing(judged, Against::Published, run));
                }
            }
            if let Some((text, _)) = standings.first() {
                let standings: Vec<&str> = standings.iter().map(|(_, standing)| &**standing).collect();
                found.push(format!("{text}: {}", standings.join("; ")));
                pages.push(Markdown::link(&experiment.runs[0].protocol.title, &experiment.page()));
            }
        }
    }
    if agreements.len() > 1 {
        agreements.remove(&Agreement::Unknown);
    }
    let agreement = match (agreements.len(), agreements.first()) {
        (1, Some(agreement)) => *agreement,
        (0, _) if claims.is_empty() => Agreement::Untested,
        (0, _) => Agreement::Unknown,
        _ => Agreement::InPart,
    };
    pages.dedup_by(|a, b| a.as_str() == b.as_str());
    let document = Markdown::link(title, address);
    Some((agreement, context! { document, says, agreement => Serde(agreement), found, pages }))
}

fn is_known<T>(judged: &Judged<T>) -> bool {
    judged.carries && judged.verdict != Verdict::NotMeasured
}
