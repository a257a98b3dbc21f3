// Operators of linear algebra, whose CUDA code calls libraries that are not simulated: shapes from meta, memory from the allocator, and none for what the
// library takes for itself, which is unknown.
#include "kernels.h"
#include <ATen/native/Resize.h>

namespace vramlab::dry {
namespace {

const c10::DispatchKeySet kCudaKey(c10::DispatchKey::CUDA);

Tensor strided(IntArrayRef sizes, IntArrayRef strides, at::ScalarType dtype) {
  return at::detail::empty_strided_generic(sizes, strides, allocator(), kCudaKey, dtype);
}

Tensor to_meta(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  // Python's meta kernels take scalars as they come, and check that they stay on the CPU.
  if (tensor.is_cpu() && tensor.dim() == 0) return tensor;
  Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

Tensor view_of(const Tensor& base, IntArrayRef sizes, IntArrayRef strides, int64_t offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), base.dtype());
  at::native::setStrided(view, sizes, strides, offset);
  return view;
}

Tensor from_meta(const Tensor& meta) {
  return meta.defined() ? strided(meta.sizes(), meta.strides(), meta.scalar_type()) : meta;
}

// A CPU tensor among CUDA's is an error on a GPU, but for scalars and for indices.
void check_devices(const c10::FunctionSchema& schema, const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().dim() == 0 || !value.toTensor().is_cpu()) return;
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (when calling ",
              schema.operator_name(), ")");
}

// The argument that a result is: written to and handed back, or viewed.
const Tensor* aliased(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments, const at::AliasInfo& alias) {
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto* own = schema.arguments()[i].alias_info();
    if (own && arguments[i].isTensor() && own->beforeSets() == alias.beforeSets()) return &arguments[i].toTensor();
  }
  return nullptr;
}

c10::IValue result_from_meta(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments, const c10::Argument& result,
                             const c10::IValue& value) {
  const auto* alias = result.alias_info();
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& meta : value.toTensorVector()) {
      const Tensor* base = alias ? aliased(schema, arguments, *alias) : nullptr;
      list.push_back(base ? view_of(*base, meta.sizes(), meta.strides(), base->storage_offset() + meta.storage_offset())
                          : from_meta(meta));
    }
    return list;
  }
  if (!value.isTensor()) return value;
  const Tensor& meta = value.toTensor();
  const Tensor* base = alias ? aliased(schema, arguments, *alias) : nullptr;
  if (!base) return from_meta(meta);
  if (!alias->isWrite()) return view_of(*base, meta.sizes(), meta.strides(), base->storage_offset() + meta.storage_offset());
  // In-place and out variants: the meta kernel may have given the argument its shape.
  if (base->sizes() != meta.sizes()) {
    base->resize_(meta.sizes());
    if (base->strides() != meta.strides()) base->as_strided_(meta.sizes(), meta.strides());
  }
  return *base;
}

// An operator of composites that do not know of autograd runs on meta tensors, too.
bool has_meta_kernel(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  return op.hasKernelForDispatchKey(Key::Meta) || op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(Key::CompositeExplicitAutogradNonFunctional);
}

// Without a meta kernel. It is what makes a matrix orthogonal (torch.nn.utils.parametrizations).
std::tuple<Tensor, Tensor> geqrf(const Tensor& a) {
  TORCH_CHECK(a.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  std::vector<int64_t> scalars(a.sizes().begin(), a.sizes().end() - 2);
  scalars.push_back(std::min(a.size(-2), a.size(-1)));
  return {at::empty(a.mT().sizes(), a.options()).mT(), at::empty(scalars, a.options())};
}

}  // namespace

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  TORCH_CHECK_NOT_IMPLEMENTED(
      has_meta_kernel(op), "The simulated GPU cannot run ", schema.operator_name(),
      ": its CUDA code calls a library that needs a GPU, and PyTorch has no meta kernel that tells the shape of its result. A kernel in "
      "src/sim/native/kernels/ would have to allocate what that code does, and the library's workspace would have to be known.");
  const size_t count = schema.arguments().size();
  std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const bool indexes = schema.name().rfind("aten::index", 0) == 0 || schema.name().rfind("aten::_index", 0) == 0;
  for (size_t i = 0; i < count; i++) {
    if (!indexes) check_devices(schema, arguments[i]);
    (*stack)[stack->size() - count + i] = argument_for(at::kMeta, arguments[i], to_meta);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  const size_t results = schema.returns().size();
  for (size_t i = 0; i < results; i++) {
    auto& value = (*stack)[stack->size() - results + i];
    value = result_from_meta(schema, arguments, schema.returns()[i], value);
  }
}

void register_libraries(torch::Library& m) {
  add(m, "geqrf", geqrf);
  // PyTorch's own; what they ask is answered by ../cufft.cpp and ../cusparse.cpp.
  mark_registered("products of sparse matrices");
  for (const char* name : {"_fft_c2c", "_fft_r2c", "_fft_c2r"}) mark_registered(name);
  for (const char* name : kLinearAlgebra) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace vramlab::dry
