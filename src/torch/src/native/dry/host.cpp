// The simulated GPU of a Rust process. libtorch_cuda is loaded, over the simulated runtime of runtime.cpp: its operators make each
// allocation that they make on a GPU, and launch nothing. The few that cannot run so have a kernel in kernels/.
#include "../../../../sim/native/guarded.h"
#include "../../../../sim/native/kernels/kernels.h"
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>


namespace {

using torch::autograd::edge_list;
using torch::autograd::variable_list;

// Takes its place in the queue of the device's thread and does nothing.
struct Last final : torch::autograd::Node {
  variable_list apply(variable_list&&) override { return {}; }
};

// Autograd runs a device's backward pass in a thread of its own, as on a GPU, which lets go of the last gradients at some time after the
// caller has gone on: bytes would differ from run to run. Here the caller waits until that thread has come to what stands behind.
struct WaitingEngine final : torch::autograd::Engine {
  variable_list execute(const edge_list& roots, const variable_list& inputs, bool keep_graph, bool create_graph, bool accumulate_grad,
                        const edge_list& outputs) override {
    variable_list results = Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    const bool within_another = torch::autograd::get_current_graph_task_id() != -1;
    const bool on_device = !inputs.empty() && inputs[0].defined() && inputs[0].is_cuda();
    if (!within_another && on_device) {
      const at::Tensor nothing = at::empty({0}, inputs[0].options().requires_grad(false));
      auto last = std::make_shared<Last>();
      last->add_input_metadata(nothing);
      Engine::execute({torch::autograd::Edge(last, 0)}, {nothing}, false, false, true, {});
    }
    return results;
  }
};

torch::autograd::Engine& engine() {
  static auto* const engine = new WaitingEngine;
  return *engine;
}

}  // namespace

// ---- for the shim ------------------------------------------------------------------------------------------------------------------------------------

extern "C" {

// Puts the device in place, once in the life of a process.
__attribute__((visibility("default"))) char* vramlab_dry_open() {
  return guarded([] {
    at::globalContext().lazyInitDevice(at::kCUDA);
    const vramlab::dry::Quiet quiet{};
    vramlab::dry::refuse_shapes_from_values(vramlab::dry::register_kernels());
    TORCH_CHECK(at::detail::getCUDAHooks().deviceCount() == 1,
                "somebody has asked libtorch about CUDA already; a simulated GPU must be opened before");
  });
}

// Makes backward passes end when their threads have let go of everything; for a process without Python, which has its own engine.
__attribute__((visibility("default"))) char* vramlab_dry_wait_for_threads() {
  return guarded([] { torch::autograd::set_default_engine_stub(&engine); });
}
}
