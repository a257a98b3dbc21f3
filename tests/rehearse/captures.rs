//! What `vramlab show` gives of rehearsals that were recorded once: nothing runs.

use crate::scene::{VRAMLAB, unwrapped};
use serde_json::Value;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A rehearsal that was recorded once: of a script, or of SCRIPT-WORD with words.
pub fn capture(name: &str) -> PathBuf {
    common::root().join("tests/rehearse/captures").join(name).with_extension("cap")
}

/// All that is said of it, and its answer.
pub fn shown(name: &str) -> (String, Value) {
    show(&capture(name))
}

/// All that the program says of it, and its answer on the standard output.
pub fn output_of(capture: &Path) -> Output {
    Command::new(VRAMLAB).args(["show", "-v", "--json", "-"]).arg(capture).output().unwrap()
}

fn show(capture: &Path) -> (String, Value) {
    let output = output_of(capture);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let answer = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{}: {error}: {said}", capture.display()));
    (said, answer)
}

#[test]
fn a_recorded_rehearsal_gives_the_answer_that_is_written_beside_it() {
    let mut others = Vec::new();
    for entry in fs::read_dir(common::root().join("tests/rehearse/captures")).unwrap() {
        let capture = entry.unwrap().path();
        if capture.extension().is_some_and(|extension| extension == "cap") {
            let output = Command::new(VRAMLAB).args(["show", "-v"]).arg(&capture).output().unwrap();
            let (said, written) = (String::from_utf8_lossy(&output.stderr).into_owned(), capture.with_extension("txt"));
            let known = fs::read_to_string(&written).unwrap_or_default();
            // The whole text, so that a change of any part of an answer is seen where it is made.
            if said != known {
                let missing = |mark: char, of: &str, other: &str| -> Vec<String> {
                    let is_there: HashSet<&str> = other.lines().collect();
                    of.lines().filter(|line| !is_there.contains(line)).map(|line| format!("{mark} {line}\n")).collect()
                };
                let changes = [missing('-', &known, &said), missing('+', &said, &known)].concat().concat();
                others.push(format!("{VRAMLAB} show -v {} 2> {}\n{changes}", capture.display(), written.display()));
            }
        }
    }
    assert!(others.is_empty(), "{} answers are others; if one is right now, write it anew:\n{}", others.len(), others.concat());
}

#[test]
fn captures_and_answers_are_compared_with_one_another() {
    let (folder, vramlab) = (tempfile::tempdir().unwrap(), || Command::new(VRAMLAB));
    let capture = common::root().join("tests/rehearse/captures/training.cap");
    let (answer, other) = (folder.path().join("answer.json"), folder.path().join("other.json"));
    assert!(vramlab().arg("show").arg(&capture).arg("--quiet").arg("--json").arg(&answer).status().unwrap().success());
    let same = vramlab().arg("diff").arg(&capture).arg(&answer).output().unwrap();
    assert!(String::from_utf8_lossy(&same.stdout).contains("Both peaks hold the same"), "{same:?}");
    // One group of blocks less.
    let mut text: Value = serde_json::from_slice(&fs::read(&answer).unwrap()).unwrap();
    let gone = text["processes"][0]["peak"]["contents"].as_array_mut().unwrap().remove(0);
    fs::write(&other, text.to_string()).unwrap();
    let grown = vramlab().arg("diff").args([&other, &capture]).args(["--json", "-"]).output().unwrap();
    let found: Value = serde_json::from_slice(&grown.stdout).unwrap();
    let rows = found["rows"].as_array().unwrap();
    let sum: i64 = rows.iter().map(|row| row["bytes"].as_i64().unwrap()).sum();
    assert_eq!(Some(sum), gone["allocated"].as_i64(), "{found}");
    let refused = vramlab().arg("diff").arg(&capture).arg(common::root().join("README.md")).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("neither an answer of vramlab rehearse --json nor a capture"), "{said}");
}

/// PyTorch's own snapshot, with and without expandable segments, and files that are none.
#[test]
fn a_snapshot_of_pytorchs_allocator_says_what_filled_it_and_what_it_would_need() {
    says_what_filled_it("", false);
}

#[test]
#[ignore = "long"]
fn a_snapshot_with_expandable_segments_says_what_ran_out() {
    says_what_filled_it("expandable_segments:True", true);
}

fn says_what_filled_it(settings: &str, runs_out: bool) {
    let script = common::root().join("tests/rehearse/recorded_history.py");
    let folder = tempfile::tempdir().unwrap();
    let vramlab = || {
        let mut command = Command::new(VRAMLAB);
        command.current_dir(folder.path()).env("PYTORCH_CUDA_ALLOC_CONF", settings);
        command
    };
    let flags = ["rehearse", "--gpu", "rtx-4090", "--steps", "all", "--writes", "--json", "rehearsed.json", "--"];
    let rehearsed = vramlab().args(flags).arg(common::python()).arg(&script).args(runs_out.then_some("runs out")).output().unwrap();
    let said = String::from_utf8_lossy(&rehearsed.stdout).into_owned();
    let meters: Vec<i64> =
        said.lines().find_map(|line| line.strip_prefix("meters ")).unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
    let show = |flags: &[&str]| {
        let mut command = vramlab();
        command.args(["show", "snapshot.pickle", "--json", "answer.json"]).args(flags).arg("--python").arg(common::python());
        command.output().unwrap()
    };
    let read = |name: &str| serde_json::from_slice::<Value>(&fs::read(folder.path().join(name)).unwrap()).unwrap();
    let shown = show(&["--gpu", "rtx-4090"]);
    let said = String::from_utf8_lossy(&shown.stderr).into_owned();
    let answer = read("answer.json");
    assert_eq!((answer["peak_allocated"].as_i64(), answer["peak_reserved"].as_i64()), (Some(meters[0]), Some(meters[1])), "{said}");
    // As of the rehearsal, whose allocations these are.
    let needs = |answer: &serde_json::Value| answer["needs_at_least"].as_i64().unwrap();
    let apart = if runs_out { 0 } else { (needs(&answer) - needs(&read("rehearsed.json"))).abs() };
    assert!(apart <= 64 << 20 && shown.status.code() == Some(0), "{apart} {said}");
    let growth = said.lines().skip_while(|line| !line.contains("What grows")).nth(1).unwrap_or_default();
    assert!(growth.contains("120 MiB  in 6 blocks") && growth.contains("recorded_history.py:17 (<module>)"), "{said}");
    assert!(said.contains("400 MiB were there before the history began"), "{said}");
    assert_eq!(said.contains("Memory ran out once: 1.00 TiB were asked for"), runs_out, "{said}");
    assert!(said.contains("It would fit rtx-4090") && said.contains("max_split_size_mb:128 "), "{said}");
    if runs_out {
        return;
    }
    let small = show(&["--gpu", "1GiB"]);
    assert!(small.status.code() == Some(3) && String::from_utf8_lossy(&small.stderr).contains("would NOT FIT"), "{small:?}");
    // What asks for other things than numbers, lists and text is not run.
    fs::write(folder.path().join("snapshot.pickle"), b"\x80\x04cos\nsystem\n(S'touch run'\ntR.").unwrap();
    let refused = show(&[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("it asks for os.system"), "{said}");
    assert!(!folder.path().join("run").exists());
}

/// docs/symptoms.md: after its command each block has lines of the answer to it, in their order.
#[test]
fn what_people_ask_is_answered_as_the_docs_say() {
    let docs = fs::read_to_string(common::root().join("docs/symptoms.md")).unwrap();
    let mut asked = 0;
    for block in docs.split("```\n").filter(|block| block.starts_with("$ vramlab ")) {
        let (command, said) = block.split_once('\n').unwrap();
        let script = command.rsplit(' ').next().unwrap().trim_end_matches(".py");
        let answer = fs::read_to_string(common::root().join(format!("tests/rehearse/captures/{script}.txt"))).unwrap();
        let answer = answer.replace("/tmp/example/", "");
        let mut lines = answer.lines();
        for line in said.lines() {
            assert!(lines.any(|other| other == line), "{script}: the answer has no line '{line}' there");
        }
        asked += 1;
    }
    assert_eq!(asked, 12);
    assert_eq!(docs.matches("\n## ").count(), 13);
}

/// What the host took while it compiled is no token's time: of tokens alike a warm one is told.
#[test]
fn a_token_is_timed_that_compiled_nothing() {
    let mut capture = rehearse::Capture::open(&common::root().join("tests/rehearse/captures/tokens.cap")).unwrap();
    let seconds =
        |capture: &rehearse::Capture| rehearse::time::predict(&capture.traces[0], &capture.card, 0, None).unwrap().step_seconds;
    let warm = seconds(&capture);
    let work = &mut capture.traces[0].work;
    let last = work.iter().rposition(|work| work.begins_pass).unwrap();
    work[last].host_nanoseconds += 5_000_000_000;
    assert!((seconds(&capture) / warm - 1.0).abs() < 0.1, "{warm} s, then {} s", seconds(&capture));
    // Nor is one in which a CUDA graph was captured, which has more to do than its replays.
    capture.traces[0].work[last..].iter_mut().for_each(|work| work.bytes *= 3.0);
    let begins = |work: &&mut rehearse::time::Work| work.begins_pass && !work.begins_generation;
    let work = &mut capture.traces[0].work;
    work[..last].iter_mut().filter(begins).for_each(|work| work.of_graph = true);
    assert!((seconds(&capture) / warm - 1.0).abs() < 0.1, "{warm} s, then {} s", seconds(&capture));
}

/// The first pass warms up, which takes this machine's time.
#[test]
fn all_passes_take_no_longer_than_as_many_of_the_longest() {
    let mut capture = rehearse::Capture::open(&common::root().join("tests/rehearse/captures/kept_graphs.cap")).unwrap();
    let first = capture.traces[0].work.iter_mut().find(|work| work.begins_pass).unwrap();
    first.host_nanoseconds += 5_000_000_000;
    let time = rehearse::time::predict(&capture.traces[0], &capture.card, 0, None).unwrap();
    let most = 12.0 * time.step_seconds;
    assert_eq!(time.passes, Some(12));
    assert!((0.9 * most..1.001 * most).contains(&time.total_seconds), "{} s beside {} s", time.total_seconds, time.step_seconds);
}

/// A forward pass that a technique cuts in two takes as long as before.
#[test]
fn passes_that_were_one_count_together() {
    let open = || rehearse::Capture::open(&common::root().join("tests/rehearse/captures/kept_graphs.cap")).unwrap();
    let of = |capture: &rehearse::Capture| rehearse::time::predict(&capture.traces[0], &capture.card, 0, None).unwrap();
    let (whole, mut cut) = (open(), open());
    let work = &mut cut.traces[0].work;
    let begins: Vec<usize> = (0..work.len()).filter(|at| work[*at].begins_pass).chain([work.len()]).collect();
    begins.windows(2).for_each(|ends| work[ends[0].midpoint(ends[1])].begins_pass = true);
    let (before, now) = (of(&whole), of(&cut));
    assert!(now.passes > before.passes && now.step_seconds < 0.8 * before.step_seconds);
    let change = now.change_from(&before, false);
    assert!(change.share.abs() < 0.05 && (now.seconds_beside(&before) / before.step_seconds - 1.0).abs() < 0.05, "{change:?}");
}

/// What stands on a terminal at first: at most 24 lines of 80 columns, the verdict in the first of them, and each byte of the card in one row.
#[test]
fn a_short_answer_fits_on_a_terminal() {
    for entry in fs::read_dir(common::root().join("tests/rehearse/captures")).unwrap() {
        let capture = entry.unwrap().path();
        if capture.extension().is_none_or(|extension| extension != "cap") {
            continue;
        }
        let show = |flags: &[&str]| {
            let mut command = Command::new(VRAMLAB);
            command.arg("show").arg(&capture).args(flags).env_remove("VRAMLAB_VERBOSE").output().unwrap()
        };
        let output = show(&[]);
        let said = String::from_utf8_lossy(&output.stderr).trim_start().to_string();
        let widest = said.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(said.lines().count() <= 24 && widest <= 80 && !said.contains('\x1b'), "{}\n{said}", capture.display());
        assert!(
            ["FITS", "SERVES", "BARELY", "DOES NOT", "THE SCRIPT", "ENDED"].iter().any(|verdict| said.starts_with(verdict)),
            "{said}"
        );
        let answer: Value = serde_json::from_slice(&show(&["--json", "-"]).stdout).unwrap();
        let account = &answer["account"];
        let sum: i64 = account["rows"].as_array().unwrap().iter().map(|row| row["bytes"].as_i64().unwrap()).sum();
        assert_eq!(Some(sum), account["total"].as_i64(), "{}", capture.display());
        // As nvidia-smi would show it; where it does not fit, what it needs.
        let total = if answer["verdict"] == "does_not_fit" { &answer["needs_at_least"] } else { &answer["peak_on_device"] };
        assert_eq!(&account["total"], total, "{}", capture.display());
    }
}

/// Each kind of finding, and each row of what fills a card, is in an answer that is kept.
#[test]
fn every_finding_and_every_part_of_a_card_has_a_capture() {
    let schema = Command::new(VRAMLAB).args(["schema", "rehearse"]).output().unwrap();
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    let mut missing: HashSet<String> = HashSet::new();
    for one in ["FindingKind", "Part"].iter().flat_map(|name| schema["$defs"][name]["oneOf"].as_array().unwrap()) {
        let names = one["enum"].as_array().into_iter().flatten().chain(one.get("const"));
        missing.extend(names.map(|name| name.as_str().unwrap().to_string()));
    }
    assert!(missing.len() > 30, "{missing:?}");
    for entry in fs::read_dir(common::root().join("tests/rehearse/captures")).unwrap() {
        let capture = entry.unwrap().path();
        if capture.extension().is_some_and(|extension| extension == "cap") {
            let output = Command::new(VRAMLAB).args(["show", "--quiet", "--json", "-"]).arg(&capture).output().unwrap();
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            let rows = answer["account"]["rows"].as_array().into_iter().flatten().map(|row| &row["part"]);
            let processes = answer["processes"].as_array().unwrap().iter();
            let findings = processes.filter_map(|process| process["findings"].as_array()).flatten().map(|found| &found["kind"]);
            rows.chain(findings).for_each(|name| _ = missing.remove(name.as_str().unwrap()));
        }
    }
    // An engine is a package, beside a training in serving.rs; what a script has of CUDA itself is in sharing.rs.
    assert_eq!(missing, HashSet::from(["engine_weights", "outside"].map(str::to_string)));
}

/// In the short answer, whatever keeps it: a list or a part of one, an attribute, a sum, a running mean; and with what to keep instead.
#[test]
fn what_grows_is_said_with_the_variable_that_keeps_it_and_its_cure() {
    let (of_outputs, of_losses, sum) = ("put .detach().cpu() of them", "put .item() or .detach() of them", "add loss.item() to it");
    for (name, variable, cure) in [
        ("keeps-outputs", "kept", of_outputs),
        ("keeps-queue", "queue", of_outputs),
        ("keeps-detached", "kept", "move what it keeps to the host (.cpu())"),
        ("keeps-pairs", "kept", of_losses),
        ("keeps-losses", "logs", of_losses),
        ("keeps-attribute", "trainer.history", of_losses),
        ("keeps-meter", "trainer.meter.values", of_losses),
        ("keeps-closure", "kept", of_outputs),
        ("leak", "losses", of_losses),
        ("keeps-sum", "total", sum),
        ("keeps-evaluations", "total", sum),
        ("keeps-mean", "total", sum),
    ] {
        let output = Command::new(VRAMLAB).arg("show").arg(capture(name)).env_remove("VRAMLAB_VERBOSE").output().unwrap();
        let said = unwrapped(&String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(&format!("`{variable}` keeps it: {cure}")), "{name}: {said}");
    }
    // What a step leaves after it is as much as what it leaves before.
    let of_round = |name: &str| shown(name).1["processes"][0]["growth"]["bytes_per_round"].as_i64().unwrap() >> 20;
    assert_eq!(["keeps-meter", "keeps-evaluations", "keeps-closure", "keeps-outputs"].map(of_round), [80, 80, 8, 8]);
    // Until the next pass has ended, without growing.
    let said = unwrapped(&shown("retained").0);
    assert!(
        said.contains("held by `retain_graph=True in line 13`: leave it out of the last backward pass before a step"),
        "{said}"
    );
}

/// Of a backbone that is never trained; and no advice for what is there already, or for logits that are none.
#[test]
fn features_want_no_graphs_and_a_hidden_layer_is_no_logits() {
    let (said, answer) = shown("features");
    let needless = &answer["processes"][0]["needless_graphs"];
    assert_eq!((&needless["passes"], &needless["of"]), (&4.into(), &7.into()), "{said}");
    let advice = |answer: &Value| answer["advice"].to_string();
    assert!(advice(&answer).contains("no-grad") && !advice(&answer).contains("checkpoint"), "{said}");
    // What is reached is not said to be missing.
    let (said, answer) = shown("validates");
    assert_eq!(answer["processes"][0]["needless_graphs"]["passes"], 3, "{said}");
    assert!(!answer["processes"][0]["unreached"].to_string().contains("evaluation"), "{said}");
    let (said, answer) = shown("hidden_as_wide");
    let rows = answer["account"]["rows"].as_array().unwrap();
    let of_loss = rows.iter().find(|row| row["part"] == "loss").map(|row| row["bytes"].as_i64().unwrap());
    // Logits in bf16 and in fp32, and what the loss makes of them.
    assert!(of_loss.is_some_and(|bytes| bytes <= 3 * 16384 * 1000 * 4), "{said}");
    assert!(!advice(&answer).contains("autocast") && !advice(&answer).contains("chunked-loss"), "{said}");
}

/// What the scripts of captures ask for today is what was recorded, and so is what is answered.
#[test]
fn captures_are_what_their_scripts_ask_for() {
    are_what_their_scripts_ask_for(["attention", "discriminator", "leak", "training"].map(str::to_string).into());
}

#[test]
#[ignore = "long"]
fn captures_of_the_first_half_are_what_their_scripts_ask_for() {
    are_what_their_scripts_ask_for(halves().0);
}

#[test]
#[ignore = "long"]
fn captures_of_the_second_half_are_what_their_scripts_ask_for() {
    are_what_their_scripts_ask_for(halves().1);
}

fn halves() -> (Vec<String>, Vec<String>) {
    let entries = fs::read_dir(common::root().join("tests/rehearse/captures")).unwrap().map(|entry| entry.unwrap().path());
    let of_captures = entries.filter(|path| path.extension().is_some_and(|extension| extension == "cap"));
    let mut names: Vec<String> = of_captures.map(|path| path.file_stem().unwrap().to_str().unwrap().to_string()).collect();
    // PyTorch frees what `vmap` made in the order of addresses, and what `autograd.grad` went through in a thread of its own, while the script goes on;
    // and what compiles for the first time asks for more than what is kept.
    names.retain(|name| !["functional", "attack", "compiled"].contains(&&**name));
    names.sort();
    let second = names.split_off(names.len() / 2);
    assert!(second.len() > 40);
    (names, second)
}

fn are_what_their_scripts_ask_for(names: Vec<String>) {
    let (folder, captures) = (tempfile::tempdir().unwrap(), common::root().join("tests/rehearse/captures"));
    let mut record = Command::new(captures.join("record"));
    record.args(&names).env("INTO", folder.path()).env("VRAMLAB_ZYGOTES", common::scratch().join("zygotes"));
    let output = record.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let example = folder.path().join("example").display().to_string();
    let differ = |name: &String| {
        let [today, kept] = [folder.path(), &captures].map(|folder| folder.join(format!("{name}.cap")));
        let witnesses = Command::new(VRAMLAB).arg("show").arg(&today).arg("--witness").arg(&kept).output().unwrap();
        if !witnesses.status.success() {
            return Some(format!("{name}: {}", String::from_utf8_lossy(&witnesses.stdout)));
        }
        let [today, kept] = [today, kept].map(|capture| lines(&without_the_machines_own(show(&capture).1)));
        let today: Vec<String> = today.iter().map(|line| line.replace(&example, "/tmp/example")).collect();
        let other = today.iter().zip(&kept).find(|(today, kept)| today != kept);
        let is_shorter = || (today.len() != kept.len()).then(|| format!("{} and {} lines", today.len(), kept.len()));
        other.map(|(today, kept)| format!("{today}, was {kept}")).or_else(is_shorter).map(|what| format!("{name}: {what}\n"))
    };
    let found: String = names.iter().filter_map(differ).collect();
    assert!(found.is_empty(), "tests/rehearse/captures/record writes them anew:\n{found}");
}

/// An answer without what another run on another machine gives others of: numbers of processes, what holds files back, the host's
/// memory and its time.
fn without_the_machines_own(mut answer: Value) -> Value {
    match &mut answer {
        Value::Object(fields) => {
            fields.retain(|name, _| !["by", "host", "process", "time", "time_if_it_fitted"].contains(&&**name));
            fields.values_mut().for_each(|value| *value = without_the_machines_own(value.take()));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| *value = without_the_machines_own(value.take())),
        _ => {}
    }
    answer
}

fn lines(answer: &Value) -> Vec<String> {
    serde_json::to_string_pretty(answer).unwrap().lines().map(|line| line.trim().to_string()).collect()
}

/// 16 digits stand for all that a rehearsal asked for; beside another one the first difference is named.
#[test]
fn a_witness_is_the_same_for_the_same_and_names_what_differs() {
    let captures = common::root().join("tests/rehearse/captures");
    let witness = |file: &str, other: Option<&str>| {
        let mut command = Command::new(VRAMLAB);
        command.arg("show").arg(captures.join(file)).arg("--witness").args(other.map(|other| captures.join(other)));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, digits) = witness("training.cap", None);
    assert!(status == Some(0) && digits.trim().len() == 16 && u64::from_str_radix(digits.trim(), 16).is_ok(), "{digits}");
    assert_eq!(witness("training.cap", Some("training.cap")), (Some(0), digits.clone()));
    let (status, said) = witness("training.cap", Some("attention.cap"));
    assert!(status == Some(4) && said.starts_with(&digits) && said.contains(" there, ") && said.contains(" here (row "), "{said}");
}
