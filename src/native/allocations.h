// What the CPU's counting allocator tells of each block while allocations are recorded.
#pragma once
#include <cstdint>

namespace vramlab {
void cpu_allocated(uint64_t address, int64_t bytes);
void cpu_freed(uint64_t address, int64_t bytes);
}  // namespace vramlab
