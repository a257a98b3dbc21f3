// c10d without Python: stores, process groups and DistributedDataParallel's reducer. No exception leaves this file: each function returns
// nullptr, or a message that `vl_free_message` frees.
#define USE_C10D_GLOO
#include "../../../sim/native/guarded.h"
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

namespace {

using Store = c10::intrusive_ptr<c10d::Store>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using BackendType = c10d::ProcessGroup::BackendType;

// ---- one process without communication ---------------------------------------------------------------------------------------------

// A collective that is over when it begins.
struct Done final : c10d::Work {
  std::vector<at::Tensor> tensors;
  explicit Done(std::vector<at::Tensor> tensors) : tensors(std::move(tensors)) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  std::vector<at::Tensor> result() override { return tensors; }
  // The reducer takes the reduced bucket from here.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::vector<c10::Device> devices;
    for (const auto& tensor : tensors)
      if (!tensor.is_cpu() && devices.empty()) devices.push_back(tensor.device());
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    future->markCompleted(at::IValue(tensors));
    return future;
  }
};

// Says what the others would: nothing. Each tensor is left as it is, so a sum over all ranks is this rank's share of it.
struct Alone final : c10d::Backend {
  Alone(int rank, int size) : Backend(rank, size) {}
  const std::string getBackendName() const override { return "alone"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<Done>(tensors);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions&) override {
    return c10::make_intrusive<Done>(tensors);
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    return c10::make_intrusive<Done>(std::vector<at::Tensor>{});
  }
};

Group* grouped(const Store& store, int rank, int size, c10::DeviceType device, BackendType type, c10::intrusive_ptr<c10d::Backend> backend) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setDefaultBackend(type);
  group->setBackend(device, type, std::move(backend));
  return new Group(std::move(group));
}

std::vector<at::Tensor> tensors_of(const at::Tensor* const* tensors, size_t count) {
  std::vector<at::Tensor> list;
  for (size_t i = 0; i < count; i++) list.push_back(*tensors[i]);
  return list;
}

// ---- a reducer on the simulated GPU -------------------------------------------------------------------------------------------------------

bool is_dry() { return dlsym(RTLD_DEFAULT, "vramlab_dry_memory") != nullptr; }

// The reducer sends the order of its new buckets over the device, reads it back and relies on it. A simulated GPU holds no values, and
// there is nobody to send to; so there the buckets are built from the order that this process has, by the same functions.
struct DryReducer final : c10d::Reducer {
  const std::vector<size_t> caps;

  template <typename... Arguments>
  explicit DryReducer(std::vector<size_t> caps, Arguments&&... arguments)
      : c10d::Reducer(std::forward<Arguments>(arguments)...), caps(std::move(caps)) {}

  void rebuild() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ensure_prior_reduction_finished();
    if (!should_rebuild_buckets() || rebuilt_params_.empty()) return;
    auto assigned = c10d::compute_bucket_assignment_by_size(rebuilt_params_, caps, expect_sparse_gradients_, rebuilt_param_indices_);
    auto& buckets = std::get<0>(assigned);
    {
      // What the exchange takes of the device while it runs.
      const auto options = at::device(params_.front().device()).dtype(at::kInt);
      const auto order = at::empty({static_cast<int64_t>(rebuilt_params_.size()) + 1}, options);
      const auto sizes = at::empty({static_cast<int64_t>(buckets.size())}, options);
    }
    has_rebuilt_bucket_ = true;
    rebuilt_params_.clear();
    rebuilt_param_indices_.clear();
    initialize_buckets(std::move(buckets));
  }
};

void rebuild(c10d::Reducer* reducer) {
  if (is_dry())
    static_cast<DryReducer*>(reducer)->rebuild();
  else
    reducer->rebuild_buckets();
}

c10d::TCPStoreOptions tcp_options(uint16_t port, bool listen, int64_t timeout_ms) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = listen;
  options.waitWorkers = false;
  options.timeout = std::chrono::milliseconds(timeout_ms);
  return options;
}

}  // namespace

extern "C" {

// ---- stores ------------------------------------------------------------------------------------------------------------------------

// A key-value store over TCP: serves it where `listen` is set (port 0: one that is free), and is a client of it.
char* vl_store_open(const char* host, uint16_t port, int32_t listen, int64_t timeout_ms, Store** out, uint16_t* out_port) {
  return guarded([&] {
    auto store = c10::make_intrusive<c10d::TCPStore>(host, tcp_options(port, listen != 0, timeout_ms));
    *out_port = store->getPort();
    *out = new Store(std::move(store));
  });
}

// The same store with `prefix` before each key.
char* vl_store_prefixed(const Store* store, const char* prefix, Store** out) {
  return guarded([&] { *out = new Store(c10::make_intrusive<c10d::PrefixStore>(prefix, *store)); });
}

char* vl_store_set(const Store* store, const char* key, const uint8_t* value, size_t length) {
  return guarded([&] { (*store)->set(key, std::vector<uint8_t>(value, value + length)); });
}

// Waits for the key, at most for the store's timeout.
char* vl_store_get(const Store* store, const char* key, void* taker, void (*take)(void*, const uint8_t*, size_t)) {
  return guarded([&] {
    const auto value = (*store)->get(key);
    take(taker, value.data(), value.size());
  });
}

char* vl_store_add(const Store* store, const char* key, int64_t amount, int64_t* out) {
  return guarded([&] { *out = (*store)->add(key, amount); });
}

void vl_store_free(Store* store) { delete store; }

// ---- process groups ------------------------------------------------------------------------------------------------------------------

char* vl_group_alone(int32_t rank, int32_t size, int32_t cuda, Group** out) {
  return guarded([&] {
    *out = grouped(c10::make_intrusive<c10d::HashStore>(), rank, size, cuda ? at::kCUDA : at::kCPU, BackendType::CUSTOM,
                   c10::make_intrusive<Alone>(rank, size));
  });
}

// `host` is the name or address that this process's connections come in by; nullptr for what PyTorch takes: the interface that
// GLOO_SOCKET_IFNAME names, or the address of this machine's name.
char* vl_group_gloo(const Store* store, int32_t rank, int32_t size, const char* host, int64_t timeout_ms, Group** out) {
  return guarded([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout_ms));
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    options->devices.push_back(host                      ? c10d::ProcessGroupGloo::createDeviceForHostname(host)
                               : interface && *interface ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                                         : c10d::ProcessGroupGloo::createDefaultDevice());
    *out = grouped(*store, rank, size, at::kCPU, BackendType::GLOO,
                   c10::make_intrusive<c10d::ProcessGroupGloo>(*store, rank, size, std::move(options)));
  });
}

// From the library that nccl.cpp became; libtorch_cuda must be loaded.
char* vl_group_nccl(const char* library, const Store* store, int32_t rank, int32_t size, int32_t device, int64_t timeout_ms, Group** out) {
  using Make = char*(const Store*, int32_t, int32_t, int32_t, int64_t, c10::intrusive_ptr<c10d::Backend>*);
  static Make* make = nullptr;
  if (!make) {
    if (!dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY)) return strdup("CUDA's half of libtorch is not loaded in this process");
    void* opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
      const char* message = dlerror();
      return strdup(message ? message : "the library for NCCL cannot be loaded");
    }
    make = reinterpret_cast<Make*>(dlsym(opened, "vramlab_nccl_group"));
    if (!make) return strdup("the library for NCCL is not the one that this program was built with");
  }
  char* refusal = nullptr;
  char* exception = guarded([&] {
    c10::intrusive_ptr<c10d::Backend> backend;
    refusal = make(store, rank, size, device, timeout_ms, &backend);
    if (!refusal) *out = grouped(*store, rank, size, at::kCUDA, BackendType::NCCL, std::move(backend));
  });
  return exception ? exception : refusal;
}

void vl_group_free(Group* group) { delete group; }

char* vl_group_barrier(const Group* group) {
  return guarded([&] { (*group)->barrier()->wait(); });
}

// Gives each tensor the values that it has on rank 0, packed into messages of at most `packed_bytes`.
char* vl_group_broadcast(const Group* group, const at::Tensor* const* tensors, size_t count, int64_t packed_bytes) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> list = tensors_of(tensors, count);
    for (auto& tensor : list) tensor = tensor.detach();
    if (!list.empty()) c10d::broadcast_coalesced(*group, list, static_cast<size_t>(packed_bytes), /*rank=*/0);
  });
}

// ---- the reducer ---------------------------------------------------------------------------------------------------------------------

// As torch/nn/parallel/distributed.py builds it where no parameter may go unused: one bucket for each kind and device at first, of the
// size of all its gradients, and the caps at the rebuild.
char* vl_reducer_new(const Group* group, const at::Tensor* const* parameters, size_t count, int64_t cap, int64_t first_cap,
                     int32_t gradient_as_bucket_view, c10d::Reducer** out) {
  return guarded([&] {
    const auto list = tensors_of(parameters, count);
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(list, {static_cast<size_t>(std::numeric_limits<int64_t>::max())});
    std::reverse(buckets.begin(), buckets.end());
    const auto build = [&](auto make) {
      return make(list, std::move(buckets), *group, std::vector<bool>(count, false), cap, /*find_unused_parameters=*/false,
                  gradient_as_bucket_view != 0, std::unordered_map<size_t, std::string>{}, first_cap,
                  /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
    };
    const std::vector<size_t> caps = {static_cast<size_t>(first_cap), static_cast<size_t>(cap)};
    *out = is_dry() ? build([&](auto&&... a) -> c10d::Reducer* { return new DryReducer(caps, std::forward<decltype(a)>(a)...); })
                    : build([&](auto&&... a) { return new c10d::Reducer(std::forward<decltype(a)>(a)...); });
  });
}

// What comes before a forward pass: buckets in the order in which the first backward pass finished the gradients, once. Nothing under
// no_grad.
char* vl_reducer_before_forward(c10d::Reducer* reducer) {
  return guarded([&] {
    if (!at::GradMode::is_enabled()) return;
    reducer->prepare_for_forward();
    rebuild(reducer);
  });
}

// What comes between a forward pass and its backward pass. Nothing under no_grad, which it says.
char* vl_reducer_before_backward(c10d::Reducer* reducer, int32_t* prepared) {
  return guarded([&] {
    *prepared = at::GradMode::is_enabled();
    if (*prepared) reducer->prepare_for_backward({});
  });
}

// Fails where the last backward pass left gradients unreduced.
char* vl_reducer_check_finished(c10d::Reducer* reducer) {
  return guarded([&] { reducer->check_finalized(); });
}

// Bytes of each bucket, in the order in which they are reduced.
char* vl_reducer_buckets(const c10d::Reducer* reducer, void* taker, void (*take)(void*, int64_t)) {
  return guarded([&] {
    for (const auto& bucket : reducer->get_grad_buckets(/*return_zero_tensors=*/false))
      take(taker, static_cast<int64_t>(bucket.getBuffer().nbytes()));
  });
}

// Drops the gradients of parameters. Libtorch's optimizers would detach them in place first, which views of buckets refuse.
void vl_drop_gradients(const at::Tensor* const* parameters, size_t count) {
  for (size_t i = 0; i < count; i++) parameters[i]->mutable_grad().reset();
}

// The reducer's destructor may throw.
void vl_reducer_free(c10d::Reducer* reducer) {
  std::free(guarded([&] {
    // Its destructor is not virtual.
    if (is_dry()) delete static_cast<DryReducer*>(reducer);
    else delete reducer;
  }));
}
}
