"""Calls a function when a module has been imported, in whatever way."""

import functools
import importlib.util
import sys

_external = importlib.util.spec_from_file_location.__globals__
_waiting, _before = {}, {}


def when_imported(name, callback, missing=None, before=None):
    """Also calls `missing`, where it is given, as often as nobody finds the module, and `before` when it is about to be loaded."""
    if name in sys.modules:
        return callback(sys.modules[name])
    _waiting[name] = callback
    if before:
        _before[name] = before
    if missing:
        # Asked last, when nobody else has found it. A script may extend sys.path and try again.
        sys.meta_path.append(_Last(name, missing))


def _spec_from_file_location(name, *arguments, **more):
    spec = _found(name, *arguments, **more)
    loader = getattr(spec, "loader", None)
    if name in _waiting and loader is not None:
        # A spec may be found again and again and never be used: it is the loading that counts.
        loader.exec_module = functools.partial(_exec_module, loader.exec_module, name)
    return spec


def _exec_module(original, name, module):
    _before.pop(name, bool)()
    original(module)
    callback = _waiting.pop(name, None)
    if not callback:
        return
    try:
        callback(module)
    except Exception as error:
        from .session import fail

        fail(f"the rehearsal could not be set up for {name}: {type(error).__name__}: {error}")


# Every finder comes here for a file's spec, also those of editable installations and those that scripts put into sys.meta_path.
_found = _external["spec_from_file_location"]
_external["spec_from_file_location"] = importlib.util.spec_from_file_location = _spec_from_file_location


class _Last:
    def __init__(self, name, missing):
        self.name = name
        self.missing = missing

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            self.missing()
