// Every allocation of one device and its end, in order: the CPU's from our counting allocator, a CUDA device's from PyTorch's caching
// allocator, real or dry, as a memory trace. Each carries the operation in which it was made.
#include "allocations.h"
#include "../../../sim/native/guarded.h"
#include "../../../sim/native/trace.h"
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <dlfcn.h>
#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#include <c10/cuda/CUDACachingAllocator.h>
#define VRAMLAB_HAS_CUDA 1
#endif

namespace {

using vramlab::trace::Event;
using vramlab::trace::Kind;

constexpr int32_t kNothing = -2;
constexpr int32_t kCpu = -1;
// Whose allocations are recorded; a number from 0 is a CUDA device's.
std::atomic<int32_t> recording{kNothing};
std::mutex recorded_mutex;
std::vector<Event> recorded;

// Operations by name, with their numbers, from 1 on; they live as long as the process.
using Operation = std::pair<const std::string, uint32_t>;
std::mutex operations_mutex;
std::unordered_map<std::string, uint32_t> operations;
std::vector<const Operation*> operations_by_number;

// The outermost operation that runs in this thread: what the program called, not what that calls in turn; null outside of any.
thread_local int depth = 0;
thread_local const Operation* operation = nullptr;

void record(int32_t device, uint64_t address, int64_t bytes, Kind kind) {
  if (recording != device) return;
  Event event{};
  event.kind = kind;
  event.device = static_cast<uint16_t>(device == kCpu ? 0 : device);
  event.address = address;
  event.bytes = event.rounded = bytes;
  event.operator_ = kind == Kind::kAlloc && operation ? operation->second : 0;
  const std::lock_guard<std::mutex> lock(recorded_mutex);
  recorded.push_back(event);
}

const Operation* kept(const char* name) {
  const std::lock_guard<std::mutex> lock(operations_mutex);
  const auto [found, is_new] = operations.emplace(name, static_cast<uint32_t>(operations.size() + 1));
  if (is_new) operations_by_number.push_back(&*found);
  return &*found;
}

std::unique_ptr<at::ObserverContext> operation_begins(const at::RecordFunction& function) {
  if (depth++ == 0) operation = kept(function.name());
  return nullptr;
}

void operation_ends(const at::RecordFunction&, at::ObserverContext*) {
  // One that had begun before the recording ends now.
  if (depth > 0 && --depth == 0) operation = nullptr;
}

// Zero where nothing is recorded.
at::CallbackHandle naming = 0;

void name_operations(bool on) {
  if (on && naming == 0) {
    depth = 0;
    naming = at::addGlobalCallback(
        at::RecordFunctionCallback(&operation_begins, &operation_ends).scopes({at::RecordScope::FUNCTION}));
  } else if (!on && naming != 0) {
    at::removeCallback(naming);
    naming = 0;
    operation = nullptr;
  }
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
    name_operations(true);
    {
      const std::lock_guard<std::mutex> lock(recorded_mutex);
      recorded.clear();
    }
    recording = device;
  });
}

void vl_allocations_stop() {
  recording = kNothing;
  name_operations(false);
}

// Hands over what was recorded, and forgets it.
void vl_allocations_take(void* taker, void (*take)(void*, const Event*, size_t)) {
  std::vector<Event> taken;
  {
    const std::lock_guard<std::mutex> lock(recorded_mutex);
    taken.swap(recorded);
  }
  take(taker, taken.data(), taken.size());
}

// The operation of a record, by its number; null of 0, and of a number that there is none of.
const char* vl_operation_name(uint32_t number) {
  const std::lock_guard<std::mutex> lock(operations_mutex);
  return number == 0 || number > operations_by_number.size() ? nullptr : operations_by_number[number - 1]->first.c_str();
}
}
