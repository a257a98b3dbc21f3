// CPU memory, counted exactly: an allocator for libtorch that counts what tensors ask for, in all threads of the process. It is linked into
// the lab's programs, and stands in a library of its own that PyTorch in Python loads; so both sides are counted by the same code.
#include "allocations.h"
#include <c10/core/CPUAllocator.h>
#include <atomic>
#include <cstdlib>

namespace {

std::atomic<int64_t> live{0}, peak{0}, limit{INT64_MAX};

// raw_allocate asserts that context == data, so the size cannot stand in a context of its own: it stands in a header in front of the
// block, which keeps the 64-byte alignment that libtorch's kernels expect.
struct CountingAllocator final : c10::Allocator {
  static constexpr size_t kHeader = 64;

  static void release(void* data) {
    if (!data) return;
    char* block = static_cast<char*>(data) - kHeader;
    const int64_t size = *reinterpret_cast<int64_t*>(block);
    const int64_t now = live -= size;
    vramlab::cpu_freed(reinterpret_cast<uint64_t>(data), size, now);
    std::free(block);
  }

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::kCPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    const auto size = static_cast<int64_t>(bytes);
    const int64_t now = live += size;
    if (now > limit) {
      live -= size;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CPU out of memory. Tried to allocate ", size, " bytes; ", now - size,
                       " of the limit of ", limit.load(), " bytes are in use.");
    }
    void* block = nullptr;
    if (posix_memalign(&block, kHeader, bytes + kHeader) != 0) {
      live -= size;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CPU out of memory. Tried to allocate ", size, " bytes.");
    }
    int64_t highest = peak;
    while (now > highest && !peak.compare_exchange_weak(highest, now)) {}
    *static_cast<int64_t*>(block) = size;
    void* data = static_cast<char*>(block) + kHeader;
    vramlab::cpu_allocated(reinterpret_cast<uint64_t>(data), size, now);
    return {data, data, &release, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

extern "C" {

// Makes the counting allocator libtorch's, or libtorch's own again. Blocks carry their own deleter, so both may be mixed.
void vl_cpu_meter_use(int32_t on) {
  static CountingAllocator counting;
  static c10::Allocator* const own = c10::GetCPUAllocator();
  c10::SetCPUAllocator(on ? &counting : own, 1);
}
void vl_cpu_meter_limit(int64_t bytes) { limit = bytes; }
void vl_cpu_meter_reset_peak() { peak = live.load(); }
// Live bytes, peak bytes.
void vl_cpu_meter_read(int64_t out[2]) {
  out[0] = live;
  out[1] = peak;
}
}
