"""Changes what a user has, each of seventy kinds in a folder of its own, and says of each whether the call went well.

    kinds.py list | run RAW STATIC

A folder has a file `f`, a link `l` to it, and a folder `d` with a file `x` and an empty folder `e`. `train` is the last kind: a step on the GPU.
"""

import ctypes
import mmap
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import zipfile
from multiprocessing import shared_memory

KINDS = {}


def kind(function):
    KINDS[function.__name__.replace("_", " ")] = function


def shell(name, line):
    KINDS[f"shell: {name}"] = lambda at: subprocess.run(["sh", "-ec", line], cwd=at, check=True, stderr=subprocess.DEVNULL)


def write(path, mode="w"):
    with open(path, mode) as file:
        file.write("changed")


for mode in ("w", "a", "r+"):
    KINDS[f"open {mode}"] = lambda at, mode=mode: write(f"{at}/f", mode)
KINDS["open x"] = lambda at: write(f"{at}/n", "x")
KINDS["open through a link"] = lambda at: write(f"{at}/l")
KINDS["open by /proc/self/cwd"] = lambda at: write(f"/proc/self/cwd/{os.path.relpath(at)}/f")
KINDS["open by /proc/self/root"] = lambda at: write(f"/proc/self/root{at}/f")
KINDS["os.truncate"] = lambda at: os.truncate(f"{at}/f", 1)
KINDS["os.open to read and empty"] = lambda at: os.open(f"{at}/f", os.O_RDONLY | os.O_TRUNC)
KINDS["os.unlink"] = lambda at: os.unlink(f"{at}/f")
KINDS["os.rmdir"] = lambda at: os.rmdir(f"{at}/d/e")
KINDS["os.rename"] = lambda at: os.rename(f"{at}/f", f"{at}/n")
KINDS["os.replace"] = lambda at: (write(f"{at}/n"), os.replace(f"{at}/n", f"{at}/f"))
KINDS["os.rename of a folder"] = lambda at: os.rename(f"{at}/d", f"{at}/n")
KINDS["os.symlink"] = lambda at: os.symlink("f", f"{at}/n")
KINDS["os.link, and write through it"] = lambda at: (os.link(f"{at}/f", f"{at}/n"), write(f"{at}/n"))
KINDS["os.mkdir"] = lambda at: os.mkdir(f"{at}/n")
KINDS["os.mkfifo"] = lambda at: os.mkfifo(f"{at}/n")
KINDS["os.chmod"] = lambda at: os.chmod(f"{at}/f", 0o600)
KINDS["os.chmod of a folder"] = lambda at: os.chmod(f"{at}/d", 0o700)
KINDS["os.fchmod of a folder"] = lambda at: os.fchmod(os.open(f"{at}/d", os.O_RDONLY), 0o700)
KINDS["os.utime"] = lambda at: os.utime(f"{at}/f", (5, 5))
KINDS["os.chown"] = lambda at: os.chown(f"{at}/f", os.getuid(), os.getgid())
KINDS["os.setxattr"] = lambda at: os.setxattr(f"{at}/f", "user.k", b"v")
KINDS["shutil.rmtree"] = lambda at: shutil.rmtree(f"{at}/d")
KINDS["shutil.move"] = lambda at: shutil.move(f"{at}/d", f"{at}/n")
KINDS["shutil.copy over it"] = lambda at: shutil.copy(__file__, f"{at}/f")
KINDS["tempfile beside it"] = lambda at: tempfile.mkstemp(dir=at)
KINDS["a private folder in TMPDIR"] = lambda at: (os.mkdir(f"{at}/n", 0o700), write(f"{at}/n/step.pt"))


@kind
def writes_by_a_mapping(at):
    with open(f"{at}/f", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:3] = b"new"


@kind
def copy_file_range(at):
    os.copy_file_range(os.open(__file__, os.O_RDONLY), os.open(f"{at}/f", os.O_WRONLY), 5)


@kind
def opened_to_read_and_again_to_write(at):
    write(f"/proc/self/fd/{os.open(f'{at}/f', os.O_RDONLY)}")


@kind
def by_a_thread_of_a_small_stack(at):
    threading.stack_size(65536)
    thread = threading.Thread(target=lambda: write(f"{at}/f"))
    thread.start()
    thread.join()
    threading.stack_size(0)


@kind
def sqlite(at):
    database = sqlite3.connect(f"{at}/f.db")
    database.execute("create table t (x)")
    database.commit()


@kind
def zip_file(at):
    with zipfile.ZipFile(f"{at}/f", "w") as file:
        file.writestr("x", "y")


@kind
def posix_spawn_that_opens(at):
    actions = [(os.POSIX_SPAWN_OPEN, 1, f"{at}/f", os.O_WRONLY | os.O_TRUNC, 0)]
    os.waitpid(os.posix_spawn("/bin/echo", ["echo", "changed"], dict(os.environ), file_actions=actions), 0)


@kind
def fopen_of_C(at):
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    library.fclose.argtypes = [ctypes.c_void_p]
    library.fclose(library.fopen(f"{at}/f".encode(), b"w"))


@kind
def a_file_that_was_open_at_the_start(at):
    os.write(9, b"changed")


@kind
def shared_memory_of_another_job(at):
    try:
        shared_memory.SharedMemory(os.environ["OTHER_MEMORY"]).unlink()
    except FileNotFoundError:
        pass


@kind
def a_file_in_shared_memory(at):
    os.unlink(f"/dev/shm/{os.environ['OTHER_MEMORY']}")


@kind
def a_cache_of_hugging_face(at):
    hub = os.environ["HF_HUB_CACHE"]
    write(f"{hub}/my-run/model.safetensors")
    os.makedirs(f"{hub}/models--a--b/blobs")
    write(f"{hub}/models--a--b/blobs/{'0' * 64}")
    write(f"{hub}/models--a--b/checkpoint.pt")


@kind
def a_cache_of_torch(at):
    write(os.environ["TORCH_HOME"] + "/hub/checkpoints/best.pth")


@kind
def the_folder_of_the_session_of_the_desktop(at):
    write(os.environ["XDG_RUNTIME_DIR"] + "/state")


@kind
def pathlib_in_TMPDIR(at):
    pathlib.Path(os.environ["TMPDIR"], "mine").write_text("changed")


for name, line in {
    "> f": "echo changed > f",
    ">> f": "echo changed >> f",
    "tee": "echo changed | tee f > /dev/null",
    "cp": "cp d/x f",
    "mv": "mv d/x f",
    "rm -r": "rm -r d",
    "sed -i": "sed -i s/original/changed/ f",
    "dd": "dd if=/dev/zero of=f bs=1 count=1 2>/dev/null",
    "touch": "touch f n",
    "truncate": "truncate -s 1 f",
    "ln -f": "ln -f d/x f",
    "chmod": "chmod 600 f",
    "find -delete": "find d -delete",
    "tar": "tar cf t.tar d; tar xf t.tar --one-top-level=n",
    "env -i": "env -i /bin/sh -c 'echo changed > f'",
    "python": "/usr/bin/env python3 -c \"open('f', 'w')\"",
    "the loader": "for l in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do test ! -e $l || $l $(command -v touch) n; done",
}.items():
    shell(name, line)

RAW = (
    "write empty empty-reading append make openat2 truncate unlink rmdir rename rename-folder exchange link symlink mkdir mkfifo chmod fchmod utimes "
    "setxattr uring device"
).split()


def raw(program, *words):
    done = subprocess.run([program, *words], stderr=subprocess.PIPE, text=True)
    if done.returncode == 77:
        raise NotImplementedError
    if done.returncode:
        raise OSError(done.stderr.strip()[-60:])


def ended(by):
    """One of the user's processes, which is one of the list for each way."""
    return int(os.environ["OTHERS"].split()[by])


KINDS["os.kill"] = lambda at: os.kill(ended(0), signal.SIGKILL)
KINDS["pkill"] = lambda at: subprocess.run(["sh", "-c", f"kill -9 {ended(1)}"], check=True, stderr=subprocess.DEVNULL)
for number, how in enumerate(("raw", "static")):
    program = sys.argv[2 + number] if len(sys.argv) > 3 else ""
    for each in RAW:
        KINDS[f"{how}: {each}"] = lambda at, each=each, program=program: raw(program, each, at)
    KINDS[f"{how}: kill"] = lambda at, number=number, program=program: raw(program, "kill", str(ended(2 + number)))

if sys.argv[1] == "list":
    print("\n".join(KINDS))
    sys.exit()
for number, (name, function) in enumerate(KINDS.items()):
    folder = os.environ["TMPDIR"] if "TMPDIR" in name and "private" in name else f"{os.getcwd()}/k/{number}"
    try:
        function(folder)
        said = "ok"
    except NotImplementedError:
        said = "none"
    except Exception as error:
        said = f"{type(error).__name__}: {error}".replace("\n", " ")
    print(f"kind\t{number}\t{said}", flush=True)
import torch  # noqa: E402

parameter = torch.nn.Parameter(torch.zeros(8, device="cuda"))
optimizer = torch.optim.SGD([parameter], 0.1)
parameter.sum().backward()
optimizer.step()
