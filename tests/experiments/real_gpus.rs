//! The simulated GPU against records of real ones (`records/real_gpus`): peaks that Liger-Kernel published for PyTorch's own operators, and
//! each allocation and free of one step of a language model. What the records ran is run again by PyTorch in Python on the simulated GPU. The rows that
//! the report shows of all records are held against some of them, made again; with VRAMLAB_RECORD=1 all are, and written.

use record::protocol::{PlainProtocol, Profile};
use serde_json::Value;
use sim::cards;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use torch::dry;

/// Runs a script of the records on a card, and gives what it prints and its status. None where no Python has the PyTorch that this test runs on.
fn run(card: &str, script: &str, arguments: &[&str]) -> Option<(String, Option<i32>)> {
    let torch = torch::loaded_library().expect("the loaded libtorch is somewhere");
    let python: PathBuf = torch.ancestors().nth(6).unwrap_or(Path::new("/")).join("bin/python3");
    if !python.exists() {
        common::skipped(&format!("real_gpus: there is no Python beside {}", torch.display()));
        return None;
    }
    let mut command = Command::new(python);
    command.arg("-B").arg(common::root().join("records/real_gpus").join(script)).args(arguments);
    command.env_remove("PYTORCH_ALLOC_CONF").env_remove("PYTORCH_CUDA_ALLOC_CONF").env_remove("CUBLAS_WORKSPACE_CONFIG");
    let card = cards::all().iter().find(|c| c.name == Some(card)).unwrap();
    dry::prepare_python(&mut command, *card).unwrap();
    let output = command.output().unwrap();
    let is_told = output.status.success() || output.status.code() == Some(3);
    assert!(is_told, "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code()))
}

/// What the replay says, line by line.
fn replay(card: &str, what: &str, argument: &str) -> Option<Vec<Value>> {
    let (said, _) = run(card, "replay.py", &[what, argument])?;
    Some(said.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

const HEAD: &str = "cell,round,sample,metric,unit,value,status,reason";

#[test]
#[ignore = "long"]
fn the_rows_that_the_report_shows_are_what_records_give_when_they_are_run_again() {
    let read = |path: &str| std::fs::read_to_string(common::root().join(path)).unwrap();
    let protocol: PlainProtocol = serde_json::from_str(&read("records/protocols/real_gpus-1.json")).unwrap();
    let peaks = protocol.grids(Profile::Full).filter(|grid| grid.name == "peaks").flat_map(|grid| grid.cells()).count();
    assert_eq!(peaks, read("records/real_gpus/peaks.csv").lines().count() - 1, "every row is a cell");
    let samples = "records/predicted/dry-24gib/real_gpus/samples.csv";
    let known = read(samples);
    let is_all = std::env::var_os("VRAMLAB_RECORD").is_some();
    // Of each kind of record that needs no package the first, and the shortest of the steps.
    let wanted = |cell: &str| {
        is_all || cell.starts_with("benchmark=embedding ") && cell.contains("V1024") || cell.contains("medium_128_inference")
    };
    let mut written = vec![HEAD.to_string()];
    let mut cells: BTreeSet<String> = BTreeSet::new();
    for cell in protocol.grids(Profile::Full).flat_map(|grid| grid.cells()).map(|cell| cell.to_string()) {
        if !wanted(&cell) || !cells.insert(cell.clone()) {
            continue;
        }
        let Some((said, status)) = run("a100-80g", "compare.py", &[&cell]) else { return };
        if status == Some(3) {
            written.push(format!("{cell},1,0,pass.memory,s,,skipped,\"{}\"", said.trim()));
            continue;
        }
        for line in said.lines() {
            let row = line.replace(' ', ",");
            assert!(is_all || known.contains(&format!("{cell},1,0,{row},ok,")), "{cell}: {row}");
            written.push(format!("{cell},1,0,{row},ok,"));
        }
    }
    assert!(cells.len() >= 2);
    if is_all {
        std::fs::write(common::root().join(samples), written.join("\n") + "\n").unwrap();
    }
}

#[test]
fn each_allocation_and_free_of_a_step_is_that_of_a_gpu() {
    are_those_of_a_gpu(&[("medium_512_inference", 3332), ("small_256_gradients", 3442)]);
}

#[test]
#[ignore = "long"]
fn each_allocation_and_free_of_a_whole_training_is_that_of_a_gpu() {
    are_those_of_a_gpu(&[("2.7b_128_training", 12_664), ("large_256_training", 12_976), ("medium_128_training", 12_831)]);
}

/// Of records with so many events.
fn are_those_of_a_gpu(records: &[(&str, u64)]) {
    for &(name, events) in records {
        let Some(found) = replay("h100", "events", name) else { return };
        let counted = |key: &str| found[0][key].as_u64();
        assert_eq!((counted("predicted"), counted("measured")), (Some(events), Some(events)), "{name}");
        assert_eq!(counted("identical"), Some(events), "{name}");
        assert_eq!(counted("predicted_peak"), counted("measured_peak"), "{name}");
    }
}

/// Series of `peaks.csv` by their number; all of them are cells of `records/protocols/real_gpus-1.json`.
#[test]
fn peaks_are_those_that_others_measured() {
    are_those_that_others_measured(&[(1, "a100-80g", "embedding")]);
}

#[test]
#[ignore = "long"]
fn peaks_of_other_operations_are_those_that_others_measured() {
    are_those_that_others_measured(&[(4, "a100-80g", "geglu"), (11, "rtx-3090", "sparsemax")]);
}

fn are_those_that_others_measured(series: &[(u32, &str, &str)]) {
    for &(series, card, benchmark) in series {
        let Some(rows) = replay(card, "peaks", &series.to_string()) else { return };
        assert!(!rows.is_empty());
        for row in rows {
            assert_eq!(row["benchmark"], benchmark);
            // The end of a block of embedding's smallest table lies elsewhere.
            let expected = if (benchmark, &row["x"]) == ("embedding", &Value::from("1024")) { "blocks" } else { "equal" };
            assert_eq!(row["verdict"], expected, "{row}");
        }
    }
}
