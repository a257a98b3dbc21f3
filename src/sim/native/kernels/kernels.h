// Kernels for the CUDA dispatch key of a process whose CUDA runtime is simulated, whoever hosts it: Rust's simulated GPU (../host.cpp) or a
// user's Python. libtorch_cuda is loaded there, and PyTorch's own CUDA code runs as it is: it takes its results, temporaries and workspaces
// from PyTorch's caching allocator, launches kernels that do nothing, and calls a cuBLAS that does nothing. So every allocation of an
// operator is PyTorch's own, whatever its version, with sizes from the card's figures and from CUB's. What is here is the rest:
// - operators of libraries that are not simulated: parts of cuDNN (cudnn.cpp), and cuSOLVER and MAGMA (fallback.cpp);
// - what a value decides (values.cpp): memory holds none, so what is read from it gets a fixed answer.
// The table of what is exact, assumed and unknown is in table.cpp.
#pragma once
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/library.h>

#include <string_view>

namespace vramlab::dry {

using at::IntArrayRef;
using at::Tensor;
using MaybeTensor = const std::optional<Tensor>&;
using SymInts = c10::SymIntArrayRef;

inline c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator() { return c10::cuda::CUDACachingAllocator::get(); }

// ---- for hosts: call after libtorch_cuda is loaded ---------------------------------------------------------------------------------------

// While it lives PyTorch does not warn of registrations: later ones win.
class Quiet {
  struct Silent final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silent;
  const c10::WarningUtils::WarningHandlerGuard guard{&silent};
};

// All kernels below, and what libtorch calls through stubs and not through the dispatcher; gives where they are, for others.
torch::Library& register_kernels();

// Refuses operators whose result's shape depends on values, for a host that knows no values.
void refuse_shapes_from_values(torch::Library& m);

// An operator's argument for another device, with what `one` gives for each of its tensors.
template <typename One>
c10::IValue argument_for(c10::DeviceType device, const c10::IValue& value, const One& one) {
  if (value.isTensor()) return one(value.toTensor());
  if (value.isDevice()) return c10::Device(device);
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& each : value.toTensorVector()) list.push_back(one(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& each : value.toOptionalTensorVector()) list.push_back(each ? std::optional<Tensor>(one(*each)) : each);
    return list;
  }
  return value;
}

// For an operator without CUDA code that can run: shapes from its meta kernel, memory from the allocator.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// ---- the table: a kernel that has no row there, and a row that has no kernel, are errors -------------------------------------------------

void mark_registered(const char* name);
void check_all_registered();

// Of cuSOLVER or MAGMA: by fallback(). Results only; what the library takes for itself is unknown, and a rehearsal says so.
inline constexpr const char* kLinearAlgebra[] = {
    "cholesky", "cholesky.out", "cholesky_inverse", "cholesky_inverse.out", "_cholesky_solve_helper", "linalg_cholesky_ex",
    "linalg_cholesky_ex.L", "linalg_inv_ex", "linalg_inv_ex.inverse", "_linalg_det", "_linalg_det.result", "_linalg_slogdet",
    "_linalg_slogdet.sign", "_linalg_solve_ex", "_linalg_solve_ex.result", "_linalg_eigh", "_linalg_eigh.eigenvalues", "_linalg_svd",
    "_linalg_svd.U", "linalg_lu", "linalg_lu.out", "linalg_lu_factor_ex", "linalg_lu_factor_ex.out", "linalg_lu_solve",
    "linalg_lu_solve.out", "linalg_qr", "linalg_qr.out", "linalg_ldl_factor_ex", "linalg_ldl_factor_ex.out", "linalg_ldl_solve",
    "linalg_ldl_solve.out", "linalg_lstsq.out", "linalg_eig", "linalg_eig.out", "linalg_eigvals.out", "_linalg_eigvals",
    "geqrf.a", "ormqr", "ormqr.out", "linalg_householder_product", "linalg_householder_product.out", "triangular_solve.X",
    "linalg_solve_triangular", "linalg_solve_triangular.out"
};

// The library that an operator calls and that takes memory of its own which nobody knows; nullptr where there is none.
const char* uncounted(std::string_view name);

template <typename Function>
void add(torch::Library& m, const char* name, Function&& function) {
  mark_registered(name);
  m.impl(name, std::forward<Function>(function));
}

// ---- the parts of register_kernels -------------------------------------------------------------------------------------------------------

void register_values(torch::Library& m);
void register_cudnn(torch::Library& m);
void register_libraries(torch::Library& m);

}  // namespace vramlab::dry
