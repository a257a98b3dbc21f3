// cuDNN's operators where PyTorch's own cannot run: results and the copies around them as in PyTorch's Conv_v8.cpp, ConvShared.cpp,
// BatchNorm.cpp and MHA.cpp. What cuDNN takes for itself, its workspace, is assumed to be nothing. Convolutions are PyTorch's own where cuDNN
// answers without a GPU (../cudnn.cpp).
#include "kernels.h"
#include <ATen/OpMathType.h>
#include <ATen/native/ConvUtils.h>
#include <dlfcn.h>

namespace vramlab::dry {
namespace {

// ---- convolution -------------------------------------------------------------------------------------------------------------------------

Tensor convolution(const Tensor& x, const Tensor& weight, SymInts padding, SymInts stride, SymInts dilation, c10::SymInt, bool, bool, bool) {
  std::vector<int64_t> sizes = {x.size(0), weight.size(0)};
  for (int64_t i = 2; i < x.dim(); i++) {
    const auto at = static_cast<size_t>(i - 2);
    const int64_t kernel = dilation[at].expect_int() * (weight.size(i) - 1) + 1;
    sizes.push_back((x.size(i) + 2 * padding[at].expect_int() - kernel) / stride[at].expect_int() + 1);
  }
  const auto format = at::native::cudnn_conv_suggest_memory_format(x, weight);
  const Tensor y = at::empty(sizes, x.options().memory_format(format));
  const Tensor contiguous_weight = weight.contiguous(format), contiguous_x = x.contiguous(format);
  return y;
}

// As dense as convolution's gradient for its input.
Tensor transposed(const Tensor& x, const Tensor& weight, SymInts padding, SymInts output_padding, SymInts stride, SymInts dilation,
                  c10::SymInt groups, bool, bool, bool) {
  std::vector<int64_t> sizes = {x.size(0), weight.size(1) * groups.expect_int()};
  for (int64_t i = 2; i < x.dim(); i++) {
    const auto at = static_cast<size_t>(i - 2);
    sizes.push_back((x.size(i) - 1) * stride[at].expect_int() - 2 * padding[at].expect_int() +
                    dilation[at].expect_int() * (weight.size(i) - 1) + output_padding[at].expect_int() + 1);
  }
  const auto format = at::native::cudnn_conv_suggest_memory_format(x, weight);
  const Tensor y = at::empty(sizes, x.options().memory_format(format));
  const Tensor contiguous_weight = weight.contiguous(format), contiguous_x = x.contiguous(format);
  return y;
}

Tensor for_input(const Tensor& x, const Tensor& gradient, const Tensor& weight) {
  const auto format = at::native::cudnn_conv_suggest_memory_format(gradient, weight);
  const Tensor dx = at::empty(x.sizes(), gradient.options().memory_format(format));
  const Tensor contiguous_weight = weight.contiguous(format), contiguous_gradient = gradient.contiguous(format);
  return dx;
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
  const Tensor dx = wanted[0] ? for_input(x, formatted, weight) : Tensor();
  return {dx, wanted[1] ? for_weight(x, formatted, weight) : Tensor()};
}

std::tuple<Tensor, Tensor> transposed_backward(const Tensor& x, const Tensor& gradient, const Tensor& weight, IntArrayRef padding,
                                               IntArrayRef, IntArrayRef stride, IntArrayRef dilation, int64_t groups, bool, bool, bool,
                                               std::array<bool, 2> wanted) {
  const Tensor formatted = gradient.contiguous(x.suggest_memory_format());
  const auto symbolic = [](IntArrayRef values) { return c10::fromIntArrayRefSlow(values); };
  const Tensor dx = wanted[0] ? convolution(formatted, weight, symbolic(padding), symbolic(stride), symbolic(dilation), groups, false, false, false)
                              : Tensor();
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

// ---- recurrent networks ------------------------------------------------------------------------------------------------------------------

// All weights in one buffer, of which they become views; cuDNN's own layout is taken to be theirs, one after the other.
Tensor flatten_weights(at::TensorList weights, int64_t, c10::SymInt, int64_t, c10::SymInt, c10::SymInt, int64_t, bool, bool) {
  int64_t total = 0;
  for (const Tensor& weight : weights) total += weight.numel();
  const Tensor buffer = at::zeros({total}, weights[0].options());
  int64_t begin = 0;
  for (const Tensor& weight : weights) {
    weight.set_(buffer.storage(), begin, weight.sizes(), weight.strides());
    begin += weight.numel();
  }
  return buffer;
}

using Tensors = at::TensorList;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> recurrent(const Tensor& x, Tensors each, int64_t, MaybeTensor flat, const Tensor& hx,
                                                             MaybeTensor cx, int64_t, c10::SymInt hidden, c10::SymInt projection, int64_t,
                                                             bool batch_first, double, bool, bool both_ways, SymInts batches, MaybeTensor) {
  const int64_t width = (projection != 0 ? projection : hidden).expect_int() * (both_ways ? 2 : 1);
  // Packed sequences lie one after the other; others are computed with the batch second.
  const bool turned = batch_first && batches.empty();
  const Tensor input = (turned ? x.transpose(0, 1) : x).contiguous();
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.back() = width;
  const Tensor y = at::empty(sizes, x.options());
  const Tensor hy = at::empty(hx.sizes(), hx.options());
  const Tensor cy = cx && cx->defined() ? at::empty(cx->sizes(), cx->options()) : at::empty({0}, hx.options());
  const Tensor reserve = at::empty({0}, x.options().dtype(at::kByte));
  // Weights that are not flat yet are copied into one buffer.
  int64_t total = 0;
  for (const Tensor& weight : each) total += weight.numel();
  const Tensor weights = flat && flat->defined() ? *flat : at::empty({total}, x.options());
  return {turned ? y.transpose(0, 1) : y, hy, cy, reserve, weights};
}

std::tuple<Tensor, Tensor, Tensor, std::vector<Tensor>> recurrent_backward(const Tensor& x, Tensors weights, int64_t, const Tensor& buffer,
                                                                           const Tensor& hx, MaybeTensor cx, const Tensor&, MaybeTensor,
                                                                           MaybeTensor, MaybeTensor, int64_t, c10::SymInt, c10::SymInt,
                                                                           int64_t, bool batch_first, double, bool, bool, SymInts batches,
                                                                           MaybeTensor, const Tensor&, std::array<bool, 4> wanted) {
  const bool turned = batch_first && batches.empty();
  const Tensor input = (turned ? x.transpose(0, 1) : x).contiguous();
  const Tensor dx = at::empty(input.sizes(), x.options());
  const Tensor dhx = at::empty(hx.sizes(), hx.options());
  const Tensor dcx = cx && cx->defined() ? at::empty(cx->sizes(), cx->options()) : Tensor();
  std::vector<Tensor> dw;
  if (wanted[3]) {
    int64_t begin = 0;
    const Tensor all = at::zeros(buffer.sizes(), buffer.options());
    for (const Tensor& weight : weights) {
      dw.push_back(all.narrow(0, begin, weight.numel()).view(weight.sizes()));
      begin += weight.numel();
    }
  }
  return {turned ? dx.transpose(0, 1) : dx, dhx, dcx, dw};
}

Tensor dropout_state(double, bool, int64_t, std::optional<at::ScalarType> type, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pinned) {
  return at::empty({0}, at::TensorOptions().dtype(type).layout(layout).device(device).pinned_memory(pinned));
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
  if (answers && answers()) {
    // PyTorch's own: cuDNN tells their workspaces (../cudnn.cpp).
    mark_registered("cudnn_convolution");
    mark_registered("cudnn_convolution_transpose");
  } else {
    add(m, "cudnn_convolution", convolution);
    add(m, "cudnn_convolution_transpose", transposed);
    at::native::cudnn_convolution_backward_stub.set_cuda_dispatch_ptr(&convolution_backward);
    at::native::cudnn_convolution_transpose_backward_stub.set_cuda_dispatch_ptr(&transposed_backward);
  }
  add(m, "cudnn_batch_norm", batch_norm);
  add(m, "cudnn_batch_norm_backward", batch_norm_backward);
  add(m, "_cudnn_rnn_flatten_weight", flatten_weights);
  add(m, "_cudnn_rnn", recurrent);
  add(m, "_cudnn_rnn_backward", recurrent_backward);
  add(m, "_cudnn_init_dropout_state", dropout_state);
  add(m, "_scaled_dot_product_cudnn_attention", attention);
  add(m, "_scaled_dot_product_cudnn_attention_backward", attention_backward);
}

void register_kernels(torch::Library& m) {
  register_values(m);
  register_cudnn(m);
  register_libraries(m);
  check_all_registered();
}

}  // namespace vramlab::dry
