// What mixed precision needs beyond tch: gradients unscaled and checked by one operation over all of them, and TF32 switched.
// No exception leaves this file: each function returns nullptr, or a message that `vl_free_message` frees.
#include "../../../sim/native/guarded.h"
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" {

// Multiplies gradients of one device and kind by `inverse_scale`, and sets `found_inf` to 1 where one of them is not finite.
char* vl_amp_unscale(at::Tensor* const* gradients, size_t count, at::Tensor* found_inf, const at::Tensor* inverse_scale) {
  return guarded([&] {
    const c10::NoGradGuard no_grad;
    std::vector<at::Tensor> list;
    list.reserve(count);
    for (size_t i = 0; i < count; i++) list.push_back(*gradients[i]);
    at::_amp_foreach_non_finite_check_and_unscale_(list, *found_inf, *inverse_scale);
  });
}

char* vl_allow_tf32(int32_t allow) {
  return guarded([&] {
    at::globalContext().setAllowTF32CuBLAS(allow != 0);
    at::globalContext().setAllowTF32CuDNN(allow != 0);
  });
}
}
