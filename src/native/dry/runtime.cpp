// A pretended CUDA runtime, driver and NVML: just enough for PyTorch's own caching allocator (libc10_cuda.so) to run where there is no
// GPU. One card of VRAMLAB_DRY_MEMORY bytes, of which VRAMLAB_DRY_TAKEN are
// taken by others; addresses ascend, are never given twice and must never be touched. Preloaded (LD_PRELOAD)
// into dry processes only, where its functions stand before those of libcudart, which libtorch brings along. What c10 can call and the
// dry device does not pretend is refused here too, so that no call reaches a real driver. Its soname is NVML's, so that c10, which
// opens that library to describe an out-of-memory error, finds this one.
#include "cuda_runtime_api.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

constexpr size_t kGranularity = 2 << 20;

size_t card_memory() {
  static const size_t bytes = [] {
    const char* set = std::getenv("VRAMLAB_DRY_MEMORY");
    return set ? std::strtoull(set, nullptr, 10) : 0;
  }();
  return bytes;
}

// What others have taken of the card before this process allocates anything: PyTorch's allocator sees less free memory, and says so.
size_t taken_memory() {
  const char* set = std::getenv("VRAMLAB_DRY_TAKEN");
  const size_t bytes = set ? std::strtoull(set, nullptr, 10) : 0;
  return bytes < card_memory() ? bytes : card_memory();
}

std::mutex mutex;
size_t used = taken_memory();
// Below the addresses that a Linux process gets for itself, so that a touch is a fault and not a silent overwrite.
uint64_t next_address = 1ull << 41;
uint64_t next_handle = 1;
// Bytes by address of cudaMalloc, and by handle of cuMemCreate.
std::map<uint64_t, size_t> blocks, handles;

uint64_t take_addresses(size_t bytes) {
  const uint64_t address = next_address;
  // A gap, so that no two blocks look like neighbours.
  next_address += bytes + kGranularity;
  return address;
}

// The card hands out whole pages of 2 MiB.
bool take_memory(size_t bytes, std::map<uint64_t, size_t>& where, uint64_t key) {
  if (bytes > card_memory() - used) return false;
  used += bytes;
  where[key] = bytes;
  return true;
}

void give_memory(std::map<uint64_t, size_t>& where, uint64_t key) {
  const auto found = where.find(key);
  if (found == where.end()) return;
  used -= found->second;
  where.erase(found);
}

thread_local cudaError_t last_error = cudaSuccess;

// What CUDA calls out of memory, in the runtime's numbers and in the driver's, which are the same.
constexpr int kOutOfMemory = 2;

// Fields of CUDA 13's cudaDeviceProp that somebody reads, by their offsets.
constexpr size_t kPropertiesSize = 1008, kTotalMemory = 288, kRegisters = 304, kWarpSize = 308, kThreadsPerBlock = 320, kMajor = 360,
                 kMinor = 364, kProcessors = 384, kThreadsPerProcessor = 604;

}  // namespace

extern "C" {

// Says that this runtime is loaded, and how large its card is.
uint64_t vramlab_dry_memory() { return card_memory(); }

// ---- the runtime ---------------------------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  auto* raw = reinterpret_cast<char*>(properties);
  const auto set = [raw](size_t offset, auto value) { std::memcpy(raw + offset, &value, sizeof value); };
  std::memset(raw, 0, kPropertiesSize);
  std::strcpy(raw, "vramlab dry device");
  set(kTotalMemory, card_memory());
  // A named assumption: compute capability 9.0, with the 132 multiprocessors of an H100 or H200.
  set(kMajor, 9);
  set(kMinor, 0);
  set(kProcessors, 132);
  set(kRegisters, 65536);
  set(kWarpSize, 32);
  set(kThreadsPerBlock, 1024);
  set(kThreadsPerProcessor, 2048);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  const size_t rounded = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  if (rounded < bytes || !take_memory(rounded, blocks, next_address)) return last_error = cudaErrorMemoryAllocation;
  *address = reinterpret_cast<void*>(take_addresses(rounded));
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  const std::lock_guard<std::mutex> lock(mutex);
  give_memory(blocks, reinterpret_cast<uint64_t>(address));
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  *free_bytes = card_memory() - used;
  *total_bytes = card_memory();
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaSuccess) return "no error";
  return error == cudaErrorMemoryAllocation ? "out of memory" : "the dry device does not pretend this part of the CUDA runtime";
}
const char* cudaGetErrorName(cudaError_t error) {
  if (error == cudaSuccess) return "cudaSuccess";
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorNotSupported";
}

// ---- streams and events: nothing is ever under way ------------------------------------------------------------------------------------

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const std::lock_guard<std::mutex> lock(mutex);
  *stream = reinterpret_cast<cudaStream_t>(next_handle++ * 16);
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const std::lock_guard<std::mutex> lock(mutex);
  *event = reinterpret_cast<cudaEvent_t>(next_handle++ * 16);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }

// ---- what is refused -------------------------------------------------------------------------------------------------------------------

#define REFUSED(name) \
  cudaError_t name() { return cudaErrorNotSupported; }
// Time is not pretended.
REFUSED(cudaEventElapsedTime)
// Nothing is ever copied: the memory is not there.
REFUSED(cudaMemcpy)
REFUSED(cudaMemcpyPeerAsync)
REFUSED(cudaDeviceCanAccessPeer)
REFUSED(cudaDeviceEnablePeerAccess)
REFUSED(cudaDeviceGetDefaultMemPool)
REFUSED(cudaFreeAsync)
REFUSED(cudaMallocAsync)
REFUSED(cudaGraphNodeGetDependencies)
REFUSED(cudaIpcCloseMemHandle)
REFUSED(cudaIpcGetMemHandle)
REFUSED(cudaIpcOpenMemHandle)
REFUSED(cudaMemPoolGetAttribute)
REFUSED(cudaMemPoolSetAccess)
REFUSED(cudaMemPoolSetAttribute)
REFUSED(cudaMemPoolTrimTo)
#undef REFUSED
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) { return cudaErrorNotSupported; }

// ---- NVML: one process, this one, uses the card ----------------------------------------------------------------------------------------

struct NvmlProcess {
  unsigned pid;
  unsigned long long bytes;
};
int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = &blocks;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, NvmlProcess* processes) {
  constexpr int kInsufficientSize = 7;
  if (*count == 0) return kInsufficientSize;
  const std::lock_guard<std::mutex> lock(mutex);
  *count = 1;
  processes[0] = {static_cast<unsigned>(getpid()), used};
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
constexpr int kNvmlNotSupported = 3;
int nvmlDeviceGetNvLinkRemoteDeviceType() { return kNvmlNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2() { return kNvmlNotSupported; }
int nvmlDeviceGetGpuFabricInfoV() { return kNvmlNotSupported; }

}  // extern "C"

// ---- the driver, which expandable segments ask for pages -------------------------------------------------------------------------------

namespace {

int device_get(int* device, int) {
  *device = 0;
  return 0;
}
// No attribute that c10 asks for is there: no RDMA, no fabric handles.
int device_get_attribute(int* value, int, int) {
  *value = 0;
  return 0;
}
int memory_granularity(size_t* bytes, const void*, int) {
  *bytes = kGranularity;
  return 0;
}
int memory_reserve_addresses(uint64_t* address, size_t bytes, size_t, uint64_t, unsigned long long) {
  const std::lock_guard<std::mutex> lock(mutex);
  *address = take_addresses(bytes);
  return 0;
}
int memory_create(uint64_t* handle, size_t bytes, const void*, unsigned long long) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!take_memory(bytes, handles, next_handle)) return kOutOfMemory;
  *handle = next_handle++;
  return 0;
}
int memory_release(uint64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  give_memory(handles, handle);
  return 0;
}
// Mapping, unmapping and access rights: pages that nobody touches need none.
int nothing_to_do() { return 0; }
int refused() { return cudaErrorNotSupported; }
int error_string(int error, const char** text) {
  *text = error == kOutOfMemory ? "out of memory" : "the dry device does not pretend this part of the CUDA driver";
  return 0;
}

struct Entry {
  const char* name;
  void* function;
};
template <typename Function>
Entry entry(const char* name, Function* function) {
  return {name, reinterpret_cast<void*>(function)};
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                        cudaDriverEntryPointQueryResult* result) {
  static const Entry kEntries[] = {
      entry("cuDeviceGet", device_get),
      entry("cuDeviceGetAttribute", device_get_attribute),
      entry("cuGetErrorString", error_string),
      entry("cuMemGetAllocationGranularity", memory_granularity),
      entry("cuMemAddressReserve", memory_reserve_addresses),
      entry("cuMemAddressFree", nothing_to_do),
      entry("cuMemCreate", memory_create),
      entry("cuMemRelease", memory_release),
      entry("cuMemMap", nothing_to_do),
      entry("cuMemUnmap", nothing_to_do),
      entry("cuMemSetAccess", nothing_to_do),
  };
  *function = reinterpret_cast<void*>(&refused);
  for (const Entry& known : kEntries) {
    if (std::strcmp(known.name, name) == 0) *function = known.function;
  }
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
