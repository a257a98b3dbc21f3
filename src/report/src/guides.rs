//! The guides whose claims are tested.

use super::findings::Findings;
use super::markup::Markdown;
use super::pages::Page;
use super::prose::{self, Against};
use minijinja::{Value, context};
use record::judge::Verdict;
use record::protocol::SubjectKind;

/// The guides' sentences and the claims that put them to the test.
const SENTENCES: &str = include_str!("sentences.csv");

/// What ends the id of a claim about a guide's own code for another claim.
const AS_WRITTEN: &str = "-as-written";

/// Every sentence of the guides that says something of memory or speed, in their order, with what became of it.
pub fn sentences(findings: &Findings) -> Vec<Value> {
    let row = |line: &'static str| {
        // A sentence may have a semicolon of its own.
        let (guide, rest) = line.split_once(';')?;
        let (says, claims) = rest.rsplit_once(';')?;
        let (mut verdicts, mut pages) = (Vec::new(), Vec::new());
        for id in claims.split(' ') {
            for (own_code, id) in [("", id.to_string()), ("its own code: ", format!("{id}{AS_WRITTEN}"))] {
                for experiment in &findings.experiments {
                    let runs = experiment.runs.iter().filter(|run| !run.is_own);
                    let of_claim = runs.flat_map(|run| &run.judgements).filter(|j| j.of.id == id && j.carries);
                    let said: Vec<String> = of_claim
                        .filter(|j| j.verdict != Verdict::NotMeasured)
                        .map(|j| format!("{own_code}{}, {}", prose::standing(j, Against::Claim), prose::platform(j.platform)))
                        .collect();
                    if !said.is_empty() {
                        pages.push(Markdown::link(&experiment.runs[0].protocol.title, &experiment.page()));
                        verdicts.extend(said);
                    }
                }
            }
        }
        if verdicts.is_empty() {
            let untested = "– not put to the test: it would endanger the machine";
            verdicts.push(if claims.is_empty() { untested } else { "– not known yet: needs a GPU" }.to_string());
        }
        pages.dedup_by(|a, b| a.as_str() == b.as_str());
        Some(context! { guide, says, verdicts, pages })
    };
    SENTENCES.lines().skip(1).filter_map(row).collect()
}

/// The claims that some machine has figures of, with what became of each there: those of the guides first, by guide.
pub fn claims(pages: &[Page]) -> Vec<Value> {
    let mut claims = Vec::new();
    for page in pages.iter().filter(|page| page.kind == SubjectKind::Technique) {
        for of_claim in page.verdicts.chunk_by(|a, b| a.claim == b.claim) {
            let first = &of_claim[0];
            let said =
                of_claim.iter().filter(|row| row.kind != "informational").map(|row| format!("{}, {}", row.verdict, row.machine));
            let verdicts: Vec<String> = said.collect();
            if !verdicts.is_empty() {
                let page = Markdown::link(&page.title, &page.file);
                claims.push((&first.guides, context! { guides => &first.guides, claim => &first.claim, page, verdicts }));
            }
        }
    }
    claims.sort_by_key(|(guides, _)| (guides.as_str().is_empty(), guides.as_str()));
    claims.into_iter().map(|(_, claim)| claim).collect()
}
