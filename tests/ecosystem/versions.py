"""Rehearses small models with each version of PyTorch that `vramlab rehearse` is for, in virtual environments that are gone afterwards.

    versions.py --vramlab PROGRAM [--folder FOLDER] [--keep] [VERSION...]

Prints the table that docs/limits.md has. Beside the models: memory that runs out, with the message of PyTorch's own allocator, and expandable
segments. Then operators of each library that PyTorch opens (tests/rehearse/operators.py) and the scripts of features.py: how many run, and on
standard error what became of the others. Its exit status is 1 where something does not work. A version takes some 5 GB of disk.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import features

HERE = Path(__file__).resolve().parent
OPERATORS = HERE.parent.parent / "tests" / "rehearse" / "operators.py"
VERSIONS = ["2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"]
LIBRARIES = ["cublas", "cublasLt", "cudnn", "cufft", "cusolver and magma", "cusparse", "cusparseLt", "curand", "nvrtc", "nccl"]
MODELS = ["mlp", "convnet", "gpt"]
OLDER = "2.5.1"
TELL = "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())"


def rehearse(options, python, flags, words, **environment):
    """Exit status, what was said, and the answer."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [options.vramlab, "rehearse", *flags, "--json", str(answer), "--", str(python), *words]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr, json.loads(answer.read_text()) if answer.exists() else {}


def model(options, python, name, **environment):
    """The peak in bytes, which PyTorch's own meter must say, too."""
    flags = ["--gpu", "rtx-4090", "--steps", "all"]
    status, said, answer = rehearse(options, python, flags, [str(HERE / "small_models.py"), name], **environment)
    peaks = f"peaks {answer.get('peak_allocated')} {answer.get('peak_reserved')}"
    if status != 0 or peaks not in said:
        raise RuntimeError(f"{name}: status {status}, {peaks}\n{said}")
    return answer["peak_allocated"]


def operators(options, python, version):
    """How many run, of how many."""
    _, said, _ = rehearse(options, python, ["--gpu", "rtx-4090", "--steps", "all"], [str(OPERATORS)])
    told = [line for line in said.splitlines() if line.split(": ")[0] in LIBRARIES and line.count(": ") > 1]
    others = [line for line in told if not line.endswith(": works")]
    print(*(f"{version}: {line}" for line in others), sep="\n", file=sys.stderr, flush=True)
    if not told:
        raise RuntimeError(f"operators:\n{said}")
    return f"{len(told) - len(others)} of {len(told)}"


def scripts(options, python, version):
    """How many of features.py run, of how many."""
    failed = []
    for name, (wanted, _) in features.FEATURES.items():
        script = HERE / "features.py"
        words = shlex.split(wanted.command.format(python=python, script=script))[1:] if wanted.command else [script, name]
        status, said, _ = rehearse(options, python, wanted.flags, map(str, words), **wanted.environment)
        if status != 0 or wanted.says not in said:
            failed.append(f"{version}: {wanted.title}: status {status}: {said.strip().splitlines()[-1:]}")
    print(*failed, sep="\n", file=sys.stderr, flush=True)
    return f"{len(features.FEATURES) - len(failed)} of {len(features.FEATURES)}"


def environment(version, folder):
    """Its Python; one that was kept is taken as it is."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", f"torch=={version}", "numpy"], check=True)
    return python


def row(options, version, folder):
    python = environment(version, folder)
    found = subprocess.run([python, "-c", TELL], check=True, capture_output=True, text=True).stdout.split()
    peaks = [model(options, python, name) for name in MODELS]
    expandable = model(options, python, "gpt", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    status, said, _ = rehearse(options, python, ["--gpu", "2GiB"], [str(HERE / "small_models.py"), "gpt"])
    if status != 3 or "CUDA out of memory. Tried to allocate" not in said:
        raise RuntimeError(f"memory that runs out: status {status}\n{said}")
    runs = [operators(options, python, version), scripts(options, python, version)]
    return [found[0], found[1], found[2], *(f"{peak:,}" for peak in [*peaks, expandable]), *runs]


def refused(options, folder):
    """An older version gets one line."""
    python = environment(OLDER, folder)
    status, said, _ = rehearse(options, python, [], ["-c", "import torch; torch.zeros(1, device='cuda')"])
    if status != 2 or said.strip().count("\n") or not said.startswith("vramlab: PyTorch 2.5"):
        raise RuntimeError(f"{OLDER}: status {status}\n{said}")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--vramlab", required=True)
    options.add_argument("--folder", type=Path, help="where the environments are made")
    options.add_argument("--keep", action="store_true", help="leave them there, for another run")
    options.add_argument("versions", nargs="*", metavar="VERSION", default=[OLDER, *VERSIONS])
    options = options.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    print("| PyTorch | CUDA | cuDNN |", " | ".join(MODELS), "| gpt, expandable segments | operators that run | scripts of features.py that run |")
    print("|---|---|---|" + "---:|" * (len(MODELS) + 3))
    failed = False
    for version in options.versions:
        made = folder / version
        try:
            if version == OLDER:
                refused(options, made)
            else:
                print("|", " | ".join(row(options, version, made)), "|", flush=True)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(f"{version}: {error}", file=sys.stderr, flush=True)
            failed = True
        finally:
            if not options.keep:
                shutil.rmtree(made, ignore_errors=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
