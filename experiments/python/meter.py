"""Bytes of tensors, counted as the lab counts them, and the settings that change figures, read as the lab reads them.

On the CPU it is the lab's own allocator that counts, in a library that the lab's program hands over: PyTorch's profiler says what each
operation allocates, and misses what is allocated outside of any. On CUDA it is PyTorch's own allocator, on both sides.
"""

import contextlib
import ctypes
import struct

import torch

_LIBRARY = None


# A record of the memory trace (src/sim/native/trace.h): kind, address and bytes are read. An allocation is of the kind 1.
_RECORD = struct.Struct("<B7xQq56x")
_TAKE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_SETTING = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


def open_library(path):
    """Opens the lab's library; it runs on the libtorch that this process has loaded."""
    global _LIBRARY
    _LIBRARY = ctypes.CDLL(path)
    _LIBRARY.vl_cpu_meter_limit.argtypes = [ctypes.c_int64]
    _LIBRARY.vl_witness_end.argtypes = [ctypes.c_char_p, ctypes.c_void_p, _SETTING]
    for name in ["vl_allocations_record", "vl_settings", "vl_witness_begin", "vl_witness_end"]:
        getattr(_LIBRARY, name).restype = ctypes.c_void_p
    _LIBRARY.vl_allocations_take.argtypes = [ctypes.c_void_p, _TAKE]
    _LIBRARY.vl_settings.argtypes = [ctypes.c_void_p, _SETTING]


def _checked(message):
    if message:
        text = ctypes.string_at(message).decode()
        ctypes.CDLL(None).free(ctypes.c_void_p(message))
        raise RuntimeError(text)


def settings():
    """What is set in libtorch in this process and thread, by name."""
    found = {}

    @_SETTING
    def keep(_, name, value):
        found[name.decode()] = value.decode()

    _checked(_LIBRARY.vl_settings(None, keep))
    return found


def libtorch():
    """File of the libtorch that this process has loaded."""
    with open("/proc/self/maps") as maps:
        return next(line.split()[-1] for line in maps if line.rstrip().endswith("/libtorch_cpu.so"))


class Cpu:
    """Counts the CPU's tensors from here on."""

    def __init__(self, limit):
        _LIBRARY.vl_cpu_meter_limit(2**63 - 1 if limit is None else limit)
        _LIBRARY.vl_cpu_meter_use(1)

    def _read(self):
        out = (ctypes.c_int64 * 2)()
        _LIBRARY.vl_cpu_meter_read(out)
        return out

    def live(self):
        return self._read()[0]

    def peak(self):
        return self._read()[1]

    def reset_peaks(self):
        _LIBRARY.vl_cpu_meter_reset_peak()

    def read(self):
        """What the memory pass shows, by metric."""
        return {"requested_peak": self.peak()}


def witness(device, known, body):
    """The witness of a body, and what differs first from one of before, as src/torch/src/native/witness.cpp has them."""
    found = []

    @_SETTING
    def take(_, digest, difference):
        found.extend([digest.decode(), difference.decode()])

    _checked(_LIBRARY.vl_witness_begin(device))
    try:
        body()
    finally:
        _checked(_LIBRARY.vl_witness_end(known.encode(), None, take))
    return found


@contextlib.contextmanager
def recorded(device):
    """Records what is allocated and freed in the region: on the CPU (-1) or on a CUDA device (its number). What it gives is called for what was
    recorded since: whether a block was made, its address and bytes."""
    _checked(_LIBRARY.vl_allocations_record(device))

    def taken():
        events = []

        @_TAKE
        def take(_, first, count):
            events.extend(_RECORD.iter_unpack(ctypes.string_at(first, count * _RECORD.size)))

        _LIBRARY.vl_allocations_take(None, take)
        return [(kind == 1, address, size) for kind, address, size in events]

    try:
        yield taken
    finally:
        _LIBRARY.vl_allocations_stop()


class Cuda:
    """PyTorch's caching allocator of one GPU."""

    def __init__(self, device):
        self.device = device

    def _statistics(self):
        torch.cuda.synchronize(self.device)
        return torch.cuda.memory_stats(self.device)

    def live(self):
        return self._statistics()["requested_bytes.all.current"]

    def peak(self):
        return self._statistics()["requested_bytes.all.peak"]

    def reset_peaks(self):
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)

    def read(self):
        """What the memory pass shows, by metric, as the lab names it."""
        found = self._statistics()
        free, total = torch.cuda.mem_get_info(self.device)
        return {
            "requested_peak": found["requested_bytes.all.peak"],
            "allocated_peak": found["allocated_bytes.all.peak"],
            "reserved_peak": found["reserved_bytes.all.peak"],
            "inactive_split": found["inactive_split_bytes.all.current"],
            "device_used": total - free,
        }
