//! What a reader notices about a report: every claim, every machine, every failure, pictures that are whole, the same bytes twice.

mod factorial;
mod fixture;
mod odd;
mod page;
mod svg;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use vramlab::report;
use vramlab::results::Run;

/// Results of all fixtures and their report, in a folder that is left for who wants to look at it.
fn fixture_report(name: &str) -> (PathBuf, PathBuf) {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&root);
    let (results, out) = (root.join("results"), root.join("report"));
    fixture::write_all(&results);
    report::write(&results, &out).unwrap();
    (results, out)
}

fn text(out: &Path) -> String {
    std::fs::read_to_string(out.join("report.md")).unwrap()
}

/// Every file of a report with its contents.
fn files(out: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for dir in [out.to_path_buf(), out.join("plots")] {
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
            found.insert(path.strip_prefix(out).unwrap().to_path_buf(), std::fs::read(&path).unwrap());
        }
    }
    found
}

/// The lines of the text from one heading to the next of the same kind.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let start = text.find(heading).unwrap_or_else(|| panic!("no heading '{heading}'"));
    let kind = heading.split(' ').next().unwrap();
    let rest = &text[start + heading.len()..];
    &rest[..rest.find(&format!("\n{kind} ")).unwrap_or(rest.len())]
}

#[test]
fn the_same_results_give_the_same_bytes() {
    let (results, out) = fixture_report("same");
    let first = files(&out);
    assert!(first.len() > 15, "{:?}", first.keys());
    report::write(&results, &out).unwrap();
    assert!(files(&out) == first, "written again over itself");
    let elsewhere = out.with_file_name("elsewhere");
    report::write(&results, &elsewhere).unwrap();
    assert!(files(&elsewhere) == first, "written to another folder");
}

/// The cells of a ledger's line: id, words, then one for each machine.
fn line<'a>(ledger: &'a str, id: &str) -> Vec<&'a str> {
    let row = ledger.lines().find(|l| l.starts_with(&format!("| [{id}]"))).unwrap_or_else(|| panic!("no line for {id}"));
    row.trim_matches('|').split(" | ").map(str::trim).collect()
}

#[test]
fn every_claim_has_one_line_with_every_machine() {
    let (_, out) = fixture_report("ledger");
    let text = text(&out);
    let ledger = section(&text, "## All claims");
    assert!(ledger.contains("| amd-epyc-2c (CPU) | nvidia-h200 (GPU) | dry-24gib (dry device: predictions) |"));
    for protocol in [fixture::ACCUMULATION, fixture::CHECKPOINTING, fixture::INPLACE] {
        for claim in protocol.claims {
            assert_eq!(line(ledger, claim.id).len(), 2 + 3, "{}", claim.id);
            assert!(text.contains(&format!("<a id=\"{}\"></a>", claim.id)), "the ledger's link to {} leads nowhere", claim.id);
        }
    }
    let cells = |claim: &str| line(ledger, claim)[2..].to_vec();
    assert_eq!(cells("accumulate-memory"), ["✔ peak memory 0.32x to 0.37x"; 3]);
    assert_eq!(cells("accumulate-gradients"), ["✘ gradients 1.00x"; 3]);
    let normalise = cells("accumulate-normalise");
    assert!(normalise[0].starts_with("◐ relative error of the gradient 0 to 3") && normalise[2] == "–", "{normalise:?}");
    assert!(cells("inplace-autograd")[0].starts_with("○ error raised"), "a claim about GPUs is shown, not judged, on a CPU");
    let checkpoint = cells("checkpoint-memory")[1];
    assert!(
        checkpoint.contains("<br>growth exponent of saved activations in depth 0.500<br>time per step 1.29x to 1.36x, within 1.2"),
        "{checkpoint}"
    );
    assert!(checkpoint.ends_with("(6 rounds)"), "a time has its interval: {checkpoint}");
}

#[test]
fn published_figures_have_a_ledger_of_their_own() {
    let (_, out) = fixture_report("published");
    let text = text(&out);
    let ledger = section(&text, "## Published figures");
    let chen = line(ledger, "chen-sqrt");
    assert!(chen[1].ends_with("at about 30 % more time (arXiv 1604.06174)"), "{chen:?}");
    assert!(chen[2].starts_with("✔ growth exponent") && chen[3].starts_with("✔") && chen[4].starts_with("✔"), "{chen:?}");
    assert!(chen[3].contains("time per step 1.29x") && !chen[2].contains("time"), "a CPU's time is not put against it: {chen:?}");
    assert_eq!(ledger.matches("| [out-of-reach](#out-of-reach) | 48 to 7 GB (a paper \\| of others) | ○ | ○ | ○ |").count(), 1);
    assert!(text.contains("; 2 published figures: 1 reproduced, 1 not comparable"));
    let evidence = section(section(&text, "## Activation checkpointing"), "### What others published");
    assert!(evidence.contains("**nvidia-h200 (GPU): ✔ reproduced.**"));
    assert!(evidence.contains("**amd-epyc-2c (CPU): ✔ reproduced.** By bytes alone: only times of a GPU"));
    assert!(evidence.contains("Reproduced by 1.17x to 1.43x; not by less than 1.17x or more than 1.43x."));
    assert!(evidence.contains("○ not comparable.**") && evidence.contains("Nobody has this network."));
}

/// Results from before there were published figures in a protocol.
#[test]
fn an_old_protocol_without_published_figures_is_read() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (root.path().join("results"), root.path().join("report"));
    fixture::write(&results, fixture::CPU, fixture::INPLACE);
    let path = results.join("amd-epyc-2c/inplace/run.json");
    let mut run: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(run["protocol"].as_object_mut().unwrap().remove("published").is_some());
    std::fs::write(&path, run.to_string()).unwrap();
    report::write(&results, &out).unwrap();
    assert!(text(&out).contains("No experiment among these results puts its figures against published ones."));
}

#[test]
fn meanings_are_filled_in_and_say_where() {
    let (_, out) = fixture_report("meanings");
    let text = text(&out);
    assert!(!text.contains("{effect}") && !text.contains("{where}"));
    assert!(text.contains("recipe = add and reduction = sum"), "where a claim holds, in words");
    assert!(text.contains("recipe = divide and reduction = mean and tail = even and targets = all"));
    assert!(text.contains("Where activations dominate, four micro-batches bring the peak to 0.32x to 0.37x of the full batch's."));
    assert!(text.contains("A prediction, from bytes alone."));
    assert!(text.contains("Shown, not judged: only figures of GPU may carry this verdict."));
    assert!(text.contains("saved activations make at least 50 % of peak memory: 1 cell outside"), "the scope of a claim");
    assert!(text.contains("<details><summary>All 96 comparisons</summary>"), "all evidence, where there is much of it");
}

#[test]
fn what_gave_no_figure_is_said_in_words_with_its_reason() {
    let (_, out) = fixture_report("troubles");
    let text = text(&out);
    assert!(text.contains("checkpointing on amd-epyc-2c: 2 out of memory"));
    let budget = section(section(&text, "## Activation checkpointing"), "#### Figures of amd-epyc-2c");
    let row = budget.lines().find(|l| l.starts_with("| 512 | **none** (baseline) |")).unwrap();
    assert!(row.contains("*out of memory*"), "{row}");
    assert!(
        budget.contains("Memory: out of memory (tried to allocate 96.0 MiB | limit 2.0 GiB): `depth=64 batch=256 policy=none`")
    );
    assert!(text.contains("its baseline has no figure: out of memory: tried to allocate"), "why a ratio is missing");
    let inplace = section(&text, "## In-place operations");
    assert!(inplace.contains("Check: invalid (outputs differ by 0.25 &lt;relative> where 0 is expected): `workload=single"));
    assert!(inplace.contains("Time: crashed (signal 9)"));
    assert!(inplace.contains("1 cell raises the expected error, 'modified by an inplace operation'"));
    let of_dry = section(inplace, "#### Figures of dry-24gib");
    assert!(of_dry.contains("peak memory, predicted") && of_dry.contains("Time: skipped (a dry device has no time): all cells."));
    assert!(!text.contains(" 0 cells"), "nothing is said of checks that were not made");
    assert!(!text.contains("inplace on dry-24gib"), "a machine that can have no times is not in trouble");
    assert!(text.contains("timed samples lie more than 5 scaled MADs"), "outliers are counted");
}

#[test]
fn machines_and_commands_are_named() {
    let (_, out) = fixture_report("machines");
    let text = text(&out);
    let machines = section(&text, "## Machines");
    for part in
        ["NVIDIA H200", "driver: 580.65", "2.11.0", "tf32: off", "quick", "full", "0123456789ab with local changes", "24.0 GiB"]
    {
        assert!(machines.contains(part), "{part}");
    }
    assert_eq!(machines.lines().filter(|l| l.contains("accumulation, checkpointing, inplace")).count(), 3);
    assert!(text.contains("Taken with `inplace --profile full`"));
    assert!(text.starts_with("<!-- Made by `vramlab report --results "));
}

/// Rows of one table have as many cells as its head; an unescaped bar in a reason would break that.
#[test]
fn tables_are_whole() {
    let (_, out) = fixture_report("tables");
    let mut width = None;
    for line in text(&out).lines().map(str::trim) {
        if !line.starts_with('|') {
            width = None;
            continue;
        }
        let cells = line.replace("\\|", "").matches('|').count();
        assert_eq!(*width.get_or_insert(cells), cells, "{line}");
    }
}

#[test]
fn pictures_are_linked_whole_and_nothing_in_them_is_clipped() {
    let (_, out) = fixture_report("pictures");
    let text = text(&out);
    let linked: BTreeSet<PathBuf> =
        text.split("plots/").skip(1).map(|rest| PathBuf::from("plots").join(&rest[..rest.find(".svg").unwrap() + 4])).collect();
    let written: BTreeSet<PathBuf> = files(&out).into_keys().filter(|path| path.starts_with("plots")).collect();
    assert_eq!(linked, written);
    for name in ["overview-nvidia-h200.svg", "checkpointing-budget-dry-24gib.svg", "accumulation-error-amd-epyc-2c.svg"] {
        assert!(written.contains(&Path::new("plots").join(name)), "{name}");
    }
    for path in written {
        assert_whole(&out.join(path));
    }
    let budget = std::fs::read_to_string(out.join("plots/checkpointing-budget-amd-epyc-2c.svg")).unwrap();
    assert!(svg::texts(&budget).1.iter().any(|t| t.text == "out of memory"));
    let dry = std::fs::read_to_string(out.join("plots/inplace-peak-dry-24gib.svg")).unwrap();
    assert!(dry.contains("predicted peak memory"));
    let errors = std::fs::read_to_string(out.join("plots/accumulation-error-amd-epyc-2c.svg")).unwrap();
    assert!(svg::texts(&errors).1.iter().any(|t| t.text == "exact"), "an error of 0 is shown, not dropped");
}

/// A picture is well-formed, and each of its texts is large enough, inside the picture and on no other text.
fn assert_whole(path: &Path) {
    let picture = std::fs::read_to_string(path).unwrap();
    svg::assert_well_formed(&picture).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (size, texts) = svg::texts(&picture);
    for (n, one) in texts.iter().enumerate() {
        assert!(one.pixels >= 12.0, "{}: '{}' is too small", path.display(), one.text);
        assert!(one.is_within(size), "{}: '{}' is clipped", path.display(), one.text);
        for other in &texts[..n] {
            assert!(!one.overlaps(other), "{}: '{}' lies on '{}'", path.display(), one.text, other.text);
        }
    }
}

#[test]
fn odd_shapes_are_drawn_whole() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("odd");
    let _ = std::fs::remove_dir_all(&root);
    let (results, out) = (root.join("results"), root.join("report"));
    fixture::write_with(&results, fixture::CPU, odd::ODD, odd::records);
    report::write(&results, &out).unwrap();
    let written: Vec<PathBuf> = files(&out).into_keys().filter(|path| path.starts_with("plots")).collect();
    // The overview comes on top, and one is a table.
    assert_eq!(written.len(), odd::ODD.plots.len());
    for path in written {
        assert_whole(&out.join(path));
    }
    let drawn = |plot: &str| std::fs::read_to_string(out.join(format!("plots/{}-{plot}-amd-epyc-2c.svg", odd::ODD.name))).unwrap();
    let told = |svg: &str| svg::texts(svg).1.into_iter().map(|text| text.text).collect::<Vec<_>>();
    // The peak is that of the curves, in the phase that it falls in, and a layer that has nothing is not in the legend.
    let areas = told(&drawn("areas"));
    let has = |text: &str| areas.iter().any(|t| t == text);
    assert!(has("peak 11.4 MiB in up:") && has("a higher layer of a long name 75 %, a lower layer 25 %"), "{areas:?}");
    assert!(!has("nothing") && areas.iter().filter(|t| *t == "out of memory").count() == 2, "{areas:?}");
    let shares = told(&drawn("shares"));
    assert!(shares.iter().any(|t| t == "all<of>it 67 %") && shares.iter().any(|t| t == "other"), "{shares:?}");
    // What has a dot in its name is a detail for pictures.
    let text = text(&out);
    assert!(!text.contains("curve.low") && !text.contains("part.c"), "details stand in no table");
    let (_, ranking) = text.split_once("**Parts that are ranked**: kind = step, way = plain").expect("a ranking of this cell");
    let rows: Vec<&str> = ranking.lines().filter(|line| line.starts_with('|')).take(6).collect();
    assert_eq!(
        rows,
        [
            "| part | bytes | bytes again |",
            "|---|---:|---:|",
            "| `all&lt;of>it` | 954 MiB (67 %) |  |",
            "| `b` | 318 MiB (22 %) | 2.00 KiB |",
            "| `c` | 106 MiB (7 %) |  |",
            "| 6 others | 52.9 MiB (4 %) | 0 B |",
        ]
    );
    assert!(!text.contains("**Parts that are ranked**: kind = step, way = lost"), "a cell without figures has none");
}

#[test]
fn kept_files_come_along_and_are_linked_with_what_opens_them() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (root.path().join("results"), root.path().join("report"));
    fixture::write(&results, fixture::CPU, fixture::INPLACE);
    report::write(&results, &out).unwrap();
    assert!(!text(&out).contains("Kept beside") && !out.join("files").exists());
    let folder = results.join("amd-epyc-2c/inplace/files");
    std::fs::create_dir(&folder).unwrap();
    for (name, contents) in [("trace-a.json.gz", "a trace"), ("snapshot-b.pickle", "a snapshot")] {
        std::fs::write(folder.join(name), contents).unwrap();
    }
    report::write(&results, &out).unwrap();
    let text = text(&out);
    for (name, opens) in
        [("trace-a.json.gz", "(https://ui.perfetto.dev)"), ("snapshot-b.pickle", "(https://pytorch.org/memory_viz)")]
    {
        let path = format!("files/inplace-amd-epyc-2c-{name}");
        let line =
            text.lines().find(|line| line.contains(&format!("[{name}]({path})"))).unwrap_or_else(|| panic!("no link to {name}"));
        assert!(line.contains(opens), "{line}");
        assert_eq!(std::fs::read(out.join(&path)).unwrap(), std::fs::read(folder.join(name)).unwrap());
        let page = std::fs::read_to_string(out.join("index.html")).unwrap();
        assert!(page.contains(&format!("<a href=\"{path}\">{name}</a>")), "the page links it, too");
    }
    std::fs::remove_file(folder.join("trace-a.json.gz")).unwrap();
    report::write(&results, &out).unwrap();
    assert_eq!(std::fs::read_dir(out.join("files")).unwrap().count(), 1, "what is no longer linked goes");
}

#[test]
fn effects_are_averaged_and_times_stand_beside_the_fastest_rate() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (root.path().join("results"), root.path().join("report"));
    for protocol in [factorial::DESIGN, factorial::RATES] {
        fixture::write_with(&results, fixture::CPU, protocol, factorial::records);
    }
    report::write(&results, &out).unwrap();
    let file = out.join("plots/design-effects-amd-epyc-2c.svg");
    assert_whole(&file);
    let svg = std::fs::read_to_string(file).unwrap();
    let told: Vec<String> = svg::texts(&svg).1.into_iter().map(|text| text.text).collect();
    // sqrt(1/2 * 3/4), sqrt(1/4 * 3/8), and 3/4 over 1/2: what slows a whole round down is in none of them.
    for expected in ["0.61x", "0.31x", "1.50x", "a with b", "4 combinations"] {
        assert!(told.iter().any(|text| text == expected), "no {expected} in {told:?}");
    }
    // 1e9 operations in a median of 10.4 s, at 1e9 a second.
    let text = text(&out);
    assert!(text.contains("| of the fastest rate |") && text.contains("| 9.62 % |"), "{}", section(&text, "## design"));
}

#[test]
fn one_machine_alone_and_a_run_cut_short() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (root.path().join("results"), root.path().join("report"));
    fixture::write(&results, fixture::CPU, fixture::INPLACE);
    let samples = results.join("amd-epyc-2c/inplace/samples.csv");
    let rows = std::fs::read_to_string(&samples).unwrap();
    let cut = rows.find("workload=chain grad=without form=plain").unwrap();
    std::fs::write(&samples, &rows[..cut]).unwrap();
    report::write(&results, &out).unwrap();
    let text = text(&out);
    assert!(text.contains("](plots/inplace-peak-amd-epyc-2c.svg)"), "a single picture needs no table");
    assert!(text.contains("inplace on amd-epyc-2c: 1 invalid, 3 not run yet"));
    assert!(text.contains("Not run, since the run was cut short"));
    assert!(text.contains("| *not run* |"));
}

#[test]
fn an_experiment_that_a_machine_did_not_run_is_said_to_be_missing() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (root.path().join("results"), root.path().join("report"));
    fixture::write(&results, fixture::CPU, fixture::INPLACE);
    fixture::write(&results, fixture::GPU, fixture::CHECKPOINTING);
    report::write(&results, &out).unwrap();
    let text = text(&out);
    let row = line(&text, "checkpoint-memory");
    assert_eq!(row[2], "– not run", "{row:?}");
}

#[test]
fn damage_is_named_and_the_old_report_stays_whole() {
    let (results, out) = fixture_report("damage");
    let before = files(&out);
    let samples = results.join("nvidia-h200/checkpointing/samples.csv");
    let rows = std::fs::read_to_string(&samples).unwrap();
    std::fs::write(&samples, rows.replacen(",B,", ",B,x", 1)).unwrap();
    let error = format!("{:#}", report::write(&results, &out).unwrap_err());
    assert!(error.contains("nvidia-h200/checkpointing/samples.csv, line ") && error.contains("damaged"), "{error}");
    assert!(files(&out) == before, "nothing may be written before everything is read");
    std::fs::remove_file(results.join("nvidia-h200/checkpointing/run.json")).unwrap();
    let error = format!("{:#}", report::write(&results, &out).unwrap_err());
    assert!(error.contains("run.json"), "{error}");
}

#[test]
fn outdated_plots_go_and_other_files_stay() {
    let (results, out) = fixture_report("outdated");
    std::fs::write(out.join("plots/notes.txt"), "mine").unwrap();
    std::fs::remove_dir_all(results.join("dry-24gib")).unwrap();
    report::write(&results, &out).unwrap();
    let left = files(&out);
    assert!(left.keys().all(|path| !path.to_string_lossy().contains("dry")), "{:?}", left.keys());
    assert!(left.contains_key(Path::new("plots/notes.txt")));
    assert!(!text(&out).contains("dry"), "nothing speaks of predictions where there are none");
}

#[test]
fn results_in_a_folder_of_another_name_are_refused() {
    let (results, out) = fixture_report("misplaced");
    std::fs::rename(results.join("nvidia-h200/inplace"), results.join("nvidia-h200/outplace")).unwrap();
    let error = format!("{:#}", report::write(&results, &out).unwrap_err());
    assert!(error.contains("outplace holds results of the experiment 'inplace'"), "{error}");
}

#[test]
fn the_command_says_what_is_wrong_and_fails() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (root.path().join("results"), root.path().join("report"));
    let run = |results: &Path, out: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
        let output = command.arg("report").arg("--results").arg(results).arg("--out").arg(out).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (success, message) = run(&results, &out);
    assert!(!success && message.contains("no results in") && message.contains("just run-all"), "{message}");
    std::fs::create_dir_all(results.join("some-machine")).unwrap();
    let (success, message) = run(&results, &out);
    assert!(!success && message.contains("no results in") && !out.exists(), "{message}");
    fixture::write(&results, fixture::CPU, fixture::INPLACE);
    std::fs::write(&out, "a file").unwrap();
    let (success, message) = run(&results, &out);
    assert!(!success && message.contains("cannot write the report to") && message.contains("--out"), "{message}");
    std::fs::remove_file(&out).unwrap();
    assert_eq!(run(&results, &out), (true, String::new()));
    assert!(out.join("report.md").exists());
}

/// What the report shows is what `run.json` says, whatever the experiment's file says today.
#[test]
fn an_old_protocol_is_read_from_its_results() {
    let (results, _) = fixture_report("old");
    let run = Run::read(&results.join("nvidia-h200/accumulation")).unwrap();
    assert_eq!(run.manifest.protocol, fixture::ACCUMULATION);
}
