//! What a rehearsal leaves behind it and beside it: nothing where it is killed at any moment, other processes and shared memory as they were, a word on
//! what it sent, and on what is more than it can hold back.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

const STEPS: &str = "
import torch
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(net.parameters())
for step in range(3):
    net(torch.randn(8, 64, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
";

fn rehearse(folder: &Path, script: &str, flags: &[&str]) -> Command {
    if fs::read_to_string(folder.join("train.py")).ok().as_deref() != Some(script) {
        fs::write(folder.join("train.py"), script).unwrap();
    }
    let mut command = crate::scene::vramlab();
    command.args(["rehearse", "--gpu", "24GiB"]).args(flags).arg("--").arg(common::python()).arg("train.py").current_dir(folder);
    command.env("VRAMLAB_CACHE", folder.join("cache"));
    command
}

fn said(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), said)
}

fn seen(folder: &Path) -> BTreeMap<String, (u64, i64, i64, Vec<u8>)> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files
        .map(|path| {
            let about = path.metadata().unwrap();
            (path.display().to_string(), (about.ino(), about.mtime_nsec(), about.ctime_nsec(), fs::read(&path).unwrap()))
        })
        .collect()
}

/// `VRAMLAB_KILLS` says how often; the moments come of a sequence that is the same each time.
#[test]
fn a_rehearsal_that_is_killed_at_any_moment_leaves_nothing() {
    let kills: u64 = std::env::var("VRAMLAB_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(6);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let script = format!(
        "import os, tempfile\nopen('log.txt', 'a').write('x')\nos.replace('old.pt', 'older.pt')\nd = tempfile.mkdtemp()\nopen(d + '/x', 'w')\n{STEPS}    \
         torch.save(net.state_dict(), 'model.pt')\n    os.system('echo x >> log.txt')\n"
    );
    for name in ["log.txt", "old.pt", "model.pt", "train.py"] {
        fs::write(folder.path().join(name), if name == "train.py" { &script } else { "original" }).unwrap();
    }
    let run = || {
        let mut command = rehearse(folder.path(), &script, &[]);
        command
            .env("TMPDIR", &temporary)
            .env_remove("VRAMLAB_ZYGOTES")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    // How long one takes here, with what is made on first use.
    assert!(run().status().unwrap().success());
    let began = SystemTime::now();
    assert!(run().status().unwrap().success());
    let whole = began.elapsed().unwrap().as_millis() as u64;
    let before = seen(folder.path());
    let mut random = 1u64;
    for _ in 0..kills {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mut child = run().spawn().unwrap();
        thread::sleep(Duration::from_millis((random >> 33) % whole));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen(folder.path()), before);
    }
    // Its processes end with it; those that are being made end a moment later.
    let named = folder.path().display().to_string();
    let alive = || {
        let lists = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| fs::read(entry.path().join("environ")).ok());
        lists.filter(|list| String::from_utf8_lossy(list).contains(&format!("VRAMLAB_CACHE={named}"))).count()
    };
    let wait_until = |is_so: &dyn Fn() -> bool| {
        (0..600).take_while(|_| !is_so()).for_each(|_| thread::sleep(Duration::from_millis(100)));
    };
    wait_until(&|| alive() == 0);
    assert_eq!((alive(), seen(folder.path())), (0, before));
    let left = |place: &Path| -> Vec<_> {
        let entries = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.file_name().unwrap().to_string_lossy().contains("session-")).collect()
    };
    let places = [folder.path().join("cache"), temporary.clone()];
    // Of one whose script has begun its last process removes the folders.
    let those_before = places.each_ref().map(|place| left(place));
    let mut child = run().spawn().unwrap();
    let log = Path::new("held/files").join(folder.path().strip_prefix("/").unwrap()).join("log.txt");
    let has_begun = || left(&places[0]).iter().any(|path| !those_before[0].contains(path) && path.join(&log).exists());
    wait_until(&has_begun);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(&|| alive() == 0);
    assert!(places.iter().zip(&those_before).all(|(place, before)| left(place).iter().all(|path| before.contains(path))));
    // The next one sweeps what is older than a minute.
    for path in places.iter().flat_map(|place| left(place)) {
        fs::File::open(&path).unwrap().set_modified(SystemTime::now() - Duration::from_secs(120)).unwrap();
    }
    assert!(run().status().unwrap().success());
    for place in &places {
        assert_eq!(left(place), Vec::<std::path::PathBuf>::new());
    }
    println!("{kills} rehearsals were killed within {whole} ms of their beginning: files as they were, sessions swept");
}

#[test]
fn whom_a_script_sent_something_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in server.incoming().flatten() {
            thread::spawn(move || {
                let mut got = vec![0; 1 << 20];
                // An answer to what has not come whole would end the connection.
                let mut whole = 0;
                while whole < 200_000 {
                    match stream.read(&mut got) {
                        Ok(length) if length > 0 => whole += length,
                        _ => return,
                    }
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok();
                while stream.read(&mut got).is_ok_and(|length| length > 0) {}
            });
        }
    });
    let script = format!(
        "{STEPS}import io, socket, urllib.request\nb = io.BytesIO()\ntorch.save({{'w': torch.ones(50000)}}, b)\n\
         urllib.request.urlopen(urllib.request.Request('http://localhost:{port}/', data=b.getvalue(), method='PUT')).read()\n\
         # Within the job it is nobody's business.\ns = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(s.getsockname())\n\
         c.send(b'x' * 100)\nc.close()\n"
    );
    let json = folder.path().join("answer.json");
    let (status, said) = said(&mut rehearse(folder.path(), &script, &["--steps", "all", "--json", json.to_str().unwrap()]));
    assert_eq!(status, Some(0), "{said}");
    let answer: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let sent = answer["held_back"]["sent"].as_array().unwrap();
    assert!(sent.len() == 1 && sent[0]["to"] == format!("localhost:{port}"), "{sent:?}");
    assert!(sent[0]["bytes"].as_u64() > Some(200_000) && sent[0]["connections"] == 1, "{sent:?}");
    assert!(said.contains(&format!("to localhost:{port} (1 connection)")), "{said}");
}

/// More names than the table of marks had room for, and what removes them again.
#[test]
#[ignore = "long"]
fn a_script_may_write_many_files() {
    // In memory where there is such a place: ext4 takes minutes for as many files again where the last run's were just removed.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let script = format!(
        "import os\nos.mkdir('many')\nfor n in range(300_000):\n    os.close(os.open(f'many/{{n}}', os.O_CREAT | os.O_WRONLY))\n\
         assert len(os.listdir('many')) == 300_000\nfor n in range(0, 300_000, 1000):\n    os.unlink(f'many/{{n}}')\n\
         os.unlink('mine')\nassert not os.path.exists('mine') and len(os.listdir('many')) == 299_700\n{STEPS}"
    );
    fs::write(folder.path().join("mine"), "original").unwrap();
    let (status, said) = said(&mut rehearse(folder.path(), &script, &[]));
    assert!(status == Some(0) && said.contains("299700 files") && said.contains("mine"), "{said}");
    assert!(folder.path().join("mine").exists() && !folder.path().join("many").exists());
}

#[test]
#[ignore = "long"]
fn what_if_is_right_where_imports_write_or_start_something() {
    for (name, text) in [
        ("setup_run", "import os\nos.makedirs('runs/x', exist_ok=True)\n"),
        ("setup_run", "import subprocess\nsubprocess.Popen(['sleep', '300'])\n"),
    ] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::write(folder.path().join(format!("{name}.py")), text).unwrap();
        let script = format!(
            "import setup_run\n{STEPS}    os = __import__('os')\n    assert 'makedirs' not in {text:?} or os.path.isdir('runs/x')\n"
        );
        let (status, said) =
            said(&mut rehearse(folder.path(), &script, &["--what-if", "--only", "autocast-bf16,zero-grad-to-none"]));
        assert_eq!(status, Some(0), "{said}");
        assert!(!said.contains("FileNotFoundError") && !said.contains("AssertionError") && !said.contains("failed"), "{said}");
        assert!(!folder.path().join("runs").exists());
    }
}

#[test]
fn a_python_without_its_lock_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (status, said) =
        said(&mut rehearse(folder.path(), &format!("import sys\nsys._is_gil_enabled = lambda: False\n{STEPS}"), &[]));
    assert!(status == Some(2) && said.contains("free-threaded") && said.contains("PYTHON_GIL=1"), "{said}");
}
