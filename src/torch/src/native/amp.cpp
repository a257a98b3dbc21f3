// What mixed precision needs beyond tch: TF32 switched.
// No exception leaves this file: each function returns nullptr, or a message that `vl_free_message` frees.
#include "../../../sim/native/guarded.h"
#include <ATen/Context.h>
#include <cstdint>

extern "C" {

char* vl_allow_tf32(int32_t products, int32_t convolutions) {
  return guarded([&] {
    at::globalContext().setAllowTF32CuBLAS(products != 0);
    at::globalContext().setAllowTF32CuDNN(convolutions != 0);
  });
}
}
