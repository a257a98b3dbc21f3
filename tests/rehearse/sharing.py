"""What processes on one card see of each other. Without an argument the one that starts the others; says what does not work."""

import ctypes
import os
import signal
import subprocess
import sys

GIB = 1 << 30


def train(gib):
    x = torch.empty(gib * GIB, dtype=torch.uint8, device="cuda")
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return x


def taken(gib):
    """With as many launches as bring the code of kernels to the card: until then each process is told that its own is free."""
    x = torch.empty(gib * GIB, dtype=torch.uint8, device="cuda")
    for _ in range(16):
        x.zero_()
    return x


def own(*words, **more):
    return subprocess.Popen([sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)


def memory():
    """Free and in use of the first card, as the runtime and NVML have it."""
    nvml, device, told = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    nvml.nvmlDeviceGetMemoryInfo(device, told)
    free, total = torch.cuda.mem_get_info()
    assert list(told) == [total, free, total - free], (list(told), free, total)
    return free, total - free


role = sys.argv[1] if len(sys.argv) > 1 else "all"
if role == "train":
    import torch

    train(int(sys.argv[2]))
elif role == "held":
    import torch

    x = taken(4)
    print(*memory(), flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
elif role == "other":
    import torch

    x = torch.empty(5 * GIB, dtype=torch.uint8, device="cuda")
    print(torch.cuda.device_count(), torch.cuda.mem_get_info()[0] < torch.cuda.mem_get_info()[1] - 5 * GIB, flush=True)
elif role == "two":
    # At one time, by a shell.
    sys.exit(subprocess.run(f"{sys.executable} {__file__} train 15 & {sys.executable} {__file__} train 15; code=$?; wait; exit $code", shell=True).returncode)
elif role == "ranks":
    # As torchrun starts them, but for the ports.
    command = f"RANK=0 {sys.executable} {__file__} train 15 & RANK=1 {sys.executable} {__file__} train 15; code=$?; wait $! || code=$?; exit $code"
    sys.exit(subprocess.run(command, shell=True).returncode)
else:
    import torch

    # Forked before CUDA is there: a context of its own.
    to_parent, from_child = os.pipe()
    to_child, from_parent = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(from_parent)
        x = taken(3)
        os.write(from_child, b"%d" % memory()[1])
        os.read(to_child, 1)
        os._exit(0)
    of_child = int(os.read(to_parent, 100))
    context = of_child - 3 * GIB
    assert 0 < context < GIB, of_child

    y = taken(2)
    assert memory()[1] == 5 * GIB + 2 * context, memory()
    held = own("held")
    free, used = map(int, held.stdout.readline().split())
    assert used == 9 * GIB + 3 * context, (used, context)
    assert memory()[1] == used
    listed = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True)
    rows = sorted(tuple(map(int, line.split(","))) for line in listed.stdout.splitlines())
    assert rows == sorted((pid, (gib * GIB + context) >> 20) for pid, gib in ((child, 3), (os.getpid(), 2), (held.pid, 4))), listed
    # Killed, and nobody has waited for it.
    held.stdin.write("\n")
    held.stdin.close()
    os.waitid(os.P_PID, held.pid, os.WEXITED | os.WNOWAIT)
    assert memory()[1] == 5 * GIB + 2 * context, memory()
    # The second card by the name of the first one; and one's name for the first card in another process.
    other = own("other", env={**os.environ, "CUDA_VISIBLE_DEVICES": "1"})
    assert other.communicate()[0] == "1 True\n"
    os.close(from_parent)
    os.waitpid(child, 0)
    assert memory()[1] == 2 * GIB + context, memory()

    # Beside PyTorch's allocator: the runtime, the driver, small pieces of a page, and managed memory.
    runtime, driver, address = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(GIB)) == 0  # by the runtime
    # As wheels name it that bring their own.
    assert ctypes.CDLL("/wheel.libs/libcudart-d0da41ae.so.12").cudaGetDeviceCount(ctypes.byref(ctypes.c_int())) == 0
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(2 * GIB)) == 0
    assert memory()[1] == 5 * GIB + context, memory()
    assert driver.cuMemFree_v2(address) == 0
    small = [ctypes.c_void_p() for _ in range(1000)]
    assert not any(runtime.cudaMalloc(ctypes.byref(each), ctypes.c_size_t(256)) for each in small)
    assert memory()[1] == 3 * GIB + (2 << 20) + context, memory()
    assert not any(map(runtime.cudaFree, small)) and memory()[1] == 3 * GIB + context
    assert runtime.cudaMallocManaged(ctypes.byref(address), ctypes.c_size_t(GIB), 1) == 0 and memory()[1] == 3 * GIB + context
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(99 * GIB)) == 2

    # What another process has: an address of its block here, which takes nothing.
    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 64)]

    handle, theirs, begin, used = Handle(), ctypes.c_void_p(), ctypes.c_uint64(), memory()[1]
    assert runtime.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(y.data_ptr() + 256)) == 0
    assert runtime.cudaIpcOpenMemHandle(ctypes.byref(theirs), handle, 1) == 0 and memory()[1] == used
    assert driver.cuPointerGetAttribute(ctypes.byref(begin), 11, ctypes.c_uint64(theirs.value + (1 << 30))) == 0 and begin.value == theirs.value
    assert runtime.cudaIpcCloseMemHandle(theirs) == 0 and runtime.cudaIpcGetMemHandle(ctypes.byref(handle), theirs) != 0
    assert driver.cuTensorMapEncodeTiled() == 0

    # One trial after another, and two at one time: those add up.
    for _ in range(2):
        assert own("train", "8").wait() == 0
    both = [own("train", "8"), own("train", "8")]
    assert [each.wait() for each in both] == [0, 0]
    print("all works", flush=True)
