// What the CPU's counting allocator tells of each block, and who is told of a device's allocations.
#pragma once
#include <cstdint>

namespace vramlab {

// `live` bytes are in use then. They go to a recording, and to a profiler that records memory.
void cpu_allocated(uint64_t address, int64_t bytes, int64_t live);
void cpu_freed(uint64_t address, int64_t bytes, int64_t live);

// No device; the CPU is -1, and a number from 0 a CUDA device.
constexpr int32_t kNothing = -2;
// From here on `witnessed` is called for each allocation of a device.
void witness_allocations(int32_t device);
void witnessed(int64_t bytes);

}  // namespace vramlab
