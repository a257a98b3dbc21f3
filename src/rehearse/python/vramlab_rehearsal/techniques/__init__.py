"""Techniques switched on from outside, for a script that does not know of them: what `--what-if` tries.

Each file has a head, which is JSON: by name the group of which a script takes one, if there are others in it, its line of docs/what-if.md, and what the program knows of it before it
is tried (src/rehearse/src/answer/technique.rs says each field). The lists of the program and of the docs are made from there. It says in the trace what it
did (`technique`, `applied`, `change`) with the lines that do the same in the script (`snippet`), or why there is nothing for it to do (`reason`). The
lines and the hook must ask for the same bytes, so a hook does what its lines do, at the same moment.
"""

import importlib
import json
import os

from ..session import settings
from .shared.technique import TECHNIQUES


def begin(torch):
    """Switches on what is asked for, right after torch was imported."""
    files = _files() if settings.techniques else {}
    for name in settings.techniques:
        importlib.import_module(f".{files[name]}", __package__)
        TECHNIQUES[files[name]](torch, name)


def _files():
    """By name of a technique, the file that has it in its head."""
    files = {}
    for entry in os.scandir(os.path.dirname(__file__)):
        if entry.name.endswith(".py") and not entry.name.startswith("_"):
            with open(entry.path, encoding="utf-8") as file:
                names = json.loads(file.read().split('"""')[1])
            files.update(dict.fromkeys(names, entry.name.removesuffix(".py")))
    return files
