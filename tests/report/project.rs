//! The project as it is committed, whatever its user has measured since: `just run-all` writes to `report/`, too.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const PARTS: [&str; 15] = [
    "README.md",
    "METHODOLOGY.md",
    "records/measured",
    "records/predicted",
    "records/protocols",
    "records/witnesses",
    "report",
    "records/versions",
    "tests/ecosystem",
    "experiments",
    "docs",
    "records/gpus",
    "records/compiling",
    "records/real_gpus/page.md",
    "records/times/fine_tuning.csv",
];

/// Where a copy came from.
#[derive(Debug, PartialEq)]
pub enum Source {
    /// What git has staged, which in a clone is what is committed.
    Git,
    /// The folder as it stands: nothing of it was measured here.
    Folder,
    /// The folder without git, in which its user has measured: the results that came with the project, and the report made of them anew.
    FolderMadeAnew,
}

/// A copy of README, METHODOLOGY, results and report, and of the pages beside the experiments.
pub fn committed() -> &'static Path {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| {
        // Every test is a process of its own: the first one's copy of what is staged is everybody's.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("committed");
        let staged = Command::new("git").arg("write-tree").current_dir(common::root()).output().ok();
        let staged = staged
            .filter(|output| output.status.success())
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
        let own = folder.join(std::process::id().to_string());
        let to = staged.map_or_else(|| own.clone(), |tree| folder.join(tree));
        if !to.exists() {
            let source = copy(common::root(), &own);
            eprintln!("tests of results and report read {source:?}, in {}", to.display());
            if own != to && fs::rename(&own, &to).is_err() {
                fs::remove_dir_all(&own).unwrap();
            }
        }
        to
    })
}

pub fn copy(project: &Path, to: &Path) -> Source {
    fs::create_dir_all(to).unwrap();
    if let Some(tracked) = tracked(project) {
        let mut command = Command::new("git");
        command.args(["checkout-index", "-z", "--stdin"]).arg(format!("--prefix={}/", to.display()));
        let mut git = command.current_dir(project).stdin(Stdio::piped()).spawn().unwrap();
        git.stdin.take().unwrap().write_all(&tracked).unwrap();
        assert!(git.wait().unwrap().success());
        return Source::Git;
    }
    PARTS.iter().for_each(|part| copy_tree(&project.join(part), &to.join(part), |_| false));
    let measured = project.join("results").exists();
    if !measured {
        return Source::Folder;
    }
    report(to);
    Source::FolderMadeAnew
}

/// Writes the report and README's table in a copy, as `just report` does.
pub fn report(project: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramlab"));
    let output = command.args(["report", "--readme", "README.md"]).current_dir(project).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What git tracks of a folder that is a repository of its own, separated by zeros; none without git.
fn tracked(project: &Path) -> Option<Vec<u8>> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(project).output().ok()?;
        output.status.success().then_some(output.stdout)
    };
    let top = String::from_utf8(git(&["rev-parse", "--show-toplevel"])?).ok()?;
    if fs::canonicalize(top.trim()).ok()? != fs::canonicalize(project).ok()? {
        return None;
    }
    git(&[&["ls-files", "-z", "--"][..], &PARTS].concat()).filter(|files| !files.is_empty())
}

pub fn copy_tree(from: &Path, to: &Path, mut leave_out: impl FnMut(&Path) -> bool) {
    let mut waiting = vec![(from.to_path_buf(), to.to_path_buf())];
    while let Some((from, to)) = waiting.pop() {
        if leave_out(&from) {
            continue;
        }
        if from.is_dir() {
            fs::create_dir_all(&to).unwrap();
            for entry in fs::read_dir(&from).unwrap().map(Result::unwrap) {
                waiting.push((entry.path(), to.join(entry.file_name())));
            }
        } else {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(&from, &to).unwrap();
        }
    }
}

/// After `just run-all` the tests read what they read before.
#[test]
#[ignore = "long"]
fn what_a_user_measured_is_no_part_of_what_is_committed() {
    let root = tempfile::tempdir().unwrap();
    let project = root.path().join("project");
    copy_tree(committed(), &project, |_| false);
    let names = |folder: &Path| -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let came = names(&project);
    assert_eq!(copy(&project, &root.path().join("archive")), Source::Folder);
    assert_eq!(super::files(&root.path().join("archive/report")), super::files(&project.join("report")));
    let git = |arguments: &[&str]| {
        assert!(Command::new("git").args(arguments).current_dir(&project).status().unwrap().success(), "git {arguments:?}");
    };
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    // What a run of all leaves behind.
    copy_tree(&project.join("records/measured/intel-xeon-2c/inplace"), &project.join("results/intel-xeon-2c/inplace"), |_| false);
    copy_tree(&project.join("records/protocols"), &project.join("results/protocols"), |_| false);
    report(&project);
    assert!(super::text(&project.join("report")).contains("intel-xeon-2c-yours"));
    assert_eq!(copy(&project, &root.path().join("clone")), Source::Git);
    fs::remove_dir_all(project.join(".git")).unwrap();
    assert_eq!(copy(&project, &root.path().join("measured")), Source::FolderMadeAnew);
    for copied in ["clone", "measured"].map(|name| root.path().join(name)) {
        assert_eq!(names(&copied), came);
        assert!(super::files(&copied.join("report")) == super::files(&committed().join("report")), "{}", copied.display());
        assert_eq!(fs::read(copied.join("README.md")).unwrap(), fs::read(committed().join("README.md")).unwrap());
    }
}
