// What the CPU's counting allocator tells of each block.
#pragma once
#include <cstdint>

namespace vramlab {

// `live` bytes are in use then. They go to a recording, and to a profiler that records memory.
void cpu_allocated(uint64_t address, int64_t bytes, int64_t live);
void cpu_freed(uint64_t address, int64_t bytes, int64_t live);

}  // namespace vramlab
