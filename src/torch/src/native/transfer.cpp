// Page-locked host memory, streams, events on any stream, and copies that do not wait: libtorch's own, by its device-neutral interface, so
// that no CUDA header is needed.
#include "../../../sim/native/guarded.h"
#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <memory>

namespace {

c10::Device cuda(int32_t device) { return {at::kCUDA, static_cast<c10::DeviceIndex>(device)}; }

c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(at::kCUDA); }

// A stream's number means something only beside its device.
c10::Stream stream(int32_t device, int64_t id) { return c10::Stream(c10::Stream::UNSAFE, cuda(device), id); }

at::HostAllocator* host_allocator() {
  // It comes with CUDA's half of libtorch.
  auto* allocator = at::getHostAllocator(at::kCUDA);
  TORCH_CHECK(allocator, "there is no CUDA device in this process, so nothing locks host memory");
  return allocator;
}

}  // namespace

extern "C" {

// ---- streams -------------------------------------------------------------------------------------------------------------------------

char* vl_stream_current(int32_t device, int64_t* id) {
  return guarded([&] { *id = guard().getStream(cuda(device)).id(); });
}

// A stream of libtorch's pool, which lives as long as the process.
char* vl_stream_from_pool(int32_t device, int64_t* id) {
  return guarded([&] { *id = guard().getStreamFromGlobalPool(cuda(device)).id(); });
}

// Makes a stream this thread's current one on its device and gives back the one before.
char* vl_stream_exchange(int32_t device, int64_t id, int64_t* before) {
  return guarded([&] { *before = guard().exchangeStream(stream(device, id)).id(); });
}

char* vl_stream_wait(int32_t device, int64_t id, const c10::Event* event) {
  return guarded([&] { event->block(stream(device, id)); });
}

char* vl_stream_synchronize(int32_t device, int64_t id) {
  return guarded([&] { guard().synchronizeStream(stream(device, id)); });
}

// ---- events --------------------------------------------------------------------------------------------------------------------------

char* vl_event_record_on(int32_t device, int64_t id, c10::Event** out) {
  return guarded([&] {
    // PYTORCH_DEFAULT switches timing off, which makes waiting cheaper.
    auto event = std::make_unique<c10::Event>(at::kCUDA, c10::EventFlag::PYTORCH_DEFAULT);
    event->record(stream(device, id));
    *out = event.release();
  });
}

char* vl_event_synchronize(const c10::Event* event) {
  return guarded([&] { event->synchronize(); });
}

// ---- page-locked memory --------------------------------------------------------------------------------------------------------------

int32_t vl_has_cuda_device() {
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return 0;
  return guard().deviceCount() > 0;
}

// A new tensor of page-locked host memory, of the kind of `like`.
char* vl_pinned_empty(const int64_t* sizes, size_t dimensions, const at::Tensor* like, at::Tensor** out) {
  return guarded([&] {
    const auto options = at::TensorOptions().dtype(like->dtype()).pinned_memory(true);
    *out = new at::Tensor(at::empty(at::IntArrayRef(sizes, dimensions), options));
  });
}

// Bytes that the host allocator holds locked and their peak; blocks; blocks that were ever locked.
// Its figures for what is in use are left out: 2.11.0 does not count blocks that are freed without an event.
char* vl_host_memory_read(int64_t out[4]) {
  return guarded([&] {
    const auto stats = host_allocator()->get_stats();
    const int64_t values[4] = {stats.allocated_bytes.current, stats.allocated_bytes.peak, stats.allocations.current, stats.num_host_alloc};
    std::copy(std::begin(values), std::end(values), out);
  });
}

// ---- copies --------------------------------------------------------------------------------------------------------------------------

char* vl_copy(const at::Tensor* to, const at::Tensor* from, int32_t non_blocking) {
  return guarded([&] {
    const c10::NoGradGuard no_grad;
    to->copy_(*from, non_blocking != 0);
  });
}

// Has the caching allocator keep a tensor's memory until what the stream has been given so far is done, once the tensor is freed.
char* vl_record_stream(const at::Tensor* tensor, int32_t device, int64_t id) {
  return guarded([&] { guard().recordDataPtrOnStream(tensor->storage().data_ptr(), stream(device, id)); });
}
}
