//! What stays as it was, kind by kind: what kinds/kinds.py does to a user's files, processes and shared memory, with what each kernel can hold.
//! `cargo test -p vramlab --test rehearse kinds -- --nocapture` prints the table.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// What came of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    /// It went well, and nothing of the user's is other than before.
    Held,
    Refused,
    /// This machine has no such call.
    NotHere,
    /// Modes, times or attributes are others.
    About,
    /// Contents or names are others; or what is no file is gone.
    Changed,
}

impl Came {
    fn word(self) -> &'static str {
        match self {
            Came::Held => "held",
            Came::Refused => "refused",
            Came::NotHere => "-",
            Came::About => "MODE, TIME",
            Came::Changed => "CHANGED",
        }
    }
}

/// What is tried at most, and the ABI of Landlock that the kernel is made to have.
const COLUMNS: [(&str, u32); 8] = [
    ("namespace", 7),
    ("namespace", 4),
    ("landlock", 7),
    ("landlock", 4),
    ("landlock", 3),
    ("landlock", 2),
    ("landlock", 1),
    ("landlock", 0),
];

struct User {
    folder: TempDir,
    others: Vec<Child>,
    memory: PathBuf,
}

impl User {
    fn new(kinds: usize) -> User {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = |name: &str| folder.path().join(name);
        for kind in 0..kinds {
            let here = at("k").join(kind.to_string());
            fs::create_dir_all(here.join("d/e")).unwrap();
            fs::write(here.join("f"), "original").unwrap();
            fs::write(here.join("d/x"), "x").unwrap();
            symlink("f", here.join("l")).unwrap();
        }
        for name in ["hf/my-run", "torch/hub/checkpoints", "run", "tmp", "cache"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        for name in ["hf/my-run/model.safetensors", "torch/hub/checkpoints/best.pth", "run/state", "tmp/mine"] {
            fs::write(at(name), "original").unwrap();
        }
        fs::set_permissions(at("run"), fs::Permissions::from_mode(0o700)).unwrap();
        let memory = Path::new("/dev/shm").join(format!("other{}", folder.path().file_name().unwrap().display()));
        fs::write(&memory, "original").unwrap();
        let others = (0..4).map(|_| Command::new("sleep").arg("600").spawn().unwrap()).collect();
        User { folder, others, memory }
    }

    /// All files with their contents, and what is said of them.
    fn seen(&self) -> BTreeMap<String, (String, String)> {
        let (mut found, mut folders) = (BTreeMap::new(), vec![self.folder.path().to_path_buf()]);
        while let Some(next) = folders.pop() {
            for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
                let about = fs::symlink_metadata(&path).unwrap();
                let name = path.strip_prefix(self.folder.path()).unwrap().display().to_string();
                if name == "cache" {
                    continue;
                }
                let is_file = about.is_file();
                let contents = if is_file {
                    format!("{:?}", fs::read(&path))
                } else {
                    format!("{:?} {:?}", about.file_type(), fs::read_link(&path))
                };
                let times =
                    (about.mode(), about.uid(), about.nlink(), about.ino(), about.mtime(), about.mtime_nsec(), about.ctime_nsec());
                found.insert(name, (contents, format!("{times:?}")));
                if about.is_dir() {
                    folders.push(path);
                }
            }
        }
        found
    }

    /// Whether what a kind that is about no file was about is still there.
    fn has(&mut self, kind: &str) -> bool {
        let by = ["os.kill", "pkill", "raw: kill", "static: kill"].iter().position(|name| *name == kind);
        by.is_none_or(|by| self.others[by].try_wait().unwrap().is_none())
            && (!kind.contains("shared memory") || self.memory.exists())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.others.iter_mut().for_each(|other| drop((other.kill(), other.wait())));
        fs::remove_file(&self.memory).ok();
    }
}

/// Where a kind is at work.
fn place(number: usize, kind: &str) -> String {
    match kind {
        "a cache of hugging face" => "hf".to_string(),
        "a cache of torch" => "torch".to_string(),
        "the folder of the session of the desktop" => "run".to_string(),
        "a private folder in TMPDIR" | "pathlib in TMPDIR" => "tmp".to_string(),
        _ => format!("k/{number}"),
    }
}

fn came(said: &str, before: &BTreeMap<String, (String, String)>, after: &BTreeMap<String, (String, String)>, place: &str) -> Came {
    let below = |seen: &BTreeMap<String, (String, String)>| -> BTreeMap<String, (String, String)> {
        // The folder itself has others' files, and this program's own, too.
        let is_below = |name: &str| name.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'));
        seen.iter().filter(|(name, _)| is_below(name)).map(|(name, about)| (name.clone(), about.clone())).collect()
    };
    let (before, after) = (below(before), below(after));
    let contents = |seen: &BTreeMap<String, (String, String)>| {
        seen.iter().map(|(name, (text, _))| (name.clone(), text.clone())).collect::<Vec<_>>()
    };
    match said {
        "none" => Came::NotHere,
        _ if contents(&before) != contents(&after) => Came::Changed,
        _ if before != after => Came::About,
        "ok" => Came::Held,
        _ => Came::Refused,
    }
}

/// Compiles a program of kinds/; none where that cannot be, as without a static C library.
fn compiled(folder: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let to = folder.join(name);
    let source = common::root().join("tests/rehearse/kinds").join(source);
    let done = Command::new("cc").args(flags).arg("-o").arg(&to).arg(source).output().ok()?;
    done.status.success().then_some(to)
}

#[test]
fn what_a_script_does_to_a_users_files_is_held_or_said() {
    is_held_or_said(&COLUMNS[1..3]);
}

#[test]
#[ignore = "long"]
fn what_a_script_does_to_a_users_files_is_held_or_said_by_other_kernels() {
    is_held_or_said(&COLUMNS);
}

fn is_held_or_said(columns_to_try: &[(&str, u32)]) {
    let programs = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let raw = compiled(programs.path(), "raw", "raw.c", &[]).expect("a C compiler");
    let linked = compiled(programs.path(), "static", "raw.c", &["-static"]).unwrap_or_else(|| PathBuf::from("/nothing"));
    let kernel = compiled(programs.path(), "abi.so", "abi.c", &["-shared", "-fPIC"]).expect("a C compiler");
    let script = common::root().join("tests/rehearse/kinds/kinds.py");
    let listed = Command::new(common::python()).arg(&script).args(["list"]).args([&raw, &linked]).output().unwrap();
    let kinds: Vec<String> = String::from_utf8(listed.stdout).unwrap().lines().map(str::to_string).collect();
    assert!(kinds.len() >= 70, "{}", String::from_utf8_lossy(&listed.stderr));
    let mut columns: Vec<(String, Vec<Came>)> = Vec::new();
    let mut wrong = Vec::new();
    for &(most, abi) in columns_to_try {
        let mut user = User::new(kinds.len());
        let before = user.seen();
        let root = user.folder.path().to_path_buf();
        let at = |name: &str| root.join(name);
        let open = kinds.iter().position(|kind| kind == "a file that was open at the start").unwrap();
        let output = Command::new("sh")
            .args(["-c", "exec 9>>\"$0\"; exec \"$@\""])
            .arg(at(&format!("k/{open}/f")))
            .arg(env!("CARGO_BIN_EXE_vramlab"))
            .args(["rehearse", "--gpu", "24GiB", "--steps", "all", "--json"])
            .arg(at("cache/answer.json"))
            .arg("--")
            .arg(common::python())
            .arg(&script)
            .arg("run")
            .args([&raw, &linked])
            .current_dir(user.folder.path())
            .env("VRAMLAB_CACHE", at("cache"))
            .envs([("HF_HUB_CACHE", at("hf")), ("TORCH_HOME", at("torch")), ("XDG_RUNTIME_DIR", at("run")), ("TMPDIR", at("tmp"))])
            .env("OTHER_MEMORY", user.memory.file_name().unwrap())
            .env("OTHERS", user.others.iter().map(|other| other.id().to_string()).collect::<Vec<_>>().join(" "))
            .envs([("VRAMLAB_HELD_BY", most), ("LANDLOCK_ABI", &abi.to_string())])
            .env("LD_PRELOAD", &kernel)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{most} {abi}: {said}");
        let answer: Value = serde_json::from_slice(&fs::read(at("cache/answer.json")).unwrap()).unwrap();
        let by = answer["held_back"]["by"].as_str().unwrap().to_string();
        let told: BTreeMap<usize, &str> = said
            .lines()
            .filter_map(|line| line.strip_prefix("kind\t")?.split_once('\t'))
            .map(|(number, said)| (number.parse().unwrap(), said))
            .collect();
        assert_eq!(told.len(), kinds.len(), "{most} {abi}: {said}");
        let after = user.seen();
        let mut cells = Vec::new();
        for (number, kind) in kinds.iter().enumerate() {
            let came = came(told[&number], &before, &after, &place(number, kind));
            let is_open = kind.ends_with(": device") && told[&number] == "ok";
            let came = if user.has(kind) && !is_open { came } else { Came::Changed };
            if !may_be(came, kind, &by, abi) {
                wrong.push(format!("{by} (ABI {abi}): {kind}: {} ({})", came.word(), told[&number]));
            }
            cells.push(came);
        }
        // What is said is what is known.
        let known =
            ["your own files are as they were", "what is in your own files is as it was"].iter().any(|text| said.contains(text));
        assert_eq!(known, matches!(&*by, "namespace" | "landlock"), "{said}");
        assert!(fs::read_dir(at("tmp")).unwrap().count() <= 1, "{most} {abi}");
        columns.push((format!("{by}, {abi}"), cells));
    }
    print_table(&kinds, &columns);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether a kind may come out so where that holds back.
fn may_be(came: Came, kind: &str, by: &str, abi: u32) -> bool {
    let (is_raw, is_static) = (kind.starts_with("raw: "), kind.starts_with("static: "));
    let call = kind.split(": ").nth(1).unwrap_or_default();
    match came {
        Came::Held | Came::Refused | Came::NotHere => true,
        // A kernel before Linux 6.12 keeps no signals apart; what the preloaded library is in does.
        Came::Changed if call == "kill" && (is_raw || is_static) => abi < 6,
        Came::Changed | Came::About if by == "library" => is_raw,
        Came::About => by != "namespace" && (is_raw || is_static) && ["chmod", "fchmod", "utimes", "setxattr"].contains(&call),
        Came::Changed => {
            by == "landlock-without-truncation" && (is_raw || is_static) && ["truncate", "empty-reading"].contains(&call)
        }
    }
}

fn print_table(kinds: &[String], columns: &[(String, Vec<Came>)]) {
    let widest = kinds.iter().map(String::len).max().unwrap_or(0);
    let row = |first: &str, cells: Vec<&str>| {
        let widths = columns.iter().map(|(name, _)| name.len().max(10));
        let cells: String = cells.iter().zip(widths).map(|(cell, width)| format!("  {cell:width$}")).collect();
        println!("{first:widest$}{cells}");
    };
    row("kind", columns.iter().map(|(name, _)| name.as_str()).collect());
    for (number, kind) in kinds.iter().enumerate() {
        row(kind, columns.iter().map(|(_, cells)| cells[number].word()).collect());
    }
}
