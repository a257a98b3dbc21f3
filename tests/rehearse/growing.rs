//! `vramlab versions` and `vramlab bisect`, as they are started: what made a script grow.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Three releases of a package: the last allocates half as much again, the one before wants what there is not.
const WHEELS: &str = r#"
import sys, zipfile
for version, mib, more in [("1.0.0", 64, ""), ("1.1.0", 64, "Requires-Dist: nowhere>=3\n"), ("2.0.0", 96, "")]:
    with zipfile.ZipFile(f"{sys.argv[1]}/grower-{version}-py3-none-any.whl", "w") as wheel:
        info = f"grower-{version}.dist-info"
        wheel.writestr("grower.py", f"import torch\ndef grow():\n    return torch.empty({mib} << 20, dtype=torch.uint8, device='cuda')\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: grower\nVersion: {version}\n{more}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
"#;
const TRAIN: &str = "import grower\nkept = grower.grow()\n";

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn each_release_of_a_package_is_rehearsed_once_and_the_one_that_grew_is_found() {
    let scene = tempfile::tempdir().unwrap();
    let (index, out) = (scene.path().join("index"), scene.path().join("out"));
    fs::create_dir(&index).unwrap();
    // Flags reach each rehearsal.
    fs::write(scene.path().join("train.py"), format!("import os\nassert os.environ['RANK'] == '1'\n{TRAIN}")).unwrap();
    assert!(Command::new(common::python()).args(["-c", WHEELS]).arg(&index).status().unwrap().success());
    let vramlab = |words: &[&str], json: &str| {
        let mut program = crate::scene::vramlab();
        program.current_dir(scene.path()).env("VRAMLAB_CACHE", scene.path().join("cache"));
        program.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", &index).env("UV_OFFLINE", "1").env("UV_FIND_LINKS", &index);
        // Its own: what another test has fetched of an index by then, this one would be told of and could not have.
        program.env("UV_CACHE_DIR", scene.path().join("uv"));
        program.env("PATH", format!("{}:/usr/bin:/bin", crate::versions::uv().parent().unwrap().display()));
        program.args(words).args(["--world-size", "2", "--rank", "1"]);
        program.arg("--json").arg(json).arg("--").arg(common::python()).arg("train.py");
        program.output().unwrap()
    };
    let grower = ["versions", "--package", "grower=1.0.0..2.0.0", "--out", "out"];
    let first = vramlab(&grower, "versions.json");
    assert!(first.status.success(), "{}", said(&first));
    let found = read(&scene.path().join("versions.json"));
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{found}");
    assert_eq!((&rows[0]["peak_allocated"], &rows[2]["peak_allocated"]), (&(64 << 20).into(), &(96 << 20).into()), "{found}");
    assert!(rows[1]["missing"].as_str().unwrap().contains("nowhere"), "{found}");
    let jump = &rows[2]["jump"]["rows"][0];
    assert_eq!((&jump["bytes"], &jump["change"]), (&(32 << 20).into(), &"larger".into()), "{found}");
    assert!(jump["line"].as_str().unwrap().contains("grower.py:3"), "{jump}");
    for kept in ["versions.txt", "versions.svg", "grower-2.0.0.cap"] {
        assert!(out.join(kept).is_file(), "{kept}");
    }
    // Those that have an answer are not rehearsed again; what failed is tried again.
    let second = vramlab(&grower, "versions.json");
    assert_eq!((said(&second).matches("of an earlier run").count(), read(&scene.path().join("versions.json"))), (2, found));
    let other = vramlab(&[&grower[..], &["--steps", "2"]].concat(), "versions.json");
    assert!(said(&other).contains("rows of another command or other flags"), "{}", said(&other));
    let bisected = vramlab(&["bisect", "--package", "grower", "1.0.0", "2.0.0"], "bisect.json");
    let found = read(&scene.path().join("bisect.json"));
    assert_eq!(
        (&found["last_good"], &found["first_bad"]),
        (&"grower==1.0.0".into(), &"grower==2.0.0".into()),
        "{}",
        said(&bisected)
    );
    assert_eq!(found["skipped"][0], "grower==1.1.0");
    assert!(said(&bisected).contains("--package grower=1.0.0,2.0.0"), "{}", said(&bisected));
}

/// Resolves to what is asked for and makes the folder; installs forever, and says by whom.
const UV: &str = r#"#!/bin/sh
for last; do :; done
case "$1 $2" in
"pip compile") grep == "$last" > "${last%/*}/lock.txt"; exit ;;
"venv "*) mkdir -p "$last/lib/python3/site-packages"; exit ;;
esac
sleep 600 &
echo $! > "$STARTED.new"
mv "$STARTED.new" "$STARTED"
wait
"#;

#[test]
fn what_was_started_ends_with_the_program() {
    let scene = tempfile::tempdir().unwrap();
    let (bin, started) = (scene.path().join("bin"), scene.path().join("started"));
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("uv"), UV).unwrap();
    fs::set_permissions(bin.join("uv"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut program = crate::scene::vramlab();
    program
        .env("VRAMLAB_CACHE", scene.path().join("cache"))
        .env("STARTED", &started)
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    program.args(["versions", "--package", "grower=1.0.0,2.0.0", "--"]).arg(common::python()).args(["-c", "pass"]);
    let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while !started.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing was installed");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert!(said(&ended).contains("interrupted") && !said(&ended).contains("2.0.0 (2 of 2)"), "{}", said(&ended));
    let sleeping = fs::read_to_string(&started).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", sleeping.trim())).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    assert_eq!(
        fs::read_dir(scene.path().join("cache/environments")).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir()).count(),
        0
    );
}

#[test]
fn the_commit_of_a_clone_is_found_and_the_clone_stays_as_it_is() {
    let scene = tempfile::tempdir().unwrap();
    let clone = scene.path().join("clone");
    fs::create_dir(&clone).unwrap();
    fs::write(scene.path().join("train.py"), TRAIN).unwrap();
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(&clone).args(["-c", "user.name=n", "-c", "user.email=e@e", "-c", "commit.gpgsign=false"]).args(words);
        let done = git.output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", said(&done));
        said(&done).trim().to_string()
    };
    git(&["init", "--quiet"]);
    let mut commits = Vec::new();
    for (n, size) in [64, 64, 0, 64, 96, 96].into_iter().enumerate() {
        // One that does not run.
        let value = if size == 0 {
            "undefined".to_string()
        } else {
            format!("torch.empty({size} << 20, dtype=torch.uint8, device='cuda')")
        };
        fs::write(clone.join("grower.py"), format!("import torch\n# {n}\ndef grow():\n    return {value}\n")).unwrap();
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", &format!("Change {n}")]);
        commits.push(git(&["rev-parse", "HEAD"]));
    }
    fs::write(clone.join("grower.py"), "not committed").unwrap();
    let mut program = crate::scene::vramlab();
    program.current_dir(scene.path()).args(["bisect", "--repo", "clone", &commits[0], "HEAD", "--json", "found.json", "--"]);
    let done = program.arg(common::python()).arg("train.py").output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    let found = read(&scene.path().join("found.json"));
    assert_eq!(
        (&found["last_good"], &found["first_bad"]),
        (&commits[3].clone().into(), &commits[4].clone().into()),
        "{}",
        said(&done)
    );
    assert_eq!(found["difference"]["rows"][0]["bytes"], 32 << 20, "{found}");
    assert!(said(&done).contains("Change 4") && said(&done).contains("grower.py"), "{}", said(&done));
    assert_eq!(git(&["worktree", "list"]).lines().count(), 1);
    assert_eq!(fs::read_to_string(clone.join("grower.py")).unwrap(), "not committed");
    assert_eq!(git(&["for-each-ref", "refs/bisect"]), "");
}

/// A pull request that grows: one word more in the model's forward pass.
const BEFORE: &str = "
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(256, 4096), torch.nn.Linear(4096, 256)

    def forward(self, x):
        x = self.up(x)
        x = torch.relu(x)
        return self.down(x)

model = Model().cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(4096, 256, device='cuda', dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
";

#[test]
#[ignore = "long"]
fn a_pull_request_that_grows_is_caught_by_the_action_and_by_pytest() {
    let scene = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(scene.path().join(name), text).unwrap();
    let read_text = |name: &str| fs::read_to_string(scene.path().join(name)).unwrap_or_default();
    let python = common::python();
    let path = [
        Path::new(env!("CARGO_BIN_EXE_vramlab")).parent().unwrap(),
        python.parent().unwrap(),
        "/usr/bin".as_ref(),
        "/bin".as_ref(),
    ];
    let path = std::env::join_paths(path).unwrap();
    let started = |out: &str, check: &str| {
        let mut action = Command::new(common::root().join("scripts/action"));
        action.current_dir(scene.path()).env("PATH", &path).env("GITHUB_ACTION_PATH", common::root());
        action.env("GITHUB_STEP_SUMMARY", "summary.md").env("GITHUB_OUTPUT", "output");
        // As action.yml passes them.
        let inputs =
            [("COMMAND", "python train.py"), ("GPU", "rtx-4090"), ("CHECK", check), ("TOLERANCE", "1%"), ("FLAGS", "--steps 2")];
        action
            .envs(inputs.map(|(name, value)| (format!("VRAMLAB_{name}"), value)))
            .env("VRAMLAB_INSTALL", "")
            .env("VRAMLAB_OUT", out)
            .env("VRAMLAB_COMMENT", "false");
        action
    };
    let action = |out: &str, check: &str| started(out, check).output().unwrap();
    let text = fs::read_to_string(common::root().join("action.yml")).unwrap();
    for input in ["COMMAND", "GPU", "CHECK", "TOLERANCE", "FLAGS", "INSTALL", "OUT", "COMMENT"] {
        assert!(text.contains(&format!("VRAMLAB_{input}: ${{{{ inputs.{} }}}}", input.to_lowercase())), "{input}");
    }
    write("train.py", BEFORE);
    let base = action("base", "");
    assert!(base.status.success() && read_text("summary.md").contains("### Memory: Fits rtx-4090\n"), "{}", said(&base));
    write("train.py", &BEFORE.replace("torch.relu(x)", "torch.relu(x.float()).bfloat16()"));
    for name in ["summary.md", "output"] {
        fs::remove_file(scene.path().join(name)).unwrap();
    }
    let grown = action("grown", "base/rehearsal.cap");
    assert_eq!(grown.status.code(), Some(4), "{}", said(&grown));
    let summary = read_text("summary.md");
    for part in
        ["### Memory: The peak grew\n", "THE PEAK GREW by more than --tolerance allows", "x = torch.relu(x.float()).bfloat16()"]
    {
        assert!(summary.contains(part), "{part}: {summary}");
    }
    let peak = read(&scene.path().join("grown/rehearsal.json"))["peak_allocated"].to_string();
    assert_eq!(read_text("output").lines().take(2).collect::<Vec<&str>>(), ["status=4", &format!("peak-allocated={peak}")]);
    // What a job has no answer for is said, and nothing of an earlier one is left.
    for name in ["summary.md", "output"] {
        fs::remove_file(scene.path().join(name)).unwrap();
    }
    let missing = action("grown", "nothing.json");
    assert_eq!((missing.status.code(), read_text("output").as_str()), (Some(2), "status=2\n"), "{}", said(&missing));
    assert!(read_text("summary.md").contains("there is no nothing.json") && read_text("grown/rehearsal.json").is_empty());
    let say = |command: &str, install: &str| {
        for name in ["summary.md", "output"] {
            fs::remove_file(scene.path().join(name)).ok();
        }
        let mut action = started("grown", "base/rehearsal.cap");
        // Cases have their flags in vramlab.toml.
        let flags = if command.is_empty() { "" } else { "--steps 2" };
        action.env("VRAMLAB_COMMAND", command).env("VRAMLAB_INSTALL", install).env("VRAMLAB_FLAGS", flags);
        let done = action.output().unwrap();
        (
            done.status.code(),
            read_text("summary.md"),
            read_text("output").lines().next().unwrap_or_default().to_string(),
            said(&done),
        )
    };
    write("train.py", &BEFORE.replace("torch.relu(x)", "torch.rely(x)"));
    let (status, summary, output, log) = say("python train.py", "");
    assert!(
        (status, output.as_str()) == (Some(1), "status=1") && summary.starts_with("### Memory: THE SCRIPT FAILED: AttributeError"),
        "{summary}"
    );
    assert!(log.contains("::error file=train.py,line=11,title=GPU memory::THE SCRIPT FAILED: AttributeError"), "{log}");
    // A stranger's text is text.
    let loud = r#"raise ValueError('<img src=x onerror=y> ![a](http://e) `x`\\x1b[2J\\n::error::obeyed')"#.replace(r"\\", r"\");
    write("train.py", &format!("import torch\ntorch.empty(9, device='cuda')\n{loud}\n"));
    let (status, summary, _, log) = say("python train.py", "");
    let title = summary.lines().next().unwrap_or_default();
    assert!(status == Some(1) && title.contains("ValueError: \\<img src=x onerror=y\\>"), "{summary}");
    assert!(!title.contains(" ![") && !title.contains(" `") && !summary.contains('\u{1b}'), "{summary}");
    let obeyed = |line: &str| line.starts_with("::error") && !line.starts_with("::error file=train.py,line=3,title=GPU memory::");
    let after = log.lines().skip_while(|line| !line.starts_with("::stop-commands::"));
    let token = log.lines().find_map(|line| line.strip_prefix("::stop-commands::")).unwrap();
    assert!(!after.skip_while(|line| *line != format!("::{token}::")).any(obeyed), "{log}");
    let (status, summary, output, log) = say("python nothing.py", "");
    assert!(
        status != Some(0) && output.starts_with("status=") && summary.contains("can't open file") && log.contains("::error "),
        "{summary}{log}"
    );
    let (status, summary, output, log) = say("python train.py", "/nothing.whl");
    assert!((status, output.as_str()) == (Some(2), "status=2") && summary.contains("could not be installed"), "{summary}{log}");
    // Cases of a file that is wrong, and of one that is not there.
    let (status, summary, ..) = say("", "");
    assert!(status == Some(2) && summary.contains("neither a command nor a vramlab.toml"), "{summary}");
    write("vramlab.toml", "[case.a]\ncommnd = 'python train.py'\n");
    let (status, summary, output, _) = say("", "");
    assert!((status, output.as_str()) == (Some(2), "status=2") && summary.contains("commnd"), "{summary}");
    the_plugin_catches_it(scene.path());
}

#[test]
fn the_cases_of_a_project_are_held_against_their_base() {
    are_held_against_their_base(false);
}

#[test]
#[ignore = "long"]
fn the_cases_of_a_project_are_the_same_in_processes_of_their_own() {
    are_held_against_their_base(true);
}

fn are_held_against_their_base(also_in_processes: bool) {
    let scene = tempfile::tempdir().unwrap();
    let clone = scene.path().join("clone");
    fs::create_dir(&clone).unwrap();
    let write = |name: &str, text: &str| fs::write(clone.join(name), text).unwrap();
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(&clone).args(["-c", "user.name=n", "-c", "user.email=e@e", "-c", "commit.gpgsign=false"]).args(words);
        let done = git.output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", said(&done));
    };
    let python = common::python();
    let case = |name: &str| format!("[case.{name}]\ncommand = \"{} {name}.py\"\ngpu = \"t4\"\n", python.display());
    let allocates = |mib: u32| format!("import torch\nkept = torch.empty({mib} << 20, dtype=torch.uint8, device='cuda')\n");
    for (name, mib) in [("grows", 64), ("shrinks", 64), ("fails", 64), ("stays", 64)] {
        write(&format!("{name}.py"), &allocates(mib));
    }
    write("vramlab.toml", &["grows", "shrinks", "fails", "stays"].map(case).concat());
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "-m", "Begin"]);
    write("grows.py", &allocates(96));
    write("shrinks.py", &allocates(32));
    write("fails.py", "import torch\ntorch.empty(1, device='cuda')\nraise KeyError('::error::\u{1b}[31m')\n");
    let ci_by = |mut program: Command, words: &[&str]| {
        program
            .current_dir(&clone)
            .arg("ci")
            .args(words)
            .env("GITHUB_ACTIONS", "true")
            .env("GITHUB_STEP_SUMMARY", scene.path().join("summary"));
        program.env_remove("GITHUB_BASE_REF").output().unwrap()
    };
    let ci = |words: &[&str]| ci_by(crate::scene::vramlab(), words);
    // Copies of a Python of its own for each side.
    let all = ci_by(Command::new(crate::scene::VRAMLAB), &["--json", "../rows.json", "--out", "../out", "--comment", "../comment"]);
    assert_eq!(all.status.code(), Some(1), "{}", said(&all));
    let rows = read(&scene.path().join("rows.json"));
    let states: Vec<(&str, &str)> =
        rows.as_array().unwrap().iter().map(|row| (row["case"].as_str().unwrap(), row["state"].as_str().unwrap())).collect();
    assert_eq!(states, [("fails", "failed"), ("grows", "grew"), ("shrinks", "shrank"), ("stays", "same")], "{}", said(&all));
    assert_eq!(rows[1]["figures"][0]["after"], 96 << 20);
    assert_eq!(rows[2]["difference"]["rows"][0]["change"], "smaller");
    let text = String::from_utf8_lossy(&all.stdout).into_owned();
    for part in [
        "GPU memory of 4 cases: 1 failed, 1 grew, 1 shrank, compared with HEAD (",
        "\nFAILED: fails on t4: KeyError: ",
        "\nGREW: grows on t4: allocated +50.0 %",
        "\n::error file=fails.py,line=3,title=GPU memory::FAILED: fails on t4: KeyError: ",
        "\n::error file=grows.py,line=2,title=GPU memory::GREW: grows on t4",
        "\n::notice file=shrinks.py,line=2,title=GPU memory::shrank: shrinks on t4: allocated -50.0 %",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\u{1b}') && !text.contains("\n::error::"), "{text}");
    let comment = fs::read_to_string(scene.path().join("comment")).unwrap();
    assert!(comment.starts_with("<!-- vramlab ci -->\n") && comment.contains("**64.0 MiB → 96.0 MiB (+50.0 %)**"), "{comment}");
    assert_eq!(fs::read_to_string(scene.path().join("summary")).unwrap(), comment);
    assert!(scene.path().join("out/head-grows-t4.cap").is_file());
    if also_in_processes {
        let mut each = Command::new(crate::scene::VRAMLAB);
        each.env("VRAMLAB_ZYGOTES", "");
        ci_by(each, &["--json", "../alone.json"]);
        assert_eq!(rows, read(&scene.path().join("alone.json")));
    }
    // One case by itself; what it may grow by is the project's to say.
    write("vramlab.toml", &format!("[tolerance]\nallocated = \"60%\"\nreserved = \"60%\"\nneeds = \"60%\"\n{}", case("grows")));
    assert_eq!(ci(&["grows"]).status.code(), Some(0));
    // What one of the two trees lacks.
    fs::create_dir(clone.join("new")).unwrap();
    write("new/stays.py", &allocates(64));
    write("vramlab.toml", &format!("{}directory = \"new\"\n", case("stays")));
    let new = ci(&[]);
    let told = "new: stays on t4: at the base: there is no folder 'new' in the base";
    assert!(new.status.success() && said(&new).contains(told), "{}", said(&new));
    write("vramlab.toml", &format!("requirements = \"none.txt\"\n{}", case("stays")));
    let none = ci(&[]);
    let told = "FAILED: stays on t4: none.txt of the head: No such file or directory";
    assert!(none.status.code() == Some(1) && said(&none).contains(told), "{}", said(&none));
    let unknown = ci(&["other"]);
    assert!(unknown.status.code() == Some(2) && said(&unknown).contains("no case other"), "{}", said(&unknown));
    write("vramlab.toml", "[case.a]\ncommand = \"python a.py\"\ntolerence = 1\n");
    let wrong = ci(&[]);
    assert!(wrong.status.code() == Some(2) && said(&wrong).contains("tolerence"), "{}", said(&wrong));
}

fn the_plugin_catches_it(scene: &Path) {
    let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pytest");
    if !packages.is_dir() {
        let mut install = Command::new(common::python());
        let made = install.args(["-m", "pip", "install", "--quiet", "--target"]).arg(&packages).arg("pytest").output().unwrap();
        if !made.status.success() {
            fs::remove_dir_all(&packages).ok();
            return common::skipped(&format!("pytest cannot be installed: {}", said(&made)));
        }
    }
    let flags = r#"kept="memory.json", flags=["--steps", "2"]"#;
    let test =
        format!("def test_memory(vramlab_peak):\n    assert vramlab_peak('python train.py', 'rtx-4090', {flags}) < 1 << 30\n");
    fs::write(scene.join("test_memory.py"), test).unwrap();
    // The package as it is installed: the program lies in it.
    let package = scene.join("site/vramlab");
    fs::create_dir_all(package.join("bin")).unwrap();
    for name in ["__init__.py", "testing.py"] {
        fs::copy(common::root().join("python/vramlab").join(name), package.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_vramlab"), package.join("bin/vramlab")).unwrap();
    let pytest = |flags: &[&str]| {
        let path = std::env::join_paths([&scene.join("site"), &packages]).unwrap();
        let mut pytest = Command::new(common::python());
        pytest.args(["-m", "pytest", "-q", "-p", "vramlab.testing", "-p", "no:cacheprovider", "test_memory.py"]);
        pytest.args(flags).current_dir(scene).env("PYTHONPATH", path).output().unwrap()
    };
    let missing = pytest(&[]);
    assert!(said(&missing).contains("pytest --vramlab-update writes it"), "{}", said(&missing));
    fs::write(scene.join("train.py"), BEFORE).unwrap();
    assert!(pytest(&["--vramlab-update"]).status.success() && scene.join("memory.json").is_file());
    fs::write(scene.join("train.py"), BEFORE.replace("torch.relu(x)", "torch.relu(x.float()).bfloat16()")).unwrap();
    let fails = |news: &str| {
        let failed = pytest(&[]);
        let said = said(&failed);
        // The summary's line is the news.
        let line = said.lines().find(|line| line.starts_with("FAILED test_memory.py")).unwrap_or_default();
        assert!(!failed.status.success() && line.contains(&news[..news.len().min(20)]) && said.contains(news), "{said}");
    };
    fails("GREW: allocated +62.0 MiB");
    fs::write(scene.join("train.py"), BEFORE.replace("torch.relu(x)", "torch.rely(x)")).unwrap();
    fails("THE SCRIPT FAILED: AttributeError");
    fs::remove_file(scene.join("train.py")).unwrap();
    fails("vramlab: there is no file 'train.py'");
}
