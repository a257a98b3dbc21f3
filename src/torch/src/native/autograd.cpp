// What tch lacks of autograd: backward passes as it cannot ask for them, what one under way was asked for, and inference mode.
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>

#include "../../../sim/native/guarded.h"

extern "C" {
// Runs a backward pass from a tensor of one element and keeps the graph for another one.
char* vl_backward_keeping_graph(const at::Tensor* tensor) {
  return guarded([&] { tensor->backward(/*gradient=*/{}, /*retain_graph=*/true); });
}

// Whether the backward pass that calls on this thread gives every leaf its gradient, and was not asked for those of some tensors only.
int32_t vl_backward_is_whole() { return torch::autograd::Engine::get_default_engine().is_checkpoint_valid(); }

// Begins a region of inference mode on this thread and gives what ends it.
char* vl_inference_enter(c10::InferenceMode** out) {
  return guarded([&] { *out = new c10::InferenceMode(true); });
}

// Regions end on the thread that began them, in reverse order: the guard puts back the dispatch keys that it found.
void vl_inference_leave(c10::InferenceMode* region) { delete region; }

int32_t vl_is_inference_tensor(const at::Tensor* tensor) { return tensor->is_inference(); }
}
