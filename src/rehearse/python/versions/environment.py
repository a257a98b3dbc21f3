"""Makes a virtual environment with given versions of packages, for rehearsals: without the libraries of CUDA.

    environment.py FOLDER [--beside] [--python VERSION] [--uv PROGRAM] [--without NAME]... REQUIREMENT...

With --beside the packages of the Python that runs this are seen there, too, behind those that are installed: nothing else is fetched than the
requirements, and what they want in another version. A rehearsal takes no step in CUDA's libraries, but the loader wants them to be there: 4 GB of
what torch depends on. Each gets the name of one small library here, whose functions fail. Needs a C compiler and binutils.
"""

import argparse
import json
import re
import shutil
import site
import subprocess
import sys
from importlib import metadata
from pathlib import Path

CUDA = re.compile("nvidia-|cuda-")
# Packages whose version follows from torch's.
COMPANIONS = {"torchvision": "0.{0}.*,<=0.{0}.{1}", "torchaudio": "2.{0}.*,<=2.{0}.{1}"}


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def symbols(flag, files):
    """Versions by names; a library's version of a symbol is the library's name, and some have none."""
    found = (line.split()[-1] for line in lines("nm", "-D", flag, *files) if line.count(" "))
    return {name: version.lstrip("@") for name, _, version in (symbol.partition("@") for symbol in found)}


def stand_in(packages):
    torch, cudnn = packages / "torch", packages / "nvidia/cudnn/lib"
    lib = torch / "lib"
    files = [str(file) for file in [*lib.glob("*.so*"), *torch.glob("_C*.so")]]
    defined = symbols("--defined-only", files)
    missing = {name: version for name, version in symbols("--undefined-only", files).items() if name not in defined}
    is_stood_in = re.compile("cu(?!dnn)|nccl|nv|__cuda" if cudnn.exists() else "cu|nccl|nv|__cuda")
    functions = {name: version for name, version in missing.items() if is_stood_in.match(name)}
    # cuDNN itself looks these up, and ends the process where one is not there.
    looked_up = {name.decode() for file in cudnn.glob("*.so*") for name in re.findall(rb"\0((?:cublasLt|nvrtc)\w+)(?=\0)", file.read_bytes())}
    functions = {name: "" for name in looked_up} | functions
    # CUDA's and cuDNN's codes for an error.
    bodies = {name: f"int {name}(void) {{ return 1; }}" for name in functions}
    said = 'return "this library is not in an environment of vramlab";'
    bodies |= {name: f"const char* {name}(void) {{ {said} }}" for name in functions if name.endswith("ErrorString")}
    # PyTorch chooses by cuDNN's version whether it asks it at all, and refuses another than its own.
    (about,) = packages.glob("torch-*.dist-info/METADATA")
    asked = re.search(r"nvidia-cudnn-cu\d+ ?\(?==(\d+)\.(\d+)\.(\d+)", about.read_text())
    if asked and not cudnn.exists():
        major, minor, patch = map(int, asked.groups())
        bodies["cudnnGetVersion"] = f"unsigned long cudnnGetVersion(void) {{ return {major * 10000 + minor * 100 + patch}; }}"
        parts = f"(int[]){{{major}, {minor}, {patch}}}"
        bodies["cudnnGetProperty"] = f"int cudnnGetProperty(int part, int* value) {{ *value = {parts}[part]; return 0; }}"
    source = "\n".join(bodies.values())
    versions = {version: [name for name in functions if functions[name] == version] for version in functions.values()}
    script = lib / "stand_in.map"
    script.write_text("".join(f"{version or 'UNVERSIONED'} {{ {'; '.join(names)}; }};\n" for version, names in versions.items()))
    made = lib / "libstand_in.so"
    command = ["cc", "-x", "c", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,--version-script={script}", "-o", made, "-"]
    subprocess.run(command, input=source, text=True, check=True)
    needed = {name for file in files for name in re.findall(r"NEEDED\s+(\S+)", "\n".join(lines("objdump", "-p", file)))}
    for name in needed:
        is_here = name == "libcuda.so.1" or (lib / name).exists() or (cudnn / name).exists()
        if re.match("lib(cu|nccl|nv)", name) and not is_here:
            (lib / name).symlink_to(made.name)


def distribution(name):
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def missing(wanted, without):
    """What of the requirements, and of those of what this environment itself has, is not met."""
    from pip._vendor.packaging.requirements import Requirement

    todo, seen, found = [Requirement(text) for text in wanted], set(), []
    while todo:
        requirement = todo.pop()
        text, name = str(requirement), re.sub("[-_.]+", "-", requirement.name).lower()
        if text in seen or name in without or CUDA.match(name):
            continue
        seen.add(text)
        there = distribution(name)
        if there is None or not requirement.specifier.contains(there.version, prereleases=True):
            marker = f" ; {requirement.marker}" if requirement.marker else ""
            found.append(text.removesuffix(marker).split(";")[0].strip())
        elif Path(there.locate_file("")).is_relative_to(sys.prefix):
            extras = ["", *requirement.extras]
            needs = [Requirement(need) for need in there.requires or []]
            todo += [need for need in needs if not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in extras)]
    torch = next((Requirement(text) for text in wanted if text.startswith("torch==")), None)
    release = re.match(r"==2\.(\d+)\.(\d+)", str(torch.specifier)) if torch else None
    for name, version in COMPANIONS.items() if release else ():
        if name in without:
            continue
        there = distribution(name)
        needs = [Requirement(need) for need in there.requires or []] if there else []
        version = version.format(int(release[1]) + (15 if name == "torchvision" else 0), release[2])
        if any(need.name == "torch" and not need.specifier.contains(torch.specifier.__str__()[2:]) for need in needs):
            found.append(f"{name}=={version}")
    return found


def install(options, python, requirements):
    if options.uv:
        command = [options.uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    else:
        command = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--no-deps", *requirements], capture_output=True, text=True)
    said = done.stderr.strip().splitlines() or ["it says nothing"]
    why = next((line for line in reversed(said) if "ERROR" in line), said[-1]).strip()
    return f"{' '.join(requirements)} cannot be installed: {why}" if done.returncode else None


def make(options):
    folder = Path(options.folder)
    shutil.rmtree(folder, ignore_errors=True)
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    interpreter = sys.executable
    if options.python and options.python != own:
        interpreter = shutil.which(f"python{options.python}") or (options.python if options.uv else None)
        if not interpreter:
            sys.exit(f"there is no python{options.python} in PATH: install it, or uv (pip install uv), which brings it")
    if options.uv:
        lines(options.uv, "venv", "--quiet", "--seed", "--python", interpreter, folder)
    else:
        lines(interpreter, "-m", "venv", folder)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    asked, others = list(options.requirements), {}
    if options.beside and interpreter == sys.executable:
        seen = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
        (packages / "beside.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in seen if Path(path).is_dir()))
    elif options.beside:
        # Another Python takes none of this one's packages: they are installed again.
        names = {re.split("[=<>~! ]", text)[0].lower() for text in asked} | {"pip", "setuptools", "triton", "torch", "vramlab", *COMPANIONS}
        there = [(one.metadata["Name"].lower(), one) for one in metadata.distributions() if not one.read_text("direct_url.json")]
        others = {name: f"{name}=={one.version}" for name, one in there if name not in names and not CUDA.match(name)}
        if "torch" not in {re.split("[=<>~! ]", text)[0] for text in asked} and (torch := distribution("torch")):
            asked.append(f"torch=={torch.version.split('+')[0]}")
    wanted = asked
    for _ in range(20):
        if not wanted:
            break
        if why := install(options, python, wanted):
            # One that is not out for this torch yet: the script that imports it says so by itself, others do without.
            rest = [text for text in wanted if text.split("==")[0] not in COMPANIONS]
            if len(rest) == len(wanted) or (rest and (why := install(options, python, rest))):
                sys.exit(why)
            options.without += [text.split("==")[0] for text in wanted if text not in rest]
        # In the same versions, if those are for this Python, too.
        if others and install(options, python, others.values()) and (why := install(options, python, others)):
            sys.exit(why)
        others = {}
        left = lines(python, __file__, "--missing", *(f"--without={name}" for name in options.without), folder, *asked)
        if json.loads(left[-1]) == wanted:
            sys.exit(f"what is installed does not meet what it requires: {' '.join(wanted)}")
        wanted = json.loads(left[-1])
    if (packages / "torch" / "lib").is_dir():
        stand_in(packages)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("folder")
    options.add_argument("requirements", nargs="+")
    options.add_argument("--beside", action="store_true")
    options.add_argument("--python")
    options.add_argument("--uv")
    options.add_argument("--without", action="append", default=[])
    options.add_argument("--missing", action="store_true")
    options = options.parse_args()
    if options.missing:
        print(json.dumps(missing(options.requirements, options.without)))
        return
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
