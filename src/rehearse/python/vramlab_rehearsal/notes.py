"""This process's folder in the report, and what is noted there."""

import json
import os
import time

folder = ""
_names = -1
_owner = 0


def open_folder():
    """Makes the folder, in which this process alone writes, and not those that it forks."""
    global folder, _names, _owner
    _owner = os.getpid()
    folder = os.path.join(os.environ["VRAMLAB_REHEARSAL"], f"{_owner}-{time.monotonic_ns()}")
    os.makedirs(folder)
    _names = os.open(os.path.join(folder, "names"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def note(**line):
    """One line of the file `names`, written at once."""
    if os.getpid() == _owner:
        os.write(_names, (json.dumps(line) + "\n").encode("utf-8", "replace"))
