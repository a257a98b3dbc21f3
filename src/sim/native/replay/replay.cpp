// A script's allocations asked for again of PyTorch's own allocator, which is in libc10_cuda: without the rest of libtorch, which takes longer to
// load than most replays take. Opened by src/rehearse/python/vramlab_rehearsal/replaying.py; built for each version of PyTorch.
#include "../guarded.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

using c10::cuda::CUDACachingAllocator::get;

// Sets PyTorch's allocator, as PYTORCH_ALLOC_CONF does.
EXPORTED char* vl_set_allocator(const char* settings) {
  return guarded([&] { c10::cuda::CUDACachingAllocator::setAllocatorSettings(settings); });
}

// Plays `count` requests, each a kind and a number: 0 allocates the next block for that stream, 1 frees that block, 2 empties the cache.
// Gives in `reserved` the most bytes that were reserved, or -1 where memory ran out. In the end nothing is allocated and the cache is empty.
EXPORTED char* vl_replay(const uint32_t* requests, size_t count, const uint64_t* sizes, size_t blocks, size_t streams, int64_t* reserved) {
  return guarded([&] {
    static const bool is_ready = (get()->init(c10::cuda::device_count()), true);
    (void)is_ready;
    // The default stream is the first.
    static std::vector<cudaStream_t> known(1);
    // Others need no more than a number: nothing runs on them.
    while (known.size() < streams) known.push_back(reinterpret_cast<cudaStream_t>(16 * known.size()));
    std::vector<void*> addresses(blocks, nullptr);
    size_t made = 0;
    *reserved = 0;
    get()->resetPeakStats(0);
    try {
      for (size_t i = 0; i < count; i++) {
        const uint32_t kind = requests[2 * i], which = requests[2 * i + 1];
        if (kind == 0) {
          addresses[made] = get()->raw_alloc_with_stream(sizes[made], known.at(which));
          made++;
        } else if (kind == 1) {
          get()->raw_delete(std::exchange(addresses[which], nullptr));
        } else {
          get()->emptyCache();
        }
      }
    } catch (const c10::OutOfMemoryError&) {
      *reserved = -1;
    }
    if (*reserved == 0) *reserved = get()->getDeviceStats(0).reserved_bytes[0].peak;
    for (void* address : addresses) {
      if (address) get()->raw_delete(address);
    }
    get()->emptyCache();
  });
}
