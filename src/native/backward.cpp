// Backward passes as tch cannot ask for them, and what one under way was asked for.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/engine.h>

#include "guarded.h"

extern "C" {
// Runs a backward pass from a tensor of one element and keeps the graph for another one.
char* vl_backward_keeping_graph(const at::Tensor* tensor) {
  return guarded([&] { tensor->backward(/*gradient=*/{}, /*retain_graph=*/true); });
}

// Whether the backward pass that calls on this thread gives every leaf its gradient, and was not asked for those of some tensors only.
int32_t vl_backward_is_whole() { return torch::autograd::Engine::get_default_engine().is_checkpoint_valid(); }
}
