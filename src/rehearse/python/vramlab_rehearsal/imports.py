"""Calls a function when a module has been imported."""

import importlib.machinery
import sys


def when_imported(name, callback, missing=lambda: None):
    if name in sys.modules:
        callback(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, callback, missing))


class _Finder:
    def __init__(self, name, callback, missing):
        self.name = name
        self.callback = callback
        self.missing = missing

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        # Not installed here; a script may extend sys.path and try again.
        sys.meta_path.insert(0, self)
        self.missing()
        return None


class _Loader:
    def __init__(self, loader, finder):
        self.loader = loader
        self.finder = finder

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        try:
            self.loader.exec_module(module)
        except BaseException:
            sys.meta_path.insert(0, self.finder)
            raise
        self.finder.callback(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)
