"""Has a process that has imported torch wait, and copy itself for each rehearsal of its command: the import takes longer than most scripts' first
steps. The other half is src/rehearse/src/run/forks.rs."""

import ast
import ctypes
import os
import re
import stat
import sys
import threading
import time

from . import replaying, session
from .session import SESSION, settings

PR_SET_CHILD_SUBREAPER = 36
# What a script calls before it imports torch that has no effect outside of its process.
_HARMLESS = re.compile(r"(os\.environ|os\.path|sys\.path|warnings|logging)\.\w+|os\.getenv|(pathlib\.)?Path(\(.*\)\.(resolve|absolute))?|str")
# Packages that start threads of their own, which a copy would wait for; those of OpenBLAS, under NumPy, start anew.
_WITH_THREADS = ("grpc", "jax", "tensorflow")


def begin():
    """Returns in each copy; and at once in a process that cannot be copied, which then is a rehearsal of its own."""
    has_threads = threading.active_count() > 1 or any(name in sys.modules for name in _WITH_THREADS)
    if not _is_command() or not _only_imported() or has_threads or _has_open_files() or _has_written() or _has_children():
        return
    # Whatever a rehearsal starts ends with it, though its parent has gone.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    while True:
        copy = os.fork()
        if copy == 0:
            settings.__dict__.update(session.read())
            open(os.path.join(SESSION, f"{os.getpid()}.python"), "w").close()
            if settings.replay:
                replaying.begin()
                os._exit(0)
            return
        _wait_for(copy)
        while not os.path.exists(os.path.join(SESSION, "again")):
            time.sleep(0.005)
        os.remove(os.path.join(SESSION, "again"))


def _is_command():
    """Whether the guard started this process, and no script, which would wait for its end."""
    with open(f"/proc/{os.getppid()}/comm") as file:
        return file.read().strip() == "vramlab-guard"


def _only_imported():
    """Whether all that the script has done so far is to import, so that nothing is there that copies would share."""
    main, frame = sys.modules["__main__"].__dict__, sys._getframe()
    while frame is not None and (frame.f_globals is not main or frame.f_code.co_name != "<module>"):
        frame = frame.f_back
    if frame is None:
        return False
    try:
        with open(frame.f_code.co_filename, "rb") as file:
            statements = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        return False
    return all(_is_harmless(each) for each in statements if each.lineno <= frame.f_lineno)


def _is_harmless(statement):
    kinds = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr, ast.If, ast.Try)
    if isinstance(statement, ast.FunctionDef):
        # What it does is done when it is called; its defaults are made here.
        defaults = [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]
        return not statement.decorator_list and not any(isinstance(each, ast.Call) for one in defaults for each in ast.walk(one))
    calls = (ast.unparse(each.func) for each in ast.walk(statement) if isinstance(each, ast.Call))
    return isinstance(statement, kinds) and all(_HARMLESS.fullmatch(each) for each in calls)


def _has_open_files():
    """Whether there are any that its copies would read on from one another."""
    names = (int(name) for name in os.listdir("/proc/self/fd"))
    # The list of them is gone.
    return any(stat.S_ISREG(os.fstat(each).st_mode) for each in names if each > 2 and os.path.exists(f"/proc/self/fd/{each}"))


def _has_written():
    """Whether what it imported has written something, which is forgotten between copies: the table of what was changed counts that first."""
    held = os.path.join(SESSION, "held")
    if not os.path.exists(held):
        return False
    with open(os.path.join(held, "table"), "rb") as file:
        changes = int.from_bytes(file.read(8), sys.byteorder)
    own = (open(os.path.join(held, name)).read() for name in ("temporary", "shared"))
    return changes > 0 or any(os.listdir(folder) for folder in own)


def _has_children():
    """Whether what it imported has started programs, which would be awaited with each copy."""
    lists = (f"/proc/self/task/{each}/children" for each in os.listdir("/proc/self/task"))
    return any(open(each).read() for each in lists if os.path.exists(each))


def _wait_for(copy):
    """Says how a copy ended, as the guard does of a command, and when all that it left has, too."""
    _, status = os.waitpid(copy, 0)
    _say("copy-ended", status)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                _say("command-ended", "")
                os.wait()
        except ChildProcessError:
            break
    _say("copy-gone", "")


def _say(name, text):
    path = os.path.join(SESSION, name)
    with open(f"{path}.new", "w") as file:
        file.write(str(text))
    os.rename(file.name, path)
