"""What monitors, daemons and recorders do around a training; says what does not work."""

import ctypes
import os
import subprocess

import torch

# Before CUDA comes up, as PyTorch's own recipe has it.
torch.cuda.memory._record_memory_history()
# Sixteen: by then the code of kernels is on the card, also as nvidia-smi sees it.
blocks = [torch.zeros(1 << 20, device="cuda") for _ in range(16)]
gib = torch.zeros(1 << 28, device="cuda")
traces = torch.cuda.memory._snapshot()["device_traces"][0]
assert sum(entry["action"] == "alloc" for entry in traces) == 17, len(traces)
torch.cuda.memory._record_memory_history(None)

# As nvidia-ml-py calls it.
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInitWithFlags(0) == 0
device, memory, rates = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)(), (ctypes.c_uint * 2)()
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
assert nvml.nvmlDeviceGetUtilizationRates(device, rates) == 0
# PyTorch 2.12 and newer ask for the fabric before the first expandable segment.
fabric = ctypes.create_string_buffer(b"\xff" * 40, 40)
assert nvml.nvmlDeviceGetGpuFabricInfoV(device, fabric) == 0 and fabric[28] == b"\0"
free, total = torch.cuda.mem_get_info()
assert list(memory) == [total, free, total - free], (list(memory), free, total)

# PyTorch's profiler asks CUPTI, whose own library calls itself without end where there is no driver (CUDA 13.2): ours answers.
assert ctypes.CDLL(None).cuptiSubscribe(None, None, None) == 999
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as profile:
    blocks[0].add_(1)
assert any(event.key == "aten::add_" for event in profile.key_averages()), profile.key_averages()

said = subprocess.run(
    ["nvidia-smi", "--query-gpu=name,memory.total,memory.used,index", "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True
)
mib = 1 << 20
assert said.stdout == f"NVIDIA GeForce RTX 4090, {total // mib}, {(total - free) // mib}, 0\n", said
listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True)
assert listed.stdout.startswith("GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-"), listed
table = subprocess.run(["nvidia-smi"], stdout=subprocess.PIPE, text=True)
assert f" {os.getpid()} " in table.stdout, table.stdout

# A daemon's idiom: what was inherited is closed, and files of one's own have those numbers then.
for last in (1024, 65536):
    os.closerange(3, last)
    files = [open(f"checkpoint{i}", "wb") for i in range(12)]
    for file in files:
        file.write(b"precious")
        file.flush()
    # More than a chunk of the trace.
    for _ in range(30000):
        torch.empty(1024, device="cuda")
    sizes = {os.fstat(file.fileno()).st_size for file in files}
    assert sizes == {8}, sizes
    for file in files:
        file.close()
print("all works", flush=True)
