//! What a reader notices about a report: every claim, every machine, every failure, pictures that are whole, the same bytes twice.

mod claims;
mod commands;
mod committed;
mod damaged;
mod factorial;
mod fixture;
mod implausible;
mod odd;
mod own;
mod project;
mod safe;
mod svg;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Results of all fixtures and their report, in a folder that is left for who wants to look at it.
fn fixture_report(name: &str) -> (PathBuf, PathBuf) {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&root);
    let (results, out) = (root.join("results"), root.join("report"));
    fixture::write_all(&results);
    report::write(&results, &out).unwrap();
    (results, out)
}

/// All markdown pages, one after the other.
fn text(out: &Path) -> String {
    let mut pages: Vec<PathBuf> = std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

fn page_of(out: &Path, name: &str) -> String {
    std::fs::read_to_string(out.join(format!("{name}.md"))).unwrap()
}

/// Every file of a report with its contents.
fn files(out: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for dir in [out.to_path_buf(), out.join("plots"), out.join("data")] {
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

/// The rows of a table that begin with this text, cell by cell.
fn rows<'a>(text: &'a str, contains: &str) -> Vec<Vec<&'a str>> {
    let lines = text.lines().filter(|line| line.starts_with('|') && line.contains(contains));
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn every_claim_has_its_sentence_first_and_its_verdict_last() {
    let (_, out) = fixture_report("verdicts");
    for protocol in [fixture::accumulation(), fixture::checkpointing(), fixture::inplace()] {
        let page = page_of(&out, &protocol.name);
        for claim in protocol.claims {
            assert!(page.contains(&format!("<a id=\"{}\"></a>", claim.id)), "{} has no permalink", claim.id);
        }
    }
    let page = page_of(&out, "accumulation");
    let memory = rows(&page, "<a id=\"accumulate-memory");
    assert_eq!(memory.len(), 3, "a row for each machine");
    let sentence = memory[0][0];
    assert!(sentence.contains("[Guide 2](guides.md): “Gradient accumulation is a technique that helps reduce"), "{sentence}");
    assert!(sentence.contains("감소시킬 수 있습니다.”<br>With it, larger batches can be used"), "translated: {sentence}");
    assert!(memory[1..].iter().all(|row| row[0].ends_with("</a>″")), "said once: {memory:?}");
    let compared = "peak memory relative to the baseline where k = 4 and regime = fixed-batch";
    let machines = [", CPU (amd-epyc-2c)", ", GPU (nvidia-h200)", " (prediction), simulated 24 GiB GPU"];
    for (row, machine) in memory.iter().zip(machines) {
        assert_eq!(row[1..], [compared, "peak memory −63 % to −68 %", &format!("✔ confirmed{machine}")], "{row:?}");
    }
    let gradients = rows(&page, "id=\"accumulate-gradients");
    assert_eq!(gradients.len(), 3, "a row for each machine");
    assert!(gradients.iter().all(|row| row[2] == "gradients 0 %" && row[3].starts_with("✘ refuted")), "{gradients:?}");
    assert_eq!(rows(&page, "id=\"accumulate-normalise").len(), 2, "a simulated GPU computes nothing, and nothing is said of that");
    let autograd = rows(&page_of(&out, "inplace"), "id=\"inplace-autograd\"").concat().join(" ");
    assert!(autograd.contains("○ informational"), "a claim about GPUs carries no verdict on a CPU: {autograd}");
    let checkpoint = page_of(&out, "checkpointing");
    let gpu = rows(&checkpoint, "nvidia-h200").into_iter().find(|row| row[0].contains("checkpoint-memory")).unwrap();
    assert!(gpu[2].contains("grows as depth^0.50") && gpu[2].contains("(95 % CI +2") && gpu[2].contains("n = 6)"), "{gpu:?}");
    let claims: usize =
        [fixture::accumulation(), fixture::checkpointing(), fixture::inplace()].iter().map(|p| p.claims.len()).sum();
    assert!(claims > 4);
}

#[test]
fn published_figures_have_a_page_of_their_own() {
    let (_, out) = fixture_report("published");
    let page = page_of(&out, "published");
    let chen = rows(&page, "id=\"chen-sqrt\"").concat().join(" ");
    assert!(chen.contains("arXiv 1604.06174") && chen.contains("✔ reproduced"), "{chen}");
    assert!(page.contains("a paper &#124; of others") && page.contains("not comparable: the setups differ"));
    assert!(page.contains("By bytes alone: only times of a GPU"));
    assert!(page.contains("Reproduced by 1.17x to 1.43x; not by less than 1.17x or more than 1.43x."));
    assert!(page.contains("Nobody has this network."));
}

/// Results from before there were published figures in a protocol.
#[test]
fn an_old_protocol_without_published_figures_is_read() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (root.path().join("results"), root.path().join("report"));
    fixture::write(&results, fixture::CPU, fixture::inplace());
    let path = results.join("protocols/inplace-1.json");
    let mut protocol: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(protocol.as_object_mut().unwrap().remove("published").is_some());
    std::fs::write(&path, protocol.to_string()).unwrap();
    report::write(&results, &out).unwrap();
    assert!(!page_of(&out, "published").contains('|'), "nothing about nothing");
}

/// A page's words are those of the file beside the experiment.
#[test]
fn editing_a_page_changes_it_at_once() {
    let (results, out) = fixture_report("edited");
    std::fs::write(fixture::page(&results), "does not\n\nNew prose.\n\n![nowhere]\n").unwrap();
    report::write(&results, &out).unwrap();
    let page = page_of(&out, "inplace");
    assert!(page.contains("New prose."), "{page}");
    assert!(page.contains("the page speaks of the picture 'nowhere', which is not there"), "{page}");
    std::fs::remove_file(fixture::page(&results)).unwrap();
    report::write(&results, &out).unwrap();
    assert!(page_of(&out, "inplace").contains("No editor has written this page yet"));
}

/// A sentence has today's figures; where they break its condition, the page says so, and what nobody has figures of is left out.
#[test]
fn sentences_carry_figures_and_conditions() {
    let (_, out) = fixture_report("words");
    let page = page_of(&out, "inplace");
    let answer = page.lines().find(|line| line.starts_with("It saves ")).unwrap();
    assert!(answer.starts_with("It saves 19 % to 50 %") && answer.ends_with(" &amp; &lt;b&gt;more&lt;/b&gt;."), "{answer}");
    assert!(
        page.contains("**Works where nothing is recorded.**")
            && page.contains("```python\nx = torch.relu_(x)\ny = x  # the same\n```\n")
    );
    assert!(page.contains("\n- Where autograd needs it.\n"), "a condition is not said");
    let broken = page.lines().find(|line| line.starts_with("- It costs ")).unwrap();
    assert!(
        broken.contains("with GPT-2 halved by 50 %. **This sentence wants an editor: it was written for at least 9.00x, and"),
        "{broken}"
    );
    assert!(!page.contains("Nobody has") && page.contains("Left out: 1 sentence, whose figures are not among these results."));
    // What it saves, what it costs, and when.
    let front = page_of(&out, "README");
    let technique = rows(&front, "[In-place operations](inplace.md)").concat();
    assert_eq!(technique[1..], ["−50 % to +24 %, simulated GPU", "–", "works where nothing is recorded"], "{technique:?}");
    // What nobody has written up says so, and shows what there is.
    let page = page_of(&out, "accumulation");
    assert!(
        page.contains("No editor has written this page yet") && page.contains("configurations (see the evidence below)"),
        "{page}"
    );
    assert!(page.contains("saved activations make at least 50 % of peak memory: 1 configuration outside"), "the scope of a claim");
    assert!(page.contains("The most telling of 96 comparisons"));
}

#[test]
fn the_report_says_why_a_configuration_failed() {
    let (_, out) = fixture_report("troubles");
    assert!(page_of(&out, "machines").contains("checkpointing on amd-epyc-2c: 2 out of memory"));
    let checkpointing = page_of(&out, "checkpointing");
    assert!(checkpointing.contains("tried to allocate 96.0 MiB &#124; limit 2.0 GiB"), "{checkpointing}");
    let inplace = page_of(&out, "inplace");
    assert!(inplace.contains("outputs differ by 0.25 &lt;relative&gt; where 0 is expected"));
    assert!(inplace.contains("Time: crashed (signal 9)") && inplace.contains("raises the expected error"));
    let text = text(&out);
    assert!(!text.to_lowercase().contains("skipped"), "nothing about nothing");
    assert!(!text.contains("inplace on dry-24gib"), "a machine that can have no times is not in trouble");
    assert!(text.contains("timed samples lie more than 5 scaled MADs"), "outliers are counted");
}

#[test]
fn machines_and_commands_are_named() {
    let (_, out) = fixture_report("machines");
    let machines = page_of(&out, "machines");
    for part in
        ["NVIDIA H200", "driver: 580.65", "2.11.0", "tf32: off", "quick", "full", "0123456789ab with local changes", "24.0 GiB"]
    {
        assert!(machines.contains(part), "{part}");
    }
    assert_eq!(machines.lines().filter(|l| l.contains("accumulation, checkpointing, inplace")).count(), 3);
    assert!(page_of(&out, "inplace").contains("with inplace --profile full"));
    assert!(page_of(&out, "README").starts_with("<!-- Made by `vramlab report --results "));
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
        let cells = line.matches('|').count();
        assert_eq!(*width.get_or_insert(cells), cells, "{line}");
    }
}

/// By what they are against: what is free first, then by what is saved for a longer step, what trains something else last; what saves nothing
/// is only named.
#[test]
fn techniques_are_tried_by_what_fills_memory() {
    let (_, out) = fixture_report("order");
    let front = page_of(&out, "README");
    let table = section(&front, "## Out of memory? What fills it, and what to try");
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| **")).collect();
    assert_eq!(
        rows,
        [
            "| **activations** | `autocast-bf16` −50 %; −50 %<br>`accumulate-2x` −10 % to −40 %; 0 %<br>`checkpoint-every` −50 %; +20 %<br>`offload-activations` −55 % to −60 %; 5.00x |",
            "| **logits and loss** | `chunked-loss` −20 %; +1 % |",
            "| **optimizer state and gradients** | `lora`\\* −80 %; −30 % |",
        ]
    );
    let page = page_of(&out, "order");
    // Where the band holds both, no sign.
    assert!(page.contains("| `accumulate-2x` | −10 %, time −10 % to +10 % | −40 %, time −10 % to +10 % |"), "{page}");
    assert!(page.contains("| `checkpoint-every` | −50 %, time +20 % (+10 % to +30 %) |"), "{page}");
    assert!(page.contains("| `chunked-loss` | −20 %, time −9 % to +11 % | no &lt;b&gt;loss&lt;/b&gt; &#124; here |"), "{page}");
    assert!(page.contains("less than 3 % on each of these models: factored."), "{page}");
    // Code stays code: nothing in it ends the block.
    assert!(page.contains("```python\nlora()  # ` ` `\n<b>|</b>\n```\n"), "{page}");
}

#[test]
fn pictures_are_linked_whole_and_nothing_in_them_is_clipped() {
    let (_, out) = fixture_report("pictures");
    let text = text(&out);
    let linked: BTreeSet<PathBuf> =
        text.split("plots/").skip(1).map(|rest| PathBuf::from("plots").join(&rest[..rest.find(".svg").unwrap() + 4])).collect();
    let written: BTreeSet<PathBuf> = files(&out).into_keys().filter(|path| path.starts_with("plots")).collect();
    assert_eq!(linked, written);
    for name in ["checkpointing-budget-nvidia-h200.svg", "inplace-peak-nvidia-h200.svg"] {
        assert!(written.contains(&Path::new("plots").join(name)), "{name}");
    }
    for path in written {
        assert_whole(&out.join(path));
    }
    // Of each plot one machine is drawn; alone, each machine has its own.
    let root = tempfile::tempdir().unwrap();
    let alone = |machine: fixture::Machine, picture: &str| {
        let (results, out) = (root.path().join(machine.name), root.path().join("report"));
        for protocol in [fixture::accumulation(), fixture::checkpointing(), fixture::inplace()] {
            fixture::write(&results, machine, protocol);
        }
        report::write(&results, &out).unwrap();
        std::fs::read_to_string(out.join("plots").join(picture)).unwrap()
    };
    let budget = alone(fixture::CPU, "checkpointing-budget-amd-epyc-2c.svg");
    assert!(svg::texts(&budget).1.iter().any(|t| t.text == "out of memory"));
    assert!(alone(fixture::DRY, "inplace-peak-dry-24gib.svg").contains("predicted peak memory"));
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
    fixture::write_with(&results, fixture::CPU, odd::odd(), odd::records);
    report::write(&results, &out).unwrap();
    let written: Vec<PathBuf> = files(&out).into_keys().filter(|path| path.starts_with("plots")).collect();
    // One is a table, the others are drawn for a page and for a phone.
    assert_eq!(written.len(), 2 * (odd::odd().plots.len() - 1));
    for path in written {
        assert_whole(&out.join(path));
    }
    let drawn =
        |plot: &str| std::fs::read_to_string(out.join(format!("plots/{}-{plot}-amd-epyc-2c.svg", odd::odd().name))).unwrap();
    let told = |svg: &str| svg::texts(svg).1.into_iter().map(|text| text.text).collect::<Vec<_>>();
    // The peak is that of the curves, in the phase that it falls in, and a layer that has nothing is not in the legend.
    let areas = told(&drawn("areas"));
    let has = |text: &str| areas.iter().any(|t| t == text);
    assert!(has("peak 11.4 MiB in up:") && has("a higher layer of a long name 75 %, a lower layer 25 %"), "{areas:?}");
    assert!(!has("nothing") && areas.iter().filter(|t| *t == "out of memory").count() == 2, "{areas:?}");
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
            "| `all<of>it` | 954 MiB (67 %) |  |",
            "| `b` | 318 MiB (22 %) | 2.00 KiB |",
            "| `c` | 106 MiB (7 %) |  |",
            "| 6 others | 52.9 MiB (4 %) | 0 B |",
        ]
    );
    assert!(!text.contains("**Parts that are ranked**: kind = step, way = lost"), "a cell without figures has none");
}

#[test]
fn times_stand_beside_the_fastest_rate() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (root.path().join("results"), root.path().join("report"));
    for protocol in [factorial::design(), factorial::rates()] {
        fixture::write_with(&results, fixture::CPU, protocol, factorial::records);
    }
    report::write(&results, &out).unwrap();
    // 1e9 operations in a median of 10.4 s, at 1e9 a second.
    assert!(text(&out).contains("Steps reach 9.62 to 51.3 % of peak FLOP/s (measured"), "{}", text(&out));
}

#[test]
fn one_machine_alone_and_a_run_cut_short() {
    let root = tempfile::tempdir().unwrap();
    let (results, out) = (root.path().join("results"), root.path().join("report"));
    fixture::write(&results, fixture::CPU, fixture::inplace());
    let samples = results.join("amd-epyc-2c/inplace/samples.csv");
    let rows = std::fs::read_to_string(&samples).unwrap();
    let cut = rows.find("workload=chain grad=without form=plain").unwrap();
    std::fs::write(&samples, &rows[..cut]).unwrap();
    report::write(&results, &out).unwrap();
    let text = text(&out);
    assert!(text.contains("plots/inplace-peak-amd-epyc-2c.svg"));
    assert!(text.contains("inplace on amd-epyc-2c: 1 invalid, 3 not measured in full yet"));
    assert!(text.contains("Not measured in full, since the run was cut short"));
    let data = std::fs::read_to_string(out.join("data/inplace-amd-epyc-2c.csv")).unwrap();
    assert!(data.lines().any(|line| line.ends_with(",not run")), "{data}");
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
    std::fs::write(out.join("notes.md"), "mine").unwrap();
    std::fs::write(out.join("gone.md"), "<!-- Made by `vramlab report`; edit nothing here. -->\nof an earlier report").unwrap();
    std::fs::remove_dir_all(results.join("dry-24gib")).unwrap();
    std::fs::remove_dir_all(record::results::records(&results)).unwrap();
    report::write(&results, &out).unwrap();
    let left = files(&out);
    assert!(left.keys().all(|path| !path.to_string_lossy().contains("dry")), "{:?}", left.keys());
    assert!(left.contains_key(Path::new("plots/notes.txt")) && left.contains_key(Path::new("notes.md")));
    assert!(!left.contains_key(Path::new("gone.md")), "a page of an earlier report goes");
    assert!(!text(&out).contains("simulated"), "nothing speaks of predictions where there are none");
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
    fixture::write(&results, fixture::CPU, fixture::inplace());
    std::fs::write(&out, "a file").unwrap();
    let (success, message) = run(&results, &out);
    assert!(!success && message.contains("cannot write the report to") && message.contains("--out"), "{message}");
    std::fs::remove_file(&out).unwrap();
    assert_eq!(run(&results, &out), (true, String::new()));
    assert!(out.join("README.md").exists());
}

/// A run keeps the name of its method; claims and words are those that the method's one file has today, for all machines.
#[test]
fn all_results_of_a_method_are_judged_by_its_one_protocol() {
    let (results, out) = fixture_report("method");
    let path = results.join("protocols/inplace-1.json");
    let protocol = std::fs::read_to_string(&path).unwrap();
    assert!(protocol.contains("0.98") && protocol.contains("1.02"), "{protocol}");
    // An effect on the other side of none than the claim's refutes it, whatever the bounds: the claim itself is changed.
    std::fs::write(&path, protocol.replace("0.98", "1.5").replace("1.02", "9.0")).unwrap();
    let before = rows(&page_of(&out, "inplace"), "id=\"inplace-memory").concat().join(" ");
    report::write(&results, &out).unwrap();
    let after = rows(&page_of(&out, "inplace"), "id=\"inplace-memory").concat().join(" ");
    assert_eq!((before.matches("✘ refuted").count(), before.matches("✔ confirmed").count()), (3, 0), "{before}");
    assert_eq!((after.matches("✘ refuted").count(), after.matches("✔ confirmed").count()), (0, 3), "{before} -> {after}");
    std::fs::rename(&path, results.join("protocols/inplace-2.json")).unwrap();
    let error = format!("{:#}", report::write(&results, &out).unwrap_err());
    assert!(error.contains("was measured by inplace-1, and no folder around it has protocols/inplace-1.json"), "{error}");
}
