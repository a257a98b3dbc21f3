"""Writes, moves and removes what is in its folder, by each road that a training script takes, and looks at what it finds then.

    writes.py guarded|followed|never

`guarded`: the kernel refuses what is written another way; `followed`: it does not. `never` imports no torch, writes a line and waits.
"""

import atexit
import ctypes
import errno
import glob
import mmap
import os
import pathlib
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from multiprocessing import Manager, shared_memory

HERE = os.getcwd()


def write(path, text, mode="w"):
    with open(path, mode) as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read()


def refused(error, call, *arguments):
    try:
        call(*arguments)
    except OSError as raised:
        assert raised.errno == error, raised
    else:
        raise AssertionError(f"{call} {arguments} went well")


def names(path):
    return sorted(os.listdir(path))


def files():
    write("a.txt", "new")
    assert read("a.txt") == "new"
    write("train.log", "more\n", "a")
    assert read("train.log") == "log\nmore\n"
    write("fresh.txt", "f")
    assert "fresh.txt" in os.listdir(".")
    os.replace("fresh.txt", "a.txt")
    assert read("a.txt") == "f" and not os.path.exists("fresh.txt") and "fresh.txt" not in os.listdir(".")
    with open("data.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:3] = b"abc"
    assert read("data.bin")[:4] == "abcx"
    os.truncate("data.bin", 10)
    assert os.path.getsize("data.bin") == 10
    os.chmod("a.txt", 0o600)
    os.utime("a.txt", (5, 5))
    assert os.stat("a.txt").st_mtime == 5
    with open("train.log") as file:
        os.fchmod(file.fileno(), 0o600)
        os.utime(file.fileno(), (5, 5))
    database = sqlite3.connect("runs.db")
    database.execute("insert into runs values (2)")
    database.commit()
    assert database.execute("select count(*) from runs").fetchone() == (2,)
    database.close()
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
        file.write("q")
    os.replace(file.name, "q.txt")
    assert read("q.txt") == "q"
    refused(errno.EEXIST, open, "a.txt", "x")
    refused(errno.ENOENT, os.unlink, "nothing")
    if os.geteuid() != 0:
        refused(errno.EACCES, open, "closed/x", "w")
        refused(errno.EACCES, os.unlink, "closed/kept")


def folders():
    # As a Trainer turns its checkpoints over.
    os.makedirs("ck/tmp-step-3")
    write("ck/tmp-step-3/w.bin", "w3")
    os.rename("ck/tmp-step-3", "ck/step-3")
    shutil.rmtree("ck/step-1")
    assert names("ck") == ["step-2", "step-3"], names("ck")
    assert sorted(glob.glob("ck/*/w.bin")) == ["ck/step-2/w.bin", "ck/step-3/w.bin"]
    assert not os.path.exists("ck/step-1/w.bin") and not os.path.isdir("ck/step-1")
    os.makedirs("ck/step-1")
    assert names("ck/step-1") == []
    # A folder that was there is moved, and then written in.
    os.rename("ck/step-2", "ck/best")
    assert read("ck/best/sub/s.bin") == "s" and names("ck/best") == ["sub", "w.bin", "z.bin"]
    assert all(entry.is_file(follow_symlinks=False) or entry.name == "sub" for entry in os.scandir("ck/best"))
    write("ck/best/w.bin", "changed", "a")
    assert read("ck/best/w.bin") == "w2changed"
    assert not os.path.exists("latest/w.bin")
    os.unlink("latest")
    os.symlink("ck/best", "latest")
    write("latest/sub/s.bin", "ss")
    assert read("ck/best/sub/s.bin") == "ss" and os.path.realpath("latest") == f"{HERE}/ck/best"
    refused(errno.ENOTEMPTY, os.rmdir, "ck")
    refused(errno.EEXIST, os.mkdir, "ck")
    assert sorted(path.name for path in pathlib.Path("ck").iterdir()) == ["best", "step-1", "step-3"]
    for folder, _, found in os.walk("."):
        for name in found:
            os.lstat(os.path.join(folder, name))


def programs():
    script = """set -e; cp a.txt b.txt; mv b.txt c.txt; rm -r old; test ! -e old; echo hi >> a.txt; mkdir -p n/m; touch n/m/t; ls n/m | grep -q t
        cd n; touch rel; cd ..; test -e n/rel; sed -i s/f/g/ a.txt; ln c.txt hard.txt; env -i sh -c 'echo e > envi'"""
    subprocess.check_call(script, shell=True)
    assert read("c.txt") == "f" and read("a.txt") == "ghi\n" and read("envi") == "e\n"
    os.chdir("n/m")
    assert os.getcwd() == f"{HERE}/n/m"
    write("here", "1")
    write("../../beside", "2")
    assert read("../../n/m/here") == "1"
    os.chdir(HERE)
    assert read("beside") == "2"


def between_processes():
    folder = tempfile.mkdtemp()
    for path in (f"{folder}/s", "n/s"):
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(path)
            server.listen(1)
            client.connect(path)
        assert os.path.exists(path)
    shutil.rmtree(folder)
    memory = shared_memory.SharedMemory(create=True, size=100)
    memory.close()
    memory.unlink()
    with Manager() as manager:
        shared = manager.list([1])
        shared.append(2)
        assert list(shared) == [1, 2]
    os.mkfifo("pipe")
    if os.fork() == 0:
        write("pipe", "through")
        os._exit(0)
    assert read("pipe") == "through"
    os.wait()


def another_way(guarded):
    """Which a library in the process cannot follow."""
    if guarded:
        library = ctypes.CDLL(None, use_errno=True)
        openat = {"x86_64": 257, "aarch64": 56}[os.uname().machine]
        opened = library.syscall(openat, -100, b"a.txt", os.O_WRONLY | os.O_TRUNC, 0)
        why = ctypes.get_errno()
        assert opened == -1 and why in (errno.EACCES, errno.EROFS), os.strerror(why)
        assert library.syscall(openat, -100, b"by_number.txt", os.O_WRONLY | os.O_CREAT, 0o600) == -1
    if os.path.exists("static"):
        ran = subprocess.run("./static", shell=True, stderr=subprocess.PIPE, text=True)
        assert ran.returncode != 0, ran
        assert guarded or "is not started" in ran.stderr, ran


def train():
    import torch
    from torch.distributed import checkpoint

    model = torch.nn.Linear(2048, 2048).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    kept = torch.load("model.pt")
    atexit.register(lambda: torch.save({"at": "the end"}, "at_exit.pt"))
    try:
        for step in range(4):
            model(torch.randn(8, 2048, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        checkpoint.save({"model": model.state_dict()}, checkpoint_id="sharded")
        checkpoint.save({"model": model.state_dict()}, checkpoint_id="sharded")
    finally:
        torch.save({"model": model.state_dict(), "step": step}, "model.pt")
        assert "model" in torch.load("model.pt") and "model" not in kept
        assert os.stat("model.pt").st_size > 16 << 20


if sys.argv[1] == "never":
    files()
    folders()
    print("written", flush=True)
    time.sleep(600)
files()
folders()
programs()
between_processes()
another_way(sys.argv[1] == "guarded")
train()
shutil.rmtree("ck")
os.makedirs("ck/a")
assert names("ck") == ["a"]
print("all as it should be")
