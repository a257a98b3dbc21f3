// Optimizers' steps over lists of tensors, which tch does not have: PyTorch's fused kernels, and its foreach form with the temporaries of
// torch/optim/{adam,sgd,rmsprop}.py. And libtorch's own optimizers, which loop over parameters, with a way to read their state.
// No exception leaves this file: each function returns nullptr, or a message that `vl_free_message` frees.
#include "../../../sim/native/guarded.h"
#include <ATen/ATen.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <cmath>
#include <map>
#include <memory>
#include <vector>

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct Span {
  Tensor* const* tensors;
  size_t count;
};

// As Algorithm in optimizers.rs; the settings are PyTorch's defaults.
enum Algorithm : int32_t { kSgd, kMomentum, kRmsProp, kAdam, kAdamW };
constexpr double kMomentumFactor = 0.9, kAlpha = 0.99, kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8, kAdamWDecay = 0.01;

Tensors list(const Span& span) {
  Tensors tensors;
  tensors.reserve(span.count);
  for (size_t i = 0; i < span.count; i++) tensors.push_back(*span.tensors[i]);
  return tensors;
}

// PyTorch's fused kernels: one for many tensors, and no temporaries.
void step_fused(Algorithm algorithm, double rate, const Tensors& parameters, const Tensors& gradients, const std::vector<Tensors>& state) {
  if (algorithm == kSgd || algorithm == kMomentum) {
    // No first step: momentum that begins at zero is the gradient then.
    at::_fused_sgd_(parameters, gradients, algorithm == kSgd ? Tensors() : state[0], /*weight_decay=*/0,
                    algorithm == kSgd ? 0 : kMomentumFactor, rate, /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/false);
    return;
  }
  TORCH_CHECK(algorithm != kRmsProp, "PyTorch has no fused RMSProp");
  const Tensors& steps = state[0];
  at::_foreach_add_(steps, 1);
  const auto kernel = [&](auto&& function, double decay) {
    function(parameters, gradients, state[1], state[2], Tensors(), steps, rate, kBeta1, kBeta2, decay, kEpsilon, /*amsgrad=*/false,
             /*maximize=*/false);
  };
  if (algorithm == kAdamW)
    kernel([](const auto&... arguments) { at::_fused_adamw_(arguments...); }, kAdamWDecay);
  else
    kernel([](const auto&... arguments) { at::_fused_adam_(arguments...); }, 0);
}

// A kernel for each operation over many tensors, with temporaries as large as the parameters.
void step_foreach(Algorithm algorithm, double rate, const Tensors& parameters, const Tensors& gradients, const std::vector<Tensors>& state) {
  if (algorithm == kSgd) return at::_foreach_add_(parameters, gradients, -rate);
  if (algorithm == kMomentum) {
    at::_foreach_mul_(state[0], kMomentumFactor);
    at::_foreach_add_(state[0], gradients);
    return at::_foreach_add_(parameters, state[0], -rate);
  }
  // The counters stand on the CPU, where the one that is added is made only once.
  at::_foreach_add_(state[0], at::scalar_tensor(1.0), 1.0);
  if (algorithm == kRmsProp) {
    const Tensors& squares = state[1];
    at::_foreach_mul_(squares, kAlpha);
    at::_foreach_addcmul_(squares, gradients, gradients, 1 - kAlpha);
    const Tensors averages = at::_foreach_sqrt(squares);
    at::_foreach_add_(averages, kEpsilon);
    return at::_foreach_addcdiv_(parameters, gradients, averages, -rate);
  }
  if (algorithm == kAdamW) at::_foreach_mul_(parameters, 1 - rate * kAdamWDecay);
  at::_foreach_lerp_(state[1], gradients, 1 - kBeta1);
  at::_foreach_mul_(state[2], kBeta2);
  at::_foreach_addcmul_(state[2], gradients, gradients, 1 - kBeta2);
  std::vector<at::Scalar> step_sizes, corrections;
  for (const Tensor& step : state[0]) {
    const double t = step.item<double>();
    step_sizes.emplace_back(-rate / (1 - std::pow(kBeta1, t)));
    corrections.emplace_back(std::sqrt(1 - std::pow(kBeta2, t)));
  }
  const Tensors denominators = at::_foreach_sqrt(state[2]);
  at::_foreach_div_(denominators, corrections);
  at::_foreach_add_(denominators, kEpsilon);
  at::_foreach_addcdiv_(parameters, state[1], denominators, step_sizes);
}

struct Loop {
  Algorithm algorithm;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

std::unique_ptr<torch::optim::Optimizer> loop_of(Algorithm algorithm, double rate, Tensors parameters) {
  namespace optim = torch::optim;
  switch (algorithm) {
    case kSgd:
      return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions(rate));
    case kMomentum:
      return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions(rate).momentum(kMomentumFactor));
    case kRmsProp:
      return std::make_unique<optim::RMSprop>(std::move(parameters), optim::RMSpropOptions(rate));
    case kAdam:
      return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions(rate));
    case kAdamW:
      return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions(rate));
  }
  TORCH_CHECK(false, "no such algorithm");
}

}  // namespace

extern "C" {

// Whether two handles are of one tensor can be told by this alone: an empty tensor has no address.
const void* vl_tensor_identity(const Tensor* tensor) { return tensor->unsafeGetTensorImpl(); }

// The address of each parameter's gradient; 0 where there is none, or one without memory of its own, as a sparse one.
char* vl_gradient_addresses(Span parameters, uint64_t* addresses) {
  return guarded([&] {
    for (size_t i = 0; i < parameters.count; i++) {
      const Tensor& gradient = parameters.tensors[i]->grad();
      const bool has = gradient.defined() && gradient.has_storage();
      addresses[i] = has ? reinterpret_cast<uint64_t>(gradient.const_data_ptr()) : 0;
    }
  });
}

// Frees the gradients, or fills them with zeros.
char* vl_zero_gradients(Span parameters, int32_t to_none) {
  return guarded([&] {
    std::map<std::pair<int64_t, at::ScalarType>, Tensors> groups;
    for (size_t i = 0; i < parameters.count; i++) {
      Tensor& gradient = parameters.tensors[i]->mutable_grad();
      if (!gradient.defined()) continue;
      if (to_none) {
        gradient.reset();
        continue;
      }
      if (gradient.grad_fn())
        gradient.detach_();
      else
        gradient.requires_grad_(false);
      groups[{static_cast<int64_t>(gradient.device().type()) << 8 | gradient.device().index(), gradient.scalar_type()}].push_back(gradient);
    }
    at::NoGradGuard no_grad;
    for (auto& [key, gradients] : groups) at::_foreach_zero_(gradients);
  });
}

// A step with the fused kernel, or with foreach's operations. `state` has a list for each tensor that the algorithm keeps.
char* vl_optimizer_step(Algorithm algorithm, int32_t fused, double rate, Span parameters, Span gradients, const Span* state) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const size_t kept = algorithm == kSgd ? 0 : algorithm == kMomentum ? 1 : algorithm == kRmsProp ? 2 : 3;
    std::vector<Tensors> lists;
    for (size_t i = 0; i < kept; i++) lists.push_back(list(state[i]));
    (fused ? step_fused : step_foreach)(algorithm, rate, list(parameters), list(gradients), lists);
  });
}

// ---- libtorch's own optimizers -----------------------------------------------------------------------------------------------------------

char* vl_loop_new(Algorithm algorithm, double rate, Span parameters, Loop** out) {
  return guarded([&] { *out = new Loop{algorithm, loop_of(algorithm, rate, list(parameters))}; });
}

char* vl_loop_step(Loop* loop) {
  return guarded([&] { loop->optimizer->step(); });
}

// Tells each tensor of a parameter's state under PyTorch's name for it, as a new handle that belongs to the taker; nothing where the
// parameter has no state.
char* vl_loop_state(const Loop* loop, const Tensor* parameter, void* taker, void (*take)(void*, const char*, Tensor*)) {
  return guarded([&] {
    const auto& states = loop->optimizer->state();
    const auto found = states.find(parameter->unsafeGetTensorImpl());
    if (found == states.end()) return;
    const auto tell = [&](const char* name, const Tensor& tensor) {
      if (tensor.defined()) take(taker, name, new Tensor(tensor));
    };
    const auto adam = [&](const auto& state) {
      tell("exp_avg", state.exp_avg());
      tell("exp_avg_sq", state.exp_avg_sq());
    };
    const auto& state = *found->second;
    switch (loop->algorithm) {
      case kSgd:
      case kMomentum:
        return tell("momentum_buffer", static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer());
      case kRmsProp:
        return tell("square_avg", static_cast<const torch::optim::RMSpropParamState&>(state).square_avg());
      case kAdam:
        return adam(static_cast<const torch::optim::AdamParamState&>(state));
      case kAdamW:
        return adam(static_cast<const torch::optim::AdamWParamState&>(state));
    }
  });
}

void vl_loop_free(Loop* loop) { delete loop; }
}
