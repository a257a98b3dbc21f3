//! torch.load beside our readers: a file that is tagged as a GPU's, on a machine whose GPU PyTorch cannot see.

use record::protocol::Pass;
use record::results::{Run, Status};
use std::process::Command;

#[test]
#[ignore = "long"]
fn a_file_from_a_gpu_needs_to_be_mapped_where_there_is_none() {
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_load_checkpoint"))
        .args(["--device", "cpu", "--profile", "quick", "--filter", "model=mlp-2x64 .*reader=load ", "--out"])
        .arg(out.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    let mut machines = std::fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().path());
    let machine = machines.find(|path| !path.ends_with("protocols")).unwrap();
    let run = Run::read(&machine.join("load_checkpoint")).unwrap();
    if run.manifest.identity.flags["python"] == "none" {
        common::skipped(&format!("load_checkpoint: no Python has this libtorch: {}", run.passes[0].reason));
        return;
    }
    let raised = |map: &str| {
        let of_map = |pass: &&record::results::PassRecord| pass.pass == Pass::Check && pass.cell.get("map") == Some(map);
        let pass = run.passes.iter().find(of_map).unwrap_or_else(|| panic!("no check with map={map}: {said}"));
        assert_eq!((pass.status, pass.reason.as_str()), (Status::Ok, ""), "{map}");
        pass.samples.iter().find(|s| s.metric == "raised").unwrap().value
    };
    // Not a device of its own choice, but PyTorch's own refusal, word for word (the check compares it).
    assert_eq!((raised("none"), raised("cpu")), (1.0, 0.0));
}
