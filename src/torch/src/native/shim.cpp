// What tch lacks, from libtorch's own C++ interface and without CUDA headers: CUDA's memory meter, device events, autocast state and
// activation checkpointing; and the door to the simulated GPU. No exception leaves this file: each function returns nullptr, or a message
// that `vl_free_message` frees.
#include "../../../sim/native/guarded.h"
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/version.h>
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- activation checkpointing ------------------------------------------------------------------------------------------------------

// A closure of Rust: reads `inputs`, appends its results with vl_push_output or its error with vl_push_error.
struct Results {
  torch::autograd::variable_list outputs;
  std::string error;
};
using Call = void (*)(void* closure, const at::Tensor* const* inputs, size_t count, Results* results);
using Drop = void (*)(void* closure);

struct Segment final : c10::intrusive_ptr_target {
  void* closure;
  Call call;
  Drop drop;
  Segment(void* closure, Call call, Drop drop) : closure(closure), call(call), drop(drop) {}
  ~Segment() override { drop(closure); }

  torch::autograd::variable_list run(const torch::autograd::variable_list& inputs) const {
    std::vector<const at::Tensor*> pointers;
    for (const auto& input : inputs) pointers.push_back(&input);
    Results results;
    call(closure, pointers.data(), pointers.size(), &results);
    TORCH_CHECK(results.error.empty(), results.error);
    return std::move(results.outputs);
  }
};

// The random number generators that a segment can draw from: the CPU's, and those of the devices of its inputs.
struct RandomState {
  std::vector<std::pair<at::Generator, at::Tensor>> states;

  // The tensors, to be saved for the backward pass, which frees them.
  variable_list tensors() const {
    variable_list tensors;
    for (const auto& [generator, state] : states) tensors.push_back(state);
    return tensors;
  }

  static RandomState from(const std::vector<c10::Device>& devices, variable_list::const_iterator tensors) {
    RandomState state;
    for (const auto& device : devices) state.states.emplace_back(at::globalContext().defaultGenerator(device), *tensors++);
    return state;
  }

  static RandomState of(const std::vector<c10::Device>& devices) {
    RandomState saved;
    for (const auto& device : devices) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      std::lock_guard<std::mutex> lock(generator.mutex());
      saved.states.emplace_back(generator, generator.get_state());
    }
    return saved;
  }

  void restore() {
    for (auto& [generator, state] : states) {
      std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  }
};

constexpr std::array<at::DeviceType, 2> kAutocastDevices = {at::kCPU, at::kCUDA};

struct AutocastState {
  std::array<bool, 2> enabled;
  std::array<at::ScalarType, 2> dtype;
  bool cache;

  static AutocastState now() {
    AutocastState state{};
    for (size_t i = 0; i < kAutocastDevices.size(); i++) {
      state.enabled[i] = at::autocast::is_autocast_enabled(kAutocastDevices[i]);
      state.dtype[i] = at::autocast::get_autocast_dtype(kAutocastDevices[i]);
    }
    state.cache = at::autocast::is_autocast_cache_enabled();
    return state;
  }

  void apply() const {
    for (size_t i = 0; i < kAutocastDevices.size(); i++) {
      at::autocast::set_autocast_enabled(kAutocastDevices[i], enabled[i]);
      at::autocast::set_autocast_dtype(kAutocastDevices[i], dtype[i]);
    }
    at::autocast::set_autocast_cache_enabled(cache);
  }
};

// What the recomputation has to see again, put back on leaving the scope also by an exception.
struct Replay {
  RandomState outer_random;
  AutocastState outer_autocast = AutocastState::now();

  Replay(std::optional<RandomState> random, const AutocastState& autocast, const std::vector<c10::Device>& devices) {
    if (random) {
      outer_random = RandomState::of(devices);
      random->restore();
    }
    at::autocast::increment_nesting();
    autocast.apply();
  }
  ~Replay() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    outer_autocast.apply();
    outer_random.restore();
  }
};

struct Saved final : torch::CustomClassHolder {
  c10::intrusive_ptr<Segment> segment;
  std::vector<c10::Device> devices;
  bool preserve_random;
  AutocastState autocast;
};

// Begins a backward pass with gradients that nobody but the pass itself holds, so that they are freed when they are used up, as in a
// pass that goes through the segment without a stop.
struct Gradients final : torch::autograd::Node {
  variable_list given;
  Gradients(torch::autograd::edge_list&& into, variable_list&& given) : Node(std::move(into)), given(std::move(given)) {}
  variable_list apply(variable_list&&) override { return std::move(given); }

  static void pass_on(torch::autograd::edge_list&& into, variable_list&& given) {
    const std::shared_ptr<Gradients> begin(new Gradients(std::move(into), std::move(given)), torch::autograd::deleteNode);
    const auto nothing = at::empty({0}, at::kFloat);
    begin->add_input_metadata(nothing);
    torch::autograd::Engine::get_default_engine().execute({{begin, 0}}, {nothing}, false, false, true);
  }
};

struct Checkpoint final : torch::autograd::Function<Checkpoint> {
  // `anchor` requires a gradient, so that backward is called, and the parameters inside get theirs, even where no input needs one.
  static variable_list forward(AutogradContext* context, const at::Tensor& /*anchor*/, at::TensorList inputs,
                               c10::intrusive_ptr<Segment> segment, bool preserve_random) {
    auto saved = c10::make_intrusive<Saved>();
    saved->segment = std::move(segment);
    saved->devices = {c10::Device(at::kCPU)};
    for (const auto& input : inputs) {
      if (!input.is_cpu() && std::count(saved->devices.begin(), saved->devices.end(), input.device()) == 0)
        saved->devices.push_back(input.device());
    }
    saved->preserve_random = preserve_random;
    saved->autocast = AutocastState::now();
    variable_list kept = inputs.vec();
    if (preserve_random) {
      for (auto& state : RandomState::of(saved->devices).tensors()) kept.push_back(std::move(state));
    }
    context->save_for_backward(std::move(kept));
    context->saved_data["saved"] = c10::IValue::make_capsule(saved);
    context->set_materialize_grads(false);
    return saved->segment->run(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    auto* saved = static_cast<Saved*>(context->saved_data["saved"].toCapsule().get());
    variable_list inputs, seeds;
    // Edges into the graph, which do not keep the outputs themselves alive.
    torch::autograd::edge_list roots;
    {
      const variable_list kept = context->get_saved_variables();
      const auto states = kept.end() - static_cast<std::ptrdiff_t>(saved->preserve_random ? saved->devices.size() : 0);
      for (auto input = kept.begin(); input != states; ++input) inputs.push_back(input->detach().requires_grad_(input->requires_grad()));
      std::optional<RandomState> random;
      if (saved->preserve_random) random = RandomState::from(saved->devices, states);
      Replay replay(std::move(random), saved->autocast, saved->devices);
      at::AutoGradMode grad(true);
      variable_list outputs = saved->segment->run(inputs);
      TORCH_CHECK(outputs.size() == gradients.size(), "a checkpointed segment gave ", gradients.size(), " outputs at first and ",
                  outputs.size(), " when it was run again");
      for (size_t i = 0; i < outputs.size(); i++) {
        if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
        roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
        seeds.push_back(std::move(gradients[i]));
      }
    }
    gradients.clear();
    if (!roots.empty()) Gradients::pass_on(std::move(roots), std::move(seeds));
    variable_list result = {at::Tensor()};
    for (const auto& input : inputs) result.push_back(input.grad());
    result.emplace_back();
    result.emplace_back();
    return result;
  }
};

// ---- a tensor that is kept for the backward pass ------------------------------------------------------------------------------------

struct Keeping final : torch::autograd::Function<Keeping> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input) {
    context->save_for_backward({input});
    return input.alias();
  }
  static variable_list backward(AutogradContext*, variable_list& gradients) { return {std::move(gradients[0])}; }
};

// ---- the simulated GPU ------------------------------------------------------------------------------------------------------------------

// Handle of the backend, once it is open.
void* dry_backend = nullptr;

bool dry_runtime_is_loaded() { return dlsym(RTLD_DEFAULT, "vramlab_dry_memory") != nullptr; }

char* loader_message(const char* what) {
  const char* message = dlerror();
  return strdup(message ? message : what);
}

template <typename Function>
Function* dry_function(const char* name) {
  return dry_backend ? reinterpret_cast<Function*>(dlsym(dry_backend, name)) : nullptr;
}

}  // namespace

extern "C" {

void vl_free_message(char* message) { std::free(message); }

// ---- what is loaded ------------------------------------------------------------------------------------------------------------------

const char* vl_compiled_version() { return TORCH_VERSION; }

// Path of the libtorch that this process runs on; it may be another one than the one it was compiled with.
const char* vl_loaded_library() {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(&at::autocast::clear_cache), &info) ? info.dli_fname : nullptr;
}

// The linker drops libtorch_cuda (as-needed), and after the first question about CUDA it is too late to load it.
char* vl_load_cuda() {
  if (dry_runtime_is_loaded()) return strdup("this process is a dry one, and a process is dry or real, never both");
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) return nullptr;
  const char* message = dlerror();
  return strdup(message ? message : "libtorch_cuda.so cannot be loaded");
}

// ---- meters --------------------------------------------------------------------------------------------------------------------------

char* vl_cuda_reset_peaks(int32_t device) {
  return guarded([&] { c10::getDeviceAllocator(at::kCUDA)->resetPeakStats(static_cast<c10::DeviceIndex>(device)); });
}

// Current and peak of requested, allocated, reserved; current inactive split; retries; out-of-memory errors; free and total bytes.
char* vl_cuda_meter_read(int32_t device, int64_t out[11]) {
  return guarded([&] {
    auto* allocator = c10::getDeviceAllocator(at::kCUDA);
    const auto index = static_cast<c10::DeviceIndex>(device);
    const auto stats = allocator->getDeviceStats(index);
    const auto& requested = stats.requested_bytes[0];
    const auto& allocated = stats.allocated_bytes[0];
    const auto& reserved = stats.reserved_bytes[0];
    const auto [free_bytes, total_bytes] = allocator->getMemoryInfo(index);
    const int64_t values[11] = {requested.current,
                                requested.peak,
                                allocated.current,
                                allocated.peak,
                                reserved.current,
                                reserved.peak,
                                stats.inactive_split_bytes[0].current,
                                stats.num_alloc_retries,
                                stats.num_ooms,
                                static_cast<int64_t>(free_bytes),
                                static_cast<int64_t>(total_bytes)};
    std::copy(std::begin(values), std::end(values), out);
  });
}

// Memory of the device that PyTorch's allocator knows nothing of, as another process or library would take it. The runtime is looked up
// in the process: the real one comes with libtorch_cuda, the simulated one was preloaded.
char* vl_outside_allocate(int64_t bytes, void** out) {
  auto* allocate = reinterpret_cast<int (*)(void**, size_t)>(dlsym(RTLD_DEFAULT, "cudaMalloc"));
  auto* forget_error = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "cudaGetLastError"));
  if (!allocate || !forget_error) return strdup("this process has no CUDA runtime");
  const int error = allocate(out, static_cast<size_t>(bytes));
  if (error == 0) return nullptr;
  forget_error();
  return guarded([&] { TORCH_CHECK(false, "CUDA out of memory outside PyTorch: cudaMalloc of ", bytes, " bytes gave error ", error); });
}

void vl_outside_free(void* memory) {
  if (auto* release = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "cudaFree"))) release(memory);
}

char* vl_cuda_empty_cache() {
  return guarded([] { c10::getDeviceAllocator(at::kCUDA)->emptyCache(); });
}

// Gives back the workspaces that PyTorch keeps for cuBLAS, for each thread and stream that has multiplied; libtorch_cuda exports it.
char* vl_cuda_clear_workspaces() {
  auto* clear = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "_ZN2at4cuda21clearCublasWorkspacesEv"));
  return clear ? guarded([=] { clear(); }) : strdup("libtorch's CUDA half has no cuBLAS workspaces to clear");
}

static char* open_dry(const char* backend) {
  static bool open = false;
  if (open) return nullptr;
  if (!dry_runtime_is_loaded()) return strdup("this process was not started as a dry one");
  // As on a GPU, but that the CUDA runtime and cuBLAS under it are the preloaded ones; symbols are looked up when they are called.
  if (!dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_GLOBAL)) return loader_message("libtorch_cuda.so cannot be loaded");
  dry_backend = dlopen(backend, RTLD_NOW | RTLD_LOCAL);
  if (!dry_backend) return loader_message("the simulated GPU's backend cannot be loaded");
  char* message = dry_function<char*()>("vramlab_dry_open")();
  if (!message) message = dry_function<char*()>("vramlab_dry_wait_for_threads")();
  open = message == nullptr;
  return message;
}

// Opens the simulated GPU in a process that was started with its runtime preloaded. c10 reads the allocator's settings while it is loaded,
// and throws from there what it has to say of them.
char* vl_dry_open(const char* backend) {
  char* refusal = nullptr;
  char* exception = guarded([&] { refusal = open_dry(backend); });
  return exception ? exception : refusal;
}

// Takes bytes from the simulated GPU's allocator, or gives them back; see vramlab_dry_take and vramlab_dry_give.
uint64_t vl_dry_take(uint64_t bytes) {
  static auto* const take = dry_function<uint64_t(uint64_t)>("vramlab_dry_take");
  return take ? take(bytes) : 0;
}
void vl_dry_give(uint64_t address) {
  static auto* const give = dry_function<void(uint64_t)>("vramlab_dry_give");
  if (give) give(address);
}

// Gives back cuBLAS's workspaces on the simulated GPU; see vramlab_dry_clear_workspaces.
char* vl_dry_clear_workspaces() {
  auto* clear = dry_function<char*()>("vramlab_dry_clear_workspaces");
  return clear ? clear() : strdup("the simulated GPU is not open");
}

// Tells where cuBLAS's workspaces are on the simulated GPU; see vramlab_dry_workspaces.
char* vl_dry_workspaces(void* taker, void (*take)(void*, const int64_t*)) {
  auto* workspaces = dry_function<char*(void*, void (*)(void*, const int64_t*))>("vramlab_dry_workspaces");
  return workspaces ? workspaces(taker, take) : strdup("the simulated GPU is not open");
}

// Tells the blocks of the simulated GPU's allocator; see vramlab_dry_blocks.
char* vl_dry_blocks(void* taker, void (*take)(void*, const int64_t*)) {
  auto* blocks = dry_function<char*(void*, void (*)(void*, const int64_t*))>("vramlab_dry_blocks");
  return blocks ? blocks(taker, take) : strdup("the simulated GPU is not open");
}

// ---- device events -------------------------------------------------------------------------------------------------------------------

// BACKEND_DEFAULT asks for an event that takes the time; PYTORCH_DEFAULT would switch timing off.
char* vl_event_record(int32_t device, c10::Event** out) {
  return guarded([&] {
    const c10::Device where(at::kCUDA, static_cast<c10::DeviceIndex>(device));
    auto event = std::make_unique<c10::Event>(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    event->record(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(where));
    *out = event.release();
  });
}

char* vl_event_elapsed(c10::Event* start, c10::Event* end, double* milliseconds) {
  return guarded([&] {
    end->synchronize();
    *milliseconds = start->elapsedTime(*end);
  });
}

void vl_event_free(c10::Event* event) { delete event; }

// ---- autocast ------------------------------------------------------------------------------------------------------------------------

// Enters autocast for one device type (0 CPU, 1 CUDA) and gives back what was set there before.
char* vl_autocast_enter(int32_t device, int32_t enabled, int8_t dtype, int32_t* old_enabled, int8_t* old_dtype) {
  return guarded([&] {
    const auto type = kAutocastDevices.at(device);
    *old_enabled = at::autocast::is_autocast_enabled(type);
    *old_dtype = static_cast<int8_t>(at::autocast::get_autocast_dtype(type));
    at::autocast::set_autocast_enabled(type, enabled != 0);
    at::autocast::set_autocast_dtype(type, static_cast<at::ScalarType>(dtype));
    at::autocast::increment_nesting();
  });
}

char* vl_autocast_leave(int32_t device, int32_t old_enabled, int8_t old_dtype) {
  return guarded([&] {
    const auto type = kAutocastDevices.at(device);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type, old_enabled != 0);
    at::autocast::set_autocast_dtype(type, static_cast<at::ScalarType>(old_dtype));
  });
}

// ---- checkpointing -------------------------------------------------------------------------------------------------------------------

void vl_push_output(Results* results, const at::Tensor* tensor) { results->outputs.push_back(*tensor); }
void vl_push_error(Results* results, const char* message, size_t length) { results->error.assign(message, length); }

// Runs the closure as a checkpointed segment and hands each output, a new at::Tensor that the caller owns, to `take`. The closure
// belongs to the segment from here on, also where this fails.
char* vl_checkpoint(void* closure, Call call, Drop drop, const at::Tensor* const* inputs, size_t count, int32_t preserve_random,
                    void (*take)(void*, at::Tensor*), void* taker) {
  auto segment = c10::make_intrusive<Segment>(closure, call, drop);
  return guarded([&] {
    variable_list tensors;
    for (size_t i = 0; i < count; i++) tensors.push_back(*inputs[i]);
    if (!at::GradMode::is_enabled()) {
      for (auto& output : segment->run(tensors)) take(taker, new at::Tensor(std::move(output)));
      return;
    }
    const auto anchor = at::empty({0}, at::kFloat).requires_grad_(true);
    for (auto& output : Checkpoint::apply(anchor, at::TensorList(tensors), segment, preserve_random != 0))
      take(taker, new at::Tensor(std::move(output)));
  });
}

// The same tensor, which the graph holds until its gradient is there.
char* vl_keep(const at::Tensor* tensor, at::Tensor** out) {
  return guarded([&] { *out = new at::Tensor(at::GradMode::is_enabled() ? Keeping::apply(*tensor) : *tensor); });
}
}
