// Who has what of each card, shared by all processes of a rehearsal: what is free is free for all. Outside of a rehearsal this process alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace vramlab::occupancy {

constexpr int kMostCards = 64;

// Cards are those of the machine, from 0 on, whatever a process calls them. Each call may be the first of this process on a card,
// which then has its CUDA context there. A card has `memory` bytes.

// Bytes of a context. Asked first before the script begins, which may change its environment.
uint64_t context_bytes();
// False where so much is not free. `outside` names the library that asks, where it is not PyTorch's allocator.
bool take(int card, uint64_t memory, uint64_t bytes, const char* outside);
void give(int card, uint64_t bytes, bool outside);
// What is in use, as this process sees it: by all that run beside it.
uint64_t used(int card, uint64_t memory);
// Whether this process has a context there.
bool is_up(int card);

// Calls with each process that has memory of the card, and its bytes; makes no context.
void each_process(int card, const std::function<void(int process, uint64_t bytes)>& call);

// Around a fork: the child has nothing of its parent's, and no context until it uses CUDA.
void forked();

}  // namespace vramlab::occupancy

// This process is stopped here, and a real one would go on: what it has now stays taken for those that run beside it.
extern "C" void vramlab_dry_hold();
extern "C" void vramlab_dry_tell_status(const char* path);
extern "C" void vramlab_dry_leave_at_exit();
