//! The claims that are committed: their questions are the guides' own, their meters move, and a second evaluator gives the same verdicts.

use super::project::committed;
use record::protocol::{PlainProtocol, Platform};
use record::results::{Run, came, folders};
use record::rules::{Bound, RulePart};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Every run that came with the project, with its machine's name.
fn runs() -> Vec<(String, Run)> {
    let machines = came(&committed().join("results"));
    let of = |machine: &std::path::PathBuf| {
        let name = machine.file_name().unwrap().to_string_lossy().into_owned();
        folders(machine).unwrap().into_iter().map(move |folder| (name.clone(), Run::read(&folder).unwrap()))
    };
    machines.iter().flat_map(of).collect()
}

/// The newest protocol of each experiment.
fn protocols() -> BTreeMap<String, PlainProtocol> {
    let mut found: BTreeMap<String, (u32, PlainProtocol)> = BTreeMap::new();
    for (_, run) in runs() {
        let (name, revision) = (run.manifest.method.experiment.clone(), run.manifest.method.revision);
        if found.get(&name).is_none_or(|(known, _)| *known < revision) {
            found.insert(name, (revision, run.manifest.protocol));
        }
    }
    found.into_iter().map(|(name, (_, protocol))| (name, protocol)).collect()
}

fn sentences() -> Vec<[String; 7]> {
    let rows =
        csv::ReaderBuilder::new().delimiter(b';').from_reader(include_bytes!("../../src/report/src/sentences.csv").as_slice());
    let row = |row: csv::StringRecord| std::array::from_fn(|n| row.get(n).unwrap().to_string());
    rows.into_records().map(|record| row(record.unwrap())).collect()
}

/// A claim is from the guides whose sentences it answers, about the figure that they name, and on the side that they say; and it has a bound of
/// the lab's own only where the sentence says how much.
#[test]
fn each_claim_asks_what_its_guides_sentence_says() {
    let protocols = protocols();
    let claims: Vec<_> = protocols.values().flat_map(|protocol| &protocol.claims).collect();
    let mut guides: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for [guide, original, _, claim, effect, side, how_much] in sentences() {
        assert!(!original.is_empty() && ["less", "more", "equal", "exists"].contains(&side.as_str()), "{original}: {side}");
        if claim.is_empty() {
            assert!(!how_much.is_empty(), "{original} has no claim, and does not say why");
            continue;
        }
        guides.entry(claim.clone()).or_default().insert(guide);
        let of = claims.iter().find(|known| known.id == claim).unwrap_or_else(|| panic!("no experiment claims '{claim}'"));
        let parts = of.rule.parts();
        let part = parts.iter().find(|part| part.rule.metrics().contains(&effect.as_str()));
        let part = part.unwrap_or_else(|| panic!("{claim}: no part is about '{effect}'"));
        let confirm = part.rule.bounds().map(|(confirm, _)| confirm);
        let is_of_side = match (side.as_str(), confirm) {
            ("less", Some(Bound::AtMost(_) | Bound::Within(..))) | ("more", Some(Bound::AtLeast(_))) => true,
            ("equal" | "exists", _) => true,
            (_, confirm) => confirm.is_none(),
        };
        assert!(is_of_side, "{claim}: the sentence says {side}, and {confirm:?} confirms it");
        // A ratio of a sentence without a figure is confirmed by its side.
        if how_much.is_empty()
            && let (RulePart::Ratio(_), Some(Bound::AtMost(limit) | Bound::AtLeast(limit))) = (part.rule, confirm)
        {
            assert!((limit - 1.0).abs() < 0.021, "{claim}: the guide does not say how much, and {limit} is asked");
        }
    }
    for claim in &claims {
        let from: BTreeSet<String> =
            claim.from.split_whitespace().filter(|number| number.parse::<u32>().is_ok()).map(str::to_string).collect();
        assert_eq!(guides.get(&claim.id).cloned().unwrap_or_default(), from, "{}: whose sentences are these?", claim.id);
    }
}

/// Metrics that claims read and that have one and the same value in every cell, each with why that is no dead meter.
const INNOCENT: [(&str, &str, &str); 10] = [
    ("amp", "not_zero", "how many gradients there are, of which the claim counts those that are lost"),
    ("agreement", "gradient_error", "0 is the claim: libtorch computes the same bits from Rust and from Python"),
    ("agreement", "loss_error", "0 is the claim: libtorch computes the same bits from Rust and from Python"),
    ("agreement", "parameter_error", "0 is the claim: libtorch computes the same bits from Rust and from Python"),
    ("checkpointing", "gradient_error", "what is computed again is computed by the same kernels of a CPU: no bit differs"),
    ("load_checkpoint", "dropped", "all of the loaded state is freed once it is dropped: this is the claim"),
    ("lr_warmup", "starts", "how many starts there were, of which the claim counts those that diverge"),
    ("pin_memory", "device_bytes", "one byte of the device for each that is sent: this is the claim"),
    ("pin_memory", "raised", "no step of the H100 raised; what raises is asked of machines without a GPU"),
    ("step_timeline", "loaded", "after the load there is the model and nothing else: this is the claim"),
];

/// A meter that says the same whatever happens judges nothing.
#[test]
fn no_metric_that_claims_read_is_dead() {
    let mut dead: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (machine, run) in runs() {
        let protocol = &run.manifest.protocol;
        let read: BTreeSet<&str> = protocol.claims.iter().flat_map(|claim| claim.rule.metrics()).collect();
        for metric in read {
            let samples = run.passes.iter().flat_map(|pass| pass.samples.iter().map(move |sample| (&pass.cell, sample)));
            let own: Vec<_> = samples.filter(|(_, sample)| sample.metric == metric).collect();
            let cells: BTreeSet<_> = own.iter().map(|(cell, _)| *cell).collect();
            let values: BTreeSet<u64> = own.iter().map(|(_, sample)| sample.value.to_bits()).collect();
            if cells.len() > 1 && values.len() == 1 {
                let key = (protocol.name.clone(), metric.to_string());
                dead.entry(key).or_default().push(format!("{machine}: {} in {} cells", own[0].1.value, cells.len()));
            }
        }
    }
    let is_known = |key: &(String, String)| INNOCENT.iter().any(|(of, name, _)| (*of, *name) == (&*key.0, &*key.1));
    let unknown: Vec<_> = dead.iter().filter(|(key, _)| !is_known(key)).collect();
    assert!(unknown.is_empty(), "the same everywhere, and claims read them: {unknown:#?}");
    for (experiment, metric, _) in INNOCENT {
        assert!(
            dead.contains_key(&(experiment.into(), metric.into())),
            "{experiment}: '{metric}' moves: it needs no excuse any more"
        );
    }
}

/// An evaluator in another language, from protocols and samples alone.
#[test]
fn a_second_evaluator_gives_the_same_verdicts() {
    let output =
        Command::new("python3").arg("-B").arg(common::root().join("tests/report/evaluate.py")).arg(committed()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let same: usize = said.split(' ').next().unwrap().parse().unwrap();
    assert!(same > 150, "{said}");
}

/// Nobody who has the guides alone looks for a sentence in vain, and what can be measured without a GPU is.
#[test]
fn every_sentence_of_the_guides_stands_on_their_page_with_what_became_of_it() {
    let page = std::fs::read_to_string(committed().join("report/guides.md")).unwrap();
    let plain = |text: &str| text.replace(['\\', '~', '*', '_', '[', ']', '<', '>', '`', '|', '"', '&'], "");
    let text = plain(&page.replace("&amp;", "").replace("&lt;", "").replace("&gt;", ""));
    for [guide, original, ..] in sentences() {
        let head: String = plain(&original).chars().take(40).collect();
        assert!(text.contains(&head), "guide {guide}: {original}");
    }
}

/// What a GPU measured stands beside what was predicted, or the page says that none has.
#[test]
fn every_page_of_a_technique_says_what_a_gpu_measured() {
    let (mut beside, mut none) = (0, 0);
    for page in std::fs::read_dir(committed().join("report")).unwrap().map(|entry| entry.unwrap().path()) {
        let Some(text) = std::fs::read_to_string(&page).ok().filter(|text| text.contains("<summary>Evidence: claims")) else {
            continue;
        };
        let (has_table, has_none) =
            (text.contains("**Measured on a GPU, beside what was predicted**"), text.contains("**Measured on a GPU**: nothing"));
        assert!(has_table != has_none, "{}", page.display());
        (beside, none) = (beside + usize::from(has_table), none + usize::from(has_none));
    }
    assert!(beside >= 16 && none > 5, "{beside} with rows of a GPU, {none} without");
}

/// A GPU's verdict is on a page as soon as it is in the records.
#[test]
fn verdicts_of_gpus_are_in_the_table() {
    let table = std::fs::read_to_string(committed().join("report/data/verdicts.csv")).unwrap();
    let gpus = runs().into_iter().filter(|(_, run)| run.manifest.identity.platform == Platform::Gpu);
    let mut seen = 0;
    for (machine, run) in gpus {
        assert!(table.contains(&format!(",{machine},")), "{machine} is not there");
        assert!(table.contains(&run.manifest.method.experiment));
        seen += 1;
    }
    assert!(seen >= 9, "{seen}");
}

#[test]
fn a_changed_verdict_is_told_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let head = "experiment,claim,machine,platform,verdict,carries,effect,changed\n";
    let write = |name: &str, rows: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, format!("{head}{rows}")).unwrap();
        file
    };
    let before = write(
        "a.csv",
        "x,less,m,CPU,refuted,true,−5 %,\nx,more,m,CPU,confirmed,true,+5 %,\nx,odd,m,CPU,refuted,true,0,\ny,same,m,CPU,refuted,true,,\n",
    );
    let after = write(
        "b.csv",
        "x,less,m,CPU,confirmed,true,−5 %,the guide says less\nx,more,m,CPU,not decided,true,+1 %,\nx,odd,m,CPU,depends,true,0,\ny,same,m,CPU,refuted,true,,\n",
    );
    let said = report::diff_verdicts(&before, &after).unwrap();
    let lines = "x: less, m: refuted -> confirmed\n  the guide says less\nx: more, m: confirmed -> not decided\n  measured anew: +5 % -> +1 %\n\
                 x: odd, m: refuted -> depends\n  no reason is given: claim and figures are as they were\n";
    assert_eq!(said, format!("Verdicts: 1 the same, 3 different\n{lines}"));
}
