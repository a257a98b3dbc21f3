"""Opens a GPU's driver in every way there is. Argument: a folder with a driver, and a program linked to it, that write down who calls them."""

import ctypes
import os
import subprocess
import sys

fake = sys.argv[1]
CALL = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).cuInit(0)"

for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"):
    for path in (name, os.path.join(fake, name)):
        library = ctypes.CDLL(path)
        library.cuInit(0) if "cuda" in name else library.nvmlInit_v2()
of_c = ctypes.CDLL(None)
of_c.dlmopen.restype = ctypes.c_void_p
assert of_c.dlmopen(ctypes.c_long(-1), os.path.join(fake, "libcuda.so.1").encode(), os.RTLD_NOW)

here = dict(os.environ)
for words, environment in (
    (["linked"], here),
    (["linked"], {**here, "LD_LIBRARY_PATH": fake}),
    (["linked"], {"LD_LIBRARY_PATH": fake}),
    ([sys.executable, "-I", "-c", CALL, "libcuda.so"], here),
    ([sys.executable, "-c", CALL, "libcuda.so.1"], {"LD_LIBRARY_PATH": fake}),
    ([sys.executable, "-c", CALL, os.path.join(fake, "libcuda.so.1")], {}),
):
    words = [os.path.join(fake, words[0]), *words[1:]] if words == ["linked"] else words
    subprocess.run(words, env=environment, check=True)
print("opened")
