// Tensors over memory that Rust owns.
#include <ATen/ops/from_blob.h>

#include <memory>

#include "guarded.h"

extern "C" {
// A CPU tensor over `data`, which `owner` keeps alive: `drop(owner)` is called once, when the last tensor over it goes or where this fails.
char* vl_tensor_over(void* data, const int64_t* sizes, size_t dimensions, int8_t dtype, void* owner, void (*drop)(void*),
                     at::Tensor** out) {
  return guarded([&] {
    const std::shared_ptr<void> held(owner, drop);
    const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype)).device(at::kCPU);
    *out = new at::Tensor(at::from_blob(data, at::IntArrayRef(sizes, dimensions), [held](void*) {}, options));
  });
}
}
