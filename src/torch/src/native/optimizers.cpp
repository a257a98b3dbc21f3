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

struct AdamSettings {
  double rate, beta1, beta2, epsilon, weight_decay;
  int32_t decoupled, amsgrad, maximize;
};
struct SgdSettings {
  double rate, momentum, dampening, weight_decay;
  int32_t nesterov, maximize;
};
struct RmsPropSettings {
  double rate, alpha, epsilon, weight_decay, momentum;
  int32_t centered, maximize;
};

// Parameters, their gradients and their state, in one order.
struct AdamLists {
  Span parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps;
};
struct RmsPropLists {
  Span parameters, gradients, square_avgs, gradient_avgs, momentum_buffers, steps;
};

Tensors list(const Span& span) {
  Tensors tensors;
  tensors.reserve(span.count);
  for (size_t i = 0; i < span.count; i++) tensors.push_back(*span.tensors[i]);
  return tensors;
}

// A number of one element on the device of the tensors that it is applied to; none where there is none.
std::optional<Tensor> scalar_on(const Tensor* scalar, const Tensors& tensors) {
  if (!scalar) return std::nullopt;
  return scalar->reshape({}).to(tensors.front().device(), /*non_blocking=*/true);
}

// The gradients with what comes before the moments: the sign, and weight decay that is part of the gradient.
void prepare_gradients(Tensors& gradients, const Tensors& parameters, bool maximize, double weight_decay) {
  if (maximize) gradients = at::_foreach_neg(gradients);
  if (weight_decay == 0) return;
  if (maximize)
    at::_foreach_add_(gradients, parameters, weight_decay);
  else
    gradients = at::_foreach_add(gradients, parameters, weight_decay);
}

// The counters of foreach stand on the CPU, where the one that is added is made only once.
void count_step(const Tensors& steps) { at::_foreach_add_(steps, at::scalar_tensor(1.0), 1.0); }

struct Loop {
  enum Kind { kSgd, kRmsProp, kAdam, kAdamW } kind;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

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

// ---- fused: one kernel for many tensors, and no temporaries --------------------------------------------------------------------------

char* vl_fused_adam(const AdamLists* lists, const AdamSettings* s, const Tensor* gradient_scale, const Tensor* found_inf) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const Tensors parameters = list(lists->parameters), steps = list(lists->steps);
    const auto scale = scalar_on(gradient_scale, parameters), found = scalar_on(found_inf, parameters);
    at::_foreach_add_(steps, 1);
    const auto kernel = [&](auto&& function) {
      function(parameters, list(lists->gradients), list(lists->exp_avgs), list(lists->exp_avg_sqs), list(lists->max_exp_avg_sqs), steps, s->rate,
               s->beta1, s->beta2, s->weight_decay, s->epsilon, s->amsgrad != 0, s->maximize != 0, scale, found);
    };
    if (s->decoupled)
      kernel([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
    else
      kernel([](const auto&... arguments) { at::_fused_adam_(arguments...); });
    // A step that the kernel skipped is taken back, on the device.
    if (found) at::_foreach_sub_(steps, Tensors(steps.size(), *found));
  });
}

char* vl_fused_sgd(Span parameters, Span gradients, Span momentum_buffers, const SgdSettings* s, int32_t first_step, const Tensor* gradient_scale,
                   const Tensor* found_inf) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const Tensors tensors = list(parameters);
    at::_fused_sgd_(tensors, list(gradients), list(momentum_buffers), s->weight_decay, s->momentum, s->rate, s->dampening, s->nesterov != 0,
                    s->maximize != 0, first_step != 0, scalar_on(gradient_scale, tensors), scalar_on(found_inf, tensors));
  });
}

// ---- foreach: a kernel for each operation over many tensors, with temporaries as large as the parameters -----------------------------

char* vl_foreach_adam(const AdamLists* lists, const AdamSettings* s) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const Tensors parameters = list(lists->parameters), exp_avgs = list(lists->exp_avgs), exp_avg_sqs = list(lists->exp_avg_sqs);
    const Tensors steps = list(lists->steps);
    Tensors gradients = list(lists->gradients);
    count_step(steps);
    prepare_gradients(gradients, parameters, s->maximize != 0, s->decoupled ? 0 : s->weight_decay);
    if (s->decoupled && s->weight_decay != 0) at::_foreach_mul_(parameters, 1 - s->rate * s->weight_decay);
    at::_foreach_lerp_(exp_avgs, gradients, 1 - s->beta1);
    at::_foreach_mul_(exp_avg_sqs, s->beta2);
    at::_foreach_addcmul_(exp_avg_sqs, gradients, gradients, 1 - s->beta2);
    gradients.clear();
    std::vector<at::Scalar> step_sizes, corrections;
    for (const Tensor& step : steps) {
      const double t = step.item<double>();
      step_sizes.emplace_back(-s->rate / (1 - std::pow(s->beta1, t)));
      corrections.emplace_back(std::sqrt(1 - std::pow(s->beta2, t)));
    }
    Tensors denominators;
    if (s->amsgrad) {
      const Tensors largest = list(lists->max_exp_avg_sqs);
      at::_foreach_maximum_(largest, exp_avg_sqs);
      denominators = at::_foreach_sqrt(largest);
    } else {
      denominators = at::_foreach_sqrt(exp_avg_sqs);
    }
    at::_foreach_div_(denominators, corrections);
    at::_foreach_add_(denominators, s->epsilon);
    at::_foreach_addcdiv_(parameters, exp_avgs, denominators, step_sizes);
  });
}

// A momentum buffer that is not there yet is an undefined tensor, and is made here.
char* vl_foreach_sgd(Span parameters, Span gradients, Span momentum_buffers, const SgdSettings* s) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const Tensors tensors = list(parameters);
    Tensors updates = list(gradients);
    prepare_gradients(updates, tensors, s->maximize != 0, s->weight_decay);
    if (s->momentum != 0) {
      Tensors buffers = list(momentum_buffers);
      const bool all = std::all_of(buffers.begin(), buffers.end(), [](const Tensor& buffer) { return buffer.defined(); });
      if (all) {
        at::_foreach_mul_(buffers, s->momentum);
        at::_foreach_add_(buffers, updates, 1 - s->dampening);
      } else {
        for (size_t i = 0; i < buffers.size(); i++) {
          if (buffers[i].defined())
            buffers[i].mul_(s->momentum).add_(updates[i], 1 - s->dampening);
          else
            *momentum_buffers.tensors[i] = buffers[i] = updates[i].detach().clone();
        }
      }
      if (s->nesterov)
        at::_foreach_add_(updates, buffers, s->momentum);
      else
        updates = std::move(buffers);
    }
    at::_foreach_add_(tensors, updates, -s->rate);
  });
}

char* vl_foreach_rmsprop(const RmsPropLists* lists, const RmsPropSettings* s) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    const Tensors parameters = list(lists->parameters), square_avgs = list(lists->square_avgs);
    Tensors gradients = list(lists->gradients);
    count_step(list(lists->steps));
    prepare_gradients(gradients, parameters, s->maximize != 0, s->weight_decay);
    at::_foreach_mul_(square_avgs, s->alpha);
    at::_foreach_addcmul_(square_avgs, gradients, gradients, 1 - s->alpha);
    Tensors averages;
    if (s->centered) {
      const Tensors gradient_avgs = list(lists->gradient_avgs);
      at::_foreach_lerp_(gradient_avgs, gradients, 1 - s->alpha);
      averages = at::_foreach_addcmul(square_avgs, gradient_avgs, gradient_avgs, -1);
      at::_foreach_sqrt_(averages);
    } else {
      averages = at::_foreach_sqrt(square_avgs);
    }
    at::_foreach_add_(averages, s->epsilon);
    if (s->momentum > 0) {
      const Tensors buffers = list(lists->momentum_buffers);
      at::_foreach_mul_(buffers, s->momentum);
      at::_foreach_addcdiv_(buffers, gradients, averages);
      at::_foreach_add_(parameters, buffers, -s->rate);
    } else {
      at::_foreach_addcdiv_(parameters, gradients, averages, -s->rate);
    }
  });
}

// ---- libtorch's own optimizers -----------------------------------------------------------------------------------------------------------

char* vl_loop_sgd(Span parameters, const SgdSettings* s, Loop** out) {
  return guarded([&] {
    const auto options =
        torch::optim::SGDOptions(s->rate).momentum(s->momentum).dampening(s->dampening).weight_decay(s->weight_decay).nesterov(s->nesterov != 0);
    *out = new Loop{Loop::kSgd, std::make_unique<torch::optim::SGD>(list(parameters), options)};
  });
}

char* vl_loop_rmsprop(Span parameters, const RmsPropSettings* s, Loop** out) {
  return guarded([&] {
    const auto options = torch::optim::RMSpropOptions(s->rate)
                             .alpha(s->alpha)
                             .eps(s->epsilon)
                             .weight_decay(s->weight_decay)
                             .momentum(s->momentum)
                             .centered(s->centered != 0);
    *out = new Loop{Loop::kRmsProp, std::make_unique<torch::optim::RMSprop>(list(parameters), options)};
  });
}

char* vl_loop_adam(Span parameters, const AdamSettings* s, Loop** out) {
  return guarded([&] {
    const auto set = [&](auto options) {
      return options.betas(std::make_tuple(s->beta1, s->beta2)).eps(s->epsilon).weight_decay(s->weight_decay).amsgrad(s->amsgrad != 0);
    };
    if (s->decoupled)
      *out = new Loop{Loop::kAdamW, std::make_unique<torch::optim::AdamW>(list(parameters), set(torch::optim::AdamWOptions(s->rate)))};
    else
      *out = new Loop{Loop::kAdam, std::make_unique<torch::optim::Adam>(list(parameters), set(torch::optim::AdamOptions(s->rate)))};
  });
}

char* vl_loop_step(Loop* loop) {
  return guarded([&] { loop->optimizer->step(); });
}

char* vl_loop_set_rate(Loop* loop, double rate) {
  return guarded([&] {
    for (auto& group : loop->optimizer->param_groups()) group.options().set_lr(rate);
  });
}

// Tells each tensor of a parameter's state under PyTorch's name for it, as a new handle that belongs to the taker, and the number of steps
// as a number without tensor; nothing where the parameter has no state.
char* vl_loop_state(const Loop* loop, const Tensor* parameter, void* taker, void (*take)(void*, const char*, Tensor*, int64_t)) {
  return guarded([&] {
    const auto& states = loop->optimizer->state();
    const auto found = states.find(parameter->unsafeGetTensorImpl());
    if (found == states.end()) return;
    const auto tell = [&](const char* name, const Tensor& tensor) {
      if (tensor.defined()) take(taker, name, new Tensor(tensor), 0);
    };
    const auto adam = [&](const auto& state) {
      take(taker, "step", nullptr, state.step());
      tell("exp_avg", state.exp_avg());
      tell("exp_avg_sq", state.exp_avg_sq());
      tell("max_exp_avg_sq", state.max_exp_avg_sq());
    };
    const auto& state = *found->second;
    switch (loop->kind) {
      case Loop::kSgd:
        return tell("momentum_buffer", static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer());
      case Loop::kRmsProp: {
        const auto& own = static_cast<const torch::optim::RMSpropParamState&>(state);
        take(taker, "step", nullptr, own.step());
        tell("square_avg", own.square_avg());
        tell("momentum_buffer", own.momentum_buffer());
        return tell("grad_avg", own.grad_avg());
      }
      case Loop::kAdam:
        return adam(static_cast<const torch::optim::AdamParamState&>(state));
      case Loop::kAdamW:
        return adam(static_cast<const torch::optim::AdamWParamState&>(state));
    }
  });
}

void vl_loop_free(Loop* loop) { delete loop; }
}
