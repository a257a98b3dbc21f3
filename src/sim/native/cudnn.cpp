// cuDNN in a dry process, beside runtime.cpp. Since its version 9.8 it chooses algorithms and says what workspace they take without a GPU,
// where it is given a device's properties in the place of a handle. So PyTorch's own convolutions ask the real cuDNN as ever; what they say of
// the handle is replaced by the card's properties here, and nothing is executed. Numbers are those of cudnn_graph.h.
#include "answers.h"
#include "card.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using Descriptor = void*;
enum Attribute : int {
  kHeuristicsGraph = 201,
  kHeuristicsDevice = 204,
  kPlanHandle = 400,
  kPlanDevice = 407,
  kEngineGraph = 1300,
  kEngineDevice = 1307,
  kDeviceJson = 2702,
};
enum Type : int { kHandle = 0, kDescriptor = 15, kText = 24 };
constexpr int kDeviceProperties = 38;
// CUDNN_STATUS_NOT_INITIALIZED
constexpr int kNotThere = 1001;

// cuDNN's own function; it is loaded where libtorch_cuda is.
template <typename Function>
Function* real(const char* name) {
  static void* const library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
  return library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

int set(Descriptor descriptor, int attribute, int type, int64_t count, const void* values) {
  static auto* const real_set = real<int(Descriptor, int, int, int64_t, const void*)>("cudnnBackendSetAttribute");
  return real_set ? real_set(descriptor, attribute, type, count, values) : kNotThere;
}

// The card as cuDNN's own descriptor of a device has it. Clocks are not known; the choices do not depend on them.
Descriptor describe_device() {
  auto* create = real<int(int, Descriptor*)>("cudnnBackendCreateDescriptor");
  auto* finalize = real<int(Descriptor)>("cudnnBackendFinalize");
  if (!create || !finalize) return nullptr;
  const VramlabCard& card = *vramlab_dry_card();
  char text[1024];
  const int length = std::snprintf(
      text, sizeof text,
      R"({"cudaDeviceId":0,"deviceName":"%s","deviceVer":%d,"driverVer":13000,"totalGlobalMem":%llu,"maxGridSize":[2147483647,65535,65535],)"
      R"("maxBlockSize":[1024,1024,64],"warpSize":32,"regsPerBlock":65536,"maxRegistersPerSM":65536,"multiProcessorCount":%d,)"
      R"("maxSharedMemoryPerBlock":%llu,"maxSharedMemoryPerBlockOptin":%llu,"reservedSharedMemoryPerBlock":1024,"maxCtasPerSM":%d,)"
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":%d,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1500000,)"
      R"("memClockRateKHz":1500000,"l2CacheSize":%llu})",
      card.title, 100 * card.major + 10 * card.minor, card.memory, card.multiprocessors, card.shared_per_block, card.shared_opt_in,
      vramlab_dry_blocks_per_multiprocessor(), card.threads_per_multiprocessor, card.l2);
  Descriptor device = nullptr;
  if (length <= 0 || length >= static_cast<int>(sizeof text) || create(kDeviceProperties, &device) != 0) return nullptr;
  return set(device, kDeviceJson, kText, length, text) == 0 && finalize(device) == 0 ? device : nullptr;
}

const Descriptor& device() {
  static const Descriptor device = describe_device();
  return device;
}

}  // namespace

extern "C" {

// cuDNN's version where it is there and answers without a GPU, else 0. VRAMLAB_DRY_CUDNN=0 says that nobody is to ask it: convolutions then
// take no workspace, as whoever compares with a tracker wants that knows none.
int vramlab_dry_cudnn() {
  const char* const asked = std::getenv("VRAMLAB_DRY_CUDNN");
  if ((asked && std::strcmp(asked, "0") == 0) || device() == nullptr) return 0;
  auto* const version = real<size_t()>("cudnnGetVersion");
  return version ? static_cast<int>(version()) : 0;
}

int cudnnCreate(void** handle) {
  vramlab_dry_load_code();
  static char one;
  return is(handle, &one);
}
// What runs; and what PyTorch asks by older functions, which take no workspace.
// clang-format off
DONE(cudnnBackendExecute) DONE(cudnnCTCLoss) DONE(cudnnCTCLoss_v8) DONE(cudnnDestroy) DONE(cudnnSetStream)
DONE(cudnnSpatialTfGridGeneratorBackward) DONE(cudnnSpatialTfGridGeneratorForward) DONE(cudnnSpatialTfSamplerBackward)
DONE(cudnnSpatialTfSamplerForward)
// clang-format on
int cudnnGetStream(void*, void** stream) { return is(stream, nullptr); }

int cudnnBackendSetAttribute(Descriptor descriptor, int attribute, int type, int64_t count, const void* values) {
  if (type == kHandle) {
    // A graph does without; heuristics, engines and plans take the device below.
    return attribute == kPlanHandle ? set(descriptor, kPlanDevice, kDescriptor, 1, &device()) : 0;
  }
  const int status = set(descriptor, attribute, type, count, values);
  if (status == 0 && attribute == kHeuristicsGraph) return set(descriptor, kHeuristicsDevice, kDescriptor, 1, &device());
  if (status == 0 && attribute == kEngineGraph) return set(descriptor, kEngineDevice, kDescriptor, 1, &device());
  return status;
}

// ---- what PyTorch asks by older functions, whose descriptors are cuDNN's own -----------------------------------------------------------------

// Its workspace only cuDNN knows, on a GPU; here it takes none.
int cudnnGetCTCLossWorkspaceSize(void*, Descriptor, Descriptor, const int*, const int*, const int*, int, Descriptor, size_t* bytes) {
  return is(bytes, 0);
}
int cudnnGetCTCLossWorkspaceSize_v8(void*, int, Descriptor, Descriptor, Descriptor, size_t* bytes) { return is(bytes, 0); }
}
