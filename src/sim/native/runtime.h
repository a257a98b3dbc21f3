// What the parts of the simulated runtime have in common: the machine and its cards, whose memory is whose, and the calling thread's device.
#pragma once
#include "answers.h"
#include "callers.h"
#include "card.h"
#include "cuda_runtime_api.h"
#include "occupancy.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>

namespace occupancy = vramlab::occupancy;

// What another process of the rehearsal has: an address here, which takes nothing of the card.
struct SharedMemory {
  size_t bytes;
  char rest[56];
};

#pragma GCC visibility push(hidden)
namespace vramlab::runtime {

// ---- runtime.cpp: the machine ------------------------------------------------------------------------------------------------------------

const VramlabCard& sheet();
size_t card_memory();
inline size_t setting(const char* name, size_t otherwise) {
  const char* set = std::getenv(name);
  return set ? std::strtoull(set, nullptr, 10) : otherwise;
}
constexpr int kMostDevices = occupancy::kMostCards;
int device_count();
// The number in the machine of a device of this process.
int card_of(int device);
// Brings up a device's context, as most calls do. False where there is no room for it.
bool come_up(int device);
// What every card has of: threads of a block.
constexpr int kThreadsPerBlock = 1024;
int blocks_per_multiprocessor();
inline thread_local int current_device = 0;
inline thread_local cudaError_t last_error = cudaSuccess;
// Of all that follows.
inline std::mutex mutex;
inline uint64_t next_handle = 1;

// ---- memory.cpp --------------------------------------------------------------------------------------------------------------------------

// All cards' addresses: below those that a Linux process gets for itself, so that a touch is a fault and not a silent overwrite.
constexpr uint64_t kFirst = 1ull << 41, kSpan = 1ull << 46;
inline bool is_device(const void* data) { return reinterpret_cast<uint64_t>(data) - kFirst < kSpan; }

// ---- streams.cpp -------------------------------------------------------------------------------------------------------------------------

// How many launches later than at once what an event waits for is over, and the launches of all threads.
uint64_t lag();
inline std::atomic<uint64_t> launched{1};

// ---- launches.cpp ------------------------------------------------------------------------------------------------------------------------

// Devices where the code of kernels is, a bit each. It comes with cuBLAS's or cuDNN's handle, and else with this launch: a single kernel takes little.
// Room for it is taken with the context; until it comes this process is told that it is free, by the runtime and by NVML.
// Of other processes it is in use.
inline std::atomic<uint64_t> has_code{0};
static_assert(kMostDevices <= 64);
uint64_t code_to_come(int device);

}  // namespace vramlab::runtime
#pragma GCC visibility pop
