//! `vramlab run-all` where results stand already, as in a fresh clone: at smoke size, over two of the experiments, with real processes.

use record::results::Run;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const SMOKE: [&str; 8] = ["--profile", "smoke", "--device", "cpu", "--threads", "1", "--out", "results"];

/// A folder in which a person runs things.
struct Project(TempDir);

impl Project {
    fn new() -> Project {
        Project(tempfile::tempdir().unwrap())
    }

    /// The project itself, as a person gets it.
    fn cloned() -> Project {
        let project = Project::new();
        project.git(&["clone", "--quiet", "--depth", "1", &format!("file://{}", common::root().display()), "."]);
        project
    }

    fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git").args(arguments).current_dir(self.0.path()).output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", said(&output));
        said(&output)
    }

    fn output(&self, program: &str, arguments: &[&str]) -> Output {
        Command::new(program).args(arguments).args(SMOKE).current_dir(self.0.path()).output().unwrap()
    }

    /// Runs two experiments.
    fn run_all(&self) -> Output {
        self.output(
            env!("CARGO_BIN_EXE_vramlab-lab"),
            &["run-all", "--only", "accumulation,batch_loading", "--filter", "recipe=full|how=batches"],
        )
    }

    /// Measures a part of what `run_all` does, and gives its folder.
    fn accumulation(&self) -> PathBuf {
        let output = self.output(&common::program("accumulation"), &["--filter", "recipe=full"]);
        assert!(output.status.success(), "{}", said(&output));
        self.machines()[0].join("accumulation")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn machines(&self) -> Vec<PathBuf> {
        let mut machines: Vec<PathBuf> =
            std::fs::read_dir(self.path("results")).unwrap().map(|entry| entry.unwrap().path()).collect();
        machines.retain(|machine| !machine.ends_with("protocols"));
        machines.sort();
        machines
    }

    /// All pages of the report.
    fn report(&self) -> String {
        let entries = std::fs::read_dir(self.path("results-report")).unwrap().map(|entry| entry.unwrap().path());
        let pages = entries.filter(|path| path.extension().is_some_and(|e| e == "md"));
        pages.map(|page| std::fs::read_to_string(page).unwrap()).collect()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stderr[..], &output.stdout[..]].concat()).into_owned()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Has results be of another libtorch.
fn spoil(manifest: &Path) {
    let text = std::fs::read_to_string(manifest).unwrap();
    let libtorch = text.split("\"libtorch\": ").nth(1).unwrap().lines().next().unwrap();
    std::fs::write(manifest, text.replacen(libtorch, "\"2.0.0\",", 1)).unwrap();
}

#[test]
fn results_of_another_libtorch_stay_and_what_is_measured_goes_beside_them() {
    let project = Project::new();
    let reference = project.accumulation();
    let json = reference.join("run.json");
    spoil(&json);
    let before = (std::fs::read(&json).unwrap(), std::fs::read(reference.join("samples.csv")).unwrap());

    let output = project.run_all();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!((std::fs::read(&json).unwrap(), std::fs::read(reference.join("samples.csv")).unwrap()), before);
    let machines = project.machines();
    let names: Vec<String> = machines.iter().map(|machine| name(machine)).collect();
    assert_eq!(names.len(), 2);
    assert_eq!(names[1], format!("{}-2", names[0]));
    assert!(!Run::read(&machines[1].join("accumulation")).unwrap().passes.is_empty());
    assert!(!Run::read(&machines[0].join("batch_loading")).unwrap().passes.is_empty(), "there nothing stood in the way");
    let text = said(&output);
    assert!(text.contains(&format!("taken in another way: results/{}\n", names[0])), "{text}");
    assert!(text.contains(&format!("vramlab diff results/{} results/{}\n", names[0], names[1])), "{text}");
    assert!(text.contains("report: results-report/README.md"), "{text}");
    let report = project.report();
    assert!(report.contains(&names[1]) && report.contains("batch_loading"), "both stand in the report");

    let again = project.run_all();
    assert!(again.status.success() && said(&again).contains("run-all: 0 passes"), "{}", said(&again));
    assert_eq!(project.machines(), machines, "the second run goes on with the first");
}

#[test]
#[ignore = "long"]
fn a_clone_measures_beside_the_results_that_came_with_it() {
    let (elsewhere, project) = (Project::new(), Project::cloned());
    let measured = elsewhere.accumulation();
    let machine = name(measured.parent().unwrap());
    let came = project.path(&format!("records/measured/{machine}/accumulation"));
    std::fs::create_dir_all(&came).unwrap();
    for entry in std::fs::read_dir(&measured).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), came.join(entry.file_name())).unwrap();
    }
    project.git(&["add", "records"]);

    let output = project.run_all();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(!Run::read(&project.path(&format!("results/{machine}/accumulation"))).unwrap().passes.is_empty(), "{text}");
    assert_eq!(
        project.git(&["status", "--porcelain", "--", "records", "results"]).lines().count(),
        2,
        "what came is as it was added"
    );
    assert!(project.report().contains(&format!("{machine}-yours")), "the report shows both");
}

#[test]
fn a_run_that_was_begun_is_gone_on_with() {
    let project = Project::new();
    let begun = Run::read(&project.accumulation()).unwrap().passes;
    let output = project.run_all();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let machines = project.machines();
    assert_eq!(machines.len(), 1, "nothing stood in the way");
    assert_eq!(Run::read(&machines[0].join("accumulation")).unwrap().passes[..begun.len()], begun[..]);
    assert!(project.report().contains("accumulation"));
}

#[test]
fn what_another_run_holds_is_an_error_and_the_rest_is_measured() {
    let project = Project::new();
    let held = project.accumulation();
    let passes = Run::read(&held).unwrap().passes.len();
    let lock = File::open(&held).unwrap();
    lock.lock().unwrap();
    let output = project.run_all();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("another run is writing to") && text.contains("could not run, for the reasons above: accumulation"),
        "{text}"
    );
    assert_eq!(project.machines().len(), 1, "nothing goes beside what is being written");
    assert_eq!(Run::read(&held).unwrap().passes.len(), passes);
    assert!(!Run::read(&held.with_file_name("batch_loading")).unwrap().passes.is_empty());
    assert!(project.report().contains("batch_loading"));
}

#[test]
#[ignore = "long"]
fn two_runs_of_all_do_not_disturb_each_other_and_nothing_makes_no_report() {
    let project = Project::new();
    std::fs::create_dir(project.path("results")).unwrap();
    let lock = File::open(project.path("results")).unwrap();
    lock.lock().unwrap();
    let output = project.run_all();
    assert!(!output.status.success() && said(&output).contains("another run-all is writing to results"), "{}", said(&output));
    drop(lock);
    let output = project.output(env!("CARGO_BIN_EXE_vramlab-lab"), &["run-all", "--filter", "k=nowhere"]);
    assert!(!output.status.success() && said(&output).contains("no cell of any experiment matches"), "{}", said(&output));
    assert!(!project.path("results-report").exists() && project.machines().is_empty());
}

/// Ctrl-C reaches every process of the terminal's group. One that was asked for its version and says nothing for it has not answered 'none'.
#[test]
fn a_signal_in_the_first_second_leaves_no_results() {
    let folder = tempfile::tempdir().unwrap();
    let run = |python: &str, meanwhile: &dyn Fn(u32)| {
        let program = folder.path().join("python");
        std::fs::write(&program, format!("#!/bin/sh\n{python}\n")).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = Command::new(common::program("load_checkpoint"));
        command.args(["--device", "cpu", "--profile", "quick", "--budget", "5", "--out", "results"]).current_dir(folder.path());
        command.env("VRAMLAB_PYTHON", &program).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = command.spawn().unwrap();
        meanwhile(child.id());
        let output = child.wait_with_output().unwrap();
        assert!(!folder.path().join("results").exists(), "{}", said(&output));
        (output.status.code(), said(&output))
    };
    let asked = folder.path().join("asked");
    let interrupt = |id: u32| {
        while !asked.exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process_group(Pid::from_raw(id as i32).unwrap(), Signal::INT).unwrap();
    };
    let (status, text) = run(&format!("touch '{}'; sleep 1; echo 3.11.2 2.11.0", asked.display()), &interrupt);
    assert_eq!(status, Some(130), "{text}");
    let (status, text) = run("kill -INT $$", &|_| ());
    assert!(status == Some(2) && text.contains("was ended by signal 2"), "{text}");
}

/// What `just dist` packs runs where neither the sources nor Rust are: unpacked, one experiment at smoke size, with its page's words.
#[test]
#[ignore = "long"]
fn a_packed_folder_runs_without_the_sources() {
    let project = Project::new();
    let built = Path::new(env!("CARGO_BIN_EXE_vramlab-lab")).parent().unwrap();
    common::program("vramlab");
    common::program("no_grad");
    let mut dist = Command::new(common::root().join("scripts/dist"));
    dist.arg("--built").arg(built).arg("--into").arg(project.path("packed")).arg("no_grad");
    // A hundred megabytes of debug programs that nobody carries anywhere.
    let packed = dist.env("XZ_PRESET", "0").output().unwrap();
    assert!(packed.status.success(), "{}", said(&packed));
    let elsewhere = project.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let unpacked = Command::new("tar").arg("-xf").arg(project.path("packed/vramlab.tar.xz")).arg("-C").arg(&elsewhere).status();
    assert!(unpacked.unwrap().success());
    let folder = elsewhere.join("vramlab");
    assert!(folder.join("experiments/no_grad.md").exists() && folder.join("experiments/python/lab.py").exists());
    // Cells of PyTorch's own have the presets' models.
    let presets =
        Command::new(common::python()).args(["-B", "-c", "import presets"]).current_dir(folder.join("experiments/python")).output();
    let presets = presets.unwrap();
    assert!(presets.status.success(), "{}", said(&presets));
    let mut run_all = Command::new(folder.join("run-all"));
    run_all.args(["--only", "no_grad"]).args(SMOKE).env("VRAMLAB_PYTHON", common::python()).current_dir(&elsewhere);
    let output = run_all.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report = std::fs::read_to_string(folder.join("results-report/no_grad.md"));
    assert!(report.is_ok_and(|page| page.contains("alone changes dropout and BatchNorm")), "{}", said(&output));
}
