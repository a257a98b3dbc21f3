// A simulated CUDA runtime, driver and NVML: just enough for PyTorch's own caching allocator (libc10_cuda.so) to run where there is no
// GPU, and for libtorch_cuda of CUDA 12 and 13 to come up. VRAMLAB_DRY_DEVICES cards (one where it is not set; which card it is, card.h tells),
// of whose memory a process's context takes VRAMLAB_DRY_TAKEN bytes, and other processes what they have (occupancy.h); their addresses must never be
// touched. Preloaded (LD_PRELOAD) into dry processes only, or
// opened for all (RTLD_GLOBAL) before libtorch, so that its functions stand before those of libcudart, which libtorch brings along. What
// libtorch can call and the simulated GPU does not have is refused here too, so that no call reaches a real driver. Its soname is NVML's (nvml.cpp),
// so that c10, which opens that library to describe an out-of-memory error, finds this one; driver.cpp is there for what opens the driver.
#include "runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace vramlab::runtime {
namespace {

VramlabCard read_card() {
  VramlabCard card = {};
  const char* set = std::getenv("VRAMLAB_DRY_CARD");
  // The name is for people. What is not said stays 0, so that no process takes a card for another one.
  if (!set || !(set = std::strchr(set, ','))) return card;
  std::sscanf(set, ",%255[^,],%llu,%d.%d,%d,%d,%llu,%llu,%llu,%llu,%d", card.title, &card.memory, &card.major, &card.minor, &card.multiprocessors,
              &card.threads_per_multiprocessor, &card.shared_per_block, &card.shared_opt_in, &card.shared_per_multiprocessor, &card.l2, &card.has_nvlink);
  return card;
}

// Where a process goes through cards of several sizes: that of the one it has now.
std::atomic<size_t> another_memory{0};

int asked_cards() {
  static const int asked = static_cast<int>(std::clamp<size_t>(setting("VRAMLAB_DRY_DEVICES", 1), 1, kMostDevices));
  return asked;
}

struct Machine {
  int cards = asked_cards(), visible = 0;
  // The number in the machine of each that is visible.
  int numbers[kMostDevices] = {};
};
// Read when CUDA comes up: until then a script may set CUDA_VISIBLE_DEVICES. It ends, as CUDA reads it, at what is no card; but each number is
// one: who names the fourth card has a machine with four.
const Machine& machine() {
  static const Machine read = [] {
    Machine found;
    const char* named = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!named) {
      for (found.visible = 0; found.visible < found.cards; found.visible++) found.numbers[found.visible] = found.visible;
    }
    while (named && found.visible < kMostDevices) {
      char* end;
      long number = std::strtol(named, &end, 10);
      const bool has_name = std::strncmp(named, "GPU-", 4) == 0 || std::strncmp(named, "MIG-", 4) == 0;
      // Of a name as NVML gives it the last part is the number.
      if (has_name) number = std::strspn(named + 4, "0-") >= 24 ? std::strtol(named + 28, nullptr, 16) % kMostDevices : found.visible;
      if (end == named ? !has_name : number < 0 || number >= kMostDevices) break;
      found.numbers[found.visible++] = static_cast<int>(number);
      found.cards = std::max(found.cards, static_cast<int>(number) + 1);
      named = std::strchr(named, ',');
      if (named) named++;
    }
    return found;
  }();
  return read;
}

// What every card has of, beside threads of a block: threads of a warp, registers, blocks of a multiprocessor, shared memory that the driver keeps.
constexpr int kWarpSize = 32, kRegisters = 65536, kGridX = 2147483647, kGridYZ = 65535, kReservedShared = 1024;

// Where cudaDeviceProp has the fields that somebody reads; CUDA 13 left out some of CUDA 12's between them.
struct Layout {
  size_t size, processors, l2, threads_per_processor, shared_per_processor, registers_per_processor, shared_opt_in, blocks_per_processor,
      reserved_shared, bus;
};
constexpr Layout kCuda13 = {1008, 384, 596, 604, 624, 632, 672, 688, 696, 568};
constexpr Layout kCuda12 = {1032, 388, 616, 624, 640, 648, 696, 712, 720, 584};

cudaError_t properties(void* out, int device, const Layout& layout) {
  auto* raw = static_cast<char*>(out);
  const auto set = [raw](size_t offset, auto value) { std::memcpy(raw + offset, &value, sizeof value); };
  std::memset(raw, 0, layout.size);
  std::strcpy(raw, sheet().title);
  // These have the same place in both.
  constexpr size_t kUuidsLast = 271, kMemory = 288, kSharedPerBlock = 296, kRegistersPerBlock = 304, kWarp = 308, kThreads = 320, kBlockSize = 324,
                   kGridSize = 336, kConstant = 352, kMajor = 360, kMinor = 364;
  set(kMemory, card_memory());
  set(kSharedPerBlock, size_t(sheet().shared_per_block));
  set(kRegistersPerBlock, kRegisters);
  set(kWarp, kWarpSize);
  set(kThreads, kThreadsPerBlock);
  const int block[3] = {1024, 1024, 64}, grid[3] = {kGridX, kGridYZ, kGridYZ};
  std::memcpy(raw + kBlockSize, block, sizeof block);
  std::memcpy(raw + kGridSize, grid, sizeof grid);
  set(kConstant, size_t(65536));
  set(kMajor, sheet().major);
  set(kMinor, sheet().minor);
  set(layout.processors, sheet().multiprocessors);
  set(layout.l2, int(sheet().l2));
  set(layout.threads_per_processor, sheet().threads_per_multiprocessor);
  set(layout.shared_per_processor, size_t(sheet().shared_per_multiprocessor));
  set(layout.registers_per_processor, kRegisters);
  set(layout.shared_opt_in, size_t(sheet().shared_opt_in));
  set(layout.blocks_per_processor, blocks_per_multiprocessor());
  set(layout.reserved_shared, size_t(kReservedShared));
  // As NVML tells it: by these c10's allocator finds the card there.
  set(layout.bus, card_of(device) + 1);
  set(kUuidsLast, static_cast<char>(card_of(device)));
  return cudaSuccess;
}

}  // namespace

// Read when it is first asked for: until then a process may still become another card.
const VramlabCard& sheet() {
  static const VramlabCard card = read_card();
  return card;
}

size_t card_memory() {
  const size_t another = another_memory.load(std::memory_order_relaxed);
  return another ? another : sheet().memory;
}

int device_count() { return machine().visible; }
int card_of(int device) { return machine().numbers[device]; }
bool come_up(int device) { return device >= device_count() || occupancy::is_up(card_of(device)) || occupancy::take(card_of(device), card_memory(), 0, nullptr); }

int blocks_per_multiprocessor() {
  const int capability = 10 * sheet().major + sheet().minor;
  if (capability == 75 || capability == 86) return 16;
  return capability == 89 || capability >= 120 ? 24 : 32;
}

}  // namespace vramlab::runtime

using namespace vramlab::runtime;

extern "C" {

// Says that this runtime is loaded, and how large its card is.
// Asked before the script begins, which may clear its environment.
uint64_t vramlab_dry_memory() {
  asked_cards();
  lag();
  occupancy::context_bytes();
  code_to_come(0);
  return card_memory();
}
int vramlab_dry_cards() { return machine().cards; }
int vramlab_dry_card_of(int device) { return device < device_count() ? card_of(device) : device; }
int vramlab_dry_is_up(int device) { return device < device_count() && occupancy::is_up(card_of(device)); }
// What is allocated may be more than that; then nothing is free.
void vramlab_dry_set_memory(uint64_t bytes) { another_memory = bytes; }
const VramlabCard* vramlab_dry_card() { return &sheet(); }
int vramlab_dry_blocks_per_multiprocessor() { return blocks_per_multiprocessor(); }

// ---- the runtime ---------------------------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count > 0 ? cudaSuccess : last_error = cudaErrorNoDevice;
}
int cudaGetDevice(int* device) { return is(device, current_device); }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return last_error = cudaErrorInvalidDevice;
  current_device = device;
  // From CUDA 12 on.
  return come_up(device) ? cudaSuccess : last_error = cudaErrorMemoryAllocation;
}
int cudaDriverGetVersion(int* version) { return is(version, 13000); }
int cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
// CUDA 13's, and under its own name CUDA 12's.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) { return properties(out, device, kCuda13); }
cudaError_t cudaGetDeviceProperties_v2(void* out, int device) { return properties(out, device, kCuda12); }
// By the numbers of cudaDeviceAttr, which are the driver's, too. What is not here a card does not have.
cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 1: case 2: case 3: *value = kThreadsPerBlock; break;
    case 4: *value = 64; break;
    case 5: *value = kGridX; break;
    case 6: case 7: *value = kGridYZ; break;
    case 8: *value = int(sheet().shared_per_block); break;
    case 9: *value = 65536; break;
    case 10: *value = kWarpSize; break;
    case 12: case 82: *value = kRegisters; break;
    case 16: *value = sheet().multiprocessors; break;
    case 31: case 41: case 78: case 79: case 80: case 83: case 95: *value = 1; break;
    case 33: *value = card_of(device) + 1; break;
    case 38: *value = int(sheet().l2); break;
    case 39: *value = sheet().threads_per_multiprocessor; break;
    case 75: *value = sheet().major; break;
    case 76: *value = sheet().minor; break;
    case 81: *value = int(sheet().shared_per_multiprocessor); break;
    case 97: *value = int(sheet().shared_opt_in); break;
    case 106: *value = blocks_per_multiprocessor(); break;
    case 111: *value = kReservedShared; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorInvalidDevice: return "invalid device ordinal; --gpus N gives the simulated machine more GPUs";
    default: return "the simulated GPU does not have this part of the CUDA runtime";
  }
}
const char* cudaGetErrorName(cudaError_t error) {
  if (error == cudaSuccess) return "cudaSuccess";
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorNotSupported";
}

// ---- cards, as far as somebody asks one by one ------------------------------------------------------------------------------------------

cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaDeviceGetPCIBusId(char* bus, int length, int device) {
  std::snprintf(bus, static_cast<size_t>(length), "0000:%02X:00.0", card_of(device) + 1);
  return cudaSuccess;
}
int cudaDeviceCanAccessPeer(int* can, int device, int peer) { return is(can, device != peer); }

// ---- what has nothing to do, and what is refused -------------------------------------------------------------------------------------------

// clang-format off
DONE(cudaDeviceEnablePeerAccess) DONE(cudaDeviceReset) DONE(cudaIpcGetEventHandle) DONE(cudaFuncSetAttribute) DONE(cudaFuncSetCacheConfig) DONE(cudaGraphLaunch)
DONE(cudaGraphUpload) DONE(cudaMemPoolDestroy) DONE(cudaMemPoolSetAccess) DONE(cudaMemPoolSetAttribute) DONE(cudaMemPoolTrimTo)
DONE(cudaMemPrefetchAsync) DONE(cudaMemcpyPeerAsync) DONE(cudaMemcpyToSymbol) DONE(cudaMemset) DONE(cudaProfilerStart)
DONE(cudaProfilerStop) DONE(cudaStreamDestroy) DONE(ncclAllGather) DONE(ncclAllReduce) DONE(ncclBcast)
DONE(ncclGroupEnd) DONE(ncclGroupStart) DONE(ncclReduce) DONE(ncclReduceScatter)
#define REFUSED(name) ANSWERS(name, cudaErrorNotSupported)
REFUSED(cudaGraphDebugDotPrint) REFUSED(cudaGraphNodeGetDependencies)
// clang-format on

// ---- NCCL between the cards of one process, as DataParallel and torch.cuda.nccl call it: nothing moves -----------------------------------

int ncclCommInitAll(void** communicators, int count, const int*) {
  static char one;
  for (int i = 0; i < count; i++) communicators[i] = &one;
  return 0;
}


}  // extern "C"
