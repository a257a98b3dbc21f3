// Every allocation of one device and its end, in order: the CPU's from our counting allocator, a CUDA device's from PyTorch's caching
// allocator, real or dry, as a memory trace.
#include "allocations.h"
#include "../../../sim/native/guarded.h"
#include "../../../sim/native/trace.h"
#include <c10/core/Allocator.h>
#include <dlfcn.h>
#include <atomic>
#include <mutex>
#include <vector>
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#include <c10/cuda/CUDACachingAllocator.h>
#define VRAMLAB_HAS_CUDA 1
#endif

namespace {

using vramlab::trace::Event;
using vramlab::trace::Kind;

using vramlab::kNothing;
constexpr int32_t kCpu = -1;
// Whose allocations are recorded, and of whose a witness is made.
std::atomic<int32_t> recording{kNothing}, witnessing{kNothing};
std::mutex recorded_mutex;
std::vector<Event> recorded;

void record(int32_t device, uint64_t address, int64_t bytes, Kind kind) {
  if (witnessing == device && kind == Kind::kAlloc) vramlab::witnessed(bytes);
  if (recording != device) return;
  Event event{};
  event.kind = kind;
  event.device = static_cast<uint16_t>(device == kCpu ? 0 : device);
  event.address = address;
  event.bytes = event.rounded = bytes;
  const std::lock_guard<std::mutex> lock(recorded_mutex);
  recorded.push_back(event);
}

// As libtorch's own allocators do: the profiler of this thread, if it records memory.
void tell_profiler(uint64_t address, int64_t change, int64_t live) {
  if (!c10::memoryProfilingEnabled()) return;
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(address), change, static_cast<size_t>(live), 0, c10::Device(c10::kCPU));
}

#ifdef VRAMLAB_HAS_CUDA
// libc10_cuda is in the process or not; nothing of it is linked.
void watch_cuda() {
  using c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using Entry = c10::cuda::CUDACachingAllocator::TraceEntry;
  static bool watching = false;
  if (watching) return;
  auto* allocator =
      static_cast<std::atomic<CUDAAllocator*>*>(dlsym(RTLD_DEFAULT, "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
  TORCH_CHECK(allocator && allocator->load(), "PyTorch's CUDA allocator is not in this process, so its allocations cannot be recorded");
  // Called under the allocator's lock. A tracker cannot be taken off again; without a recording it returns at once.
  allocator->load()->attachAllocatorTraceTracker([](const Entry& entry) {
    if (entry.action_ == Entry::ALLOC) record(entry.device_, entry.addr_, static_cast<int64_t>(entry.size_), Kind::kAlloc);
    // When the meter counts it down: with several streams, later than it is asked for.
    if (entry.action_ == Entry::FREE_COMPLETED)
      record(entry.device_, entry.addr_, static_cast<int64_t>(entry.size_), Kind::kFreeCompleted);
  });
  watching = true;
}
#else
void watch_cuda() { TORCH_CHECK(false, "this program was built with a libtorch without CUDA"); }
#endif

}  // namespace

namespace vramlab {

void witness_allocations(int32_t device) {
  if (device >= 0) watch_cuda();
  witnessing = device;
}

void cpu_allocated(uint64_t address, int64_t bytes, int64_t live) {
  record(kCpu, address, bytes, Kind::kAlloc);
  tell_profiler(address, bytes, live);
}

void cpu_freed(uint64_t address, int64_t bytes, int64_t live) {
  record(kCpu, address, bytes, Kind::kFreeCompleted);
  tell_profiler(address, -bytes, live);
}

}  // namespace vramlab

extern "C" {

// Starts to record the allocations of the CPU (-1) or of a CUDA device (its number); what was recorded before is forgotten.
char* vl_allocations_record(int32_t device) {
  return guarded([&] {
    recording = kNothing;
    if (device >= 0) watch_cuda();
    const std::lock_guard<std::mutex> lock(recorded_mutex);
    recorded.clear();
    recording = device;
  });
}

void vl_allocations_stop() { recording = kNothing; }

// Hands over what was recorded, and forgets it.
void vl_allocations_take(void* taker, void (*take)(void*, const Event*, size_t)) {
  std::vector<Event> taken;
  {
    const std::lock_guard<std::mutex> lock(recorded_mutex);
    taken.swap(recorded);
  }
  take(taker, taken.data(), taken.size());
}
}
