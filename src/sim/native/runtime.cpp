// A simulated CUDA runtime, driver and NVML: just enough for PyTorch's own caching allocator (libc10_cuda.so) to run where there is no
// GPU, and for libtorch_cuda of CUDA 12 and 13 to come up. VRAMLAB_DRY_DEVICES cards (one where it is not set; which card it is, card.h tells),
// of whose memory a process's context takes VRAMLAB_DRY_TAKEN bytes, and other processes what they have (occupancy.h); their addresses must never be
// touched. Preloaded (LD_PRELOAD) into dry processes only, or
// opened for all (RTLD_GLOBAL) before libtorch, so that its functions stand before those of libcudart, which libtorch brings along. What
// libtorch can call and the simulated GPU does not have is refused here too, so that no call reaches a real driver. Its soname is NVML's (nvml.cpp),
// so that c10, which opens that library to describe an out-of-memory error, finds this one; driver.cpp is there for what opens the driver.
#include "answers.h"
#include "callers.h"
#include "card.h"
#include "cuda_runtime_api.h"
#include "occupancy.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace occupancy = vramlab::occupancy;

namespace {

constexpr size_t kGranularity = 2 << 20;

VramlabCard read_card() {
  VramlabCard card = {};
  const char* set = std::getenv("VRAMLAB_DRY_CARD");
  // The name is for people. What is not said stays 0, so that no process takes a card for another one.
  if (!set || !(set = std::strchr(set, ','))) return card;
  std::sscanf(set, ",%255[^,],%llu,%d.%d,%d,%d,%llu,%llu,%llu,%llu,%d", card.title, &card.memory, &card.major, &card.minor, &card.multiprocessors,
              &card.threads_per_multiprocessor, &card.shared_per_block, &card.shared_opt_in, &card.shared_per_multiprocessor, &card.l2, &card.has_nvlink);
  return card;
}

// Read when it is first asked for: until then a process may still become another card.
const VramlabCard& sheet() {
  static const VramlabCard card = read_card();
  return card;
}

// Where a process goes through cards of several sizes: that of the one it has now.
std::atomic<size_t> another_memory{0};
size_t card_memory() {
  const size_t another = another_memory.load(std::memory_order_relaxed);
  return another ? another : sheet().memory;
}

size_t setting(const char* name, size_t otherwise) {
  const char* set = std::getenv(name);
  return set ? std::strtoull(set, nullptr, 10) : otherwise;
}

// All cards' addresses: below those that a Linux process gets for itself, so that a touch is a fault and not a silent overwrite.
constexpr uint64_t kFirst = 1ull << 41, kSpan = 1ull << 46;
constexpr int kMostDevices = occupancy::kMostCards;

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
int device_count() { return machine().visible; }

// What each card has of them. An expandable segment reserves more than a card's memory for each pool and stream.
uint64_t stride() {
  static const uint64_t bytes = kSpan / (device_count() > 0 ? device_count() : 1) / kGranularity * kGranularity;
  return bytes;
}

bool is_device(const void* data) { return reinterpret_cast<uint64_t>(data) - kFirst < kSpan; }
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

std::mutex mutex;
Card cards[kMostDevices];
uint64_t next_handle = 1;
struct Pages {
  int device;
  size_t bytes;
  const char* outside;
};
// By handle of cuMemCreate.
std::map<uint64_t, Pages> handles;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

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

// The number in the machine of a device of this process.
int card_of(int device) { return machine().numbers[device]; }

// Brings up a device's context, as most calls do. False where there is no room for it.
bool come_up(int device) { return device >= device_count() || occupancy::is_up(card_of(device)) || occupancy::take(card_of(device), card_memory(), 0, nullptr); }

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

// By stream, the capture that is under way on it.
std::map<cudaStream_t, unsigned long long> captures;

// What a graph keeps alive: a function that is called with its data when the last reference is gone. Here a graph and what is instantiated of
// it are one, which lives until both are destroyed.
struct UserObject {
  cudaHostFn_t destroy;
  void* data;
  unsigned references;
};
std::map<cudaUserObject_t, UserObject> user_objects;
struct Graph {
  int owners = 1;
  std::map<cudaUserObject_t, unsigned> retained;
};
std::map<cudaGraph_t, Graph> graphs;

// By the number of its capture.
cudaGraph_t graph_of(unsigned long long capture) { return reinterpret_cast<cudaGraph_t>(capture * 16); }

cudaError_t disown(cudaGraph_t graph) {
  std::map<cudaUserObject_t, unsigned> released;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = graphs.find(graph);
    if (found == graphs.end() || --found->second.owners > 0) return cudaSuccess;
    released = std::move(found->second.retained);
    graphs.erase(found);
  }
  for (const auto& [object, references] : released) cudaUserObjectRelease(object, references);
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

// Those with kernels of their own; marked when they launch one.
VramlabLibraries third_party;

// Kernels, copies and memsets that this thread has launched.
thread_local uint64_t launches = 0;

// How many launches later than at once what an event waits for is over; the launches of all threads, how many of them somebody has waited for, and
// how many there were when each event was recorded.
uint64_t lag() {
  static const uint64_t asked = setting("VRAMLAB_DRY_LAG", 0);
  return asked;
}
std::atomic<uint64_t> launched{1}, waited_for{0};
std::map<cudaEvent_t, uint64_t> recorded;
// When the device comes to an event that can be timed, in predicted seconds; less than 0 where nobody predicts.
std::map<cudaEvent_t, double> times;
// Of each event the stream that it was last recorded on, that one's device, and how far the work had come.
struct Mark {
  uint64_t stream;
  int device;
  uint64_t position;
};
std::map<cudaEvent_t, Mark> marks;

// Devices where the code of kernels is, a bit each. It comes with cuBLAS's or cuDNN's handle, and else with this launch: a single kernel takes little.
// Room for it is taken with the context; until it comes this process is told that it is free, by the runtime and by NVML.
// Of other processes it is in use.
std::atomic<uint64_t> has_code{0};
static_assert(kMostDevices <= 64);
constexpr uint64_t kManyLaunches = 16;

void load_code() { has_code |= uint64_t{1} << current_device; }

uint64_t code_to_come(int device) {
  static const uint64_t bytes = [] {
    const char* set = std::getenv("VRAMLAB_DRY_CODE");
    return set ? std::strtoull(set, nullptr, 10) : 0;
  }();
  return has_code & uint64_t{1} << device ? 0 : bytes;
}

void launch() {
  if (++launches == kManyLaunches) load_code();
  if (lag()) launched++;
}
// How often it has waited for the device.
thread_local uint64_t waits = 0;

cudaError_t wait() {
  waits++;
  waited_for = launched.load();
  return cudaSuccess;
}

// What CUDA calls out of memory, in the runtime's numbers and in the driver's, which are the same.
constexpr int kOutOfMemory = 2;

// What every card has of: threads of a block, of a warp, registers, blocks of a multiprocessor, shared memory that the driver keeps.
constexpr int kThreadsPerBlock = 1024, kWarpSize = 32, kRegisters = 65536, kGridX = 2147483647, kGridYZ = 65535, kReservedShared = 1024;

int blocks_per_multiprocessor() {
  const int capability = 10 * sheet().major + sheet().minor;
  if (capability == 75 || capability == 86) return 16;
  return capability == 89 || capability >= 120 ? 24 : 32;
}

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

struct Bounds {
  uint64_t begin = 0, end = 0;
};
Bounds own_stack() {
  // Of a process's first thread it is read from all of /proc/self/maps: a tenth of a millisecond and more, and there are hundreds of thousands of launches.
  static thread_local const uint64_t end = [] {
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return uint64_t{0};
    void* low = nullptr;
    size_t bytes = 0;
    const bool is_there = pthread_attr_getstack(&attributes, &low, &bytes) == 0;
    pthread_attr_destroy(&attributes);
    return is_there ? reinterpret_cast<uint64_t>(low) + bytes : 0;
  }();
  // From here up: below it nobody has put anything.
  const char here = 0;
  return {reinterpret_cast<uint64_t>(&here), end};
}

// Reads back zeros. Pages of the host that nobody has touched are left alone: they are zeros, and take no memory.
void zero(char* to, size_t bytes) {
  constexpr size_t kLarge = 1 << 20, kPage = 4096, kChunk = 64 << 20;
  if (bytes < kLarge || sysconf(_SC_PAGESIZE) != kPage) {
    std::memset(to, 0, bytes);
    return;
  }
  char* const end = to + bytes;
  char* const first = to + (kPage - reinterpret_cast<uint64_t>(to) % kPage) % kPage;
  std::memset(to, 0, static_cast<size_t>(first - to));
  std::vector<unsigned char> is_touched(kChunk / kPage);
  char* at = first;
  while (static_cast<size_t>(end - at) >= kPage) {
    const size_t chunk = (static_cast<size_t>(end - at) < kChunk ? static_cast<size_t>(end - at) : kChunk) / kPage * kPage;
    const bool is_known = mincore(at, chunk, is_touched.data()) == 0;
    for (size_t page = 0; page < chunk / kPage; page++) {
      if (!is_known || is_touched[page] & 1) std::memset(at + page * kPage, 0, kPage);
    }
    at += chunk;
  }
  std::memset(at, 0, static_cast<size_t>(end - at));
}

}  // namespace

extern "C" {

void (*vramlab_dry_watch)(int what, const void* address) = nullptr;
void (*vramlab_dry_launched)(const uint64_t* addresses, size_t count) = nullptr;
double (*vramlab_dry_clock)(const uint64_t* stream) = nullptr;
// What orders streams: how far their work has come, asked when an event is recorded, and a stream that waits for an event of another one.
uint64_t (*vramlab_dry_position)() = nullptr;
void (*vramlab_dry_order)(uint64_t stream, int device, uint64_t source, int source_device, uint64_t position) = nullptr;
void (*vramlab_dry_outside)(int device, uint64_t address, int64_t bytes, const char* library) = nullptr;
void (*vramlab_dry_asked)(int device, uint64_t free, uint64_t total, bool is_allocator) = nullptr;

// Says that this runtime is loaded, and how large its card is.
// Asked before the script begins, which may clear its environment.
uint64_t vramlab_dry_memory() {
  asked_cards();
  lag();
  occupancy::context_bytes();
  code_to_come(0);
  return card_memory();
}
uint64_t vramlab_dry_launches() { return launches; }
void vramlab_dry_load_code() { load_code(); }
void vramlab_dry_plug(const char* library) { std::strncpy(plugged, library, sizeof plugged - 1); }
uint64_t vramlab_dry_code_to_come(int card) {
  for (int device = 0; device < device_count(); device++) {
    if (card_of(device) == card && occupancy::is_up(card)) return code_to_come(device);
  }
  return 0;
}
int vramlab_dry_cards() { return machine().cards; }
uint64_t vramlab_dry_waits() { return waits; }
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
// What another process of the rehearsal has: an address here, which takes nothing of the card.
struct SharedMemory {
  size_t bytes;
  char rest[56];
};
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

// ---- streams and events: nothing is ever under way ------------------------------------------------------------------------------------

// A capture is only known by its stream; what is captured has run as it is, and a launch has nothing left to do.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard<std::mutex> lock(mutex);
  const unsigned long long capture = captures[stream] = next_handle++;
  graphs[graph_of(capture)];
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = captures.find(stream);
  if (found == captures.end()) return last_error = cudaErrorInvalidValue;
  *graph = graph_of(found->second);
  captures.erase(found);
  return cudaSuccess;
}
// CUDA 12's has no list of edges and the suffix _v2; what follows the graph is left alone in both.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = captures.find(stream);
  *status = found != captures.end() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id && found != captures.end()) *id = found->second;
  if (graph && found != captures.end()) *graph = graph_of(found->second);
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t**, size_t*) {
  return cudaStreamGetCaptureInfo(stream, status, id, graph, nullptr, nullptr, nullptr);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) { return cudaStreamGetCaptureInfo(stream, status, nullptr); }
cudaError_t cudaGraphInstantiateWithFlags(void** executable, cudaGraph_t graph, unsigned long long) {
  const std::lock_guard<std::mutex> lock(mutex);
  graphs[graph].owners++;
  *executable = graph;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(void** executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}
// A graph without nodes gives a warning that the capture was empty.
int cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) { return count ? is(count, 1) : 0; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return disown(graph); }
cudaError_t cudaGraphExecDestroy(void* executable) { return disown(static_cast<cudaGraph_t>(executable)); }
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy, unsigned references, unsigned) {
  const std::lock_guard<std::mutex> lock(mutex);
  *object = reinterpret_cast<cudaUserObject_t>(next_handle++ * 16);
  user_objects[*object] = {destroy, data, references};
  return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned references) {
  UserObject last{};
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = user_objects.find(object);
    if (found == user_objects.end() || found->second.references < references) return last_error = cudaErrorInvalidValue;
    if ((found->second.references -= references) > 0) return cudaSuccess;
    last = found->second;
    user_objects.erase(found);
  }
  // What it destroys may call this runtime.
  last.destroy(last.data);
  return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned references, unsigned flags) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = user_objects.find(object);
  const auto of = graphs.find(graph);
  if (found == user_objects.end() || of == graphs.end()) return last_error = cudaErrorInvalidValue;
  if (!(flags & cudaGraphUserObjectMove)) found->second.references += references;
  of->second.retained[object] += references;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  come_up(current_device);
  const std::lock_guard<std::mutex> lock(mutex);
  *stream = reinterpret_cast<cudaStream_t>(next_handle++ * 16);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return wait(); }
cudaError_t cudaDeviceSynchronize() {
  come_up(current_device);
  return wait();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  constexpr unsigned kDisableTiming = 2;
  come_up(current_device);
  const std::lock_guard<std::mutex> lock(mutex);
  *event = reinterpret_cast<cudaEvent_t>(next_handle++ * 16);
  if (!(flags & kDisableTiming)) times[*event] = -1;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, SharedMemory) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(mutex);
  recorded.erase(event);
  times.erase(event);
  marks.erase(event);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!lag()) return cudaSuccess;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = recorded.find(event);
  const bool is_over = found == recorded.end() || found->second <= waited_for || launched - found->second >= lag();
  return is_over ? cudaSuccess : last_error = cudaErrorNotReady;
}
std::atomic<uint64_t> events_recorded{0};
uint64_t vramlab_dry_events() { return events_recorded; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  events_recorded++;
  const uint64_t position = vramlab_dry_position ? vramlab_dry_position() : 0;
  std::unique_lock<std::mutex> lock(mutex);
  if (vramlab_dry_position) marks[event] = {reinterpret_cast<uint64_t>(stream), current_device, position};
  if (lag()) recorded[event] = launched;
  if (!vramlab_dry_clock || !times.count(event)) return cudaSuccess;
  lock.unlock();
  const auto handle = reinterpret_cast<uint64_t>(stream);
  const double time = vramlab_dry_clock(&handle);
  lock.lock();
  times[event] = time;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!vramlab_dry_order) return cudaSuccess;
  std::unique_lock<std::mutex> lock(mutex);
  const auto found = marks.find(event);
  if (found == marks.end()) return cudaSuccess;
  const Mark mark = found->second;
  lock.unlock();
  const auto waiting = reinterpret_cast<uint64_t>(stream);
  if (waiting != mark.stream || (!waiting && current_device != mark.device))
    vramlab_dry_order(waiting, current_device, mark.stream, mark.device, mark.position);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return wait(); }
std::atomic<uint64_t> timed{0}, untimed{0};
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  // What times algorithms to choose one, as cudnn.benchmark has PyTorch do, must choose the same each time: the host's noise is in the clock.
  const void* const caller = __builtin_return_address(0);
  static VramlabLibrary chooser;
  if (!chooser.end) {
    const VramlabLibrary library = vramlab_library_of(caller);
    if (std::strstr(library.name, "/libtorch_cuda")) chooser = library;
  }
  if (chooser.has(caller)) {
    *milliseconds = 0.01f;
    return cudaSuccess;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  const auto from = times.find(begin), to = times.find(end);
  const bool is_known = from != times.end() && to != times.end() && from->second >= 0 && to->second >= 0;
  (is_known ? timed : untimed)++;
  // There are programs that divide by it.
  *milliseconds = is_known ? static_cast<float>(1e3 * (to->second - from->second)) : 0.01f;
  return cudaSuccess;
}
// How often the script asked for a time, and for one that there is none of.
uint64_t vramlab_dry_timed() { return timed; }
uint64_t vramlab_dry_untimed() { return untimed; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, void (*callback)(cudaStream_t, cudaError_t, void*), void* data, unsigned) {
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, void (*callback)(void*), void* data) {
  callback(data);
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

cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) {
  launch();
  return cudaSuccess;
}

// ---- cards, as far as somebody asks one by one ------------------------------------------------------------------------------------------

cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaDeviceGetPCIBusId(char* bus, int length, int device) {
  std::snprintf(bus, static_cast<size_t>(length), "0000:%02X:00.0", card_of(device) + 1);
  return cudaSuccess;
}
int cudaDeviceCanAccessPeer(int* can, int device, int peer) { return is(can, device != peer); }

// Pools of the driver's: one, which keeps nothing.
static char the_pool;
GIVES(cudaDeviceGetDefaultMemPool, void*, &the_pool) GIVES(cudaDeviceGetMemPool, void*, &the_pool) GIVES(cudaMemPoolCreate, void*, &the_pool)
int cudaMemPoolGetAttribute(void*, int, uint64_t* value) { return is(value, 0); }

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

// ---- copies: the device's memory holds nothing; what is read from it is zeros ------------------------------------------------------------

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  launch();
  if (is_device(to)) {
    if (vramlab_dry_watch && !is_device(from)) vramlab_dry_watch(kVramlabFromHost, to);
    return cudaSuccess;
  }
  if (is_device(from)) {
    zero(static_cast<char*>(to), bytes);
  } else {
    std::memmove(to, from, bytes);
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height && !is_device(to); row++)
    cudaMemcpyAsync(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width, kind, stream);
  return cudaSuccess;
}

// ---- kernels, which are never run --------------------------------------------------------------------------------------------------------

// What nvcc's start-up code registers: nothing of it is needed, and it is a lot. But who brings kernels is not PyTorch alone.
void** __cudaRegisterFatBinary(void* binary) {
  static void* handle = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  static VramlabLibrary last;
  if (!last.has(binary)) {
    last = vramlab_library_of(binary);
    if (!last.is_pytorchs()) third_party.add(last);
  }
  return &handle;
}
// Libraries with kernels of their own that have launched one, a line each.
const char* vramlab_runtime_third_party() {
  const std::lock_guard<std::mutex> lock(mutex);
  return third_party.marked();
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
int __cudaGetKernel(void** kernel, const void* function) { return is(kernel, const_cast<void*>(function)); }
// Three numbers, passed as CUDA's dim3 is.
struct Shape {
  unsigned x, y, z;
};
// Where `<<<...>>>` leaves its arguments for the code that launches, which goes no further where nobody takes them. CUDA's own library may not be there.
static thread_local struct {
  Shape grid, block;
  size_t shared;
  cudaStream_t stream;
} configured;
unsigned __cudaPushCallConfiguration(Shape grid, Shape block, size_t shared, cudaStream_t stream) {
  configured = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(Shape* grid, Shape* block, size_t* shared, cudaStream_t* stream) {
  std::tie(*grid, *block, *shared, *stream) = std::tie(configured.grid, configured.block, configured.shared, configured.stream);
  return cudaSuccess;
}
// The first argument is the function of the host that stands for the kernel. Its parameters matter where it is not PyTorch's: nobody else says
// where it writes. How many there are is not passed; nvcc's launching code has them, and the array of their addresses, on the stack, where each
// begins with an address of the card if it is a pointer or an accessor.
cudaError_t cudaLaunchKernel(const void* function, Shape, Shape, void** parameters) {
  launch();
  const int third_party_library = third_party.find(function);
  third_party.mark(third_party_library);
  if (third_party_library < 0 || !vramlab_dry_launched) return cudaSuccess;
  constexpr size_t kMostParameters = 64;
  uint64_t found[kMostParameters];
  size_t count = 0;
  const Bounds stack = own_stack();
  const auto is_there = [&](const void* at) {
    const auto address = reinterpret_cast<uint64_t>(at);
    // What follows the array may be anything, -1 too.
    return address >= stack.begin && address < stack.end && stack.end - address >= sizeof(void*);
  };
  for (size_t i = 0; i < kMostParameters && is_there(parameters + i) && is_there(parameters[i]); i++) {
    void* value = nullptr;
    std::memcpy(&value, parameters[i], sizeof value);
    if (is_device(value)) found[count++] = reinterpret_cast<uint64_t>(value);
  }
  if (count) vramlab_dry_launched(found, count);
  return cudaSuccess;
}
#define LAUNCHES(name) \
  cudaError_t name(const void* function, Shape grid, Shape block, void** parameters) { return cudaLaunchKernel(function, grid, block, parameters); }
LAUNCHES(cudaLaunchCooperativeKernel) LAUNCHES(__cudaLaunchKernel) LAUNCHES(__cudaLaunchKernel_ptsz)
cudaError_t cudaLaunchKernelExC(const void*, const void* function, void** parameters) { return cudaLaunchKernel(function, {}, {}, parameters); }
static char the_symbol[1 << 16];
int cudaGetSymbolAddress(void** address, const void*) { return is(address, the_symbol); }

struct FunctionAttributes {
  size_t shared, constant, local;
  int threads_per_block, registers, ptx, binary, cache_mode, dynamic_shared, carve_out;
};
std::atomic<int> code{0};
// The version of the code that the card takes of those that PyTorch is built for: who knows them sets it.
void vramlab_dry_set_code(int version) { code = version; }
// The most of the host's memory that was pinned at once, with what PyTorch's allocator of it rounds up and keeps.
uint64_t vramlab_dry_pinned() {
  const std::lock_guard<std::mutex> lock(mutex);
  return most_pinned;
}
// CUB chooses its tiles by that version, and refuses one that PyTorch is not built for. Registers are a kernel's own, and nobody asks for them
// before memory is sized but through the occupancy below.
cudaError_t cudaFuncGetAttributes(FunctionAttributes* attributes, const void*) {
  const int capability = 10 * sheet().major + sheet().minor;
  const int version = code ? code.load() : capability == 89 ? 86 : capability;
  *attributes = {0, 0, 0, kThreadsPerBlock, 32, version, version, 0, static_cast<int>(sheet().shared_per_block), -1};
  return cudaSuccess;
}
// Assumed: a kernel of 32 registers or fewer, without shared memory that counts, so that threads alone are the limit.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int block, size_t, unsigned) {
  const int by_threads = block > 0 ? sheet().threads_per_multiprocessor / block : 0;
  *blocks = by_threads < blocks_per_multiprocessor() ? by_threads : blocks_per_multiprocessor();
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block, shared, 0);
}

// ---- NCCL between the cards of one process, as DataParallel and torch.cuda.nccl call it: nothing moves -----------------------------------

int ncclCommInitAll(void** communicators, int count, const int*) {
  static char one;
  for (int i = 0; i < count; i++) communicators[i] = &one;
  return 0;
}

}  // extern "C"

// ---- the driver, which expandable segments ask for pages -------------------------------------------------------------------------------

namespace {

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
