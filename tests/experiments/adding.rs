//! Adding a technique is one file and one line in `experiments/Cargo.toml`: here one is added, listed, compiled, tested, measured and reported.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command to its good end, and gives what it printed.
fn done(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    out.into_owned()
}

/// The project with one file and one line more; all else is the project's own.
fn with_one_more(project: &Path) {
    let link = |folder: &str, except: &[&str]| {
        for entry in fs::read_dir(common::root().join(folder)).unwrap().map(Result::unwrap) {
            if !except.iter().any(|name| entry.file_name() == *name) {
                symlink(entry.path(), project.join(folder).join(entry.file_name())).unwrap();
            }
        }
    };
    link("", &["experiments", "target", ".git"]);
    fs::create_dir(project.join("experiments")).unwrap();
    link("experiments", &["Cargo.toml"]);
    fs::copy(common::root().join("tests/experiments/sums.rs"), project.join("experiments/sums.rs")).unwrap();
    let manifest = fs::read_to_string(common::root().join("experiments/Cargo.toml")).unwrap();
    let line = "bin = [\n    { name = \"sums\", path = \"sums.rs\" },";
    fs::write(project.join("experiments/Cargo.toml"), manifest.replacen("bin = [", line, 1)).unwrap();
}

/// The newest of some files.
fn newest(files: impl Iterator<Item = PathBuf>) -> PathBuf {
    files.max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap()).unwrap()
}

fn files_in(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())
}

fn named(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

#[test]
fn a_technique_is_one_file_and_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("project");
    fs::create_dir(&project).unwrap();
    with_one_more(&project);
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let described =
        done(Command::new(cargo).args(["metadata", "--no-deps", "--offline", "--format-version=1"]).current_dir(&project));
    let described: serde_json::Value = serde_json::from_str(&described).unwrap();
    let packages = described["packages"].as_array().unwrap();
    let mut targets = packages.iter().flat_map(|package| package["targets"].as_array().unwrap());
    let target = targets.find(|target| target["name"] == "sums").expect("the line makes a program");
    let source = fs::read_to_string(target["src_path"].as_str().unwrap()).unwrap();

    let built = Path::new(env!("CARGO_BIN_EXE_no_grad")).parent().unwrap();
    let libtorch = torch::loaded_library().unwrap();
    let libtorch = libtorch.parent().unwrap();
    // A page is no experiment, and what `just dist` packs and `just run` knows is what is in the list.
    let names = done(Command::new("scripts/experiments").current_dir(&project));
    let mut of_list: Vec<&str> = harness::runner::experiments().chain(["sums"]).collect();
    of_list.sort_unstable();
    assert_eq!(names.lines().collect::<Vec<_>>(), of_list);

    // As Cargo would build it, but over the library that is there: another folder's would be compiled again, for minutes.
    let library =
        newest(files_in(&built.join("deps")).filter(|p| named(p, "libharness-") && p.extension().is_some_and(|e| e == "rlib")));
    let compile = |source: &str, extra: &[&str], program: &Path| {
        let file = program.with_extension("rs");
        fs::write(&file, source).unwrap();
        let with = |prefix: &str, path: &Path| {
            let mut text = OsString::from(prefix);
            text.push(path);
            text
        };
        done(
            Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
                .args(["--edition", target["edition"].as_str().unwrap(), "--crate-name", "sums", "-D", "warnings"])
                .args(extra)
                .arg(file)
                .args([OsString::from("--extern"), with("harness=", &library), "-L".into(), with("native=", libtorch)])
                .args([OsString::from("-L"), with("dependency=", &built.join("deps")), "-C".into()])
                .args([with("link-arg=-Wl,-rpath,", libtorch), "-o".into(), program.into()]),
        );
    };
    let [tests, program, results, report] = ["tests", "sums", "results", "report"].map(|name| folder.path().join(name));
    compile(&source, &["--test"], &tests);
    done(&mut Command::new(tests));

    compile(&source, &[], &program);
    done(Command::new(&program).args(["--device", "cpu", "--profile", "quick", "--rounds", "2", "--out"]).arg(&results));
    let vramlab = common::program("vramlab");
    fs::create_dir(folder.path().join("experiments")).unwrap();
    fs::copy(common::root().join("tests/experiments/sums.md"), folder.path().join("experiments/sums.md")).unwrap();
    done(Command::new(vramlab).arg("report").arg("--results").arg(&results).arg("--out").arg(&report).current_dir(folder.path()));
    let page = fs::read_to_string(report.join("sums.md")).unwrap();
    let front = fs::read_to_string(report.join("README.md")).unwrap();
    // Its own metric is written as the share that it is, its level by its label, and its words stand where a technique's do.
    let parts = [
        "a sum that is written over one of its parts needs no memory",
        "confirmed",
        "100 %",
        "a.add_(b)",
        "Where a backward pass needs",
        "one of its parts spares 100 % of its own memory",
    ];
    for part in parts {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(front.contains("| works where nobody needs the parts |"), "{front}");
    let picture = files_in(&report.join("plots")).map(|path| fs::read_to_string(path).unwrap());
    assert!(
        picture.into_iter().any(|picture| picture.to_lowercase().contains("adding in place")),
        "no picture's title says what one does"
    );
}
