// PyTorch's NCCL process group, in a library of its own: it needs libtorch_cuda, which the programs do not link, so it is opened at run
// time in processes that have it loaded.
#define USE_C10D_NCCL
#include "../../../../sim/native/guarded.h"
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#define EXPORTED __attribute__((visibility("default")))

// Makes a process group of one GPU for each process. Its communicator is made by the first collective.
extern "C" EXPORTED char* vramlab_nccl_group(const c10::intrusive_ptr<c10d::Store>* store, int32_t rank, int32_t size, int32_t device,
                                             int64_t timeout_ms, c10::intrusive_ptr<c10d::Backend>* out) {
  return guarded([&] {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/false);
    options->timeout = std::chrono::milliseconds(timeout_ms);
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(*store, rank, size, std::move(options));
    group->setBoundDeviceId(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
    *out = std::move(group);
  });
}
