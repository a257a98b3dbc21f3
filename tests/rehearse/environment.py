"""Makes a virtual environment with a version of PyTorch and none of the libraries that its wheel depends on.

    environment.py VERSION FOLDER

A rehearsal takes no step in CUDA's libraries, but the loader wants them to be there: 4 GB of what is installed and most of what is fetched.
Each gets the name of one small library here, whose functions fail. Needs pip, a C compiler and nm.
"""

import re
import subprocess
import sys
import venv
from pathlib import Path

# What importing torch imports.
PURE = ["typing_extensions", "sympy", "mpmath", "filelock", "jinja2", "markupsafe", "networkx", "fsspec"]


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def symbols(flag, files):
    """Versions by names; a library's version of a symbol is the library's name, and some have none."""
    found = (line.split()[-1] for line in lines("nm", "-D", flag, *files) if line.count(" "))
    return {name: version.lstrip("@") for name, _, version in (symbol.partition("@") for symbol in found)}


def stand_in(torch):
    lib = torch / "lib"
    files = [str(file) for file in [*lib.glob("*.so*"), *torch.glob("_C*.so")]]
    defined = symbols("--defined-only", files)
    missing = {name: version for name, version in symbols("--undefined-only", files).items() if name not in defined}
    functions = {name: version for name, version in missing.items() if re.match("cu|nccl|nv|__cuda", name)}
    # CUDA's and cuDNN's codes for an error.
    source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in functions)
    versions = {version: [name for name in functions if functions[name] == version] for version in functions.values()}
    script = lib / "stand_in.map"
    script.write_text("".join(f"{version or 'UNVERSIONED'} {{ {'; '.join(names)}; }};\n" for version, names in versions.items()))
    made = lib / "libstand_in.so"
    command = ["cc", "-x", "c", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,--version-script={script}", "-o", made, "-"]
    subprocess.run(command, input=source, text=True, check=True)
    needed = {name for file in files for name in re.findall(r"NEEDED\s+(\S+)", "\n".join(lines("objdump", "-p", file)))}
    for name in needed:
        if re.match("lib(cu|nccl|nv)", name) and name != "libcuda.so.1" and not (lib / name).exists():
            (lib / name).symlink_to(made.name)


def main():
    version, folder = sys.argv[1], Path(sys.argv[2])
    whole = folder / "whole"
    if whole.exists():
        return
    venv.create(folder, clear=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-compile", "--no-cache-dir"]
    subprocess.run([*pip, f"torch=={version}", *PURE], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    stand_in(packages / "torch")
    whole.touch()


if __name__ == "__main__":
    main()
