// Memory that batches are written into, from libtorch's own allocator, and tensors over it.
#include "../../../sim/native/guarded.h"
#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <memory>

extern "C" {

// Memory of the CPU allocator; `*owner` frees it.
char* vl_batch_memory_take(int64_t bytes, void** data, void** owner) {
  return guarded([&] {
    auto memory = std::make_unique<c10::DataPtr>(c10::GetCPUAllocator()->allocate(static_cast<size_t>(bytes)));
    TORCH_CHECK(bytes == 0 || memory->get(), "no memory for a batch of ", bytes, " bytes");
    *data = memory->get();
    *owner = memory.release();
  });
}

void vl_batch_memory_free(void* owner) { delete static_cast<c10::DataPtr*>(owner); }

// A tensor over memory that its caller keeps alive until `give_back(keeper)`, which is called once, whatever happens here.
char* vl_tensor_over(void* data, const int64_t* shape, size_t dimensions, int8_t kind, void* keeper, void (*give_back)(void*),
                     at::Tensor** out) {
  return guarded([&] {
    const std::shared_ptr<void> kept(keeper, give_back);
    const auto options = at::TensorOptions(at::kCPU).dtype(static_cast<at::ScalarType>(kind));
    *out = new at::Tensor(at::from_blob(data, at::IntArrayRef(shape, dimensions), [kept](void*) {}, options));
  });
}

}
