"""The libraries for this version of PyTorch: those that the program carries, or that are compiled on first use and kept."""

import fcntl
import functools
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys

from . import notes
from .session import SESSION, settings

# The newest PyTorch that tests/ecosystem/versions.py has tried.
NEWEST = (2, 15)
# Of each library the folders of its sources, and what of PyTorch it needs.
_LIBRARIES = {"python": (("kernels", "python"), ("torch_cpu", "c10", "c10_cuda")), "replay": (("replay",), ("c10", "c10_cuda"))}


@functools.cache
def library(torch, name="python"):
    version = _version(str(torch.__version__))
    untried = _untried(version)
    if untried:
        notes.note(note=untried)
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    there = kept(name, version, abi)
    if there:
        return there
    path = os.path.join(settings.compiled, _file(name, version, abi))
    with open(path + ".lock", "w") as lock:
        # Ranks and rehearsals that start together compile once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            _compile(torch, name, version, abi, path)
    return path


def kept(name, version, abi):
    """A library for a version and the C++ ABI that it was built with; None where there is none yet."""
    places = (os.path.join(folder, _file(name, version, abi)) for folder in (settings.carried, settings.compiled))
    return next(filter(os.path.exists, places), None)


def _file(name, version, abi):
    return f"{name}-{_version(version)}-abi{abi}.so"


def _version(version):
    release = version.split("+")[0]
    # Another build of the same unreleased version has other headers.
    return release if re.fullmatch(r"[\d.]+", release) else version


def _numbers(version):
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _untried(version):
    """What to say of a PyTorch that is newer than all that were tried; nothing of others."""
    if _numbers(version) <= NEWEST:
        return ""
    return f"PyTorch {version} is newer than {'.'.join(map(str, NEWEST))}, the newest that was tried with vramlab: its bytes may differ"


def _compile(torch, name, version, abi, path):
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler:
        there = [file for folder in (settings.carried, settings.compiled) for file in glob.glob(os.path.join(folder, f"{name}-*.so"))]
        others = ", ".join(sorted({os.path.basename(file).split("-")[1] for file in there}, key=_numbers))
        _refuse(
            f"vramlab has no library for PyTorch {version}, {f'but for {others}, ' if others else ''}and there is no C++ compiler to make one. "
            "Install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)"
        )
    folders, needed = _LIBRARIES[name]
    if name == "python":
        # Said by the program: what a rehearsal in silence says is heard by nobody. The other takes seconds.
        with open(os.path.join(SESSION, "compiling"), "w") as file:
            file.write(version)
    root = os.path.dirname(os.path.abspath(torch.__file__))
    native = os.path.join(settings.libraries, "source")
    files = sorted(file for folder in folders for file in glob.glob(os.path.join(native, folder, "*.cpp")))
    # One unit: PyTorch's headers are most of the work.
    unit = f"{path}.{os.getpid()}.cpp"
    with open(unit, "w") as file:
        file.writelines(f'#include "{source}"\n' for source in files)
    made = f"{path}.{os.getpid()}"
    # Headers of newer versions want C++20.
    standard = "-std=c++20" if _numbers(version) >= (2, 12) else "-std=c++17"
    command = [
        *shlex.split(compiler), standard, "-O1", "-shared", "-fPIC", "-g0", "-s", "-fvisibility=hidden", "-Wl,-Bsymbolic", "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{native}/include", f"-isystem{root}/include",
        f"-isystem{root}/include/torch/csrc/api/include", unit, "-o", made,
        f"-L{root}/lib", *(f"-l{library}" for library in needed),
    ]  # fmt: skip
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    os.unlink(unit)
    if done.returncode != 0:
        first = next((line for line in done.stdout.splitlines() if "error" in line), done.stdout.strip()[-300:])
        untried = _untried(version)
        _refuse(f"the library for PyTorch {version} does not compile with {compiler}: {first}" + (f" ({untried})" if untried else ""))
    # Whatever the umask lets groups write to.
    os.chmod(made, 0o755)
    os.rename(made, path)


def _refuse(reason):
    notes.note(refused=reason)
    sys.exit(2)
