"""This process's folder in the report, and what is noted there."""

import contextlib
import errno
import json
import os
import time

from .session import SESSION

folder = ""
_names = -1
_about = None
_owner = 0
_introduction, _opened = dict, bool
# What was said by `tell`, in order, and how much of it is noted.
_texts, _noted = [], 0


def begin(introduction, opened):
    """Opens the folder. What `introduction` gives is its first line; a child that is forked opens one of its own, once it has anything to tell.
    `opened` is called with each."""
    global _introduction, _opened
    _introduction, _opened = introduction, opened
    own_folder()
    tell()


def tell(*texts):
    """Notes each once, as soon as there is where to: before torch is imported there is not."""
    global _noted
    _texts.extend(text for text in texts if text not in _texts)
    while _owner and _noted < len(_texts):
        _noted += 1
        note(note=_texts[_noted - 1])


def is_own():
    """Whether the folder is this process's, and not that of the one which forked it."""
    return _owner == os.getpid()


def _plain(value):
    """Numbers of NumPy's are numbers, all else is text."""
    return value.__index__() if hasattr(value, "__index__") else str(value)


def own_folder():
    """The folder in which this process alone writes."""
    global folder, _names, _about, _owner
    if is_own():
        return folder
    _owner = os.getpid()
    folder = os.path.join(SESSION, f"{_owner}-{time.monotonic_ns()}")
    os.makedirs(folder)
    # Room to say that something could not be written, taken while there is some.
    with open(os.path.join(folder, "lost"), "wb") as file:
        file.write(b"0" + b" " * 15)
    _names = _open()
    _about = os.fstat(_names)
    note(**_introduction())
    _opened(folder)
    return folder


def mark(name, text=""):
    """A file of that name, for those who look at the folder while it is written, or when nothing more can be noted."""
    with contextlib.suppress(OSError), open(os.path.join(own_folder(), name), "w") as file:
        file.write(text)


def _open():
    return os.open(os.path.join(folder, "names"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def _file():
    """The descriptor of `names`, opened anew where a script has closed it: the number may be another file's by now."""
    global _names
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(_names), _about):
            return _names
    _names = _open()
    return _names


def note(**line):
    """One line of the file `names`, written at once, whose kind is its first name. Where that cannot be, the answer is that the trace is incomplete."""
    try:
        own_folder()
        # Names of files that are not UTF-8 come with lone surrogates, which are no JSON.
        text = (json.dumps(dict(kind=next(iter(line)), **line), ensure_ascii=False, default=_plain) + "\n").encode("utf-8", "replace")
        error = 0 if os.write(_file(), text) == len(text) else errno.ENOSPC
    except OSError as why:
        error = why.errno
    if error:
        # Where that cannot be, the session's folder is gone, and the answer with it.
        with contextlib.suppress(OSError), open(os.path.join(folder, "lost"), "r+b", buffering=0) as file:
            file.write(b"%d\n" % error)
