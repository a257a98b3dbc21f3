//! The scripts that a person meets first: `scripts/setup`, and the launcher that `scripts/dist` packs. Each test runs a copy in a
//! folder of its own, with stand-ins for what is large: an empty libtorch, a pip that downloads nothing, programs that print.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use tempfile::TempDir;

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Held while a program is written and while one is started: a child that is forked while another test writes a program holds
/// that file open for an instant, and the kernel refuses to start a file that is open for writing.
static WRITING_OR_STARTING: Mutex<()> = Mutex::new(());

fn write_program(path: &Path, text: &str) {
    let _lock = WRITING_OR_STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    write(path, text);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn copy_script(name: &str, to: &Path) {
    let _lock = WRITING_OR_STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(common::root().join("scripts").join(name), to).unwrap();
}

fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = {
        let _lock = WRITING_OR_STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        command.spawn().unwrap()
    };
    child.wait_with_output().unwrap()
}

/// What the scripts look at in a package torch of this version. Importing it fails, because no script should.
fn write_torch(at: &Path, version: &str) {
    write(&at.join("__init__.py"), "raise ImportError('torch was imported')\n");
    write(&at.join("version.py"), &format!("from typing import Optional\n\n__version__ = '{version}'\n"));
    write(&at.join("lib/libtorch_cpu.so"), "");
}

fn find_on_path(program: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("{program} is not on PATH"))
}

fn path_with(first: &Path) -> String {
    format!("{}:{}", first.display(), env::var("PATH").unwrap())
}

/// Every path below the folder with what would show a change.
fn contents(folder: &Path) -> Vec<(PathBuf, u64, i64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        found.push((path.clone(), metadata.ino(), metadata.mtime_nsec()));
        if metadata.is_dir() {
            found.extend(contents(&path));
        }
    }
    found.sort();
    found
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn assert_refused(output: &Output, words: &[&str]) {
    let message = stderr(output);
    assert!(!output.status.success(), "succeeded, saying: {message}");
    for word in words {
        assert!(message.contains(word), "'{word}' is not in: {message}");
    }
}

#[track_caller]
fn assert_silent_success(output: &Output) {
    assert!(output.status.success(), "{}", stderr(output));
    assert_eq!(stderr(output), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

/// What torch-sys obeys before `LIBTORCH`.
const OVERRIDES: [&str; 3] = ["LIBTORCH_USE_PYTORCH", "LIBTORCH_INCLUDE", "LIBTORCH_LIB"];

/// A repository of which only `scripts/setup` exists.
struct Checkout(TempDir);

impl Checkout {
    fn new() -> Self {
        let folder = scratch();
        copy_script("setup", &folder.path().join("scripts/setup"));
        Checkout(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn setup(&self) -> Command {
        let mut command = Command::new(self.path().join("scripts/setup"));
        for name in ["LIBTORCH", "CXX"].iter().chain(&OVERRIDES) {
            command.env_remove(name);
        }
        command
    }

    fn setup_with(&self, libtorch: impl AsRef<OsStr>) -> Output {
        run(self.setup().env("LIBTORCH", libtorch))
    }

    fn link(&self) -> PathBuf {
        fs::read_link(self.path().join(".libtorch")).unwrap()
    }

    #[track_caller]
    fn assert_refuses(&self, libtorch: &Path, words: &[&str]) {
        let before = contents(self.path());
        let output = self.setup_with(libtorch);
        assert_refused(&output, words);
        assert_refused(&output, &[libtorch.to_str().unwrap(), "unset it", "2.11.0"]);
        assert_eq!(contents(self.path()), before);
    }
}

#[test]
fn setup_refuses_a_libtorch_that_does_not_exist() {
    Checkout::new().assert_refuses(Path::new("/nowhere/libtorch"), &["there is no such directory"]);
}

#[test]
fn setup_refuses_a_relative_path() {
    let checkout = Checkout::new();
    write_torch(&checkout.path().join("torch"), "2.11.0");
    checkout.assert_refuses(Path::new("torch"), &["must be an absolute path"]);
}

#[test]
fn setup_refuses_a_directory_without_libtorch() {
    let empty = scratch();
    Checkout::new().assert_refuses(empty.path(), &["has no lib/libtorch_cpu.so"]);
}

#[test]
fn setup_refuses_another_version() {
    for version in ["2.10.0+cpu", "2.11.01", "2.12.0"] {
        let torch = scratch();
        write_torch(torch.path(), version);
        Checkout::new().assert_refuses(torch.path(), &[&format!("is version {version};")]);
    }
}

#[test]
fn setup_refuses_a_libtorch_without_a_version() {
    let torch = scratch();
    write(&torch.path().join("lib/libtorch_cpu.so"), "");
    Checkout::new().assert_refuses(torch.path(), &["version.py", "build-version"]);
}

#[test]
fn setup_refuses_what_would_bypass_it() {
    let checkout = Checkout::new();
    for name in OVERRIDES {
        assert_refused(&run(checkout.setup().env(name, "1")), &[name, "Unset it"]);
    }
    assert!(!checkout.path().join(".venv").exists());
}

#[test]
fn setup_links_the_libtorch_that_it_is_given() {
    let checkout = Checkout::new();
    let package = scratch();
    write_torch(package.path(), "2.11.0+cu130");
    assert_silent_success(&checkout.setup_with(package.path()));
    assert_eq!(checkout.link(), package.path().canonicalize().unwrap());

    // The same again touches nothing, or cargo would rebuild the bindings.
    let before = contents(checkout.path());
    assert_silent_success(&checkout.setup_with(package.path()));
    assert_silent_success(&checkout.setup_with(checkout.path().join(".libtorch")));
    assert_eq!(contents(checkout.path()), before);

    let archive = scratch();
    write(&archive.path().join("lib/libtorch_cpu.so"), "");
    write(&archive.path().join("build-version"), "2.11.0+cpu\n");
    assert_silent_success(&checkout.setup_with(archive.path()));
    assert_eq!(checkout.link(), archive.path().canonicalize().unwrap());
}

#[test]
fn setup_names_the_tool_that_is_missing() {
    let checkout = Checkout::new();
    let tools = scratch();
    for tool in ["bash", "dirname", "uname"] {
        symlink(find_on_path(tool), tools.path().join(tool)).unwrap();
    }
    let setup = || run(checkout.setup().env("PATH", tools.path()));
    assert_refused(&setup(), &["cargo is not on PATH", "rustup.rs"]);
    write_program(&tools.path().join("cargo"), "#!/bin/sh\n");
    assert_refused(&setup(), &["no C++ compiler", "apt install g++"]);
    write_program(&tools.path().join("c++"), "#!/bin/sh\n");
    assert_refused(&setup(), &["python3 is not on PATH", "set LIBTORCH"]);
    assert!(!checkout.path().join(".venv").exists());
}

/// Behaves as `python3 -m venv` and `pip install` do, without a download. The first install is killed half-way, together with setup.
const PYTHON_KILLED_ONCE: &str = r#"#!/bin/sh
torch=.venv/lib/python3.11/site-packages/torch
case "$*" in
    "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip --version") ;;
    "-m pip install torch==2.11.0")
        echo install >>installs
        mkdir -p $torch/lib
        echo "__version__ = '2.11.0+cpu'" >$torch/version.py
        : >$torch/lib/libtorch_cpu.so
        if [ "$(wc -l <installs)" -eq 1 ]; then
            : >$torch/half-written
            kill -KILL $PPID
        fi ;;
    *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"#;

#[test]
fn setup_repairs_an_install_that_was_killed() {
    let checkout = Checkout::new();
    let tools = scratch();
    write_program(&tools.path().join("python3"), PYTHON_KILLED_ONCE);
    let setup = || run(checkout.setup().env("PATH", path_with(tools.path())));
    let installs = || fs::read_to_string(checkout.path().join("installs")).unwrap().lines().count();

    let killed = setup();
    assert!(!killed.status.success());
    assert!(stderr(&killed).contains("4.7 GB"), "{}", stderr(&killed));
    assert!(!checkout.path().join(".libtorch").exists());

    let repaired = setup();
    assert!(repaired.status.success(), "{}", stderr(&repaired));
    assert!(stderr(&repaired).contains("interrupted"), "{}", stderr(&repaired));
    assert_eq!(installs(), 2);
    assert_eq!(checkout.link(), Path::new(".venv/lib/python3.11/site-packages/torch"));
    assert!(!checkout.path().join(".libtorch/half-written").exists());

    let before = contents(checkout.path());
    assert_silent_success(&setup());
    assert_eq!(contents(checkout.path()), before);

    fs::write(checkout.path().join(".libtorch/version.py"), "__version__ = '2.10.0'\n").unwrap();
    let replaced = setup();
    assert!(replaced.status.success(), "{}", stderr(&replaced));
    assert_eq!(installs(), 3);
}

/// A folder as `scripts/dist` packs it, whose programs print how they were called.
struct Unpacked(TempDir);

impl Unpacked {
    fn new() -> Self {
        let folder = scratch();
        copy_script("launch", &folder.path().join("run-all"));
        for name in ["run", "doctor"] {
            symlink("run-all", folder.path().join(name)).unwrap();
        }
        for program in ["vramlab", "checkpointing"] {
            let print = "#!/bin/sh\necho \"$(basename \"$0\") $* | $LD_LIBRARY_PATH | $PWD\"\n";
            write_program(&folder.path().join("bin").join(program), print);
        }
        Unpacked(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.path().join(name));
        command.env_remove("LIBTORCH").env_remove("VRAMLAB_PYTHON").env("LD_LIBRARY_PATH", "/before");
        command
    }

    /// What the program printed when it was started with the libtorch of this directory.
    fn started(&self, program: &str, libtorch: &Path) -> String {
        let folder = self.path().canonicalize().unwrap();
        format!("{program} | {}/lib:/before | {}\n", libtorch.display(), folder.display())
    }
}

/// A `python3` whose only package is the torch of this folder, if there is one.
fn write_python(folder: &Path) {
    let python = find_on_path("python3");
    let text = format!("#!/bin/sh\nPYTHONPATH={} exec {} -S \"$@\"\n", folder.join("packages").display(), python.display());
    write_program(&folder.join("python3"), &text);
}

#[test]
fn launcher_starts_programs_with_the_torch_of_python3() {
    let unpacked = Unpacked::new();
    let python = scratch();
    write_python(python.path());
    let torch = python.path().join("packages/torch");
    write_torch(&torch, "2.11.1+cu130");
    let launch = |name: &str, arguments: &[&str]| {
        let output = run(unpacked.command(name).args(arguments).env("PATH", path_with(python.path())));
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(launch("run-all", &["--filter", "a b"]), unpacked.started("vramlab run-all --filter a b", &torch));
    assert_eq!(launch("doctor", &[]), unpacked.started("vramlab doctor", &torch));
    assert_eq!(launch("run", &["checkpointing", "--list"]), unpacked.started("checkpointing --list", &torch));
}

#[test]
fn launcher_takes_the_libtorch_and_the_python_that_it_is_given() {
    let unpacked = Unpacked::new();
    let torch = scratch();
    write_torch(torch.path(), "2.11.0");
    let output = run(unpacked.command("run-all").env("LIBTORCH", torch.path()));
    assert_eq!(String::from_utf8_lossy(&output.stdout), unpacked.started("vramlab run-all", torch.path()));

    let python = scratch();
    write_python(python.path());
    write_torch(&python.path().join("packages/torch"), "2.11.0");
    let output = run(unpacked.command("run-all").env("VRAMLAB_PYTHON", python.path().join("python3")));
    let expected = unpacked.started("vramlab run-all", &python.path().join("packages/torch"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn launcher_says_what_is_wrong_with_the_torch_that_it_finds() {
    let unpacked = Unpacked::new();
    let python = scratch();
    write_python(python.path());
    let launch = || run(unpacked.command("run-all").env("PATH", path_with(python.path())));
    let remedies = ["VRAMLAB_PYTHON", "LIBTORCH", "pip install torch==2.11.0"];

    assert_refused(&launch(), &["has no PyTorch"]);
    assert_refused(&launch(), &remedies);

    write_torch(&python.path().join("packages/torch"), "2.9.0+cu128");
    assert_refused(&launch(), &["version 2.9.0+cu128", "built for 2.11", python.path().to_str().unwrap()]);
    assert_refused(&launch(), &remedies);

    let no_python = run(unpacked.command("run-all").env("VRAMLAB_PYTHON", "/nowhere/python"));
    assert_refused(&no_python, &["there is no /nowhere/python"]);
    assert_refused(&no_python, &remedies);

    let no_libtorch = run(unpacked.command("run-all").env("LIBTORCH", "/nowhere"));
    assert_refused(&no_libtorch, &["LIBTORCH is '/nowhere'", "no lib/libtorch_cpu.so"]);
    assert_refused(&no_libtorch, &remedies);
}

#[test]
fn launcher_explains_a_system_that_is_too_old() {
    let unpacked = Unpacked::new();
    let torch = scratch();
    write_torch(torch.path(), "2.11.0");
    let loader = "bin/vramlab: /lib/libc.so.6: version `GLIBC_2.38' not found";
    write_program(&unpacked.path().join("bin/vramlab"), &format!("#!/bin/sh\ncat >&2 <<'E'\n{loader}\nE\nexit 1\n"));
    let output = run(unpacked.command("run-all").env("LIBTORCH", torch.path()));
    assert_refused(&output, &["older than the one", loader, "just dist"]);
}

#[test]
fn launcher_lists_the_experiments_for_an_unknown_name() {
    let unpacked = Unpacked::new();
    for arguments in [&["checkpoint"][..], &[], &["../run-all"], &["vramlab"]] {
        let output = run(unpacked.command("run").args(arguments).env("VRAMLAB_PYTHON", "/nowhere/python"));
        assert_refused(&output, &["usage: run NAME", "checkpointing"]);
    }
}
