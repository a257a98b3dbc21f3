// Copies and kernels of the simulated runtime: the device's memory holds nothing, so what is read from it is zeros, and no kernel is ever run.
#include "runtime.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <tuple>
#include <vector>

namespace vramlab::runtime {
namespace {

// Those with kernels of their own; marked when they launch one.
VramlabLibraries third_party;

// Kernels, copies and memsets that this thread has launched.
thread_local uint64_t launches = 0;

constexpr uint64_t kManyLaunches = 16;

void load_code() { has_code |= uint64_t{1} << current_device; }

void launch() {
  if (++launches == kManyLaunches) load_code();
  if (lag()) launched++;
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

uint64_t code_to_come(int device) {
  static const uint64_t bytes = [] {
    const char* set = std::getenv("VRAMLAB_DRY_CODE");
    return set ? std::strtoull(set, nullptr, 10) : 0;
  }();
  return has_code & uint64_t{1} << device ? 0 : bytes;
}

}  // namespace vramlab::runtime

using namespace vramlab::runtime;

extern "C" {

void (*vramlab_dry_watch)(int what, const void* address) = nullptr;
void (*vramlab_dry_launched)(const uint64_t* addresses, size_t count) = nullptr;
uint64_t vramlab_dry_launches() { return launches; }
void vramlab_dry_load_code() { load_code(); }
uint64_t vramlab_dry_code_to_come(int card) {
  for (int device = 0; device < device_count(); device++) {
    if (card_of(device) == card && occupancy::is_up(card)) return code_to_come(device);
  }
  return 0;
}

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

cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) {
  launch();
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

}  // extern "C"
