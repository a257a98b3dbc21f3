"""Techniques switched on from outside, for a script that does not know of them: what `--what-if` tries.

Each is a file, in whose head stand its names, the group of which a script takes one, and its line of docs/what-if.md: `NAME, NAME (GROUP): LINE`; the
lists of the program and of the docs are made from there. It says in the trace what it did (`technique`, `applied`, `change`) with the lines that do the
same in the script (`snippet`), or why there is nothing for it to do (`reason`). The lines and the hook must ask for the same bytes, so a hook does what
its lines do, at the same moment.
"""

import importlib
import os
import re

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
        if entry.name.endswith(".py"):
            with open(entry.path, encoding="utf-8") as file:
                head = file.read().split('"""')[1]
            for names in re.findall(r"^([a-z0-9, -]+?)(?: \(.*?\))?: ", head, re.MULTILINE):
                files.update((name, entry.name.removesuffix(".py")) for name in names.split(", "))
    return files
