//! `vramlab check` and `vramlab diff` as their users call them, on copies of the committed results.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn committed() -> PathBuf {
    super::project::committed().join("records")
}

/// Exit status, and what was said.
fn vramlab(arguments: &[&Path], command: &str) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vramlab")).arg(command).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.code().unwrap(), said)
}

/// A machine with copies of some experiments of a committed one.
fn copy(root: &Path, machine: &str, experiments: &[&str]) -> PathBuf {
    super::project::copy_tree(&committed().join("protocols"), &root.join("protocols"), |_| false);
    let folder = root.join(machine.rsplit_once('/').unwrap().1);
    for experiment in experiments {
        let to = folder.join(experiment);
        std::fs::create_dir_all(&to).unwrap();
        for file in ["run.json", "samples.csv"] {
            std::fs::copy(committed().join(machine).join(experiment).join(file), to.join(file)).unwrap();
        }
    }
    folder
}

#[test]
fn the_committed_results_can_be_contributed() {
    for machine in record::results::came(&committed().with_file_name("results")) {
        let (status, said) = vramlab(&[&machine], "check");
        assert_eq!((status, said.contains("whole and valid")), (0, true), "{said}");
    }
}

#[test]
fn times_of_two_processors_are_no_one_machines() {
    let root = tempfile::tempdir().unwrap();
    let machine = copy(root.path(), "measured/intel-xeon-2c", &["inplace", "loss"]);
    let change = |from: &str, to: &str| edit(&machine, "run.json", |run| run.replace(from, to));
    change("microcode 0x1", "microcode 0x2");
    assert_eq!(vramlab(&[&machine], "check").0, 0);
    change(", stepping", "1, stepping");
    let (status, said) = vramlab(&[&machine], "check");
    assert!(status == 1 && said.contains("processors of 2 models took these figures"), "{said}");
}

/// A folder of a machine, or the archive that a day on a GPU leaves: checked, put beside the project's, and the text to send it with.
#[test]
fn results_are_contributed_from_a_folder_or_an_archive() {
    let root = tempfile::tempdir().unwrap();
    let day = root.path().join("gpu-day");
    let machine = copy(&day.join("results"), "measured/intel-xeon-2c", &["inplace"]);
    std::fs::rename(&machine, machine.with_file_name("another")).unwrap();
    let folder = machine.with_file_name("another").join("inplace/run.json");
    let run = std::fs::read_to_string(&folder).unwrap();
    std::fs::write(&folder, run.replace("\"machine\": \"intel-xeon-2c\"", "\"machine\": \"another\"")).unwrap();
    let archive = root.path().join("gpu-day.tar.xz");
    let packed =
        Command::new("python3").args(["-m", "tarfile", "-c"]).arg(&archive).arg("gpu-day").current_dir(root.path()).status();
    assert!(packed.unwrap().success());
    let contribute = |given: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
        let output =
            command.arg("contribute").arg(given).arg("--results").arg(committed().with_file_name("results")).output().unwrap();
        (output.status.code().unwrap(), [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat())
    };
    for given in [&archive, &day.join("results/another")] {
        let (status, said) = contribute(given);
        assert_eq!(status, 0, "{said}");
        for part in ["# Results of CPU (another)", "- experiments: inplace", "A: CPU (intel-xeon-2c)", "just report"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    std::fs::write(&folder, std::fs::read_to_string(&folder).unwrap().replace("\"git_dirty\": false", "\"git_dirty\": true"))
        .unwrap();
    let (status, said) = contribute(&day);
    assert!(status == 1 && said.contains("local changes"), "{said}");
    assert_eq!(contribute(root.path().join("nothing").as_path()).0, 1);
}

/// Changes one of the two files of an experiment.
fn edit(folder: &Path, file: &str, change: impl FnOnce(String) -> String) {
    let path = folder.join("inplace").join(file);
    std::fs::write(&path, change(std::fs::read_to_string(&path).unwrap())).unwrap();
}

fn edit_json(folder: &Path, pointer: &str, value: Value) {
    edit(folder, "run.json", |text| {
        let mut document: Value = serde_json::from_str(&text).unwrap();
        *document.pointer_mut(pointer).unwrap() = value;
        document.to_string()
    });
}

/// Replaces the first row that has a text by what it becomes.
fn edit_row(folder: &Path, with: &str, change: impl Fn(&str) -> String) {
    edit(folder, "samples.csv", |text| {
        let row = text.lines().find(|row| row.contains(with)).unwrap_or_else(|| panic!("no row has {with}"));
        text.replacen(row, &change(row), 1)
    });
}

#[test]
fn what_must_not_be_contributed_is_refused_with_the_reason() {
    const MACHINE: &str = "measured/intel-xeon-2c";
    type Damage = Box<dyn Fn(&Path)>;
    let cases: Vec<(&str, Damage)> = vec![
        (
            "local changes",
            Box::new(|f| edit(f, "run.json", |text| text.replacen("\"git_dirty\": false", "\"git_dirty\": true", 1))),
        ),
        ("name the machine's folder so", Box::new(|f| edit_json(f, "/identity/machine", "another".into()))),
        (
            "run.json has a text that no run writes",
            Box::new(|f| edit_json(f, "/identity/hardware/cpu", "<IMG src=x onerror=x>".into())),
        ),
        (
            "configurations are measured in full",
            Box::new(|f| edit(f, "samples.csv", |text| text.lines().take(40).map(|l| format!("{l}\n")).collect())),
        ),
        (
            "which its protocol does not plan",
            Box::new(|f| edit(f, "samples.csv", |text| text.replace("form=clone", "form=cloned"))),
        ),
        (
            "samples.csv has a text that no run writes",
            Box::new(|f| edit_row(f, ",raised,1,", |row| format!("{row}<script>x</script>"))),
        ),
        ("which its protocol gives in", Box::new(|f| edit_row(f, ",requested_peak,B,", |row| row.replace(",B,", ",s,")))),
        (
            "which no machine has",
            Box::new(|f| edit_row(f, ",requested_peak,B,", |row| row.replace(",B,", ",B,17000000000000000000"))),
        ),
        ("has no 'requested_peak' in round 1 of its memory passes", {
            Box::new(|f| edit_row(f, ",requested_peak,B,", |row| row.replace(",requested_peak,B,", ",step_peak,B,")))
        }),
        (
            "nothing of it was compared with its baseline",
            Box::new(|f| {
                edit(f, "samples.csv", |text| {
                    text.lines().filter(|row| !row.contains("_error,")).map(|row| format!("{row}\n")).collect()
                })
            }),
        ),
        ("has no round 2 of its time passes, and later ones", {
            let second = |row: &&str| {
                row.split(',').nth(1).is_none_or(|round| round != "2") || row.contains(",pass.memory") || row.contains(",B,")
            };
            Box::new(move |f| edit(f, "samples.csv", |text| text.lines().filter(second).map(|row| format!("{row}\n")).collect()))
        }),
        (
            "is a link",
            Box::new(|f| {
                let (file, moved) = (f.join("inplace/samples.csv"), f.join("elsewhere.csv"));
                std::fs::rename(&file, &moved).unwrap();
                std::os::unix::fs::symlink(&moved, &file).unwrap();
            }),
        ),
        ("negative time", Box::new(|f| edit_row(f, ",time,s,", |row| row.replace(",time,s,", ",time,s,-")))),
        ("damaged", Box::new(|f| edit_row(f, ",time,s,", |row| row.replace(",time,s,", ",time,s,x")))),
        ("run.json", Box::new(|f| edit(f, "run.json", |text| text[..text.len() / 2].to_string()))),
        ("ended as error: broken", Box::new(|f| edit_row(f, ",pass.", |row| row.replace(",ok,", ",error,broken")))),
    ];
    for (expected, damage) in cases {
        let root = tempfile::tempdir().unwrap();
        let folder = copy(root.path(), MACHINE, &["inplace"]);
        damage(&folder);
        let (status, said) = vramlab(&[&folder], "check");
        assert_eq!((status, said.contains(expected)), (1, true), "{expected}: {said}");
        assert!(said.lines().all(|line| line.len() < 400) && !said.contains("panicked"), "{said}");
    }
    let root = tempfile::tempdir().unwrap();
    let (status, said) = vramlab(&[root.path()], "check");
    assert!(status == 1 && said.contains("no results in"), "{said}");
}

/// Rows that say that the budget ended are no results, and neither are fewer rounds than were set.
#[test]
fn results_that_a_budget_cut_short_are_not_whole() {
    let closing = |row: &str, pass: &str| row.contains(&format!(",pass.{pass},"));
    let left_out = |row: &str| {
        let (cell, rest) = row.split_once(',').unwrap();
        let (round, _) = rest.split_once(',').unwrap();
        format!("{cell},{round},0,pass.memory,s,,skipped,the budget ended before this cell's turn")
    };
    type Change<'a> = &'a dyn Fn(&str) -> Option<String>;
    let cases: [(&str, Change); 2] = [
        ("rows of a budget that ended", &|row| match row.starts_with("workload=chain") && !closing(row, "check") {
            true if closing(row, "memory") => Some(left_out(row)),
            true => None,
            false => Some(row.to_string()),
        }),
        ("a round that lacks", &|row| (!row.contains(",3,") || row.contains("pass.memory")).then(|| row.to_string())),
    ];
    for (name, change) in cases {
        let root = tempfile::tempdir().unwrap();
        let folder = copy(root.path(), "measured/intel-xeon-2c", &["inplace"]);
        let (status, said) = vramlab(&[&folder], "check");
        assert_eq!((status, said.contains("whole and valid")), (0, true), "{said}");
        edit(&folder, "samples.csv", |text| text.lines().filter_map(change).map(|row| row + "\n").collect());
        let (status, said) = vramlab(&[&folder], "check");
        assert!(status == 1 && said.contains(" of 24 configurations are measured in full, '"), "{name}: {said}");
    }
}

/// Whose results these are decides what stands in their folders: a pipe has no end.
#[test]
fn a_pipe_in_the_place_of_samples_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let machine = copy(root.path(), "measured/intel-xeon-2c", &["inplace"]);
    let samples = machine.join("inplace/samples.csv");
    std::fs::remove_file(&samples).unwrap();
    assert!(Command::new("mkfifo").arg(&samples).status().unwrap().success());
    let (status, said) = vramlab(&[&machine], "check");
    assert!(status == 1 && said.contains("samples.csv is no file"), "{said}");
}

#[test]
fn two_machines_are_set_side_by_side() {
    let (cpu, dry) = (committed().join("measured/intel-xeon-2c"), committed().join("predicted/dry-24gib"));
    let (status, said) = vramlab(&[&cpu, &cpu], "diff");
    assert!(status == 0 && said.contains("different:\n  none") && said.contains(" 0 apart"), "{said}");
    let (status, said) = vramlab(&[&cpu, &dry], "diff");
    assert!(status == 0 && said.starts_with("A: CPU (intel-xeon-2c)\nB: simulated 24 GiB GPU"), "{said}");
    // One copy in which half of the peaks of a technique are gone.
    let root = tempfile::tempdir().unwrap();
    let folder = copy(root.path(), "measured/intel-xeon-2c", &["inplace"]);
    edit(&folder, "samples.csv", |text| {
        let halved = |row: &str| match row.split_once(",requested_peak,B,") {
            Some((cell, rest)) if cell.contains("form=clone") => {
                let (value, rest) = rest.split_once(',').unwrap();
                format!("{cell},requested_peak,B,{},{rest}", value.parse::<f64>().unwrap() / 2.0)
            }
            _ => row.to_string(),
        };
        text.lines().map(|row| halved(row) + "\n").collect()
    });
    let (status, said) = vramlab(&[&cpu, &folder], "diff");
    let apart: Vec<&str> = said.lines().filter(|line| line.contains("form=clone") && line.contains("peak memory: A ")).collect();
    assert!(status == 0 && !apart.is_empty() && said.lines().filter(|line| line.contains(": A ")).count() == apart.len(), "{said}");
    let other = copy(root.path(), "predicted/dry-24gib", &["published"]);
    let (status, said) = vramlab(&[&folder, &other], "diff");
    assert!(status == 1 && said.contains("no experiment in common"), "{said}");
    let (status, said) = vramlab(&[&folder, &root.path().join("nowhere")], "diff");
    assert!(status == 1 && said.contains("nowhere") && !said.contains("panicked"), "{said}");
}
