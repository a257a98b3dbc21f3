// A CUDA backend that allocates and never computes, for a process in which libtorch_cuda is not loaded.
//
// The CUDA dispatch key then has no kernels. A boxed fallback on it asks the meta kernel of an operation for the shape of its result and
// takes the result's memory from PyTorch's own CUDACachingAllocator (libc10_cuda.so), which runs over the pretended runtime of
// runtime.cpp. Everything above the backend runs unchanged and on its CUDA branches: autograd, the CUDA autocast lists, fused dropout,
// the choice of an attention kernel, cuDNN convolution and batch norm, tch's VarStore on Device::Cuda(0).
//
// Operations without a C++ meta kernel have a kernel here, shaped like CUDA's: what it saves, what it returns and what it needs while it
// runs, as PyTorch 2.11's sources say. Values are meaningless. What depends on one gets a fixed answer: `item()` is 0, or 1 for integers,
// so that a count can be divided by; a copy to the CPU is zeros. Not modelled, because only a GPU can tell: workspaces of cuBLAS, cuDNN
// and CUB, and partial sums inside reductions and layer norm's backward.
//
// To add an operation that the fallback names in its error: write a kernel in its section below and give it a line in TORCH_LIBRARY_IMPL.
#include "../guarded.h"
#include "host_memory.h"
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/AutogradState.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/library.h>

#include <cstring>

// In libc10_cuda and in none of its headers.
namespace c10::cuda::_internal {
C10_IMPORT void setHasPrimaryContext(bool (*function)(DeviceIndex));
}

namespace {

using at::IntArrayRef;
using at::Tensor;
using MaybeTensor = const std::optional<Tensor>&;
using SymInts = c10::SymIntArrayRef;
using Dtype = std::optional<at::ScalarType>;

c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator() { return c10::cuda::CUDACachingAllocator::get(); }

const c10::DispatchKeySet kCudaKey(c10::DispatchKey::CUDA);

// ---- random numbers: a seed and an offset, as CUDA's Philox generator has -------------------------------------------------------------

struct DryGenerator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;

  DryGenerator() : GeneratorImpl({at::kCUDA, 0}, kCudaKey) {}
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    return seed_;
  }
  // 16 bytes on the CPU, as CUDA's.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({16}, at::kByte);
    std::memcpy(state.data_ptr(), &seed_, 8);
    std::memcpy(static_cast<char*>(state.data_ptr()) + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16 && state.dtype() == caffe2::TypeMeta::Make<uint8_t>(), "a generator's state is 16 bytes");
    std::memcpy(&seed_, state.data(), 8);
    std::memcpy(&offset_, static_cast<const char*>(state.data()) + 8, 8);
  }
  DryGenerator* clone_impl() const override {
    auto* copy = new DryGenerator;
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
};

// ---- what makes libtorch believe that one CUDA device is there ------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return at::kCUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {at::kCUDA, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  // The streams are the allocator's own, which keeps apart what was taken on different ones.
  c10::Stream getStream(c10::Device device) const override { return c10::cuda::getCurrentCUDAStream(device.index()).unwrap(); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return c10::cuda::getStreamFromPool(high_priority, device.index()).unwrap();
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = c10::cuda::getCurrentCUDAStream(stream.device_index());
    c10::cuda::setCurrentCUDAStream(c10::cuda::CUDAStream(stream));
    return before.unwrap();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator()->recordStream(data, c10::cuda::CUDAStream(stream));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override { *event = allocator(); }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  double elapsedTime(void*, void*, c10::DeviceIndex) const override {
    TORCH_CHECK(false, "a dry device computes nothing, so nothing of it takes time");
  }
};

// The names that C10_REGISTER_CLASS makes of a class need it outside of a namespace.
}  // namespace

struct VramlabDryHooks final : at::CUDAHooksInterface {
  VramlabDryHooks(at::CUDAHooksArgs) {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void deviceSynchronize(c10::DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::make_generator<DryGenerator>();
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<DryGenerator>(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return at::getHostAllocator(at::kCUDA); }
  bool isPinnedPtr(const void* data) const override { return vramlab_dry_is_pinned(data); }
  c10::Allocator* getCUDADeviceAllocator() const override { return allocator(); }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  // A named assumption: the cuDNN that PyTorch 2.11's wheels bring, which takes all that its front ends ask about.
  long versionCuDNN() const override { return 91900; }
  long versionRuntimeCuDNN() const override { return 91900; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
};

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, ::VramlabDryHooks)
}

namespace {

// ---- the fallback: shapes from meta, memory from the allocator ------------------------------------------------------------------------

Tensor strided(IntArrayRef sizes, IntArrayRef strides, at::ScalarType dtype) {
  return at::detail::empty_strided_generic(sizes, strides, allocator(), kCudaKey, dtype);
}

Tensor to_meta(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

Tensor from_meta(const Tensor& meta) {
  return meta.defined() ? strided(meta.sizes(), meta.strides(), meta.scalar_type()) : meta;
}

Tensor view_of(const Tensor& base, IntArrayRef sizes, IntArrayRef strides, int64_t offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), base.dtype());
  at::native::setStrided(view, sizes, strides, offset);
  return view;
}

c10::IValue argument_to_meta(const c10::IValue& value) {
  if (value.isTensor()) return to_meta(value.toTensor());
  if (value.isDevice()) return c10::Device(at::kMeta);
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(to_meta(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional<Tensor>(to_meta(*tensor)) : std::nullopt);
    return list;
  }
  return value;
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

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasKernelForDispatchKey(c10::DispatchKey::Meta), "The dry device cannot run ", schema.operator_name(),
      ": PyTorch has no meta kernel that tells the shape of its result. Give it a kernel in src/native/dry/backend.cpp that allocates "
      "what CUDA's does, and a line in TORCH_LIBRARY_IMPL there; where the shape depends on values, avoid it.");
  const size_t count = schema.arguments().size();
  std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const bool indexes = schema.name().rfind("aten::index", 0) == 0 || schema.name().rfind("aten::_index", 0) == 0;
  for (size_t i = 0; i < count; i++) {
    if (!indexes) check_devices(schema, arguments[i]);
    (*stack)[stack->size() - count + i] = argument_to_meta(arguments[i]);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  const size_t results = schema.returns().size();
  for (size_t i = 0; i < results; i++) {
    auto& value = (*stack)[stack->size() - results + i];
    value = result_from_meta(schema, arguments, schema.returns()[i], value);
  }
}

// For operations that write into their first argument, need nothing else and hand it back, or hand nothing back.
void in_place(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::IValue first = (*stack)[stack->size() - op.schema().arguments().size()];
  torch::jit::drop(*stack, op.schema().arguments().size());
  if (!op.schema().returns().empty()) stack->push_back(first);
}

// For operations whose one result is like their first argument.
void like_first(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Tensor first = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->emplace_back(at::empty_like(first));
}

// ---- memory, views, copies ---------------------------------------------------------------------------------------------------------------

Tensor empty(IntArrayRef sizes, Dtype dtype, std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, allocator(), kCudaKey, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, Dtype dtype, std::optional<at::Layout>, std::optional<at::Device>,
                     std::optional<bool>) {
  return strided(sizes, strides, c10::dtype_or_default(dtype));
}

Tensor as_strided(const Tensor& base, IntArrayRef sizes, IntArrayRef strides, std::optional<int64_t> offset) {
  return view_of(base, sizes, strides, offset.value_or(base.storage_offset()));
}

Tensor reshape_alias(const Tensor& base, IntArrayRef sizes, IntArrayRef strides) {
  return view_of(base, sizes, strides, base.storage_offset());
}

Tensor view(const Tensor& base, IntArrayRef shape) {
  const auto sizes = at::infer_size_dv(shape, base.numel());
  const auto strides = at::detail::computeStride(base.sizes(), base.strides(), sizes);
  TORCH_CHECK(strides.has_value(), "view size is not compatible with input tensor's size and stride; use .reshape(...) instead.");
  return view_of(base, sizes, *strides, base.storage_offset());
}

// Savers and loaders lay tensors over storages; the meta kernel wants a storage of the meta device.
Tensor& set_storage(Tensor& self, c10::Storage storage, int64_t offset, IntArrayRef sizes, IntArrayRef strides) {
  at::native::checkSetStorage(self, std::move(storage), offset, sizes, strides);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (strides.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides);
  }
  return self;
}

const Tensor& resize_(const Tensor& tensor, IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* impl = tensor.unsafeGetTensorImpl();
  size_t bytes = tensor.itemsize();
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  const size_t needed = bytes == 0 ? 0 : bytes + static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
  if (storage->nbytes() < needed) {
    // The old memory goes after the new has come, as on CUDA, where it is copied.
    storage->set_data_ptr_noswap(allocator()->allocate(needed));
    storage->set_nbytes(needed);
  }
  impl->set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return tensor;
}

// Between devices CUDA copies contiguous memory of one type: what is not is made so first, on the side that has it to give.
Tensor& copy_(Tensor& to, const Tensor& from, bool) {
  TORCH_CHECK(at::is_expandable_to(from.sym_sizes(), to.sym_sizes()), "The size of tensor a ", to.sizes(),
              " must match the size of tensor b ", from.sizes());
  if (to.is_cpu()) {
    if (!from.is_cpu() && !from.is_contiguous() && from.strides() != to.strides()) at::empty(to.sizes(), from.options());
    // Fixed values instead of whatever was there.
    to.zero_();
  } else if (from.is_cpu() && from.dim() > 0 && !(to.scalar_type() == from.scalar_type() && to.is_contiguous() && from.is_contiguous())) {
    if (!to.is_contiguous()) at::empty_like(to, at::MemoryFormat::Contiguous);
  }
  return to;
}

Tensor copy_from(const Tensor&, const Tensor& to, bool) { return to; }

at::Scalar item(const Tensor& tensor) {
  if (tensor.scalar_type() == at::kBool) return false;
  if (at::isIntegralType(tensor.scalar_type(), false)) return 1;
  return 0.0;
}

// ---- indexing and shapes -------------------------------------------------------------------------------------------------------------------

Tensor index_select(const Tensor& source, int64_t dim, const Tensor& index) {
  auto sizes = source.sizes().vec();
  if (!sizes.empty()) sizes.at(at::maybe_wrap_dim(dim, source.dim())) = index.numel();
  return at::empty(sizes, source.options());
}

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(self.sizes(), other.sizes()));
  return at::empty(sizes, condition.options().dtype(at::result_type(self, other)));
}

Tensor dot(const Tensor& self, const Tensor&) { return at::empty({}, self.options()); }
Tensor of_all(const Tensor& self) { return at::empty({}, self.options()); }

Tensor& randperm_out(int64_t n, std::optional<at::Generator>, Tensor& out) {
  out.resize_({n});
  return out;
}

std::vector<int64_t> reduced(const Tensor& self, at::OptionalIntArrayRef dims, bool keep) {
  return to_meta(self).to(at::kFloat).sum(dims, keep).sizes().vec();
}
Tensor var_or_std(const Tensor& self, at::OptionalIntArrayRef dims, const std::optional<at::Scalar>&, bool keep) {
  return at::empty(reduced(self, dims, keep), self.options());
}
std::tuple<Tensor, Tensor> var_mean(const Tensor& self, at::OptionalIntArrayRef dims, const std::optional<at::Scalar>& correction, bool keep) {
  return {var_or_std(self, dims, correction, keep), var_or_std(self, dims, correction, keep)};
}

// ---- embedding: more than 3072 indices are sorted, and rows of one index are summed in parts of ten ------------------------------------------

Tensor embedding_backward(const Tensor& gradient, const Tensor& indices, int64_t rows, int64_t, bool by_frequency) {
  const int64_t count = indices.numel(), width = gradient.size(-1);
  const auto index = [&](int64_t n) { return at::empty({n}, indices.options()); };
  const Tensor contiguous = gradient.contiguous();
  if (count <= 3072 && !by_frequency && !at::globalContext().deterministicAlgorithms()) return at::empty({rows, width}, gradient.options());
  const Tensor sorted = index(count), original = index(count);
  { const Tensor range = index(count); }
  const Tensor result = at::empty({rows, width}, gradient.options());
  const int64_t segments = std::min(count, rows), parts = count / 10 + segments;
  const Tensor offsets = index(count), segment_count = index(1), per_segment = index(segments), per_segment_offset = index(segments);
  const Tensor part_count = index(1), part_offset = index(parts);
  const Tensor partial_sums = at::empty({parts, width}, gradient.options().dtype(at::toOpMathType(gradient.scalar_type())));
  return result;
}

// ---- normalisation ---------------------------------------------------------------------------------------------------------------------------

at::TensorOptions accumulating(const Tensor& x) { return x.options().dtype(at::toOpMathType(x.scalar_type())); }

Tensor like_if(bool wanted, MaybeTensor tensor) {
  return wanted && tensor && tensor->defined() ? at::empty_like(*tensor) : Tensor();
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& x, SymInts shape, MaybeTensor, MaybeTensor, double) {
  auto sizes = x.sizes().vec();
  for (size_t i = 0; i < shape.size(); i++) sizes.at(sizes.size() - 1 - i) = 1;
  const Tensor contiguous = x.contiguous();
  return {at::empty_like(contiguous), at::empty(sizes, accumulating(x)), at::empty(sizes, accumulating(x))};
}
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& gradient, const Tensor& x, SymInts, const Tensor&, const Tensor&,
                                                       MaybeTensor weight, MaybeTensor bias, std::array<bool, 3> wanted) {
  const Tensor dx = like_if(wanted[0], x), dweight = like_if(wanted[1], weight), dbias = like_if(wanted[2], bias);
  const Tensor contiguous = gradient.contiguous();
  return {dx, dweight, dbias};
}

std::tuple<Tensor, Tensor, Tensor> group_norm(const Tensor& x, MaybeTensor weight, MaybeTensor bias, c10::SymInt samples,
                                              c10::SymInt channels, c10::SymInt spatial, int64_t groups, double) {
  const int64_t n = samples.expect_int(), c = channels.expect_int();
  const Tensor y = at::empty_like(x), mean = at::empty({n, groups}, x.options()), rstd = at::empty({n, groups}, x.options());
  const bool affine = (weight && weight->defined()) || (bias && bias->defined());
  if (affine && spatial.expect_int() > 1) {
    // Scale and shift of each channel of each sample.
    const Tensor scale = at::empty({n, c}, accumulating(x)), shift = at::empty({n, c}, accumulating(x));
  }
  return {y, mean, rstd};
}
std::tuple<Tensor, Tensor, Tensor> group_norm_backward(const Tensor&, const Tensor& x, const Tensor&, const Tensor&, MaybeTensor weight,
                                                       c10::SymInt samples, c10::SymInt channels, c10::SymInt, int64_t groups,
                                                       std::array<bool, 3> wanted) {
  const int64_t n = samples.expect_int(), c = channels.expect_int();
  const bool scaled = weight && weight->defined();
  const Tensor dx = like_if(wanted[0], x), dweight = like_if(wanted[1], weight);
  const Tensor dbias = wanted[2] ? at::empty({c}, scaled ? weight->options() : x.options()) : Tensor();
  const Tensor ds = at::empty({n, c}, accumulating(x)), db = at::empty({n, c}, accumulating(x));
  if (wanted[0]) {
    const Tensor c2 = at::empty({n, groups}, accumulating(x)), c3 = at::empty({n, groups}, accumulating(x));
    const Tensor c1 = scaled ? at::empty({n, c}, accumulating(x)) : Tensor();
  }
  return {dx, dweight, dbias};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& x, MaybeTensor, MaybeTensor, MaybeTensor, MaybeTensor, bool train, double, double) {
  const int64_t channels = train ? x.size(1) : 0;
  return {at::empty_like(x), at::empty({channels}, accumulating(x)), at::empty({channels}, accumulating(x))};
}
std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor&, const Tensor& x, MaybeTensor weight, MaybeTensor, MaybeTensor, MaybeTensor,
                                                       MaybeTensor, bool, double, std::array<bool, 3> wanted) {
  return {like_if(wanted[0], x), like_if(wanted[1], weight), like_if(wanted[2], weight)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> cudnn_batch_norm(const Tensor& x, const Tensor& weight, MaybeTensor, MaybeTensor, MaybeTensor,
                                                            bool train, double, double) {
  const int64_t channels = train ? x.size(1) : 0;
  return {at::empty_like(x), at::empty({channels}, weight.options()), at::empty({channels}, weight.options()),
          at::empty({0}, x.options().dtype(at::kByte))};
}
std::tuple<Tensor, Tensor, Tensor> cudnn_batch_norm_backward(const Tensor& x, const Tensor&, const Tensor& weight, MaybeTensor, MaybeTensor,
                                                             MaybeTensor, MaybeTensor, double, const Tensor&) {
  return {at::empty_like(x), at::empty_like(weight), at::empty_like(weight)};
}

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, IntArrayRef shape, MaybeTensor, std::optional<double>) {
  auto sizes = x.sizes().vec();
  for (size_t i = 0; i < shape.size(); i++) sizes.at(sizes.size() - 1 - i) = 1;
  const Tensor contiguous = x.contiguous();
  return {at::empty_like(contiguous), at::empty(sizes, accumulating(x))};
}
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& gradient, const Tensor& x, IntArrayRef, const Tensor&, MaybeTensor weight,
                                             std::array<bool, 2> wanted) {
  const Tensor dx = like_if(wanted[0], x), dweight = like_if(wanted[1], weight);
  const Tensor contiguous = gradient.contiguous();
  return {dx, dweight};
}

// ---- convolution (cuDNN, without its workspace) and pooling ------------------------------------------------------------------------------------

Tensor cudnn_convolution(const Tensor& x, const Tensor& weight, SymInts padding, SymInts stride, SymInts dilation, c10::SymInt, bool, bool, bool) {
  std::vector<int64_t> sizes = {x.size(0), weight.size(0)};
  for (int64_t i = 2; i < x.dim(); i++) {
    const auto at = static_cast<size_t>(i - 2);
    const int64_t kernel = dilation[at].expect_int() * (weight.size(i) - 1) + 1;
    sizes.push_back((x.size(i) + 2 * padding[at].expect_int() - kernel) / stride[at].expect_int() + 1);
  }
  const auto format = at::native::cudnn_conv_suggest_memory_format(x, weight);
  return at::empty(sizes, x.options().memory_format(format));
}
// Called by the common convolution_backward, which sums the bias's gradient itself.
std::tuple<Tensor, Tensor> cudnn_convolution_backward(const Tensor& x, const Tensor&, const Tensor& weight, IntArrayRef, IntArrayRef,
                                                      IntArrayRef, int64_t, bool, bool, bool, std::array<bool, 2> wanted) {
  const auto format = at::native::cudnn_conv_suggest_memory_format(x, weight);
  const Tensor dx = wanted[0] ? at::empty(x.sizes(), x.options().memory_format(format)) : Tensor();
  return {dx, wanted[1] ? at::empty(weight.sizes(), weight.options().memory_format(format)) : Tensor()};
}

Tensor adaptive_average_pool(const Tensor& x, SymInts output) {
  auto sizes = x.sizes().vec();
  for (size_t i = 0; i < output.size(); i++) sizes.at(sizes.size() - output.size() + i) = output[i].expect_int();
  return at::empty(sizes, x.options().memory_format(x.suggest_memory_format()));
}
Tensor adaptive_average_pool_backward(const Tensor&, const Tensor& x) { return at::empty_like(x); }

// ---- dropout -------------------------------------------------------------------------------------------------------------------------------------

std::tuple<Tensor, Tensor> dropout(const Tensor& x, double, std::optional<bool> train) {
  if (!train.value_or(true)) return {x.clone(), at::empty_like(x, x.options().dtype(at::kBool))};
  return {at::empty_like(x), at::empty_like(x, x.options().dtype(at::kBool))};
}
Tensor dropout_backward(const Tensor& gradient, const Tensor&, double) { return at::empty_like(gradient); }

// ---- attention -------------------------------------------------------------------------------------------------------------------------------------

// PyTorch 2.11's order on compute capability 9.0: cuDNN, flash, memory-efficient, plain. A named assumption.
enum Attention : int64_t { kPlain = 0, kFlash = 1, kEfficient = 2, kCudnn = 3 };

int64_t choose_attention(const Tensor& q, const Tensor& k, const Tensor& v, MaybeTensor mask, double, bool, std::optional<double>, bool gqa) {
  const auto& context = at::globalContext();
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  const int64_t width = q.size(-1);
  const bool batched = q.dim() == 4 && q.numel() > 0 && k.numel() > 0, plain_mask = !mask || !mask->requires_grad();
  if (batched && half && context.userEnabledCuDNNSDP() && width % 8 == 0 && width <= 256 && v.size(-1) % 8 == 0 && plain_mask && !gqa)
    return kCudnn;
  if (batched && half && context.userEnabledFlashSDP() && width <= 256 && v.size(-1) == width && !mask) return kFlash;
  const int64_t alignment = half ? 8 : 4;
  if (batched && (half || q.scalar_type() == at::kFloat) && context.userEnabledMemEfficientSDP() && width % alignment == 0 &&
      v.size(-1) % alignment == 0 && !gqa)
    return kEfficient;
  TORCH_CHECK(context.userEnabledMathSDP(), "No available kernel. Aborting execution.");
  return kPlain;
}

// Memory in the order batch, sequence, head, width, shown as batch, head, sequence, width.
Tensor by_head(const Tensor& like, int64_t sequence, int64_t width) {
  return at::empty({like.size(0), sequence, like.size(1), width}, like.options()).transpose(1, 2);
}
Tensor floats(const Tensor& like, IntArrayRef sizes) { return at::empty(sizes, like.options().dtype(at::kFloat)); }
int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

using FlashResult = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

FlashResult flash(const Tensor& q, const Tensor& k, const Tensor&, double, bool, bool, std::optional<double>) {
  const Tensor output = by_head(q, q.size(2), q.size(3)), logsumexp = floats(q, {q.size(0), q.size(1), q.size(2)});
  const auto state = q.options().dtype(at::kUInt64);
  return {output, logsumexp, Tensor(), Tensor(), q.size(2), k.size(2), at::empty({2}, state), at::empty({}, state), at::empty({0}, q.options())};
}
std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&,
                                                  const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double, bool, const Tensor&,
                                                  const Tensor&, std::optional<double>) {
  const Tensor dq = by_head(q, q.size(2), q.size(3)), dk = by_head(k, k.size(2), k.size(3)), dv = by_head(v, v.size(2), v.size(3));
  const int64_t rows = round_up(q.size(2), 128), width = round_up(q.size(3), q.size(3) <= 128 ? 32 : 64);
  const Tensor row_sums = floats(q, {q.size(0), q.size(1), rows}), dq_sums = floats(q, {q.size(0), rows, q.size(1), width});
  return {dq, dk, dv};
}

FlashResult cudnn_attention(const Tensor& q, const Tensor& k, const Tensor& v, MaybeTensor, bool, double, bool, bool, std::optional<double>) {
  const Tensor output = by_head(q, q.size(2), v.size(3)), logsumexp = floats(q, {q.size(0), q.size(1), q.size(2), 1});
  const auto state = q.options().dtype(at::kLong);
  return {output, logsumexp, Tensor(), Tensor(), q.size(2), k.size(2), at::empty({}, state), at::empty({}, state), Tensor()};
}
std::tuple<Tensor, Tensor, Tensor> cudnn_attention_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                                                            const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                            const Tensor&, c10::SymInt, c10::SymInt, double, bool, std::optional<double>) {
  return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor&, const Tensor& v, MaybeTensor, bool logsumexp, double, bool,
                                                     std::optional<double>) {
  const Tensor output = by_head(q, q.size(2), v.size(3));
  const Tensor sums = floats(q, {q.size(0), q.size(1), logsumexp ? round_up(q.size(2), 32) : 0});
  // Seed and offset stay on the CPU.
  return {output, sums, at::empty({}, at::kLong), at::empty({}, at::kLong)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
                                                              const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                                                              std::array<bool, 4> wanted, bool, std::optional<double>) {
  Tensor dq, dk, dv;
  const bool packed = q.size(2) == k.size(2) && q.size(3) == v.size(3) && q.storage().is_alias_of(k.storage()) && q.storage().is_alias_of(v.storage());
  if (packed) {
    // Gradients of a chunked projection come as parts of one block.
    const Tensor block = at::empty({q.size(0), q.size(2), 3, q.size(1), q.size(3)}, q.options());
    dq = block.select(2, 0).transpose(1, 2);
    dk = block.select(2, 1).transpose(1, 2);
    dv = block.select(2, 2).transpose(1, 2);
  } else {
    dq = by_head(q, q.size(2), q.size(3));
    dk = by_head(k, k.size(2), k.size(3));
    dv = by_head(v, v.size(2), v.size(3));
  }
  Tensor dbias;
  if (wanted[3] && bias.defined()) {
    auto sizes = bias.sizes().vec();
    sizes.back() = round_up(sizes.back(), 16);
    dbias = at::empty(sizes, bias.options()).narrow(-1, 0, bias.size(-1));
  }
  const Tensor delta = floats(q, {q.size(0), q.size(1), round_up(q.size(2), 32)});
  return {dq, dk, dv, dbias};
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("view", view);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_local_scalar_dense", item);
  m.impl("index_select", index_select);
  m.impl("where.self", where);
  m.impl("dot", dot);
  for (const char* name : {"max", "min"}) m.impl(name, of_all);
  m.impl("randperm.generator_out", randperm_out);
  m.impl("var.correction", var_or_std);
  m.impl("std.correction", var_or_std);
  m.impl("var_mean.correction", var_mean);
  m.impl("embedding_dense_backward", embedding_backward);
  m.impl("native_layer_norm", layer_norm);
  m.impl("native_layer_norm_backward", layer_norm_backward);
  m.impl("_fused_rms_norm", rms_norm);
  m.impl("_fused_rms_norm_backward", rms_norm_backward);
  m.impl("native_group_norm", group_norm);
  m.impl("native_group_norm_backward", group_norm_backward);
  m.impl("native_batch_norm", batch_norm);
  m.impl("native_batch_norm_backward", batch_norm_backward);
  m.impl("cudnn_batch_norm", cudnn_batch_norm);
  m.impl("cudnn_batch_norm_backward", cudnn_batch_norm_backward);
  m.impl("cudnn_convolution", cudnn_convolution);
  m.impl("_adaptive_avg_pool2d", adaptive_average_pool);
  m.impl("_adaptive_avg_pool2d_backward", adaptive_average_pool_backward);
  m.impl("native_dropout", dropout);
  m.impl("native_dropout_backward", dropout_backward);
  m.impl("_scaled_dot_product_flash_attention", flash);
  m.impl("_scaled_dot_product_flash_attention_backward", flash_backward);
  m.impl("_scaled_dot_product_cudnn_attention", cudnn_attention);
  m.impl("_scaled_dot_product_cudnn_attention_backward", cudnn_attention_backward);
  m.impl("_scaled_dot_product_efficient_attention", efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", efficient_backward);
  for (const char* name : {"relu", "flip", "roll"}) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&like_first>());
  // found_inf stays as it is: nothing ever overflows here.
  for (const char* name : {"relu_", "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_", "_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adam_",
                           "_fused_adam_.tensor_lr", "_fused_adamw_", "_fused_adamw_.tensor_lr", "_fused_adagrad_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_place>());
}

// ---- for the shim ------------------------------------------------------------------------------------------------------------------------------------

extern "C" {

// Puts the device in place; once in the life of a process.
__attribute__((visibility("default"))) char* vramlab_dry_open() {
  return guarded([] {
    at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
    at::native::cudnn_convolution_backward_stub.set_cuda_dispatch_ptr(&cudnn_convolution_backward);
    static Guard guard;
    c10::impl::registerDeviceGuard(at::kCUDA, &guard);
    allocator()->init(1);
    // c10 asks it of libtorch_cuda before it makes a pool of streams.
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    at::setHostAllocator(at::kCUDA, &vramlab_dry_host_allocator);
    // Autograd would run a device's backward pass in a thread of its own, which lets go of the last gradients at some time after the
    // caller has gone on: bytes would differ from run to run. Here it runs in the calling thread, as the CPU's does.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    TORCH_CHECK(at::detail::getCUDAHooks().deviceCount() == 1,
                "somebody has asked libtorch about CUDA already; a dry device must be opened before");
  });
}

// Takes bytes from the allocator as a tensor does: the address; 0 where memory ran out or something else is wrong.
__attribute__((visibility("default"))) uint64_t vramlab_dry_take(uint64_t bytes) {
  try {
    return reinterpret_cast<uint64_t>(allocator()->raw_alloc(bytes));
  } catch (const std::exception&) {
    return 0;
  }
}

// Gives back what vramlab_dry_take took.
__attribute__((visibility("default"))) void vramlab_dry_give(uint64_t address) { allocator()->raw_delete(reinterpret_cast<void*>(address)); }

// Tells each block of each segment that the allocator holds, in order of their addresses: address and size of the segment, address and
// size of the block, the bytes that were asked for (0 where the block is free), and whether the segment is one of the large ones.
__attribute__((visibility("default"))) char* vramlab_dry_blocks(void* taker, void (*take)(void*, const int64_t[6])) {
  return guarded([=] {
    for (const auto& segment : allocator()->snapshot().segments) {
      int64_t offset = 0;
      for (const auto& block : segment.blocks) {
        const int64_t told[6] = {static_cast<int64_t>(segment.address),
                                 static_cast<int64_t>(segment.total_size),
                                 static_cast<int64_t>(segment.address) + offset,
                                 static_cast<int64_t>(block.size),
                                 block.allocated ? static_cast<int64_t>(block.requested_size) : 0,
                                 segment.is_large};
        take(taker, told);
        offset += static_cast<int64_t>(block.size);
      }
    }
  });
}

struct TraceEvent {
  enum Kind : int32_t { kAlloc = 0, kFree = 1, kEmptyCache = 2 };
  int32_t kind;
  uint32_t slot;
  uint64_t bytes;
};

// Plays a trace, whose slots are below `slots` and whose frees follow their allocations, until its end or until memory runs out. Gives
// allocated, its peak, reserved, its peak, inactive split bytes, segments, retries, and the position of the event that failed or -1.
__attribute__((visibility("default"))) char* vramlab_dry_replay(const TraceEvent* events, size_t count, size_t slots, int64_t out[8]) {
  return guarded([&] {
    std::vector<void*> addresses(slots, nullptr);
    int64_t failed = -1;
    for (size_t i = 0; i < count && failed < 0; i++) {
      void*& address = addresses[events[i].slot];
      switch (events[i].kind) {
        case TraceEvent::kAlloc:
          try {
            // PyTorch takes an exbibyte for out of memory before it asks its allocator.
            constexpr uint64_t kExbibyte = 1ull << 60;
            if (events[i].bytes >= kExbibyte)
              failed = static_cast<int64_t>(i);
            else
              address = allocator()->raw_alloc(events[i].bytes);
          } catch (const c10::OutOfMemoryError&) {
            failed = static_cast<int64_t>(i);
          }
          break;
        case TraceEvent::kFree:
          if (address) allocator()->raw_delete(address);
          address = nullptr;
          break;
        default:
          allocator()->emptyCache();
      }
    }
    const auto stats = allocator()->getDeviceStats(0);
    const int64_t values[8] = {stats.allocated_bytes[0].current, stats.allocated_bytes[0].peak,     stats.reserved_bytes[0].current,
                               stats.reserved_bytes[0].peak,     stats.inactive_split_bytes[0].current, stats.segment[0].current,
                               stats.num_alloc_retries,          failed};
    std::copy(std::begin(values), std::end(values), out);
    for (void* address : addresses) {
      if (address) allocator()->raw_delete(address);
    }
  });
}
}
