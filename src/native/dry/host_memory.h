// PyTorch's own caching allocator of page-locked host memory, over memory that is not locked: rounding to powers of two, the cache and its
// statistics are PyTorch's. The memory is real, because the CPU fills it; pages that nobody touches take nothing.
#pragma once
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <sys/mman.h>

#include <map>
#include <mutex>

// Nothing is ever under way on a dry device, so every event has passed.
struct VramlabDryHostEvent {};

struct VramlabDryHostMemory final : at::CachingHostAllocatorImpl<c10::cuda::CUDAStream, VramlabDryHostEvent> {
  using Block = at::HostBlock<c10::cuda::CUDAStream>;

  bool owns(const void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = blocks_.upper_bound(static_cast<const char*>(data));
    if (after == blocks_.begin()) return false;
    --after;
    return static_cast<const char*>(data) < after->first + after->second;
  }

 private:
  std::mutex mutex_;
  // Bytes by address.
  std::map<const char*, size_t> blocks_;

  void allocate_host_memory(size_t size, void** out) override {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "out of memory: the system gives no ", size, " bytes for page-locked memory");
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[static_cast<char*>(memory)] = size;
    *out = memory;
  }
  void free_block(Block* block) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      blocks_.erase(static_cast<char*>(block->ptr_));
    }
    munmap(block->ptr_, block->size_);
  }
  void record_stream(std::optional<std::vector<VramlabDryHostEvent>>& events, c10::cuda::CUDAStream) override { events->emplace_back(); }
  bool query_event(VramlabDryHostEvent&) override { return true; }
  c10::cuda::CUDAStream get_current_stream() const override { return c10::cuda::getCurrentCUDAStream(); }
  bool stream_is_capturing(c10::cuda::CUDAStream) const override { return false; }
};

DECLARE_HOST_ALLOCATOR(VramlabDryHostAllocator, VramlabDryHostMemory, vramlab_dry_free_host, vramlab_dry_host_allocator)

static bool vramlab_dry_is_pinned(const void* data) { return vramlab_dry_host_allocator.impl_->owns(data); }
