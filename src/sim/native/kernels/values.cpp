// What a value decides. The device's memory holds none: a copy to the CPU is zeros (../launches.cpp), and a healthy run's answers are given
// where one is read.
#include "kernels.h"

namespace vramlab::dry {
namespace {

// 1 for integers, so that a count can be divided by.
at::Scalar item(const Tensor& tensor) {
  if (tensor.scalar_type() == at::kBool) return false;
  if (at::isIntegralType(tensor.scalar_type(), false)) return 1;
  return 0.0;
}

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "The simulated GPU cannot run ", op.schema().operator_name(),
                              ": the shape of its result depends on values, and it computes none. Avoid it, or give it tensors on the CPU.");
}

}  // namespace

void register_values(torch::Library& m) { add(m, "_local_scalar_dense", item); }

void refuse_shapes_from_values(torch::Library& m) {
  for (const char* name : {"nonzero", "nonzero.out", "masked_select", "masked_select.out", "_unique2", "unique_dim", "unique_consecutive",
                           "unique_dim_consecutive", "repeat_interleave.Tensor", "bincount"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

}  // namespace vramlab::dry
