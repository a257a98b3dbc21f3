// A simulated CUDA driver for a Python process: its soname is libcuda.so.1, so that whoever opens the driver finds this library, which is
// loaded already, and none of a real GPU's. libtorch_cuda asks it for the state of a device; libraries with a CUDA runtime of their own
// (NCCL, cuDNN) get no entry point and find no device to use.
#include "answers.h"
#include "callers.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace {
constexpr int kOutOfMemory = 2, kInvalidDevice = 101, kNotFound = 500, kUnknown = 999;

int device_count() {
  static const auto runtimes = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "cudaGetDeviceCount"));
  int count = 1;
  if (runtimes) runtimes(&count);
  return count;
}

std::mutex mutex;
VramlabLibraries third_party;

// This library, for what is looked for in it alone.
void* vramlab_handle() {
  static void* const handle = [] {
    Dl_info own;
    return dladdr(reinterpret_cast<void*>(&device_count), &own) ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  }();
  return handle;
}

// A function for cuda-bindings, which calls the driver for Python; none for a CUDA runtime, which would take the card for a real one.
void* entry_point(const char* name, const void* caller) {
  const VramlabLibrary library = vramlab_library_of(caller);
  if (std::strstr(library.name, "/cuda/bindings/")) return dlsym(vramlab_handle(), name);
  const std::lock_guard<std::mutex> lock(mutex);
  if (!library.is_pytorchs()) third_party.mark(third_party.add(library));
  return nullptr;
}

// A function of the runtime's, which stands before this library.
template <typename Signature>
Signature* runtime(const char* name) {
  return reinterpret_cast<Signature*>(dlsym(RTLD_DEFAULT, name));
}
int allocate(void** address, size_t bytes, const void* caller) {
  static auto* const allocated = runtime<int(void**, size_t, const void*)>("vramlab_dry_allocate");
  return allocated ? allocated(address, bytes, caller) : kNotFound;
}

// A function of the driver's that memory.cpp has, as PyTorch asks the runtime for it.
using Function = int (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
Function entry(const char* name) {
  using Find = int (*)(const char*, void**, unsigned, unsigned long long, int*);
  static const auto find = reinterpret_cast<Find>(dlsym(RTLD_DEFAULT, "cudaGetDriverEntryPointByVersion"));
  void* found = nullptr;
  if (find) find(name, &found, 0, 0, nullptr);
  return reinterpret_cast<Function>(found);
}
}  // namespace

extern "C" {
int cuDriverGetVersion(int* version) { return is(version, 13000); }
int cuDeviceGetCount(int* count) { return is(count, device_count()); }
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < device_count() ? 0 : kInvalidDevice;
}
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  static const auto is_up = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "vramlab_dry_is_up"));
  *flags = 0;
  *active = is_up ? is_up(device) : 1;
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  return is(text, error == kOutOfMemory ? "out of memory" : "a rehearsal does not have this part of the CUDA driver");
}
int cuGetErrorName(int error, const char** text) { return is(text, error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_NOT_FOUND"); }
int cuGetProcAddress_v2(const char* name, void** function, int, unsigned long long, int* status) {
  *function = entry_point(name, __builtin_return_address(0));
  if (status) *status = *function ? 0 : 1;
  return *function ? 0 : kNotFound;
}
int cuGetProcAddress(const char* name, void** function, int, unsigned long long) {
  *function = entry_point(name, __builtin_return_address(0));
  return *function ? 0 : kNotFound;
}
// cuDNN's attention plans (since 9.2x) ask for it and believe that each driver has it.
int cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return kNotFound;
}
// Libraries that asked the driver for a function and got none, a line each: those with a CUDA runtime of their own.
const char* vramlab_driver_third_party() {
  const std::lock_guard<std::mutex> lock(mutex);
  return third_party.marked();
}

// ---- kernels that are compiled while a program runs (nvrtc.cpp): launched to do nothing --------------------------------------------------

static char something;
#define MADE(name) GIVES(name, void*, &something)
// clang-format off
MADE(cuCtxGetCurrent) MADE(cuCtxPopCurrent) MADE(cuDevicePrimaryCtxRetain) MADE(cuKernelGetFunction) MADE(cuLibraryGetKernel)
MADE(cuLibraryLoadData) MADE(cuLibraryLoadFromFile) MADE(cuModuleGetFunction) MADE(cuModuleLoad) MADE(cuModuleLoadData)
MADE(cuModuleLoadDataEx)
DONE(cuCtxPushCurrent) DONE(cuCtxSetCurrent) DONE(cuCtxSetLimit) DONE(cuFuncSetAttribute) DONE(cuFuncSetCacheConfig) DONE(cuInit)
DONE(cuKernelSetAttribute) DONE(cuLaunchCooperativeKernel) DONE(cuLaunchKernel) DONE(cuLaunchKernelEx) DONE(cuLibraryUnload)
DONE(cuLinkDestroy) DONE(cuModuleUnload) DONE(cuTensorMapEncodeIm2col) DONE(cuTensorMapEncodeTiled) DONE(cuTensorMapReplaceAddress)
#define NOT_FOUND(name) ANSWERS(name, kNotFound)
NOT_FOUND(cuLinkAddData) NOT_FOUND(cuLinkAddData_v2) NOT_FOUND(cuLinkComplete) NOT_FOUND(cuLinkCreate) NOT_FOUND(cuLinkCreate_v2)
NOT_FOUND(cuMemExportToShareableHandle) NOT_FOUND(cuMemImportFromShareableHandle) NOT_FOUND(cuMemsetD32Async)
NOT_FOUND(cuMulticastAddDevice) NOT_FOUND(cuMulticastBindMem) NOT_FOUND(cuMulticastCreate)
NOT_FOUND(cuStreamWriteValue32)
GIVES(cuFuncGetAttribute, int, 0) GIVES(cuOccupancyMaxActiveBlocksPerMultiprocessor, int, 1)
// cuDNN looks for these when it builds a plan, which it never runs.
GIVES(cuCtxGetLimit, size_t, 0) GIVES(cuOccupancyMaxActiveClusters, int, 1) GIVES(cuKernelGetAttribute, int, 0)
GIVES(cuOccupancyMaxPotentialClusterSize, int, 1)
// clang-format on
// Attributes have the numbers that the runtime has for them.
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  static auto* const of = runtime<int(int*, int, int)>("cudaDeviceGetAttribute");
  return of ? of(value, attribute, device) : is(value, 0);
}
int cuStreamGetCtx(void*, void** context) { return cuCtxGetCurrent(context); }

// ---- memory, for those who ask the driver itself: the runtime's -------------------------------------------------------------------------------

int cuMemAlloc_v2(void** address, size_t bytes) { return allocate(address, bytes, __builtin_return_address(0)); }
int cuMemAllocAsync(void** address, size_t bytes, void*) { return allocate(address, bytes, __builtin_return_address(0)); }
int cuMemAllocFromPoolAsync(void** address, size_t bytes, void*, void*) { return allocate(address, bytes, __builtin_return_address(0)); }
int cuMemAllocPitch_v2(void** address, size_t* pitch, size_t width, size_t height, unsigned) {
  *pitch = (width + 511) / 512 * 512;
  return allocate(address, *pitch * height, __builtin_return_address(0));
}
int cuMemFree_v2(void* address) { return runtime<int(void*)>("cudaFree")(address); }
int cuMemFreeAsync(void* address, void*) { return cuMemFree_v2(address); }
int cuMemAllocManaged(void** address, size_t bytes, unsigned flags) {
  return runtime<int(void**, size_t, unsigned)>("cudaMallocManaged")(address, bytes, flags);
}
int cuPointerGetAttribute(void* out, int attribute, uint64_t address) {
  constexpr int kRangeBegin = 11, kRangeBytes = 12;
  static auto* const begin_of = runtime<uint64_t(uint64_t, size_t*)>("vramlab_dry_begin_of");
  size_t bytes = 0;
  const uint64_t begin = begin_of ? begin_of(address, &bytes) : address;
  if (!bytes || (attribute != kRangeBegin && attribute != kRangeBytes)) return kNotFound;
  std::memcpy(out, attribute == kRangeBegin ? static_cast<const void*>(&begin) : &bytes, sizeof begin);
  return 0;
}
int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) { return runtime<int(size_t*, size_t*)>("cudaMemGetInfo")(free_bytes, total); }

// ---- pages of expandable segments: PyTorch before 2.8 looks for these here, and stops where one is missing ---------------------------------

// Whole numbers and addresses, five at most.
#define PAGES(name)                                                                       \
  int name(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e) {                  \
    static const Function function = entry(#name);                                        \
    return function ? function(a, b, c, d, e) : kNotFound;                                \
  }
// clang-format off
PAGES(cuMemAddressFree) PAGES(cuMemAddressReserve) PAGES(cuMemGetAllocationGranularity) PAGES(cuMemMap) PAGES(cuMemRelease)
PAGES(cuMemSetAccess) PAGES(cuMemUnmap)
// clang-format on
int cuMemCreate(uint64_t* handle, size_t bytes, const void* wanted, unsigned long long) {
  static auto* const create = runtime<int(uint64_t*, size_t, const void*, const void*)>("vramlab_dry_create");
  return create ? create(handle, bytes, wanted, __builtin_return_address(0)) : kNotFound;
}

// ---- CUPTI, which PyTorch's profiler asks: nothing runs that it could trace. Its own library looks for functions of a driver's that no header names,
// and from CUDA 13.2 on calls itself without end where there are none. With these PyTorch says that CUDA's activities will be missing.

// clang-format off
#define UNTRACED(name) ANSWERS(name, kUnknown)
UNTRACED(cuptiActivityDisable) UNTRACED(cuptiActivityEnable) UNTRACED(cuptiActivityEnableCudaEventDeviceTimestamps)
UNTRACED(cuptiActivityEnableDriverApi) UNTRACED(cuptiActivityEnableRuntimeApi) UNTRACED(cuptiActivityFlushAll)
UNTRACED(cuptiActivityGetNextRecord) UNTRACED(cuptiActivityGetNumDroppedRecords) UNTRACED(cuptiActivityPopExternalCorrelationId)
UNTRACED(cuptiActivityPushExternalCorrelationId) UNTRACED(cuptiActivityRegisterCallbacks) UNTRACED(cuptiActivityRegisterTimestampCallback)
UNTRACED(cuptiActivitySetAttribute) UNTRACED(cuptiEnableCallback) UNTRACED(cuptiEnableDomain) UNTRACED(cuptiFinalize)
UNTRACED(cuptiGetCallbackName) UNTRACED(cuptiGetVersion) UNTRACED(cuptiSubscribe) UNTRACED(cuptiUnsubscribe)
// clang-format on
int cuptiGetResultString(int, const char** text) { return is(text, "CUPTI_ERROR_UNKNOWN"); }
}
