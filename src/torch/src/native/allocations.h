// What the CPU's counting allocator tells of each block, and the name of the operation in which one is made.
#pragma once
#include <cstdint>

namespace vramlab {

// `live` bytes are in use then. They go to a recording, and to a profiler that records memory.
void cpu_allocated(uint64_t address, int64_t bytes, int64_t live);
void cpu_freed(uint64_t address, int64_t bytes, int64_t live);

// Who wants operations to be named.
enum class Naming { kRecording = 1, kHistory = 2 };
void name_operations(Naming by, bool on);

// The outermost operation that runs in this thread, or null; it lives as long as the process.
const char* current_operation();

}  // namespace vramlab
