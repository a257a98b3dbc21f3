"""Makes a virtual environment with given versions of packages, for rehearsals: without the libraries of CUDA.

    environment.py FOLDER --uv PROGRAM [--beside] [--python VERSION] [--no-deps] [--with REQUIREMENT]... [REQUIREMENT]...

uv resolves the requirements together with all packages of the Python that runs this, once and before anything is installed; what is there stays in
its version where it can. With --beside these packages are seen there, too, behind those that are installed: nothing is fetched but what differs. A
rehearsal takes no step in CUDA's libraries, but the loader wants them to be there, 4 GB of what torch depends on: stand_in.py.
"""

import argparse
import base64
import hashlib
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

from stand_in import stand_in

# Its libraries, as torch depends on them; not what is Python's, as nvidia-ml-py and cuda-bindings.
CUDA = re.compile(
    r"(nvidia-(cu(blas|da-|dnn|fft|file|pti|rand|solver|sparse)|nccl|nvjitlink|nvjpeg|nvptxcompiler|nvshmem|nvtx|nvvm|npp)(?!-frontend)|cuda-toolkit|cuda-tile)"
)
# Each of their releases is for one of torch: without a bound a resolver takes one from before they said so.
COMPANIONS = {"torchvision": "0.{}", "torchaudio": "2.{}"}
# What comes with an environment, and this program itself.
NOT_MEANT = {"pip", "uv", "vramlab"}
OLDEST = (2, 6)


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def plain(name):
    return re.sub("[-_.]+", "-", name).lower()


def named(requirement):
    return plain(re.match(r"[\w.-]+", requirement)[0])


def is_local(one):
    """Whether no index has it in this version: of a folder, of a repository, or built by somebody, as 2.11.0+cu126 is."""
    return "+" in one.version or one.read_text("direct_url.json")


def stub(one, folder):
    """A wheel with nothing but what a package says of itself, for the resolver."""
    name, version = plain(one.metadata["Name"]).replace("-", "_"), one.version
    about = f"{name}-{version}.dist-info"
    # Extras and markers are in it, files and text are not wanted.
    told = [f"{key}: {value}" for key, value in one.metadata.items() if key in ("Metadata-Version", "Name", "Version", "Requires-Dist", "Provides-Extra")]
    files = {"METADATA": "\n".join(told) + "\n", "WHEEL": "Wheel-Version: 1.0\nGenerator: vramlab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        rows = []
        for file, text in files.items():
            wheel.writestr(f"{about}/{file}", text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{about}/{file},sha256={digest},{len(text.encode())}")
        wheel.writestr(f"{about}/RECORD", "\n".join([*rows, f"{about}/RECORD,,"]) + "\n")


def resolved(options, interpreter, there):
    """Versions by package, of the requirements and of what is there; or the resolver's own words."""
    asked = [*options.requirements, *options.extra]
    meant = {named(text) for text in asked}
    torch = next((text.split("==")[1] for text in options.requirements if named(text) == "torch" and "==" in text), None)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        seen = {name: one for name, one in there.items() if name not in meant}
        # Another Python has other builds of what no index has.
        seen = seen if options.beside and interpreter == sys.executable else {name: one for name, one in seen.items() if not is_local(one) or name == "torch"}
        # Of all that is there, so that what stays needs no way to an index.
        for one in metadata.distributions() if there else ():
            stub(one, folder)
        companions = {}
        for name, release in COMPANIONS.items():
            if torch and name in seen and (number := re.match(r"2\.(\d+)", torch)):
                companions[name] = f"{name}=={release.format(int(number[1]) + (15 if name == 'torchvision' else 0))}.*"
        others = {name: f"{name}=={one.version}" if is_local(one) and name != "torch" else name for name, one in seen.items()} | companions
        source, lock = folder / "requirements.in", folder / "lock.txt"
        command = [options.uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--prerelease=if-necessary-or-explicit"]
        command += ["--python", str(interpreter), "--output-file", str(lock), str(source)]
        # Beside the user's own: a flag would take their place.
        places = {"UV_FIND_LINKS": ",".join(filter(None, [os.environ.get("UV_FIND_LINKS"), str(folder)]))}
        said = ""
        # A companion that is not out for this torch yet is done without: the script that imports it says so by itself.
        for left_out in (set(), set(companions)) if companions else (set(),):
            source.write_text("\n".join([*asked, *(text for name, text in others.items() if name not in left_out)]) + "\n")
            # What stands in it is preferred.
            lock.write_text("".join(f"{name}=={one.version}\n" for name, one in seen.items()))
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ | places)
            if done.returncode == 0:
                rows = [re.match(r"([\w.-]+)==(\S+)", line) for line in lock.read_text().splitlines()]
                return {plain(row[1]): row[2] for row in rows if row}
            said = said or done.stderr
        sys.exit(f"{' '.join(asked)}: {in_one_line(said)}")


def in_one_line(said):
    """The resolver's words without its drawing."""
    words = [re.sub(r"^[\s×╰─▶│├]+", "", line) for line in said.splitlines()]
    return re.sub(r"\s+", " ", " ".join(words)).strip() or "it cannot be resolved"


def install(options, python, requirements):
    command = [options.uv, "pip", "install", "--quiet", "--compile-bytecode", "--no-deps", "--python", python, *requirements]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(requirements)} cannot be installed: {in_one_line(done.stderr)[-400:]}")


def make(options):
    folder = Path(options.folder)
    shutil.rmtree(folder, ignore_errors=True)
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    interpreter = sys.executable if options.python in (None, own) else options.python
    is_own = interpreter == sys.executable
    there = {plain(one.metadata["Name"]): one for one in reversed(list(metadata.distributions())) if one.metadata["Name"]}
    there = {name: one for name, one in there.items() if name not in NOT_MEANT and not CUDA.match(name)} if options.beside else {}
    if options.no_deps:
        wanted = {named(text): text for text in [*options.requirements, *options.extra]}
    else:
        found = resolved(options, interpreter, there)
        stays = {name for name, one in there.items() if is_own and found.get(name) == one.version}
        wanted = {name: f"{name}=={version}" for name, version in found.items() if name not in stays and not CUDA.match(name)}
        # What is asked for by name alone is of CUDA, too.
        wanted |= {named(text): text for text in options.requirements if CUDA.match(named(text))}
        wanted = {name: text for name, text in wanted.items() if name not in options.without}
        torch = re.match(r"torch==(\d+)\.(\d+)", wanted.get("torch", ""))
        if torch and tuple(map(int, torch.groups())) < OLDEST:
            sys.exit(f"{' '.join(options.requirements)} would come with {wanted['torch']}; rehearsals need PyTorch {OLDEST[0]}.{OLDEST[1]} or newer")
    lines(options.uv, "venv", "--quiet", "--python", interpreter, folder)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    if options.beside and is_own:
        seen = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
        (packages / "beside.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in seen if Path(path).is_dir()))
    if wanted:
        install(options, python, wanted.values())
    if (packages / "torch" / "lib").is_dir():
        stand_in(packages)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("folder")
    options.add_argument("requirements", nargs="*")
    options.add_argument("--uv", required=True)
    options.add_argument("--beside", action="store_true")
    options.add_argument("--python")
    options.add_argument("--no-deps", action="store_true")
    options.add_argument("--with", action="append", default=[], dest="extra")
    options.add_argument("--without", action="append", default=[])
    options = options.parse_intermixed_args()
    whole = Path(options.folder) / "whole"
    if whole.exists():
        return
    try:
        make(options)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(map(str, error.cmd))} failed: {(error.stderr or '').strip()[-400:]}")
    whole.touch()


if __name__ == "__main__":
    main()
