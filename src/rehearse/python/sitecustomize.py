"""Python imports this at its start, because `vramlab rehearse` puts its folder first on PYTHONPATH."""

import os
import sys

if "VRAMLAB_REHEARSAL" in os.environ:
    import vramlab_rehearsal

    vramlab_rehearsal.begin()


def _next_sitecustomize():
    """The module of this name that would have been imported without us."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec and spec.loader:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_next_sitecustomize()
