"""Python's half of `vramlab rehearse`: puts a simulated GPU under this process's PyTorch and tells the trace what the script is doing.

`begin` is called before the script's first line, or before torch is imported, whichever comes first (`src/sim/native/start.cpp`). Nothing happens
before the script imports torch but for two small libraries, which stand in for the CUDA runtime and driver; what a process that never touches
CUDA pays is their loading.
"""

import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import os
import sys


class _Source(importlib.machinery.SourceFileLoader):
    """Reads what Python keeps of our files compiled, unless a full disk has cut it: Python itself never mends that. It is kept in our own folder, where a
    user's PYTHONDONTWRITEBYTECODE has nothing to say."""

    def get_code(self, name):
        writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, False
        try:
            return super().get_code(name)
        except (EOFError, ValueError, TypeError):
            return self.source_to_code(self.get_data(self.path), self.path)
        finally:
            sys.dont_write_bytecode = writes_none


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        file = os.path.join(_HERE, f"{name[len(__name__) + 1 :]}.py")
        if not name.startswith(f"{__name__}.") or not os.path.isfile(file):
            return None
        return importlib.util.spec_from_file_location(name, file, loader=_Source(name, file))


_HERE = os.path.dirname(os.path.abspath(__file__))
sys.meta_path.insert(0, _Finder)
from . import imports, notebooks, pools  # noqa: E402
from .session import SESSION, remarks, settings, simulated, use_the_caching_allocator  # noqa: E402


def begin():
    # Ranks of one host, which torchrun or accelerate started, choose their card by their number.
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    if settings.gpus is None and ranks.isdigit() and int(ranks) > 1:
        os.environ["VRAMLAB_DRY_DEVICES"] = ranks
        remarks.append(f"the simulated machine has {ranks} GPUs, one for each rank that was started on it; --gpus says how many it has")
    use_the_caching_allocator()
    # Before anybody else can open the real ones: the dynamic loader finds a library that is loaded by its soname.
    if not settings.measures:
        for name in ("libnvidia-ml.so.1", "libcuda.so.1", "libnvrtc.so.12", "libnvrtc.so.13"):
            simulated[name] = ctypes.CDLL(os.path.join(settings.libraries, name), ctypes.RTLD_GLOBAL)
        # It reads its settings now, and makes no context.
        simulated["libnvidia-ml.so.1"].vramlab_dry_memory()
    if not settings.writes:
        from . import uploads

        uploads.hold()
    if settings.fake_data is not None:
        from . import fake_data

        fake_data.follow()
    if settings.clocks:
        from . import clock

        clock.follow()
    notebooks.follow()
    pools.follow()
    _tell_why_it_fails()
    imports.when_imported("torch", _torch_is_there, _torch_is_missing, before=use_the_caching_allocator)


def _tell_why_it_fails():
    """A process that has no PyTorch, as one that starts trainings, has nothing else that says what ended it."""
    before = sys.excepthook

    def excepthook(kind, value, trace):
        if "torch" not in sys.modules:
            with contextlib.suppress(Exception), open(os.path.join(SESSION, f"{os.getpid()}.raised"), "w") as file:
                file.write(_in_a_line(kind, value, trace))
        before(kind, value, trace)

    sys.excepthook = excepthook


def _in_a_line(kind, value, trace):
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    at = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        # The script's last line, and none of Python's own.
        if at is None or not file.startswith((os.path.dirname(os.__file__), "<frozen")):
            at = f"{os.path.basename(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    said = str(value).strip().split("\n")[0]
    return f"{name}{said and ': '}{said[:300]}" + (f" ({at})" if at else "")


def _torch_is_missing():
    # The script's own error says it.
    with contextlib.suppress(OSError), open(os.path.join(SESSION, f"{os.getpid()}.without-torch"), "w") as file:
        file.write(sys.executable)


def _torch_is_there(torch):
    # Some 300,000 objects that live as long as the process, through which each collection would go, and the end's more than once.
    gc.freeze()
    with imports.of_python_alone():
        from . import process

    if not process.begin(torch):
        # Why is noted.
        sys.stdout.flush()
        os._exit(2)
