//! The guides whose claims are tested.

use super::findings::Findings;
use super::markup::Markdown;
use super::pages::Page;
use super::prose::{self, Against};
use record::judge::Verdict;
use record::protocol::SubjectKind;
use serde::Serialize;

/// A claim with what became of it on each machine, for the list of all.
#[derive(Debug, Serialize)]
pub struct GuideClaim {
    pub guides: Markdown,
    pub claim: Markdown,
    /// Where its evidence is.
    pub page: Markdown,
    pub verdicts: Vec<String>,
}

/// A sentence of a guide with what became of it.
#[derive(Debug, Serialize)]
pub struct SentenceRow {
    guide: &'static str,
    says: &'static str,
    verdicts: Vec<String>,
    pages: Vec<Markdown>,
}

/// The guides' sentences and the claims that put them to the test.
const SENTENCES: &str = include_str!("sentences.csv");

/// What ends the id of a claim about a guide's own code for another claim.
const AS_WRITTEN: &str = "-as-written";

/// Every sentence of the guides that says something of memory or speed, in their order.
pub fn sentences(findings: &Findings) -> Vec<SentenceRow> {
    let row = |line: &'static str| {
        let mut fields = line.split(';');
        let (guide, says, claims) = (fields.next()?, fields.next()?, fields.next()?);
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
            verdicts.push(
                if claims.is_empty() {
                    "– not put to the test: it would endanger the machine"
                } else {
                    "– not known yet: needs a GPU"
                }
                .to_string(),
            );
        }
        pages.dedup_by(|a, b| a.as_str() == b.as_str());
        Some(SentenceRow { guide, says, verdicts, pages })
    };
    SENTENCES.lines().skip(1).filter_map(row).collect()
}

/// The claims that some machine has figures of: those of the guides first, by guide.
pub fn claims(pages: &[Page]) -> Vec<GuideClaim> {
    let mut claims = Vec::new();
    for page in pages.iter().filter(|page| page.kind == SubjectKind::Technique) {
        for of_claim in page.verdicts.chunk_by(|a, b| a.claim == b.claim) {
            let first = &of_claim[0];
            let said =
                of_claim.iter().filter(|row| row.kind != "informational").map(|row| format!("{}, {}", row.verdict, row.machine));
            let verdicts: Vec<String> = said.collect();
            let (guides, claim) = (first.guides.clone(), first.claim.clone());
            let page = Markdown::link(&page.title, &page.file);
            claims.extend((!verdicts.is_empty()).then_some(GuideClaim { guides, claim, page, verdicts }));
        }
    }
    claims.sort_by_key(|claim| (claim.guides.as_str().is_empty(), claim.guides.as_str().to_string()));
    claims
}
