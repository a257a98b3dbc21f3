"""Clocks, temperature, power and what throttles a GPU, by NVML: the same readings that src/harness/src/machine.rs takes of steps in Rust."""

import ctypes

import torch

PLACES = [
    "libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
]
# What slows a GPU down against its will. A power cap is a setting.
THROTTLES = {0x08: "hw_slowdown", 0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown"}
SM_CLOCK, GPU_TEMPERATURE = 1, 0


def _library():
    for place in PLACES:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    return None


class Conditions:
    """Of one CUDA device; of none where no driver answers: then there are no readings."""

    def __init__(self, device, nvml=None):
        self.nvml, self.handle = nvml, ctypes.c_void_p()
        if device.type != "cuda":
            return
        self.nvml = nvml or _library()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
        if self.nvml is None or self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self.handle)):
            self.nvml = None

    def _ask(self, name, *of, kind=ctypes.c_uint):
        value = kind()
        if self.nvml is None or getattr(self.nvml, name)(self.handle, *of, ctypes.byref(value)):
            return None
        return value.value

    def read(self):
        """Metric, unit and value of each reading; what throttles; joules since the driver was loaded. What NVML does not know is left out."""
        asked = [
            ("sm_clock", "Hz", self._ask("nvmlDeviceGetClockInfo", SM_CLOCK), 1e6, 0.0),
            ("temperature", "K", self._ask("nvmlDeviceGetTemperature", GPU_TEMPERATURE), 1.0, 273.15),
            ("power", "W", self._ask("nvmlDeviceGetPowerUsage"), 1e-3, 0.0),
        ]
        readings = [(metric, unit, value * scale + zero) for metric, unit, value, scale, zero in asked if value is not None]
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong) or 0
        energy = self._ask("nvmlDeviceGetTotalEnergyConsumption", kind=ctypes.c_ulonglong)
        return readings, " ".join(name for bit, name in THROTTLES.items() if reasons & bit), None if energy is None else energy / 1e3
