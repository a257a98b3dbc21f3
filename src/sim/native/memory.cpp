// The memory of the simulated runtime's cards, and the host's that CUDA knows. Addresses are handed out, and nobody may touch them.
#include "runtime.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace vramlab::runtime {
namespace {

constexpr size_t kGranularity = 2 << 20;

// What each card has of them. An expandable segment reserves more than a card's memory for each pool and stream.
uint64_t stride() {
  static const uint64_t bytes = kSpan / (device_count() > 0 ? device_count() : 1) / kGranularity * kGranularity;
  return bytes;
}

int device_of(uint64_t address) { return static_cast<int>((address - kFirst) / stride()); }

struct Block {
  size_t bytes;
  // The library that has it, where that is not PyTorch's allocator.
  const char* outside;
};
struct Card {
  // Where the search for addresses goes on.
  uint64_t next_address = 0;
  // By address, of cudaMalloc and of what is reserved for mapping.
  std::map<uint64_t, Block> blocks, reservations;
  // Bytes of small blocks, several of which lie in one page.
  size_t small = 0;
};

Card cards[kMostDevices];
struct Pages {
  int device;
  size_t bytes;
  const char* outside;
};
// By handle of cuMemCreate.
std::map<uint64_t, Pages> handles;

// Where what is taken at an address ends; 0 where nothing is.
uint64_t end_of_taken(const std::map<uint64_t, Block>& taken, uint64_t address, size_t bytes) {
  auto after = taken.lower_bound(address + bytes);
  if (after == taken.begin()) return 0;
  --after;
  const uint64_t end = after->first + after->second.bytes;
  return end > address ? end : 0;
}

// Ascending addresses, each block with a gap behind it, so that no two look like neighbours; from the beginning again where they end.
uint64_t take_addresses(Card& of, size_t bytes) {
  const uint64_t first = kFirst + static_cast<uint64_t>(&of - cards) * stride(), last = first + stride();
  if (bytes + kGranularity > stride()) return 0;
  uint64_t address = of.next_address ? of.next_address : first;
  for (int turns = 0; turns < 2;) {
    if (address + bytes + kGranularity > last) {
      address = first;
      turns++;
      continue;
    }
    const uint64_t block = end_of_taken(of.blocks, address, bytes + kGranularity);
    const uint64_t taken = block ? block : end_of_taken(of.reservations, address, bytes + kGranularity);
    if (!taken) {
      of.next_address = address + bytes + kGranularity;
      return address;
    }
    address = taken + kGranularity;
  }
  return 0;
}

// Without the lock: who listens asks for Python's.
void tell_outside(int device, uint64_t address, int64_t bytes, const char* library) {
  if (vramlab_dry_outside) vramlab_dry_outside(device, address, bytes, library);
}

// A card hands out whole pages of 2 MiB.
bool take_memory(int device, size_t bytes, const char* outside) { return occupancy::take(card_of(device), card_memory(), bytes, outside); }
void give_memory(int device, size_t bytes, bool outside) { occupancy::give(card_of(device), bytes, outside); }

// The file of a library that PyTorch's allocator has its pages from.
char plugged[512] = "";

// The name of the library that an address of code is in; null of PyTorch's allocator, and of what it has its pages from.
const char* outside_of(const void* caller) {
  static VramlabLibrary allocators;
  static std::map<uint64_t, VramlabLibrary> known;
  if (allocators.has(caller)) return nullptr;
  const VramlabLibrary library = vramlab_library_of(caller);
  if (std::strstr(library.name, "/libc10_cuda.so")) {
    allocators = library;
    return nullptr;
  }
  if (*plugged && std::strcmp(library.name, plugged) == 0) return nullptr;
  const char* path = known.emplace(library.begin, library).first->second.name;
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : *path ? path : "the program itself";
}

// Small blocks share pages: what the next one, or one less, takes of the card.
size_t pages(size_t bytes) { return (bytes + kGranularity - 1) / kGranularity * kGranularity; }

cudaError_t allocate(int device, void** address, size_t bytes, const void* caller) {
  constexpr size_t kSmall = 1 << 20, kUnit = 512;
  if (device >= device_count()) return last_error = cudaErrorNoDevice;
  std::unique_lock<std::mutex> lock(mutex);
  Card& of = cards[device];
  const size_t rounded = bytes < kSmall ? (bytes + kUnit - 1) / kUnit * kUnit : pages(bytes);
  const uint64_t found = rounded < bytes ? 0 : take_addresses(of, rounded);
  const size_t taken = bytes < kSmall ? pages(of.small + rounded) - pages(of.small) : rounded;
  const char* outside = outside_of(caller);
  if (!found || !take_memory(device, taken, outside)) return last_error = cudaErrorMemoryAllocation;
  if (bytes < kSmall) of.small += rounded;
  of.blocks[found] = {rounded, outside};
  *address = reinterpret_cast<void*>(found);
  lock.unlock();
  if (outside) tell_outside(device, found, static_cast<int64_t>(rounded), outside);
  return cudaSuccess;
}

// The host's memory that CUDA knows: page-locked by cudaHostAlloc or cudaHostRegister, or managed, which lies where it is used and here on the host.
enum HostMemory : int { kAllocated, kRegistered, kManaged, kKindsOfHostMemory };
struct Known {
  size_t bytes;
  HostMemory kind;
  // On which it was asked for.
  int device;
};
std::map<uint64_t, Known> known;
// Bytes of each kind, and the most there were at once: of what is page-locked, and of what is managed.
size_t known_bytes[kKindsOfHostMemory] = {}, most_pinned = 0, most_managed = 0;

// Under the mutex.
void know(const void* address, size_t bytes, HostMemory kind) {
  known[reinterpret_cast<uint64_t>(address)] = {bytes, kind, current_device};
  known_bytes[kind] += bytes;
  most_pinned = std::max(most_pinned, known_bytes[kAllocated] + known_bytes[kRegistered]);
  most_managed = std::max(most_managed, known_bytes[kManaged]);
}
// Under the mutex.
void forget(std::map<uint64_t, Known>::iterator found) {
  known_bytes[found->second.kind] -= found->second.bytes;
  known.erase(found);
}

}  // namespace

}  // namespace vramlab::runtime

using namespace vramlab::runtime;

extern "C" {

void (*vramlab_dry_outside)(int device, uint64_t address, int64_t bytes, const char* library) = nullptr;
void (*vramlab_dry_asked)(int device, uint64_t free, uint64_t total, bool is_allocator) = nullptr;

void vramlab_dry_plug(const char* library) { std::strncpy(plugged, library, sizeof plugged - 1); }

// Of the library that calls.
#define ALLOCATE(address, bytes) allocate(current_device, address, bytes, __builtin_return_address(0))
cudaError_t cudaMalloc(void** address, size_t bytes) { return ALLOCATE(address, bytes); }
// For the driver, whose caller it is.
int vramlab_dry_allocate(void** address, size_t bytes, const void* caller) { return allocate(current_device, address, bytes, caller); }
cudaError_t cudaFreeHost(void* address);
cudaError_t cudaFree(void* address) {
  if (!address) come_up(current_device);
  if (!is_device(address)) {
    std::unique_lock<std::mutex> lock(mutex);
    const auto found = known.find(reinterpret_cast<uint64_t>(address));
    const bool is_managed = found != known.end() && found->second.kind == kManaged;
    lock.unlock();
    return is_managed ? cudaFreeHost(address) : cudaSuccess;
  }
  std::unique_lock<std::mutex> lock(mutex);
  const int device = device_of(reinterpret_cast<uint64_t>(address));
  Card& of = cards[device];
  const auto found = of.blocks.find(reinterpret_cast<uint64_t>(address));
  if (found == of.blocks.end()) return cudaSuccess;
  const auto [bytes, outside] = found->second;
  const bool is_small = bytes % kGranularity != 0;
  if (is_small) of.small -= bytes;
  give_memory(device, is_small ? pages(of.small + bytes) - pages(of.small) : bytes, outside);
  of.blocks.erase(found);
  lock.unlock();
  if (outside) tell_outside(device, reinterpret_cast<uint64_t>(address), -static_cast<int64_t>(bytes), outside);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t) { return ALLOCATE(address, bytes); }
cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, void*, cudaStream_t) { return ALLOCATE(address, bytes); }
cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }
// Rows begin at multiples of 512 bytes.
cudaError_t cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return ALLOCATE(address, *pitch * height);
}
struct PitchedAddress {
  void* address;
  size_t pitch, width, height;
};
struct Extent {
  size_t width, height, depth;
};
cudaError_t cudaMalloc3D(PitchedAddress* out, Extent extent) {
  *out = {nullptr, (extent.width + 511) / 512 * 512, extent.width, extent.height};
  return ALLOCATE(&out->address, out->pitch * extent.height * extent.depth);
}
struct ChannelFormat {
  int bits[4], kind;
};
cudaError_t cudaMallocArray(void** array, const ChannelFormat* format, size_t width, size_t height, unsigned) {
  const auto bits = static_cast<size_t>(format->bits[0] + format->bits[1] + format->bits[2] + format->bits[3]);
  return ALLOCATE(array, width * std::max<size_t>(height, 1) * bits / 8);
}
cudaError_t cudaFreeArray(void* array) { return cudaFree(array); }

// Where the block begins that an address lies in, or what is reserved there; the address itself of others.
uint64_t vramlab_dry_begin_of(uint64_t address, size_t* bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  *bytes = 0;
  if (!is_device(reinterpret_cast<void*>(address))) return address;
  const Card& of = cards[device_of(address)];
  for (const auto* taken : {&of.blocks, &of.reservations}) {
    const auto after = taken->upper_bound(address);
    if (after == taken->begin()) continue;
    const auto& [begin, block] = *std::prev(after);
    if (address - begin >= block.bytes) continue;
    *bytes = block.bytes;
    return begin;
  }
  return address;
}
cudaError_t cudaIpcGetMemHandle(SharedMemory* handle, void* address) {
  *handle = {};
  vramlab_dry_begin_of(reinterpret_cast<uint64_t>(address), &handle->bytes);
  return handle->bytes ? cudaSuccess : last_error = cudaErrorInvalidValue;
}
cudaError_t cudaIpcOpenMemHandle(void** address, SharedMemory handle, unsigned) {
  const std::lock_guard<std::mutex> lock(mutex);
  Card& of = cards[current_device];
  const uint64_t found = take_addresses(of, handle.bytes);
  if (!found) return last_error = cudaErrorMemoryAllocation;
  of.reservations[found] = {handle.bytes, nullptr};
  *address = reinterpret_cast<void*>(found);
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* address) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (is_device(address)) cards[device_of(reinterpret_cast<uint64_t>(address))].reservations.erase(reinterpret_cast<uint64_t>(address));
  return cudaSuccess;
}
static void asked(int device, size_t free, const void* caller) {
  if (!vramlab_dry_asked) return;
  std::unique_lock<std::mutex> lock(mutex);
  const bool is_allocator = outside_of(caller) == nullptr;
  lock.unlock();
  vramlab_dry_asked(device, free, card_memory(), is_allocator);
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  size_t used = current_device < device_count() ? occupancy::used(card_of(current_device), card_memory()) : 0;
  used -= std::min(used, static_cast<size_t>(code_to_come(current_device)));
  *free_bytes = used < card_memory() ? card_memory() - used : 0;
  *total_bytes = card_memory();
  asked(current_device, *free_bytes, __builtin_return_address(0));
  return cudaSuccess;
}

// ---- host memory, which is real, and never page-locked ---------------------------------------------------------------------------------

static cudaError_t allocate_host(void** address, size_t bytes, HostMemory kind) {
  come_up(current_device);
  // Pages that nobody touches take nothing.
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return last_error = cudaErrorMemoryAllocation;
  const std::lock_guard<std::mutex> lock(mutex);
  know(memory, bytes, kind);
  *address = memory;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) { return allocate_host(address, bytes, kAllocated); }
cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned) { return allocate_host(address, bytes, kManaged); }
uint64_t vramlab_dry_managed() {
  const std::lock_guard<std::mutex> lock(mutex);
  return most_managed;
}
cudaError_t cudaFreeHost(void* address) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(reinterpret_cast<uint64_t>(address));
  if (found == known.end() || found->second.kind == kRegistered) return address ? last_error = cudaErrorInvalidValue : cudaSuccess;
  munmap(address, found->second.bytes);
  forget(found);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  const std::lock_guard<std::mutex> lock(mutex);
  know(address, bytes, kRegistered);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(reinterpret_cast<uint64_t>(address));
  if (found != known.end()) forget(found);
  return cudaSuccess;
}
int cudaHostGetDevicePointer(void** device, void* host, unsigned) { return is(device, host); }

// The head of cudaPointerAttributes, which is the same in CUDA 12 and 13.
struct PointerAttributes {
  int type, device;
  void *device_pointer, *host_pointer;
};
cudaError_t cudaPointerGetAttributes(PointerAttributes* attributes, const void* data) {
  constexpr int kUnregistered = 0, kHost = 1, kDevice = 2, kOfBoth = 3;
  void* address = const_cast<void*>(data);
  if (is_device(data)) {
    *attributes = {kDevice, device_of(reinterpret_cast<uint64_t>(data)), address, nullptr};
    return cudaSuccess;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  auto after = known.upper_bound(reinterpret_cast<uint64_t>(data));
  const bool is_known = after != known.begin() && (--after, reinterpret_cast<uint64_t>(data) < after->first + after->second.bytes);
  const int type = is_known && after->second.kind == kManaged ? kOfBoth : kHost;
  *attributes = is_known ? PointerAttributes{type, after->second.device, address, address} : PointerAttributes{kUnregistered, -2, nullptr, nullptr};
  return cudaSuccess;
}

// Pools of the driver's: one, which keeps nothing.
static char the_pool;
GIVES(cudaDeviceGetDefaultMemPool, void*, &the_pool) GIVES(cudaDeviceGetMemPool, void*, &the_pool) GIVES(cudaMemPoolCreate, void*, &the_pool)
int cudaMemPoolGetAttribute(void*, int, uint64_t* value) { return is(value, 0); }

// The most of the host's memory that was pinned at once, with what PyTorch's allocator of it rounds up and keeps.
uint64_t vramlab_dry_pinned() {
  const std::lock_guard<std::mutex> lock(mutex);
  return most_pinned;
}

}  // extern "C"

// ---- the driver, which expandable segments ask for pages -------------------------------------------------------------------------------

namespace {

// What CUDA calls out of memory, in the runtime's numbers and in the driver's, which are the same.
constexpr int kOutOfMemory = 2;

int device_get(int* device, int number) { return is(device, number); }
// No attribute that c10 asks for is there: no RDMA, no fabric handles.
int device_get_attribute(int* value, int, int) { return is(value, 0); }
int memory_granularity(size_t* bytes, const void*, int) { return is(bytes, kGranularity); }
int memory_reserve_addresses(uint64_t* address, size_t bytes, size_t, uint64_t, unsigned long long) {
  const std::lock_guard<std::mutex> lock(mutex);
  Card& of = cards[current_device];
  *address = take_addresses(of, bytes);
  if (!*address) return kOutOfMemory;
  of.reservations[*address] = {bytes, nullptr};
  return 0;
}
int memory_free_addresses(uint64_t address, size_t) {
  const std::lock_guard<std::mutex> lock(mutex);
  cards[device_of(address)].reservations.erase(address);
  return 0;
}
// The head of CUmemAllocationProp: type, shareable handles, and where the memory is to be.
struct Wanted {
  int type, handles, location_type, device;
};
int memory_create_for(uint64_t* handle, size_t bytes, const Wanted* wanted, const void* caller) {
  std::unique_lock<std::mutex> lock(mutex);
  const int device = wanted->device >= 0 && wanted->device < device_count() ? wanted->device : 0;
  const char* outside = outside_of(caller);
  if (!take_memory(device, bytes, outside)) return kOutOfMemory;
  *handle = next_handle++;
  handles[*handle] = {device, bytes, outside};
  lock.unlock();
  if (outside) tell_outside(device, *handle, static_cast<int64_t>(bytes), outside);
  return 0;
}
int memory_create(uint64_t* handle, size_t bytes, const Wanted* wanted, unsigned long long) {
  return memory_create_for(handle, bytes, wanted, __builtin_return_address(0));
}
int memory_release(uint64_t handle) {
  std::unique_lock<std::mutex> lock(mutex);
  const auto found = handles.find(handle);
  if (found == handles.end()) return 0;
  const auto [device, bytes, outside] = found->second;
  give_memory(device, bytes, outside);
  handles.erase(found);
  lock.unlock();
  if (outside) tell_outside(device, handle, -static_cast<int64_t>(bytes), outside);
  return 0;
}
// Mapping, unmapping and access rights: pages that nobody touches need none.
int nothing_to_do() { return 0; }
int refused() { return cudaErrorNotSupported; }
int error_string(int error, const char** text) {
  return is(text, error == kOutOfMemory ? "out of memory" : "the simulated GPU does not have this part of the CUDA driver");
}

// A child that is forked has none of its parent's memory. The lock is held over the fork, so that no other thread has it in the child.
[[maybe_unused]] const int follows_forks = pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); },
                                                          [] {
                                                            occupancy::forked();
                                                            has_code = 0;
                                                            handles.clear();
                                                            for (Card& of : cards) of.blocks.clear(), of.reservations.clear(), of.small = 0;
                                                            mutex.unlock();
                                                          });

}  // namespace

// For the driver, whose caller it is.
extern "C" int vramlab_dry_create(uint64_t* handle, size_t bytes, const void* wanted, const void* caller) {
  return memory_create_for(handle, bytes, static_cast<const Wanted*>(wanted), caller);
}

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                        cudaDriverEntryPointQueryResult* result) {
#define ENTRY(of, function) {of, reinterpret_cast<void*>(&function)}
  static const std::pair<const char*, void*> kEntries[] = {
      ENTRY("cuDeviceGet", device_get),
      ENTRY("cuDeviceGetAttribute", device_get_attribute),
      ENTRY("cuGetErrorString", error_string),
      ENTRY("cuMemGetAllocationGranularity", memory_granularity),
      ENTRY("cuMemAddressReserve", memory_reserve_addresses),
      ENTRY("cuMemAddressFree", memory_free_addresses),
      ENTRY("cuMemCreate", memory_create),
      ENTRY("cuMemRelease", memory_release),
      ENTRY("cuMemMap", nothing_to_do),
      ENTRY("cuMemUnmap", nothing_to_do),
      ENTRY("cuMemSetAccess", nothing_to_do),
  };
  // How a kernel is to read a tensor (cuTensorMapEncodeTiled and its kin) is said to kernels that never run.
  const bool is_said = std::strncmp(name, "cuTensorMap", std::strlen("cuTensorMap")) == 0;
  *function = reinterpret_cast<void*>(is_said ? &nothing_to_do : &refused);
  for (const auto& [known, entry] : kEntries) {
    if (std::strcmp(known, name) == 0) *function = entry;
  }
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
// CUDA 12's, which some builds of PyTorch for it ask.
extern "C" cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                               cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result);
}
