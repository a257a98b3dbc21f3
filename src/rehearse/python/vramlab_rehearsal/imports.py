"""Calls a function when a module has been imported, in whatever way."""

import contextlib
import functools
import importlib.util
import os
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


@functools.cache
def libraries():
    """Folders where modules are looked for that packages were installed into, as by `pip install --target`, and that are no site-packages."""

    def has_packages(folder):
        try:
            return any(name.endswith(".dist-info") for name in os.listdir(folder))
        except OSError:
            return False

    others = [each for each in sys.path if each and os.path.basename(each) not in ("site-packages", "dist-packages")]
    return [os.path.join(each, "") for each in others if has_packages(each)]


@contextlib.contextmanager
def of_python_alone():
    """What we import is Python's own library: a script's folder may have a resource.py, which it gets as it would without us."""
    library, names = os.path.dirname(getattr(os, "__file__", "")), getattr(sys, "stdlib_module_names", ())

    def is_anothers(name, module):
        file = getattr(module, "__file__", None) or library
        return name.split(".")[0] in names and not file.startswith(library) and "lib-dynload" not in file

    others = {name: module for name, module in list(sys.modules.items()) if is_anothers(name, module)}
    for name in others:
        del sys.modules[name]
    path, known = sys.path[:], set(sys.modules)
    if library in path:
        sys.path[:] = [each for each in path if each == library or os.path.basename(each) == "lib-dynload" or each.endswith(".zip")]
    try:
        yield
    finally:
        sys.path[:] = path
        leave_to_the_script(known)
        sys.modules.update(others)


def leave_to_the_script(known):
    """Forgets those of the modules that were imported since which it has under the same name."""
    library = os.path.dirname(getattr(os, "__file__", ""))
    folders = sys.path[: sys.path.index(library)] if library in sys.path else []
    for name in {name.split(".")[0] for name in set(sys.modules) - known} - {__package__}:
        files = (os.path.join(folder, *file) for folder in folders for file in ((f"{name}.py",), (name, "__init__.py")))
        if any(map(os.path.isfile, files)):
            for each in [each for each in sys.modules if each.split(".")[0] == name]:
                del sys.modules[each]


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
