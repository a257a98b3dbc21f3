// What tch lacks, from libtorch's own C++ interface and without CUDA headers: CUDA's memory meter, device events and autocast state; and the
// door to the simulated GPU. No exception leaves this file: each function returns nullptr, or a message
// that `vl_free_message` frees.
#include "../../../sim/native/guarded.h"
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/version.h>
#include <array>
#include <cstring>
#include <memory>

namespace {

constexpr std::array<at::DeviceType, 2> kAutocastDevices = {at::kCPU, at::kCUDA};

// ---- the simulated GPU ------------------------------------------------------------------------------------------------------------------

bool dry_runtime_is_loaded() { return dlsym(RTLD_DEFAULT, "vramlab_dry_memory") != nullptr; }

char* loader_message(const char* what) {
  const char* message = dlerror();
  return strdup(message ? message : what);
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
  return dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) ? nullptr : loader_message("libtorch_cuda.so cannot be loaded");
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
  void* library = dlopen(backend, RTLD_NOW | RTLD_LOCAL);
  if (!library) return loader_message("the simulated GPU's backend cannot be loaded");
  const auto call = [&](const char* name) { return reinterpret_cast<char* (*)()>(dlsym(library, name))(); };
  char* message = call("vramlab_dry_open");
  if (!message) message = call("vramlab_dry_wait_for_threads");
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
char* vl_autocast_enter(int32_t device, int8_t dtype, int32_t* old_enabled, int8_t* old_dtype) {
  return guarded([&] {
    const auto type = kAutocastDevices.at(device);
    *old_enabled = at::autocast::is_autocast_enabled(type);
    *old_dtype = static_cast<int8_t>(at::autocast::get_autocast_dtype(type));
    at::autocast::set_autocast_enabled(type, true);
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
}
