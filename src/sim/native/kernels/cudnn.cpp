// cuDNN's operators where PyTorch's own cannot run: results and the copies around them as in PyTorch's Conv_v8.cpp, ConvShared.cpp,
// BatchNorm.cpp and MHA.cpp. What cuDNN takes for itself, its workspace, is assumed to be nothing. Convolutions and attention are PyTorch's
// own where cuDNN answers without a GPU (../cudnn.cpp).
#include "kernels.h"
#include <ATen/OpMathType.h>
#include <ATen/native/ConvUtils.h>
#include <dlfcn.h>

namespace vramlab::dry {
namespace {

// ---- convolution -------------------------------------------------------------------------------------------------------------------------

// A result, and contiguous copies of what it is made of.
Tensor convolved(const Tensor& x, const Tensor& weight, IntArrayRef sizes) {
  const auto format = at::native::cudnn_conv_suggest_memory_format(x, weight);
  const Tensor y = at::empty(sizes, x.options().memory_format(format));
  const Tensor contiguous_weight = weight.contiguous(format), contiguous_x = x.contiguous(format);
  return y;
}

Tensor convolution(const Tensor& x, const Tensor& weight, SymInts padding, SymInts stride, SymInts dilation, c10::SymInt, bool, bool, bool) {
  return convolved(x, weight, at::native::conv_output_size(x.sizes(), weight.sizes(), C10_AS_INTARRAYREF_SLOW(padding),
                                                           C10_AS_INTARRAYREF_SLOW(stride), C10_AS_INTARRAYREF_SLOW(dilation)));
}

// As dense as convolution's gradient for its input.
Tensor transposed(const Tensor& x, const Tensor& weight, SymInts padding, SymInts output_padding, SymInts stride, SymInts dilation,
                  c10::SymInt groups, bool, bool, bool) {
  return convolved(x, weight, at::native::conv_input_size(x.sizes(), weight.sizes(), C10_AS_INTARRAYREF_SLOW(padding),
                                                          C10_AS_INTARRAYREF_SLOW(output_padding), C10_AS_INTARRAYREF_SLOW(stride),
                                                          C10_AS_INTARRAYREF_SLOW(dilation), groups.expect_int()));
}

Tensor for_weight(const Tensor& x, const Tensor& gradient, const Tensor& weight) {
  const auto format = at::native::cudnn_conv_suggest_memory_format(x, gradient);
  const Tensor contiguous_gradient = gradient.contiguous(format), contiguous_x = x.contiguous(format);
  return at::empty(weight.sizes(), gradient.options().memory_format(format));
}

// Called by the common convolution_backward, which sums the bias's gradient itself.
std::tuple<Tensor, Tensor> convolution_backward(const Tensor& x, const Tensor& gradient, const Tensor& weight, IntArrayRef, IntArrayRef,
                                                IntArrayRef, int64_t, bool, bool, bool, std::array<bool, 2> wanted) {
  const Tensor formatted = gradient.to(x.suggest_memory_format());
  const Tensor dx = wanted[0] ? convolved(formatted, weight, x.sizes()) : Tensor();
  return {dx, wanted[1] ? for_weight(x, formatted, weight) : Tensor()};
}

std::tuple<Tensor, Tensor> transposed_backward(const Tensor& x, const Tensor& gradient, const Tensor& weight, IntArrayRef padding,
                                               IntArrayRef, IntArrayRef stride, IntArrayRef dilation, int64_t, bool, bool, bool,
                                               std::array<bool, 2> wanted) {
  const Tensor formatted = gradient.contiguous(x.suggest_memory_format());
  const auto sizes = at::native::conv_output_size(formatted.sizes(), weight.sizes(), padding, stride, dilation);
  const Tensor dx = wanted[0] ? convolved(formatted, weight, sizes) : Tensor();
  return {dx, wanted[1] ? for_weight(formatted, x, weight) : Tensor()};
}

// ---- batch norm --------------------------------------------------------------------------------------------------------------------------

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm(const Tensor& x, const Tensor& weight, MaybeTensor, MaybeTensor, MaybeTensor, bool train,
                                                      double, double) {
  const Tensor y = at::empty_like(x, x.options(), x.suggest_memory_format());
  const int64_t channels = train ? x.size(1) : 0;
  return {y, at::empty({channels}, weight.options()), at::empty({channels}, weight.options()), at::empty({0}, x.options().dtype(at::kByte))};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor& x, const Tensor& gradient, const Tensor& weight, MaybeTensor, MaybeTensor,
                                                       MaybeTensor, MaybeTensor, double, const Tensor&) {
  const auto format = x.suggest_memory_format();
  const Tensor contiguous_x = x.contiguous(format), contiguous_gradient = gradient.contiguous(format);
  return {at::empty_like(x, x.options(), format), at::empty(weight.sizes(), weight.options()), at::empty(weight.sizes(), weight.options())};
}

// ---- attention ---------------------------------------------------------------------------------------------------------------------------

// Memory in the order batch, sequence, head, width, shown as batch, head, sequence, width.
Tensor by_head(const Tensor& like, int64_t sequence, int64_t width) {
  return at::empty({like.size(0), sequence, like.size(1), width}, like.options()).transpose(1, 2);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& q, const Tensor& k, const Tensor& v, MaybeTensor, bool, double, bool, bool, std::optional<double>) {
  const Tensor output = by_head(q, q.size(2), v.size(3));
  const Tensor sums = at::empty({q.size(0), q.size(1), q.size(2), 1}, q.options().dtype(at::kFloat));
  const auto state = q.options().dtype(at::kLong);
  return {output, sums, Tensor(), Tensor(), q.size(2), k.size(2), at::empty({}, state), at::empty({}, state), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                                                      const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                      c10::SymInt, c10::SymInt, double, bool, std::optional<double>) {
  return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
}

}  // namespace

void register_cudnn(torch::Library& m) {
  auto* const answers = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "vramlab_dry_cudnn"));
  const int version = answers ? answers() : 0;
  if (version) {
    // PyTorch's own: cuDNN tells their workspaces (../cudnn.cpp).
    for (const char* name : {"cudnn_convolution", "cudnn_convolution_transpose", "cudnn_convolution_relu", "cudnn_convolution_add_relu"})
      mark_registered(name);
  } else {
    for (const char* name : {"cudnn_convolution_relu", "cudnn_convolution_add_relu"})
      add(m, name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
    add(m, "cudnn_convolution", convolution);
    add(m, "cudnn_convolution_transpose", transposed);
    at::native::cudnn_convolution_backward_stub.set_cuda_dispatch_ptr(&convolution_backward);
    at::native::cudnn_convolution_transpose_backward_stub.set_cuda_dispatch_ptr(&transposed_backward);
  }
  add(m, "cudnn_batch_norm", batch_norm);
  add(m, "cudnn_batch_norm_backward", batch_norm_backward);
  // PyTorch's own; what they ask cuDNN is answered by ../rnn.cpp and ../cudnn.cpp.
  for (const char* name : {"_cudnn_rnn_flatten_weight", "_cudnn_rnn", "_cudnn_rnn_backward", "_cudnn_init_dropout_state", "_cudnn_ctc_loss",
                           "cudnn_grid_sampler", "cudnn_grid_sampler_backward", "cudnn_affine_grid_generator",
                           "cudnn_affine_grid_generator_backward"})
    mark_registered(name);
  // Older ones were not tried.
  constexpr int kTellsAttention = 91900;
  if (version >= kTellsAttention) {
    mark_registered("_scaled_dot_product_cudnn_attention");
    mark_registered("_scaled_dot_product_cudnn_attention_backward");
  } else {
    add(m, "_scaled_dot_product_cudnn_attention", attention);
    add(m, "_scaled_dot_product_cudnn_attention_backward", attention_backward);
  }
}

torch::Library& register_kernels() {
  static torch::Library m(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  register_values(m);
  register_cudnn(m);
  register_libraries(m);
  check_all_registered();
  return m;
}

}  // namespace vramlab::dry
