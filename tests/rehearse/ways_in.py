"""Starts one Python after the other, each of which is started and comes to PyTorch in its own way. Arguments: names of ways; all without any."""

import os
import subprocess
import sys
import zipapp

# What each trains, once it has torch: it would go on for ever.
TRAIN = """
def train(torch, way):
    import os
    # In one piece: two of them print at once.
    os.write(1, f"trains: {os.getpid()} {way}\\n".encode())
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.randn(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
"""

# Scripts, each of which comes to `torch` in another way.
SCRIPTS = {
    # transformers, accelerate, datasets and peft look whether torch is there before anybody imports it.
    "find_spec": """
import importlib.util
assert all(importlib.util.find_spec("torch") for _ in range(3))
import torch
train(torch, way)
""",
    "lazy_loader": """
import importlib.util, sys
spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
torch = sys.modules["torch"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch)
train(torch, way)
""",
    "own_finders": """
import importlib.machinery, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, path, target)
kept = [finder for finder in sys.meta_path if finder in (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)]
sys.meta_path.clear()
sys.meta_path = [*kept, Finder()]
import torch
train(torch, way)
""",
    "second_try": """
import sys
path, sys.path = sys.path, [part for part in sys.path if "site-packages" not in part]
try:
    import torch
    raise SystemExit("torch is elsewhere, too")
except ImportError:
    sys.path = path
sys.modules["torch._C"] = None
try:
    import torch
    raise SystemExit("torch needs no torch._C")
except ImportError:
    del sys.modules["torch._C"]
import importlib
train(importlib.import_module("torch"), way)
""",
    # Nothing of the environment is left when CUDA comes up, nor in what a shell starts then.
    "cleared_environment": """
import os
import torch
os.environ.clear()
train(torch, way)
""",
    "spawned": """
import multiprocessing
def work():
    import torch
    train(torch, way)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
""",
    "from_a_forkserver": """
import multiprocessing
def work():
    import torch
    train(torch, way)
if __name__ == "__main__":
    process = multiprocessing.get_context("forkserver").Process(target=work)
    process.start()
    process.join()
""",
    "run_path": """
import runpy, sys
sys.path.extend(PACKAGES)
if __name__ == "__main__":
    runpy.run_path(__file__, run_name="again")
else:
    import torch
    train(torch, way)
""",
}
PYTHON = sys.executable
PACKAGES = [path for path in sys.path if path.endswith("site-packages")]


def file(way, script):
    name = f"{way}.py"
    with open(name, "w") as out:
        out.write(f"way = {way!r}\nPACKAGES = {PACKAGES!r}\n{TRAIN}{SCRIPTS[script]}")
    return name


def text(way, script):
    with open(file(way, script)) as made:
        return made.read()


def zipped(way):
    """A folder of Python's in one file."""
    os.mkdir("zipped")
    with open("zipped/__main__.py", "w") as out:
        out.write(text(way, "find_spec"))
    zipapp.create_archive("zipped", "zipped.pyz")
    return "zipped.pyz"


def with_sitecustomize(way):
    """A script's own, which imports torch before the script begins."""
    os.mkdir("own")
    with open("own/sitecustomize.py", "w") as out:
        out.write("import importlib, sys\nsys.own_sitecustomize = importlib.import_module('torch')\n")
    with open("customized.py", "w") as out:
        out.write(f"import sys\n{TRAIN}\ntrain(sys.own_sitecustomize, {way!r})")
    return subprocess.Popen([PYTHON, "customized.py"], env=dict(os.environ, PYTHONPATH="own"))


def replaced(way):
    """Become another program, with no environment; it starts the Python by a shell."""
    name = file(way, "find_spec")
    line = f"import os; os.execve('/bin/sh', ['sh', '-c', 'exec {PYTHON} -I {name}'], {{}})"
    return subprocess.Popen([PYTHON, "-c", line])


def spawned_bare(way):
    """Started by the C library's own function, with another library preloaded."""
    return os.posix_spawn(PYTHON, [PYTHON, file(way, "find_spec")], {"LD_PRELOAD": "libm.so.6", "LD_LIBRARY_PATH": "/nowhere"})


def by_a_shell(way):
    """A shell that the C library starts, once the environment is empty."""
    name = file(way, "find_spec")
    return subprocess.Popen([PYTHON, "-c", f"import os; os.environ.clear(); os.system('{PYTHON} -E {name}')"])


# Each starts one.
WAYS = {
    "file": lambda way: subprocess.Popen([PYTHON, file(way, "find_spec")]),
    "module": lambda way: subprocess.Popen([PYTHON, "-m", file("started_as_a_module", "lazy_loader")[:-3]]),
    "line": lambda way: subprocess.Popen([PYTHON, "-c", text(way, "own_finders")]),
    "input": lambda way: subprocess.Popen([PYTHON], stdin=open(file(way, "second_try"))),
    "archive": lambda way: subprocess.Popen([PYTHON, "-I", zipped(way)]),
    "cleared_environment": lambda way: subprocess.Popen([PYTHON, file(way, "cleared_environment")]),
    "no_site": lambda way: subprocess.Popen([PYTHON, "-S", "-E", file(way, "run_path")]),
    "spawned": lambda way: subprocess.Popen([PYTHON, file(way, "spawned")]),
    "from_a_forkserver": lambda way: subprocess.Popen([PYTHON, file(way, "from_a_forkserver")]),
    "env -i": lambda way: subprocess.Popen(["env", "-i", PYTHON, file(way, "find_spec")]),
    "sitecustomize": with_sitecustomize,
    "replaced": replaced,
    "spawned_bare": spawned_bare,
    "by_a_shell": by_a_shell,
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(WAYS)
    os.environ["OMP_NUM_THREADS"] = "1"
    print("ways:", len(names), flush=True)
    while names:
        # Two at a time.
        for process in [WAYS[name](name.replace(" ", "_")) for name in names[:2]]:
            os.waitpid(process, 0) if isinstance(process, int) else process.wait()
        names = names[2:]
