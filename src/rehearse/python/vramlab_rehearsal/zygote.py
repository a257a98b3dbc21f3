"""A Python that has imported torch and waits, of which each rehearsal is a copy: the import takes longer than most scripts' first steps. The other half is
src/rehearse/src/run/zygote.rs.

Run by src/sim/native/start.cpp where Python is about to run its command. In a copy it comes to its end, and the script is run with no frame of ours below it.
A script finds torch as if it had not been imported. Where it gets there with something changed that torch's import would have read, the copy ends, and the
rehearsal begins anew in a process of its own.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import itertools
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import types

# What may change before torch is imported: nothing reads it there.
_READ_LATER = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TOKENIZERS_PARALLELISM", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_IDLE_SECONDS = 60
# Of a module and of a text.
_NO_FILE = ("-m", "-c")


def wait(libraries, owner):
    """Answers each request with 1 and, when the copy and all that it left have ended, its status; with 0 where it takes a process of its own. Returns the
    script in a copy. Ends with the process `owner`, or where that is 0 when nobody has come for a while or its socket is gone."""
    if sys.path[:1] == [""]:
        del sys.path[0]
    for name in ("libnvidia-ml.so.1", "libcuda.so.1", "libnvrtc.so.12", "libnvrtc.so.13"):
        ctypes.CDLL(os.path.join(libraries, name), ctypes.RTLD_GLOBAL)
    with tempfile.TemporaryFile() as said:
        # What the import says, each copy says in its place. It writes nothing: no rehearsal holds that back here.
        os.dup2(said.fileno(), 2)
        writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        import torch  # noqa: F401

        later = _Later() if os.environ.pop("VRAMLAB_WAITS_WITH_MORE", "") else None
        sys.dont_write_bytecode = writes_none
        sys.stderr.flush()
        os.lseek(2, 0, os.SEEK_SET)
        of_import = os.read(2, 1 << 20)
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    pages = _pages_of_files()
    # By what says that a copy's guard has ended, and by the connection that is closed where it is to be.
    guards, asking = {}, {}
    since = time.monotonic()
    while True:
        ready, _, _ = select.select([listener, *guards, *asking], [], [], 1.0)
        if ready or guards:
            since = time.monotonic()
        elif os.getppid() != owner if owner else time.monotonic() - since > _IDLE_SECONDS or not os.path.exists(listener.getsockname()):
            os._exit(0)
        for each in ready:
            if each in guards:
                guard, connection = guards.pop(each)
                os.close(each)
                _say(connection, os.waitpid(guard, 0)[1])
                asking.pop(connection, None)
                connection.close()
            elif each in asking:
                os.kill(asking.pop(each), signal.SIGTERM)
            elif each is listener:
                connection, _ = listener.accept()
                asked = _asked(connection)
                guard = os.fork() if asked and _finds_the_same(asked) else None
                if guard == 0:
                    for open_here in (listener, connection, *(connection for _, connection in guards.values())):
                        open_here.close()
                    for open_here in guards:
                        os.close(open_here)
                    return _become(of_import, later, pages, *asked)
                _say(connection, guard is not None)
                for file in asked[0] if asked else ():
                    os.close(file)
                if guard:
                    guards[os.pidfd_open(guard)] = guard, connection
                    asking[connection] = guard


def _asked(connection):
    """Three files, the folder, the words of the command, and the environment; None where somebody has gone."""
    try:
        head, files, _, _ = socket.recv_fds(connection, 8, 3)
        data = bytearray()
        length = struct.unpack("Q", head)[0]
        while len(data) < length:
            part = connection.recv(length - len(data))
            if not part:
                return None
            data += part
    except (OSError, struct.error):
        return None
    folder, words, *environment = map(os.fsdecode, bytes(data).split(b"\0"))
    return files, folder, environment[: int(words)], environment[int(words) :]


def _say(connection, number):
    with contextlib.suppress(OSError):
        connection.sendall(struct.pack("i", number))


def _finds_the_same(asked):
    """Whether modules that torch has imported would not be found in the script's folder instead."""
    _, folder, (_, script, *_), _ = asked
    try:
        if script not in _NO_FILE:
            script = os.path.realpath(os.path.join(folder, script))
            os.close(os.open(script, os.O_RDONLY))
            folder = os.path.dirname(script)
        names = os.listdir(folder)
    except OSError:
        return False
    return not {name.split(".")[0] for name in names} & {name.split(".")[0] for name in sys.modules}


def _pages_of_files():
    """Beginnings and lengths of what this process has in memory of files: a copy of it begins without, and would seem to take less of the host's."""
    size, found = os.sysconf("SC_PAGESIZE"), []
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for fields in map(str.split, maps):
            begin, end = (int(at, 16) for at in fields[0].split("-"))
            if fields[4] == "0" or fields[1][0] != "r":
                continue
            pagemap.seek(begin // size * 8)
            # The highest bit says whether a page is there.
            is_there = [entry >> 63 for entry in memoryview(pagemap.read((end - begin) // size * 8)).cast("Q")]
            for is_present, run in itertools.groupby(range(len(is_there)), is_there.__getitem__):
                first, *rest = run
                if is_present:
                    found.append((begin + first * size, (len(rest) + 1) * size))
    return found


def _become(of_import, later, pages, files, folder, words, environment):
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(entry.split("=", 1) for entry in environment)
    os.environ["VRAMLAB_REHEARSAL_OWNER"] = str(os.getppid())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "torch"}
    for name in torch:
        del sys.modules[name]
    has_file = words[1] not in _NO_FILE
    sys.orig_argv, sys.argv = words, words[1:] if has_file else [words[1], *words[3:]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=__builtins__, __loader__=importlib.machinery.BuiltinImporter)
    # As Python 3.9 and newer have it.
    script = os.path.join(os.getcwd(), words[1]) if has_file else ""
    if has_file:
        main.__dict__.update(__file__=script, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", script))
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)) if has_file else {"-m": os.getcwd(), "-c": ""}[words[1]])
    # The guard is another process from here on.
    ctypes.PyDLL(None).vramlab_start_again()
    for name, value in (("VRAMLAB_REHEARSAL_OWNER", None), ("CUDA_VISIBLE_DEVICES", "vramlab")):
        if value in (None, os.environ.get(name)):
            os.environ.pop(name, None)
    # (madvise(2), MADV_POPULATE_READ)
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for begin, length in pages:
        madvise(begin, length, 22)
    sys.meta_path[:0] = [_Imported(torch, of_import), *([later] if later else [])]
    return script, *(words[2] if words[1] == flag else "" for flag in _NO_FILE)


class _Imported:
    """Finds torch where it is imported, as it was before."""

    def __init__(self, modules, said):
        self.modules, self.said, self.before = modules, said, self.now()

    @staticmethod
    def now():
        environment = {name: value for name, value in os.environ.items() if name not in _READ_LATER}
        return environment, os.sched_getaffinity(0)

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is not None:
            from vramlab_rehearsal import imports

            torch = self.modules[name]
            spec.loader.create_module = lambda spec: torch
            spec.loader.exec_module = lambda module: imports._exec_module(self.put_back, name, module)
        return spec

    def put_back(self, torch):
        spec = self.modules["torch.version"].__spec__
        is_same = os.path.dirname(torch.__spec__.origin) == os.path.dirname(spec.origin)
        if not is_same or self.now() != self.before:
            from vramlab_rehearsal.session import SESSION

            open(os.path.join(SESSION, "anew"), "w").close()
            os._exit(0)
        with contextlib.suppress(OSError):
            os.write(2, self.said)
        sys.meta_path.remove(self)
        sys.modules.update(self.modules)


class _Later:
    """Parts of torch that many copies import: that takes seconds, once for all. A copy finds them, all together, where it imports one."""

    _PARTS = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.pipelining")

    def __init__(self):
        known = set(sys.modules)
        for name in self._PARTS:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        self.modules = {name: module for name, module in sys.modules.items() if name not in known and name.startswith("torch.")}
        for name in self.modules:
            del sys.modules[name]
        # They are attributes of what is there already.
        self.attributes = []
        for name, module in self.modules.items():
            parent, _, own = name.rpartition(".")
            if parent in known and sys.modules[parent].__dict__.get(own) is module:
                self.attributes.append((sys.modules[parent], own, module))
                delattr(sys.modules[parent], own)

    def find_spec(self, name, path=None, target=None):
        if name not in self.modules:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=hasattr(self.modules[name], "__path__"))

    def create_module(self, spec):
        module = self.modules[spec.name]
        self.spec = module.__spec__
        return module

    def exec_module(self, module):
        from vramlab_rehearsal import imports

        # Some allow nothing to be set that they do not know.
        with contextlib.suppress(AttributeError):
            module.__spec__ = self.spec
        sys.meta_path.remove(self)
        sys.modules.update(self.modules)
        for parent, name, part in self.attributes:
            setattr(parent, name, part)
        for name, part in self.modules.items():
            imports._exec_module(bool, name, part)


def end(raised):
    """Ends a copy whose script has ended, as Python does but for what its own memory takes to be given back."""
    status = 0
    if isinstance(raised, SystemExit):
        status = raised.code if isinstance(raised.code, int) else raised.code is not None
        if not isinstance(raised.code, (int, type(None))):
            print(raised.code, file=sys.stderr)
    elif raised is not None:
        status = 1
        sys.last_type, sys.last_value, sys.last_traceback = type(raised), raised, raised.__traceback__
        sys.excepthook(type(raised), raised, raised.__traceback__)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            status = status or 120
    if isinstance(raised, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    # With what libraries do at the end.
    ctypes.PyDLL(None).exit(int(status) & 0xFF)
