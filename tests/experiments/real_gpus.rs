//! The simulated GPU against records of real ones (`records/real_gpus`): peaks that Liger-Kernel published for PyTorch's own operators, and
//! each allocation and free of one step of a language model. What the records ran is run again by PyTorch in Python on the simulated GPU.

use serde_json::Value;
use sim::cards;
use std::path::{Path, PathBuf};
use std::process::Command;
use torch::dry;

/// Runs the replay on a card; what it says, line by line. None where no Python has the PyTorch that this test runs on.
fn replay(card: &str, what: &str, argument: &str) -> Option<Vec<Value>> {
    let torch = torch::loaded_library().expect("the loaded libtorch is somewhere");
    let python: PathBuf = torch.ancestors().nth(6).unwrap_or(Path::new("/")).join("bin/python3");
    if !python.exists() {
        common::skipped(&format!("real_gpus: there is no Python beside {}", torch.display()));
        return None;
    }
    let script = common::root().join("records/real_gpus/replay.py");
    let mut command = Command::new(python);
    command.arg("-B").arg(script).args([what, argument]);
    command.env_remove("PYTORCH_ALLOC_CONF").env_remove("PYTORCH_CUDA_ALLOC_CONF").env_remove("CUBLAS_WORKSPACE_CONFIG");
    let card = cards::all().iter().find(|c| c.name == Some(card)).unwrap();
    dry::prepare_python(&mut command, *card).unwrap();
    let output = command.output().unwrap();
    assert!(output.status.success(), "{what} {argument}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn each_allocation_and_free_of_a_step_is_that_of_a_gpu() {
    let records = [
        ("2.7b_128_training", 12_664),
        ("large_256_training", 12_976),
        ("medium_128_training", 12_831),
        ("medium_512_inference", 3332),
        ("small_256_gradients", 3442),
    ];
    for (name, events) in records {
        let Some(found) = replay("h100", "events", name) else { return };
        let counted = |key: &str| found[0][key].as_u64();
        assert_eq!((counted("predicted"), counted("measured")), (Some(events), Some(events)), "{name}");
        assert_eq!(counted("identical"), Some(events), "{name}");
        assert_eq!(counted("predicted_peak"), counted("measured_peak"), "{name}");
    }
}

/// Series of `peaks.csv` by their number; all of them are cells of `experiments/real_gpus/`.
#[test]
fn peaks_are_those_that_others_measured() {
    for (series, card, benchmark) in [(1, "a100-80g", "embedding"), (4, "a100-80g", "geglu"), (11, "rtx-3090", "sparsemax")] {
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
