// The simulated GPU under a user's Python, which has loaded libtorch_cuda over the simulated runtime: the kernels of ../kernels take the
// place of those of PyTorch's that cannot run so, and the recorder follows the allocator. Opened by src/rehearse/python when CUDA comes up;
// built for each version of PyTorch.
#include "../guarded.h"
#include "../kernels/kernels.h"
#include "recorder.h"
#include "values.h"
#include "work.h"

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Logging.h>
#include <dlfcn.h>

#include <utility>
#include <vector>

#define EXPORTED __attribute__((visibility("default")))

namespace {

// Later registrations win, and PyTorch warns of each.
struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void register_all() {
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  vramlab::dry::register_kernels(library);
  vramlab::rehearsal::follow_values();
  auto** const launched = static_cast<void (**)(const uint64_t*, size_t)>(dlsym(RTLD_DEFAULT, "vramlab_dry_launched"));
  if (launched) *launched = &vramlab::rehearsal::lose_values;
}

}  // namespace

// ---- for Python, by ctypes ---------------------------------------------------------------------------------------------------------------

extern "C" {

using vramlab::rehearsal::Label;
using vramlab::rehearsal::Phase;

// Messages are the caller's, who gives them back to vl_forget.
EXPORTED void vl_forget(char* message) { std::free(message); }

EXPORTED char* vl_open(const char* folder) {
  return guarded([&] {
    TORCH_CHECK(dlsym(RTLD_DEFAULT, "vramlab_dry_memory"), "this process has no simulated CUDA runtime");
    vramlab::rehearsal::open_recorder(folder);
    register_all();
    vramlab::rehearsal::follow_allocator();
    vramlab::rehearsal::gather_stacks(false, 1);
  });
}

// Before CUDA comes up: models are made on the host.
EXPORTED char* vl_leave_untouched() {
  return guarded([] {
    Quiet quiet;
    const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    vramlab::rehearsal::leave_untouched();
  });
}

EXPORTED char* vl_gather_stacks(int theirs, uint64_t entries) {
  return guarded([&] { vramlab::rehearsal::gather_stacks(theirs != 0, entries); });
}
// Gives the phase that was before.
EXPORTED int vl_enter(int phase) {
  const auto before = static_cast<int>(vramlab::rehearsal::phase());
  vramlab::rehearsal::enter(static_cast<Phase>(phase));
  return before;
}
EXPORTED void vl_begin_pass(int phase, int64_t flags, uint32_t module) {
  vramlab::rehearsal::begin_pass(static_cast<vramlab::rehearsal::Phase>(phase), flags, module);
}
EXPORTED void vl_end_step() { vramlab::rehearsal::end_step(); }
EXPORTED void vl_refused(const char* what) { vramlab::rehearsal::refused(what); }
// How often the script was told that memory has run out.
EXPORTED uint32_t vl_out_of_memory() { return vramlab::rehearsal::script_out_of_memory(); }
EXPORTED void vl_set_module(uint32_t module) { vramlab::rehearsal::set_module(module); }
EXPORTED void vl_set_backward_stack() { vramlab::rehearsal::set_backward_stack(); }
// Of each label its address, its category and the number of its tensor's name.
EXPORTED void vl_label(const uint64_t* labels, size_t count) {
  for (size_t i = 0; i < count; i++)
    vramlab::rehearsal::label(labels[3 * i], static_cast<Label>(labels[3 * i + 1]), static_cast<uint32_t>(labels[3 * i + 2]));
}
// A kernel that PyTorch knows nothing of was given these addresses.
EXPORTED void vl_lose(const uint64_t* addresses, size_t count) { vramlab::rehearsal::lose_values(addresses, count); }
// Copies the bytes of a block whose values are known and real; 0 where they are not.
EXPORTED int vl_values(uint64_t address, void* into, size_t bytes) { return vramlab::rehearsal::copy_values(address, into, bytes) ? 1 : 0; }
EXPORTED void vl_ended(int enough_seen) { vramlab::rehearsal::ended(enough_seen); }
// A kernel that no operator launches, as a compiled one: numbers of kind and precision are those of work.h.
EXPORTED void vl_work(const char* name, int kind, int precision, double flops, double bytes, uint32_t launches, uint64_t stream) {
  vramlab::rehearsal::told_work(name, static_cast<vramlab::rehearsal::WorkKind>(kind), static_cast<vramlab::rehearsal::Precision>(precision),
                                flops, bytes, launches, stream);
}
// The script's clocks: who predicts them, and what they say.
EXPORTED void vl_open_clock(const char* name) { vramlab::rehearsal::open_clock(name); }
EXPORTED double vl_clock(double idle) { return vramlab::rehearsal::read_clock(nullptr, idle); }
EXPORTED void vl_begin_graph(uint64_t graph) { vramlab::rehearsal::begin_graph(graph); }
EXPORTED void vl_end_graph() { vramlab::rehearsal::end_graph(); }
EXPORTED void vl_replay_graph(uint64_t graph) { vramlab::rehearsal::replay_graph(graph); }
// Sets PyTorch's allocator, as PYTORCH_ALLOC_CONF does.
EXPORTED char* vl_set_allocator(const char* settings) {
  return guarded([&] { c10::cuda::CUDACachingAllocator::setAllocatorSettings(settings); });
}
// Plays `count` requests, each a kind and a number: 0 allocates the next block for that stream, 1 frees that block, 2 empties the cache.
// Gives in `reserved` the most bytes that were reserved, or -1 where memory ran out. In the end nothing is allocated and the cache is empty.
// Its libraries are enough, without Python's half of PyTorch.
EXPORTED char* vl_replay(const uint32_t* requests, size_t count, const uint64_t* sizes, size_t blocks, size_t streams, int64_t* reserved) {
  return guarded([&] {
    using c10::cuda::CUDACachingAllocator::get;
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    // The default stream is the first.
    static std::vector<cudaStream_t> known(1);
    while (known.size() < streams) known.push_back(c10::cuda::getStreamFromPool(false, 0).stream());
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
EXPORTED void vl_close_python() { vramlab::rehearsal::close_python(); }
}
