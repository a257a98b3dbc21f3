// The card that the simulated runtime is, as it and the kernels read it from VRAMLAB_DRY_CARD (src/sim/src/cards.rs): fields with commas between,
// name, title, memory, compute capability, multiprocessors, threads of a multiprocessor, shared memory of a block, of a block that asks
// for more, of a multiprocessor, L2 cache, whether cards of a machine are joined by NVLink.
#pragma once
#include <cstddef>
#include <cstdint>

struct VramlabCard {
  char title[256];
  unsigned long long memory;
  int major, minor, multiprocessors, threads_per_multiprocessor;
  unsigned long long shared_per_block, shared_opt_in, shared_per_multiprocessor, l2;
  int has_nvlink;
};

// In the runtime, which is preloaded.
extern "C" const VramlabCard* vramlab_dry_card();
// Most blocks that a multiprocessor holds at once.
extern "C" int vramlab_dry_blocks_per_multiprocessor();

// Who follows a process's memory sets this to be told what a block is for: it is filled from the host, or is a library's workspace.
enum VramlabUse { kVramlabFromHost = 1, kVramlabWorkspace = 2 };
extern "C" void (*vramlab_dry_watch)(int use, const void* address);

// The code of kernels comes to the card, as with a library's handle.
extern "C" void vramlab_dry_load_code();
// Bytes of it that a card of the machine has room for and does not hold yet: of this process, once it has a context there.
extern "C" uint64_t vramlab_dry_code_to_come(int card);

// The same one sets this to be told of kernels that are not PyTorch's: the device addresses that their parameters begin with.
extern "C" void (*vramlab_dry_launched)(const uint64_t* addresses, size_t count);

// And of memory that others than PyTorch's allocator take, and give back (fewer than 0 bytes): the library's file name.
extern "C" void (*vramlab_dry_outside)(int device, uint64_t address, int64_t bytes, const char* library);

// And of who asks what is free: a device, what it is told, and whether PyTorch's allocator asks, which may have its lock.
extern "C" void (*vramlab_dry_asked)(int device, uint64_t free, uint64_t total, bool is_allocator);
