"""What `pip install .` calls (PEP 517): builds the program, which needs Rust and no libtorch, and packs it as scripts/wheel does.

`--config-settings program=FILE` packs a program that is built already.
"""

import os
import platform
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    program = (config_settings or {}).get("program") or _build()
    pack = runpy.run_path(str(ROOT / "scripts" / "wheel"))["pack"]
    return pack(Path(program), Path(wheel_directory)).name


def _build():
    if platform.system() != "Linux":
        sys.exit(f"vramlab rehearses on Linux; this is {platform.system()}. A container or WSL will do.")
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        sys.exit("vramlab is compiled by cargo, which is not on PATH. Install Rust from https://rustup.rs, or a wheel that `just wheel` packed elsewhere.")
    flags = ["--release", "--locked", "--package", "vramlab", "--target-dir", str(TARGET)]
    # pip shows what cargo says where it fails, or with --verbose.
    subprocess.run([cargo, "build", *flags], cwd=ROOT, env={**os.environ, "CARGO_TERM_COLOR": "never"}, check=True)
    return TARGET / "release" / "vramlab"
