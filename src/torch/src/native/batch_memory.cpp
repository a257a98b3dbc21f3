// Memory that batches are written into, from libtorch's own allocators, and tensors over it.
#include "../../../sim/native/guarded.h"
#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <memory>

extern "C" {

// Memory of the CPU allocator, or page-locked memory of CUDA's host allocator; `*owner` frees it.
char* vl_batch_memory_take(int64_t bytes, int32_t page_locked, void** data, void** owner) {
  return guarded([&] {
    c10::Allocator* allocator = page_locked ? static_cast<c10::Allocator*>(at::getHostAllocator(at::kCUDA)) : c10::GetCPUAllocator();
    auto memory = std::make_unique<c10::DataPtr>(allocator->allocate(static_cast<size_t>(bytes)));
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

// A tensor that owns the memory: the allocator gets it back as it gets any tensor's, so that CUDA's waits for the copies that read it.
char* vl_batch_memory_hand_over(void* owner, int64_t bytes, const int64_t* shape, size_t dimensions, int8_t kind, at::Tensor** out) {
  return guarded([&] {
    const std::unique_ptr<c10::DataPtr> memory(static_cast<c10::DataPtr*>(owner));
    c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes), std::move(*memory));
    const at::IntArrayRef sizes(shape, dimensions);
    auto tensor = at::empty({0}, at::TensorOptions(at::kCPU).dtype(static_cast<at::ScalarType>(kind)));
    tensor.set_(storage, 0, sizes, c10::contiguous_strides(sizes));
    *out = new at::Tensor(std::move(tensor));
  });
}

}
