// A script's allocations asked for again of PyTorch's own allocator, which is in libc10_cuda: without the rest of libtorch, which takes longer to
// load than most replays take. Opened by src/rehearse/python/vramlab_rehearsal/replaying.py; built for each version of PyTorch.
#include "../guarded.h"

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#define HAS_PEERS
#endif

#include <map>
#include <utility>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

using c10::cuda::CUDACachingAllocator::get;

// Sets PyTorch's allocator, as PYTORCH_ALLOC_CONF does.
EXPORTED char* vl_set_allocator(const char* settings) {
  return guarded([&] { c10::cuda::CUDACachingAllocator::setAllocatorSettings(settings); });
}

// Plays `count` requests, each a kind and a number: 0 allocates the next block for that stream, 1 frees that block, 2 empties the cache, from 3 on blocks
// are of that memory pool (0: the ordinary one), 4 gives that pool up. Gives in `reserved` the most bytes that were reserved, or -1 where memory ran out. In the end nothing is allocated and the cache is empty.
EXPORTED char* vl_replay(const uint32_t* requests, size_t count, const uint64_t* sizes, size_t blocks, size_t streams, int64_t* reserved) {
  return guarded([&] {
    static const bool is_ready = [] {
      const auto cards = c10::cuda::device_count();
#ifdef HAS_PEERS
      // Else libtorch_cuda does that, before it starts the allocator; expandable segments ask it.
      c10::cuda::detail::init_p2p_access_cache(cards);
#endif
      get()->init(cards);
      return true;
    }();
    (void)is_ready;
    // The default stream is the first.
    static std::vector<cudaStream_t> known(1);
    // Others need no more than a number: nothing runs on them.
    while (known.size() < streams) known.push_back(reinterpret_cast<cudaStream_t>(16 * known.size()));
    std::vector<void*> addresses(blocks, nullptr);
    size_t made = 0;
    *reserved = 0;
    get()->resetPeakStats(0);
    // How often each pool was begun: as often it is given up. Its own number is another one in each replay.
    static unsigned long long replays = 0;
    replays++;
    std::map<uint32_t, int> begun;
    uint32_t pool = 0;
    const auto id = [](uint32_t number) { return std::pair<unsigned long long, unsigned long long>{replays << 32 | number, 0}; };
    const auto go_to = [&](uint32_t next) {
      if (pool) get()->endAllocateToPool(0, id(pool));
      pool = next;
      if (pool) get()->beginAllocateToPool(0, id(pool), [](cudaStream_t) { return true; });
      if (pool) begun[pool]++;
    };
    const auto give_up = [&](uint32_t number) {
      for (int& times = begun[number]; times > 0; times--) get()->releasePool(0, id(number));
    };
    try {
      for (size_t i = 0; i < count; i++) {
        const uint32_t kind = requests[2 * i], which = requests[2 * i + 1];
        if (kind == 0) {
          addresses[made] = get()->raw_alloc_with_stream(sizes[made], known.at(which));
          made++;
        } else if (kind == 1) {
          get()->raw_delete(std::exchange(addresses[which], nullptr));
        } else if (kind == 2) {
          get()->emptyCache();
        } else if (kind == 3) {
          go_to(which);
        } else {
          give_up(which);
        }
      }
    } catch (const c10::OutOfMemoryError&) {
      *reserved = -1;
    }
    if (*reserved == 0) *reserved = get()->getDeviceStats(0).reserved_bytes[0].peak;
    go_to(0);
    for (void* address : addresses) {
      if (address) get()->raw_delete(address);
    }
    for (const auto& each : begun) give_up(each.first);
    get()->emptyCache();
  });
}
