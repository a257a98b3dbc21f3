//! What others hand to the program: captures that a stranger made, and an agent's messages.

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

fn vramlab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_vramlab"))
}

/// A kept capture with its files changed, packed by tar.
fn packed(folder: &Path, name: &str, change: &dyn Fn(&Path)) -> std::path::PathBuf {
    let (files, to) = (folder.join(name), folder.join(format!("{name}.cap")));
    fs::create_dir(&files).unwrap();
    let capture = common::root().join("tests/rehearse/captures/training.cap");
    assert!(Command::new("tar").arg("-xzf").arg(capture).arg("-C").arg(&files).status().unwrap().success());
    change(&files);
    let names = fs::read_dir(&files).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(Command::new("tar").arg("-Sczf").arg(&to).arg("-C").arg(&files).args(names).status().unwrap().success());
    to
}

#[test]
fn a_strangers_capture_is_shown_plainly_or_refused_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let show = |path: &Path| {
        let output = vramlab().arg("show").arg(path).output().unwrap();
        (output.status.code(), format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
    };
    fs::write(folder.path().join("secret"), "a secret of the reader's").unwrap();
    let process = |files: &Path| {
        let folders = fs::read_dir(files).unwrap().map(|entry| entry.unwrap().path());
        folders.into_iter().find(|path| path.is_dir()).unwrap()
    };
    let secret = folder.path().join("secret");
    type Change<'a> = &'a dyn Fn(&Path);
    let links: [(&str, Change); 3] = [
        ("failed", &|files| std::os::unix::fs::symlink(&secret, files.join("failed")).unwrap()),
        ("names", &|files| {
            fs::remove_file(process(files).join("names")).unwrap();
            std::os::unix::fs::symlink("/dev/zero", process(files).join("names")).unwrap();
        }),
        ("pipe", &|files| assert!(Command::new("mkfifo").arg(files.join("cards2")).status().unwrap().success())),
    ];
    for (name, change) in links {
        let (status, said) = show(&packed(folder.path(), name, change));
        assert!(status == Some(2) || status == Some(1), "{name}: {said}");
        assert!(
            said.contains("which no rehearsal keeps") && said.trim_end().lines().count() == 1 && !said.contains("secret of"),
            "{said}"
        );
    }
    let (status, said) = show(&packed(folder.path(), "large", &|files| {
        fs::File::create(process(files).join("events")).unwrap().set_len(2 << 30).unwrap();
    }));
    assert!(status != Some(0) && said.contains("it unpacks to more than") && said.trim_end().lines().count() == 1, "{said}");
    let loud = "x\n::error::obeyed\u{1b}[2J##[error]obeyed";
    let (_, said) = show(&packed(folder.path(), "loud", &|files| {
        let about = files.join("session.json");
        let mut text: Value = serde_json::from_slice(&fs::read(&about).unwrap()).unwrap();
        text["command"] = json!([loud, loud]);
        text["last_line_of_stderr"] = json!(loud);
        text["status"] = json!(256);
        fs::write(&about, text.to_string()).unwrap();
        fs::write(files.join("failed"), loud).unwrap();
    }));
    assert!(!said.contains('\u{1b}') && !said.contains("##[error]"), "{said}");
    assert!(!said.lines().any(|line| line.trim_start().starts_with("::")), "{said}");
}

#[test]
fn a_job_that_the_hosts_memory_was_too_small_for_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let kept = packed(folder.path(), "killed", &|files| {
        let about = files.join("session.json");
        let mut text: Value = serde_json::from_slice(&fs::read(&about).unwrap()).unwrap();
        (text["killed"], text["status"]) = (json!(2), json!(256));
        fs::write(&about, text.to_string()).unwrap();
    });
    let output = vramlab().arg("show").arg(&kept).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("he host ran out of memory and its kernel ended 2 processes") && said.contains("--no-init"), "{said}");
}

/// A server and the lines that it answers.
fn server() -> (Child, impl FnMut(&[u8]), impl FnMut() -> Option<Value>) {
    let mut server = vramlab().arg("mcp").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut requests = server.stdin.take();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let say = move |line: &[u8]| {
        // An empty one ends the input.
        match line {
            [] => drop(requests.take()),
            line => requests.as_mut().unwrap().write_all(&[line, b"\n"].concat()).unwrap(),
        }
    };
    (server, say, move || lines.next().map(|line| serde_json::from_str(&line.unwrap()).unwrap()))
}

fn request(id: u32, method: &str, params: Value) -> Vec<u8> {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string().into_bytes()
}

/// A call that runs until it is ended.
fn endless(folder: &Path) -> Vec<u8> {
    fs::write(folder.join("wait.py"), "import time\ntime.sleep(600)\n").unwrap();
    let command = json!([common::python(), "wait.py"]);
    request(7, "tools/call", json!({ "name": "rehearse", "arguments": { "command": command, "directory": folder } }))
}

/// The processes that work in a folder.
fn at_work(folder: &Path) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == folder)).count()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1200 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("{what}");
}

#[test]
fn an_agents_odd_lines_are_answered_and_no_rehearsal_outlives_the_server() {
    for end in ["cancelled", "the input ends", "killed"] {
        let folder = tempfile::tempdir().unwrap();
        let at = fs::canonicalize(folder.path()).unwrap();
        let (mut server, mut say, mut heard) = server();
        say(b"\xff\xfe no text");
        assert_eq!(heard().unwrap()["error"]["code"], -32700);
        say(&endless(&at));
        until("the rehearsal begins", || at_work(&at) > 1);
        // Meanwhile others are answered.
        say(&request(8, "ping", json!({})));
        assert_eq!(heard().unwrap()["id"], 8);
        match end {
            "cancelled" => {
                say(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } })
                    .to_string()
                    .as_bytes());
                until("the rehearsal is cancelled", || at_work(&at) == 0);
                say(&request(9, "ping", json!({})));
                assert_eq!(heard().unwrap()["id"], 9);
                say(b"");
            }
            "the input ends" => say(b""),
            _ => server.kill().unwrap(),
        }
        server.wait().unwrap();
        until(end, || at_work(&at) == 0);
    }
}
