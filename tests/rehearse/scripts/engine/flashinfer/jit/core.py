import os
import shutil
from types import SimpleNamespace as Of


class JitSpec:
    def __init__(self, name):
        self.name = name

    def try_load(self):
        return None

    def build_and_load(self):
        if not (os.environ.get("CUDA_HOME") or shutil.which("nvcc") or os.path.exists("/usr/local/cuda")):
            raise RuntimeError("Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist")
        return Of(store_cache=print)
