"""The session that this process belongs to."""

import json
import os
import sys
import types

# Its folder, in which processes write. As this process was started: a script may remove it from its environment.
SESSION = os.environ["VRAMLAB_REHEARSAL"]
# What the rehearsal was asked for; `PythonSettings` in src/rehearse/src/run/session.rs says of each what it is.
with open(os.path.join(SESSION, "settings.json")) as _file:
    settings = types.SimpleNamespace(**json.load(_file))
# The libraries that stand in for NVIDIA's, by their names.
simulated = {}


def fail(reason):
    """Ends this process, and the rehearsal: what cannot be rehearsed must not run on."""
    try:
        with open(os.path.join(SESSION, "failed"), "w", errors="replace") as file:
            file.write(reason)
        sys.stdout.flush()
    finally:
        os.write(2, f"vramlab: {reason}\n".encode("utf-8", "replace"))
        os._exit(2)
